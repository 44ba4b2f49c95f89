"""Both sides of the mirrored processor cache, and the requests between them.

What keeps the sides equal is one order: they must take the same requests one after another. Front ends render requests side by
side, refuse some after rendering, and are reset while others are on their way; the engine takes requests in as they come. In the
ideal the front end's side moves when a request is handed over, so a request that never gets there leaves no trace, and a reset
takes its place in the same order on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence

from epdsim.core.caches.mm_cache import MediaCacheMissError, ReceiverCache, SenderCache, SizeOf, item_bytes
from epdsim.core.items import MediaFeature
from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect, Rule


def moves_at_handover() -> bool:
    """Whether the front end's cache takes a request when it goes to the engine, in that order."""
    return True


def moves_at_render() -> bool:
    """It takes it when it is rendered: releases 0.25 to 0.33."""
    return False


def resets_in_order() -> bool:
    """Whether the engine's side is reset between the requests handed over before and after."""
    return True


def resets_later() -> bool:
    """It is reset when the engine comes to it, by then with requests that came after: releases 0.25 to 0.33."""
    return False


MOVES = Rule(
    "mm_cache.moves",
    "The front end's cache takes a request when it is handed over to the engine, and not at all when it never is.",
    source="vLLM PRs 46747 (order of requests), 51897 (requests that are refused)",
    ideal=moves_at_handover,
)
RESET = Rule(
    "mm_cache.reset",
    "A reset takes effect on both sides at the same place in the order of requests.",
    source="MMC-RESET; vLLM PR 47966 and its 0.32 (requests are taken in by a thread of their own)",
    ideal=resets_in_order,
)


@record
class HandedOver:
    """What became of a request at the engine.

    Attributes:
        features: With payloads; empty after a miss.
        missing: Keys of a miss, which the front end has forgotten by now; the client may send the request again.
        by_hash: Which items came by hash only.
        sent_bytes: Of payloads, between the processes.
    """

    features: Sequence[MediaFeature]
    missing: Sequence[str]
    by_hash: Sequence[bool]
    sent_bytes: int


class MirroredCaches:
    """A front end's and an engine's cache.

    Args:
        capacity_bytes: The budget of each.
        dialect: Rules `mm_cache.*`.
        size_of: Bytes of an item.

    Attributes:
        sender: The front end's side.
        receiver: The engine's side.
    """

    __slots__ = ("_dialect", "_is_resetting", "_rendered", "_size_of", "receiver", "sender")

    def __init__(self, capacity_bytes: int, dialect: Dialect = IDEAL, size_of: SizeOf = item_bytes) -> None:
        self.sender = SenderCache(capacity_bytes, dialect, size_of)
        self.receiver = ReceiverCache(capacity_bytes, dialect, size_of)
        self._dialect = dialect
        self._size_of = size_of
        self._rendered: dict[str, Sequence[MediaFeature]] = {}
        self._is_resetting = False

    @property
    def are_equal(self) -> bool:
        """Whether both sides hold the same keys in the same order (MMC-MIRROR)."""
        return self.sender.cache.keys == self.receiver.cache.keys

    def render(self, request_id: str, features: Sequence[MediaFeature]) -> None:
        """Process the items of a request.

        Args:
            request_id: Not in use.
            features: In order of offset, with payloads.

        Raises:
            InputError, ItemLostError: As `SenderCache.take`, in a dialect that moves the cache here.
        """
        self._rendered[request_id] = features if self._dialect[MOVES]() else self.sender.take(features)

    def reject(self, request_id: str) -> None:
        """Refuse a rendered request, or let its client leave: it never gets to the engine."""
        del self._rendered[request_id]

    def hand_over(self, request_id: str) -> HandedOver:
        """Give a rendered request to the engine, in the order in which the engine takes requests in.

        Raises:
            InputError, ItemLostError: As `SenderCache.take`, in a dialect that moves the cache here.
            EngineLostError: A miss, in a release that cannot say so.
        """
        sent = self._rendered.pop(request_id)
        if self._dialect[MOVES]():
            sent = self.sender.take(sent)
        by_hash = [one.data is None for one in sent]
        sent_bytes = sum(self._size_of(one.data) for one in sent if one.data is not None)
        try:
            return HandedOver(self.receiver.take(sent), (), by_hash, sent_bytes)
        except MediaCacheMissError as miss:
            self.sender.invalidate(miss.keys)
            return HandedOver((), miss.keys, by_hash, sent_bytes)

    def reset(self) -> None:
        """Forget everything (vLLM's `reset_mm_cache`); the engine's side where the dialect has it, or with `finish_reset`."""
        self.sender.reset()
        self._is_resetting = True
        if self._dialect[RESET]():
            self.finish_reset()

    def finish_reset(self) -> None:
        """The engine comes to a reset that it was told of."""
        if self._is_resetting:
            self.receiver.reset()
            self._is_resetting = False
