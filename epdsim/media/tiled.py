"""InternVL and Llama 4: a picture is cut into square tiles, and a small copy of the whole is one more."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from epdsim.core.items import BatchedKind, Field, MediaItem, SharedKind
from epdsim.media.base import BaseFamily, RenderedMedia, above_zero, flat, known, picture_size, whole

_KEPT = BatchedKind(keep_on_cpu=True)


@dataclass(frozen=True, kw_only=True)
class TiledFamily(BaseFamily):
    """What both share.

    Attributes:
        tile: Side of a tile in pixels.
        patch: Side of a patch in pixels.
        shuffle: Patches a side that one token stands for (pixel shuffle 0.5 is 2).
        max_tiles: Most tiles of a picture, the small copy not counted.
    """

    tile: int
    patch: int = 14
    shuffle: int = 2
    max_tiles: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_multiple("tile", self.patch * self.shuffle, "the side of a token")

    @property
    def tile_tokens(self) -> int:
        """Tokens of one tile."""
        return (self.tile // self.patch) ** 2 // self.shuffle**2

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        """Pictures that fill a grid of tiles exactly."""
        for rows in range(1, self.max_tiles + 1):
            for columns in range(1, self.max_tiles // rows + 1):
                yield rows * self.tile, columns * self.tile

    def _tiled(self, modality: str, tiles: int, mask: bytes, fields: Mapping[str, Field]) -> RenderedMedia:
        embeds = tiles * self.tile_tokens
        assert mask.count(1) == embeds, "the mask marks the tokens of the tiles"
        return RenderedMedia(
            modality=modality,
            num_tokens=len(mask),
            is_embed=mask,
            item=MediaItem(fields),
            num_embeds=embeds,
            embedding_bytes=self._embedding_bytes(embeds),
            encoder_patches=tiles * (self.tile // self.patch) ** 2,
            encoder_groups=tiles,
        )


@dataclass(frozen=True, kw_only=True)
class InternVL(TiledFamily):
    """InternVL (2, 2.5, 3): the grid of tiles whose aspect ratio is nearest, and a thumbnail when there is more than one tile.

    The placeholder of a picture is a start marker, the tokens of all tiles and an end marker; of a clip, for each frame, the text
    `Frame7: ` and one tile in markers.

    Attributes:
        min_tiles: Fewest tiles of a picture.
        use_thumbnail: Whether the small copy is added.
        image_token_id: Value of the field of that name.
        video_token_id: Value of the field of that name.
    """

    tile: int = 448
    min_tiles: int = 1
    max_tiles: int = 12
    use_thumbnail: bool = True
    image_token_id: int = 151_667
    video_token_id: int = 151_656

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("min_tiles", "max_tiles")

    @property
    def modalities(self) -> frozenset[str]:
        """Pictures and clips."""
        return frozenset({"image", "video"})

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture."""
        columns, rows = self._grid(*picture_size(height, width))
        tiles = columns * rows
        tiles += 1 if self.use_thumbnail and tiles > 1 else 0
        fields = {
            "pixel_values_flat": flat(self.wire_dtype, tiles, 3, self.tile, self.tile),
            "image_num_patches": known("int64", (tiles,), shape=()),
            "image_token_id": known("int64", (self.image_token_id,), shape=(), kind=SharedKind(1, keep_on_cpu=True)),
        }
        return self._tiled("image", tiles, b"\0" + b"\1" * (tiles * self.tile_tokens) + b"\0", fields)

    def video(self, num_frames: int, height: int, width: int, fps: float = 2.0) -> RenderedMedia:
        """A clip: one tile a frame, whatever its size."""
        num_frames = whole("num_frames", num_frames)
        above_zero("fps", fps)
        picture_size(height, width)
        fields = {
            "pixel_values_flat_video": flat(self.wire_dtype, num_frames, 3, self.tile, self.tile),
            "video_num_patches": known("int64", (num_frames,), shape=()),
            "video_token_id": known("int64", (self.video_token_id,), shape=(), kind=SharedKind(1, keep_on_cpu=True)),
        }
        body = b"\0" + b"\1" * self.tile_tokens + b"\0"
        mask = b"".join(b"\0" * frame_label_tokens(frame) + body for frame in range(1, num_frames + 1))
        return self._tiled("video", num_frames, mask, fields)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Columns and rows of tiles: the nearest aspect ratio, of equally near grids the largest that is half filled."""
        aspect, area = width / height, width * height
        best, nearest = (1, 1), float("inf")
        for columns, rows in tile_grids(self.min_tiles, self.max_tiles):
            distance = abs(aspect - columns / rows)
            fills = area > 0.5 * self.tile**2 * columns * rows
            if distance < nearest or (distance == nearest and fills):
                best, nearest = (columns, rows), distance
        return best


@lru_cache(maxsize=16)
def tile_grids(fewest: int, most: int) -> tuple[tuple[int, int], ...]:
    """Grids of `fewest` to `most` tiles as columns and rows, by number of tiles, then columns."""
    grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
    return tuple(sorted((grid for grid in grids if grid[0] * grid[1] >= fewest), key=lambda grid: grid[0] * grid[1]))


def frame_label_tokens(frame: int) -> int:
    """Tokens of the text `Frame7: `: word, digits one by one, colon, space."""
    return 3 + len(str(frame))


@dataclass(frozen=True, kw_only=True)
class Llama4(TiledFamily):
    """Llama 4: the canvas of tiles that shrinks the picture least, never enlarging it more than needed.

    The placeholder is a start marker; with more than one tile the rows of tiles, a separator between tiles and one behind each row;
    the image marker, the small copy, and an end marker. Only the patch tokens take embeddings.

    Attributes:
        resize_to_max_canvas: Whether a picture is enlarged as far as a canvas allows.
    """

    tile: int = 336
    max_tiles: int = 16
    resize_to_max_canvas: bool = False

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture."""
        rows, columns = self._canvas(*picture_size(height, width))
        body = b"\1" * self.tile_tokens
        mask = b"\0"
        if rows * columns > 1:
            mask += (b"\0".join([body] * columns) + b"\0") * rows
        mask += b"\0" + body + b"\0"
        tiles = 1 if rows * columns == 1 else rows * columns + 1
        fields = {
            "pixel_values": flat(self.wire_dtype, tiles, 3, self.tile, self.tile),
            "patches_per_image": known("int64", (tiles,), shape=()),
            "aspect_ratios": known("int64", (rows, columns)),
        }
        return self._tiled("image", tiles, mask, fields)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles; ratios are compared in float32 as the processor does."""
        scales = [
            (min(_float32(rows * self.tile / height), _float32(columns * self.tile / width)), rows, columns)
            for rows, columns in canvases(self.max_tiles)
        ]
        enlarging = [scale for scale, _, _ in scales if scale >= 1]
        if not enlarging:
            chosen = max(scale for scale, _, _ in scales)
        elif self.resize_to_max_canvas:
            chosen = max(enlarging)
        else:
            chosen = min(enlarging)
        fitting = [(rows, columns) for scale, rows, columns in scales if scale == chosen]
        return min(fitting, key=lambda canvas: canvas[0] * canvas[1])


@lru_cache(maxsize=16)
def canvases(most: int) -> tuple[tuple[int, int], ...]:
    """Canvases of up to `most` tiles as rows and columns, in the processor's order, which settles ties.

    Counts of tiles fall from `most` to 1; canvases of one aspect ratio stand together where the ratio first occurs.
    """
    by_aspect: dict[float, list[tuple[int, int]]] = {}
    for tiles in range(most, 0, -1):
        for rows in range(1, tiles + 1):
            if tiles % rows == 0:
                by_aspect.setdefault(rows / (tiles // rows), []).append((rows, tiles // rows))
    return tuple(canvas for group in by_aspect.values() for canvas in group)


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]
