"""What `epdsim trace convert` does: find the form, read, write in epdsim's own, tell what it came to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from epdsim.core.errors import InputError
from epdsim.core.files import check_apart, check_place
from epdsim.core.prompt import TokenRun
from epdsim.report.table import console
from epdsim.scenario.loader import files_named, load_scenario
from epdsim.scenario.yaml_file import parse_value
from epdsim.workload.detect import FORMATS, detect_format, is_blis_yaml
from epdsim.workload.jsonl import header_of, write_jsonl
from epdsim.workload.registry import build_workload, parse_workload_spec
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.workload import Workload

_SHOW_EVERY = 5_000
_NAMES = {"image": "picture", "video": "clip", "audio": "sound"}


def run_convert(source: Path, out: Path, form: str | None, overrides: Sequence[str], *, seed: int | None) -> None:
    """Convert a file, and print what is in it.

    Raises:
        InputError: The source or a line of it cannot be used, or the file cannot be written; there is none then.
    """
    told = f"-o {str(out)!r}"
    check_place(out, told)
    inputs, (workload, spec) = [source], _workload(source, form, overrides, seed)
    if source.is_file():
        inputs += files_named(spec.model_dump(), source.parent)
    elif source.is_dir():
        inputs += source.iterdir()
    check_apart({"-o": out}, inputs)
    counts = Counts()
    with Console(stderr=True).status("") as status:

        def counted() -> Iterator[WorkloadRequest]:
            begun_s = time.monotonic()
            for request in workload:
                counts.take(request)
                if counts.requests % _SHOW_EVERY == 0:
                    rate = counts.requests / (time.monotonic() - begun_s)
                    status.update(f"{counts.requests:,} requests, {rate:,.0f} a second")
                yield request

        write_jsonl(counted(), out, header_of(workload, spec), told)
    _print(workload, getattr(spec, "kind", ""), counts, out)


def _workload(source: Path, form: str | None, overrides: Sequence[str], seed: int | None) -> tuple[Workload, Any]:
    """The traffic and its description, with the folder and the settings in force."""
    if source.suffix in {".yaml", ".yml"} and form != "blis-yaml" and not is_blis_yaml(source):
        if form is not None:
            raise InputError(f"--from {form}", "IN is a scenario, which says the form itself", "leave --from out")
        scenario = load_scenario(source, overrides)
        chosen = scenario.spec.seed if seed is None else seed
        with scenario.placed("workload"):
            return build_workload(scenario.spec.workload, scenario.folder, chosen), scenario.spec.workload
    if form is not None and form not in FORMATS:
        raise InputError(f"--from {form}", "there is no such form", f"there are {', '.join(FORMATS)}")
    settings: dict[str, Any] = {"kind": form or detect_format(source), "path": str(source.absolute())}
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or key in settings:
            remedy = "write key=value" if not separator else "it is chosen by IN and --from"
            raise InputError(f"--set {override!r}", "it cannot be set", remedy)
        settings[key] = parse_value(value, f"--set {override!r}")
    spec = parse_workload_spec(settings)
    return build_workload(spec, Path(), seed or 0), spec


@dataclass(slots=True)
class Counts:
    """What a trace amounts to."""

    requests: int = 0
    last_ms: float = 0.0
    text_tokens: int = 0
    output_tokens: int = 0
    media: Counter[str] = field(default_factory=Counter[str])
    contents: dict[str, set[int]] = field(default_factory=lambda: {modality: set() for modality in _NAMES})
    sessions: set[int] = field(default_factory=set[int])

    def take(self, request: WorkloadRequest) -> None:
        """Count one request."""
        self.requests += 1
        self.last_ms = request.arrival_ms
        self.output_tokens += request.output_tokens
        for part in request.parts:
            if isinstance(part, TokenRun):
                self.text_tokens += part.length
            else:
                self.media[part.modality] += 1
                self.contents[part.modality].add(hash(part))
        if request.session_id:
            self.sessions.add(hash(request.session_id))


def _print(workload: Workload, kind: str, counts: Counts, out: Path) -> None:
    show = console().print
    count = counts.requests
    show(f"read {workload.source} as {kind}")
    if workload.assumptions:
        show(f"assumed: {workload.assumptions}")
    rate = f", {1e3 * count / counts.last_ms:.3g} a second" if counts.last_ms else ""
    show(f"{count:,} requests over {counts.last_ms / 1e3:,.6g} s{rate}")
    if count:
        show(
            f"per request: {counts.text_tokens / count:,.0f} text tokens, {counts.output_tokens / count:,.0f} generated"
        )
    show(", ".join(_media_told(counts)) or "no pictures, clips or sounds")
    if counts.sessions:
        show(f"{len(counts.sessions):,} conversations")
    show(f"wrote {out}, which a workload of kind jsonl reads")


def _media_told(counts: Counts) -> Iterator[str]:
    for modality, name in _NAMES.items():
        if count := counts.media[modality]:
            yield f"{count:,} {name}{'s' if count > 1 else ''} ({len(counts.contents[modality]):,} different)"
