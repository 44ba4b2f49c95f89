"""Pictures laid over a trace of text: a stated share of its requests gets some, and nothing else of the trace changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field, NonNegativeInt

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload.media import ImagesSpec, MediaDrawer, Position, insert_media
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.streams import KeyedStreams


class OverlaySpec(ImagesSpec):
    """Which requests get pictures, and which pictures.

    Attributes:
        share: Probability that a request gets pictures.
        position: At the end unless stated: pictures in front of a prompt would end every prefix that requests share.
        seed: Of the overlay alone; the seed of the run when absent.
    """

    share: Annotated[float, Field(ge=0, le=1)]
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
        pictures = f"count {self.count.summary()}, size {self.size.summary()}{reuse}, at the {self.position}"
        return f"image overlay: share {self.share:g}, {pictures}, seed {used}"


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
    for request in requests:
        if streams.coin(request.request_id) >= spec.share:
            yield request
            continue
        text = [part for part in request.parts if isinstance(part, TokenRun)]
        if len(text) != len(request.parts):
            raise InputError(
                f"request {request.request_id!r}", "has media already, so none can be laid over it", "drop the overlay"
            )
        rng = streams.generator(request.request_id)
        count = int(spec.count.draw(rng, 1)[0])
        media = drawer.draw(rng, [f"overlay/{request.request_id}/{index}" for index in range(count)])
        yield replace(request, parts=insert_media(text, media, spec.position, rng))
