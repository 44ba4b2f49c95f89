"""What all kinds of traces share in a scenario file: path, cut, order and overlay."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from epdsim.workload.overlay import OverlaySpec, overlay_images
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.specs import PositiveInt, SpecModel, absence_remedy, resolve_path
from epdsim.workload.trace_files import TraceCut, require_file
from epdsim.workload.trace_header import MOONCAKE_BLOCKS, Blocks
from epdsim.workload.workload import Workload


class TraceSpec(SpecModel):
    """A trace to replay.

    Attributes:
        path: Plain or gzip.
        window_s: From and to (excluded), in seconds since the trace's first moment.
        limit: At most so many requests.
        rate_scale: 2 replays in half the time.
        reorder_ms: How far a line may lie behind its predecessors; 0 refuses a trace that is not sorted.
        overlay: Pictures laid over it.
    """

    path: Annotated[str, Field(min_length=1)]
    window_s: tuple[NonNegativeFloat, PositiveFloat] | None = None
    limit: PositiveInt | None = None
    rate_scale: PositiveFloat = 1.0
    reorder_ms: NonNegativeFloat = 0.0
    overlay: OverlaySpec | None = None

    @model_validator(mode="after")
    def _check_window(self) -> TraceSpec:
        if self.window_s is not None and self.window_s[0] >= self.window_s[1]:
            raise ValueError(f"window_s {list(self.window_s)} ends before it starts")
        return self

    @property
    def cut(self) -> TraceCut:
        """The part that is taken."""
        return TraceCut(self.window_s, self.limit, self.rate_scale)

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:
        """The requests of the file, without the overlay; each kind reads its own form."""
        raise NotImplementedError

    @property
    def blocks(self) -> Blocks:
        """What the text consists of, where the trace numbers blocks."""
        return MOONCAKE_BLOCKS

    def statements(self, path: Path) -> list[str]:  # noqa: ARG002 - a kind may have to look into the file
        """What reading the file assumes.

        Raises:
            InputError: The file cannot be used.
        """
        return []

    def requests(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:
        """The requests as they are replayed."""
        plain = self.read(path, seed)
        return overlay_images(plain, self.overlay, seed) if self.overlay else plain

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload.

        Raises:
            InputError: There is no such file.
        """
        path = require_file(resolve_path(self.path, base_dir), "trace", absence_remedy(self.path))
        statements = self.statements(path)
        if self.window_s is not None:
            statements.append(f"from {self.window_s[0]:g} to {self.window_s[1]:g} s")
        if self.limit is not None:
            statements.append(f"at most {self.limit} requests")
        if self.rate_scale != 1:
            statements.append(f"arrivals {self.rate_scale:g} times as fast")
        if self.overlay is not None:
            statements.append(self.overlay.statement(seed))
        return Workload(path.name.split(".")[0], str(path), partial(self.requests, path, seed), "; ".join(statements))
