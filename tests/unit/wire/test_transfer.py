"""Hand-over parameters per connector and mode."""

from __future__ import annotations

from typing import Any

import pytest

from epdsim.core.errors import InputError
from epdsim.core.legs import KV_WISH
from epdsim.wire import KV_MODES, EcDescriptor, MooncakeWish, NixlHandle, check_kv, check_rows, ec_descriptors, parse

NIXL = {
    "item_indices": [0],
    "metadata": {"image_grid_thw": [1, 4, 4]},
    "peer_host": "127.0.0.1",
    "peer_port": 5601,
    "size_bytes": 4096,
    "shape": [4, 512],
}
HANDLE = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[11, 12]],
    "remote_engine_id": "eng-P0",
    "remote_request_id": "generate-tokens-r1-p-0a1b",
    "remote_host": "127.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 6,
    "remote_blocks_expiry_time": 1790000480.0,
    "transfer_mode": "pull",
}
"""The worked example of the wire reference."""


class TestEc:
    def test_map_and_list_are_both_read(self):
        flat = ec_descriptors({"h0": NIXL}, ["h0"], "nixl")
        listed = ec_descriptors({"ec_items": [NIXL]}, ["h0"], "nixl")
        named = ec_descriptors({"ec_items": [{**NIXL, "mm_hash": "h0"}]}, ["x"], "nixl")
        assert flat == listed
        assert flat["h0"].shape == [4, 512]
        assert named["h0"].has_address
        assert ec_descriptors(None, ["h0"], "cpu") == {}
        assert ec_descriptors({"h0": NIXL, "ec_items": [NIXL]}, ["h0"], "nixl") == flat

    @pytest.mark.parametrize(
        ("params", "connector", "said"),
        [
            ({"h0": None}, "example", r"ec_transfer_params\.h0: EcDescriptor"),
            ({"h0": {"item_indices": [0], "metadata": {}}}, "nixl", "h0 lacks peer_host, peer_port, size_bytes, shape"),
            ({"h0": {**NIXL, "size_bytes": None}}, "nixl", "lacks size_bytes"),
            ({"h0": {**NIXL, "peer_port": 0}}, "nixl", "peer_port"),
            ({"h0": {**NIXL, "shape": [4]}}, "nixl", "shape"),
            ({"ec_items": [NIXL]}, "mooncake", r"ec_items\[0\] lacks transfer_id"),
            ({"ec_items": [NIXL, NIXL]}, "nixl", r"ec_items\[1\]: it has no mm_hash, and the request has 1 items"),
            ({"ec_items": {"h0": NIXL}}, "nixl", "a list of descriptors"),
            ({"h0": NIXL, "ec_items": [{**NIXL, "peer_port": 1}]}, "nixl", "names 'h0' again: with another content"),
        ],
    )
    def test_what_a_consumer_cannot_use_is_refused_by_place(self, params: dict[str, Any], connector: Any, said: str):
        with pytest.raises(InputError, match=said):
            ec_descriptors(params, ["h0"], connector)

    def test_an_entry_that_is_gone_has_neither_address_nor_metadata(self):
        gone = parse(EcDescriptor, {"item_indices": [0], "metadata": {}})
        assert not gone.has_address
        assert ec_descriptors({"h0": gone.body()}, ["h0"], "example")

    def test_rows_are_the_embeddings_of_the_placeholder(self):
        check_rows(parse(EcDescriptor, NIXL), 4, "h0")
        check_rows(parse(EcDescriptor, {}), 4, "h0")
        with pytest.raises(InputError, match="h0 offers 4 rows: its placeholder takes 5"):
            check_rows(parse(EcDescriptor, NIXL), 5, "h0")

    def test_a_pushing_encoder_is_told_the_consumer_first(self):
        wish = parse(MooncakeWish, {"consumer_zmq": "tcp://10.0.0.1:1", "ec_items": [{"transfer_id": "t"}]})
        assert wish.ec_items[0].transfer_id == "t"
        with pytest.raises(InputError, match="consumer_zmq"):
            parse(MooncakeWish, {"ec_items": []})


SOUND: list[tuple[str, Any, Any, str]] = [
    ("nixl", "prefill_request", dict(KV_WISH), "prefill first"),
    ("nixl", "prefill_response", HANDLE, "prefill first"),
    ("nixl", "decode_request", HANDLE, "prefill first"),
    ("mooncake", "decode_request", {"transfer_id": "t", "remote_host": "a"}, "prefill first"),
    ("bootstrap", "prefill_request", {"bootstrap_host": "a", "bootstrap_port": 1, "bootstrap_room": 7}, "concurrent"),
    ("layerwise", "decode_request", {"do_remote_prefill": True, "metaserver": "http://a/v1"}, "decode first"),
    (
        "layerwise",
        "prefill_request",
        {
            "do_remote_decode": True,
            "remote_engine_id": "d",
            "remote_block_ids": [1],
            "remote_host": "a",
            "remote_port": 1,
        },
        "decode first",
    ),
    ("offloading", "prefill_request", {"remote_decoder": {"kv_request_id": "k"}}, "concurrent"),
    (
        "offloading",
        "decode_request",
        {"remote_prefiller": {"kv_request_id": "k", "remote_host": "a", "remote_port": 1}},
        "concurrent",
    ),
]


class TestKv:
    @pytest.mark.parametrize(("mode", "stage", "params", "order"), SOUND)
    def test_each_mode_takes_its_parameters_and_no_other_mode_s(self, mode: str, stage: Any, params: Any, order: str):
        assert check_kv(params, mode, stage) is not None
        assert KV_MODES[mode].order == order
        for broken in (None, {}, [], 5):
            with pytest.raises(InputError):
                check_kv(broken, mode, stage)

    def test_nothing_of_a_handle_is_lost(self):
        handle = check_kv({**HANDLE, "of_tomorrow": [1]}, "nixl", "decode_request")
        assert isinstance(handle, NixlHandle)
        assert handle.body() == {**HANDLE, "of_tomorrow": [1]}

    def test_an_answer_without_a_handle_and_a_wish_sent_to_decode_are_told_apart(self):
        with pytest.raises(InputError, match="NixlHandle"):
            check_kv(dict(KV_WISH), "nixl", "decode_request")
        with pytest.raises(InputError, match="NixlWish do_remote_decode"):
            check_kv(HANDLE, "nixl", "prefill_request")

    def test_modes_without_a_handle_carry_none(self):
        assert check_kv(None, "bootstrap", "prefill_response") is None
        with pytest.raises(InputError, match="'bootstrap' has none there"):
            check_kv({}, "bootstrap", "prefill_response")
        with pytest.raises(InputError, match=r"KV mode 'smoke'.*nixl"):
            check_kv({}, "smoke", "decode_request")
