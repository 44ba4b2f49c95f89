"""Kind `store`: encoders write embeddings into one store, from which every engine reads (vLLM's example connector)."""

from __future__ import annotations

from epdsim.core.ec.store import EcStore
from epdsim.fleet.encode import EncodeItem, EncodeJob


class StoreProducer:
    """Writes into the store what the orchestrator has reserved.

    Args:
        store: The fleet's.
    """

    def __init__(self, store: EcStore) -> None:
        self._store = store

    def has(self, item: EncodeItem) -> bool:
        """Whether an earlier attempt wrote it."""
        return self._store.is_ready(item.mm_hash)

    def publish(self, job: EncodeJob, item: EncodeItem) -> None:
        """Write it."""
        del job
        if not self._store.is_ready(item.mm_hash):
            self._store.publish(item.mm_hash)

    def lose(self) -> None:
        """What is in the store stays."""

    def come_back(self) -> None:
        """Nothing was lost."""
