"""Legs: what goes to encode, prefill and decode, and what it weighs."""

from __future__ import annotations

import json

import pytest

from epdsim.core.ec.gate import check_gate
from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.legs import KV_WISH, Leg, RawMedia, decode_leg, encode_legs, leg_body, leg_bytes, prefill_leg
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.slots import FeatureTables, Rendered, extract_features

GRID = Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))


def picture(name: str) -> MediaItem:
    return MediaItem({"pixel_values": Field(TensorHandle("float32", (8,), digest=name), BatchedKind()), "grid": GRID})


A, B = picture("a"), picture("b")
IDS = [1, 5, 90, 90, 90, 6, 91, 91, 90, 90, 90, 7]
PROMPT = TokenPrompt(IDS)
"""BOS, text, picture a, text, sound c, picture a again, text."""

SOUND = MediaItem({"input_features": Field(TensorHandle("float32", (4,)), BatchedKind())})
TABLES = extract_features(
    Rendered(
        PROMPT,
        {"image": ["a", "a"], "audio": ["c"]},
        {"image": [PlaceholderRange(2, 3), PlaceholderRange(8, 3)], "audio": [PlaceholderRange(6, 2)]},
        {"image": [A, A], "audio": [SOUND]},
    )
)
assert TABLES is not None
HANDLES = {"a": {"item_indices": [0]}, "c": {"item_indices": [0]}}


class TestEncode:
    def test_one_call_per_distinct_item_with_bos_and_its_placeholder_alone(self):
        first, second = encode_legs("r", PROMPT, TABLES)
        assert (first.request_id, second.request_id) == ("r-enc-0", "r-enc-1")
        assert isinstance(first.prompt, TokenPrompt)
        assert isinstance(second.prompt, TokenPrompt)
        assert first.prompt.token_ids == (1, 90, 90, 90)
        assert second.prompt.token_ids == (1, 91, 91)
        assert first.tables == FeatureTables({"image": ["a"]}, {"image": [PlaceholderRange(1, 3)]}, {"image": [A]})
        assert second.tables == FeatureTables({"audio": ["c"]}, {"audio": [PlaceholderRange(1, 2)]}, {"audio": [SOUND]})
        assert first.sampling_params == {"max_tokens": 1}
        assert not first.stream
        assert first.kv_transfer_params is None

    def test_batched_is_one_call_with_all_distinct_items(self):
        (leg,) = encode_legs("r", PROMPT, TABLES, batched=True)
        assert isinstance(leg.prompt, TokenPrompt)
        assert leg.prompt.token_ids == (1, 90, 90, 90, 91, 91)
        assert leg.tables is not None
        assert leg.tables.mm_placeholders == {"image": [PlaceholderRange(1, 3)], "audio": [PlaceholderRange(4, 2)]}

    def test_a_prompt_that_begins_with_media_has_no_bos_to_keep_and_masks_are_kept(self):
        span = PlaceholderRange(0, 3, b"\1\0\1")
        (leg,) = encode_legs(
            "r", TokenPrompt([9, 8, 9, 2]), FeatureTables({"image": ["a"]}, {"image": [span]}, {"image": [A]})
        )
        assert isinstance(leg.prompt, TokenPrompt)
        assert leg.prompt.token_ids == (9, 8, 9)
        assert leg.tables is not None
        assert leg.tables.mm_placeholders["image"] == [span]

    def test_runs_are_cut_like_tokens(self):
        prompt = RunPrompt([TokenRun("text", 0, 2), TokenRun("a", 0, 3), TokenRun("text", 2, 4)])
        (leg,) = encode_legs("r", prompt, FeatureTables({"image": ["a"]}, {"image": [PlaceholderRange(2, 3)]}))
        assert isinstance(leg.prompt, RunPrompt)
        assert leg.prompt.runs == (TokenRun("text", 0, 1), TokenRun("a", 0, 3))

    def test_text_needs_no_encode(self):
        assert encode_legs("r", PROMPT, None) == ()
        assert encode_legs("r", PROMPT, None, batched=True) == ()


