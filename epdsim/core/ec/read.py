"""Reads of one consumer from other engines' host copies: asked, granted, under way, done, or stuck.

Times run by the owner's clock. What comes back is taken in when the scheduler first asks in a step, as the release polls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from epdsim.core.ec.host import HostCache
from epdsim.core.ec.serve import Answer
from epdsim.core.records import record
from epdsim.core.rules import Dialect, Rule

NEVER_MS = float("inf")


@record
class PullTimes:
    """Bounds of an EC connector that pulls, by default those of vLLM 0.32.

    Attributes:
        wait_ms: How long one item of a request may be waited for, over all attempts.
        answer_ms: How long a consumer waits for an answer before it asks again.
        read_ms: How long a read may take before its room is set apart.
        quarantine_ms: How long room that a stuck read may still write stays set apart.
        lease_ms: How long a producer keeps what it granted.
    """

    wait_ms: float = 60_000
    answer_ms: float = 30_000
    read_ms: float = 20_000
    quarantine_ms: float = 60_000
    lease_ms: float = 30_000


class ReadState(Enum):
    """How far a read is."""

    ASKED = "asked"
    READING = "reading"
    STUCK = "stuck"
    """It took too long and cannot be broken off: its room must not be used again yet."""
    OVER = "over"
    """It was stuck, and its room is free with the next look."""


@dataclass(slots=True)
class Read:
    """One read.

    Attributes:
        deadline_ms: When the state that it is in has lasted too long.
        until_ms: When the producer's lease ends.
        ended_ms: When its transport was done; None before.
        is_good: Whether the transport then said that all went well.
    """

    deadline_ms: float
    state: ReadState = ReadState.ASKED
    until_ms: float = NEVER_MS
    ended_ms: float | None = None
    is_good: bool = True


@dataclass(slots=True)
class Peer:
    """What a consumer has to do with one producer."""

    reads: dict[str, Read] = field(default_factory=dict[str, Read])
    stuck: dict[str, Read] = field(default_factory=dict[str, Read])
    answers: list[tuple[str, Answer, float]] = field(default_factory=list[tuple[str, Answer, float]])
    is_lost: bool = False


def within_lease(ended_ms: float, until_ms: float) -> bool:
    """Whether what was read was still the producer's to give."""
    return ended_ms <= until_ms


def any_time(_ended_ms: float, _until_ms: float) -> bool:
    """Use whatever was read; the consumer is not told when the lease ends: vLLM 0.32."""
    return True


def keep_watch() -> bool:
    """Wait for the end of reads that were under way."""
    return True


def forget_reads() -> bool:
    """Forget them with the producer, and never use their room again: vLLM 0.32."""
    return False


LEASE: Rule[Callable[[float, float], bool]] = Rule(
    "ec_pull.lease",
    "A read that ended after the producer's lease is not used: the producer may have given the room to another embedding.",
    source="EC-READY, ENC-KEY; read in vLLM 0.32.0",
    ideal=within_lease,
)
LOST: Rule[Callable[[], bool]] = Rule(
    "ec_pull.lost",
    "Room that a read from a lost producer may still write comes back, once the read has ended or its time is up.",
    source="EC-SYNC, LIVE-WAIT; read in vLLM 0.32.0",
    ideal=keep_watch,
)


