"""Transfers that bring embeddings to a consumer, as its scheduler sees them: awaited, here, being loaded, loaded, kept, or over.

A transfer has a name that producer and consumer agreed on; several may bring the same item. What is over is remembered for a while,
so that late and double words revive nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from enum import Enum


class TransferState(Enum):
    """How far a transfer is."""

    AWAITED = "awaited"
    HERE = "here"
    """Its bytes are complete in the consumer's buffers."""
    LOADING = "loading"
    """Workers were told to load it, and have not said whether they could."""
    LOADED = "loaded"
    """It stands in the workers' encoder cache, or does from the step on that is being planned."""
    KEPT = "kept"
    """The encoder cache dropped it, and the buffers still have it."""
    MISSED = "missed"
    EXPIRED = "expired"
    FAILED = "failed"
    CANCELLED = "cancelled"


_OVER = frozenset({TransferState.MISSED, TransferState.EXPIRED, TransferState.FAILED, TransferState.CANCELLED})
HERE = (TransferState.HERE, TransferState.LOADED, TransferState.KEPT)
"""States in which an item need not be encoded."""


@dataclass(slots=True)
class Transfer:
    """One transfer.

    Attributes:
        name: As both sides know it.
        identifier: Of the item.
        request_id: Who waits for it first; empty for nobody yet.
        num_embeds: Embeddings that came; None before.
        deadline_ms: When the state that it is in has lasted too long; None for no bound.
        told: Requests that know that it will not come.
    """

    name: str
    identifier: str
    request_id: str
    state: TransferState = TransferState.AWAITED
    num_embeds: int | None = None
    deadline_ms: float | None = None
    told: set[str] = field(default_factory=set[str])


