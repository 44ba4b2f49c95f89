"""An EC connector that pulls (vLLM's CPU connector over NIXL): consumers read embeddings out of producers' host memory.

A request says by which producer each of its items is served (`Request.ec_offers`). Before it is scheduled, the connector reads what
is missing into host copies of its own, and the request waits; others go on. A read that is refused is over, one that is not ready
is asked again. An item that cannot be had is encoded here if its request brought something to encode; else that request fails,
alone. The owner sets `now_ms`, sends what `take_asked`, `take_begun` and `take_grants` name, and hands in what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from epdsim.core.ec.connector import NOTHING_FAILED, EcStep, TimedConnector, has_input
from epdsim.core.ec.host import HostCache
from epdsim.core.ec.read import PullTimes, Reads
from epdsim.core.ec.serve import ANNOUNCED, Grant, Leases
from epdsim.core.items import MediaFeature
from epdsim.core.request import EcOffer, Request
from epdsim.core.rules import IDEAL, Dialect, Rule

Offers = Mapping[str, int | None]
"""Embeddings that a producer announces by identifier; None for an item that it cannot serve."""


def until_all_ready(*, all_ready: bool) -> bool:
    """The time that an item has been waited for counts until all items of its request are ready at once."""
    return all_ready


def until_seen(*, all_ready: bool) -> bool:
    """It starts afresh whenever the item is seen, or an occurrence of it is past: vLLM 0.32.

    Items that push each other out, and an item that stands twice in a prompt, can be waited for without an end.
    """
    del all_ready
    return True


WAIT: Rule[Callable[..., bool]] = Rule(
    "ec_pull.wait",
    "What a request waits for comes within a bound, or the request fails (LIVE-WAIT).",
    source="vLLM PR 55290; read in vLLM 0.32.0",
    ideal=until_all_ready,
)


def keep_counted(identifier: str) -> str | None:
    """A copy that a plan counts on stays until the plan is told."""
    return identifier


def keep_none(_identifier: str) -> str | None:
    """Room for what the plan saves may be made of it: vLLM 0.32."""
    return None


COUNTED: Rule[Callable[[str], str | None]] = Rule(
    "ec_pull.counted",
    "A host copy that a plan counts on is not pushed out by what the same plan saves (ENC-HIT).",
    source="found by the properties; vLLM 0.32.0, whose host copies are, with role both",
    ideal=keep_counted,
)


def same_number(num_copied: int, num_embeds: int) -> bool:
    """Whether a copy serves an item that needs so many embeddings."""
    return num_copied == num_embeds


def any_number(_num_copied: int, _num_embeds: int) -> bool:
    """By identifier alone: vLLM 0.32."""
    return True


NUMBER: Rule[Callable[[int, int], bool]] = Rule(
    "ec_pull.number",
    "A host copy never serves an item of the same identifier that needs another number of embeddings (ENC-KEY).",
    source="vLLM PR 57696, for the encoder cache; read in vLLM 0.32.0, whose host copies do",
    ideal=same_number,
)


def all_together(_num_embeds: int, num_together: int) -> int:
    """Room that an item can be had in: that of all items which its request still needs, for it waits until all are here."""
    return num_together


def each_alone(num_embeds: int, _num_together: int) -> int:
    """Its own: items that do not fit together push each other out until the time is up, or for ever: vLLM 0.32."""
    return num_embeds


TOGETHER: Rule[Callable[[int, int], int]] = Rule(
    "ec_pull.together",
    "A request whose items do not fit into the host copies together does not wait for them (LIVE-WAIT).",
    source="found by random fleets; vLLM 0.32.0",
    ideal=all_together,
)


def keep_for_first() -> bool:
    """Whether copies of those that ask first stay until the step is planned, so that in the end they have all of theirs."""
    return True


def keep_for_nobody() -> bool:
    """The copy that was ready first goes, whoever waits with it: requests push out each other's, and their own: vLLM 0.32."""
    return False


FIRST: Rule[Callable[[], bool]] = Rule(
    "ec_pull.first",
    "A host copy that a request needs is not pushed out by what it, or one that asks after it, begins to read (LIVE-WAIT).",
    source="found by random fleets; vLLM 0.32.0",
    ideal=keep_for_first,
)