class Reads:
    """All reads of one consumer.

    Args:
        copies: The engine's host copies, which reads fill.
        times: Bounds.
        dialect: Rules `ec_pull.lease` and `ec_pull.lost`.

    Attributes:
        failed: Identifiers whose read failed for good, until somebody has been told.
        asked: `(producer, identifier)` of requests to send.
        begun: The same of reads to begin.
    """

    __slots__ = (
        "_completed",
        "_copies",
        "_dialect",
        "_in_time",
        "_keeps_watch",
        "_peers",
        "_times",
        "asked",
        "begun",
        "failed",
    )

    def __init__(self, copies: HostCache, times: PullTimes, dialect: Dialect) -> None:
        self._copies, self._times, self._dialect = copies, times, dialect
        self._in_time, self._keeps_watch = dialect[LEASE], dialect[LOST]
        self._peers: dict[str, Peer] = {}
        self._completed: set[str] = set()
        self.failed: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.begun: list[tuple[str, str]] = []

    @property
    def is_busy(self) -> bool:
        """Whether a read is under way or stuck, or word of one has not been looked at."""
        return any(peer.reads or peer.stuck or peer.answers or peer.is_lost for peer in self._peers.values())

    def is_pending(self, identifier: str) -> bool:
        """Whether a read of it is under way, or has ended in this step."""
        return identifier in self._completed or any(identifier in peer.reads for peer in self._peers.values())

    def start(self, producer: str, identifier: str, num_embeds: int, now_ms: float) -> bool:
        """Ask for an embedding, when there is room for it."""
        if not self._copies.take(identifier, num_embeds):
            return False
        peer = self._peers.setdefault(producer, Peer())
        peer.reads[identifier] = Read(now_ms + self._times.answer_ms)
        self.asked.append((producer, identifier))
        return True

    def answered(self, producer: str, identifier: str, answer: Answer, until_ms: float) -> None:
        """A producer's word has come; unasked and double words are passed over when they are looked at."""
        peer = self._peers.get(producer)
        if peer is not None:
            peer.answers.append((identifier, answer, until_ms))

    def ended(self, producer: str, identifier: str, now_ms: float, *, is_good: bool) -> None:
        """The transport is done with a read; late words are passed over."""
        peer = self._peers.get(producer)
        if peer is None:
            return
        for reads in (peer.reads, peer.stuck):
            read = reads.get(identifier)
            if read is not None and read.state is not ReadState.ASKED and read.ended_ms is None:
                read.ended_ms, read.is_good = now_ms, is_good

    def lost(self, producer: str) -> None:
        """A producer is gone."""
        if producer in self._peers:
            self._peers[producer].is_lost = True

    def look(self, now_ms: float) -> None:
        """Take in what has come back, and what is overdue; those of lost producers first."""
        peers = list(self._peers.items())
        completed = {producer: self._look_at(producer, peer, now_ms) for producer, peer in peers}
        for producer, peer in sorted(peers, key=lambda one: not one[1].is_lost):
            if peer.is_lost:
                self._drop(producer, peer, now_ms)
            for identifier in completed[producer]:
                self._copies.publish(identifier)
                self._completed.add(identifier)

    def step_planned(self) -> None:
        """Reads that ended in the step count as copies from now on."""
        self._completed.clear()

    def clone(self, copies: HostCache) -> Reads:
        """An independent copy on a copy of the host copies."""
        other = Reads(copies, self._times, self._dialect)
        other._peers = {name: _copy(peer) for name, peer in self._peers.items()}
        other._completed, other.failed = set(self._completed), set(self.failed)
        other.asked, other.begun = list(self.asked), list(self.begun)
        return other

    def fingerprint(self, now_ms: float) -> object:
        """All that decides what it does next."""

        def told(reads: dict[str, Read]) -> object:
            return [
                (
                    name,
                    one.state.value,
                    one.deadline_ms - now_ms,
                    one.until_ms - now_ms,
                    one.ended_ms and one.ended_ms - now_ms,
                    one.is_good,
                )
                for name, one in reads.items()
            ]

        peers = [
            (name, told(peer.reads), told(peer.stuck), repr(peer.answers), peer.is_lost)
            for name, peer in self._peers.items()
        ]
        return peers, sorted(self._completed), sorted(self.failed), self.asked, self.begun

    def _look_at(self, producer: str, peer: Peer, now_ms: float) -> list[str]:
        """One producer's reads; identifiers whose read has come to a good end."""
        for identifier, answer, until_ms in peer.answers:
            self._take_answer(producer, peer, identifier, answer, until_ms, now_ms)
        peer.answers = []
        completed = [name for name in list(peer.reads) if self._advance(peer, name, now_ms)]
        for identifier in [name for name, read in peer.stuck.items() if self._is_over(read, now_ms)]:
            del peer.stuck[identifier]
            self._copies.discard(identifier)
        return sorted(completed)

    def _take_answer(
        self, producer: str, peer: Peer, identifier: str, answer: Answer, until_ms: float, now_ms: float
    ) -> None:
        read = peer.reads.get(identifier)
        if read is None or read.state is not ReadState.ASKED:
            return
        if answer is Answer.GRANTED:
            read.state, read.until_ms, read.deadline_ms = ReadState.READING, until_ms, now_ms + self._times.read_ms
            self.begun.append((producer, identifier))
            return
        del peer.reads[identifier]
        self._copies.discard(identifier)
        if answer is not Answer.NOT_READY:
            self.failed.add(identifier)

    def _advance(self, peer: Peer, identifier: str, now_ms: float) -> bool:
        """One read by the clock; whether it has just come to a good end."""
        read = peer.reads[identifier]
        if read.ended_ms is None and now_ms <= read.deadline_ms:
            return False
        del peer.reads[identifier]
        if read.state is ReadState.ASKED:
            self._copies.discard(identifier)  # asked again as long as a request has time to wait
        elif read.ended_ms is None:
            self._set_apart(peer, identifier, read, now_ms)
        elif read.is_good and self._in_time(read.ended_ms, read.until_ms):
            return True
        else:
            self._copies.discard(identifier)
            self.failed.add(identifier)
        return False

    def _set_apart(self, peer: Peer, identifier: str, read: Read, now_ms: float) -> None:
        read.state, read.deadline_ms = ReadState.STUCK, now_ms + self._times.quarantine_ms
        peer.stuck[identifier] = read
        self.failed.add(identifier)

    @staticmethod
    def _is_over(read: Read, now_ms: float) -> bool:
        """Whether the room of a stuck read is free."""
        if read.state is ReadState.OVER:
            return True
        if now_ms > read.deadline_ms:
            read.state = ReadState.OVER
            return False
        return read.ended_ms is not None

    def _drop(self, producer: str, peer: Peer, now_ms: float) -> None:
        """A producer is gone: what was asked may be asked again, what is being read may still be written."""
        for identifier, read in list(peer.reads.items()):
            del peer.reads[identifier]
            if read.state is ReadState.ASKED:
                self._copies.discard(identifier)
            else:
                self._set_apart(peer, identifier, read, now_ms)
        peer.is_lost = False
        if not peer.stuck or not self._keeps_watch():
            del self._peers[producer]


def _copy(peer: Peer) -> Peer:
    return Peer(
        {name: replace(read) for name, read in peer.reads.items()},
        {name: replace(read) for name, read in peer.stuck.items()},
        list(peer.answers),
        peer.is_lost,
    )
