"""The hand-over of KV cache between two engines."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.kv.handover import HandOver, Stage, layerwise_end_ms
from epdsim.core.releases.dialects import named

ORDERS = ("pull", "push", "concurrent")


def test_a_pull_waits_for_the_prefill_and_frees_it_when_read():
    handover = HandOver("pull", 30)
    assert (handover.may_prefill, handover.may_decode) == (True, False)
    handover.prefilled(5)
    assert (handover.may_decode, handover.may_transfer, handover.until_ms) == (True, False, 35)
    handover.allocated()
    handover.begun()
    handover.ended(20)
    assert (handover.stage, handover.holds_blocks) == (Stage.RECEIVED, False)


def test_a_push_needs_the_decode_side_first():
    handover = HandOver("push", 30)
    assert (handover.may_prefill, handover.may_decode) == (False, True)
    handover.allocated()
    assert handover.may_prefill
    handover.begun()
    handover.prefilled(100)
    assert not handover.expired(1000), "P moves its own blocks"
    handover.ended(1000)
    assert handover.stage is Stage.RECEIVED


@pytest.mark.parametrize("prefill_first", [True, False])
def test_concurrent_sides_come_in_any_order(prefill_first):
    handover = HandOver("concurrent", 30)
    come = [lambda: handover.prefilled(1), handover.allocated]
    for step in come if prefill_first else reversed(come):
        assert not handover.may_transfer
        step()
    assert handover.may_transfer


def test_a_word_makes_the_lease_longer_while_it_lasts():
    handover = HandOver("pull", 30)
    handover.prefilled(0)
    handover.heard(5)
    assert handover.until_ms == 30
    handover.heard(25)
    assert handover.until_ms == 45
    assert not handover.expired(44)
    handover.heard(45)
    assert handover.expired(45)
    assert (handover.stage, handover.may_transfer, handover.expired(50)) == (Stage.LOST, False, False)


@pytest.mark.parametrize(("dialect", "stage"), [("ideal", Stage.LOST), ("vllm-0.32", Stage.RECEIVED)])
def test_a_read_that_outlives_the_lease_is_lost(dialect, stage):
    handover = HandOver("pull", 30, dialect=named(dialect))
    handover.prefilled(0)
    handover.allocated()
    handover.begun()
    assert handover.expired(31)
    handover.ended(32)
    assert handover.stage is stage


@pytest.mark.parametrize("order", ORDERS)
def test_a_decode_side_that_drops_it_frees_the_prefill_side_at_once(order):
    handover = HandOver(order, 30)
    if order == "push":
        handover.allocated()
    handover.prefilled(0)
    handover.dropped()
    assert (handover.stage, handover.holds_blocks, handover.expired(100)) == (Stage.LOST, False, False)


@given(st.sampled_from(ORDERS), st.lists(st.integers(0, 6), max_size=40))
def test_blocks_are_held_once_and_given_up(order, choices):
    """Whatever happens in whatever order: P's blocks are free in the end, and what D has was read while they were held."""
    handover, now, held = HandOver(order, 30), 0.0, []
    for choice in choices:
        now += 7
        moves: list[Callable[[], object] | None] = [
            handover.allocated if handover.may_decode else None,
            partial(handover.prefilled, now) if handover.may_prefill and not handover._has_prefilled else None,
            handover.begun if handover.may_transfer else None,
            partial(handover.ended, now) if handover.stage is Stage.MOVING and handover._has_prefilled else None,
            partial(handover.heard, now),
            partial(handover.expired, now),
            handover.dropped if choice == len(choices) % 7 else None,
        ]
        before, until = handover.stage, handover.until_ms
        move = moves[choice]
        if move is not None:
            move()
        held.append(handover.holds_blocks)
        if handover.stage is Stage.RECEIVED and before is not Stage.RECEIVED:
            assert order == "push" or now <= until
        if handover.stage in {Stage.RECEIVED, Stage.LOST}:
            assert not handover.may_transfer
    assert sum(later and not earlier for earlier, later in zip([False, *held], held, strict=False)) <= 1
    handover.expired(now + 1000)
    if handover.holds_blocks:
        assert (handover.order, handover.stage) == ("push", Stage.MOVING)
        handover.ended(now + 1000)
    assert not handover.holds_blocks


@given(st.floats(0, 1e4), st.integers(1, 80), st.floats(0, 100))
def test_a_push_ends_as_its_layers_do_one_by_one(prefill_ms, num_layers, transfer_ms):
    wire_free = 0.0
    for layer in range(1, num_layers + 1):
        wire_free = max(wire_free, layer * prefill_ms / num_layers) + transfer_ms
    assert layerwise_end_ms(3.0, prefill_ms, num_layers, transfer_ms) == pytest.approx(3.0 + wire_free)
