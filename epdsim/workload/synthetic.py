"""Synthetic workloads: an arrival process, and prompts whose lengths and pictures are drawn independently."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from collections.abc import Iterator
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import PositiveFloat, model_validator

from epdsim.core.prompt import TokenRun
from epdsim.workload.arrivals import (
    BLOCK,
    BurstArrivals,
    ConstantArrivals,
    Floats,
    GammaArrivals,
    PoissonArrivals,
    WeibullArrivals,
)
from epdsim.workload.distributions import Constant, LengthDistribution
from epdsim.workload.kinds import Section
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.specs import NonNegativeInt, PositiveInt, SpecModel
from epdsim.workload.streams import named_stream
from epdsim.workload.workload import Workload

if TYPE_CHECKING:
    from epdsim.workload.media import ImagesSpec, PictureDrawer
else:
    ImagesSpec = Annotated[Any, Section("epdsim.workload.media:ImagesSpec")]


class PromptSpec(SpecModel):
    """Prompts of a synthetic workload.

    A request without pictures has at least one token of text; every request generates at least one token.

    Attributes:
        text_tokens: Each request's own text, new in every request.
        output_tokens: Tokens it generates.
        shared_prefix_tokens: Text in front that all requests share (a system prompt).
        images: Its pictures; none when absent.
    """

    text_tokens: LengthDistribution
    output_tokens: LengthDistribution
    shared_prefix_tokens: NonNegativeInt = 0
    images: ImagesSpec | None = None

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if self.text_tokens == Constant(value=0) and not self.shared_prefix_tokens and self.images is None:
            raise ValueError("a prompt of 0 text tokens and no images is empty: give it either")
        if self.output_tokens == Constant(value=0):
            raise ValueError("output_tokens is 0, but every request generates at least 1")
        return self

    @property
    def most_text_tokens(self) -> int | None:
        """As of `Workload`."""
        text, output = self.text_tokens.largest, self.output_tokens.largest
        if self.images is not None or text is None or output is None:
            return None
        return self.shared_prefix_tokens + max(1, text) + max(1, output)


class PromptDrawer:
    """Draws prompts in blocks, each matter from its own stream."""

    def __init__(self, spec: PromptSpec, seed: int, name: str) -> None:
        self._spec = spec
        self._text, self._output = (named_stream(seed, name, matter) for matter in ("text", "output"))
        self._pictures = _picture_drawer(spec.images, seed, name) if spec.images is not None else None
        self._prefix = TokenRun(f"{name}/prefix", 0, spec.shared_prefix_tokens)

    def draw(self, request_ids: list[str]) -> tuple[Iterator[Parts], list[int]]:
        """Parts and output tokens of as many requests; a block is always `BLOCK` long so that more requests change none."""
        assert len(request_ids) == BLOCK, "what a seed means depends on the block"
        texts = self._spec.text_tokens.draw(self._text, BLOCK).tolist()
        outputs = np.maximum(self._spec.output_tokens.draw(self._output, BLOCK), 1).tolist()
        pictures = repeat([], BLOCK) if self._pictures is None else self._pictures.draw(request_ids)
        return map(self._parts, request_ids, texts, pictures), outputs

    def _parts(self, request_id: str, text_tokens: int, pictures: list[MediaRef]) -> Parts:
        prefix = (self._prefix,) if self._prefix.length else ()
        if not pictures:
            own = text_tokens if prefix else max(1, text_tokens)
            return (*prefix, TokenRun(request_id, 0, own)) if own else prefix
        assert self._pictures is not None, "pictures are drawn only when the spec has them"
        return (*prefix, *self._pictures.insert(TokenRun(request_id, 0, text_tokens), pictures))


def _picture_drawer(spec: ImagesSpec, seed: int, name: str) -> "PictureDrawer":
    from epdsim.workload.media import PictureDrawer  # noqa: PLC0415 - who draws text alone starts sooner without

    return PictureDrawer(spec, seed, name)


class SyntheticSpec(PromptSpec):
    """What all synthetic kinds share: prompts, and where the workload ends.

    Attributes:
        num_requests: End after so many.
        duration_s: End at this time; at least one of the two.
    """

    num_requests: PositiveInt | None = None
    duration_s: PositiveFloat | None = None

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.num_requests is None and self.duration_s is None:
            raise ValueError("the workload has no end: give num_requests or duration_s")
        return self

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:
        """Arrival times; the arrival process that a kind inherits from overrides it."""
        raise NotImplementedError

    def requests(self, seed: int) -> Iterator[WorkloadRequest]:
        """The requests of a seed; a longer workload begins with the shorter one."""
        kind: str = self.kind  # type: ignore[attr-defined]
        drawer = PromptDrawer(self, seed, kind)
        end_ms = float("inf") if self.duration_s is None else self.duration_s * 1e3
        first = 0
        for block in self.arrival_blocks_s(named_stream(seed, kind, "arrivals")):
            times_ms = block * 1e3
            num_in_time = int(np.searchsorted(times_ms, end_ms))
            count = num_in_time if self.num_requests is None else min(num_in_time, self.num_requests - first)
            request_ids = [f"{kind}-{number}" for number in range(first, first + BLOCK)]
            parts, outputs = drawer.draw(request_ids)
            yield from islice(map(WorkloadRequest, request_ids, times_ms.tolist(), parts, outputs), count)
            if count < BLOCK:
                return
            first += BLOCK

    def build(self, base_dir: Path, seed: int) -> Workload:  # noqa: ARG002 - one signature for all kinds
        """The workload."""
        kind: str = self.kind  # type: ignore[attr-defined]
        return Workload(
            name=kind,
            source="generated",
            make_requests=partial(self.requests, seed),
            assumptions=f"lengths, pictures and arrivals independent; {self.summary()}; seed {seed}",
            most_text_tokens=self.most_text_tokens,
        )


class PoissonSpec(PoissonArrivals, SyntheticSpec):
    """Poisson arrivals."""


class GammaSpec(GammaArrivals, SyntheticSpec):
    """Gamma gaps."""


class WeibullSpec(WeibullArrivals, SyntheticSpec):
    """Weibull gaps."""


class ConstantSpec(ConstantArrivals, SyntheticSpec):
    """A constant rate."""


class AtOnceSpec(SyntheticSpec):
    """All requests at time 0: a batch, or what a closed loop sends from; needs `num_requests`."""

    kind: Literal["at-once"] = "at-once"
    num_requests: PositiveInt  # type: ignore[assignment]

    def arrival_blocks_s(self, rng: np.random.Generator) -> Iterator[Floats]:  # noqa: ARG002 - one signature for all processes
        """Endless zeros, in blocks of `BLOCK`."""
        return repeat(np.zeros(BLOCK))


class BurstsSpec(BurstArrivals, SyntheticSpec):
    """On and off."""
