"""The simulator's laws on random scenario files: judged, FWD-EQ, SIM-SAME, SIM-MONO, SIM-BLIND.

A failure shows the file as data; `epdsim run` takes it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from simulator_laws import computed_after_leaving, figures, gets_faster, is_blind, is_same, outcome, play, steady_file

from epdsim.events import RequestArrived, RequestFailed, RequestFinished
from epdsim.fleet import simulate
from epdsim.scenario.loader import load_scenario
from epdsim.scenario.runner import build_point, laws_of
from epdsim.spec import Judge
from epdsim.testing.scenario_files import scenario_files

HERE = Path(__file__).parent


@pytest.mark.engine_law
@settings(max_examples=25)
@given(scenario_files())
def test_no_law_is_broken_and_steps_at_once_are_steps_one_by_one(told) -> None:
    events, broken = play(told)
    assert broken == {}
    ends = Counter(one.request_id for one in events if isinstance(one, (RequestFinished, RequestFailed)))
    assert ends == Counter(one.request_id for one in events if isinstance(one, RequestArrived))
    slowly, broken = play(told, by_step=True)
    assert broken == {}
    assert outcome(slowly) == outcome(events)
    for kind in sorted({type(one).__name__ for one in events if not one.is_detail}):
        event(kind)


@pytest.mark.engine_law
@settings(max_examples=25)
@given(scenario_files())
def test_the_fast_run_and_the_run_step_by_step_give_the_same_bytes(told) -> None:
    assert figures(told, by_step=False) == figures(told, by_step=True)


@pytest.mark.engine_law
@settings(max_examples=12)
@given(scenario_files())
def test_the_same_file_gives_the_same_bytes(told) -> None:
    assert is_same(told)


HASHED = """
import sys, json
from hashlib import sha256
from simulator_laws import ENCODER, play
print(sha256(b"".join(map(ENCODER.encode, play(json.load(sys.stdin))[0]))).hexdigest())
"""


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    """SIM-SAME from process to process, under the router that hashes prompts."""
    told = steady_file(router="prefix_affinity")
    digests = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            input=json.dumps(told),
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


@pytest.mark.engine_law
@settings(max_examples=12)
@given(scenario_files())
def test_nothing_gets_faster_by_slowing_a_stage_for_one_request_alone(told) -> None:
    assert gets_faster({key: value for key, value in told.items() if key not in {"faults", "clients"}}) == []


@pytest.mark.engine_law
@settings(max_examples=12)
@given(scenario_files())
def test_nobody_knows_how_long_an_answer_will_be(told) -> None:
    assert is_blind(told)


@pytest.mark.engine_law
@settings(max_examples=15)
@given(scenario_files())
def test_nothing_is_computed_for_clients_that_have_left(told) -> None:
    clients = {"leave_share": 0.7, "leave_ms": {"kind": "uniform", "low": 1, "high": 400}}
    assert computed_after_leaving({**told, "clients": clients}) == []


FOLDER = HERE.parents[1] / "scenarios"


@pytest.mark.parametrize(
    "path",
    [one for one in sorted(FOLDER.glob("*/*.yaml")) if not one.name.startswith("real")],
    ids=lambda one: one.stem,
)
def test_the_scenarios_that_ship_break_no_law(path, shared_path) -> None:
    """Scaled down: the first requests of a few points; the whole of each is judged by `epdsim run`."""
    if "EPDSIM_SHARED" in path.read_text():
        shared_path("data")
    scenario = load_scenario(path)
    points = [*scenario.points[:: max(1, len(scenario.points) // 3)]]
    for point in points:
        rate = {scenario.spec.goodput.key: scenario.spec.goodput.low} if scenario.spec.goodput else None
        told = build_point(scenario, point, 0, rate)
        runs = []
        for by_step in (False, True):
            events, judging = [], Judge(laws_of(told.fleet))
            simulate(
                told.fleet, told.family, islice(iter(told.workload), 24), [events.append, judging],
                concurrency=told.workload.concurrency, keeps_arrivals=told.workload.keeps_arrivals,
                wants_detail=True, takes_strides=not by_step,
            )  # fmt: skip
            assert [one.first for one in judging.verdicts().values() if one.first is not None] == []
            runs.append(outcome(events))
        assert runs[0] == runs[1]
