"""Pictures laid over a trace of text: a stated share of its requests gets some, and nothing else of the trace changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload.media import ImagesSpec, MediaDrawer, Position, draw_counts, insert_media
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.specs import NonNegativeInt
from epdsim.workload.streams import KeyedStreams


class OverlaySpec(ImagesSpec):
    """Which requests get pictures, and which pictures.

    Attributes:
        share: Probability that a request, or a run of its text, gets pictures.
        per: `"request"`: each request gets pictures of its own. `"run"`: pictures belong to a run of text and stand behind it
            wherever the run comes again, as in a conversation whose next turn repeats the history; a prefix that requests share
            then has pictures in it.
        position: With `per: request`, where they stand; at the end unless stated, as pictures in front of a prompt would end every
            prefix that requests share.
        seed: Of the overlay alone; the seed of the run when absent.
    """

    share: Annotated[float, Field(ge=0, le=1)]
    per: Literal["request", "run"] = "request"
    position: Position = "end"
    seed: NonNegativeInt | None = None

    def statement(self, seed: int) -> str:
        """The overlay in one line, as reports print it."""
        reuse = (
            f", {self.reuse.probability:g} of them from a pool of {self.reuse.pool_size}"
            if self.reuse
            else ", each new"
        )
        used = seed if self.seed is None else self.seed
        pictures = f"count {self.count.summary()}, size {self.size.summary()}{reuse}"
        where = f"at the {self.position}" if self.per == "request" else "behind their run"
        return f"image overlay: share {self.share:g} of {self.per}s, {pictures}, {where}, seed {used}"


def overlay_images(requests: Iterable[WorkloadRequest], spec: OverlaySpec, seed: int) -> Iterator[WorkloadRequest]:
    """The requests, a share of them with pictures; arrival times, text and everything else are those of the trace.

    What a request gets depends on its id and the seed alone, not on which requests are read beside it.

    Args:
        requests: Of text alone.
        spec: What is laid over them.
        seed: Of the run; `spec.seed` goes first.

    Raises:
        InputError: A request has media already.
    """
    seed = seed if spec.seed is None else spec.seed
    streams = KeyedStreams(seed, "overlay")
    drawer = MediaDrawer(spec, seed, "overlay")

    def pictures(owner: str) -> tuple[list[MediaRef], np.random.Generator]:
        rng = streams.generator(owner)
        count = draw_counts(spec, rng, 1)[0]
        return list(drawer.draw(rng, count, [f"overlay/{owner}/{index}" for index in range(count)])), rng

    for request in requests:
        text = request.text
        if len(text) != len(request.parts):
            raise InputError(
                f"request {request.request_id!r}", "has media already, so none can be laid over it", "drop the overlay"
            )
        if spec.per == "run":
            yield replace(
                request, parts=tuple(_behind_runs(text, lambda owner: pictures(owner)[0], streams, spec.share))
            )
        elif streams.coin(request.request_id) < spec.share:
            media, rng = pictures(request.request_id)
            yield replace(request, parts=insert_media(text, media, spec.position, rng))
        else:
            yield request


def _behind_runs(
    text: Sequence[TokenRun], pictures: Callable[[str], list[MediaRef]], streams: KeyedStreams, share: float
) -> Iterator[TokenRun | MediaRef]:
    for run in text:
        yield run
        owner = repr(run.content)
        if streams.coin(owner) < share:
            yield from pictures(owner)
