"""Send real plans to real ranks, and compare bytes, contents and times with what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from epdsim.core.errors import InputError
from epdsim.core.plan import StepPlan
from epdsim.core.records import record
from epdsim.cost.broadcast import BroadcastProfile, broadcast_ms
from epdsim.cost.profile import MeasuredCell
from epdsim.payload.drift import Way, host_drift, probe_plans, way
from epdsim.payload.message import MessageSize, encode, message_size
from epdsim.payload.ring import DEFAULT_TIMEOUT_S, RingOptions, WireBytes, wire_bytes
from epdsim.payload.rounds import timed_rounds
from epdsim.payload.tensors import tensor_digests
from epdsim.payload.tp_workers import BroadcastResult, TpGroup

DEFAULT_REPEATS = 25


@record
class PlanBroadcast:
    """One plan, predicted and real.

    Attributes:
        size: The message as predicted from handles alone.
        predicted_wire: Bytes in the ring and per socket as predicted from that.
        wires: What was really written and sent, one per broadcast.
        received_bytes: What each rank really took, per broadcast.
        sender_digests: Of the unique tensors as they were sent.
        rank_digests: By rank, of what it received.
        profile_ms: Time by the profile alone.
        predicted_ms: The same times the host's drift: what is judged.
        times_ms: Sorted real times, one per timed repeat.
    """

    size: MessageSize
    predicted_wire: WireBytes
    wires: tuple[WireBytes, ...]
    received_bytes: tuple[tuple[int, ...], ...]
    sender_digests: tuple[str, ...]
    rank_digests: tuple[tuple[str, ...], ...]
    profile_ms: float
    predicted_ms: float
    times_ms: tuple[float, ...]

    @property
    def are_bytes_equal(self) -> bool:
        """Whether in every broadcast the wire carried, and every rank took, exactly the predicted bytes."""
        taken = {count for counts in self.received_bytes for count in counts}
        return set(self.wires) == {self.predicted_wire} and taken == {self.size.total_bytes}

    @property
    def are_digests_equal(self) -> bool:
        """Whether every rank held exactly the sender's tensors."""
        return all(digests == self.sender_digests for digests in self.rank_digests)

    @property
    def median_ms(self) -> float:
        """Median of the real times."""
        return median(self.times_ms)

    @property
    def is_within_spread(self) -> bool:
        """Whether the predicted time lies between the shortest and the longest real one."""
        return self.times_ms[0] <= self.predicted_ms <= self.times_ms[-1]

    @property
    def is_profile_within_spread(self) -> bool:
        """The same for the profile alone, without the host's drift."""
        return self.times_ms[0] <= self.profile_ms <= self.times_ms[-1]


@record
class RealBroadcastReport:
    """All plans at one number of ranks.

    Attributes:
        readers: Ranks.
        drift: How many times as long as at its calibration the host needs now, at least, by the way that a message goes; 1 within
            the noise, empty when nothing is known of then.
        plans: In the order given.
    """

    readers: int
    drift: Mapping[Way, float]
    plans: tuple[PlanBroadcast, ...]

    @property
    def are_bytes_equal(self) -> bool:
        """Whether every plan's bytes were as predicted."""
        return all(one.are_bytes_equal for one in self.plans)

    @property
    def are_digests_equal(self) -> bool:
        """Whether every rank held the sender's tensors for every plan (TP-SAME)."""
        return all(one.are_digests_equal for one in self.plans)

    @property
    def num_within_spread(self) -> int:
        """Plans whose predicted time lies within the spread of the real ones."""
        return sum(one.is_within_spread for one in self.plans)


def run_real_broadcast(
    plans: Sequence[StepPlan],
    readers: int,
    profile: BroadcastProfile,
    repeats: int = DEFAULT_REPEATS,
    *,
    measured: Sequence[MeasuredCell] = (),
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> RealBroadcastReport:
    """Broadcast every plan to a group of ranks and compare with the prediction.

    A shared host is not always as fast as it was when it was calibrated. Where the calibration's own measurements are given,
    three of its plans are sent along in every round as probes, and predictions are scaled by how their medians compare with
    then.

    After the timed rounds every plan is sent once more and digested by every rank.

    Args:
        plans: Their handles have bytes or tensors behind them.
        readers: Ranks to start.
        profile: Its `chunk_bytes` and `in_band` shape the transport, its constants predict the times.
        repeats: Timed rounds, at least 1.
        measured: Of the profile's record; without it, predictions are the profile's alone.
        timeout_s: As in `RingOptions`.

    Raises:
        InputError: No plans, no ranks or no rounds.
        RankLostError: A rank died or stopped answering.
        TypeError: A handle has no bytes behind it.
    """
    if not plans or repeats < 1:
        raise InputError(f"{len(plans)} plans, {repeats} repeats", "at least one of each is needed")
    options = RingOptions(chunk_bytes=profile.chunk_bytes, timeout_s=timeout_s)
    probes = probe_plans(profile.chunk_bytes) if measured else []
    with TpGroup(readers, options, in_band=profile.in_band) as group:
        (timed,) = timed_rounds([group], [*plans, *probes], repeats)
        digested = [group.broadcast(plan) for plan in plans]
    probes_ms = [[result.total_ms for result in results] for results in timed[len(plans) :]]
    drift = host_drift(measured, readers, probes_ms, profile.chunk_bytes) if measured else {}
    return RealBroadcastReport(
        readers,
        drift,
        tuple(
            _compare(plan, readers, profile, drift, last, repeated)
            for plan, last, repeated in zip(plans, digested, timed, strict=False)
        ),
    )


def _compare(
    plan: StepPlan,
    readers: int,
    profile: BroadcastProfile,
    drift: Mapping[Way, float],
    digested: BroadcastResult,
    repeated: Sequence[BroadcastResult],
) -> PlanBroadcast:
    size = message_size(plan)
    everything = (*repeated, digested)
    profile_ms = broadcast_ms(size.load(readers), profile).total_ms
    return PlanBroadcast(
        size=size,
        predicted_wire=wire_bytes(size.total_bytes, profile.chunk_bytes),
        wires=tuple(result.wire for result in everything),
        received_bytes=tuple(result.received_bytes for result in everything),
        sender_digests=tensor_digests(encode(plan).tensors),
        rank_digests=digested.digests,
        profile_ms=profile_ms,
        predicted_ms=profile_ms * drift.get(way(size, profile.chunk_bytes), 1.0),
        times_ms=tuple(sorted(result.total_ms for result in repeated)),
    )
