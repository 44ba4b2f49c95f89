"""The laws of a fleet on events made by hand, and that monitors see every event that they need."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from verdicts import outcome

from epdsim.events import (
    Admitted,
    EncodeFinished,
    EncodeRunFinished,
    EngineStarted,
    FleetStarted,
    InstanceChosen,
    KvTransferred,
    LegRetried,
    LegSent,
    PromptComputed,
    RequestAborted,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    StepFinished,
    StepPlanned,
)
from epdsim.scenario.loader import load_scenario
from epdsim.scenario.runner import run_point
from epdsim.spec import OF_FLEETS, REGISTER, Judge, JudgeInBatches, Outcome, judge
from epdsim.spec.stations import MOST_TIES

E = "prefill-0"
STARTED = EngineStarted(0, E, "by hand", 4, 7, 8, 2, 4, 4)


@pytest.fixture(scope="module")
def small_scenario():
    return load_scenario(Path(__file__).parents[2] / "cli" / "data" / "small.yaml")


def step(end_ms, running, waiting=0, duration_ms=5.0, requests=1):
    return StepFinished(end_ms, E, 0, 1, requests, running, waiting, duration_ms)


def queued(name, at_ms=0.0):
    return RequestQueued(at_ms, E, name, 6, 2)


class TestLittle:
    def test_what_an_engine_tells_of_its_queue_is_how_long_requests_stay(self):
        begin = STARTED, queued("a"), step(5, 1), queued("b", 7)
        run = *begin, step(10, 1, 1), step(15, 1), RequestFinished(15, E, "a", 2)
        end = step(20, 0), RequestFinished(20, E, "b", 2)
        assert outcome("SIM-LITTLE", *run, *end) is Outcome.HOLDS
        forgotten = *begin, step(10, 1, 0), *run[5:]
        assert outcome("SIM-LITTLE", *forgotten, *end) is Outcome.VIOLATED
        assert outcome("SIM-LITTLE", *run) is Outcome.INCONCLUSIVE

    def test_one_that_never_leaves_the_queue_is_found_when_the_engine_is_empty_again(self):
        first = STARTED, queued("a"), step(5, 1, 1), step(10, 0, 1), RequestFinished(10, E, "a", 2)
        later = queued("b", 20), step(25, 1, 1), step(30, 0, 1), RequestFinished(30, E, "b", 2)
        assert outcome("SIM-LITTLE", *first, *later) is Outcome.VIOLATED

    def test_a_prompt_that_is_handed_over_has_left(self):
        run = STARTED, queued("a"), step(5, 1), step(10, 0), PromptComputed(10, E, "a")
        assert outcome("SIM-LITTLE", *run) is Outcome.HOLDS

    def test_who_is_taken_out_has_left(self):
        begin = STARTED, queued("a"), queued("b"), step(5, 1, 1), step(10, 1, 1)
        out = RequestAborted(12, E, "b")
        end = step(20, 0), RequestFinished(20, E, "a", 2)
        assert outcome("SIM-LITTLE", *begin, out, *end) is Outcome.HOLDS
        assert outcome("SIM-LITTLE", *begin, out, step(15, 1, 1), *end) is Outcome.VIOLATED, "it is still told of"
        assert outcome("SIM-LITTLE", *begin, step(12, 1, 1), out, *end) is Outcome.HOLDS

    def test_a_request_can_be_in_two_engines(self):
        other = EngineStarted(0, "decode-0", "model", 4, 64, 64, 8, 64, 64)
        begin = STARTED, other, queued("a"), RequestQueued(0, "decode-0", "a", 6, 2, awaits_kv=True)
        run = *begin, step(5, 1), step(10, 0), PromptComputed(10, E, "a")
        assert outcome("SIM-LITTLE", *run) is Outcome.HOLDS


class TestFair:
    def legs(self, router, *names, ends=False):
        yield FleetStarted(0, "fleet", "p+d", router, {"prefill": ["prefill-0", "prefill-1"], "decode": ["decode-0"]})
        for number, name in enumerate(names):
            yield LegSent(number, "orchestrator", f"r{number}", "prefill", name, 1)
            if ends:
                yield RequestFinished(number, name, f"r{number}", 1)

    def test_round_robin_goes_round(self):
        assert outcome("SIM-FAIR", *self.legs("round_robin", "prefill-0", "prefill-1", "prefill-0")) is Outcome.HOLDS
        assert outcome("SIM-FAIR", *self.legs("round_robin", "prefill-0", "prefill-0")) is Outcome.VIOLATED

    def test_idle_equals_take_turns(self):
        one = ["prefill-0"] * (MOST_TIES + 2)
        assert outcome("SIM-FAIR", *self.legs("least_loaded", *one, ends=True)) is Outcome.VIOLATED
        assert outcome("SIM-FAIR", *self.legs("least_loaded", *one[1:], "prefill-1", ends=True)) is Outcome.HOLDS
        assert outcome("SIM-FAIR", *self.legs("least_loaded", *one)) is Outcome.HOLDS, "the other may be busier"
        assert outcome("SIM-FAIR", *self.legs("prefix_affinity", *one, ends=True)) is Outcome.INCONCLUSIVE

    def test_a_tie_is_fair_to_who_had_no_turn_since_the_last_one(self):
        """Of requests that come in pairs the second finds the first one's instance busy: each has every other request."""
        pairs = [("prefill-0", "prefill-1")] * (MOST_TIES + 1)
        events = [FleetStarted(0, "fleet", "pd", "least_loaded", {"prefill": ["prefill-0", "prefill-1"]})]
        for number, names in enumerate(pairs):
            events += [LegSent(number, "orchestrator", f"{name}-{number}", "prefill", name, 1) for name in names]
            events += [RequestFinished(number, name, f"{name}-{number}", 1) for name in names]
        assert outcome("SIM-FAIR", *events) is Outcome.HOLDS

    def test_items_that_share_a_leg_are_chosen_for_one_by_one(self):
        def chosen(*names):
            yield FleetStarted(0, "fleet", "e+pd", "round_robin", {"encode": ["encode-0", "encode-1"]}, 8)
            for name in names:
                yield InstanceChosen(0, "orchestrator", "a", "encode", name)
            for name in dict.fromkeys(names):
                yield LegSent(0, "orchestrator", "a", "encode", name, 1)
            yield RequestFinished(1, E, "a", 1)
            yield LegSent(2, "orchestrator", "b", "encode", "encode-1", 1)

        assert outcome("SIM-FAIR", *chosen("encode-0", "encode-1", "encode-0")) is Outcome.HOLDS
        assert outcome("SIM-FAIR", *chosen("encode-0", "encode-0")) is Outcome.VIOLATED
        assert outcome("SIM-FAIR", *chosen("encode-0", "encode-1", "encode-1")) is Outcome.VIOLATED

    def test_each_pool_is_judged_by_its_own_router(self):
        for router, expected in (("prefix_affinity", Outcome.INCONCLUSIVE), ("round_robin", Outcome.VIOLATED)):
            pools = {"prefill": ["prefill-0", "prefill-1"]}
            begin = FleetStarted(0, "fleet", "p+d", "least_loaded", pools, routers={"prefill": router})
            legs = [LegSent(number, "orchestrator", f"r{number}", "prefill", "prefill-0", 1) for number in range(2)]
            assert outcome("SIM-FAIR", begin, *legs) is expected

    def test_an_engine_that_was_chosen_before_encode_stays_chosen_when_an_encode_leg_is_lost(self):
        names = ["prefill-0", "prefill-1"]
        begin = FleetStarted(0, "fleet", "e+pd", "round_robin", {"prefill": names, "encode": ["encode-0"]}, 8)
        chosen = [InstanceChosen(0, "orchestrator", name, "prefill", to) for name, to in zip("ab", names, strict=True)]
        third = InstanceChosen(1, "orchestrator", "c", "prefill", "prefill-0")
        lost = LegRetried(1, "orchestrator", "a", "encode", "encode-0", 1)
        sent = LegSent(2, "orchestrator", "a", "prefill", "prefill-0", 1)
        assert outcome("SIM-FAIR", begin, *chosen, third, lost, sent) is Outcome.HOLDS
        assert outcome("SIM-FAIR", begin, *chosen, third, sent, replace_to(third)) is Outcome.VIOLATED


