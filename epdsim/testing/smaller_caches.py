"""The steps by which a sequence of operations on a media cache becomes smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from epdsim.sut.cache_cases import CacheOperation, MirrorCase, RingCase

C = TypeVar("C", MirrorCase, RingCase)


def fewer_requests(case: C) -> Iterator[C]:
    """A request fewer, with all that befalls it."""
    for name in dict.fromkeys(one.request for one in reversed(case.operations) if one.request):
        yield _with(case, [one for one in case.operations if one.request != name])


def fewer_operations(case: C) -> Iterator[C]:
    """An operation fewer."""
    for place in reversed(range(len(case.operations))):
        yield _with(case, [*case.operations[:place], *case.operations[place + 1 :]])


def fewer_items(case: C) -> Iterator[C]:
    """A request with an item fewer."""
    for place, operation in enumerate(case.operations):
        for at in range(len(operation.items)) if len(operation.items) > 1 else ():
            items = [*operation.items[:at], *operation.items[at + 1 :]]
            changed = msgspec.structs.replace(operation, items=items)
            yield _with(case, [*case.operations[:place], changed, *case.operations[place + 1 :]])


def fewer_readers(case: RingCase) -> Iterator[RingCase]:
    """One rank."""
    if case.num_readers > 1:
        yield msgspec.structs.replace(case, num_readers=1)


def _with(case: C, operations: Sequence[CacheOperation]) -> C:
    return msgspec.structs.replace(case, operations=list(operations))


MIRROR_STEPS: Sequence[Callable[[MirrorCase], Iterator[MirrorCase]]] = (fewer_requests, fewer_operations, fewer_items)
RING_STEPS: Sequence[Callable[[RingCase], Iterator[RingCase]]] = (
    fewer_requests,
    fewer_operations,
    fewer_items,
    fewer_readers,
)
