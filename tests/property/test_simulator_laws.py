"""The simulator's laws on random scenario files: judged, FWD-EQ, SIM-SAME, SIM-MONO, SIM-BLIND; and a planted bug for each law.

A failure shows the file as data; `epdsim run` takes it.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from hypothesis import event, given, settings

from epdsim.core.request import KvTransfer
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.cost import LinearEncode, Link
from epdsim.cost.lm import decode_stepper
from epdsim.events import (
    FirstToken,
    LegSent,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)
from epdsim.fleet import simulate
from epdsim.fleet.ec.producer import Keeper
from epdsim.fleet.encode import EncodeInstance
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.lines import Line
from epdsim.fleet.orchestrators.calls import Calls
from epdsim.fleet.orchestrators.decode_first import DecodeFirst
from epdsim.fleet.routing import ROUTERS, LeastLoaded, RoundRobin, router
from epdsim.report.metrics import MetricsSink
from epdsim.scenario.loader import Scenario, load_scenario, validate
from epdsim.scenario.runner import BuiltPoint, build_point, laws_of
from epdsim.scenario.yaml_file import YamlFile
from epdsim.spec import OF_FLEETS, Judge
from epdsim.testing.scenario_files import scenario_files

ENCODER = msgspec.json.Encoder()
HERE = Path(__file__).parent


def built(told) -> BuiltPoint:
    """Fleet and workload of a file."""
    file = YamlFile(Path("random.yaml"), copy.deepcopy(told), {})
    scenario = Scenario(file, validate(file.data, file), ({},))
    return build_point(scenario, {}, scenario.spec.seed)


def play(told, *, by_step=False, requests=None):
    """Events of a run, and what the monitors say of it."""
    point, events, judging = built(told), [], Judge(OF_FLEETS)
    source = point.workload if requests is None else requests
    simulate(point.fleet, point.family, source, [events.append, judging], wants_detail=True, takes_strides=not by_step)
    return events, {name: one.first.told for name, one in judging.verdicts().items() if one.first is not None}


def outcome(events):
    """What a run comes to, however its steps are told: all other plain events, and the sums of steps."""
    plain = [one for one in events if not one.is_detail and not isinstance(one, StepFinished)]
    steps = defaultdict(Counter)
    for one in events:
        if isinstance(one, StepFinished):
            steps[one.instance].update(
                steps=one.num_steps, tokens=one.num_tokens, sent=one.broadcast_bytes, busy=one.duration_ms
            )
    return plain, steps


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


def figures(told, *, by_step: bool) -> bytes:
    """All figures of a run as JSON: as a sweep runs it, or with every step planned, told and timed on its own."""
    point, sink = built(told), MetricsSink()
    simulate(point.fleet, point.family, point.workload, [sink], wants_detail=by_step, takes_strides=not by_step)
    return ENCODER.encode(sink.result())


@pytest.mark.engine_law
@settings(max_examples=25)
@given(scenario_files())
def test_the_fast_run_and_the_run_step_by_step_give_the_same_bytes(told) -> None:
    assert figures(told, by_step=False) == figures(told, by_step=True)


def is_same(told) -> bool:
    """SIM-SAME: twice the same bytes."""
    first, second = (b"\n".join(map(ENCODER.encode, play(told)[0])) for _ in range(2))
    return first == second


@pytest.mark.engine_law
@settings(max_examples=12)
@given(scenario_files())
def test_the_same_file_gives_the_same_bytes(told) -> None:
    assert is_same(told)


HASHED = """
import sys, json
from hashlib import sha256
from test_simulator_laws import ENCODER, play
print(sha256(b"".join(map(ENCODER.encode, play(json.load(sys.stdin))[0]))).hexdigest())
"""


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    """SIM-SAME from process to process, under the router that hashes prompts."""
    told = steady_file(router="prefix_affinity")
    digests = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            input=json.dumps(told),
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1


SLOWER = (
    ("costs", "lm", "fixed_ms"), ("costs", "lm", "prefill_token_ms"), ("costs", "encode", "fixed_ms"),
    ("costs", "render", "image_ms"), ("costs", "hop_ms"), ("costs", "kv_bytes_per_token"),
)  # fmt: skip


def alone(told):
    """One request in an empty system, and when it ended."""
    point = built(told)
    one = next(iter(point.workload))
    events, _ = play(told, requests=[one])
    return next(event.time_ms for event in events if isinstance(event, (RequestFinished, RequestFailed)))


def gets_faster(told) -> list[str]:
    """SIM-MONO: keys with which, three times as large, one request alone ends earlier."""
    base, found = alone(told), []
    for *path, last in SLOWER:
        slower = copy.deepcopy(told)
        node = slower
        for key in path:
            node = node[key]
        node[last] *= 3
        found += [last] if alone(slower) < base else []
    return found


@pytest.mark.engine_law
@settings(max_examples=12)
@given(scenario_files())
def test_nothing_gets_faster_by_slowing_a_stage_for_one_request_alone(told) -> None:
    assert gets_faster({key: value for key, value in told.items() if key != "faults"}) == []


def with_longer_answer(request, tokens):
    changed = copy.copy(request)
    object.__setattr__(changed, "output_tokens", request.output_tokens + tokens)
    return changed


def up_to_the_end_of(events, request_id):
    """Where legs went and who was admitted, until a request had all its tokens."""
    for one in events:
        if isinstance(one, (RequestFinished, RequestFailed)) and one.request_id == request_id:
            return
        if isinstance(one, (LegSent, FirstToken)):
            yield one


def is_blind(told) -> bool:
    """SIM-BLIND: as long as an answer could still be the shorter one, a longer answer changes nothing."""
    requests = list(built(told).workload)
    chosen = len(requests) // 2
    name = requests[chosen].request_id
    asked = [copy.copy(one) for one in requests]
    asked[chosen] = with_longer_answer(requests[chosen], 7)
    short, long = play(told, requests=requests)[0], play(told, requests=asked)[0]
    before = list(up_to_the_end_of(short, name))
    return list(up_to_the_end_of(long, name))[: len(before)] == before


@pytest.mark.engine_law
@settings(max_examples=12)
@given(scenario_files())
def test_nobody_knows_how_long_an_answer_will_be(told) -> None:
    assert is_blind(told)


class SentTo:
    """What a router may know of an instance; whatever else it asks for is an error."""

    def __init__(self, instance) -> None:
        self._instance = instance

    @property
    def outstanding(self) -> int:
        return self._instance.outstanding


def choices(told, monkeypatch, *, through=SentTo):
    """Where legs go when every router is shown instances through something."""
    shown = {}

    def veiled(*asked):
        inner = router(*asked)

        def choose(pool, prompt, mm_hashes=()):
            seen = [shown.setdefault(id(one), through(one)) for one in pool]
            return pool[seen.index(inner(seen, prompt, mm_hashes))]

        return choose

    with monkeypatch.context() as patch:
        for module in ("calls", "encoding"):
            patch.setattr(f"epdsim.fleet.orchestrators.{module}.router", veiled)
        return [one.to for one in play(told)[0] if isinstance(one, LegSent)]


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_routers_read_nothing_of_an_instance_but_what_was_sent_to_it(monkeypatch, name) -> None:
    """SIM-BLIND: shown no more than its own books, the orchestrator chooses as it does when it could look inside."""
    told = steady_file(router=name)
    assert choices(told, monkeypatch) == [one.to for one in play(told)[0] if isinstance(one, LegSent)]


def steady_file(topology="e+p+d", **changes):
    """Two of everything, and some load."""
    link = {"kind": "linear", "bandwidth_bytes_per_s": 1e8, "sharing": "fleet"}
    pool = {"count": 2, "scheduler": {"num_gpu_blocks": 600, "max_num_seqs": 3}}
    return {
        "name": "steady",
        "family": "qwen3-vl-8b",
        "fleet": {"topology": topology, "encode": {"count": 2, "max_batch_items": 2}, "prefill": pool, "decode": pool} | changes,
        "costs": {
            "lm": {"kind": "linear", "fixed_ms": 8, "prefill_token_ms": 0.02, "decode_request_ms": 0.05},
            "encode": {"kind": "linear", "fixed_ms": 20, "patch_ms": 0.01},
            "render": {"kind": "linear", "image_ms": 2, "megapixel_ms": 4},
            "hop_ms": 0.5,
            "body_link": link,
            "ec_link": link,
            "kv_link": link,
            "kv_bytes_per_token": 36864,
        },
        "workload": {
            "kind": "poisson", "rate_req_s": 30, "num_requests": 24, "text_tokens": 60, "output_tokens": 20,
            "images": {"count": 2, "size": {"kind": "fixed", "size": [112, 224]}},
        },
    }  # fmt: skip


PUSH = {"orchestrator": "push", "ec": {"kind": "push"}}
STYLES = [{"orchestrator": "batched"}, {"orchestrator": "decode_first"}, {"ec": {"kind": "pull"}}, PUSH]


class TestPlantedBugs:
    """Each law finds the bug that was put in for it, some of them those of peers, and nothing without one."""

    @pytest.mark.parametrize("style", [{}, *STYLES], ids=str)
    def test_without_a_bug_every_law_holds(self, style):
        told = steady_file(**style)
        assert play(told)[1] == {}
        assert outcome(play(told)[0]) == outcome(play(told, by_step=True)[0])
        assert figures(told, by_step=False) == figures(told, by_step=True)
        assert (is_same(told), gets_faster(told), is_blind(told)) == (True, [], True)

    def test_a_request_that_ends_twice(self, monkeypatch):
        whole = EngineInstance._finish_request

        def twice(engine, request_id):
            whole(engine, request_id)
            engine._world.emit(RequestFinished(engine._world.env.now, engine.name, request_id, 20))

        monkeypatch.setattr(EngineInstance, "_finish_request", twice)
        assert "SIM-BOOKS" in play(steady_file("aggregated"))[1]

    def test_an_encoder_that_takes_more_than_it_can(self, monkeypatch):
        whole = EncodeInstance.__init__

        def greedy(instance, world, name, pool, *more):
            whole(instance, world, name, replace(pool, max_batch_items=10 * pool.max_batch_items), *more)

        monkeypatch.setattr(EncodeInstance, "__init__", greedy)
        told = steady_file()
        told["costs"]["encode"]["fixed_ms"] = 200
        assert "encodes" in play(told)[1]["SIM-CAP"]

    def test_a_link_that_forgets_that_it_is_taken(self, monkeypatch):
        whole = Line.send

        def forgetful(line, sizes):
            line._free_ms = 0.0
            return whole(line, sizes)

        monkeypatch.setattr(Line, "send", forgetful)
        assert "link begins a transfer" in play(steady_file())[1]["SIM-CAP"]

    def test_a_link_that_is_twice_as_fast(self, monkeypatch):
        monkeypatch.setattr(Link, "transfer_ms", lambda link, nbytes: nbytes * 500.0 / link.bandwidth_bytes_per_s)
        assert "bytes in a time for" in play(steady_file())[1]["SIM-CAP"]

    def test_an_engine_that_hides_its_queue(self, monkeypatch):
        monkeypatch.setattr(Scheduler, "num_waiting", 0)
        assert "SIM-LITTLE" in play(steady_file("aggregated"))[1]

    def test_an_answer_without_a_first_token(self, monkeypatch):
        monkeypatch.setattr(EngineInstance, "_emit_first_token", lambda *_: None)
        assert "SIM-ORDER" in play(steady_file())[1]

    def test_one_counter_for_two_pools(self, monkeypatch):
        """BLIS: with two of each every request goes to the same prefill and the same decode instance."""
        shared = RoundRobin()
        monkeypatch.setattr("epdsim.fleet.orchestrators.calls.router", lambda *_: shared)
        assert "SIM-FAIR" in play(steady_file("p+d"))[1]

    def test_ties_that_always_go_to_the_first(self, monkeypatch):
        monkeypatch.setattr(LeastLoaded, "__call__", lambda _, pool, *__: min(pool, key=lambda one: one.outstanding))
        told = steady_file("aggregated", router="least_loaded")
        told["workload"]["rate_req_s"] = 2
        assert "SIM-FAIR" in play(told)[1]

    @pytest.mark.parametrize("style", [{"ec": {"kind": "pull"}}, PUSH], ids=["pull", "push"])
    def test_an_encoder_that_hands_on_what_it_never_made(self, monkeypatch, style):
        assert play(steady_file("e+pd", **style))[1] == {}
        monkeypatch.setattr(Keeper, "has", lambda *_: True)
        assert "no encoder has completed" in play(steady_file("e+pd", **style))[1]["EC-READY"]

    def test_a_consumer_that_is_always_the_same_one(self, monkeypatch):
        """Chosen before its leg is sent, and judged then."""
        monkeypatch.setattr(RoundRobin, "__call__", lambda _, pool, *__: pool[0])
        told = steady_file("e+pd", **PUSH)
        told["fleet"]["encode"]["count"] = 1
        assert "prefill-0 takes a second prefill leg" in play(told)[1]["SIM-FAIR"]

    def test_a_decode_engine_that_does_not_wait_for_what_is_pushed(self, monkeypatch):
        monkeypatch.setattr("epdsim.fleet.orchestrators.decode_first.AWAITED", KvTransfer())
        monkeypatch.setattr(DecodeFirst, "_fill", lambda *_: iter(()))
        broken = play(steady_file(orchestrator="decode_first"))[1]
        assert {"KV-HAND", "SIM-ORDER"} <= set(broken)

    def test_an_engine_that_never_wakes(self, monkeypatch):
        monkeypatch.setattr(EngineInstance, "_wake", lambda *_: None)
        assert "SIM-PROG" in play(steady_file())[1]

    def test_steps_at_once_that_take_longer(self, monkeypatch):
        def slow(lm):
            usual = decode_stepper(lm)
            return lambda *load: [1.01 * one for one in usual(*load)]

        monkeypatch.setattr("epdsim.fleet.stepping.decode_stepper", slow)
        told = steady_file("aggregated")
        assert outcome(play(told)[0]) != outcome(play(told, by_step=True)[0])
        assert figures(told, by_step=False) != figures(told, by_step=True)

    def test_a_router_that_throws_dice(self, monkeypatch):
        dice = random.Random(1)
        monkeypatch.setattr(RoundRobin, "__call__", lambda _, pool, *__: dice.choice(pool))
        assert not is_same(steady_file())

    def test_a_cost_that_falls(self, monkeypatch):
        monkeypatch.setattr(LinearEncode, "encode_ms", lambda cost, _: 100.0 - cost.fixed_ms)
        assert gets_faster(steady_file()) == ["fixed_ms"]

    def test_a_router_that_looks_into_an_engine(self, monkeypatch):
        def fresh(_, pool, *__):
            return min(pool, key=lambda one: one._scheduler.num_running)

        monkeypatch.setattr(LeastLoaded, "__call__", fresh)
        with pytest.raises(AttributeError, match="_scheduler"):
            choices(steady_file("aggregated", router="least_loaded"), monkeypatch)

    def test_a_router_that_reads_the_end_of_the_answer(self, monkeypatch):
        whole = Calls.choose_prefill

        def knowing(calls, task):
            calls._to_prefill._next = task.source.output_tokens
            return whole(calls, task)

        monkeypatch.setattr(Calls, "choose_prefill", knowing)
        assert not is_blind(steady_file("aggregated"))


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
