"""Requests that are written down one by one, sent once (`fixed`) or again and again unchanged (`repeat`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from epdsim.core.prompt import TokenRun
from epdsim.core.request import WARM_UP
from epdsim.workload.request import MediaRef, WorkloadRequest
from epdsim.workload.sizes import SizeValue
from epdsim.workload.specs import Held, NonNegativeInt, PositiveInt, SpecModel
from epdsim.workload.workload import Workload


class PartSpec(SpecModel):
    """One part of a prompt: text, or one or more media items of the same size.

    Attributes:
        text_tokens: Length of a text part; excludes everything but `content` and `start`.
        content: Identity of the text or of the item; new for every part of every request unless given.
        start: Where in the text named `content` the part starts.
        modality: Of media items.
        size: Height and width (and frames) of a picture or clip.
        num_tokens: Placeholder tokens in place of a size.
        duration_s: Seconds of a sound or clip.
        file_bytes: Size of the encoded file; 0 for an estimate.
        count: So many items in a row: distinct ones, or one item again and again when `content` is given.
    """

    text_tokens: PositiveInt | None = None
    content: str | None = None
    start: NonNegativeInt = 0
    modality: Literal["image", "video", "audio"] | None = None
    size: SizeValue | None = None
    num_tokens: NonNegativeInt = 0
    duration_s: NonNegativeFloat = 0.0
    file_bytes: NonNegativeInt = 0
    count: Held = 1

    @model_validator(mode="after")
    def _check_one_of(self) -> PartSpec:
        if (self.text_tokens is None) == (self.modality is None):
            raise ValueError("a part has either text_tokens or a modality")
        media_keys = self.model_fields_set & {"size", "num_tokens", "duration_s", "file_bytes", "count"}
        if self.text_tokens is not None and media_keys:
            raise ValueError(f"a part of text has no {', '.join(sorted(media_keys))}")
        if self.modality is not None and self.start:
            raise ValueError("only a part of text has a start")
        if self.modality in {"image", "video"} and self.size is None and not self.num_tokens:
            raise ValueError(f"the {self.modality} needs a size, or its num_tokens")
        if self.modality == "audio" and not self.duration_s and not self.num_tokens:
            raise ValueError("the audio needs a duration_s, or its num_tokens")
        return self

    def parts(self, name: str) -> Iterator[TokenRun | MediaRef]:
        """The parts of a request; `name` makes their content new where none is given."""
        if self.text_tokens is not None:
            yield TokenRun(self.content or name, self.start, self.text_tokens)
            return
        assert self.modality is not None, "checked when the spec was read"
        height, width, *frames = self.size or (0, 0)
        for index in range(self.count):
            yield MediaRef(
                content=self.content or f"{name}/{index}",
                modality=self.modality,
                height=height,
                width=width,
                num_frames=frames[0] if frames else 1,
                duration_s=self.duration_s,
                num_tokens=self.num_tokens,
                file_bytes=self.file_bytes,
            )


class RequestSpec(SpecModel):
    """One request as a scenario file writes it down."""

    id: str | None = Field(default=None, min_length=1)
    arrival_s: NonNegativeFloat = 0.0
    parts: tuple[PartSpec, ...] = Field(min_length=1)
    output_tokens: PositiveInt
    session_id: str = ""
    priority: int = 0
    slo_class: str = ""

    def request(self, index: int) -> WorkloadRequest:
        """The request; `index` names it when it has no id."""
        request_id = self.id or f"request-{index}"
        return WorkloadRequest(
            request_id=request_id,
            arrival_ms=self.arrival_s * 1e3,
            parts=tuple(part for place, spec in enumerate(self.parts) for part in spec.parts(f"{request_id}/{place}")),
            output_tokens=self.output_tokens,
            session_id=self.session_id,
            priority=self.priority,
            slo_class=self.slo_class,
        )


class _Listed(SpecModel):
    requests: tuple[RequestSpec, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_ids(self) -> _Listed:
        seen: set[str] = set()
        for index, spec in enumerate(self.requests):
            request_id = spec.id or f"request-{index}"
            if request_id in seen:
                raise ValueError(f"two requests have the id {request_id!r}")
            seen.add(request_id)
        return self


class FixedSpec(_Listed):
    """The listed requests, each once, at its `arrival_s`."""

    kind: Literal["fixed"] = "fixed"

    def requests_in_order(self) -> Iterator[WorkloadRequest]:
        """By arrival; requests of the same moment keep the order of the list."""
        yield from sorted(
            (spec.request(index) for index, spec in enumerate(self.requests)), key=lambda request: request.arrival_ms
        )

    def build(self, base_dir: Path, seed: int) -> Workload:  # noqa: ARG002 - one signature for all kinds
        """The workload."""
        return Workload("fixed", f"{len(self.requests)} requests written down", self.requests_in_order)


class RepeatSpec(_Listed):
    """The listed requests one after the other, each sent `times` times with the same content.

    The n-th send has the id `<id>#<n>` from 1 on and is byte-identical to the first. Sends are `gap_s` apart; `arrival_s` is
    refused. The first `warmups` sends of each request carry `slo_class` `"warm-up"`.
    """

    kind: Literal["repeat"] = "repeat"
    times: PositiveInt = 2
    warmups: NonNegativeInt = 1
    gap_s: PositiveFloat = 60.0

    @model_validator(mode="after")
    def _check_sends(self) -> RepeatSpec:
        if any(spec.arrival_s for spec in self.requests):
            raise ValueError("requests that are sent again arrive gap_s apart and have no arrival_s")
        if self.warmups >= self.times:
            raise ValueError(f"{self.warmups} warmups of {self.times} times leave nothing to measure")
        return self

    def requests_in_order(self) -> Iterator[WorkloadRequest]:
        """All sends in the order of time."""
        for index, spec in enumerate(self.requests):
            request = spec.request(index)
            for send in range(self.times):
                yield WorkloadRequest(
                    request_id=f"{request.request_id}#{send + 1}",
                    arrival_ms=(index * self.times + send) * self.gap_s * 1e3,
                    parts=request.parts,
                    output_tokens=request.output_tokens,
                    session_id=request.session_id,
                    priority=request.priority,
                    slo_class=WARM_UP if send < self.warmups else request.slo_class,
                )

    def build(self, base_dir: Path, seed: int) -> Workload:  # noqa: ARG002 - one signature for all kinds
        """The workload."""
        source = f"{len(self.requests)} requests written down, each sent {self.times} times"
        sent = "once" if self.times == 1 else f"{self.times} times, {self.gap_s:g} s apart"
        warm = f"the first {self.warmups} to warm up" if self.warmups else "none to warm up"
        return Workload("repeat", source, self.requests_in_order, f"each request is sent {sent}, {warm}")
