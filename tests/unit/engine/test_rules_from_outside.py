"""Every rule of the engine is asked of the dialect that a caller gives: another behaviour needs no edit of the core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from epdsim.core.releases.dialects import named
from epdsim.core.rules import Dialect, Replacement, Rule, rules
from epdsim.sut.schedule_model import model_play
from epdsim.sut.schedule_recorder import record_workload
from epdsim.sut.schedule_recording import replay_workload
from epdsim.sut.schedule_records import read_schedules
from epdsim.sut.schedule_workloads import schedule_workload

KNOWN = Path(__file__).parents[2] / "known_answers"
ROOMS = (
    "block_keys.",
    "ec_pull.",
    "encoder_cache.",
    "encoder_decoder.",
    "kv_blocks.",
    "scheduler.",
    "sessions.",
    "strip.",
)
EVERY = 3
"""Workloads of the recordings of which one is played."""

SELDOM = (("v2-prio-tight-noprefix", 9), ("v1-async-tight-sessions", 8), ("v2-ecc-pull-reset", 1))
"""Workloads that ask what few do: `scheduler.withdrawn`, `sessions.late_end`, `scheduler.ec_reset`."""


def listening(dialect: Dialect, asked: set[str]) -> Dialect:
    """The dialect with every rule replaced by one that does the same and notes that it was asked."""

    def same(rule: Rule[Any]) -> Callable[..., Any]:
        behaviour = dialect[rule]

        def answer(*args: Any, **kwargs: Any) -> Any:
            asked.add(rule.name)
            return behaviour(*args, **kwargs)

        return answer

    return dialect.replacing("listening", {rule.name: Replacement(same(rule), "to hear of it") for rule in rules()})


def test_every_rule_of_the_engine_can_be_replaced_from_outside() -> None:
    asked: set[str] = set()
    for recording in sorted(KNOWN.glob("schedules-*.jsonl.gz")):
        for line, workload in read_schedules(recording):
            if line % EVERY == 0:
                dialect = listening(named(f"vllm-{workload.config.vllm}"), asked)
                assert replay_workload(workload, dialect) == (len(workload.steps), None)
    for mode, seed in SELDOM:
        record_workload(
            schedule_workload(mode, seed, "0.32.0"),
            lambda workload: model_play(workload, listening(named("vllm-0.32"), asked)),
            most_steps=100,
        )
    guarded = model_play(schedule_workload("v1", 0, "0.32.0").workload, listening(named("vllm-0.32"), asked))
    assert [guarded.engine.refusal(request) for request in guarded.pending[:1]] == [""]
    engine_rules = {rule.name for rule in rules() if rule.name.startswith(ROOMS)}
    assert engine_rules - asked == set()
