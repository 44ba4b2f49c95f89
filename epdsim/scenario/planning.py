"""The smallest fleet that meets a service level, found by simulation.

The search leaves fleets out on the strength of one thing, which need not hold where a quantile hangs on a few requests: a fleet
that misses the service level does not meet it with fewer instances in one pool and as many in the others. So each pool's least
size is found with all others at their largest, and from there fleets are tried in the order of their cost, without those that a
failed one dominates. Whether the answer's own neighbours miss is run, not inferred; the plan says how many cheaper fleets were
not, and whether a pair of those that were run contradicts the rule; an exhaustive search runs them too.

Long traffic is searched on its busiest stretch first, and a second thing is taken for granted: a fleet with more late requests in
the stretch alone than the level allows among all requests misses it. What is hopeful there is run on all of the traffic, and
so are the answer's neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.scenario.jobs import Job, JobResult, RunJobs
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point, described
from epdsim.scenario.ranks import gpus_of
from epdsim.scenario.search_schema import PlanSpec, PoolBounds
from epdsim.scenario.slo import Missed

Fleet = tuple[int, ...]

BESIDE = 2
"""Fleets that are tried side by side, as a small one is given up soon; a fixed number, not one of the machine."""

HARDLY = 0.05
"""By so much more at most, as a share, half as many instances miss a bound that more instances do little about."""


@record
class Trial:
    """A fleet that was simulated.

    Attributes:
        fleet: Its instances by pool.
        cost: Its GPUs.
        result: What the run came to.
        is_whole: Whether all of the traffic was run, not its busiest stretch alone.
    """

    fleet: Fleet
    cost: float
    result: JobResult
    is_whole: bool = True

    @property
    def meets(self) -> bool:
        """Whether it meets the service level; of a stretch, whether it still may."""
        return not self.result.missed


@record
class Plan:
    """An answer.

    Attributes:
        pools: Dotted keys of the numbers of instances.
        answer: The cheapest fleet that meets the service level.
        neighbours: The answer with one instance less in one pool; each was run.
        trials: Everything that was run, in order.
        num_cheaper: Fleets within the bounds that cost less than the answer.
        num_untried: Those of them that were not run, for one with at least as many instances in each pool misses the level.
    """

    pools: tuple[str, ...]
    answer: Trial
    neighbours: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    num_cheaper: int = 0
    num_untried: int = 0


class Planner:
    """A search over the numbers of instances of a scenario's pools.

    Args:
        pools: Bounds by the dotted keys of the numbers of instances.
        job: A run of the scenario; each trial is this with the pools' sizes put in.
        run_jobs: Runs jobs, at best several at a time.
        on_trial: Told each trial.
        stretch_s: From and to, in seconds: the busiest stretch of long traffic; None searches on all of it.
        is_exhaustive: Run every fleet that is cheaper than the answer, also where a larger one misses.
    """

    def __init__(
        self,
        pools: Mapping[str, PoolBounds],
        job: Job,
        run_jobs: RunJobs,
        on_trial: Callable[[Trial], None] = lambda _: None,
        stretch_s: tuple[float, float] | None = None,
        *,
        is_exhaustive: bool = False,
    ) -> None:
        self._is_exhaustive = is_exhaustive
        self._job, self._run_jobs, self._on_trial, self._stretch_s = job, run_jobs, on_trial, stretch_s
        self._pools = tuple(pools)
        self._bounds = tuple((pool.low, pool.high) for pool in pools.values())
        self._prices = _prices(pools)
        self._whole: dict[Fleet, Trial] = {}
        self._of_stretch: dict[Fleet, Trial] = {}
        self._trials: list[Trial] = []

    def search(self) -> Plan:
        """Find the cheapest fleet.

        Raises:
            InputError: Not even the largest fleet meets the service level.
        """
        answer = self._cheapest(self._floor())
        if self._is_exhaustive:
            answer = self._cheapest_of(self._untried(answer)) or answer
        neighbours = self._try_whole(list(self._below(answer.fleet)))
        while better := [trial for trial in neighbours if trial.meets]:
            # What was taken for granted does not hold here: the figures that were run go first.
            answer = min(better, key=lambda trial: (trial.cost, trial.fleet))
            neighbours = self._try_whole(list(self._below(answer.fleet)))
        cheaper, untried = len(self._cheaper(answer)), len(self._untried(answer))
        return Plan(self._pools, answer, tuple(neighbours), tuple(self._trials), cheaper, untried)

    def _cheaper(self, answer: Trial) -> list[Fleet]:
        """Fleets that cost less, the cheapest first."""
        ranges = [range(low, high + 1) for low, high in self._bounds]
        found = [fleet for fleet in product(*ranges) if self._cost(fleet) < answer.cost]
        return sorted(found, key=lambda one: (self._cost(one), one))

    def _untried(self, answer: Trial) -> list[Fleet]:
        return [fleet for fleet in self._cheaper(answer) if fleet not in self._whole and fleet not in self._of_stretch]

    def _cheapest_of(self, fleets: Sequence[Fleet]) -> Trial | None:
        """The first of some fleets that meets the level, a few at a time."""
        for start in range(0, len(fleets), BESIDE):
            hopeful = [trial.fleet for trial in self._try_quick(fleets[start : start + BESIDE]) if trial.meets]
            met = [trial for trial in self._try_whole(hopeful) if trial.meets]
            if met:
                return met[0]
        return None

    def _floor(self) -> Fleet:
        """Each pool's least size with all others at their largest, all pools side by side.

        Small sizes are asked first, in growing steps: a fleet that is too small is given up soon, a large one runs to its end.
        """
        largest = tuple(high for _, high in self._bounds)
        spans = [_Span(low, high) for low, high in self._bounds]
        while asked := {index: span.ask() for index, span in enumerate(spans) if span.is_open}:
            fleets = [(*largest[:index], size, *largest[index + 1 :]) for index, size in asked.items()]
            for (index, size), trial in zip(asked.items(), self._try_quick(fleets), strict=True):
                if trial.fleet == largest and not trial.meets:
                    raise self._none()
                spans[index].answer(size, meets=trial.meets)
        return tuple(span.low for span in spans)

    def _cheapest(self, floor: Fleet) -> Trial:
        """Fleets from the floor up, in the order of their cost; ties go to the first pool's smallest number."""
        for wave in self._waves(floor):
            hopeful = [trial.fleet for trial in self._try_quick(wave) if trial.meets]
            # The neighbours of the first are to be shown in any case: they run beside.
            beside = list(self._below(hopeful[0])) if hopeful and self._stretch_s is not None else []
            met = [trial for trial in self._try_whole([*hopeful, *beside])[: len(hopeful)] if trial.meets]
            if met:
                return met[0]
        raise self._none()

    def _waves(self, floor: Fleet) -> Iterator[list[Fleet]]:
        """Fleets that no failed one dominates, a few at a time."""
        ranges = [range(low, high + 1) for low, (_, high) in zip(floor, self._bounds, strict=True)]
        wave: list[Fleet] = []
        for fleet in sorted(product(*ranges), key=lambda one: (self._cost(one), one)):
            if len(wave) == BESIDE:
                yield wave
                wave = []
            if not self._is_hopeless(fleet):
                wave.append(fleet)
        if wave:
            yield wave

    def _is_hopeless(self, fleet: Fleet) -> bool:
        known = (*self._whole.values(), *self._of_stretch.values())
        return any(_is_within(fleet, trial.fleet) for trial in known if not trial.meets)

    def _below(self, fleet: Fleet) -> Iterator[Fleet]:
        for index, (low, _) in enumerate(self._bounds):
            if fleet[index] > max(1, low):
                yield (*fleet[:index], fleet[index] - 1, *fleet[index + 1 :])

    def _try_quick(self, fleets: Sequence[Fleet]) -> list[Trial]:
        """Judge fleets on the stretch where there is one; whoever meets it may still miss the level."""
        if self._stretch_s is None:
            return self._try_whole(fleets)
        return self._run(fleets, replace(self._job, stretch_s=self._stretch_s), self._of_stretch)

    def _try_whole(self, fleets: Sequence[Fleet]) -> list[Trial]:
        return self._run(fleets, self._job, self._whole)

    def _run(self, fleets: Sequence[Fleet], job: Job, known: dict[Fleet, Trial]) -> list[Trial]:
        fresh = [fleet for fleet in dict.fromkeys(fleets) if fleet not in known]
        for fleet, result in zip(fresh, self._run_jobs([self._of(fleet, job) for fleet in fresh]), strict=True):
            known[fleet] = Trial(fleet, self._cost(fleet), result, is_whole=job.stretch_s is None)
            self._trials.append(known[fleet])
            self._on_trial(known[fleet])
        return [known[fleet] for fleet in fleets]

    def _none(self) -> InputError:
        """That no fleet will do, with the figures of the largest one, which is run to its end for them beside one half as large."""
        largest = tuple(high for _, high in self._bounds)
        half = tuple(max(low, (high + 1) // 2) for low, high in self._bounds)
        fleets = list(dict.fromkeys([largest, half]))
        results = self._run_jobs([replace(self._of(fleet, self._job), num_requests=0) for fleet in fleets])
        of_largest, of_half = results[0].missed, results[-1].missed
        rule = f"the largest fleet misses the service level ({'; '.join(map(str, of_largest))})"
        remedy = "raise high in plan.pools, or the bounds of slo"
        if half != largest and _is_no_better(of_largest, of_half):
            rule += f", and one half as large hardly by more ({'; '.join(map(str, of_half))})"
            remedy = "raise the bounds of slo; raising high in plan.pools changes little"
        told = ", ".join(f"{pool} = {size}" for pool, size in zip(self._pools, largest, strict=True))
        return InputError(told, rule, remedy)

    def _of(self, fleet: Fleet, job: Job) -> Job:
        return replace(job, constants={**job.constants, **dict(zip(self._pools, fleet, strict=True))})

    def _cost(self, fleet: Fleet) -> float:
        return sum(price * size for price, size in zip(self._prices, fleet, strict=True))


def _is_no_better(larger: Sequence[Missed], smaller: Sequence[Missed]) -> bool:
    """Whether a figure that the larger fleet misses is as good as the same in the smaller one."""
    values = {missed.name: missed.value for missed in smaller if missed.value is not None}
    return any(
        missed.value is not None and missed.name in values and values[missed.name] <= (1 + HARDLY) * missed.value
        for missed in larger
    )


def fleets_around(plan: Plan, pools: Mapping[str, PoolBounds]) -> Mapping[Fleet, tuple[float, str]]:
    """The answer first, then each fleet with one instance less or more in one pool, within the bounds; cost and what it is."""
    answer, prices = plan.answer.fleet, _prices(pools)
    found = {answer: "the answer"}
    for index, (key, bounds) in enumerate(pools.items()):
        for step, told in ((-1, "less"), (1, "more")):
            if bounds.low <= answer[index] + step <= bounds.high:
                fleet = (*answer[:index], answer[index] + step, *answer[index + 1 :])
                found[fleet] = f"one {short_name(key)} {told}"
    return {
        fleet: (sum(price * size for price, size in zip(prices, fleet, strict=True)), told)
        for fleet, told in found.items()
    }


def _prices(pools: Mapping[str, PoolBounds]) -> tuple[float, ...]:
    """GPUs of an instance of each pool."""
    prices = tuple(pool.gpus for pool in pools.values() if pool.gpus is not None)
    assert len(prices) == len(pools), "what the file leaves out was put in"
    return prices


def short_name(pool: str) -> str:
    """A pool's name, of the dotted key of its number of instances."""
    return pool.removeprefix("fleet.").removesuffix(".count")


class _Span:
    """The least size of a pool, between a size below which all miss and the smallest that is known to meet."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self._high, self._step = low, high, 0
        # With one size only there is nothing to find out.
        self._meets = low if low == high else None

    @property
    def is_open(self) -> bool:
        return self._meets is None or self.low < self._meets

    def ask(self) -> int:
        if self._meets is not None:
            return (self.low + self._meets) // 2
        return min(self._high, self.low + self._step)

    def answer(self, size: int, *, meets: bool) -> None:
        if meets:
            self._meets = size
        else:
            self.low, self._step = size + 1, max(1, 2 * self._step)


def contradiction(seen: Sequence[tuple[Fleet, bool]]) -> tuple[Fleet, Fleet] | None:
    """A fleet that meets the level and one with at least as many instances in each pool that misses it; None without any.

    Args:
        seen: Fleets that were run on the same traffic, and whether each meets.
    """
    pairs = product([fleet for fleet, meets in seen if meets], [fleet for fleet, meets in seen if not meets])
    return next(((met, missing) for met, missing in pairs if _is_within(met, missing)), None)


def fleet_name(fleet: Fleet) -> str:
    """Its instances, pool by pool."""
    return " + ".join(map(str, fleet))


def _is_within(fleet: Fleet, other: Fleet) -> bool:
    """Whether a fleet has in no pool more instances than another."""
    return all(size <= most for size, most in zip(fleet, other, strict=True))


def binding_pool(plan: Plan) -> str | None:
    """The pool that works hardest in the answer; None where nothing was measured."""
    utilisation = pool_utilisation(plan.answer.result)
    return max(utilisation, key=lambda name: utilisation[name]) if utilisation else None


def pool_utilisation(result: JobResult) -> Mapping[str, float]:
    """Share of time that the busiest instance of each pool worked."""
    metrics, found = result.metrics, dict[str, float]()
    if metrics is None or not metrics.duration_ms:
        return found
    for instance, busy_ms in metrics.busy_ms.items():
        pool = instance.rpartition("-")[0] or instance
        found[pool] = max(found.get(pool, 0.0), busy_ms / metrics.duration_ms)
    return found


def pools_at(scenario: Scenario, point: Point) -> tuple[dict[str, PoolBounds], tuple[str, ...]]:
    """The pools to size that a point's topology has, with the GPUs of an instance, and the keys of those that it has not.

    Raises:
        InputError: It has none of them.
    """
    wanted, spec = plan_of(scenario).pools, scenario.at(point)
    topology = spec.fleet.topology
    absent = {"fleet.encode.count": not topology.startswith("e+"), "fleet.decode.count": not topology.endswith("p+d")}
    left_out = tuple(key for key in wanted if absent.get(key))
    if len(left_out) == len(wanted):
        place = scenario.file.place(("plan", "pools", left_out[0]))
        told = f" at {described(point)}" if point else ""
        raise InputError(place, f"the topology{told} is {topology!r}, which has no such pool", "name one that it has")
    priced = {
        key: bounds.model_copy(update={"gpus": bounds.gpus or float(gpus_of(spec, key))})
        for key, bounds in wanted.items()
        if key not in left_out
    }
    return priced, left_out


def check_plan(scenario: Scenario, overrides: Sequence[str]) -> None:
    """See that all that a plan will ask for can be had, before the search.

    Raises:
        InputError: A topology has none of the pools, a setting of `check` or `what_if` does not fit the file, or a pool is set for
            nothing.
    """
    wanted = plan_of(scenario)
    for key in (override.partition("=")[0] for override in overrides):
        if key in wanted.pools:
            raise InputError(f"--set {key}=...", "the plan chooses this number", f"set the bounds in plan.pools.{key}")
    for point in scenario.points:
        pools_at(scenario, point)
        for settings in (wanted.check, *wanted.what_if.values()):
            scenario.at(point, settings)


def plan_of(scenario: Scenario) -> PlanSpec:
    """The `plan` section.

    Raises:
        InputError: The file has none, or no service level.
    """
    spec = scenario.spec
    if spec.plan is None:
        raise InputError(
            str(scenario.file.path), "it has no 'plan' section", "name the pools to size and their bounds in one"
        )
    if not spec.slo:
        raise InputError(
            str(scenario.file.path), "it has no 'slo' section", "name the figures to bound, such as ttft_ms.p99"
        )
    return spec.plan
