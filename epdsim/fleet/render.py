"""Render: a workload's request becomes a prompt with placeholders, the four tables of its media, and their bytes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping

from epdsim.core.items import Field, FieldData, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.legs import RawMedia
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.records import record
from epdsim.core.rules import Dialect
from epdsim.core.slots import DeclaredFields, FeatureTables, Rendered, extract_features
from epdsim.media import Family, RenderedMedia
from epdsim.workload.geometry import Geometries
from epdsim.workload.request import MediaRef, WorkloadRequest

JPEG_BYTES_PER_PIXEL = 0.15
"""Size of a picture's file when a workload does not state it: 200x300 is about 9 KB (vLLM issue 46722)."""

WAV_BYTES_PER_S = 32_000
"""16 kHz, 16 bit, one channel."""

PIXELS_PER_TOKEN = 1024
"""Where a source states a picture's tokens in place of its size: one of Qwen3-VL's tokens covers 32 x 32."""


@record
class RenderedItem:
    """One item of a request.

    Attributes:
        mm_hash: Its content hash.
        media: What the family says of it.
        pixels: To preprocess, over all frames.
        raw: The client's file, as a leg with raw media carries it.
    """

    mm_hash: str
    media: RenderedMedia
    pixels: int
    raw: RawMedia

    @property
    def file_pixels(self) -> int:
        """To decode: those of a picture; what a clip takes is not known."""
        return self.pixels if self.raw.modality == "image" else 0


@record
class RenderedRequest:
    """What render hands to the orchestrator.

    Attributes:
        source: The workload's request.
        prompt: Text runs and placeholders.
        tables: Hashes, placeholders, payload and metadata; None without media.
        items: In order of offset.
    """

    source: WorkloadRequest
    prompt: RunPrompt
    tables: FeatureTables[MediaItem] | None
    items: tuple[RenderedItem, ...]

    @property
    def num_media_tokens(self) -> int:
        """Placeholder tokens in all."""
        return sum([item.media.num_tokens for item in self.items])

    @property
    def media(self) -> Mapping[str, RenderedMedia]:
        """The distinct items by hash, in order of first occurrence."""
        return {item.mm_hash: item.media for item in self.items}


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
    """Turns workload requests into prompts and tables of one model family.

    Args:
        family: The model family.
        dialect: Whose tables (releases leave gaps in them).
        notices: Takes the family's one notice when its declared fields cannot be read.
    """

    def __init__(self, family: Family, dialect: Dialect, notices: list[str]) -> None:
        self.family, self._dialect = family, dialect
        self._declared = DeclaredFields(family.declared_metadata_fields, notices.append)
        self._geometries = Geometries(family)

    def render(self, request: WorkloadRequest) -> RenderedRequest:
        """The request as the family lays it out.

        Raises:
            InputError: The family cannot take one of the media, or the dialect's tables are refused by its own check.
        """
        text = request.text
        if len(text) == len(request.parts):
            return RenderedRequest(request, RunPrompt(text), None, ())
        runs: list[TokenRun] = []
        items: list[RenderedItem] = []
        hashes: dict[str, list[str]] = {}
        placeholders: dict[str, list[PlaceholderRange]] = {}
        payload: dict[str, list[MediaItem | None]] = {}
        offset = 0
        for part in request.parts:
            if isinstance(part, TokenRun):
                runs.append(part)
                offset += part.length
                continue
            item = self._item(part)
            media, modality = item.media, part.modality
            runs.append(TokenRun(("before", modality), 0, media.prefix_tokens))
            runs.append(TokenRun(("placeholder", item.mm_hash), 0, media.num_tokens))
            runs.append(TokenRun(("after", modality), 0, media.suffix_tokens))
            offset += media.prefix_tokens
            items.append(item)
            hashes.setdefault(modality, []).append(item.mm_hash)
            placeholders.setdefault(modality, []).append(PlaceholderRange(offset, media.num_tokens, media.is_embed))
            payload.setdefault(modality, []).append(_with_digests(media.item, item.mm_hash))
            offset += media.num_tokens + media.suffix_tokens
        prompt = RunPrompt(runs)
        tables = extract_features(
            Rendered(prompt, hashes, placeholders, payload), self._declared, dialect=self._dialect
        )
        return RenderedRequest(request, prompt, tables, tuple(items))

    def _item(self, ref: MediaRef) -> RenderedItem:
        media, mm_hash = self._geometries.of(ref), content_hash(ref)
        pixels = (ref.height * ref.width or media.num_embeds * PIXELS_PER_TOKEN) * ref.num_frames
        estimate = ref.duration_s * WAV_BYTES_PER_S if ref.modality == "audio" else pixels * JPEG_BYTES_PER_PIXEL
        file_bytes = ref.file_bytes or int(estimate)
        return RenderedItem(
            mm_hash, media, pixels, RawMedia(ref.modality, mm_hash, url_chars=4 * ((file_bytes + 2) // 3))
        )


def content_hash(ref: MediaRef) -> str:
    """64 hex digits over identity and size, as long as the hashes on vLLM's wire."""
    text = f"{ref.modality}|{ref.content}|{ref.height}x{ref.width}x{ref.num_frames}|{ref.duration_s}|{ref.num_tokens}"
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _with_digests(item: MediaItem, mm_hash: str) -> MediaItem:
    """Two contents of equal geometry must not count as one tensor; the digest tells them apart."""
    return MediaItem(
        {name: Field(_digest_data(one.data, f"{mm_hash}/{name}"), one.kind) for name, one in item.fields.items()}
    )


def _digest_data(data: FieldData, digest: str) -> FieldData:
    if isinstance(data, TensorHandle):
        return TensorHandle(data.dtype, data.shape, data.source, digest)
    if isinstance(data, tuple):
        return tuple(_digest_data(part, f"{digest}/{index}") for index, part in enumerate(data))
    return data
