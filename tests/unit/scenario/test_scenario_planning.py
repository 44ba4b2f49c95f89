"""The search for a fleet, on systems whose answer is known by trying everything."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.scenario.jobs import Job, JobResult
from epdsim.scenario.planning import Planner, contradiction
from epdsim.scenario.search_schema import PlanSpec
from epdsim.scenario.slo import Missed

POOLS = ("fleet.encode.count", "fleet.prefill.count", "fleet.decode.count")
JOB = Job(Path("none.yaml"), (), {}, 0, slo={"ttft_ms.p99": 1.0}, num_requests=10)


def system(meets, asked):
    def run_jobs(jobs):
        fleets = [tuple(job.constants[pool] for pool in POOLS) for job in jobs]
        asked.extend(fleets)
        return [JobResult(None, () if meets(fleet) else (Missed("ttft_ms.p99", 1.0, 2.0),)) for fleet in fleets]

    return run_jobs


def plan_spec(highs, prices, low=1):
    pools = {
        pool: {"low": low, "high": high, "gpus": price} for pool, high, price in zip(POOLS, highs, prices, strict=True)
    }
    return PlanSpec.model_validate({"pools": pools})


@settings(max_examples=150)
@given(
    st.tuples(*[st.integers(1, 6)] * 3),
    st.tuples(*[st.sampled_from([0.5, 1.0, 2.0, 4.0])] * 3),
    st.lists(st.tuples(*[st.integers(1, 6)] * 3), min_size=1, max_size=4),
)
def test_the_answer_is_the_cheapest_of_all_fleets_and_its_neighbours_miss(highs, prices, corners) -> None:
    """Any system in which more never hurts: a fleet meets when it has as many as one of some corners."""

    def meets(fleet):
        return any(all(size >= least for size, least in zip(fleet, corner, strict=True)) for corner in corners)

    asked = []
    planner = Planner(plan_spec(highs, prices).pools, JOB, system(meets, asked))
    every = list(product(*(range(1, high + 1) for high in highs)))
    fitting = [fleet for fleet in every if meets(fleet)]
    if not fitting:
        with pytest.raises(InputError, match="the largest fleet misses the service level"):
            planner.search()
        return
    plan = planner.search()

    def cost(fleet):
        return sum(price * size for price, size in zip(prices, fleet, strict=True))

    assert plan.answer.cost == cost(plan.answer.fleet) == min(map(cost, fitting))
    assert meets(plan.answer.fleet)
    for trial in plan.neighbours:
        assert not trial.meets
        assert sum(plan.answer.fleet) - sum(trial.fleet) == 1
    assert len(plan.neighbours) == sum(size > 1 for size in plan.answer.fleet)
    assert len(asked) == len(set(asked)) == len(plan.trials), "nothing is run twice"


@pytest.mark.parametrize(
    ("of_half", "is_told"),
    [({"ttft_ms.p99": 9.1}, True), ({"ttft_ms.p99": 18.0}, False), ({"tpot_ms.p99": 9.0}, False)],
)
def test_where_half_the_fleet_is_as_good_the_remedy_is_the_service_level(of_half, is_told) -> None:
    def run_jobs(jobs):
        fleets = [tuple(job.constants[pool] for pool in POOLS) for job in jobs]
        figures = [{"ttft_ms.p99": 9.0} if fleet == (4, 5, 1) else of_half for fleet in fleets]
        return [JobResult(None, tuple(Missed(name, 1.0, value) for name, value in one.items())) for one in figures]

    with pytest.raises(InputError) as caught:
        Planner(plan_spec((4, 5, 1), (1, 1, 1)).pools, JOB, run_jobs).search()
    assert ("half as large hardly by more (ttft_ms.p99 9.1 over 1)" in str(caught.value)) == is_told
    told = "raise the bounds of slo; raising high in plan.pools changes little"
    assert str(caught.value).endswith(told if is_told else "raise high in plan.pools, or the bounds of slo")


def test_a_fleet_of_one_is_not_compared_with_itself() -> None:
    with pytest.raises(InputError, match="; raise high"):
        Planner(plan_spec((1, 1, 1), (1, 1, 1)).pools, JOB, system(lambda _: False, [])).search()


@settings(max_examples=100)
@given(
    st.tuples(*[st.integers(1, 4)] * 3),
    st.tuples(*[st.sampled_from([0.5, 1.0, 2.0])] * 3),
    st.sets(st.tuples(*[st.integers(1, 4)] * 3), max_size=8),
)
def test_an_exhaustive_search_finds_the_cheapest_of_any_system_and_leaves_nothing_cheaper_out(
    highs, prices, lucky
) -> None:
    """Systems in which more may hurt: the largest fleet meets, and some others."""
    meeting = lucky | {highs}
    planner = Planner(plan_spec(highs, prices).pools, JOB, system(meeting.__contains__, []), is_exhaustive=True)
    plan = planner.search()
    every = list(product(*(range(1, high + 1) for high in highs)))

    def cost(fleet):
        return sum(price * size for price, size in zip(prices, fleet, strict=True))

    assert plan.answer.cost == min(cost(fleet) for fleet in every if fleet in meeting)
    assert (plan.num_untried, plan.num_cheaper) == (0, sum(cost(fleet) < plan.answer.cost for fleet in every))


def test_what_was_left_out_is_counted_and_a_pair_that_contradicts_the_rule_is_told() -> None:
    bounds, rule = plan_spec((4, 4, 1), (1, 1, 1)).pools, {(4, 4, 1), (4, 3, 1), (3, 4, 1), (3, 3, 1)}
    plan = Planner(bounds, JOB, system(rule.__contains__, [])).search()
    assert plan.answer.fleet == (3, 3, 1)
    tried = {trial.fleet for trial in plan.trials}
    cheaper = [(a, b, 1) for a in range(1, 5) for b in range(1, 5) if a + b < 6]
    assert plan.num_cheaper == len(cheaper)
    assert plan.num_untried == len(set(cheaper) - tried) > 0
    assert contradiction([(trial.fleet, trial.meets) for trial in plan.trials]) is None
    odd = Planner(bounds, JOB, system((rule | {(1, 2, 1)}).__contains__, []), is_exhaustive=True).search()
    seen = {trial.fleet: trial.meets for trial in odd.trials}
    met, missed = contradiction(list(seen.items()))
    assert (odd.answer.fleet, met, seen[met], seen[missed]) == ((1, 2, 1), (1, 2, 1), True, False)
    assert all(size <= most for size, most in zip(met, missed, strict=True))


def test_few_fleets_are_run_of_many() -> None:
    asked = []

    def meets(fleet):
        return all(size >= least for size, least in zip(fleet, (5, 9, 3), strict=True))

    plan = Planner(plan_spec((64, 64, 64), (1, 1, 1)).pools, JOB, system(meets, asked)).search()
    assert plan.answer.fleet == (5, 9, 3)
    assert len(asked) < 40


def test_every_run_may_be_given_up_but_that_of_a_largest_fleet_that_misses() -> None:
    jobs = []

    def run_jobs(asked, fate=()):
        jobs.extend(asked)
        return [JobResult(None, fate) for _ in asked]

    Planner(plan_spec((2, 1, 1), (1, 1, 1)).pools, JOB, run_jobs).search()
    assert [job.num_requests for job in jobs] == [10, 10]
    jobs.clear()
    with pytest.raises(InputError, match=r"fleet.encode.count = 1.*\(ttft_ms.p99 for certain over 1\)"):
        Planner(
            plan_spec((1, 1, 1), (1, 1, 1)).pools,
            JOB,
            lambda asked: run_jobs(asked, (Missed("ttft_ms.p99", 1.0, None),)),
        ).search()
    assert [job.num_requests for job in jobs] == [10, 0]


def on_a_stretch(meets, may_meet, asked):
    """A system that is judged on a stretch by one rule, and on all of the traffic by another."""

    def run_jobs(jobs):
        results = []
        for job in jobs:
            fleet = tuple(job.constants[pool] for pool in POOLS)
            asked.append((fleet, job.stretch_s))
            good = meets(fleet) if job.stretch_s is None else may_meet(fleet)
            results.append(JobResult(None, () if good else (Missed("ttft_ms.p99", 1.0, None),)))
        return results

    return run_jobs


corner = st.tuples(*[st.integers(1, 5)] * 3)


@settings(max_examples=150)
@given(corner, st.lists(corner, min_size=1, max_size=3), st.lists(corner, min_size=1, max_size=3))
def test_a_stretch_only_spares_runs_and_decides_nothing(highs, corners, kinder) -> None:
    """Whatever a stretch lets pass is run on all of the traffic; what meets that passes the stretch."""

    def meets(fleet):
        return any(all(size >= least for size, least in zip(fleet, one, strict=True)) for one in corners)

    def may_meet(fleet):
        return meets(fleet) or any(all(size >= least for size, least in zip(fleet, one, strict=True)) for one in kinder)

    asked = []
    pools = plan_spec(highs, (1, 2, 1)).pools
    planner = Planner(pools, JOB, on_a_stretch(meets, may_meet, asked), stretch_s=(5.0, 9.0))
    fitting = [fleet for fleet in product(*(range(1, high + 1) for high in highs)) if meets(fleet)]
    if not fitting:
        with pytest.raises(InputError, match="the largest fleet misses the service level"):
            planner.search()
        return
    plan = planner.search()
    costs = [fleet[0] + 2 * fleet[1] + fleet[2] for fleet in fitting]
    assert plan.answer.cost == min(costs)
    assert plan.answer.is_whole
    assert all(trial.is_whole and not trial.meets for trial in plan.neighbours)
    assert len(asked) == len(set(asked)) == len(plan.trials), "nothing is run twice"
    assert all(stretch_s in {None, (5.0, 9.0)} for _, stretch_s in asked)


def test_a_neighbour_that_meets_after_all_becomes_the_answer() -> None:
    """The stretch wrongly refuses it: what is run on all of the traffic goes first, and is shown."""
    plan = Planner(
        plan_spec((1, 4, 1), (1, 1, 1)).pools,
        JOB,
        on_a_stretch(lambda fleet: fleet[1] >= 2, lambda fleet: fleet[1] >= 3, []),
        stretch_s=(0.0, 1.0),
    ).search()
    assert plan.answer.fleet == (1, 2, 1)
    assert [trial.fleet for trial in plan.neighbours] == [(1, 1, 1)]