class Transfers:
    """All transfers of one consumer.

    Args:
        keep_ms: How long what came, and what is over, is remembered.
        capacity: Embeddings that may be kept after the encoder cache dropped them.

    Attributes:
        lost: Why an item will not come, by request and identifier, until the request has been told.
        orphans: Names of kept transfers that were given up, whose buffers are to be freed.
    """

    __slots__ = ("_by_item", "_capacity", "_kept", "_over", "_to_load", "_transfers", "keep_ms", "lost", "orphans")

    def __init__(self, keep_ms: float, capacity: int) -> None:
        self.keep_ms, self._capacity = keep_ms, capacity
        self._transfers: dict[str, Transfer] = {}
        self._by_item: dict[str, list[str]] = {}
        self._kept: OrderedDict[str, None] = OrderedDict()
        self._over: OrderedDict[str, None] = OrderedDict()
        self._to_load: dict[str, None] = {}
        self.lost: dict[tuple[str, str], str] = {}
        self.orphans: list[str] = []

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is awaited, here and not loaded, or being loaded."""
        open_states = {TransferState.AWAITED, TransferState.HERE, TransferState.LOADING}
        return bool(self.lost or self.orphans) or any(one.state in open_states for one in self._transfers.values())

    def find(self, identifier: str, *states: TransferState) -> Transfer | None:
        """The first transfer of an item in one of the states."""
        names = self._by_item.get(identifier, ())
        return next((one for name in names if (one := self._transfers[name]).state in states), None)

    def wait(self, name: str, request_id: str, identifier: str, deadline_ms: float) -> Transfer | None:
        """Await a transfer; None when the name is another item's, of which the request is told."""
        transfer = self._transfers.get(name)
        if transfer is None:
            transfer = self._add(Transfer(name, identifier, request_id, deadline_ms=deadline_ms))
        elif transfer.identifier != identifier:
            self._lose(transfer, request_id, identifier, "is another item's")
            return None
        else:
            transfer.request_id = transfer.request_id or request_id
            if transfer.state in _OVER:
                self._tell(transfer, request_id)
        return transfer

    def came(self, name: str, identifier: str, num_embeds: int, now_ms: float) -> None:
        """The bytes of a transfer are complete; double words and those of what is over are passed over."""
        transfer = self._transfers.get(name) or self._add(Transfer(name, identifier, ""))
        if transfer.state in _OVER:
            return
        if transfer.identifier != identifier:
            if transfer.request_id:
                self._lose(transfer, transfer.request_id, transfer.identifier, "brought another item")
        elif transfer.state is TransferState.AWAITED:
            transfer.num_embeds, transfer.deadline_ms = num_embeds, now_ms + self.keep_ms
            transfer.state = TransferState.HERE

    def wanted(self, name: str, now_ms: float) -> None:
        """Somebody asks for what came: it is kept longer."""
        transfer = self._transfers.get(name)
        if transfer is not None and transfer.state is TransferState.HERE:
            transfer.deadline_ms = now_ms + self.keep_ms

    def load(self, identifier: str, name: str | None, request_id: str, deadline_ms: float | None = None) -> bool:
        """Load an item that came, preferably by the named transfer; False when none did.

        Args:
            identifier: Of the item.
            name: Of the transfer; None where the request names none.
            request_id: Who needs it.
            deadline_ms: Until when workers may be at it; None where the model runs after the load in the same step.
        """
        transfer = self._transfers.get(name) if name is not None else None
        if transfer is None or transfer.identifier != identifier or transfer.state is not TransferState.HERE:
            transfer = self.find(identifier, TransferState.HERE, TransferState.KEPT)
        if transfer is None:
            return False
        transfer.request_id = transfer.request_id or request_id
        transfer.deadline_ms = deadline_ms
        self._move(transfer, TransferState.LOADED if deadline_ms is None else TransferState.LOADING)
        self._to_load[transfer.name] = None
        return True

    def take_loads(self) -> list[str]:
        """Identifiers to load with this step."""
        found = [self._transfers[name] for name in self._to_load if name in self._transfers]
        self._to_load = {}
        with_step = TransferState.LOADED, None
        return [
            one.identifier
            for one in found
            if one.state is TransferState.LOADING or (one.state, one.deadline_ms) == with_step
        ]

    def loaded(self, identifier: str, now_ms: float, *, is_good: bool) -> None:
        """Workers have loaded an item, or could not."""
        transfer = self.find(identifier, TransferState.LOADING)
        if transfer is not None:
            self._move(transfer, TransferState.LOADED if is_good else TransferState.FAILED, now_ms)

    def dropped(self, identifier: str, now_ms: float) -> None:
        """The encoder cache dropped an item: its last transfer keeps the buffer, while there is room."""
        names = self._by_item.get(identifier, ())
        loaded = [one for name in names if (one := self._transfers[name]).state is TransferState.LOADED]
        if loaded:
            for name in list(names):
                other = self._transfers[name]
                if other is not loaded[-1] and other.state in (TransferState.LOADED, TransferState.KEPT):
                    self._move(other, TransferState.EXPIRED, now_ms)
            self._move(loaded[-1], TransferState.KEPT)
        while self._kept and sum(self._transfers[name].num_embeds or 0 for name in self._kept) > self._capacity:
            self._move(self._transfers[next(iter(self._kept))], TransferState.EXPIRED, now_ms)

    def miss(self, transfer: Transfer, now_ms: float) -> None:
        """A transfer did not come in time."""
        self._move(transfer, TransferState.MISSED, now_ms)
        if transfer.request_id:
            self._tell(transfer, transfer.request_id)

    def cancel(self, name: str, now_ms: float, identifier: str = "", request_id: str = "") -> bool:
        """Want a transfer no more, whether it has been heard of or not; False where that changes nothing."""
        transfer = self._transfers.get(name)
        if transfer is not None and identifier and transfer.identifier not in ("", identifier):
            return False
        if transfer is None:
            transfer = self._add(Transfer(name, identifier, request_id))
        if transfer.state in (
            TransferState.CANCELLED,
            TransferState.LOADED,
            TransferState.KEPT,
            TransferState.FAILED,
        ):
            return False
        self._move(transfer, TransferState.CANCELLED, now_ms)
        self._to_load.pop(name, None)
        return True

    def expire(self, now_ms: float) -> list[str]:
        """End what was here, or being loaded, for too long, and forget what has been over for long; names of the former."""
        ended: list[str] = []
        for transfer in list(self._transfers.values()):
            if transfer.deadline_ms is None or transfer.deadline_ms > now_ms:
                continue
            if transfer.state is TransferState.HERE:
                self._move(transfer, TransferState.EXPIRED, now_ms)
                ended.append(transfer.name)
            elif transfer.state is TransferState.LOADING:
                self.miss(transfer, now_ms)
                ended.append(transfer.name)
        while self._over:
            oldest = self._transfers[next(iter(self._over))]
            if oldest.deadline_ms is not None and oldest.deadline_ms > now_ms:
                break
            self._forget(oldest)
        return ended

    def forget_loaded(self, now_ms: float) -> None:
        """What was loaded or kept is worth nothing any more."""
        for transfer in list(self._transfers.values()):
            if transfer.state in (TransferState.LOADED, TransferState.KEPT):
                self._move(transfer, TransferState.EXPIRED, now_ms)

    def clone(self) -> Transfers:
        """An independent copy."""
        other = Transfers(self.keep_ms, self._capacity)
        other._transfers = {name: replace(one, told=set(one.told)) for name, one in self._transfers.items()}
        other._by_item = {identifier: list(names) for identifier, names in self._by_item.items()}
        other._kept, other._over = OrderedDict(self._kept), OrderedDict(self._over)
        other._to_load, other.lost, other.orphans = dict(self._to_load), dict(self.lost), list(self.orphans)
        return other

    def fingerprint(self, now_ms: float) -> object:
        """All that decides what it does next."""
        told = [
            (
                name,
                one.identifier,
                one.request_id,
                one.state.value,
                one.num_embeds,
                one.deadline_ms and one.deadline_ms - now_ms,
                sorted(one.told),
            )
            for name, one in self._transfers.items()
        ]
        return told, self._by_item, list(self._kept), list(self._over), list(self._to_load), self.lost, self.orphans

    def _add(self, transfer: Transfer) -> Transfer:
        self._transfers[transfer.name] = transfer
        self._by_item.setdefault(transfer.identifier, []).append(transfer.name)
        return transfer

    def _tell(self, transfer: Transfer, request_id: str) -> None:
        if request_id not in transfer.told:
            transfer.told.add(request_id)
            self._lose(transfer, request_id, transfer.identifier, "did not bring it in time")

    def _lose(self, transfer: Transfer, request_id: str, identifier: str, why: str) -> None:
        self.lost[request_id, identifier] = f"no embedding of {identifier!r}: transfer {transfer.name!r} {why}"

    def _move(self, transfer: Transfer, state: TransferState, now_ms: float = 0.0) -> None:
        before, transfer.state = transfer.state, state
        if before is TransferState.KEPT:
            del self._kept[transfer.name]
        if state is TransferState.KEPT:
            self._kept[transfer.name] = None
        if state in _OVER:
            transfer.deadline_ms = now_ms + self.keep_ms
            self._over[transfer.name] = None
            self._over.move_to_end(transfer.name)
        if state is TransferState.EXPIRED and before in (TransferState.LOADED, TransferState.KEPT):
            self.orphans.append(transfer.name)

    def _forget(self, transfer: Transfer) -> None:
        del self._transfers[transfer.name]
        self._over.pop(transfer.name)
        names = self._by_item[transfer.identifier]
        names.remove(transfer.name)
        if not names:
            del self._by_item[transfer.identifier]
