"""AIPerf's and Dynamo's multimodal data sets: JSON lines with the text and the media of each request themselves.

One object a line, AIPerf's `single_turn` (github.com/ai-dynamo/aiperf; Dynamo's benchmarks/multimodal/jsonl writes it): `text` or
`texts`; `image`, `images` with perhaps `image_uuids`, `audio`, `audios`, `video`, `videos` (URLs, paths or data); `timestamp`
in ms, `session_id`, `output_length`. The text is there and its tokens are not, nor the size of a picture: both are assumptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
from pydantic import PositiveFloat

from epdsim.core.prompt import TokenRun
from epdsim.workload.media import Position, insert_media, media_ref
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.sizes import SizeDistribution
from epdsim.workload.specs import PositiveInt
from epdsim.workload.streams import KeyedStreams
from epdsim.workload.trace_files import TimedRow, in_order, json_rows, line_error
from epdsim.workload.traces import TraceSpec

Texts = list[str | dict[str, Any]] | None
_LONGEST_NAME = 200
"""Characters of a URL or path that is its own identity; what is longer is data, and known by its digest."""


class AiperfLine(msgspec.Struct):
    """A request, or in `turns` several that follow each other."""

    text: str = ""
    texts: Texts = None
    image: str = ""
    images: Texts = None
    image_uuids: list[str] | None = None
    audio: str = ""
    audios: Texts = None
    video: str = ""
    videos: Texts = None
    timestamp: float | None = None
    delay: float | None = None
    session_id: str | None = None
    output_length: int | None = None
    turns: list[Any] | None = None


def _contents(one: str, many: Texts) -> list[str]:
    """Everything of a modality, one after the other; an object has its strings under `contents`."""
    found = [one] if one else []
    for entry in many or ():
        if isinstance(entry, str):
            found.append(entry)
        else:
            inner = entry.get("contents")
            if not isinstance(inner, list) or not all(isinstance(text, str) for text in inner):
                raise ValueError("has an object without a list of texts under 'contents'")
            found += inner
    return found


def _images(line: AiperfLine) -> list[str]:
    images = _contents(line.image, line.images)
    if line.image_uuids is None:
        return images
    if images and len(images) != len(line.image_uuids):
        raise ValueError(f"has {len(line.image_uuids)} image_uuids for {len(images)} images")
    return line.image_uuids


def _identity(content: str) -> str:
    return content if len(content) <= _LONGEST_NAME else f"sha256:{sha256(content.encode()).hexdigest()}"


def _timed_rows(path: Path) -> Iterator[TimedRow[AiperfLine]]:
    has_times = None
    for number, line in json_rows(path, msgspec.json.Decoder(AiperfLine)):
        if line.turns is not None or line.delay is not None:
            rule = "has turns or a delay: when it is sent depends on the answers before it"
            raise line_error(path, number, "", rule, "read conversations as aiperf-multi-turn")
        if has_times is None:
            has_times = line.timestamp is not None
        if has_times != (line.timestamp is not None):
            rule = "has a timestamp where others have none, or none where others have one"
            raise line_error(path, number, "", rule, "give all lines one, or none")
        yield line.timestamp or 0.0, number, line


class AiperfReader(TraceSpec):
    """What all data sets of AIPerf's form need to be told.

    Attributes:
        output_tokens: Of a line without `output_length`.
        characters_per_token: Of text; equal texts are equal tokens, any others have none in common.
        image_size: Of every picture, drawn once per picture where sizes vary.
        video_size: The same for videos.
        audio_s: Seconds of every sound.
        media_position: Where the media stand: AIPerf sends them behind the text.
    """

    output_tokens: PositiveInt | None = None
    characters_per_token: PositiveFloat = 4.0
    image_size: SizeDistribution | None = None
    video_size: SizeDistribution | None = None
    audio_s: PositiveFloat | None = None
    media_position: Position = "end"

    def statements(self, path: Path) -> list[str]:  # noqa: ARG002 - one signature for all traces
        """What reading the file assumes."""
        told = [f"{self.characters_per_token:g} characters a token, equal texts are equal tokens"]
        if self.output_tokens is not None:
            told.append(f"outputs of {self.output_tokens} tokens where the line says none")
        told += [f"pictures of {self.image_size.summary()}"] if self.image_size else []
        return told

    def output_of(self, line: AiperfLine) -> int:
        """Tokens that a line generates; ValueError when nobody says how many."""
        output_tokens = line.output_length if line.output_length is not None else self.output_tokens
        if output_tokens is None or output_tokens < 1:
            raise ValueError("says no output_length of at least 1, and output_tokens is not set")
        return output_tokens

    def parts_of(self, line: AiperfLine, request_id: str, streams: KeyedStreams) -> Parts:
        """The prompt of a line; ValueError when it says too little."""
        text = tuple(self._text(one) for one in _contents(line.text, line.texts) if one)
        media = list(self._media(line, streams))
        if not text and not media:
            raise ValueError("has neither text nor media")
        return tuple(insert_media(text, media, self.media_position, streams.generator(request_id)))

    def _text(self, text: str) -> TokenRun:
        tokens = max(1, round(len(text) / self.characters_per_token))
        return TokenRun(("text", _identity(text)), 0, tokens)

    def _media(self, line: AiperfLine, streams: KeyedStreams) -> Iterator[MediaRef]:
        """Media of a line; the same content has the same size wherever it comes."""
        videos, sounds = _contents(line.video, line.videos), _contents(line.audio, line.audios)
        for told, contents, sizes in (
            ("image", _images(line), self.image_size),
            ("video", videos, self.video_size),
        ):
            for content in contents:
                if sizes is None:
                    raise ValueError(f"has {told}s, whose size the file does not say, and {told}_size is not set")
                name = _identity(content)
                yield media_ref(name, sizes.draw(streams.generator(name), 1)[0])
        for content in sounds:
            if self.audio_s is None:
                raise ValueError("has sounds, whose length the file does not say, and audio_s is not set")
            yield MediaRef(_identity(content), "audio", duration_s=self.audio_s)


class AiperfSpec(AiperfReader):
    """A single-turn data set of AIPerf's form. Lines without timestamps arrive all at once: send them in a `closed-loop`."""

    kind: Literal["aiperf-jsonl"] = "aiperf-jsonl"

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:
        """The requests of the file; ids are line numbers."""
        streams = KeyedStreams(seed, "aiperf-media")
        rows = in_order(_timed_rows(path), path, self.reorder_ms)
        for arrival_ms, number, line in self.cut.apply(rows, path, None):
            request_id = f"aiperf-{number}"
            try:
                output_tokens, parts = self.output_of(line), self.parts_of(line, request_id, streams)
            except ValueError as error:
                raise line_error(path, number, "", str(error), "correct or drop the line") from error
            yield WorkloadRequest(request_id, arrival_ms, parts, output_tokens, line.session_id or "")

    def statements(self, path: Path) -> list[str]:
        """What reading the file assumes."""
        return [*super().statements(path), "lines without timestamps arrive at once"]
