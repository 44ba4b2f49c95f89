"""The smallest fleet that meets a service level, found by simulation.

The search takes one thing for granted and says so: a fleet that misses the service level does not meet it with fewer
instances in one pool and as many in the others. So each pool's least size is found with all others at their largest, and from
there fleets are tried in the order of their cost, without those that a failed one dominates. Whether the answer's own neighbours
miss is run, not inferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from epdsim.core.errors import InputError
from epdsim.scenario.loader import Scenario
from epdsim.scenario.points import Point, described
from epdsim.scenario.schema import PlanSpec, PoolBounds
from epdsim.scenario.sweep import Job, JobResult

Fleet = tuple[int, ...]
RunJobs = Callable[[Sequence[Job]], list[JobResult]]


@dataclass(frozen=True, slots=True)
class Trial:
    """A fleet that was simulated."""

    fleet: Fleet
    cost: float
    result: JobResult

    @property
    def meets(self) -> bool:
        """Whether it meets the service level."""
        return not self.result.missed


@dataclass(frozen=True, slots=True)
class Plan:
    """An answer.

    Attributes:
        pools: Dotted keys of the numbers of instances.
        answer: The cheapest fleet that meets the service level.
        neighbours: The answer with one instance less in one pool; each was run.
        trials: Everything that was run, in order.
    """

    pools: tuple[str, ...]
    answer: Trial
    neighbours: tuple[Trial, ...]
    trials: tuple[Trial, ...]


class Planner:
    """A search over the numbers of instances of a scenario's pools.

    Args:
        pools: Bounds by the dotted keys of the numbers of instances.
        job: A run of the scenario; each trial is this with the pools' sizes put in.
        run_jobs: Runs jobs, at best several at a time.
        on_trial: Told each trial.
    """

    def __init__(
        self,
        pools: Mapping[str, PoolBounds],
        job: Job,
        run_jobs: RunJobs,
        on_trial: Callable[[Trial], None] = lambda _: None,
    ) -> None:
        self._job, self._run_jobs, self._on_trial = job, run_jobs, on_trial
        self._pools = tuple(pools)
        self._bounds = tuple((pool.low, pool.high) for pool in pools.values())
        self._prices = tuple(pool.gpus for pool in pools.values())
        self._known: dict[Fleet, Trial] = {}

    def search(self) -> Plan:
        """Find the cheapest fleet.

        Raises:
            InputError: Not even the largest fleet meets the service level.
        """
        largest = tuple(high for _, high in self._bounds)
        (top,) = self._run([replace(self._of(largest), num_requests=0)], [largest])
        if not top.meets:
            told = "; ".join(map(str, top.result.missed))
            raise InputError(
                self._told(largest),
                f"the largest fleet misses the service level ({told})",
                "raise high in plan.pools, or the bounds of slo",
            )
        floor = self._floor(largest)
        answer = self._cheapest(floor, top)
        below = list(self._below(answer.fleet))
        neighbours = tuple(self._try_all(below))
        return Plan(self._pools, answer, neighbours, tuple(self._known.values()))

    def _floor(self, largest: Fleet) -> Fleet:
        """Each pool's least size with all others at their largest; all pools are halved side by side."""
        spans = {index: [low, high] for index, (low, high) in enumerate(self._bounds)}
        while open_spans := {index: span for index, span in spans.items() if span[0] < span[1]}:
            asked = {index: (low + high) // 2 for index, (low, high) in open_spans.items()}
            fleets = [(*largest[:index], size, *largest[index + 1 :]) for index, size in asked.items()]
            for (index, size), trial in zip(asked.items(), self._try_all(fleets), strict=True):
                spans[index] = [spans[index][0], size] if trial.meets else [size + 1, spans[index][1]]
        return tuple(low for low, _ in spans.values())

    def _cheapest(self, floor: Fleet, best: Trial) -> Trial:
        """Fleets from the floor up, in the order of their cost; ties go to the first pool's smallest number."""
        ranges = [range(low, high + 1) for low, (_, high) in zip(floor, self._bounds, strict=True)]
        for fleet in sorted(product(*ranges), key=lambda one: (self._cost(one), one)):
            if self._cost(fleet) >= best.cost:
                break
            if any(_is_within(fleet, trial.fleet) for trial in self._known.values() if not trial.meets):
                continue
            trial = self._try(fleet)
            if trial.meets:
                return trial
        return best

    def _below(self, fleet: Fleet) -> Iterator[Fleet]:
        for index, (low, _) in enumerate(self._bounds):
            if fleet[index] > max(1, low):
                yield (*fleet[:index], fleet[index] - 1, *fleet[index + 1 :])

    def _try(self, fleet: Fleet) -> Trial:
        return self._try_all([fleet])[0]

    def _try_all(self, fleets: Sequence[Fleet]) -> list[Trial]:
        fresh = [fleet for fleet in dict.fromkeys(fleets) if fleet not in self._known]
        self._run([self._of(fleet) for fleet in fresh], fresh)
        return [self._known[fleet] for fleet in fleets]

    def _run(self, jobs: Sequence[Job], fleets: Sequence[Fleet]) -> list[Trial]:
        trials: list[Trial] = []
        for fleet, result in zip(fleets, self._run_jobs(jobs), strict=True):
            trials.append(Trial(fleet, self._cost(fleet), result))
            self._known[fleet] = trials[-1]
            self._on_trial(trials[-1])
        return trials

    def _of(self, fleet: Fleet) -> Job:
        return replace(self._job, constants={**self._job.constants, **dict(zip(self._pools, fleet, strict=True))})

    def _cost(self, fleet: Fleet) -> float:
        return sum(price * size for price, size in zip(self._prices, fleet, strict=True))

    def _told(self, fleet: Fleet) -> str:
        return ", ".join(f"{pool} = {size}" for pool, size in zip(self._pools, fleet, strict=True))


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
    """The pools to size that a point's topology has, and the keys of those that it has not.

    Raises:
        InputError: It has none of them.
    """
    wanted, topology = plan_of(scenario).pools, scenario.at(point).fleet.topology
    absent = {"fleet.encode.count": not topology.startswith("e+"), "fleet.decode.count": not topology.endswith("p+d")}
    left_out = tuple(key for key in wanted if absent.get(key))
    if len(left_out) == len(wanted):
        place = scenario.file.place(("plan", "pools", left_out[0]))
        told = f" at {described(point)}" if point else ""
        raise InputError(place, f"the topology{told} is {topology!r}, which has no such pool", "name one that it has")
    return {key: bounds for key, bounds in wanted.items() if key not in left_out}, left_out


def check_plan(scenario: Scenario, overrides: Sequence[str]) -> None:
    """See that all that a plan will ask for can be had, before the search.

    Raises:
        InputError: A topology has none of the pools, a setting of `check` does not fit the file, or a pool is set for nothing.
    """
    wanted = plan_of(scenario)
    for key in (override.partition("=")[0] for override in overrides):
        if key in wanted.pools:
            raise InputError(f"--set {key}=...", "the plan chooses this number", f"set the bounds in plan.pools.{key}")
    for point in scenario.points:
        pools_at(scenario, point)
        scenario.at(point, wanted.check)


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
