"""The producer's side of an EC connector that pulls: who may read what, and until when.

A consumer asks for an embedding. One that is complete is granted: it is pinned until the consumer says that it has read it, or
until the lease ends, whichever comes first. One that is being written is answered with "not ready", which may be asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from epdsim.core.ec.host import HostCache, HostEntry
from epdsim.core.records import record
from epdsim.core.rules import Rule


class Answer(Enum):
    """What a producer says to a consumer that asks."""

    GRANTED = "granted"
    NOT_READY = "not-ready"
    """Its bytes are not complete; the only refusal that may be asked again."""
    MISSING = "missing"
    INCOMPATIBLE = "incompatible"
    """Other model, precision or layout."""


@record
class Grant:
    """An answer, and until when what was granted stays."""

    consumer: str
    identifier: str
    answer: Answer
    until_ms: float = float("inf")


def is_complete(entry: HostEntry) -> bool:
    """Whether an entry may be announced."""
    return entry.is_ready


def is_taken(_entry: HostEntry) -> bool:
    """Announce what is still being written: vLLM 0.32, whose consumers ask again."""
    return True


ANNOUNCED: Rule[Callable[[HostEntry], bool]] = Rule(
    "ec_pull.announced",
    "A producer announces an embedding only once its bytes are complete (EC-READY).",
    source="vLLM PR 47941 (review)",
    ideal=is_complete,
)


class Leases:
    """Reads of the engine's host copies by others.

    Args:
        copies: The engine's.
        lease_ms: How long a granted read keeps its entry at most.
    """

    __slots__ = ("_asked", "_copies", "_read", "_until_ms", "lease_ms")

    def __init__(self, copies: HostCache, lease_ms: float) -> None:
        self.lease_ms = lease_ms
        self._copies = copies
        self._asked: list[tuple[str, str]] = []
        self._read: list[tuple[str, str]] = []
        self._until_ms: dict[tuple[str, str], float] = {}

    @property
    def is_busy(self) -> bool:
        """Whether somebody asks or reads."""
        return bool(self._asked or self._until_ms)

    def asked(self, consumer: str, identifier: str) -> None:
        """A consumer asks; it is answered with the next step."""
        self._asked.append((consumer, identifier))

    def read(self, consumer: str, identifier: str) -> None:
        """A consumer has read what it was granted; late and double words are passed over."""
        self._read.append((consumer, identifier))

    def answer(self, now_ms: float) -> list[Grant]:
        """Answer who asked, take note of who has read, and end leases."""
        grants = [self._answer(consumer, identifier, now_ms) for consumer, identifier in self._asked]
        for key in self._read:
            if self._until_ms.pop(key, None) is not None:
                self._copies.unpin(key[1])
        for key in [key for key, until_ms in self._until_ms.items() if now_ms > until_ms]:
            del self._until_ms[key]
            self._copies.unpin(key[1])
        self._asked, self._read = [], []
        return grants

    def clone(self, copies: HostCache) -> Leases:
        """An independent copy on a copy of the host copies."""
        other = Leases(copies, self.lease_ms)
        other._asked, other._read, other._until_ms = list(self._asked), list(self._read), dict(self._until_ms)
        return other

    def fingerprint(self, now_ms: float) -> object:
        """All that decides what it does next."""
        leases = [(key, until_ms - now_ms) for key, until_ms in self._until_ms.items()]
        return tuple(self._asked), tuple(self._read), leases

    def _answer(self, consumer: str, identifier: str, now_ms: float) -> Grant:
        entry = self._copies.get(identifier)
        if entry is None:
            return Grant(consumer, identifier, Answer.MISSING)
        if not entry.is_ready:
            return Grant(consumer, identifier, Answer.NOT_READY)
        self._copies.pin(identifier)
        key = (consumer, identifier)
        if key in self._until_ms:
            # It asks again for what it still holds: one pin is enough.
            self._copies.unpin(identifier)
        self._until_ms[key] = until_ms = now_ms + self.lease_ms
        return Grant(consumer, identifier, Answer.GRANTED, until_ms)
