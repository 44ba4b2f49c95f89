"""A time line of a run for the Perfetto viewer, in the trace event format (JSON): it opens in any browser, without a network.

One track per instance with its steps or encoder runs, counters of running and waiting requests, one bar per request.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from epdsim.core.files import whole_file
from epdsim.events.schema import (
    EncodeRunFinished,
    Event,
    FirstToken,
    Preempted,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
)

_REQUESTS = "requests"


class PerfettoWriter:
    """Writes a run's events as a trace; the file appears under its name only once it is complete.

    Args:
        path: Target; `.gz` compresses, which the viewer reads too.
    """

    def __init__(self, path: Path) -> None:
        self._encoder = msgspec.json.Encoder()
        self._whole = whole_file(path, f"time line {str(path)!r}")
        self._file = self._whole.__enter__()
        self._file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        self._tracks: dict[str, int] = {}
        self._run = 0
        self._is_first = True

    def start(self, name: str) -> None:
        """A run begins: its tracks are a process of their own in the viewer."""
        self._run += 1
        self._tracks.clear()
        self._line({"ph": "M", "name": "process_name", "pid": self._run, "args": {"name": name}})

    def __call__(self, event: Event) -> None:
        """Write what a viewer can show of an event."""
        if isinstance(event, StepFinished):
            self._worked(event, event.duration_ms, f"{event.num_steps} steps" if event.num_steps > 1 else "step")
            self._queues(event, event.num_running, event.num_waiting)
        elif isinstance(event, EncodeRunFinished):
            self._worked(event, event.duration_ms, "encoder run")
            self._queues(event, event.num_items, event.num_waiting)
        elif isinstance(event, RequestArrived):
            self._request("b", event, event.request_id)
        elif isinstance(event, (RequestFinished, RequestFailed)):
            self._request("e", event, event.request_id)
        elif isinstance(event, (Rendered, FirstToken, Preempted)):
            self._request("n", event, event.request_id, type(event).__name__)

    def _worked(self, event: StepFinished | EncodeRunFinished, duration_ms: float, name: str) -> None:
        facts = msgspec.structs.asdict(event)
        args = {key: value for key, value in facts.items() if key not in {"time_ms", "instance", "duration_ms"}}
        start_us, duration_us = _us(event.time_ms - duration_ms), _us(duration_ms)
        self._write({"ph": "X", "name": name, "ts": start_us, "dur": duration_us, "args": args}, event.instance)

    def _queues(self, event: Event, running: int, waiting: int) -> None:
        args = {"running": running, "waiting": waiting}
        self._write(
            {"ph": "C", "name": f"{event.instance} queue", "ts": _us(event.time_ms), "args": args}, event.instance
        )

    def _request(self, phase: str, event: Event, request_id: str, name: str = "") -> None:
        facts = {
            "ph": phase,
            "cat": "request",
            "id2": {"local": request_id},
            "name": name or request_id,
            "ts": _us(event.time_ms),
        }
        self._write(facts, _REQUESTS)

    def _write(self, facts: dict[str, Any], track: str) -> None:
        number = self._tracks.get(track)
        if number is None:
            number = self._tracks[track] = len(self._tracks) + 1
            self._line({"ph": "M", "name": "thread_name", "pid": self._run, "tid": number, "args": {"name": track}})
        self._line(facts | {"pid": self._run, "tid": number})

    def _line(self, record: dict[str, Any]) -> None:
        self._file.write((b"" if self._is_first else b",\n") + self._encoder.encode(record))
        self._is_first = False

    def __enter__(self) -> Self:
        """Use as a context so that a failed run leaves no half-written file."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the list and put the file in its place, or remove it when the run failed."""
        if kind is None:
            self._file.write(b"\n]}\n")
        self._whole.__exit__(kind, error, trace)


def _us(time_ms: float) -> float:
    return round(time_ms * 1e3, 3)
