"""Laws of EC connectors on random workloads, in the ideal: bounded waits, failures alone, nothing used before it is ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from epdsim.core.ec.pull import PullConnector
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.update import StepOutcome
from epdsim.sut.schedule_ec_workloads import EC_MODES
from epdsim.sut.schedule_model import ModelEngine
from epdsim.sut.schedule_play import Play
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workloads import schedule_workload

PULL_MODES = tuple(mode for mode in EC_MODES if "pull" in mode and "large" not in mode)
MOST_STEPS = 600


class Judge(ModelEngine):
    """The model's engine, which is watched."""

    failed: dict[str, str]

    def __init__(self, *args: object) -> None:
        super().__init__(*args, IDEAL)
        self.failed = {}
        update = self.scheduler.update_from_output

        def watched(*given: object) -> StepOutcome:
            outcome = update(*given)
            self.failed |= outcome.failed
            return outcome

        self._watched = watched

    def update(self, plan, tokens, kv_report) -> None:
        scheduler, self.scheduler = self.scheduler, _Watched(self.scheduler, self._watched)
        super().update(plan, tokens, kv_report)
        self.scheduler = scheduler


class _Watched:
    def __init__(self, scheduler, update) -> None:
        self._scheduler, self.update_from_output = scheduler, update

    def __getattr__(self, name: str):
        return getattr(self._scheduler, name)


def check_books(connector: PullConnector) -> None:
    """Host copies are conserved, and whatever is incomplete has somebody who completes it."""
    copies = connector.copies
    entries = copies._entries
    assert copies.num_free + sum(entry.num_embeds for entry in entries.values()) == copies.capacity
    assert copies.num_evictable == sum(entries[name].num_embeds for name in copies._evictable)
    assert all(entries[name].is_ready and not entries[name].pins for name in copies._evictable)
    pins = Counter(name for _, name in connector.leases._until_ms)
    assert all(entry.pins >= pins[name] for name, entry in entries.items())
    peers = connector.reads._peers.values()
    assert all(not entries[name].is_ready for peer in peers for name in (*peer.reads, *peer.stuck))


def told_bare(workload: RecordedWorkload, name: str) -> frozenset[int]:
    return frozenset(workload.ec.metadata_only.get(name, ())) if workload.ec else frozenset()


@pytest.mark.engine_law
@settings(max_examples=60)
@example("v2-ecb-pull-mismatch", 6103).via(
    "what is announced may be pushed out, and be read again, in the step that follows"
)
@given(st.sampled_from(PULL_MODES), st.integers(0, 10**6))
def test_every_wait_ends_and_who_fails_fails_alone(mode: str, seed: int) -> None:
    """LIVE-WAIT, ISO, EC-READY: others get all their tokens, and no worker is told to encode what came without payload."""
    workload, worker, _ = schedule_workload(mode, seed, "0.32.0")
    play = Play(workload, Judge)
    engine, connector, far = play.engine, play.engine._pull, play._far
    assert isinstance(connector, PullConnector)
    announce = far.announce

    def heard(request_id: str, offers: Mapping[str, int | None]) -> None:
        told = [name for name, num_embeds in offers.items() if num_embeds is not None]
        assert all(connector.copies.is_ready(name) for name in told), "announced before it is complete"
        announce(request_id, offers)

    far.announce = heard
    tokens: Counter[str] = Counter()
    for number in range(MOST_STEPS):
        step = play.step(number, lambda name, _: [tokens.update([name]) or worker.sample()])
        for name, inputs in step["scheduled_encoder_inputs"].items():
            assert not told_bare(workload, name) & set(inputs), f"{name} is to encode metadata"
        check_books(connector)
        if play.is_idle and not step["running"] and not step["waiting"]:
            break
    else:
        raise AssertionError("LIVE-WAIT: somebody waits without an end")
    gone = {name for _, name in (*workload.aborts, *workload.late_aborts)}
    for request in workload.requests:
        name = request.request_id
        if name in engine.failed:
            assert told_bare(workload, name) or "encoder cache" in engine.failed[name]
            event("a request failed")
        elif name not in gone:
            assert tokens[name] >= min(
                request.max_tokens, workload.config.max_model_len - len(request.prompt_token_ids)
            )
    assert far.now >= 0


@pytest.mark.engine_law
@settings(max_examples=40)
@given(st.sampled_from(PULL_MODES), st.integers(0, 10**6), st.integers(0, 40))
def test_a_clone_has_the_digest_and_goes_its_own_way(mode: str, seed: int, split_at: int) -> None:
    workload, worker, _ = schedule_workload(mode, seed, "0.32.0")
    play = Play(workload, Judge)
    for number in range(split_at):
        play.step(number, lambda *_: [worker.sample()])
    scheduler = play.engine.scheduler
    clone, before = scheduler.clone(), scheduler.fingerprint()
    assert clone.fingerprint() == before
    for _ in range(3):
        clone.update_from_output(clone.schedule())
    assert scheduler.fingerprint() == before


@pytest.mark.engine_law
@settings(max_examples=40)
@given(st.sampled_from([mode for mode in EC_MODES if "evict" in mode]), st.integers(0, 10**6))
def test_a_store_that_others_empty_stops_nobody(mode: str, seed: int) -> None:
    """What is not in the store is encoded; nothing is loaded that is not there."""
    workload, worker, _ = schedule_workload(mode, seed, "0.32.0")
    play = Play(workload, Judge)
    for number in range(MOST_STEPS):
        before = set(play._far.stored)
        step = play.step(number, lambda *_: [worker.sample()])
        events = [event for event in workload.ec.events if event[0] == number]
        for _, what, identifier in events:
            before.add(identifier) if what == "stored" else before.discard(identifier)
        assert set(step["ec_loads"]) <= before
        if play.is_idle and not step["running"] and not step["waiting"]:
            break
    assert (step["running"], step["waiting"]) == ([], [])
