"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: pictures and clips of any size on a grid of patches.

A side is rounded to a multiple of the factor (patch x merge), the area is brought between `min_pixels` and `max_pixels`, and four
neighbouring patches become one token. Two frames form one temporal patch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaItem
from epdsim.media.base import BaseFamily, RenderedMedia, above_zero, flat, known, may_be_zero, picture_size, whole

MAX_ASPECT_RATIO = 200
"""Longer side by shorter side beyond which the processors refuse a picture."""


def smart_resize(
    height: float,
    width: float,
    *,
    factor: int,
    min_pixels: int,
    max_pixels: int,
    frames: int = 1,
    counted_frames: int = 1,
) -> tuple[int, int]:
    """Height and width after rounding to the factor and fitting the pixel limits.

    Args:
        height: Pixels.
        width: Pixels.
        factor: Both sides become multiples of it; Python's round, half to even.
        min_pixels: Smallest area.
        max_pixels: Largest area.
        frames: Frames that share the limits (Qwen3-VL clips).
        counted_frames: Those frames, rounded to whole temporal patches.

    Returns:
        Height and width in pixels.
    """
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    area = counted_frames * high * wide
    if area > max_pixels:
        shrink = math.sqrt((frames * height * width) / max_pixels)
        high = max(factor, math.floor(height / shrink / factor) * factor)
        wide = max(factor, math.floor(width / shrink / factor) * factor)
    elif area < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        high, wide = math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return high, wide


def check_aspect_ratio(height: int, width: int) -> None:
    """Refuse what the processors refuse."""
    if max(height, width) / min(height, width) > MAX_ASPECT_RATIO:
        raise InputError(f"picture of {height} x {width} pixels", f"its aspect ratio is over {MAX_ASPECT_RATIO}")


