"""Makes a case that violates a property small: what can be left out is left out, while the property stays violated.

A case is data, so that every step is a change of the data: someone fewer, an item fewer, fewer tokens, plainer settings. Steps go
from coarse to fine, and each that succeeds stays. The effort is bounded, and what is smallest then is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from epdsim.events import Event
from epdsim.spec import Judge, Property
from epdsim.sut.broadcast_cases import BroadcastCase
from epdsim.sut.cache_cases import MirrorCase, RingCase
from epdsim.sut.cases import Case, CaseField, CaseItem, CheckCase, EngineCase, RenderCase, StripCase
from epdsim.sut.family_cases import FamilyCase
from epdsim.sut.identity_cases import HashCase, KeyCase
from epdsim.sut.position_cases import PositionCase
from epdsim.sut.probe import put
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.failures import Found
from epdsim.testing.smaller_caches import MIRROR_STEPS, RING_STEPS
from epdsim.testing.smaller_identity import HASH_STEPS, KEY_STEPS
from epdsim.testing.smaller_workloads import WORKLOAD_STEPS, has_valid_settings, workload_size

C = TypeVar("C")


@dataclass(slots=True)
class Effort:
    """What a reduction may cost.

    Attributes:
        attempts: Cases to try.
        ends_at: When to stop, on `time.monotonic`'s clock; None for never.
    """

    attempts: int
    ends_at: float | None = None

    def spend(self) -> bool:
        """Take one attempt; False when there is none left."""
        self.attempts -= 1
        return self.attempts >= 0 and (self.ends_at is None or time.monotonic() < self.ends_at)


def size_of(case: Case) -> tuple[int, ...]:
    """How large a case is; cases of one kind can be ordered by it."""
    if isinstance(case, EngineCase):
        return (1, *workload_size(case.workload))
    parts = case.operations if isinstance(case, MirrorCase | RingCase) else case.items
    return (0, len(parts), len(msgspec.json.encode(case)))


class _EnoughError(Exception):
    """The violation has come; what follows is of no matter."""


def violation(case: Case, one: Property, system: SystemUnderTest) -> Found | None:
    """What a system does with a case up to its first violation of a property; None when there is none."""
    judging = Judge([one])
    verdict = judging.verdicts()[one.id]
    events: list[Event] = []

    def sink(event: Event) -> None:
        events.append(event)
        judging(event)
        if verdict.num_broken:
            raise _EnoughError

    try:
        put(case, system, sink)
    except _EnoughError:
        return Found(one.id, case, events, verdict)
    return None


def reduced(found: Found, one: Property, system: SystemUnderTest, effort: Effort) -> Found:
    """The smallest case that a bounded effort comes by; as it was found, when it does not violate again.

    Args:
        found: The violation.
        one: The property.
        system: Where it was found.
        effort: The bound; it is spent.
    """
    best = violation(found.case, one, system)
    if best is None:
        return found
    steps = _STEPS[type(best.case)]
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for step in steps:
            place = 0
            while (candidates := list(step(best.case)))[place:]:
                if not effort.spend():
                    return best
                smaller = _tried(candidates[place], one, system)
                if smaller is None:
                    place += 1
                else:
                    best, is_smaller = smaller, True
    return best


def _tried(case: Case, one: Property, system: SystemUnderTest) -> Found | None:
    """The violation of a smaller case; None also where the system cannot be put to it, say for its settings."""
    try:
        return violation(case, one, system)
    except Exception:  # noqa: BLE001 - systems refuse in ways of their own
        return None


def _with(case: C, **changes: Any) -> C:
    return msgspec.structs.replace(case, **changes)  # type: ignore[type-var]


def without(things: Sequence[C], place: int) -> list[C]:
    """A list with one thing less."""
    return [*things[:place], *things[place + 1 :]]


def _fewer_items(case: Any) -> Iterator[Any]:
    """An item fewer; what names items by their place goes."""
    plain = {"order": []} if isinstance(case, CheckCase) else {"order": {}} if isinstance(case, RenderCase) else {}
    if getattr(case, "order", None):
        yield _with(case, **plain)
    for place in reversed(range(len(case.items))):
        if len(case.items) > 1:
            changes = dict(plain)
            if isinstance(case, CheckCase):
                changes["more_payload"] = [one - (one > place) for one in case.more_payload if one != place]
            yield _with(case, items=without(case.items, place), **changes)


def _plainer_items(case: RenderCase | StripCase) -> Iterator[Any]:
    """An item with less in it."""
    for place, item in enumerate(case.items):
        for plain in _plainer_item(item):
            yield _with(case, items=[*case.items[:place], plain, *case.items[place + 1 :]])


def _plainer_item(item: CaseItem) -> Iterator[CaseItem]:
    if item.gap:
        yield _with(item, gap=0)
    if item.is_embed is not None:
        yield _with(item, is_embed=None)
    if item.length > 1:
        mask = None if item.is_embed is None else item.is_embed[:-1]
        if mask is None or any(mask):
            yield _with(item, length=item.length - 1, is_embed=mask)
    for place, one in enumerate(item.fields or ()):
        yield _with(item, fields=without(item.fields or (), place))
        plain = CaseField(one.name, keep_on_cpu=one.keep_on_cpu)
        if one != plain and one.name != "address":
            yield _with(item, fields=[plain if one is other else other for other in item.fields or ()])


def _fewer_declared(case: RenderCase) -> Iterator[RenderCase]:
    """Less that the family declares, less text."""
    if case.tail:
        yield _with(case, tail=0)
    for modality, names in case.declared.items():
        yield _with(case, declared={key: value for key, value in case.declared.items() if key != modality})
        for place in range(len(names)) if len(names) > 1 else ():
            yield _with(case, declared={**case.declared, modality: without(names, place)})


def _fewer_offers(case: CheckCase) -> Iterator[CheckCase]:
    """Fewer EC parameters and variants."""
    for name in ("order", "more_payload", "more_offers"):
        if getattr(case, name):
            yield _with(case, **{name: []})
    if case.offers is not None:
        yield _with(case, offers=None)
        for key in case.offers:
            yield _with(case, offers={one: value for one, value in case.offers.items() if one != key})


def _fewer_computed(case: StripCase) -> Iterator[StripCase]:
    for number in (case.num_computed_tokens // 2, case.num_computed_tokens - 1):
        if 0 <= number < case.num_computed_tokens:
            yield _with(case, num_computed_tokens=number)


def _fewer_ways(case: PositionCase) -> Iterator[PositionCase]:
    """Fewer ways in which a prompt is computed."""
    for name in ("cuts", "turns"):
        if getattr(case, name):
            yield _with(case, **{name: []})
    for name in ("num_generated", "num_computed"):
        if getattr(case, name):
            yield _with(case, **{name: 0})


def _fewer_positioned(case: PositionCase) -> Iterator[PositionCase]:
    """An item fewer; what stands behind it stays where it is."""
    for place in reversed(range(len(case.items))):
        yield _with(case, items=without(case.items, place))


def _of_workload(step: Callable[[Any], Iterator[Any]]) -> Callable[[EngineCase], Iterator[EngineCase]]:
    return lambda case: (EngineCase(one) for one in step(case.workload) if has_valid_settings(one))


_STEPS: dict[type, Sequence[Callable[[Any], Iterator[Case]]]] = {
    RenderCase: (_fewer_items, _fewer_declared, _plainer_items),
    CheckCase: (_fewer_items, _fewer_offers),
    StripCase: (_fewer_items, _plainer_items, _fewer_computed),
    MirrorCase: MIRROR_STEPS,
    RingCase: RING_STEPS,
    PositionCase: (_fewer_ways, _fewer_positioned),
    FamilyCase: (_fewer_items,),
    BroadcastCase: (_fewer_items,),
    HashCase: (_fewer_items, *HASH_STEPS),
    KeyCase: (_fewer_items, *KEY_STEPS),
    EngineCase: tuple(map(_of_workload, WORKLOAD_STEPS)),
}
