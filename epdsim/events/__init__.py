"""The event schema, its writer and reader.

A *sink* is any callable that takes an event; a run has a list of them (metrics, files, monitors), and none knows of the others.
"""

from collections.abc import Callable

from epdsim.events.ndjson import NdjsonWriter, read_events, read_header
from epdsim.events.perfetto import PerfettoWriter
from epdsim.events.schema import (
    Admitted,
    AnyEvent,
    EcLoaded,
    EncodeFinished,
    EncodeRunFinished,
    Event,
    FirstToken,
    KvTransferred,
    LegSent,
    Preempted,
    Rendered,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    StepFinished,
    StepPlanned,
)

Sink = Callable[[Event], None]
"""Anything that takes events."""

__all__ = [
    "Admitted",
    "AnyEvent",
    "EcLoaded",
    "EncodeFinished",
    "EncodeRunFinished",
    "Event",
    "FirstToken",
    "KvTransferred",
    "LegSent",
    "NdjsonWriter",
    "PerfettoWriter",
    "Preempted",
    "Rendered",
    "RequestArrived",
    "RequestFailed",
    "RequestFinished",
    "Sink",
    "StepFinished",
    "StepPlanned",
    "read_events",
    "read_header",
]