def replace_to(chosen):
    """The same choice for another request."""
    return InstanceChosen(3, chosen.instance, "d", chosen.leg, chosen.to)


def test_somebody_who_waits_for_nothing_breaks_progress():
    stuck = RequestFailed(9, "orchestrator", "a", "stuck in encode", stuck=True)
    assert outcome("SIM-PROG", stuck) is Outcome.VIOLATED
    assert outcome("SIM-PROG", RequestFailed(9, E, "a", "lost"), RequestFinished(9, E, "b", 1)) is Outcome.HOLDS


def test_steps_without_time_break_progress():
    assert outcome("SIM-PROG", *(step(0, 1, duration_ms=0.0) for _ in range(10_000))) is Outcome.VIOLATED


def test_a_kv_cache_is_not_used_before_it_is_there():
    arrived, came = RequestArrived(0, "orchestrator", "a", 1), KvTransferred(2, "decode-0", "a", E, 100)
    used, end = Admitted(3, "decode-0", "a", 6, 6, 6), RequestFailed(4, "orchestrator", "a", "lost")
    whole = RequestFinished(9, "decode-0", "b", 0)
    assert outcome("SIM-ORDER", arrived, came, used, end, RequestArrived(4, "o", "b", 0), whole) is Outcome.HOLDS
    assert outcome("SIM-ORDER", arrived, used, end) is Outcome.VIOLATED


