"""Whisper and Qwen2-Audio, and the mel arithmetic of the omni models: sound as mel frames, 100 a second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from epdsim.core.errors import InputError
from epdsim.core.items import MediaItem
from epdsim.media.base import BaseFamily, RenderedMedia, above_zero, sized

SAMPLING_RATE_HZ = 16_000
HOP_SAMPLES = 160
FRAMES_PER_SECOND = SAMPLING_RATE_HZ // HOP_SAMPLES


def mel_frames(duration_s: float, window_s: float = math.inf) -> int:
    """Mel frames of a sound: a started frame counts, except beyond the window to which shorter sounds are padded."""
    samples = round(above_zero("duration_s", duration_s) * SAMPLING_RATE_HZ)
    return -(-samples // HOP_SAMPLES) if samples <= window_s * SAMPLING_RATE_HZ else samples // HOP_SAMPLES


def halved(length: int) -> int:
    """Length after a convolution of stride 2 that keeps the ends."""
    return (length - 1) // 2 + 1


def pooled_tokens(frames: int) -> int:
    """Tokens of a Qwen2-Audio or Qwen2.5-Omni sound: one convolution of stride 2, then pooling by 2."""
    return (halved(frames) - 2) // 2 + 1


def too_short(duration_s: float) -> InputError:
    """What is raised for a sound that yields no token."""
    return InputError(f"sound of {duration_s} s", "it is too short to give a token")


@dataclass(frozen=True, kw_only=True)
class Whisper(BaseFamily):
    """Whisper: every sound is padded or cut to 30 s; the placeholder lies in the encoder's prompt.

    Attributes:
        mel_bins: Width of a mel frame.
        window_s: Seconds that every sound is brought to.
    """

    mel_bins: int = 128
    window_s: int = 30

    @property
    def modalities(self) -> frozenset[str]:
        """Sounds."""
        return frozenset({"audio"})

    def audio(self, duration_s: float) -> RenderedMedia:
        """A sound; its length does not matter."""
        above_zero("duration_s", duration_s)
        frames = self.window_s * FRAMES_PER_SECOND
        positions = halved(frames)
        return RenderedMedia(
            modality="audio",
            num_tokens=positions,
            is_embed=None,
            item=MediaItem({"input_features": sized(self.wire_dtype, self.mel_bins, frames)}),
            num_embeds=positions,
            embedding_bytes=self._embedding_bytes(positions),
            encoder_patches=positions,
        )


@dataclass(frozen=True, kw_only=True)
class Qwen2Audio(Whisper):
    """Qwen2-Audio: features padded to 30 s, tokens by the true length, 25 a second.

    vLLM declares `audio_num_tokens` as placeholder metadata, but only clients that bring embeddings send that field.
    """

    metadata_fields: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType(
        {"audio": frozenset({"audio_num_tokens"})}
    )

    def audio(self, duration_s: float) -> RenderedMedia:
        """A sound; InputError when it is too short to give a token."""
        padded = self.window_s * FRAMES_PER_SECOND
        tokens = pooled_tokens(min(mel_frames(duration_s), padded))
        if tokens < 1:
            raise too_short(duration_s)
        fields = {
            "input_features": sized(self.wire_dtype, self.mel_bins, padded),
            "feature_attention_mask": sized("int32", padded),
        }
        return RenderedMedia(
            modality="audio",
            num_tokens=tokens,
            is_embed=None,
            item=MediaItem(fields),
            num_embeds=tokens,
            embedding_bytes=self._embedding_bytes(tokens),
            encoder_patches=halved(padded),
            prefix_tokens=1,
            suffix_tokens=1,
        )
