"""The broadcast model: the mechanism by hand, and the published slope."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.core.errors import InputError
from epdsim.cost import BroadcastLoad, BroadcastProfile, broadcast_ms
from epdsim.cost.profile import VLLM_0_25_1

IMAGE_BYTES = 15_482_880  # vLLM PR 52041

BY_HAND = BroadcastProfile(
    fixed_ms=1,
    per_reader_ms=0.5,
    per_tensor_ms=0.1,
    per_item_ms=0.01,
    serialise_bytes_per_ms=100,
    ring_copy_bytes_per_ms=50,
    socket_bytes_per_ms=20,
    deserialise_bytes_per_ms=10,
    reader_contention=0.5,
    chunk_bytes=1000,
    in_band=False,
)


def load(payload_bytes, readers, *, tensors=0, items=0, header_bytes=0):
    return BroadcastLoad(header_bytes, payload_bytes, tensors, items, readers)


def parts(load, profile):
    time = broadcast_ms(load, profile)
    assert time.total_ms == time.serialise_ms + time.copy_ms + time.deliver_ms
    return pytest.approx((time.serialise_ms, time.copy_ms, time.deliver_ms))


def test_below_the_chunk_size_a_message_is_written_once_and_copied_out_by_all_ranks_side_by_side():
    assert parts(load(900, 1, header_bytes=99), BY_HAND) == (0, 999 / 50, 1 + 0.5 + 999 / 10)
    assert parts(load(900, 3, header_bytes=99), BY_HAND) == (0, 999 / 50, 1 + 1.5 + 999 / 10 * 2)


def test_at_the_chunk_size_it_goes_over_a_socket_once_per_rank():
    assert parts(load(4000, 3), BY_HAND) == (0, 3 * 4000 / 20, 1 + 1.5)
    assert parts(load(990, 4, header_bytes=10), BY_HAND) == (0, 4 * 1000 / 20 + (20 + 250 - 200) - 0.02 - 0.25, 3)


def test_in_band_data_are_copied_into_the_message_and_out_of_it_on_both_ways():
    in_band = replace(BY_HAND, in_band=True)
    assert parts(load(900, 2), in_band) == (9, 18, 2 + 90 * 1.5)
    assert parts(load(4000, 2), in_band) == (40, 400, 2 + 400 * 1.5)


def test_tensors_and_items_are_described_by_the_sender_and_read_by_each_rank():
    bare, described = load(0, 3), load(0, 3, tensors=4, items=7)
    assert broadcast_ms(described, BY_HAND).serialise_ms == pytest.approx(0.47)
    gap = broadcast_ms(described, BY_HAND).total_ms - broadcast_ms(bare, BY_HAND).total_ms
    assert gap == pytest.approx(0.47 * (1 + 2))


def test_just_beyond_the_chunk_size_the_cost_does_not_dip():
    quick_socket = replace(BY_HAND, socket_bytes_per_ms=1e6)
    below, at = (broadcast_ms(load(size, 1), quick_socket).total_ms for size in (999, 1000))
    assert at == pytest.approx(below)
    assert broadcast_ms(load(200_000_000, 1), quick_socket).total_ms > at


def test_nobody_to_tell_costs_nothing():
    assert broadcast_ms(load(5000, 0, tensors=3, items=3), BY_HAND).total_ms == 0


def test_the_default_profile_meets_the_published_slope_and_the_control_at_tp_4():
    """PR 52041, stock less stripped: 573 - 199 and 124 - 65 ms from 8 to 26 images; 573 - 134 and 124 - 120 ms in the control."""

    def cost(tensors):
        return broadcast_ms(load(tensors * IMAGE_BYTES, 4, tensors=tensors, items=26), VLLM_0_25_1).total_ms

    assert cost(26) - cost(8) == pytest.approx((573 - 199) - (124 - 65), rel=0.01)
    assert cost(26) - cost(1) == pytest.approx((573 - 134) - (124 - 120), abs=20), "26 distinct images and one repeated"


@pytest.mark.parametrize(
    "wrong",
    [
        {"fixed_ms": -1.0},
        {"per_item_ms": float("nan")},
        {"reader_contention": -0.1},
        {"serialise_bytes_per_ms": 0.0},
        {"socket_bytes_per_ms": float("inf")},
        {"ring_copy_bytes_per_ms": -5.0},
        {"chunk_bytes": 0},
    ],
    ids=str,
)
def test_constants_that_mean_nothing_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=name):
        replace(BY_HAND, **wrong)
