"""The queue of free blocks beside a list from which blocks are deleted."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epdsim.core.kv.free_queue import FreeQueue


@given(seed=st.integers(0, 2**32 - 1), num_blocks=st.integers(1, 300), removals=st.sampled_from([0.0, 0.3, 0.9]))
def test_blocks_come_in_the_order_in_which_they_were_queued(seed: int, num_blocks: int, removals: float) -> None:
    draw, queue, plain = Random(seed), FreeQueue(), list[int]()
    outside = list(range(1, num_blocks + 1))
    for _ in range(60):
        if draw.random() < removals and plain:
            for block in draw.sample(plain, draw.randint(1, len(plain))):
                queue.remove(block)
                plain.remove(block)
                outside.append(block)
        elif draw.random() < 0.5:
            count = draw.randint(0, len(plain))
            taken, plain = plain[:count], plain[count:]
            assert queue.take(count) == taken
            outside += taken
        else:
            draw.shuffle(outside)
            count = draw.randint(0, len(outside))
            queue.append(outside[:count])
            plain += outside[:count]
            del outside[:count]
        queue = draw.choice([queue, queue.copy()])
        assert (list(queue), queue.num_blocks) == (plain, len(plain))


@pytest.mark.parametrize("num_taken", [0, 3])
def test_neither_what_is_passed_over_nor_what_is_taken_piles_up(num_taken: int) -> None:
    """Not even while one entry to pass over always stays."""
    queue = FreeQueue()
    queue.append(range(10))
    for _ in range(10_000):
        queue.append(queue.take(num_taken))
        last = list(queue)[-1]
        queue.remove(last)
        queue.append([last])
    assert len(queue._entries) < 200
    assert sorted(queue) == list(range(10))
