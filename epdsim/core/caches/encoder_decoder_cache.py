"""The encoder cache of encoder-decoder models (Whisper): room for the embeddings of one step, and nothing that lasts.

The decoder reads its items through cross attention, whose keys and values are written with the first step of a request. Embeddings
are of no use after that: the workers drop what one step encoded with the next, and no other request finds them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from epdsim.core.caches.encoder_cache import ITEM_SLOTS, EncoderCache
from epdsim.core.items import MediaFeature
from epdsim.core.rules import Dialect, Rule


def credits_once() -> bool:
    """Whether an item's room comes back once for each time that it was taken."""
    return True


def credits_every_step() -> bool:
    """Each step, preemption, end and failed admission of a request credits all its items, until the capacity binds nobody."""
    return False


CREDIT_ONCE = Rule(
    "encoder_decoder.credit_once",
    "An item of an encoder-decoder model gives back the room that it took, once, when the step of its encoder run is over.",
    source="vLLM issue 55733, PR 51228 (open)",
    ideal=credits_once,
)


class EncoderDecoderCache(EncoderCache):
    """Books of the encoder cache of an encoder-decoder model.

    Args:
        capacity: Embeddings that fit.
        dialect: Rules `encoder_decoder.*` and `encoder_cache.item_slots`.
    """

    __slots__ = ("_credits_once", "_encoded", "_slots_of")

    def __init__(self, capacity: int, dialect: Dialect) -> None:
        super().__init__(capacity, dialect)
        self._credits_once = dialect[CREDIT_ONCE]()
        self._slots_of = dialect[ITEM_SLOTS]
        self._encoded: list[str] = []

    def reference(self, request_id: str, features: Sequence[MediaFeature], index: int) -> bool:
        """Never: no request uses what another one encoded."""
        del request_id, features, index
        return False

    def make_room(self, num_embeds: int) -> bool:
        """Whether enough slots are free; there is nothing to evict."""
        return num_embeds <= self.num_free

    def allocate(self, request_id: str, features: Sequence[MediaFeature], index: int, num_embeds: int) -> None:
        """Take the room for item `index`."""
        assert num_embeds <= self.num_free, "make_room comes first"
        self._held.setdefault(request_id, set()).add(index)
        self._encoded.append(features[index].identifier)
        self._credit_slots(-num_embeds)

    def release(self, request_id: str, features: Sequence[MediaFeature], index: int) -> None:
        """Give up item `index`."""
        held = self._held.get(request_id, set())
        if index in held:
            held.discard(index)
            self._credit_items(features, (index,))
        if not held:
            self._held.pop(request_id, None)

    def release_past(self, request_id: str, features: Sequence[MediaFeature], num_tokens: int) -> Sequence[int]:
        """Give up all items once a token is computed; which they are."""
        if num_tokens <= 0:
            return ()
        past = sorted(self._held.pop(request_id, ())) if self._credits_once else range(len(features))
        self._credit_items(features, past)
        return past

    def release_all(self, request_id: str, features: Sequence[MediaFeature]) -> None:
        """Give up all items of a request."""
        held = self._held.pop(request_id, ())
        self._credit_items(features, held if self._credits_once else range(len(features)))

    def forget(self, identifier: str) -> None:
        """Let the workers hear nothing of an item that was not encoded after all."""
        if identifier in self._encoded:
            self._encoded.remove(identifier)

    def take_freed(self) -> list[str]:
        """What was encoded in the step before, to be dropped with this one (vLLM PR 32789)."""
        freed, self._freed, self._encoded = self._freed, self._encoded, []
        return freed

    def reset(self) -> None:
        """Forget everything; where every step credits all items, those who have begun go on to be credited."""
        held = {} if self._credits_once else self._held
        self._held = {}
        super().reset()
        self._held = held
        self._encoded.clear()

    def clone(self) -> EncoderDecoderCache:
        """An independent copy."""
        other = object.__new__(EncoderDecoderCache)
        self._copy_to(other)
        other._credits_once, other._slots_of = self._credits_once, self._slots_of
        other._encoded = list(self._encoded)
        return other

    def fingerprint(self) -> tuple[object, ...]:
        """All that decides what it does next."""
        return *super().fingerprint(), tuple(self._encoded)

    def _credit_items(self, features: Sequence[MediaFeature], items: Collection[int]) -> None:
        self._credit_slots(sum(self._slots_of(features[index].position) for index in items))

    def _credit_slots(self, num_embeds: int) -> None:
        self.num_free += num_embeds
        self.num_freeable += num_embeds
