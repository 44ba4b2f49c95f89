"""How long the CPU takes to turn a request's pictures and text into features."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from epdsim.core.errors import InputError
from epdsim.cost.checks import non_negative, positive

PREPROCESS_CPU_MS = (
    (256 * 256, 5.34),
    (512 * 512, 4.95),
    (1024 * 1024, 5.85),
    (1536 * 1536, 8.66),
    (2048 * 2048, 11.46),
    (3072 * 3072, 22.61),
    (4096 * 4096, 40.48),
)
"""(pixels, milliseconds) of the Qwen image processor on a CPU, per image (vLLM PR 50390); the fall from the first to the
second row is in the measurement."""

PREPROCESS_GPU_MS = (
    (256 * 256, 0.62),
    (512 * 512, 0.76),
    (1024 * 1024, 1.45),
    (1536 * 1536, 2.63),
    (2048 * 2048, 4.32),
    (3072 * 3072, 12.15),
    (4096 * 4096, 17.88),
)
"""The same on a GPU (vLLM PR 50390)."""

DECODE_MEGAPIXEL_MS = 13.0
"""To make pixels of a file, and whatever else grows with them in a server: what was spared an instance that no longer had to
process a picture of random noise with 2,048 pixels a side took it 66 ms (vLLM PR 50390), 11.5 of them in the table above."""

LOADERS = 8
"""Files that a server decodes at the same time (`VLLM_MEDIA_LOADING_THREAD_COUNT`)."""

MEDIA_MS = 6.15
"""To put the placeholders of its media into a prompt, once per request that has any (vLLM PR 42785, one picture; on the
slower host of PR 31655 it is 15 ms with two)."""


class RenderCost:
    """Preprocessing by interpolation over an image's pixels, hashing per byte, and fixed costs.

    Args:
        table: (pixels, milliseconds) in ascending order of pixels; below the first row its time holds, above the last row the last
            slope goes on.
        scale: Factor on the table, for a host faster or slower than the one it was measured on.
        decode_megapixel_ms: Per million pixels of a picture's file; as many as `LOADERS` are decoded at a time.
        media_ms: Per request with media: its prompt's placeholders.
        hash_bytes_per_s: Rate at which decoded pixels (3 bytes each) are hashed.
        fixed_ms: Per request.
        item_ms: Per item, cached or not: cache look-up and book-keeping.
        text_token_us: Per text token.
    """

    __slots__ = ("_decode_ms", "_fixed_ms", "_hash_ms", "_item_ms", "_media_ms", "_millis", "_pixels", "_text_ms")

    def __init__(
        self,
        table: Sequence[tuple[float, float]] = PREPROCESS_CPU_MS,
        *,
        scale: float = 1.0,
        decode_megapixel_ms: float = DECODE_MEGAPIXEL_MS,
        media_ms: float = MEDIA_MS,
        hash_bytes_per_s: float = 4e9,
        fixed_ms: float = 0.0,
        item_ms: float = 0.5,
        text_token_us: float = 1.0,
    ) -> None:
        positive("scale", scale)
        self._pixels = [positive("pixels", pixels) for pixels, _ in table]
        self._millis = [non_negative("milliseconds", millis) * scale for _, millis in table]
        if len(table) < 2 or any(a >= b for a, b in zip(self._pixels, self._pixels[1:], strict=False)):
            raise InputError("render table", "needs two rows or more, in ascending order of pixels")
        self._hash_ms = 3e3 / positive("hash_bytes_per_s", hash_bytes_per_s)
        self._decode_ms = non_negative("decode_megapixel_ms", decode_megapixel_ms) * 1e-6
        self._media_ms = non_negative("media_ms", media_ms)
        self._fixed_ms = non_negative("fixed_ms", fixed_ms)
        self._item_ms = non_negative("item_ms", item_ms)
        self._text_ms = non_negative("text_token_us", text_token_us) * 1e-3

    def preprocess_ms(self, pixels: float) -> float:
        """Milliseconds of resize, normalise and patch layout of one image; all frames' pixels for a clip.

        Raises:
            InputError: When `pixels` is negative or not a number.
        """
        if not pixels >= 0:
            raise InputError(f"a picture of {pixels} pixels", "must be 0 or more")
        xs, ys = self._pixels, self._millis
        if pixels <= xs[0]:
            return ys[0]
        at = min(bisect_right(xs, pixels), len(xs) - 1)
        x0, x1, y0, y1 = xs[at - 1], xs[at], ys[at - 1], ys[at]
        return y0 + (pixels - x0) * (y1 - y0) / (x1 - x0)

    def decode_ms(self, file_pixels_per_item: Sequence[float]) -> float:
        """Milliseconds until the files of one request are pixels."""
        if not file_pixels_per_item:
            return 0.0
        return self._decode_ms * max(*file_pixels_per_item, sum(file_pixels_per_item) / LOADERS)

    def render_ms(
        self,
        pixels_per_item: Sequence[float],
        text_tokens: int = 0,
        cached_pixels_per_item: Sequence[float] = (),
        file_pixels_per_item: Sequence[float] = (),
    ) -> float:
        """Milliseconds of one request.

        Args:
            pixels_per_item: Pixels of each item that is preprocessed.
            text_tokens: Tokens of text to encode.
            cached_pixels_per_item: Pixels of each item that the processor cache holds: hashed and looked up, not preprocessed.
            file_pixels_per_item: Pixels of each file that is decoded, which is before the processor cache is asked.
        """
        if not (pixels_per_item or cached_pixels_per_item or file_pixels_per_item):
            return self._fixed_ms + self._text_ms * text_tokens
        pixels = sum(pixels_per_item) + sum(cached_pixels_per_item)
        items = len(pixels_per_item) + len(cached_pixels_per_item)
        return (
            self._fixed_ms
            + self._text_ms * text_tokens
            + (self._media_ms if items else 0.0)
            + self._item_ms * items
            + self._hash_ms * pixels
            + self.decode_ms(file_pixels_per_item)
            + sum(map(self.preprocess_ms, pixels_per_item))
        )
