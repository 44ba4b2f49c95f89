"""The pool of KV blocks: the order of its queue, references, what is found and what is lost."""

import time

import pytest

from epdsim.core.kv.block_keys import RANGE
from epdsim.core.kv.blocks import BlockPool


def pool_of(num_blocks: int, *, enable_caching: bool = True) -> BlockPool:
    return BlockPool(num_blocks, enable_caching=enable_caching)


def test_the_null_block_is_never_given() -> None:
    pool = pool_of(5)
    assert pool.num_free == 4
    assert pool.take(4) == [1, 2, 3, 4]
    assert pool.num_free == 0


def test_blocks_without_key_come_back_first_and_last_in_first_out() -> None:
    pool = pool_of(8)
    table = pool.take(4)
    pool.release(table)
    assert pool.free_queue() == [4, 3, 2, 1, 5, 6, 7]


def test_blocks_with_key_go_to_the_end_and_lose_their_tail_first() -> None:
    pool = pool_of(6)
    table = pool.take(3)
    pool.publish(table, [10, 11, 12])
    pool.release(table)
    assert pool.free_queue() == [4, 5, 3, 2, 1]
    assert pool.take(3) == [4, 5, 3]
    assert pool.find_all([10, 11, 12]) == [1, 2]


def test_a_mixed_table_is_split_between_both_ends() -> None:
    pool = pool_of(6)
    table = pool.take(3)
    pool.publish([1], [10])
    pool.release(table)
    assert pool.free_queue() == [3, 2, 4, 5, 1]


def test_a_found_block_leaves_the_queue_and_comes_back_behind() -> None:
    pool = pool_of(4)
    pool.publish(pool.take(1), [10])
    pool.release([1])
    pool.publish(pool.take(1), [20])
    pool.release([2])
    pool.hold([1])
    assert pool.free_queue() == [3, 2]
    assert pool.references(1) == 1
    pool.release([1])
    assert pool.free_queue() == [3, 2, 1]


def test_a_shared_block_is_free_when_its_last_user_gives_it_up() -> None:
    pool = pool_of(3)
    table = pool.take(1)
    pool.publish([1], [10])
    pool.hold(table)
    assert pool.num_idle(table) == 0
    pool.release(table)
    assert pool.num_free == 1
    pool.release(table)
    assert (pool.num_free, pool.num_idle(table)) == (2, 1)


def test_a_hit_ends_at_the_first_unknown_key() -> None:
    pool = pool_of(5)
    pool.publish(pool.take(3), [10, 11, 13])
    assert pool.find_all([10, 11, 12, 13]) == [1, 2]


@pytest.mark.parametrize(("places", "blocks"), [((0, 3), [1, 4]), ((1, 2), [2, 3]), ((2, 4), [3])])
def test_keys_of_one_chain_are_found_each_for_itself(places: tuple[int, ...], blocks: list[int]) -> None:
    pool = pool_of(6)
    pool.publish(pool.take(4), list(range(RANGE, RANGE + 4)))
    assert pool.find_all([RANGE + place for place in places]) == blocks


def test_of_two_blocks_with_one_key_the_first_serves_until_it_is_lost() -> None:
    pool = pool_of(3)
    pool.take(2)
    pool.publish([1], [10])
    pool.publish([2], [10])
    assert pool.find_all([10]) == [1]
    pool.release([1])
    pool.take(1)
    assert pool.find_all([10]) == [2]
    pool.release([2])
    pool.take(1)
    assert pool.find_all([10]) == []


def test_without_caching_all_blocks_come_back_first() -> None:
    pool = pool_of(5, enable_caching=False)
    pool.release(pool.take(2))
    assert pool.free_queue() == [2, 1, 3, 4]


def test_reset_forgets_prefixes_and_keeps_the_queue() -> None:
    pool = pool_of(5)
    table = pool.take(2)
    pool.publish([1], [10])
    assert not pool.reset()
    assert pool.find_all([10]) == [1]
    pool.release(table)
    before = pool.free_queue()
    lost = pool.num_lost
    assert pool.reset()
    assert pool.free_queue() == before
    assert pool.find_all([10]) == []
    assert pool.num_lost > lost, "what was found before must be looked for again"


def test_taking_more_than_is_free_is_the_callers_error() -> None:
    with pytest.raises(AssertionError):
        pool_of(3).take(3)


@pytest.mark.parametrize("count", [2, 9], ids=["one by one", "as a whole"])
@pytest.mark.parametrize("missing", ["blocks", "keys"])
def test_publishing_more_keys_than_blocks_or_fewer_is_the_callers_error(count: int, missing: str) -> None:
    pool = pool_of(16)
    blocks, keys = pool.take(count), list(range(100, 100 + count))
    (blocks if missing == "blocks" else keys).pop()
    with pytest.raises(AssertionError, match="each block has a key"):
        pool.publish(blocks, keys)


def test_a_clone_is_independent() -> None:
    pool = pool_of(4)
    pool.publish(pool.take(1), [10])
    other = pool.clone()
    other.publish(other.take(1), [10])
    other.release([1])
    other.release([2])
    assert pool.free_queue() == [2, 3]
    assert pool.references(1) == 1
    assert other.free_queue() == [3, 1, 2]


def _seconds(count: int, kind: str) -> float:
    """What it takes to lose so many blocks of one row, where the first block of another row has a double, or each of them has."""
    pool = pool_of(2 * count + 3)
    keys = list(range(2 * RANGE, 2 * RANGE + count))
    for _ in range(2):
        pool.publish(pool.take(1), [RANGE])
    tables = [pool.take(count) for _ in range(2 if kind == "doubles" else 1)]
    for table in tables:
        pool.publish(table, keys)
        pool.release(table if kind != "head first" else [])
    start = time.process_time()
    if kind == "head first":
        for block in tables[0]:
            pool.hide(block)
    else:
        pool.take(pool.num_free)
    return time.process_time() - start


@pytest.mark.parametrize("kind", ["beside a double", "doubles", "head first"])
def test_what_a_lost_block_takes_does_not_depend_on_how_many_stand_beside_it(kind: str) -> None:
    """Eight times as many take eight times as long; if each looked at all others it were sixty-four times."""
    few, many = (min(_seconds(count, kind) for _ in range(5)) for count in (2_000, 16_000))
    assert many < 24 * few