@dataclass(frozen=True, kw_only=True)
class QwenVL(BaseFamily):
    """Qwen2-VL: patch 14, no time in positions.

    Attributes:
        patch: Side of a patch in pixels.
        merge: Patches a side that become one token.
        min_pixels: Smallest area of a picture (Qwen2-VL and 2.5-VL checkpoints: 3,136).
        max_pixels: Largest area of a picture (Qwen2-VL and 2.5-VL checkpoints: 12,845,056; the class default is 1,003,520).
        video_min_pixels: Smallest area of a frame (Qwen3-VL: of all frames together).
        video_max_pixels: Largest area of a frame (Qwen3-VL: of all frames together).
        deepstack_levels: Intermediate encoder layers whose outputs are stored beside the last one.
    """

    position_scheme: ClassVar[str] = "mrope-qwen2-vl"
    position_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType(
        {"image": frozenset({"image_grid_thw"}), "video": frozenset({"video_grid_thw"})}
    )
    metadata_fields: ClassVar[Mapping[str, frozenset[str]]] = position_fields

    patch: int = 14
    merge: int = 2
    temporal_patch: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 16384
    video_min_pixels: int = 56 * 56
    video_max_pixels: int = 28 * 28 * 16384
    deepstack_levels: int = may_be_zero(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("min_pixels", "max_pixels")
        self._check_order("video_min_pixels", "video_max_pixels")

    @property
    def modalities(self) -> frozenset[str]:
        """Pictures and clips."""
        return frozenset({"image", "video"})

    @property
    def factor(self) -> int:
        """Side of one token in pixels."""
        return self.patch * self.merge

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture; InputError for no pixels or an aspect ratio over 200."""
        height, width = picture_size(height, width)
        check_aspect_ratio(height, width)
        limits = {"min_pixels": self.min_pixels, "max_pixels": self.max_pixels}
        high, wide = smart_resize(height, width, factor=self.factor, **limits)
        return self._grid("image", 1, high, wide)

    def video(self, num_frames: int, height: int, width: int, fps: float = 2.0) -> RenderedMedia:
        """A clip of sampled frames; an odd last frame is repeated."""
        num_frames, fps = whole("num_frames", num_frames), above_zero("fps", fps)
        height, width = picture_size(height, width)
        check_aspect_ratio(height, width)
        limits = {"min_pixels": self.video_min_pixels, "max_pixels": self.video_max_pixels}
        high, wide = smart_resize(height, width, factor=self.factor, **limits)
        return self._grid("video", self._steps(num_frames), high, wide, self._video_extras(fps))

    def _steps(self, num_frames: int) -> int:
        return -(-num_frames // self.temporal_patch)

    def _video_extras(self, fps: float) -> dict[str, Field]:  # noqa: ARG002 (Qwen2.5-VL adds one)
        return {}

    def _grid(
        self,
        modality: str,
        steps: int,
        high: int,
        wide: int,
        extras: dict[str, Field] | None = None,
        mask: bytes | None = None,
    ) -> RenderedMedia:
        """The item of a grid of `steps` x `high` x `wide` (temporal patches, pixels, pixels)."""
        rows, columns = high // self.patch, wide // self.patch
        patches = steps * rows * columns
        tokens = patches // self.merge**2
        pixels = "pixel_values" if modality == "image" else "pixel_values_videos"
        fields = {
            pixels: flat(self.wire_dtype, patches, 3 * self.temporal_patch * self.patch**2),
            f"{modality}_grid_thw": known("int64", (steps, rows, columns)),
        }
        return RenderedMedia(
            modality=modality,
            num_tokens=tokens if mask is None else len(mask),
            is_embed=mask,
            item=MediaItem(fields | (extras or {})),
            num_embeds=tokens,
            embedding_bytes=self._embedding_bytes(tokens) * (1 + self.deepstack_levels),
            encoder_patches=patches,
            encoder_groups=steps,
            encoder_windows=self._windows(steps, rows, columns),
            prefix_tokens=1,
            suffix_tokens=1,
        )

    def _windows(self, steps: int, rows: int, columns: int) -> int:  # noqa: ARG002
        return 0

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:
        """Grids up to 1 : 4 with about the wanted number of tokens, within the pixel limits."""
        low, high = -(-self.min_pixels // self.factor**2), self.max_pixels // self.factor**2
        wanted = min(max(num_tokens, low), high)
        root = math.isqrt(wanted)
        for rows in range(max(1, root // 2), root + 1):
            for columns in (wanted // rows, -(-wanted // rows)):
                yield rows * self.factor, columns * self.factor


@dataclass(frozen=True, kw_only=True)
class Qwen25VL(QwenVL):
    """Qwen2.5-VL: as Qwen2-VL, with absolute time in positions and windowed attention.

    `second_per_grid_ts` is the processor's float32; vLLM casts it to the model's dtype with the pixels (two bytes, and 2/3 s
    becomes 0.668 s in bfloat16).

    Attributes:
        window: Side of an attention window in pixels (four layers of the encoder attend over the whole frame); 0 for none.
    """

    position_scheme: ClassVar[str] = "mrope-qwen2.5-vl"
    position_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType(
        {"image": frozenset({"image_grid_thw"}), "video": frozenset({"video_grid_thw", "second_per_grid_ts"})}
    )

    window: int = may_be_zero(112)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_multiple("window", self.patch, "the side of a patch")

    def _video_extras(self, fps: float) -> dict[str, Field]:
        return {"second_per_grid_ts": known("float32", (self.temporal_patch / fps,), shape=())}

    def _windows(self, steps: int, rows: int, columns: int) -> int:
        if not self.window:
            return 0
        side = self.window // self.patch
        return steps * -(-rows // side) * -(-columns // side)


@dataclass(frozen=True, kw_only=True)
class Qwen3VL(QwenVL):
    """Qwen3-VL: patch 16, deepstack levels, and clips told frame by frame with a timestamp before each.

    Each temporal patch of a clip lies in the prompt as `<S.S seconds>`, a start marker, its tokens and an end marker, all of them
    inside the placeholder range; only the tokens take embeddings. The frames can be told from the mask: every run of ones is one.

    The pixel limits are those of the checkpoints; the class defaults for clips are 131,072 to 786,432 over all frames.
    """

    position_scheme: ClassVar[str] = "mrope-qwen3-vl"
    metadata_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType(
        {"image": frozenset({"image_grid_thw"}), "video": frozenset({"video_grid_thw", "timestamps"})}
    )

    patch: int = 16
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    video_min_pixels: int = 4_096
    video_max_pixels: int = 25_165_824
    deepstack_levels: int = may_be_zero(3)

    def video(self, num_frames: int, height: int, width: int, fps: float = 2.0) -> RenderedMedia:
        """A clip of sampled frames, at least one temporal patch of them; an odd last frame is repeated."""
        num_frames, fps = whole("num_frames", num_frames), above_zero("fps", fps)
        if num_frames < self.temporal_patch:
            raise InputError(f"clip of {num_frames} frame", f"{self.name} needs at least {self.temporal_patch}")
        height, width = picture_size(height, width)
        high, wide = self._frame_size(num_frames, height, width)
        steps = self._steps(num_frames)
        stamps = timestamps_s(num_frames, fps, self.temporal_patch)
        body = b"\0" + b"\1" * (high * wide // self.factor**2) + b"\0"
        mask = b"".join(b"\0" * timestamp_tokens(stamp) + body for stamp in stamps)
        return self._grid(
            "video", steps, high, wide, {"timestamps": Field(stamps, BatchedKind(keep_on_cpu=True))}, mask
        )

    def _frame_size(self, num_frames: int, height: int, width: int) -> tuple[int, int]:
        """Frame height and width in pixels; a side below the factor is first scaled up to it."""
        if min(height, width) < self.factor:
            scale = max(self.factor / height, self.factor / width)
            height, width = int(height * scale), int(width * scale)
        check_aspect_ratio(height, width)
        return smart_resize(
            height,
            width,
            factor=self.factor,
            min_pixels=self.video_min_pixels,
            max_pixels=self.video_max_pixels,
            frames=num_frames,
            counted_frames=round(num_frames / self.temporal_patch) * self.temporal_patch,
        )


def timestamps_s(num_frames: int, fps: float, temporal_patch: int) -> tuple[float, ...]:
    """Seconds of each temporal patch: midway between its first and its last frame, the last frame standing in for missing ones."""
    last = num_frames - 1
    firsts = range(0, num_frames, temporal_patch)
    return tuple((first / fps + min(first + temporal_patch - 1, last) / fps) / 2 for first in firsts)


def timestamp_tokens(seconds: float) -> int:
    """Tokens of the text `<S.S seconds>`: the tokenizer splits digits, and the word with its space is one token."""
    return len(f"{seconds:.1f}") + 3
