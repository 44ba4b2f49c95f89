"""What instances of a fleet rely on: by hand, and in fleets with a planted defect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.core.prompt import TokenRun
from epdsim.core.request import KvTransfer
from epdsim.events import (
    Admitted,
    EcLoaded,
    EncodeFinished,
    ItemInfo,
    KvTransferred,
    Rendered,
    RequestArrived,
    RequestQueued,
    StepPlanned,
)
from epdsim.fleet import simulate
from epdsim.fleet.orchestrators import calls, decode_first, store_encoding
from epdsim.fleet.orchestrators.decode_first import DecodeFirst
from epdsim.media import family
from epdsim.spec import REGISTER, Outcome, judge
from epdsim.workload.request import MediaRef, WorkloadRequest

LIGHT = ItemInfo("image", "x", 0, 4, payload="metadata")
ARRIVED = RequestArrived(0, "orchestrator", "a", 2)
ENCODED = EncodeFinished(1, "encode-0", "a", ["x"], 8)


def queued(*items, remote=0, at="prefill-0"):
    return RequestQueued(2, at, "a", 6, 2, items, num_remote_tokens=remote)


def outcome(name, *events):
    return judge([ARRIVED, *events], [REGISTER[name]])[name].outcome


def test_what_is_loaded_was_complete():
    loaded = EcLoaded(2, "prefill-0", "x", 8)
    assert outcome("EC-READY", ENCODED, loaded) is Outcome.HOLDS
    assert outcome("EC-READY", loaded, ENCODED) is Outcome.VIOLATED


def test_an_item_has_one_name_everywhere():
    rendered = Rendered(0, "render", "a", 6, 4, ["x"])
    other = ItemInfo("image", "lora:x", 0, 4)
    assert outcome("PROTO-ID", rendered, ENCODED, queued(LIGHT)) is Outcome.HOLDS
    assert outcome("PROTO-ID", rendered, ENCODED, queued(other)) is Outcome.VIOLATED
    assert outcome("PROTO-ID", rendered, EncodeFinished(1, "encode-0", "a", ["y"], 8)) is Outcome.VIOLATED
    assert outcome("PROTO-ID", rendered, queued(LIGHT)) is Outcome.INCONCLUSIVE


def test_what_comes_without_payload_was_encoded():
    assert outcome("PROTO-SUFF", ENCODED, queued(LIGHT)) is Outcome.HOLDS
    assert outcome("PROTO-SUFF", queued(LIGHT)) is Outcome.VIOLATED
    assert outcome("PROTO-SUFF", queued(LIGHT, remote=6)) is Outcome.INCONCLUSIVE
    assert outcome("PROTO-SUFF", queued(ItemInfo("image", "x", 0, 4))) is Outcome.INCONCLUSIVE


def test_what_is_taken_over_was_computed_and_has_come_once():
    def computed(end):
        return StepPlanned(1, "prefill-0", 0, {"a": end}, num_computed_tokens={"a": 0})

    moved = KvTransferred(2, "decode-0", "a", "prefill-0", 99)
    taken = queued(remote=6, at="decode-0")
    assert outcome("KV-HAND", computed(6), moved, taken) is Outcome.HOLDS
    assert outcome("KV-HAND", computed(5), moved, taken) is Outcome.VIOLATED
    assert outcome("KV-HAND", computed(6), taken) is Outcome.VIOLATED
    assert outcome("KV-HAND", computed(6), moved, moved) is Outcome.VIOLATED


def test_who_waits_for_a_kv_cache_with_its_blocks_takes_it_over_when_it_is_admitted():
    computed = StepPlanned(1, "prefill-0", 0, {"a": 6}, num_computed_tokens={"a": 0})
    waits = RequestQueued(0, "decode-0", "a", 6, 2, num_remote_tokens=6, awaits_kv=True)
    moved, admitted = KvTransferred(2, "decode-0", "a", "prefill-0", 99), Admitted(3, "decode-0", "a", 6, 5, 6)
    assert outcome("KV-HAND", waits, computed, moved, admitted) is Outcome.HOLDS
    assert outcome("KV-HAND", waits, computed, admitted) is Outcome.VIOLATED
    assert outcome("KV-HAND", waits, moved, admitted) is Outcome.VIOLATED
    assert outcome("KV-HAND", waits, computed, moved) is Outcome.INCONCLUSIVE


def run(small_fleet, names, **changes):
    requests = [
        WorkloadRequest(f"r{i}", 3.0 * i, (MediaRef(f"picture-{i}", height=224, width=224), TokenRun("t", 0, 20)), 4)
        for i in range(4)
    ]
    events = []
    simulate(small_fleet("e+p+d", **changes), family("qwen3-vl-8b"), requests, [events.append], wants_detail=True)
    return judge(events, [REGISTER[name] for name in names])


NAMES = ("EC-READY", "PROTO-ID", "PROTO-SUFF", "KV-HAND")


def test_a_fleet_holds(small_fleet):
    assert {str(one.outcome) for one in run(small_fleet, NAMES).values()} == {"holds"}


class TestPlantedDefects:
    def test_a_decode_engine_that_does_not_wait_for_the_kv_cache(self, small_fleet, monkeypatch):
        monkeypatch.setattr(decode_first, "AWAITED", KvTransfer())
        monkeypatch.setattr(DecodeFirst, "_fill", lambda *_: iter(()))
        assert run(small_fleet, ["KV-HAND"], orchestrator="decode_first")["KV-HAND"].num_broken

    def test_an_orchestrator_that_does_not_wait_for_the_encoder(self, small_fleet, monkeypatch):
        monkeypatch.setattr(store_encoding.simpy, "AllOf", lambda env, _events: env.timeout(0))
        monkeypatch.setattr("epdsim.core.ec.store.EcStore.touch", lambda _self, _mm_hash: 8)
        broken = {name for name, one in run(small_fleet, NAMES).items() if one.num_broken}
        assert {"EC-READY", "PROTO-SUFF"} <= broken

    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            ("PROTO-ID", lambda one: {"mm_features": [replace(item, identifier="other") for item in one.mm_features]}),
            ("KV-HAND", lambda one: {"num_remote_tokens": one.num_remote_tokens and one.num_remote_tokens + 1}),
        ],
    )
    def test_a_leg_that_is_composed_wrongly(self, small_fleet, monkeypatch, name, changes):
        make = calls.Request

        def wrong(*args, **kwargs):
            right = make(*args, **kwargs)
            return replace(right, **changes(right)) if right.num_remote_tokens else right

        monkeypatch.setattr(calls, "Request", wrong)
        assert run(small_fleet, [name])[name].num_broken
