"""Laws of the simulator on random small worlds: FWD-EQ, SIM-BOOKS, SIM-ORDER, SIM-CAP, SIM-LITTLE, SIM-FAIR."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.cost import LinearLm
from epdsim.events import FirstToken, LegSent, RequestArrived, RequestFailed, RequestFinished, StepFinished
from epdsim.fleet import ROUTERS, TOPOLOGIES, EnginePool, simulate
from epdsim.fleet.routing import router
from epdsim.media import family
from epdsim.report.sink import MetricsSink
from epdsim.workload.request import MediaRef, WorkloadRequest

FAMILY = family("qwen3-vl-8b")


@st.composite
def worlds(draw: st.DrawFn):
    config = SchedulerConfig(
        num_gpu_blocks=draw(st.integers(40, 80)),
        max_num_batched_tokens=draw(st.sampled_from([64, 200, 512])),
        max_num_seqs=draw(st.integers(1, 6)),
        uses_mrope=True,
    )
    now, requests = 0.0, []
    for number in range(draw(st.integers(1, 8))):
        now += draw(st.sampled_from([0.0, 0.1, 5.0, 17.3, 400.0]))
        parts = [TokenRun(draw(st.sampled_from("ab")), 0, draw(st.integers(1, 90)))]
        parts += [MediaRef(draw(st.sampled_from("xyz")), height=224, width=224) for _ in range(draw(st.integers(0, 2)))]
        parts.append(TokenRun("tail", 0, draw(st.integers(1, 40))))
        requests.append(WorkloadRequest(f"r{number}", now, tuple(parts), draw(st.integers(1, 60))))
    return (
        draw(st.sampled_from(TOPOLOGIES)),
        draw(st.sampled_from(sorted(ROUTERS))),
        draw(st.integers(1, 2)),
        config,
        requests,
    )


def play(small_fleet, world, *, takes_strides: bool = True):
    topology, routing, count, config, requests = world
    base = small_fleet(topology, router=routing)

    def pool(one: EnginePool | None) -> EnginePool | None:
        return one and replace(one, count=count, scheduler=replace(config, ec_role=one.scheduler.ec_role))

    metrics, events = MetricsSink(), []
    fleet = replace(base, prefill=pool(base.prefill), decode=pool(base.decode))
    simulate(fleet, FAMILY, requests, [metrics, events.append], takes_strides=takes_strides)
    return metrics.result(), events


@settings(max_examples=60)
@given(worlds())
def test_strides_change_nothing_but_how_steps_are_told(small_fleet, world) -> None:
    fast, slow = play(small_fleet, world), play(small_fleet, world, takes_strides=False)
    told = [[event for event in events if not isinstance(event, StepFinished)] for _, events in (fast, slow)]
    assert told[0] == told[1]
    assert fast[0] == slow[0]


@settings(max_examples=60)
@given(worlds())
def test_books_order_and_capacity(small_fleet, world) -> None:
    metrics, events = play(small_fleet, world)
    requests, config = world[4], world[3]
    assert metrics.injected == len(requests)
    assert metrics.completed + metrics.failed + metrics.refused == metrics.injected
    assert not metrics.unfinished
    ends = Counter(event.request_id for event in events if isinstance(event, (RequestFinished, RequestFailed)))
    assert ends == Counter({one.request_id: 1 for one in requests})
    wanted = {one.request_id: one.output_tokens for one in requests}
    stages = {}
    for event in events:
        if isinstance(event, (RequestArrived, FirstToken, RequestFinished)):
            stages.setdefault(event.request_id, []).append((type(event).__name__, event.time_ms))
        if isinstance(event, RequestFinished):
            assert event.output_tokens == wanted[event.request_id]
        if isinstance(event, StepFinished):
            assert event.num_tokens <= event.num_steps * config.max_num_batched_tokens
            assert event.num_requests <= config.max_num_seqs
            assert event.duration_ms > 0
    for names_and_times in stages.values():
        names, times = zip(*names_and_times, strict=True)
        assert list(times) == sorted(times)
        assert names in {("RequestArrived", "FirstToken", "RequestFinished"), ("RequestArrived",)}
    end_ms = max(event.time_ms for event in events)
    assert all(busy <= end_ms * 1.000001 for busy in metrics.busy_ms.values())


@settings(max_examples=40)
@given(worlds())
def test_littles_law_over_a_whole_run(small_fleet, world) -> None:
    """Over a run that starts and ends empty the law is exact: the area under the number in the system is the sum of stays."""
    _, events = play(small_fleet, world)
    level, last_ms, area, arrived, stays = 0, 0.0, 0.0, {}, 0.0
    for event in events:
        area += level * (event.time_ms - last_ms)
        last_ms = event.time_ms
        if isinstance(event, RequestArrived):
            level += 1
            arrived[event.request_id] = event.time_ms
        if isinstance(event, (RequestFinished, RequestFailed)):
            level -= 1
            stays += event.time_ms - arrived[event.request_id]
    assert level == 0
    assert area == pytest.approx(stays)


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_one_request_alone_is_never_faster_on_a_slower_stage(small_fleet, chat, factor) -> None:
    """SIM-MONO for a single request."""
    for topology in TOPOLOGIES:
        base = small_fleet(topology)
        lm = LinearLm(
            fixed_ms=5.0 * factor,
            prefill_token_ms=0.02 * factor,
            pair_ms=0.0,
            decode_request_ms=0.1,
            context_token_ms=0.0,
        )
        slower = replace(base, prefill=replace(base.prefill, lm=lm))
        times = []
        for config in (base, slower):
            metrics = MetricsSink()
            simulate(config, FAMILY, [chat("a", images=["x"])], [metrics])
            times.append(metrics.result())
        assert times[0].ttft_ms.mean < times[1].ttft_ms.mean
        assert times[0].e2e_ms.mean < times[1].e2e_ms.mean


class Target:
    def __init__(self) -> None:
        self.outstanding = 0


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
@given(count=st.integers(1, 7), calls=st.integers(0, 60))
def test_idle_equals_share_to_within_one(name, count, calls) -> None:
    """SIM-FAIR."""
    choose, pool = router(name), [Target() for _ in range(count)]
    chosen = Counter(id(choose(pool, RunPrompt([TokenRun("a", 0, 1)]))) for _ in range(calls))
    shares = [chosen[id(one)] for one in pool]
    assert max(shares) - min(shares) <= 1


def test_prefix_affinity_follows_the_prefix_until_load_says_otherwise() -> None:
    choose, pool = router("prefix_affinity"), [Target() for _ in range(3)]
    first = choose(pool, RunPrompt([TokenRun("a", 0, 5), TokenRun("b", 0, 5)]))
    longer = RunPrompt([TokenRun("a", 0, 5), TokenRun("b", 0, 5), TokenRun("c", 0, 5)])
    assert choose(pool, longer) is first
    assert choose(pool, RunPrompt([TokenRun("z", 0, 5)])) is not first
    first.outstanding = 100
    assert choose(pool, longer) is not first


class TestMediaAffinity:
    """By hand: three instances, which nobody keeps busy unless a test says so."""

    PROMPT = RunPrompt([TokenRun("a", 0, 1)])

    def test_it_goes_where_most_of_the_items_went(self) -> None:
        choose, pool = router("media_affinity"), [Target() for _ in range(3)]
        first = choose(pool, self.PROMPT, ["sun", "moon"])
        second = choose(pool, self.PROMPT, ["sea"])
        assert (first, second) == (pool[0], pool[1])
        assert choose(pool, self.PROMPT, ["sea", "moon", "sun"]) is first
        assert choose(pool, self.PROMPT, ["sea"]) is first, "the last one counts"
        assert choose(pool, self.PROMPT, ["sand"]) is pool[2], "what is new goes in turn"
        assert choose([pool[1], pool[2]], self.PROMPT, ["sun"]) is not first, "it is lost"

    def test_load_says_otherwise(self) -> None:
        choose, pool = router("media_affinity"), [Target() for _ in range(3)]
        first = choose(pool, self.PROMPT, ["sun"])
        first.outstanding = 8
        assert choose(pool, self.PROMPT, ["sun"]) is first
        first.outstanding = 9
        assert choose(pool, self.PROMPT, ["sun"]) is not first

    def test_it_does_not_know_yet_what_it_sent_a_moment_ago(self) -> None:
        now = [0.0]
        choose, pool = router("media_affinity", lambda: now[0], 100.0), [Target() for _ in range(3)]
        assert choose(pool, self.PROMPT, ["sun"]) is pool[0]
        now[0] = 99.0
        assert choose(pool, self.PROMPT, ["sun"]) is pool[1], "it is not remembered yet"
        now[0] = 150.0
        assert choose(pool, self.PROMPT, ["sun"]) is pool[0], "and here the second time is not"
        now[0] = 260.0
        assert choose(pool, self.PROMPT, ["sun"]) is pool[0]


def test_a_pool_can_have_a_router_of_its_own(small_fleet, chat) -> None:
    base, events = small_fleet("p+d"), []
    prefill = replace(base.prefill, count=2, router="prefix_affinity")
    fleet = replace(base, prefill=prefill, decode=replace(base.decode, count=2))
    requests = [replace(chat("same", 1000.0 * number), request_id=str(number)) for number in range(4)]
    simulate(fleet, FAMILY, requests, [events.append])
    sent = Counter(event.to for event in events if isinstance(event, LegSent))
    assert sent == {"prefill-0": 4, "decode-0": 2, "decode-1": 2}


def test_instances_of_a_pool_share_the_work(small_fleet, chat) -> None:
    base = small_fleet()
    events = []
    fleet = replace(base, prefill=replace(base.prefill, count=3))
    simulate(fleet, FAMILY, [chat(str(number), 1000.0 * number) for number in range(9)], [events.append])
    assert Counter(event.to for event in events if isinstance(event, LegSent)) == {
        "engine-0": 3,
        "engine-1": 3,
        "engine-2": 3,
    }


def test_strides_do_happen(small_fleet, chat) -> None:
    """The *sometimes* of FWD-EQ: a long answer is told in few events, an arrival in its midst cuts a stride and is not late."""
    events = []
    requests = [chat("long", 0.0, output=200), chat("other", 517.3, output=3)]
    simulate(small_fleet(), FAMILY, requests, [events.append])
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert max(step.num_steps for step in steps) > 20
    assert sum(step.num_steps for step in steps) >= 200
    assert len(steps) < 30
    (first,) = (event for event in events if isinstance(event, FirstToken) and event.request_id == "other")
    assert first.time_ms < 517.3 + 30
