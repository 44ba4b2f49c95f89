"""Random far sides of EC connectors: a store that others fill and empty, producers and consumers with all that can go wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from epdsim.sut.schedule_records import (
    RecordedAsk,
    RecordedConfig,
    RecordedEc,
    RecordedFar,
    RecordedItem,
    RecordedRequest,
)

EC_TRAITS: Mapping[str, str] = {
    "evict": "an EC store that others fill and empty at any time",
    "pull": "an EC connector that pulls: waits, refusals, stuck and broken reads, leases, lost producers, items without payload",
}
"""Traits of modes with an EC role; consumer where none is named."""

EC_MODES = (
    *("v1-ecc-evict", "v2-async-ecc-evict", "v1-ecp-evict", "v2-async-ecb-evict", "v2-prio-ecb-evict-mixed-masks"),
    *("v2-ecc-pull", "v2-async-ecc-pull", "v1-ecc-pull-prio-tight", "v2-ecp-pull", "v2-async-ecb-pull", "v1-ecb-pull"),
    *("v2-async-ecc-pull-mixed-masks-keys", "v2-ecb-pull-reset-late", "v2-prio-ecb-pull-hash", "v2-ecc-pull-large"),
    *("v2-ecb-pull-mismatch", "v1-async-ecb-pull-hash-late"),
)
"""Modes of these."""

_PRODUCERS = ("p0", "p1")
_STEPS = 40
"""Steps within which things happen of themselves."""


def draw_far_side(
    rng: random.Random,
    traits: frozenset[str],
    config: RecordedConfig,
    items: Sequence[RecordedItem],
    requests: Sequence[RecordedRequest],
) -> RecordedEc:
    """The far side of a workload's EC connector."""
    if "pull" not in traits:
        names = [item.identifier for item in items]
        number = rng.randint(1, 2 * len(names))
        events = [(rng.randint(0, _STEPS), rng.choice(["stored", "gone"]), rng.choice(names)) for _ in range(number)]
        return RecordedEc(events=sorted(events))
    far = [_serving(rng, producer, item.identifier) for producer in _PRODUCERS for item in items]
    largest = config.max_tokens_per_mm_item
    offers = {one.request_id: offered for one in requests if (offered := _offers(rng, one))}
    return RecordedEc(
        kind="pull",
        capacity=rng.choice([largest, largest, largest + rng.randint(0, largest), 2 * largest, 4 * largest]),
        bounds=(rng.randint(3, 25), rng.randint(2, 8), rng.randint(2, 8), rng.randint(1, 10), rng.randint(1, 12)),
        report_steps=rng.choice([0, 0, 1, 3]),
        offers=offers,
        metadata_only={
            one.request_id: bare
            for one in requests
            if one.request_id in offers and rng.random() < 0.6 and (bare := _bare(rng, one, offers[one.request_id]))
        },
        far=far,
        asks=_asks(rng, items) if traits & {"ecp", "ecb"} else [],
        lost=sorted((rng.randint(0, _STEPS), rng.choice(_PRODUCERS)) for _ in range(rng.choice([0, 0, 0, 1, 3]))),
    )


def _serving(rng: random.Random, producer: str, identifier: str) -> RecordedFar:
    ready = rng.choice([0, 0, rng.randint(0, _STEPS)])
    return RecordedFar(
        producer=producer,
        identifier=identifier,
        ready=ready,
        gone=rng.randint(ready, 2 * _STEPS) if rng.random() < 0.4 else None,
        is_compatible=rng.random() < 0.95,
        answer_steps=rng.choice([1, 1, 1, 2, 4, None]),
        read_steps=rng.choice([1, 1, 1, 2, 5, None]),
        is_good=rng.random() < 0.9,
    )


def _offers(rng: random.Random, request: RecordedRequest) -> dict[str, tuple[str | None, int]]:
    if rng.random() < 0.2:
        return {}
    offers: dict[str, tuple[str | None, int]] = {}
    for item in request.mm_features:
        num_embeds = item.length if item.is_embed is None else sum(item.is_embed)
        if num_embeds == 0 or rng.random() < 0.2:
            continue
        if rng.random() < 0.1:
            offers[item.identifier] = (None, 0)
        else:
            offers[item.identifier] = (rng.choice(_PRODUCERS), num_embeds + (rng.random() < 0.05))
    return offers


def _bare(rng: random.Random, request: RecordedRequest, offers: Mapping[str, object]) -> list[int]:
    """Items that come without payload; audio has no metadata to come with."""
    return [
        index
        for index, item in enumerate(request.mm_features)
        if item.modality != "audio" and item.identifier in offers and rng.random() < 0.7
    ]


def _asks(rng: random.Random, items: Sequence[RecordedItem]) -> list[RecordedAsk]:
    pairs = [(consumer, item.identifier) for consumer in ("c0", "c1") for item in items]
    steps = {pair: rng.choice([1, 1, 2, 6, None]) for pair in pairs}
    asked = sorted((rng.randint(0, 2 * _STEPS), *rng.choice(pairs)) for _ in range(rng.randint(0, 16)))
    return [
        RecordedAsk(step=step, consumer=consumer, identifier=name, read_steps=steps[consumer, name])
        for step, consumer, name in asked
    ]
