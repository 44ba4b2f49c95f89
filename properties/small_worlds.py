"""Worlds small enough to be searched to the end: every workload of three requests over a few sizes and moments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from msgspec.structs import replace

from epdsim.sut.cases import CaseField, CaseItem, EngineCase, StripCase
from epdsim.sut.schedule_records import RecordedConfig, RecordedItem, RecordedRequest, RecordedWorkload
from epdsim.testing.workloads import PLACEHOLDER, cramped

_ITEM = 2
"""Tokens of the item: a block, and the whole encoder cache."""
_BEGINNINGS = ((), (1,))
"""Text before the item, so that it ends with a block or in the middle of one."""
_INCIDENTS = (None, ("abort", "r1"), ("reset", "prefix"), ("reset", "encoder"))
_MOMENT = 4
"""Step of an incident."""
_TOKENS = 10
"""What the pool holds."""


def worlds(release: str = "0.32.0") -> Iterator[EngineCase]:
    """Three requests in a pool that holds one of them and a half: one soon over, one like it, and one that takes their room.

    All combinations of: both runners, with and without async scheduling; a step that takes a prompt at once or in parts; text
    before the item or none; the second one's arrival; the third one's arrival, its length, and whether it is text, has an item of
    its own or the same; and that nothing happens, a client leaves, or a cache is reset.
    """
    for runner, is_async, budget in product(("v1", "v2"), (False, True), (3, 8)):
        for beginning, again, third, image in product(_BEGINNINGS, (0, 2), (0, 1, 3), (None, "image-1", "image-0")):
            for outputs, incident in product((1, 6), _INCIDENTS):
                first = [*beginning, *[PLACEHOLDER] * _ITEM, 2]
                other = [3] * 4 if image is None else [*[PLACEHOLDER] * _ITEM, 3]
                offset = len(beginning)
                requests = [
                    _request(0, 0, first, "image-0", offset, 1),
                    _request(1, again, first, "image-0", offset, _TOKENS - len(first)),
                    _request(2, third, other, image, 0, outputs),
                ]
                requests.sort(key=lambda one: one.arrival_step)
                yield _world(_config(runner, budget, release, is_async=is_async), requests, incident)


def _config(runner: str, budget: int, release: str, *, is_async: bool) -> RecordedConfig:
    plain = cramped(
        release,
        "small-world",
        runner=runner,
        block_size=2,
        usable=_TOKENS // 2,
        budget=budget,
        seqs=2,
        largest=_ITEM,
        length=64,
    )
    return replace(plain, async_scheduling=is_async)


def _world(config: RecordedConfig, requests: list[RecordedRequest], incident: tuple[str, str] | None) -> EngineCase:
    kind, what = incident or ("", "")
    return EngineCase(
        RecordedWorkload(
            config=config,
            requests=requests,
            aborts=[(_MOMENT, what)] if kind == "abort" else [],
            resets=[(_MOMENT, what)] if kind == "reset" else [],
            steps=[],
            unfinished=[],
        )
    )


def _request(
    number: int, step: int, prompt: list[int], image: str | None, offset: int, max_tokens: int
) -> RecordedRequest:
    items = (
        [RecordedItem(modality="image", identifier=image, offset=offset, length=_ITEM, is_embed=None)] if image else []
    )
    return RecordedRequest(
        request_id=f"r{number}",
        arrival_step=step,
        prompt_token_ids=prompt,
        max_tokens=max_tokens,
        priority=0,
        arrival_time=float(number),
        mm_features=items,
    )


_PIXELS = CaseField("pixel_values", fill=1)
_GRID = CaseField("image_grid_thw", shape=(3,), dtype="int64", keep_on_cpu=True)
_KINDS = (None, [_PIXELS], [_PIXELS, _GRID], [CaseField("address", dtype="int64")])
"""No data, a payload, a payload beside a field that stays on the CPU, an address."""


def strips() -> Iterator[StripCase]:
    """Up to two items of one or two tokens, of any kind, with any number of tokens computed, with and without position fields."""
    for count in (0, 1, 2):
        for lengths, kinds in product(product((1, 2), repeat=count), product(_KINDS, repeat=count)):
            items = [CaseItem("image", f"h{i}", lengths[i], 1, None, kinds[i]) for i in range(count)]
            for computed, reads in product(range(sum(lengths) + count + 2), (False, True)):
                yield StripCase(items, computed, reads)
