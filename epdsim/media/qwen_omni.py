"""Qwen2.5-Omni and Qwen3-Omni: pictures and clips on the Qwen grids, and sounds.

Sound inside a clip (`use_audio_in_video`) is not laid out: the two items would share one range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from epdsim.core.items import BatchedKind, Field, FlatKind, MediaItem, SharedKind, TensorHandle
from epdsim.media.audio import FRAMES_PER_SECOND, halved, mel_frames, pooled_tokens, too_short
from epdsim.media.base import RenderedMedia, known, may_be_zero, sized
from epdsim.media.qwen_vl import Qwen25VL

_POSITION_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "image": frozenset({"image_grid_thw"}),
        "video": frozenset({"video_grid_thw", "second_per_grid_ts", "use_audio_in_video"}),
        "audio": frozenset({"audio_feature_lengths"}),
    }
)


@dataclass(frozen=True, kw_only=True)
class Qwen25Omni(Qwen25VL):
    """Qwen2.5-Omni: patch 14; sounds in chunks of 2 s, 25 tokens a second.

    A sound of more than 300 s is not cut: vLLM switches the extractor's truncation off.

    Attributes:
        mel_bins: Width of a mel frame.
        audio_window_s: Seconds to which the mask of a shorter sound is padded.
        mask_kept: Whether the mask stays on the CPU, and so travels as metadata, as in vLLM 0.32 (rule `slots.mask_kept`).
        audio_chunk_frames: Mel frames that attend to one another.
        video_min_pixels: Smallest area of a frame.
        video_max_pixels: Largest area of a frame.
    """

    position_scheme: ClassVar[str] = "mrope-qwen2.5-omni"
    position_fields: ClassVar[Mapping[str, frozenset[str]]] = _POSITION_FIELDS
    metadata_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType(
        {
            "image": frozenset({"image_grid_thw"}),
            "video": frozenset({"video_grid_thw"}),
            "audio": frozenset({"audio_feature_lengths"}),
        }
    )

    video_min_pixels: int = 128 * 28 * 28
    video_max_pixels: int = 768 * 28 * 28
    mel_bins: int = 128
    audio_window_s: int = 300
    mask_kept: bool = True
    audio_chunk_frames: int = 200

    @property
    def modalities(self) -> frozenset[str]:
        """Pictures, clips and sounds."""
        return frozenset({"image", "video", "audio"})

    def audio(self, duration_s: float) -> RenderedMedia:
        """A sound; InputError when it is too short to give a token."""
        frames = self._frames(duration_s)
        tokens = self._audio_tokens(frames)
        if tokens < 1:
            raise too_short(duration_s)
        positions, chunk = self._audio_work(frames, tokens)
        slices = FlatKind((((None, None, None), (0, frames, None)),), dim=1)
        fields = {
            "input_audio_features": Field(TensorHandle(self.wire_dtype, (self.mel_bins, frames)), slices),
            "feature_attention_mask": self._audio_mask(frames),
            "audio_feature_lengths": known("int64", (frames,), shape=()),
        }
        return RenderedMedia(
            modality="audio",
            num_tokens=tokens,
            is_embed=None,
            item=MediaItem(fields),
            num_embeds=tokens,
            embedding_bytes=self._embedding_bytes(tokens),
            encoder_patches=positions,
            encoder_groups=-(-positions // chunk),
            prefix_tokens=1,
            suffix_tokens=1,
        )

    def _video_extras(self, fps: float) -> dict[str, Field]:
        silent = known("bool", (False,), shape=(), kind=SharedKind(1, keep_on_cpu=True))
        return super()._video_extras(fps) | {"use_audio_in_video": silent}

    def _frames(self, duration_s: float) -> int:
        return mel_frames(duration_s, self.audio_window_s)

    def _audio_tokens(self, frames: int) -> int:
        return pooled_tokens(frames)

    def _audio_work(self, frames: int, tokens: int) -> tuple[int, int]:  # noqa: ARG002
        """Positions in the encoder, and positions that attend to one another."""
        return halved(frames), halved(self.audio_chunk_frames)

    def _audio_mask(self, frames: int) -> Field:
        padded = max(frames, self.audio_window_s * FRAMES_PER_SECOND)
        return sized("int32", padded, kind=BatchedKind(keep_on_cpu=self.mask_kept))


@dataclass(frozen=True, kw_only=True)
class Qwen3Omni(Qwen25Omni):
    """Qwen3-Omni: patch 16, deepstack levels for pictures and clips, whole sounds at 13 tokens a second.

    vLLM 0.32 declares placeholder metadata for its sounds only.
    """

    position_scheme: ClassVar[str] = "mrope-qwen3-omni"
    metadata_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType(
        {"audio": frozenset({"audio_feature_lengths"})}
    )

    patch: int = 16
    video_min_pixels: int = 128 * 32 * 32
    video_max_pixels: int = 768 * 32 * 32
    window: int = may_be_zero(0)
    deepstack_levels: int = may_be_zero(3)
    audio_chunk_frames: int = 800

    def _frames(self, duration_s: float) -> int:
        return mel_frames(duration_s)

    def _audio_tokens(self, frames: int) -> int:
        return segment_tokens(frames)

    def _audio_work(self, frames: int, tokens: int) -> tuple[int, int]:  # noqa: ARG002
        return tokens, segment_tokens(self.audio_chunk_frames)

    def _audio_mask(self, frames: int) -> Field:
        return sized("float32", frames, kind=BatchedKind(keep_on_cpu=self.mask_kept))


def segment_tokens(frames: int) -> int:
    """Tokens of a Qwen3-Omni sound: 13 for each full 100 frames, three halvings of the rest."""
    return frames // 100 * 13 + halved(halved(halved(frames % 100)))
