"""Whether the parts of a scenario file that speak of each other agree: figures by name, axes, points. Known before any run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.scenario.goodput import searches_goodput
from epdsim.scenario.points import GOODPUT, Point, check_metric, described, matches, more_is_better
from epdsim.scenario.schema import AxisValue, ScenarioSpec
from epdsim.scenario.yaml_file import KeyPath, YamlFile

if TYPE_CHECKING:
    from epdsim.scenario.claims_schema import Claim, EqualClaim
    from epdsim.scenario.search_schema import FitSpec, PlanSpec

POOLS = ("fleet.encode.count", "fleet.prefill.count", "fleet.decode.count", "fleet.render.count")
"""Keys of the numbers of instances, which a plan may choose."""

Where = Mapping[str, Sequence[AxisValue]]


def check_references(spec: ScenarioSpec, points: Sequence[Point], file: YamlFile) -> None:
    """Refuse names of figures, axes and points that nothing in the file stands behind.

    Raises:
        InputError: With line and key.
    """
    checker = _Checker(spec, points, file)
    checker.runs()
    for index, name in enumerate(spec.columns):
        checker.metric(name, ("columns", index))
        if spec.goodput is None:
            checker.has_goodput(name, [], ("columns", index))
    for index, one in enumerate(spec.published):
        checker.metric(one.metric, ("published", index, "metric"))
        checker.point(one.at, ("published", index, "at"))
        checker.has_goodput(one.metric, [one.at], ("published", index, "metric"))
    checker.published_once()
    checker.level()
    if spec.fit is not None:
        checker.fit(spec.fit)
    if spec.plan is not None:
        checker.pools(spec.plan)
    for index, claim in enumerate(spec.claims):
        checker.claim(claim, ("claims", index))


def is_hidden(spec: ScenarioSpec, points: Sequence[Point], axis: str, key: str) -> bool:
    """Whether an axis sets a dotted key, or all that it stands in, in every run: whatever else is put there has no effect."""
    return all(axis in point and any(covers(one, key) for one in _keys(spec, axis, point[axis])) for point in points)


def check_pool(key: str, topologies: Collection[str], told: str) -> None:
    """Refuse a setting of a pool that the topology of no run has.

    Raises:
        InputError: It would change nothing.
    """
    for pool, mark in (("encode", "e+"), ("decode", "p+d")):
        if covers(f"fleet.{pool}", key) and not any(mark in topology for topology in topologies):
            rule = f"no run has {pool} instances: fleet.topology is {' or '.join(sorted(topologies))}"
            raise InputError(told, rule, "set fleet.topology too, or another pool")


def covers(key: str, other: str) -> bool:
    """Whether setting a dotted key replaces another one too."""
    return other == key or other.startswith(f"{key}.")


def _keys(spec: ScenarioSpec, axis: str, value: AxisValue) -> Iterable[str]:
    meaning = spec.axes[axis]
    return [meaning] if isinstance(meaning, str) else meaning.get(str(value), {})


@record
class _Checker:
    spec: ScenarioSpec
    points: Sequence[Point]
    file: YamlFile

    def metric(self, name: str, keys: KeyPath) -> None:
        try:
            check_metric(name)
        except InputError as error:
            raise error.at(self.file.place(keys)) from error

    def has_goodput(self, name: str, points: Sequence[Point], keys: KeyPath) -> None:
        """Refuse the goodput where none is searched: at a point whose axes choose the rate, or (no points) anywhere at all."""
        if name == GOODPUT and not (points and all(searches_goodput(self.spec, point) for point in points)):
            rule = f"{name} is the outcome of a search, and here is none"
            raise InputError(
                self.file.place(keys), rule, "give a goodput section, and runs without an axis for its key"
            )

    def axis(self, name: str, keys: KeyPath) -> None:
        if name not in self.spec.axes:
            known = ", ".join(sorted(self.spec.axes))
            remedy = f"the axes are {known}" if known else "the file has no axes"
            raise InputError(self.file.place(keys), f"no axis {name!r}", remedy)

    def axes(self, names: Iterable[str], keys: KeyPath) -> None:
        for name in names:
            self.axis(name, (*keys, name))

    def runs(self) -> None:
        for index, block in enumerate(self.spec.runs):
            for axis, values in block.items():
                keys = ("runs", index, axis)
                self.axis(axis, keys)
                meaning = self.spec.axes[axis]
                unknown = [] if isinstance(meaning, str) else [value for value in values if str(value) not in meaning]
                if unknown:
                    rule = f"axis {axis!r} has no setting {unknown[0]!r}"
                    raise InputError(self.file.place(keys), rule, f"it has {', '.join(sorted(meaning))}")

        self.runs_once()
        for index, block in enumerate(self.spec.runs):
            self.keys_once(index, block)

    def runs_once(self) -> None:
        seen: list[Point] = []
        for point in self.points:
            if dict(point) in seen:
                told = described(point) or "without any axis"
                raise InputError(self.file.place(("runs",)), f"the run {told} stands there twice", "keep one")
            seen.append(dict(point))

    def keys_once(self, index: int, block: Mapping[str, Sequence[AxisValue]]) -> None:
        """Refuse an axis that replaces what one before it in the same run sets: the table would show what did not run."""
        for axes in combinations(block, 2):
            before, after = ({key for value in block[axis] for key in _keys(self.spec, axis, value)} for axis in axes)
            lost = sorted(key for key in before if any(covers(other, key) for other in after))
            if lost:
                rule = f"the axes {axes[0]!r} and {axes[1]!r} both set {lost[0]!r}, and the last one wins"
                raise InputError(self.file.place(("runs", index, axes[1])), rule, "vary it on one of them")

    def published_once(self) -> None:
        seen: list[tuple[Point, str]] = []
        for index, one in enumerate(self.spec.published):
            if (one.at, one.metric) in seen:
                rule = f"{one.metric} is published for the same point twice"
                raise InputError(self.file.place(("published", index)), rule, "keep one")
            seen.append((one.at, one.metric))

    def level(self) -> None:
        for name in self.spec.slo:
            self.metric(name, ("slo", name))
            self.has_goodput(name, [], ("slo", name))
            if more_is_better(name):
                rule = "a service level bounds figures from above, and of this one more is better"
                raise InputError(self.file.place(("slo", name)), rule, "bound a latency")

    def point(self, at: Point, keys: KeyPath) -> None:
        self.axes(at, keys)
        if not any(dict(point) == dict(at) for point in self.points):
            raise InputError(self.file.place(keys), f"no run stands at {dict(at)}", "add it to 'runs'")

    def published(self, metric: str, where: Where, keys: KeyPath) -> int:
        """How many published figures match."""
        self.metric(metric, (*keys, "metric"))
        self.axes(where, (*keys, "where"))
        return sum(one.metric == metric and matches(one.at, where) for one in self.spec.published)

    def fit(self, wanted: FitSpec) -> None:
        found, needed = self.published(wanted.metric, wanted.where, ("fit",)), len(wanted.parameters)
        if found < needed:
            rule = f"{found} published points match, fewer than the {needed} constants"
            raise InputError(self.file.place(("fit", "where")), rule, "name more points or fewer constants")
        taken: dict[str, str] = {}
        for name, parameter in wanted.parameters.items():
            for key in parameter.sets:
                place = self.file.place(("fit", "parameters", name, "sets", key))
                if key in taken:
                    raise InputError(place, f"the constant {taken[key]!r} sets the same key", "keep one")
                taken[key] = name
                self.unvaried(key, place)

    def unvaried(self, key: str, place: str) -> None:
        """Refuse a key that is put in for a run after its axis values and that one of these sets."""
        for axis in dict.fromkeys(axis for point in self.points for axis in point):
            if any(axis in point and key in _keys(self.spec, axis, point[axis]) for point in self.points):
                raise InputError(place, f"the axis {axis!r} varies the same key", "vary it, or have it chosen")

    def pools(self, wanted: PlanSpec) -> None:
        for key in wanted.pools:
            place = self.file.place(("plan", "pools", key))
            if key not in POOLS:
                raise InputError(place, "it is no number of instances", f"there are {', '.join(POOLS)}")
            self.unvaried(key, place)

    def claim(self, claim: Claim, keys: KeyPath) -> None:
        if claim.kind == "gap":
            self.metric(claim.metric, (*keys, "metric"))
            self.point(claim.high, (*keys, "high"))
            self.point(claim.low, (*keys, "low"))
            self.has_goodput(claim.metric, [claim.high, claim.low], (*keys, "metric"))
        elif claim.kind == "equal":
            self.equal(claim, keys)
        elif not self.published(claim.metric, claim.where, keys):
            place = self.file.place((*keys, "where"))
            raise InputError(place, f"no published {claim.metric} matches", "name points that are published")

    def equal(self, claim: EqualClaim, keys: KeyPath) -> None:
        for index, name in enumerate(claim.metrics):
            self.metric(name, (*keys, "metrics", index))
            matching = [point for point in self.points if matches(point, claim.where)]
            self.has_goodput(name, matching, (*keys, "metrics", index))
        self.axes(claim.where, (*keys, "where"))
        self.axis(claim.across, (*keys, "across"))
        rests = [
            {axis: value for axis, value in point.items() if axis != claim.across}
            for point in self.points
            if matches(point, claim.where)
        ]
        if not any(rests.count(rest) > 1 for rest in rests):
            rule = f"no two runs that match differ in {claim.across!r} alone"
            raise InputError(self.file.place(keys), rule, "add runs")