class TestPrefill:
    def test_metadata_replaces_the_payload_of_offered_items(self):
        leg = prefill_leg("r", PROMPT, TABLES, ec_transfer_params=HANDLES)
        assert leg.tables is not None
        assert leg.tables.kwargs_data is None
        assert leg.tables.mm_metadata == TABLES.mm_metadata
        assert leg.ec_transfer_params == HANDLES
        check_gate(leg.tables, leg.ec_transfer_params)

    def test_an_item_that_the_encoder_did_not_answer_for_keeps_its_payload(self):
        leg = prefill_leg("r", PROMPT, TABLES, ec_transfer_params={"c": HANDLES["c"], "a": None})
        assert leg.tables is not None
        assert leg.tables.kwargs_data == {"image": [A, A], "audio": [None]}
        check_gate(leg.tables, leg.ec_transfer_params)
        nothing = prefill_leg("r", PROMPT, TABLES)
        assert nothing.tables is not None
        assert nothing.tables.kwargs_data == TABLES.kwargs_data

    def test_it_asks_for_one_token_and_takes_out_what_conflicts(self):
        client = {"max_tokens": 32, "min_tokens": 8, "n": 2, "temperature": 0.5}
        leg = prefill_leg("r", PROMPT, TABLES, mode="full", sampling_params=client)
        assert leg.sampling_params == {"temperature": 0.5, "max_tokens": 1}
        assert leg.request_id == "r-p"
        assert leg.kv_transfer_params == KV_WISH
        assert leg.tables is TABLES
        assert client["min_tokens"] == 8

    def test_deferred_sends_raw_media_and_one_token_per_item(self):
        media = [
            RawMedia("image", "a", "data:image/png;base64,AAAA"),
            RawMedia("audio", None, "http://a/b"),
            RawMedia("image"),
        ]
        leg = prefill_leg("r", PROMPT, TABLES, mode="deferred", media=media)
        assert isinstance(leg.prompt, TokenPrompt)
        assert leg.prompt.token_ids == (1, 5, 90, 6, 91, 90, 7)
        assert leg.tables is None
        assert leg_body(leg, lambda *_: "")["content_parts"][0] == {
            "type": "image_url",
            "url": "data:image/png;base64,AAAA",
            "uuid": "a",
        }
        with pytest.raises(InputError, match=r"1 raw media.*3 items"):
            prefill_leg("r", PROMPT, TABLES, mode="deferred", media=media[:1])

    def test_an_unknown_mode_is_refused(self):
        with pytest.raises(InputError, match="'pixels'"):
            prefill_leg("r", PROMPT, TABLES, mode="pixels")  # type: ignore[arg-type]


def test_decode_carries_kv_verbatim_and_neither_pixels_nor_ec():
    handle = {"do_remote_prefill": True, "remote_block_ids": [[11, 12]], "remote_engine_id": None}
    leg = decode_leg("r", PROMPT, TABLES, kv_transfer_params=handle, sampling_params={"max_tokens": 32}, stream=True)
    body = leg_body(leg, lambda *_: pytest.fail("decode has no blobs"))
    assert body == {
        "request_id": "r",
        "token_ids": IDS,
        "features": {
            "mm_hashes": {"image": ["a", "a"], "audio": ["c"]},
            "mm_placeholders": {
                "image": [{"offset": 2, "length": 3}, {"offset": 8, "length": 3}],
                "audio": [{"offset": 6, "length": 2}],
            },
        },
        "kv_transfer_params": handle,
        "sampling_params": {"max_tokens": 32},
        "stream": True,
    }


def blob(item: MediaItem, place: str = "") -> str:
    """Any text that depends on the item alone."""
    return "x" * (40 * len(item.fields) + item.nbytes)


@pytest.mark.parametrize(
    "leg",
    [
        *encode_legs("r", PROMPT, TABLES),
        *encode_legs("r", PROMPT, TABLES, batched=True),
        prefill_leg("r", PROMPT, TABLES, ec_transfer_params=HANDLES),
        prefill_leg("r", PROMPT, TABLES, mode="full"),
        prefill_leg("r", PROMPT, TABLES, mode="deferred", media=[RawMedia("image", "é", "http://a/b")] * 3),
        prefill_leg("r", PROMPT, None),
        decode_leg("r", PROMPT, TABLES, kv_transfer_params={"a": None}, stream=True),
    ],
)
def test_bytes_are_those_of_the_json_text(leg: Leg):
    text = json.dumps(leg_body(leg, blob), separators=(",", ":"), ensure_ascii=False)
    assert leg_bytes(leg, lambda item: len(blob(item))).total == len(text.encode())


def test_bytes_are_told_by_part():
    full = leg_bytes(prefill_leg("r", PROMPT, TABLES, mode="full"), lambda item: len(blob(item)))
    assert full.payload == 2 * len(blob(A)) + len(blob(SOUND))
    assert full.metadata == 2 * len(blob(A.subset()))
    light = leg_bytes(prefill_leg("r", PROMPT, TABLES, ec_transfer_params=HANDLES), lambda item: len(blob(item)))
    assert (light.payload, light.metadata, light.media) == (0, full.metadata, 0)
    media = [RawMedia("image", url_chars=1000), RawMedia("audio", url="data:,"), RawMedia("image", url_chars=500)]
    raw = leg_bytes(prefill_leg("r", PROMPT, TABLES, mode="deferred", media=media), len)
    assert (raw.payload, raw.metadata, raw.media) == (0, 0, 1506)
    assert full.tokens == len(",".join(map(str, IDS)))


def test_runs_are_weighed_by_their_number():
    prompt = RunPrompt([TokenRun("text", 0, 100)])
    assert leg_bytes(prefill_leg("r", prompt, None), len).tokens == 699
