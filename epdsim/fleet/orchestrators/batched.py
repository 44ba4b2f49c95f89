"""Style `batched`: the items of a request that go to one encoder share a leg (vLLM's example EPD proxy)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epdsim.fleet.encode import EncodeItem
from epdsim.fleet.orchestrators.encoding import EncodeLeg, Grouping, Take


def batches(max_items: int | None) -> Grouping:
    """A leg for the pictures of one encoder, which is chosen picture by picture; clips and sounds go alone.

    Args:
        max_items: Pictures of a leg at most; None for no limit (the proxy's `ENCODER_MAX_BATCH_SIZE`, where 0 says so).
    """

    def grouped(items: Sequence[EncodeItem], take: Take) -> Iterator[EncodeLeg]:
        legs: list[EncodeLeg] = []
        of_pictures: dict[str, EncodeLeg] = {}
        for item in items:
            instance = take(item)
            leg = of_pictures.get(instance.name) if item.modality == "image" else None
            if leg is None or len(leg.items) == max_items:
                leg = EncodeLeg(instance, [])
                legs.append(leg)
                if item.modality == "image":
                    of_pictures[instance.name] = leg
            leg.items.append(item)
        yield from legs

    return grouped
