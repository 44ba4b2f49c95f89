"""vllm bench's `random-mm` data set, under the names of its options: text of random length, then media from size buckets.

Behaviour as in vLLM 0.32; defaults as logged in vLLM issue 29248. What differs: a tokenizer's special tokens are taken as none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from epdsim.core.prompt import TokenRun
from epdsim.workload.arrivals import BLOCK, Floats
from epdsim.workload.distributions import WeightedTable
from epdsim.workload.media import media_ref
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.sizes import Buckets, MediaSize
from epdsim.workload.specs import MAX_HELD, NonNegativeInt, PositiveInt, SpecModel
from epdsim.workload.streams import named_stream
from epdsim.workload.workload import Workload

Modality = Literal["image", "video"]
Ratio = Annotated[float, Field(ge=0, lt=1)]

MAX_PROMPTS = 10_000_000
"""All arrival times are drawn at once."""


class RandomMmSpec(SpecModel):
    """A `random-mm` run.

    Attributes:
        num_prompts: Requests in all.
        random_input_len: Text tokens around which lengths are drawn.
        random_output_len: Output tokens around which lengths are drawn.
        random_range_ratio: r draws lengths from `floor(n (1 - r))` to `ceil(n (1 + r))`, equally often.
        random_prefix_len: Text in front that all requests share.
        random_mm_base_items_per_request: Media items around which counts are drawn.
        random_mm_num_mm_items_range_ratio: As `random_range_ratio`, for counts; 1 allows none.
        random_mm_limit_mm_per_prompt: Most items of a modality; its buckets are left out once it is reached.
        random_mm_bucket_config: `(height, width, frames)` to probability; more than one frame is a clip.
        request_rate: Requests a second; `.inf` sends all at once.
        burstiness: Shape of the gamma gaps; 1 is Poisson, `.inf` a constant rate.
        max_concurrency: Requests in flight at most: a closed loop that sends none before its time. As in the bench, a request that
            has to wait for its turn counts from when it is sent.
    """

    kind: Literal["random-mm"] = "random-mm"
    num_prompts: Annotated[int, Field(ge=1, le=MAX_PROMPTS)] = 1000
    random_input_len: NonNegativeInt = 1024
    random_output_len: PositiveInt = 128
    random_range_ratio: Ratio = 0.0
    random_prefix_len: NonNegativeInt = 0
    random_mm_base_items_per_request: Annotated[int, Field(ge=0, le=MAX_HELD)] = 1
    random_mm_num_mm_items_range_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    random_mm_limit_mm_per_prompt: dict[Modality, NonNegativeInt] = Field(default={"image": 255, "video": 1})
    random_mm_bucket_config: Buckets = Field(default={(256, 256, 1): 0.5, (720, 1280, 1): 0.5, (720, 1280, 16): 0.0})
    request_rate: Annotated[float, Field(gt=0, allow_inf_nan=True)] = math.inf
    burstiness: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 1.0
    max_concurrency: PositiveInt | None = None

    @model_validator(mode="after")
    def _check(self) -> RandomMmSpec:
        WeightedTable(tuple(self.random_mm_bucket_config.values()))
        unlimited = {size.modality for size in self._sizes}.difference(self.random_mm_limit_mm_per_prompt)
        if unlimited:
            raise ValueError(
                f"random_mm_limit_mm_per_prompt has no {unlimited.pop()}, which random_mm_bucket_config draws"
            )
        low, high = self._item_range
        if low > high:
            raise ValueError(f"random_mm_limit_mm_per_prompt allows {high} items, and at least {low} are asked for")
        if self._length_range(self.random_input_len)[0] + self.random_prefix_len + low < 1:
            raise ValueError("prompts may have no text and no items: raise random_input_len")
        return self

    @property
    def _sizes(self) -> list[MediaSize]:
        return [MediaSize(*size) for size, weight in self.random_mm_bucket_config.items() if weight]

    @property
    def _item_range(self) -> tuple[int, int]:
        base, ratio = self.random_mm_base_items_per_request, self.random_mm_num_mm_items_range_ratio
        drawn = {size.modality for size in self._sizes}
        limit = sum(number for modality, number in self.random_mm_limit_mm_per_prompt.items() if modality in drawn)
        return max(0, math.floor(base * (1 - ratio))), min(limit, math.ceil(base * (1 + ratio)))

    def _length_range(self, length: int) -> tuple[int, int]:
        return math.floor(length * (1 - self.random_range_ratio)), math.ceil(length * (1 + self.random_range_ratio))

    def _arrivals_ms(self, rng: np.random.Generator) -> Floats:
        """All arrival times; as the bench does it, scaled so that the last request arrives at `num_prompts / request_rate`."""
        count = self.num_prompts
        if math.isinf(self.request_rate):
            return np.zeros(count)
        gaps = np.ones(count) if math.isinf(self.burstiness) else rng.standard_gamma(self.burstiness, count)
        times = np.cumsum(gaps)
        return times * (count / self.request_rate * 1e3 / times[-1]) if times[-1] else times

    def requests(self, seed: int) -> Iterator[WorkloadRequest]:
        """The requests of a seed."""
        text_rng, output_rng, count_rng = (
            named_stream(seed, self.kind, matter) for matter in ("text", "output", "count")
        )
        drawer = _BucketDrawer(self._sizes, self.random_mm_bucket_config, self.random_mm_limit_mm_per_prompt, seed)
        arrivals_ms = self._arrivals_ms(named_stream(seed, self.kind, "arrivals"))
        prefix = (TokenRun(f"{self.kind}/prefix", 0, self.random_prefix_len),) if self.random_prefix_len else ()
        shortest, longest = self._length_range(self.random_output_len)
        for start in range(0, self.num_prompts, BLOCK):
            texts = text_rng.integers(*self._length_range(self.random_input_len), BLOCK, endpoint=True).tolist()
            outputs = output_rng.integers(max(1, shortest), max(1, longest), BLOCK, endpoint=True).tolist()
            counts = count_rng.integers(*self._item_range, BLOCK, endpoint=True).tolist()
            block = zip(arrivals_ms[start : start + BLOCK].tolist(), texts, outputs, counts, strict=False)
            for index, (arrival_ms, text, output_tokens, count) in enumerate(block, start):
                request_id = f"{self.kind}-{index}"
                own = (TokenRun(request_id, 0, text),) if text else ()
                yield WorkloadRequest(
                    request_id, arrival_ms, (*prefix, *own, *drawer.draw(request_id, count)), output_tokens
                )

    def build(self, base_dir: Path, seed: int) -> Workload:  # noqa: ARG002 - one signature for all kinds
        """The workload; a closed loop when `max_concurrency` is set."""
        stated = f"{self.summary()}; media after the text, each new; seed {seed}"
        make = partial(self.requests, seed)
        keeps_arrivals = self.max_concurrency is not None
        return Workload(
            self.kind, "generated as by vllm bench", make, stated, self.max_concurrency, keeps_arrivals=keeps_arrivals
        )


class _BucketDrawer:
    """Draws the items of one request after the other, within the limits of a prompt."""

    def __init__(
        self,
        sizes: list[MediaSize],
        config: Mapping[tuple[int, ...], float],
        limits: Mapping[Modality, int],
        seed: int,
    ) -> None:
        self._sizes = sizes
        self._weights = [weight for weight in config.values() if weight]
        self._limits = dict(limits)
        self._rng = named_stream(seed, "random-mm", "media")
        self._tables: dict[frozenset[str], WeightedTable] = {}

    def draw(self, request_id: str, count: int) -> list[MediaRef]:
        items: list[MediaRef] = []
        left = dict(self._limits)
        while len(items) < count:
            table = self._table(frozenset(modality for modality, number in left.items() if number))
            for index in table.draw(self._rng, count - len(items)):
                size = self._sizes[index]
                if left[size.modality] == 0:
                    break  # What was drawn from here on might be of this modality too: draw again without it.
                left[size.modality] -= 1
                items.append(media_ref(f"{request_id}/{len(items)}", size))
        return items

    def _table(self, allowed: frozenset[str]) -> WeightedTable:
        if allowed not in self._tables:
            weights = zip(self._sizes, self._weights, strict=True)
            self._tables[allowed] = WeightedTable(
                [weight if size.modality in allowed else 0.0 for size, weight in weights]
            )
        return self._tables[allowed]
