"""What a worker takes over from outside: embeddings, and KV cache: what came, what did not, and who may not know it yet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from epdsim.core.plan import KvLoad, StepPlan
from epdsim.core.workers.content import NOTHING, TrueRequest
from epdsim.core.workers.records import Embedding


def embedding_asked(plan: StepPlan, identifier: str, true: Mapping[str, TrueRequest]) -> Embedding:
    """The embedding that the first request of a step with an item of that identifier needs."""
    wanted = (
        Embedding(content, feature.position.num_embeds)
        for name in plan.num_scheduled_tokens
        for content, feature in zip(true[name].contents, true[name].request.mm_features, strict=True)
        if feature.identifier == identifier
    )
    return next(wanted, Embedding(NOTHING, 0))


class ExternalKv:
    """Loads into a worker's KV slots.

    A block that is lost holds something else than it should. Until the scheduler has heard of it, requests that read it cannot be
    blamed; what they compute is wrong all the same.

    Args:
        slots: The worker's, by block.
        block_size: Tokens of a block.
    """

    __slots__ = ("_block_size", "_slots", "_under_way", "_unheard")

    def __init__(self, slots: dict[int, list[bytes]], block_size: int) -> None:
        self._slots = slots
        self._block_size = block_size
        self._under_way: dict[str, KvLoad] = {}
        self._unheard: set[int] = set()

    def begin(self, load: KvLoad) -> None:
        """A load between steps begins."""
        self._under_way[load.request_id] = load

    def end(self, request_id: str) -> KvLoad:
        """A load between steps is over."""
        return self._under_way.pop(request_id)

    def fill(self, load: KvLoad, tags: Sequence[bytes], lost: Collection[int]) -> None:
        """Write what a load brings.

        Args:
            load: Which tokens, into which blocks.
            tags: Right tags of all positions up to the load's end.
            lost: Blocks that it does not fill.
        """
        size = self._block_size
        for index, block in enumerate(load.block_ids, load.start // size):
            low, high = index * size, min(load.end, (index + 1) * size)
            slot = self._slots.setdefault(block, [NOTHING] * size)
            if block in lost:
                slot[:] = [NOTHING] * size
                # A load between steps says what it lacks before anybody reads it.
                if not load.is_async:
                    self._unheard.add(block)
            else:
                slot[: high - low] = tags[low:high]

    def wrote(self, block: int) -> None:
        """A block is computed from its first token on."""
        self._unheard.discard(block)

    def is_excused(self, block_ids: Iterable[int]) -> bool:
        """Whether nobody has been told that one of the blocks is lost."""
        return bool(self._unheard) and not self._unheard.isdisjoint(block_ids)

    def hear(self, lost: Collection[int], tables: Mapping[str, Sequence[int]]) -> list[str]:
        """The scheduler hears of lost blocks; the requests that hold one, who are to go back."""
        self._unheard.difference_update(lost)
        return [name for name, table in tables.items() if not set(lost).isdisjoint(table)]
