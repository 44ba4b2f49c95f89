"""Pictures of generated requests: how many, how large, whose content, and where in the prompt."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload.distributions import LengthDistribution
from epdsim.workload.request import MediaRef, Parts
from epdsim.workload.sizes import MediaSize, SizeDistribution
from epdsim.workload.specs import MAX_HELD, SpecModel
from epdsim.workload.streams import named_stream

Position = Literal["start", "end", "random"]


class ReuseSpec(SpecModel):
    """How often a picture was seen before: with `probability` its content is one of `pool_size` pictures, each equally often."""

    probability: Annotated[float, Field(ge=0, le=1)]
    pool_size: Annotated[int, Field(ge=1, le=1_000_000)]


class ImagesSpec(SpecModel):
    """Pictures of a request.

    Attributes:
        count: How many.
        size: How large.
        reuse: Pool of pictures that come again; without it every picture is new.
        position: Where they stand together: before or after the request's own text, or at a random place in it.
    """

    count: LengthDistribution = Field(default=1, validate_default=True)  # type: ignore[assignment]
    size: SizeDistribution
    reuse: ReuseSpec | None = None
    position: Position = "start"


def draw_counts(spec: ImagesSpec, rng: np.random.Generator, count: int) -> list[int]:
    """How many pictures each of `count` requests has.

    Raises:
        InputError: One would have more than memory should hold.
    """
    counts = spec.count.draw(rng, count).tolist()
    if max(counts) > MAX_HELD:
        rule = f"a request has at most {MAX_HELD:,} pictures"
        raise InputError(f"a count of {max(counts):,} pictures", rule, "give the distribution a smaller max")
    return counts


def media_ref(content: str, size: MediaSize) -> MediaRef:
    """A picture or clip of a size."""
    return MediaRef(content, size.modality, size.height, size.width, size.num_frames, size.duration_s, size.num_tokens)


class MediaDrawer:
    """Draws sizes and contents of pictures.

    Args:
        spec: How they are distributed.
        seed: Seed of the run; with the name it fixes the pictures in the pool.
        name: Prefix of the contents in the pool.
    """

    __slots__ = ("_pool", "_probability", "_size")

    def __init__(self, spec: ImagesSpec, seed: int, name: str) -> None:
        self._size = spec.size
        self._probability = spec.reuse.probability if spec.reuse else 0.0
        pool_size = spec.reuse.pool_size if spec.reuse else 0
        sizes = spec.size.draw(named_stream(seed, name, "pool"), pool_size)
        self._pool = [media_ref(f"{name}/pool/{index}", size) for index, size in enumerate(sizes)]

    def draw(self, rng: np.random.Generator, count: int, contents: Iterable[str]) -> Iterator[MediaRef]:
        """One picture per name in `contents`, `count` in all; the name is its identity unless the pool gives it another.

        All chance is drawn here, and a picture made when it is asked for: of a block most may never be.
        """
        sizes = self._size.draw(rng, count)
        if not self._pool:
            return map(media_ref, contents, sizes)
        coins, indices = rng.random(count), rng.integers(len(self._pool), size=count)
        chosen = zip(contents, sizes, (coins < self._probability).tolist(), indices.tolist(), strict=True)
        return (
            self._pool[index] if is_reused else media_ref(content, size) for content, size, is_reused, index in chosen
        )


class PictureDrawer:
    """Draws the pictures of requests, each matter from its own stream.

    Args:
        spec: How they are distributed.
        seed: Of the run.
        name: Of the workload.
    """

    def __init__(self, spec: ImagesSpec, seed: int, name: str) -> None:
        self._spec, self._drawer = spec, MediaDrawer(spec, seed, name)
        self._count, self._media, self._place = (
            named_stream(seed, name, matter) for matter in ("count", "media", "place")
        )

    def draw(self, request_ids: Sequence[str]) -> Iterator[list[MediaRef]]:
        """Those of each request."""
        counts = draw_counts(self._spec, self._count, len(request_ids))
        contents = (
            f"{request_id}/{index}"
            for request_id, count in zip(request_ids, counts, strict=True)
            for index in range(count)
        )
        drawn = self._drawer.draw(self._media, sum(counts), contents)
        return ([next(drawn) for _ in range(count)] for count in counts)

    def insert(self, text: TokenRun, pictures: Sequence[MediaRef]) -> Parts:
        """A request's own text and its pictures, where these stand."""
        return insert_media((text,), pictures, self._spec.position, self._place)


def insert_media(
    text: Sequence[TokenRun], media: Sequence[MediaRef], position: Position, rng: np.random.Generator
) -> Parts:
    """The parts of a prompt of some runs of text and of media that stand together."""
    num_tokens = sum(run.length for run in text)
    if position == "random":
        return split_at(text, int(rng.integers(num_tokens, endpoint=True)), media)
    return split_at(text, 0 if position == "start" else num_tokens, media)


def split_at(text: Sequence[TokenRun], offset: int, media: Sequence[MediaRef]) -> Parts:
    """The runs with media put in after the first `offset` tokens; a run that the place falls into is split, none gets length 0."""
    before: list[TokenRun] = []
    after: list[TokenRun] = []
    for run in text:
        taken = min(run.length, max(0, offset))
        if taken:
            before.append(run if taken == run.length else TokenRun(run.content, run.start, taken))
        if taken < run.length:
            after.append(TokenRun(run.content, run.start + taken, run.length - taken))
        offset -= run.length
    return (*before, *media, *after)
