"""Render: a workload's request becomes a prompt with placeholders, features and bytes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace

from epdsim.core.items import Field, FieldData, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.fleet.bodies import ItemBytes, item_bytes
from epdsim.media import Family, RenderedMedia
from epdsim.workload.request import MediaRef, WorkloadRequest

JPEG_BYTES_PER_PIXEL = 0.15
"""Size of a picture's file when a workload does not state it: 200x300 is about 9 KB (vLLM issue 46722)."""

WAV_BYTES_PER_S = 32_000
"""16 kHz, 16 bit, one channel."""


@dataclass(frozen=True, slots=True)
class RenderedRequest:
    """What render hands to the orchestrator.

    Attributes:
        source: The workload's request.
        prompt: Text runs and placeholders.
        features: Full items in order of offset.
        media: Beside each feature, what the family says of its item (encoder work, embedding bytes).
        item_bytes: Beside each feature, what it weighs on the wire.
        pixels: Beside each feature, the pixels to preprocess.
    """

    source: WorkloadRequest
    prompt: RunPrompt
    features: tuple[MediaFeature, ...]
    media: tuple[RenderedMedia, ...]
    item_bytes: tuple[ItemBytes, ...]
    pixels: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        """Raw tensor bytes of all items."""
        return sum(feature.data.nbytes for feature in self.features if feature.data is not None)


class ProcessorCache:
    """The front end's cache of processed items: least recently used by bytes (vLLM's `mm_processor_cache_gb`)."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes, self._used_bytes = capacity_bytes, 0
        self._sizes: OrderedDict[str, int] = OrderedDict()

    def hit(self, mm_hash: str, nbytes: int) -> bool:
        """Look an item up and make it the most recent; a miss puts it in when it fits."""
        if mm_hash in self._sizes:
            self._sizes.move_to_end(mm_hash)
            return True
        if nbytes <= self._capacity_bytes:
            self._sizes[mm_hash] = nbytes
            self._used_bytes += nbytes
            while self._used_bytes > self._capacity_bytes:
                self._used_bytes -= self._sizes.popitem(last=False)[1]
        return False


class Renderer:
    """Turns workload requests into prompts and features of one model family."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._geometries: dict[tuple[object, ...], RenderedMedia] = {}
        self._weights: dict[tuple[int, int], ItemBytes] = {}

    def render(self, request: WorkloadRequest) -> RenderedRequest:
        """The request as the family lays it out.

        Raises:
            InputError: The family cannot take one of the media; the message names the request.
        """
        runs: list[TokenRun] = []
        features: list[MediaFeature] = []
        media: list[RenderedMedia] = []
        weights: list[ItemBytes] = []
        pixels: list[int] = []
        offset = 0
        for part in request.parts:
            if isinstance(part, TokenRun):
                runs.append(part)
                offset += part.length
                continue
            rendered = self.geometry(part)
            mm_hash = content_hash(part)
            marker = ("marker", part.modality)
            runs.append(TokenRun((*marker, "before"), 0, rendered.prefix_tokens))
            runs.append(TokenRun(("placeholder", mm_hash), 0, rendered.num_tokens))
            runs.append(TokenRun((*marker, "after"), 0, rendered.suffix_tokens))
            position = PlaceholderRange(offset + rendered.prefix_tokens, rendered.num_tokens, rendered.is_embed)
            features.append(
                MediaFeature(part.modality, mm_hash, position, _with_digests(rendered.item, mm_hash), mm_hash)
            )
            media.append(rendered)
            weights.append(self._weigh(part, rendered))
            pixels.append(_pixels(part, rendered))
            offset += rendered.prefix_tokens + rendered.num_tokens + rendered.suffix_tokens
        return RenderedRequest(request, RunPrompt(runs), tuple(features), tuple(media), tuple(weights), tuple(pixels))

    def geometry(self, ref: MediaRef) -> RenderedMedia:
        """What the family makes of a picture, clip or sound of this size; remembered by size."""
        key = (ref.modality, ref.height, ref.width, ref.num_frames, ref.duration_s, ref.num_tokens)
        found = self._geometries.get(key)
        if found is None:
            found = self._geometries[key] = self._render_media(ref)
        return found

    def _weigh(self, ref: MediaRef, rendered: RenderedMedia) -> ItemBytes:
        file_bytes = ref.file_bytes or max(1, int(_pixels(ref, rendered) * JPEG_BYTES_PER_PIXEL))
        if ref.modality == "audio" and not ref.file_bytes:
            file_bytes = int(ref.duration_s * WAV_BYTES_PER_S)
        key = (id(rendered), file_bytes)
        found = self._weights.get(key)
        if found is None:
            declared = self.family.declared_metadata_fields(ref.modality)
            found = self._weights[key] = item_bytes(rendered, declared, file_bytes)
        return found

    def _render_media(self, ref: MediaRef) -> RenderedMedia:
        if ref.modality == "audio":
            return self.family.audio(ref.duration_s)
        height, width = ref.height, ref.width
        if ref.num_tokens and not (height or width):
            height, width = self.family.image_size_for_tokens(ref.num_tokens)
        if ref.modality == "video":
            return self.family.video(ref.num_frames, height, width)
        return self.family.image(height, width)


def content_hash(ref: MediaRef) -> str:
    """64 hex digits over identity and size, as long as the hashes on vLLM's wire."""
    text = f"{ref.modality}|{ref.content}|{ref.height}x{ref.width}x{ref.num_frames}|{ref.duration_s}|{ref.num_tokens}"
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _pixels(ref: MediaRef, rendered: RenderedMedia) -> int:
    """Pixels of all frames; from the tokens where a source states only these (a token of Qwen's grid covers 32 x 32)."""
    return (ref.height * ref.width or rendered.num_embeds * 1024) * ref.num_frames


def _with_digests(item: MediaItem, mm_hash: str) -> MediaItem:
    """Two contents of equal geometry must not count as one tensor; the digest tells them apart."""
    return MediaItem(
        {name: Field(_digest_data(one.data, f"{mm_hash}/{name}"), one.kind) for name, one in item.fields.items()}
    )


def _digest_data(data: FieldData, digest: str) -> FieldData:
    if isinstance(data, TensorHandle):
        return replace(data, digest=digest)
    if isinstance(data, tuple):
        return tuple(_digest_data(part, f"{digest}/{index}") for index, part in enumerate(data))
    return data