def test_encoders_and_batches_have_their_limits():
    fleet = FleetStarted(0, "fleet", "e+pd", "round_robin", {}, max_batch_items=2)

    def run(end_ms, items, duration_ms=5.0):
        return EncodeRunFinished(end_ms, "encode-0", items, 0, duration_ms)

    some = STARTED, fleet, step(5, 1)
    assert outcome("SIM-CAP", *some, run(5, 2), run(10, 2)) is Outcome.HOLDS
    assert outcome("SIM-CAP", *some, run(5, 3)) is Outcome.VIOLATED
    assert outcome("SIM-CAP", *some, run(5, 2), run(9, 2)) is Outcome.VIOLATED
    assert outcome("SIM-CAP", STARTED, step(5, 3, requests=3)) is Outcome.VIOLATED


def test_several_steps_told_as_one_have_the_budget_of_several():
    def planned(count, num_steps):
        return StepPlanned(0, E, 0, {"a": count}, num_computed_tokens={"a": 6}, num_steps=num_steps)

    before = STARTED, queued("a"), Admitted(0, E, "a", 6, 6)
    assert outcome("TOK-CONS", *before, planned(9, 2)) is Outcome.INCONCLUSIVE
    assert outcome("TOK-CONS", *before, planned(9, 1)) is Outcome.VIOLATED


@pytest.mark.parametrize("images", [0, 1])
def test_who_speaks_of_media_alone_misses_nothing_before_the_first(small_scenario, images):
    """Those that are asked only once media have come say what they say when they are asked about everything."""
    always = [replace(one, of_media=False) for one in OF_FLEETS]
    events = []
    constants = {"workload.images.count": images}
    run_point(small_scenario, {}, 0, constants, sinks=[events.append], wants_detail=True)
    asked_always, asked_then = Judge(always), Judge(OF_FLEETS)
    for event in events:
        asked_always(event)
        asked_then(event)
    assert asked_always.verdicts() == asked_then.verdicts()
    assert {one.outcome for one in asked_then.verdicts().values()} == {Outcome.HOLDS, Outcome.INCONCLUSIVE}


def test_a_monitor_takes_the_kinds_that_it_names_and_a_function_alone_takes_every_kind():
    taken: list[str] = []

    def note(event, engine):
        taken.append(f"{type(event).__name__} {len(engine.requests)}")

    one = REGISTER["SIM-PROG"]
    alone, named = replace(one, monitor=lambda: note), replace(one, monitor=lambda: {RequestQueued: note})
    for asked in (alone, named):
        judging = Judge([asked])
        for event in (STARTED, queued("a"), step(5, 1)):
            judging(event)
    assert taken == ["EngineStarted 0", "RequestQueued 1", "StepFinished 1", "RequestQueued 1"]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_events_judged_in_batches_come_to_what_they_come_to_one_by_one(size):
    run = (STARTED, queued("a"), step(5, 9, requests=9), RequestFinished(5, E, "a", 1))
    judging = JudgeInBatches(OF_FLEETS, size)
    for event in run:
        judging(event)
    assert judging.verdicts() == judge(run, OF_FLEETS)
    assert judging.verdicts()["SIM-CAP"].at == 2
    assert judging.num_events == len(run)


def test_nothing_is_kept_of_what_has_ended(small_scenario):
    """A long run can be judged as it goes: monitors and engine states are as small after it as before."""
    judging = Judge(OF_FLEETS)
    events = []
    run_point(small_scenario, {}, 0, sinks=[judging, events.append], wants_detail=True)
    names = {one.request_id for one in events if isinstance(one, RequestArrived)}
    assert len(names) > 10
    assert any(isinstance(one, EncodeFinished) for one in events)
    kept = _kept(judging, names)
    assert kept == []


def _kept(judging, names):
    """Books of monitors and engines in which a request that has ended still stands."""
    books = [
        (
            f"{one.id} {field}",
            {part for key in book for part in (key if isinstance(key, tuple) else (key,))},
        )
        for sender in judging._senders.values()
        for one, _, monitor in sender.monitors
        for take in monitor.values()
        for field, book in getattr(getattr(take, "__self__", None), "__dict__", {}).items()
        if isinstance(book, (dict, set))
    ]
    books += [(name, set(sender.engine.requests)) for name, sender in judging._senders.items()]
    return [told for told, keys in books if keys & names]


def test_what_was_lost_with_an_instance_is_handed_over_again():
    arrived, came = RequestArrived(0, "orchestrator", "a", 1), KvTransferred(2, "decode-0", "a", E, 100)
    retried = LegRetried(3, "orchestrator", "a", "generate", "decode-0", 1)
    assert outcome("KV-HAND", arrived, came, came) is Outcome.VIOLATED
    assert outcome("KV-HAND", arrived, came, retried, came) is Outcome.INCONCLUSIVE
