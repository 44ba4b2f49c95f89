"""Cases that are the random workloads of the live comparison: all modes in turn, a seed each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice, product

from epdsim.sut.cases import EngineCase
from epdsim.sut.probe import events_of
from epdsim.sut.schedule_modes import default_modes
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workloads import schedule_workload
from epdsim.sut.systems import SystemUnderTest
from epdsim.testing.hunt import Collector, Exploration

SEEDS = 1000
"""Seeds of a mode that one seed of an exploration may come to."""


def modes(name: str, *, weight: float = 1.0) -> Exploration:
    """Random workloads of every mode that the system's release is compared in.

    Args:
        name: For messages.
        weight: Share of the budget.
    """

    def run(collector: Collector, system: SystemUnderTest, number: int, budget: int) -> None:
        names = default_modes(system.release)
        drawn = ((mode, seed) for seed in count(number * SEEDS) for mode in names)
        for mode, seed in islice(drawn, budget):
            workload = schedule_workload(mode, seed, system.release).workload
            if is_servable(workload):
                collector.take(EngineCase(workload), events_of(EngineCase(workload), system))

    return Exploration(name, "engine", run, weight)


def named_modes(names: Sequence[str], seeds: range) -> Exploration:
    """The workloads of some modes and seeds, whatever budget and seed of the run."""

    def run(collector: Collector, system: SystemUnderTest, _number: int, _budget: int) -> None:
        for seed, mode in product(seeds, names):
            case = EngineCase(schedule_workload(mode, seed, system.release).workload)
            collector.take(case, events_of(case, system))

    return Exploration("modes of the live comparison, as named", "engine", run)


def is_servable(workload: RecordedWorkload) -> bool:
    """Whether each item that must stay whole fits into a chunk; where chunks end at blocks too there may be no such chunk."""
    config = workload.config
    if not config.disable_chunked_mm_input:
        return True
    inputs = (*workload.requests, *workload.updates)
    longest = max((item.length for one in inputs for item in one.mm_features), default=0)
    threshold = config.long_prefill_token_threshold
    return not config.mamba_block_aligned_split and (not threshold or threshold >= longest)
