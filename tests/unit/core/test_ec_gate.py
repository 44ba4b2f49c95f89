"""The EC validator: the shapes in which the three dialects differ, and every small shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations, product
from typing import Any

import pytest

from epdsim.core.ec.gate import (
    Gate,
    GateItem,
    SlotState,
    check_gate,
    gate_items,
    keyed,
    offered_hashes,
    per_item,
    whole_request,
)
from epdsim.core.errors import InputError
from epdsim.core.items import PlaceholderRange
from epdsim.core.releases.dialects import named
from epdsim.core.slots import FeatureTables

FULL, LIGHT, BOTH, NEITHER = SlotState.PAYLOAD, SlotState.METADATA, SlotState.BOTH, SlotState.NEITHER
HANDLE = {"item_indices": [0], "metadata": {}}
GATES: tuple[Gate, ...] = (whole_request, per_item, keyed)


def items(*states: SlotState) -> tuple[GateItem, ...]:
    return tuple(GateItem("image", i, f"h{i}", state) for i, state in enumerate(states))


def verdicts(shape: tuple[GateItem, ...], ec: Mapping[str, Any] | None) -> tuple[bool, bool, bool]:
    """Accepted by whole request, per item, keyed."""
    whole, item, key = (not gate(shape, ec) for gate in GATES)
    return whole, item, key


@pytest.mark.parametrize(
    ("payload", "metadata", "state"),
    [(True, True, BOTH), (True, False, FULL), (False, True, LIGHT), (False, False, NEITHER)],
)
def test_a_slot_is_told_by_what_is_not_null(payload: bool, metadata: bool, state: SlotState):
    tables = FeatureTables(
        {"image": ["h"]},
        {"image": [PlaceholderRange(0, 1)]},
        {"image": ["p" if payload else None]},
        {"image": ["m" if metadata else None]},
    )
    assert gate_items(tables) == (GateItem("image", 0, "h", state),)


@pytest.mark.parametrize(
    ("shape", "ec", "accepted"),
    [
        # One payload excuses the other item only where the whole request is judged (vLLM PR 56070).
        (items(FULL, LIGHT), None, (True, False, False)),
        # Parameters that name one of two hashes, a stranger, or null: found by the worker only, except when keyed.
        (items(LIGHT, LIGHT), {"h0": HANDLE}, (True, True, False)),
        (items(LIGHT), {"other": HANDLE}, (True, True, False)),
        (items(LIGHT), {"h0": None}, (True, True, False)),
        # No parameters in any of their forms.
        (items(LIGHT), None, (False, False, False)),
        (items(LIGHT), {}, (False, False, False)),
        # Sound: everything offered, in either form; nothing needed.
        (items(LIGHT, LIGHT), {"h0": HANDLE, "h1": {}}, (True, True, True)),
        (items(LIGHT, LIGHT), {"ec_items": [{"mm_hash": "h1"}, {"mm_hash": "h0"}]}, (True, True, True)),
        (items(FULL, LIGHT), {"ec_items": [{"transfer_id": "a"}, {"transfer_id": "b"}]}, (True, True, True)),
        (items(FULL, NEITHER, BOTH), None, (True, True, True)),
    ],
)
def test_where_the_dialects_differ(
    shape: tuple[GateItem, ...], ec: Mapping[str, Any] | None, accepted: tuple[bool, bool, bool]
):
    assert verdicts(shape, ec) == accepted


def test_the_list_form_matches_by_hash_before_place_and_ignores_what_is_no_descriptor():
    shape = items(LIGHT, LIGHT, LIGHT)
    assert offered_hashes(shape, {"ec_items": [{"transfer_id": "a"}, None, {"mm_hash": "h2"}]}) == {"h0", "h2"}
    assert offered_hashes(shape, {"ec_items": [{"mm_hash": "x"}, {"mm_hash": 5}] + [{}] * 4}) == {"x", "h2"}
    assert offered_hashes(shape, {"ec_items": {"h0": HANDLE}, "consumer_zmq": "tcp://a:1"}) == frozenset()
    assert offered_hashes(shape, {"h0": 5, "h1": "peer"}) == frozenset()


TABLES = FeatureTables(
    {"image": ["a", "b"], "audio": ["c"]},
    {"image": [PlaceholderRange(5, 2), PlaceholderRange(0, 2)], "audio": [PlaceholderRange(3, 1)]},
    {"image": ["P", None], "audio": [None]},
    {"image": [None, "M"], "audio": ["M"]},
)


def test_a_rejection_names_modality_index_and_hash_of_every_item():
    with pytest.raises(InputError, match=r"image\[1\] \(hash 'b'\), audio\[0\] \(hash 'c'\): metadata-only"):
        check_gate(TABLES, None)
    with pytest.raises(InputError) as caught:
        check_gate(TABLES, {"b": HANDLE})
    assert "image" not in caught.value.value
    assert caught.value.remedy.startswith("send the payload, or the descriptor")
    assert caught.value.remedy.endswith("in ec_transfer_params at the top level")
    check_gate(TABLES, {"b": HANDLE, "c": HANDLE})


def test_items_come_in_order_of_offset():
    assert [(one.modality, one.index, one.state) for one in gate_items(TABLES)] == [
        ("image", 1, LIGHT),
        ("audio", 0, LIGHT),
        ("image", 0, FULL),
    ]


def test_releases_judge_per_item_from_0_30_and_not_at_all_before():
    for minor in range(25, 30):
        check_gate(TABLES, None, named(f"vllm-0.{minor}"))
    for minor in range(30, 34):
        check_gate(TABLES, {"stranger": None}, named(f"vllm-0.{minor}"))
        with pytest.raises(InputError, match="metadata-only"):
            check_gate(TABLES, {}, named(f"vllm-0.{minor}"))


def small_shapes() -> Iterator[tuple[GateItem, ...]]:
    """Up to three items over two modalities in every state."""
    for count in range(4):
        for modalities in product(("image", "audio"), repeat=count):
            for states in product(SlotState, repeat=count):
                yield tuple(
                    GateItem(modality, i, f"{modality}-{i}", state)
                    for i, (modality, state) in enumerate(zip(modalities, states, strict=True))
                )


def parameters(shape: tuple[GateItem, ...]) -> Iterator[Mapping[str, Any] | None]:
    """None, empty, and every subset of offers, each also as null."""
    yield None
    for chosen in product((False, True), repeat=len(shape)):
        offers = [one.mm_hash for one, is_in in zip(shape, chosen, strict=True) if is_in]
        yield dict.fromkeys(offers, HANDLE)
        yield dict.fromkeys(offers)


ALL_CASES = [(shape, ec) for shape in small_shapes() for ec in parameters(shape)]


@pytest.mark.parametrize("gate", GATES)
def test_every_small_shape_is_sound_complete_monotone_and_symmetric(gate: Gate):
    reached = dict.fromkeys(("accepted metadata-only", "rejected", "accepted cached"), 0)
    for shape, ec in ALL_CASES:
        refused = gate(shape, ec)
        lacking = [one for one in shape if one.state is LIGHT and (ec or {}).get(one.mm_hash) is None]
        # Complete: nothing sound is refused, and only metadata-only items are.
        assert set(refused) <= set(lacking)
        # Symmetric: the order of items within and across modalities changes nothing.
        assert all(set(gate(order, ec)) == set(refused) for order in permutations(shape))
        if not refused:
            more = {**(ec or {}), **{one.mm_hash: HANDLE for one in shape}, "stranger": HANDLE}
            assert not gate(shape, more), "adding parameters refuses"
            for i, one in enumerate(shape):
                filled = GateItem(one.modality, one.index, one.mm_hash, BOTH if one.state in (LIGHT, BOTH) else FULL)
                assert not gate((*shape[:i], filled, *shape[i + 1 :]), ec), "adding a payload refuses"
        if gate is keyed:
            assert set(refused) == set(lacking), "sound: every metadata-only item is offered"
        if gate is per_item and not refused:
            assert ec or all(one.state is not LIGHT for one in shape)
        reached["rejected"] += bool(refused)
        reached["accepted metadata-only"] += not refused and any(one.state is LIGHT for one in shape)
        reached["accepted cached"] += not refused and bool(shape) and all(one.state is NEITHER for one in shape)
    assert all(reached.values()), reached


def test_the_dialects_are_nested_each_stricter_than_the_one_before():
    strictly = [0, 0]
    for shape, ec in ALL_CASES:
        whole, item, key = (set(gate(shape, ec)) for gate in GATES)
        assert whole <= item <= key
        strictly[0] += whole != item
        strictly[1] += item != key
    assert all(strictly), "the dialects do not differ"


@pytest.mark.parametrize(
    ("dialect", "named_as"),
    [("ideal", "image[1] (hash 'h1')"), ("vllm-0.30", "media items"), ("vllm-0.32", "media items")],
)
def test_a_refusal_says_what_nothing_provides_for(dialect: str, named_as: str):
    tables = FeatureTables(
        {"image": ["h0", "h1"]},
        {"image": [PlaceholderRange(0, 1), PlaceholderRange(1, 1)]},
        {"image": ["p", None]},
        {"image": [None, "m"]},
    )
    with pytest.raises(InputError) as refused:
        check_gate(tables, None, named(dialect))
    assert str(refused.value) == (
        f"{named_as}: metadata-only, and ec_transfer_params do not offer the embedding; send the payload, or the descriptor that "
        "the encoder returned for that hash in ec_transfer_params at the top level"
    )
