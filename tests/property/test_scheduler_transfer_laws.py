"""Laws of the scheduler with a KV connector, on the workloads that are compared with the real one, judged by a worker.

Loads come late or lack blocks, blocks are held for sends, everybody who runs is preempted at once. The worker
(`core.workers.worker`) writes what really comes; the ideal scheduler must have every request yield what it yields undisturbed,
and give every block back.
What the release does instead after a load that failed breaks that, rule by rule.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.core.plan import KvLoad, StepPlan, TransferReport
from epdsim.core.releases.dialects import named
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.workers.drafts import DraftingWorker
from epdsim.core.workers.worker import Worker, undisturbed
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_model import ModelEngine, scheduler_config
from epdsim.sut.schedule_play import Play, Tokens
from epdsim.sut.schedule_records import RecordedRequest, RecordedWorkload
from epdsim.sut.schedule_transfers import TransferWorkers
from epdsim.sut.schedule_workloads import schedule_workload

TRANSFERS = ("kvload", "kvfail", "kvsend", "resetrunning")
OTHERS = ("async", "prio", "noprefix", "long", "late", "mixed", "tight", "masks", "reset", "remote", "ties", "ecc")
DRAFTERS = ((), (), ("drafts",), ("eagle",), ("aligned",), ("eagle", "aligned"))
MOST_STEPS = 1500
NOTHING = TransferReport()


class JudgedEngine(ModelEngine):
    """The model with a worker that runs its plans; what goes wrong is kept."""

    def __init__(self, workload: RecordedWorkload, far: FarSide, dialect: Dialect) -> None:
        super().__init__(workload, far, dialect)
        config = scheduler_config(workload)
        self.worker = DraftingWorker(config) if config.drafter.num_drafts else Worker(config)
        self.far_side = TransferWorkers(workload)
        self.requests: dict[str, Any] = {}
        self.sampled: dict[str, list[int]] = {}
        self.yielded: Counter[str] = Counter()
        self.outputs: dict[str, list[int]] = {}
        self.over: set[str] = set()
        self.failed: set[str] = set()
        self.violations: list[str] = []
        self._loads: dict[str, KvLoad] = {}
        self._lost: dict[str, set[int]] = {}
        self._under_way: deque[tuple[StepPlan, dict[str, list[int]]]] = deque()
        self._number = -1

    def add(self, request: RecordedRequest) -> None:
        super().add(request)
        state = self.scheduler._engine.requests[request.request_id]
        self.requests[request.request_id] = state.request
        self.worker.add_request(state.request)

    def reset(self, which: str) -> None:
        super().reset(which)
        if which == "encoder":
            self.worker.reset_encoder_cache()

    def schedule(self) -> StepPlan:
        plan = super().schedule()
        self._number += 1
        transfers = self.transfers(plan)
        self.far_side.begin(self._number, transfers["kv_loads"], transfers["kv_sends"])
        report = self.far_side.report(self._number) or NOTHING
        self._forget_what_was_thrown_away()
        done = self.worker.execute(plan, report.invalid_blocks)
        self._loads.update((load.request_id, load) for load in plan.kv_loads if load.is_async)
        for load in self._loads.values():
            self._lost.setdefault(load.request_id, set()).update(set(report.invalid_blocks) & set(load.block_ids))
        for name in report.failed:
            self._lost[name].update(self._loads[name].block_ids)
        for name in report.received:
            self.worker.receive(name, self._lost.pop(name))
            del self._loads[name]
        self.violations += map(str, done.violations)
        self.sampled = {name: list(tokens) for name, tokens in done.sampled.items()}
        self._under_way.append((plan, self.sampled))
        return plan

    def update(self, plan: StepPlan, tokens: Tokens, kv_report: TransferReport | None) -> None:
        assert self._under_way.popleft()[0] is plan
        if kv_report is not None:
            self.worker.hear_lost(kv_report.invalid_blocks)
        outcome = self.scheduler.update_from_output(plan, tokens, kv_report)
        for name, count in outcome.new_tokens.items():
            self.outputs.setdefault(name, []).extend(tokens[name][:count])
        self.over.update(outcome.finished)
        self.failed.update(outcome.failed)

    def _forget_what_was_thrown_away(self) -> None:
        for name, state in self.scheduler._engine.requests.items():
            is_void = state.drops_stale and state.num_stale > 0
            awaited = 0 if is_void else sum(len(sampled.get(name, ())) for _, sampled in self._under_way)
            self.worker.keep_outputs(name, state.num_tokens - state.num_prompt + awaited)

    def proposed(self, name: str) -> int:
        """Tokens that the worker drafted for a request after the last step."""
        return self.worker.num_drafts[name] if isinstance(self.worker, DraftingWorker) else 0


def play(mode: str, seed: int, dialect: Dialect) -> tuple[JudgedEngine, RecordedWorkload, list[int]]:
    """A workload to its end, with free blocks after each step."""
    workload = schedule_workload(mode, seed, "0.32.0").workload
    engine: JudgedEngine | None = None

    def make(given: RecordedWorkload, far: FarSide) -> JudgedEngine:
        nonlocal engine
        engine = JudgedEngine(given, far, dialect)
        return engine

    run = Play(workload, make)
    assert engine is not None
    free: list[int] = []
    while len(free) < MOST_STEPS:
        step = run.step(len(free), lambda name, _num_drafts: engine.sampled[name], engine.proposed)
        check_books(engine)
        free.append(step["free_blocks"])
        if not step["running"] and not step["waiting"] and run.is_idle:
            break
    return engine, workload, free


def check_books(engine: JudgedEngine) -> None:
    """KV-CONS: every block is free, in tables, or waits for a step."""
    state = engine.scheduler._engine
    held: Iterable[Any] = state.requests.values()
    deferred: list[int] = []
    if state.transfers is not None:
        held = (*held, *state.transfers.withheld.values())
        deferred = state.transfers.deferred_blocks()
    users = Counter([*deferred, *(block for one in held for block in one.blocks)])
    queue = state.pool.free_queue()
    assert len(queue) == len(set(queue)) == state.pool.num_free
    assert sorted([*queue, *users]) == list(range(1, state.pool.num_blocks))
    assert all(state.pool.references(block) == count for block, count in users.items())


@st.composite
def modes(draw: st.DrawFn) -> str:
    chosen = [
        *draw(st.lists(st.sampled_from(TRANSFERS), unique=True, min_size=1)),
        *draw(st.lists(st.sampled_from(OTHERS), unique=True, max_size=4)),
        *draw(st.sampled_from(DRAFTERS)),
    ]
    return "-".join([draw(st.sampled_from(["v1", "v2"])), *chosen])


def judge(mode: str, seed: int, dialect: Dialect) -> list[str]:
    """What is wrong with a workload."""
    engine, workload, free = play(mode, seed, dialect)
    wrong = list(engine.violations)
    if len(free) == MOST_STEPS:
        wrong.append("LIVE-PROG: it does not end")
    elif free[-1] != workload.config.num_gpu_blocks - 1:
        wrong.append(f"KV-CONS: {free[-1]} blocks are free at the end")
    gone = {name for _, name in (*workload.aborts, *workload.late_aborts)}
    for request in workload.requests:
        name = request.request_id
        got = engine.outputs.get(name, [])
        wanted = undisturbed(engine.requests[name])
        may_stop = name in gone or name in engine.failed or len(free) == MOST_STEPS
        if got != wanted[: len(got)] or (len(got) < len(wanted) and not may_stop):
            wrong.append(f"RECOMP-EQ: {name} yields {got} and should yield {wanted}")
    return wrong


@pytest.mark.engine_law
@settings(max_examples=250, deadline=None)
@given(modes(), st.integers(0, 10**6))
def test_every_step_is_sound_and_every_outcome_is_the_undisturbed_one(mode: str, seed: int) -> None:
    assert judge(mode, seed, IDEAL) == []


@pytest.mark.parametrize(
    ("rule", "mode", "seed", "broken"),
    [
        ("scheduler.rewind", "v2-async-kvfail", 5, "RECOMP-EQ"),
        ("scheduler.rewind", "v2-async-kvfail", 9, "TOK-CONS"),
        ("scheduler.rewind", "v2-async-kvfail", 11, "LIVE-PROG"),
        ("scheduler.rewound_entries", "v1-kvfail", 52, "LIVE-PROG"),
        ("scheduler.unloaded", "v2-async-kvfail", 19, "KEY-INJ"),
        ("scheduler.unloaded", "v2-kvfail-long", 37, "KEY-INJ"),
        ("scheduler.reserved", "v2-kvload-kvfail-tight", 25, "LIVE-PROG"),
        ("strip.uncovered", "v1-kvfail", 0, "STRIP-AVAIL"),
        ("strip.uncovered", "v2-kvfail", 6, "STRIP-AVAIL"),
    ],
)
def test_what_the_release_does_instead_breaks_a_property(rule: str, mode: str, seed: int, broken: str) -> None:
    """Each rule alone, on the ideal otherwise; the ideal is sound on the same workload."""
    assert judge(mode, seed, IDEAL) == []
    defect = IDEAL.replacing(f"ideal but for {rule}", {rule: named("vllm-0.32").replacements[rule]})
    assert any(one.startswith(broken) for one in judge(mode, seed, defect))
