"""TP-SAME: the model's ring holds it, and rings that do otherwise are found out."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from epdsim.events import PlanReceived
from epdsim.payload import RingOptions, TpGroup, encode
from epdsim.payload.ring import RingReader
from epdsim.spec import REGISTER, Outcome, judge
from epdsim.sut.broadcast import ReferenceBroadcast, plan_of
from epdsim.sut.broadcast_cases import BroadcastCase, broadcast, digest_of, joined

pytestmark = pytest.mark.xdist_group("shared-memory")

CASE = BroadcastCase(2, 4096, [[8], [3000, 16], [4096], [], [3900], [1 << 20], [4, 4, 4]])
TP_SAME = REGISTER["TP-SAME"]


def verdict(system, case=CASE):
    events = []
    broadcast(case, system, events.append)
    assert len(events) == len(case.items)
    return judge(events, [TP_SAME])["TP-SAME"]


class OneBehind(ReferenceBroadcast):
    """Rank 1 answers with the message before."""

    def reader(self, writer, rank):
        reader = super().reader(writer, rank)
        if rank != 1:
            return reader

        class Late(RingReader):
            def __init__(self):
                self.before = None

            def receive(self, allocate):
                now, self.before = self.before, reader.receive(allocate)
                return now or self.before

            def close(self):
                reader.close()

        return Late()


class HalfAChunk(ReferenceBroadcast):
    """What is over half a chunk goes over the sockets."""

    def send(self, case):
        return super().send(replace(case, chunk_bytes=case.chunk_bytes // 2))


def test_every_rank_holds_what_was_sent():
    assert verdict(ReferenceBroadcast()).outcome is Outcome.HOLDS


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (OneBehind, "rank 1 holds"),
        (HalfAChunk, "1 went into the ring and 3184 over each rank's socket, not 3184 and 0"),
    ],
)
def test_a_ring_that_does_otherwise_is_found_out(planted, says):
    found = verdict(planted())
    assert found.outcome is Outcome.VIOLATED
    assert says in found.first.told


def test_processes_are_judged_by_the_same_statement():
    events = []
    with TpGroup(2, RingOptions(chunk_bytes=CASE.chunk_bytes, timeout_s=30)) as group:
        for number in range(len(CASE.items)):
            plan = plan_of(CASE, number)
            sent, result = digest_of(encode(plan).tensors), group.broadcast(plan)
            told = (
                result.size.total_bytes,
                CASE.chunk_bytes,
                result.wire.ring_bytes,
                result.wire.socket_bytes_per_reader,
            )
            held = [joined(one) for one in result.digests]
            events.append(PlanReceived(number, "ranks", number, *told, sent, held))
    assert judge(events, [TP_SAME])["TP-SAME"].outcome is Outcome.HOLDS
