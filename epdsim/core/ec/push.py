"""An EC connector that is pushed to (vLLM's Mooncake connector): the consumer is chosen first, producers write into its buffers.

A request names the transfer that brings each of its items (`Request.ec_offers`). Until they have come it waits; others go on. What
came is loaded with the step that takes its room in the encoder cache. A transfer that does not come in time is over for good, and
its request is encoded here, if it brought something to encode, or fails, alone. A producer's requests name the consumer; embeddings
are pushed once they are encoded. The owner sets `now_ms`, carries pushes, and hands in what came and what was loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from epdsim.core.ec.connector import NOTHING_FAILED, EcStep, TimedConnector, has_input
from epdsim.core.ec.transfers import HERE, Transfers, TransferState
from epdsim.core.items import MediaFeature
from epdsim.core.records import record
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect, Rule


@record
class PushTimes:
    """Bounds of an EC connector that is pushed to, by default those of vLLM 0.32.

    Attributes:
        wait_ms: How long a push is awaited, and how long a load may take.
        keep_ms: How long what came is kept for somebody to want it.
    """

    wait_ms: float = 60_000
    keep_ms: float = 300_000


@record
class Push:
    """An embedding that a producer is to push once it is encoded."""

    consumer: str
    name: str
    identifier: str
    num_embeds: int


def encode_here(feature: MediaFeature) -> bool:
    """Whether an item that no transfer brings, or whose transfer failed, is encoded here."""
    return has_input(feature)


def never_here(_feature: MediaFeature) -> bool:
    """A consumer encodes nothing: the request waits out its time for a push that nobody makes, and fails: vLLM 0.32."""
    return False


LOCAL: Rule[Callable[[MediaFeature], bool]] = Rule(
    "ec_push.local",
    "An item that came with its payload is encoded here when no transfer brings it.",
    source="vLLM PR 55290, of the connector that pulls; read in vLLM 0.32.0",
    ideal=encode_here,
)


def with_its_room() -> bool:
    """Whether what came waits in the buffers until a step takes its room in the encoder cache."""
    return True


def ahead_of_its_room() -> bool:
    """It is loaded once somebody asks, whether there is room or not, and its request waits until it is: vLLM 0.32.

    What workers hold can exceed the encoder cache, and stays there when the request ends before it is admitted.
    """
    return False


ROOM: Rule[Callable[[], bool]] = Rule(
    "ec_push.room",
    "An embedding that was pushed is loaded with the step that takes its room in the encoder cache (ENC-CONS, EC-SYNC).",
    source="found by random fleets; read in vLLM 0.32.0",
    ideal=with_its_room,
)


class PushConnector(TimedConnector):
    """One engine's side.

    Args:
        role: `"producer"`, `"consumer"` or `"both"`.
        capacity: Embeddings that the buffers may keep after the encoder cache dropped them.
        times: Bounds of every wait.
        dialect: Rules `ec_push.*`.
    """

    __slots__ = (
        "_arrived",
        "_cancelled",
        "_is_here",
        "_is_local",
        "_loads_with_room",
        "_local",
        "_prepared",
        "_pushes",
        "capacity",
        "times",
        "transfers",
    )

    def __init__(self, role: str, capacity: int, times: PushTimes | None = None, dialect: Dialect = IDEAL) -> None:
        super().__init__(role, dialect)
        self.capacity, self.times = capacity, times or PushTimes()
        self._is_local, self._loads_with_room = dialect[LOCAL], dialect[ROOM]()
        self.transfers = Transfers(self.times.keep_ms, capacity)
        self._is_here: set[str] = set()
        self._arrived: list[tuple[str, str, int]] = []
        self._cancelled: list[str] = []
        self._local: set[tuple[str, str]] = set()
        self._prepared: set[str] = set()
        self._pushes: dict[str, Push] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is awaited or under way."""
        return bool(self._arrived or self.transfers.is_busy)

    def ready(self, request: Request, num_computed: int) -> bool:
        """Whether every item that is still needed has come, or is to be encoded here."""
        needed = [(index, one) for index, one in enumerate(request.mm_features) if one.position.end > num_computed]
        if self._is_producer:
            for index, _ in needed:
                self._prepare(request, index)
        if not self._is_consumer:
            return True
        self._look()
        waits = [self._waits(request, index, feature) for index, feature in needed]
        return not any(waits)

    def holds(self, request: Request, index: int) -> bool:
        """Whether the embedding came by some transfer."""
        if not self._is_consumer:
            return False
        self._look()
        return self.transfers.find(request.mm_features[index].identifier, *HERE) is not None

    def allocated(self, request: Request, index: int) -> None:
        """The encoder cache has an entry of it from now on; a producer pushes what it encodes."""
        identifier = request.mm_features[index].identifier
        # What was evicted in this very step, and is back, workers still hold: it is not named among what they drop.
        if self._loads_with_room and self._is_consumer and identifier not in self._is_here:
            self.transfers.load(identifier, self._name(request, index), request.request_id)
        self._is_here.add(identifier)
        if self._is_producer:
            self._prepare(request, index)

    def released(self, request: Request, index: int) -> None:
        """Its transfer is wanted no more."""
        if self._is_consumer:
            self._cancel_of(request, index)

    def withdrawn(self, identifier: str) -> None:
        """The encoder cache has no entry of it."""
        self._is_here.discard(identifier)

    def ended(self, request: Request) -> None:
        """Its transfers are wanted no more."""
        for index, feature in enumerate(request.mm_features):
            if self._is_consumer:
                self._cancel_of(request, index)
            for keys in (self._given_up, self._local):
                keys.discard((request.request_id, feature.identifier))
            self._prepared.discard(self._name(request, index) or f"{request.request_id}:{index}")

    def reset(self) -> None:
        """Forget what was loaded or kept."""
        self._is_here.clear()
        self.transfers.forget_loaded(self.now_ms)

    def take_step(self, freed: Collection[str]) -> EcStep:
        """Loads; what the encoder cache drops is kept in the buffers while there is room."""
        for identifier in freed:
            self._is_here.discard(identifier)
            self.transfers.dropped(identifier, self.now_ms)
        for name in self.transfers.orphans:
            self._cancel(name)
        self.transfers.orphans = []
        self._fresh = True
        return EcStep(tuple(self.transfers.take_loads()))

    def take_failed(self) -> Mapping[str, str]:
        """Requests one of whose transfers will not come."""
        if not self.transfers.lost:
            return NOTHING_FAILED
        self._give_up()
        lost, self.transfers.lost = self.transfers.lost, {}
        return {request_id: reason for (request_id, _), reason in lost.items()}

    def came(self, name: str, identifier: str, num_embeds: int) -> None:
        """A producer has written all of an embedding into the buffers."""
        self._arrived.append((name, identifier, num_embeds))

    def loaded(self, identifier: str, *, is_good: bool = True) -> None:
        """Workers have loaded what a step told them to, or could not."""
        self.transfers.loaded(identifier, self.now_ms, is_good=is_good)

    def take_pushes(self) -> Sequence[Push]:
        """What is to be pushed once it is encoded, after a step is planned."""
        pushes, self._pushes = list(self._pushes.values()), {}
        return pushes

    def take_cancelled(self) -> Sequence[str]:
        """Names of transfers whose buffers are to be freed."""
        cancelled, self._cancelled = self._cancelled, []
        return cancelled

    def clone(self) -> PushConnector:
        """An independent copy."""
        other = PushConnector(self.role, self.capacity, self.times, self._dialect)
        self._copy_to(other)
        other.transfers = self.transfers.clone()
        other._is_here, other._local, other._prepared = set(self._is_here), set(self._local), set(self._prepared)
        other._arrived, other._cancelled, other._pushes = list(self._arrived), list(self._cancelled), dict(self._pushes)
        return other

    def fingerprint(self) -> object:
        """All that decides what it does next; times as distances from now."""
        sets = [sorted(one) for one in (self._is_here, self._given_up, self._local, self._prepared)]
        return self.transfers.fingerprint(self.now_ms), sets, self._arrived, self._cancelled, list(self._pushes)

    def _take_in(self) -> None:
        for name in self.transfers.expire(self.now_ms):
            self._cancel(name)
        for name, identifier, num_embeds in self._arrived:
            self.transfers.came(name, identifier, num_embeds, self.now_ms)
        self._arrived = []

    def _waits(self, request: Request, index: int, feature: MediaFeature) -> bool:
        """Whether a needed item is not here yet."""
        transfers, identifier, now_ms = self.transfers, feature.identifier, self.now_ms
        name, key = self._name(request, index), (request.request_id, feature.identifier)
        if name is not None:
            transfers.wanted(name, now_ms)
        at_hand = HERE if self._loads_with_room else (TransferState.LOADED,)
        if identifier in self._is_here or transfers.find(identifier, *at_hand) or key in self._given_up:
            return False
        deadline_ms = now_ms + self.times.wait_ms
        if not self._loads_with_room and (
            transfers.find(identifier, TransferState.LOADING)
            or transfers.load(identifier, name, request.request_id, deadline_ms)
        ):
            return True
        if self._is_local(feature):
            if name is None:
                return False
            self._local.add(key)
        transfer = transfers.wait(name or f"{request.request_id}:{index}", request.request_id, identifier, deadline_ms)
        overdue = transfer is not None and transfer.deadline_ms is not None and now_ms >= transfer.deadline_ms
        if transfer is not None and transfer.state is TransferState.AWAITED and overdue:
            transfers.miss(transfer, now_ms)
        self._give_up()
        return key not in self._given_up

    def _give_up(self) -> None:
        """Encode here what will not come and came with its payload."""
        for key in [one for one in self.transfers.lost if one in self._local]:
            del self.transfers.lost[key]
            self._given_up.add(key)

    def _name(self, request: Request, index: int) -> str | None:
        """The transfer that a request names for an item."""
        offer = (request.ec_offers or {}).get(request.mm_features[index].identifier)
        return None if offer is None else offer.transfer_id

    def _prepare(self, request: Request, index: int) -> None:
        """Push an item that a producer is about to encode, once, to the consumer that its request names."""
        feature = request.mm_features[index]
        offer = (request.ec_offers or {}).get(feature.identifier)
        name = self._name(request, index) or f"{request.request_id}:{index}"
        if offer is None or offer.peer is None or name in self._prepared:
            return
        self._prepared.add(name)
        self._pushes[name] = Push(offer.peer, name, feature.identifier, feature.position.num_embeds)

    def _cancel_of(self, request: Request, index: int) -> None:
        name = self._name(request, index)
        if name is not None:
            self._cancel(name, request.mm_features[index].identifier, request.request_id)

    def _cancel(self, name: str, identifier: str = "", request_id: str = "") -> None:
        if self.transfers.cancel(name, self.now_ms, identifier, request_id):
            self._cancelled.append(name)
