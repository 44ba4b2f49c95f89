"""The event schema, its writer and reader.

A *sink* is any callable that takes an event; a run has a list of them (metrics, files, monitors), and none knows of the others.
"""

from collections.abc import Callable

from epdsim.events.base import Event
from epdsim.events.caches import (
    CachedItem,
    CacheSide,
    MediaCachesSeen,
    MediaHandedOver,
    RingEntry,
    RingItem,
    RingRead,
    RingSeen,
    RingSent,
)
from epdsim.events.engine import (
    CacheReset,
    EncoderFed,
    EngineDied,
    EngineStarted,
    EngineStopped,
    Gathered,
    InputQueued,
    ItemInfo,
    PayloadsSent,
    RequestAborted,
    RequestQueued,
    StepYielded,
)
from epdsim.events.ndjson import NdjsonWriter, read_events, read_header
from epdsim.events.perfetto import PerfettoWriter
from epdsim.events.positions import PositionsComputed
from epdsim.events.protocol import (
    CheckedItem,
    FeaturesStripped,
    ItemsMerged,
    MergedItem,
    RenderedItem,
    RequestChecked,
    SpanInfo,
    StrippedItem,
    TablesRendered,
)
from epdsim.events.schema import (
    Admitted,
    AnyEvent,
    EcLoaded,
    EncodeFinished,
    EncodeRunFinished,
    FirstToken,
    FleetStarted,
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
    "CacheReset",
    "CacheSide",
    "CachedItem",
    "CheckedItem",
    "EcLoaded",
    "EncodeFinished",
    "EncodeRunFinished",
    "EncoderFed",
    "EngineDied",
    "EngineStarted",
    "EngineStopped",
    "Event",
    "FeaturesStripped",
    "FirstToken",
    "FleetStarted",
    "Gathered",
    "InputQueued",
    "ItemInfo",
    "ItemsMerged",
    "KvTransferred",
    "LegSent",
    "MediaCachesSeen",
    "MediaHandedOver",
    "MergedItem",
    "NdjsonWriter",
    "PayloadsSent",
    "PerfettoWriter",
    "PositionsComputed",
    "Preempted",
    "Rendered",
    "RenderedItem",
    "RequestAborted",
    "RequestArrived",
    "RequestChecked",
    "RequestFailed",
    "RequestFinished",
    "RequestQueued",
    "RingEntry",
    "RingItem",
    "RingRead",
    "RingSeen",
    "RingSent",
    "Sink",
    "SpanInfo",
    "StepFinished",
    "StepPlanned",
    "StepYielded",
    "StrippedItem",
    "TablesRendered",
    "read_events",
    "read_header",
]
