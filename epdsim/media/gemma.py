"""Gemma 3 and Gemma 4.

Gemma 3 makes 256 tokens of every picture. Gemma 4 keeps the aspect ratio, fills a budget of soft tokens as far as whole pooling
cells allow, and pads the patches to the budget, so that the payload has one size whatever the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from epdsim.core.items import BatchedKind, Field, MediaItem
from epdsim.media.audio import halved, too_short
from epdsim.media.base import BaseFamily, RenderedMedia, above_zero, flat, known, picture_size, sized, whole

SOFT_TOKEN_BUDGETS = (70, 140, 280, 560, 1120)
"""What `max_soft_tokens` may be."""


@dataclass(frozen=True, kw_only=True)
class Gemma3(BaseFamily):
    """Gemma 3: every picture is brought to one square and pooled to 256 tokens.

    The placeholder is a blank-line token, a begin marker, the tokens, an end marker and a blank-line token. Pan and scan (off in
    the checkpoints, and advised against by vLLM) is not laid out.

    Attributes:
        image_side: Side of the square in pixels.
        patch: Side of a patch in pixels.
        image_tokens: Tokens of a picture.
    """

    image_side: int = 896
    patch: int = 14
    image_tokens: int = 256

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture; its size does not matter."""
        picture_size(height, width)
        mask = b"\0\0" + b"\1" * self.image_tokens + b"\0\0"
        fields = {
            "pixel_values": flat(self.wire_dtype, 1, 3, self.image_side, self.image_side),
            "num_patches": known("int64", (1,), shape=()),
        }
        return RenderedMedia(
            modality="image",
            num_tokens=len(mask),
            is_embed=mask,
            item=MediaItem(fields),
            num_embeds=self.image_tokens,
            embedding_bytes=self._embedding_bytes(self.image_tokens),
            encoder_patches=(self.image_side // self.patch) ** 2,
        )

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        """The one square."""
        yield self.image_side, self.image_side


@dataclass(frozen=True, kw_only=True)
class Gemma4(BaseFamily):
    """Gemma 4.

    The placeholder is a begin marker, the soft tokens and an end marker, all inside the range.

    Attributes:
        max_soft_tokens: Budget of a picture.
        video_soft_tokens: Budget of a frame.
        has_audio: Whether the checkpoint has an audio tower (E2B and E4B have, 26B-A4B and 31B have not).
        patch: Side of a patch in pixels.
        pooling: Patches a side that become one soft token.
        audio_cap: Most audio tokens of one item.
        audio_chunk: Audio tokens that attend to one another.
        longest_audio_s: Seconds beyond which a sound is cut off, as the extractor does by itself and as the cap on tokens needs;
            vLLM 0.32 switches the cut off and sends the frames of the whole sound with a placeholder of `audio_cap` tokens.
        mel_bins: Width of a mel frame.
        sampling_rate_hz: Samples of a second of audio.
    """

    max_soft_tokens: int = 280
    video_soft_tokens: int = 70
    has_audio: bool = False
    patch: int = 16
    pooling: int = 3
    audio_cap: int = 750
    audio_chunk: int = 12
    longest_audio_s: int = 30
    mel_bins: int = 128
    sampling_rate_hz: int = 16_000

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_choice("max_soft_tokens", SOFT_TOKEN_BUDGETS)
        self._check_choice("video_soft_tokens", SOFT_TOKEN_BUDGETS)

    @property
    def modalities(self) -> frozenset[str]:
        """Pictures, clips, and sounds when there is an audio tower."""
        return frozenset({"image", "video", "audio"} if self.has_audio else {"image", "video"})

    def image(self, height: int, width: int) -> RenderedMedia:
        """A picture."""
        height, width = picture_size(height, width)
        tokens = self.soft_tokens(height, width, self.max_soft_tokens)
        slots = self.max_soft_tokens * self.pooling**2
        fields = {
            "pixel_values": sized(self.wire_dtype, slots, 3 * self.patch**2),
            "pixel_position_ids": sized("int64", slots, 2),
        }
        return self._rendered("image", b"\0" + b"\1" * tokens + b"\0", fields, slots, 1)

    def video(self, num_frames: int, height: int, width: int, fps: float = 2.0) -> RenderedMedia:
        """A clip: `mm:ss`, begin marker, soft tokens, end marker for each frame, all inside the range."""
        num_frames, fps = whole("num_frames", num_frames), above_zero("fps", fps)
        height, width = picture_size(height, width)
        tokens = self.soft_tokens(height, width, self.video_soft_tokens)
        slots = self.video_soft_tokens * self.pooling**2
        stamps = tuple(frame / fps for frame in range(num_frames))
        body = b"\0" + b"\1" * tokens + b"\0"
        mask = b"".join(b"\0" * timestamp_tokens(stamp, first=stamp == 0) + body for stamp in stamps)
        kept = BatchedKind(keep_on_cpu=True)
        fields = {
            "pixel_values_videos": flat(self.wire_dtype, num_frames, slots, 3 * self.patch**2),
            "pixel_position_ids_videos": flat("int64", num_frames, slots, 2),
            "video_frame_counts": known("int64", (num_frames,), shape=()),
            "video_num_soft_tokens": Field((tokens,) * num_frames, kept),
            "video_timestamps": Field(stamps, kept),
        }
        return self._rendered("video", mask, fields, num_frames * slots, num_frames)

    def audio(self, duration_s: float) -> RenderedMedia:
        """A sound: begin marker, tokens (one per 40 ms), end marker; InputError when it is too short to give a token."""
        if not self.has_audio:
            raise self._lacks("audio")
        samples = round(above_zero("duration_s", duration_s) * self.sampling_rate_hz)
        frames = self._mel_frames(min(samples, self.longest_audio_s * self.sampling_rate_hz))
        tokens = min(halved(halved(frames)), self.audio_cap)
        if tokens < 1:
            raise too_short(duration_s)
        fields = {
            "input_features_padded": sized(self.wire_dtype, frames, self.mel_bins),
            "input_features_mask": sized("bool", frames),
        }
        groups = -(-tokens // self.audio_chunk)
        return self._rendered("audio", b"\0" + b"\1" * tokens + b"\0", fields, tokens, groups)

    def _mel_frames(self, samples: int) -> int:
        """Frames of 20 ms and one sample, 10 ms apart, the first half a frame before the start; none that runs over the end."""
        frame, hop = self.sampling_rate_hz // 50, self.sampling_rate_hz // 100
        return max(0, (samples + frame // 2 - (frame + 1)) // hop + 1)

    def soft_tokens(self, height: int, width: int, budget: int) -> int:
        """Soft tokens of a picture: whole cells a side after scaling it to the budget, at least one, at most the budget."""
        cell = self.patch * self.pooling
        scale = math.sqrt(budget * self.pooling**2 / ((height / self.patch) * (width / self.patch)))
        return min(max(1, math.floor(height * scale / cell)) * max(1, math.floor(width * scale / cell)), budget)

    def candidate_sizes(self, num_tokens: int) -> Iterable[tuple[int, int]]:  # noqa: ARG002
        """Pictures of the budget's area from square to 1 : 4; the aspect ratio decides how much of the budget is used."""
        area = self.max_soft_tokens * (self.patch * self.pooling) ** 2
        for height in range(math.isqrt(area), math.isqrt(area) // 2, -self.patch // 2):
            yield height, area // height

    def _rendered(
        self, modality: str, mask: bytes, fields: Mapping[str, Field], patches: int, groups: int
    ) -> RenderedMedia:
        embeds = mask.count(1)
        return RenderedMedia(
            modality=modality,
            num_tokens=len(mask),
            is_embed=mask,
            item=MediaItem(fields),
            num_embeds=embeds,
            embedding_bytes=self._embedding_bytes(embeds),
            encoder_patches=patches,
            encoder_groups=groups,
        )


def timestamp_tokens(seconds: float, *, first: bool) -> int:
    """Tokens of the text `mm:ss ` (with a space before it on all but the first frame): one a character."""
    return len(f"{int(seconds // 60):02d}:00 ") + (0 if first else 1)
