"""An encode instance's side of the hand-over of embeddings."""

from __future__ import annotations

from typing import Protocol

from epdsim.core.ec.host import HostCache
from epdsim.core.request import EcOffer
from epdsim.fleet.encode import EncodeItem, EncodeJob


class Producer(Protocol):
    """What becomes of embeddings at the encoder that made them."""

    def has(self, item: EncodeItem) -> bool:
        """Whether they are at hand, so that the encoder need not run."""
        ...

    def publish(self, job: EncodeJob, item: EncodeItem) -> EcOffer | None:
        """They are complete: hand them to who wants them; what the answer to the leg says of them."""
        ...

    def lose(self) -> None:
        """The instance ends."""
        ...

    def come_back(self) -> None:
        """It begins anew, with nothing kept."""
        ...


class Keeper:
    """Keeps embeddings in the host memory of the instance, as many as fit, those that were used longest ago going first.

    Args:
        name: Of the instance.
        capacity: Embeddings that fit.

    Attributes:
        life: How often the instance was lost.
        is_lost: Whether it is now.
        kept: What it keeps.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self.name, self.life, self.is_lost = name, 0, False
        self._capacity = capacity
        self.kept = HostCache(capacity)
        self._sizes: dict[str, int] = {}

    def has(self, item: EncodeItem) -> bool:
        """Whether it is kept."""
        return self.kept.is_ready(item.mm_hash)

    def keep(self, item: EncodeItem) -> bool:
        """Keep what is at hand, if there is room; whether it is kept."""
        if not self.kept.is_ready(item.mm_hash):
            if not self.kept.take(item.mm_hash, item.num_embeds):
                return False
            self.kept.publish(item.mm_hash)
            self._sizes[item.mm_hash] = item.embedding_bytes
            if len(self._sizes) > 2 * len(self.kept) + 64:
                self._sizes = {name: size for name, size in self._sizes.items() if self.kept.is_ready(name)}
        return True

    def size(self, mm_hash: str) -> int:
        """Bytes of what is kept."""
        return self._sizes[mm_hash]

    def evict(self) -> list[str]:
        """Drop all that nobody reads; its identifiers."""
        before = [name for name in self._sizes if self.kept.is_ready(name)]
        self.kept.drop_ready()
        return [name for name in before if not self.kept.is_ready(name)]

    def lose(self) -> None:
        """The instance ends."""
        self.life += 1
        self.is_lost = True

    def come_back(self) -> None:
        """It begins anew."""
        self.is_lost = False
        self.kept = HostCache(self._capacity)
        self._sizes = {}