class PullConnector(TimedConnector):
    """One engine's side.

    Args:
        role: `"producer"`, `"consumer"` or `"both"`.
        capacity: Embeddings that fit into its host copies.
        times: Bounds of every wait.
        dialect: Rules `ec_pull.*`.
    """

    __slots__ = (
        "_announces",
        "_counted",
        "_ended",
        "_failed",
        "_keeps",
        "_keeps_first",
        "_loads",
        "_restarts",
        "_room",
        "_saves",
        "_serves",
        "_since_ms",
        "copies",
        "leases",
        "reads",
        "times",
    )

    def __init__(self, role: str, capacity: int, times: PullTimes | None = None, dialect: Dialect = IDEAL) -> None:
        super().__init__(role, dialect)
        self.times = times or PullTimes()
        self._announces, self._restarts, self._serves = dialect[ANNOUNCED], dialect[WAIT], dialect[NUMBER]
        self._keeps, self._room, self._keeps_first = dialect[COUNTED], dialect[TOGETHER], dialect[FIRST]()
        self.copies = HostCache(capacity)
        self.reads = Reads(self.copies, self.times, dialect)
        self.leases = Leases(self.copies, self.times.lease_ms)
        self._since_ms: dict[tuple[str, str], float] = {}
        self._failed: dict[str, str] = {}
        self._loads: dict[str, None] = {}
        self._saves: dict[str, None] = {}
        self._counted: set[str] = set()
        self._ended: list[Request] = []

    @property
    def is_busy(self) -> bool:
        """Whether a read, a lease, a copy or a wait is under way."""
        return bool(
            self._since_ms
            or self._failed
            or self._ended
            or self.reads.is_busy
            or self.leases.is_busy
            or not self.copies.is_idle
        )

    def ready(self, request: Request, num_computed: int) -> bool:
        """Whether every item that is still needed is here, or is to be encoded here; begins to read what is not."""
        if not self._is_consumer:
            return True
        self._look()
        if not self._offers(request):
            return True
        is_waiting = False
        for feature in request.mm_features:
            problem = self._problem(request, feature, num_computed)
            if problem is None:
                is_waiting = True
            elif problem and not self._gives_up(request, feature, problem):
                return False
        if not is_waiting:
            self._stop_clocks(request, request.mm_features, all_ready=True)
        return not is_waiting

    def holds(self, request: Request, index: int) -> bool:
        """Whether the embedding is among the host copies; if it is, the plan counts on it."""
        feature = request.mm_features[index]
        if not self._is_consumer or not self._has_copy(feature):
            return False
        kept = self._keeps(feature.identifier)
        if kept is not None and self._is_producer:
            self._count_on(kept)
        return True

    def allocated(self, request: Request, index: int) -> None:
        """Load a copy that is here; make room for one that a producer is about to encode."""
        feature = request.mm_features[index]
        identifier, num_embeds = feature.identifier, feature.position.num_embeds
        if self._is_producer and self.copies.get(identifier) is None and self.copies.take(identifier, num_embeds):
            self._saves[identifier] = None
        if self._is_consumer and identifier not in self._loads and self._has_copy(feature):
            self.copies.pin(identifier)
            self._loads[identifier] = None

    def withdrawn(self, identifier: str) -> None:
        """What will not be encoded is not saved."""
        if identifier in self._saves:
            del self._saves[identifier]
            self.copies.discard(identifier)

    def ended(self, request: Request) -> None:
        """Nobody waits for its items any more; a producer announces them."""
        for feature in request.mm_features:
            self._since_ms.pop((request.request_id, feature.identifier), None)
            self._given_up.discard((request.request_id, feature.identifier))
        if self._is_producer and request.mm_features:
            self._ended.append(request)

    def reset(self) -> None:
        """Drop all copies that are neither written nor read."""
        self.copies.drop_ready()

    def take_step(self, freed: Collection[str]) -> EcStep:
        """Loads and saves."""
        del freed
        self._fresh = True
        self.reads.step_planned()
        step = EcStep(tuple(self._loads), tuple(self._saves))
        self._loads, self._saves = {}, {}
        for identifier in sorted(self._counted):
            self.copies.unpin(identifier)
        self._counted.clear()
        return step

    def take_failed(self) -> Mapping[str, str]:
        """Requests that brought nothing to encode instead."""
        if not self._failed:
            return NOTHING_FAILED
        failed, self._failed = self._failed, {}
        return failed

    def saved(self, identifiers: Iterable[str]) -> None:
        """Workers have copied out what they encoded."""
        for identifier in identifiers:
            entry = self.copies.get(identifier)
            if entry is not None and not entry.is_ready:
                self.copies.publish(identifier)

    def loaded(self, identifiers: Iterable[str]) -> None:
        """Workers have brought in what a step told them to load."""
        for identifier in identifiers:
            self.copies.unpin(identifier)

    def take_asked(self) -> Sequence[tuple[str, str]]:
        """`(producer, identifier)` of what is to be asked for; the answer goes to `reads.answered`."""
        asked, self.reads.asked = self.reads.asked, []
        return asked

    def take_begun(self) -> Sequence[tuple[str, str]]:
        """The same of reads that begin; their end goes to `reads.ended`, and to the producer's `leases.read`."""
        begun, self.reads.begun = self.reads.begun, []
        return begun

    def take_grants(self) -> Sequence[Grant]:
        """Answers to those who asked; once per step, after it is planned."""
        return self.leases.answer(self.now_ms)

    def take_announced(self) -> Mapping[str, Offers]:
        """What a producer's requests that have ended offer, by request; those whose copies are not complete are told later."""
        told: dict[str, Offers] = {}
        later: list[Request] = []
        for request in self._ended:
            names = dict.fromkeys(feature.identifier for feature in request.mm_features)
            entries = {name: self.copies.get(name) for name in names}
            if all(entry is None or self._announces(entry) for entry in entries.values()):
                told[request.request_id] = {
                    name: None if entry is None else entry.num_embeds for name, entry in entries.items()
                }
            else:
                later.append(request)
        self._ended = later
        return told

    def clone(self) -> PullConnector:
        """An independent copy."""
        other = PullConnector(self.role, self.copies.capacity, self.times, self._dialect)
        self._copy_to(other)
        other.copies = self.copies.clone()
        other.reads, other.leases = self.reads.clone(other.copies), self.leases.clone(other.copies)
        other._since_ms = dict(self._since_ms)
        other._failed, other._loads, other._saves = dict(self._failed), dict(self._loads), dict(self._saves)
        other._counted, other._ended = set(self._counted), list(self._ended)
        return other

    def fingerprint(self) -> object:
        """All that decides what it does next; times as distances from now."""
        waits = [(key, self.now_ms - since_ms) for key, since_ms in self._since_ms.items()]
        parts = (self.copies.fingerprint(), self.reads.fingerprint(self.now_ms), self.leases.fingerprint(self.now_ms))
        rest = (
            sorted(self._given_up),
            list(self._failed),
            list(self._loads),
            list(self._saves),
            sorted(self._counted),
            self._fresh,
        )
        return parts, waits, rest, [request.request_id for request in self._ended]

    def _take_in(self) -> None:
        self.reads.look(self.now_ms)

    def _count_on(self, identifier: str) -> None:
        """Keep a copy until the step is planned."""
        if identifier not in self._counted:
            self._counted.add(identifier)
            self.copies.pin(identifier)

    def _has_copy(self, feature: MediaFeature) -> bool:
        entry = self.copies.get(feature.identifier)
        return entry is not None and entry.is_ready and self._serves(entry.num_embeds, feature.position.num_embeds)

    def _stop_clocks(self, request: Request, features: Sequence[MediaFeature], *, all_ready: bool) -> None:
        if self._since_ms and self._restarts(all_ready=all_ready):
            for feature in features:
                self._since_ms.pop((request.request_id, feature.identifier), None)

    def _offers(self, request: Request) -> Mapping[str, EcOffer]:
        """The offers of a request that have not been given up."""
        offers = request.ec_offers or {}
        if not self._given_up:
            return offers
        name = request.request_id
        return {key: offer for key, offer in offers.items() if (name, key) not in self._given_up}

    def _problem(self, request: Request, feature: MediaFeature, num_computed: int) -> str | None:
        """Why an item cannot be had; empty when it is here or not to be read, None while it must be waited for."""
        identifier, key = feature.identifier, (request.request_id, feature.identifier)
        is_past = feature.position.end <= num_computed
        if is_past or self._has_copy(feature):
            if self._keeps_first and not is_past:
                self._count_on(identifier)
            self._stop_clocks(request, (feature,), all_ready=False)
            return ""
        offer = self._offers(request).get(identifier)
        if offer is None or offer.peer is None:
            return ""
        if self.now_ms - self._since_ms.setdefault(key, self.now_ms) > self.times.wait_ms:
            return f"it was not there after {self.times.wait_ms / 1000:g} s"
        if identifier in self.reads.failed and not self.reads.is_pending(identifier):
            self.reads.failed.discard(identifier)
            return "its producer refused it, or reading it failed or outlasted the lease"
        if self.reads.is_pending(identifier):
            return None
        return self._start(feature, offer.peer, offer.num_embeds, self._num_together(request, num_computed))

    def _num_together(self, request: Request, num_computed: int) -> int:
        """Embeddings of the items that a request still needs and producers have."""
        sizes = {
            feature.identifier: feature.position.num_embeds
            for feature in request.mm_features
            if feature.position.end > num_computed
        }
        return sum(sizes.get(name, 0) for name, offer in self._offers(request).items() if offer.peer is not None)

    def _start(self, feature: MediaFeature, producer: str, offered: int, num_together: int) -> str | None:
        """Begin to read an item; why that cannot be, or None."""
        identifier, num_embeds = feature.identifier, feature.position.num_embeds
        entry = self.copies.get(identifier)
        if entry is not None and entry.is_ready:
            return f"the copy that is here has {entry.num_embeds} embeddings and it needs {num_embeds}"
        if entry is not None:
            return None  # a read that was given up may still write there
        if offered != num_embeds:
            return f"its producer has {offered} embeddings and it needs {num_embeds}"
        if self._room(num_embeds, num_together) > self.copies.capacity:
            others = f" with the {num_together - num_embeds} of the request's other items" * (num_together > num_embeds)
            return f"its {num_embeds} embeddings do not fit into the {self.copies.capacity} of the host copies{others}"
        self.reads.start(producer, identifier, num_embeds, self.now_ms)
        return None

    def _gives_up(self, request: Request, feature: MediaFeature, problem: str) -> bool:
        """Encode the item here, if its request brought something to encode; else let the request fail."""
        key = (request.request_id, feature.identifier)
        self._since_ms.pop(key, None)
        if has_input(feature):
            self._given_up.add(key)
            return True
        self._failed[request.request_id] = f"no embedding of {feature.identifier!r}: {problem}"
        return False
