"""The queue of free blocks beside a list from which blocks are deleted."""

from __future__ import annotations

from random import Random

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


def test_what_is_passed_over_does_not_pile_up() -> None:
    queue = FreeQueue()
    queue.append(range(10))
    for _ in range(10_000):
        queue.remove(5)
        queue.append([5])
    assert len(queue._entries) < 200
    assert list(queue) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 5]
