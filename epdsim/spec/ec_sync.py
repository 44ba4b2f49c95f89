"""EC-SYNC: the books of an EC connector move with those of the encoder cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from epdsim.events import StepPlanned
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Property, Reached


def ec_sync(event: StepPlanned, engine: EngineState) -> Iterator[Finding] | None:
    """EC-SYNC: compare what a step loads with what the workers held before it, and with what it encodes."""
    return _loads(event, engine) if event.ec_loads else None


def _loads(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    # Of entries that are evicted some are named, unless all fit again, for which none had to go; one that comes back in the
    # same step is not named (ENC-MIRROR), so that beside an eviction a load of what is held may be right.
    held: Collection[str] = () if event.free_encoder_mm_hashes else engine.resident_before
    encoded = {
        engine.requests[request_id].items[index].identifier
        for request_id, indices in event.scheduled_encoder_inputs.items()
        if request_id in engine.requests
        for index in indices
    }
    wanted = {item.identifier for known in engine.requests.values() for item in known.items}
    for place, identifier in enumerate(event.ec_loads):
        yield Reached(f"{identifier} is loaded")
        wrong = (
            "which workers hold already"
            if identifier in held
            else "which it encodes too"
            if identifier in encoded
            else "twice"
            if identifier in event.ec_loads[:place]
            else "which nobody asks for"
            if identifier not in wanted
            else ""
        )
        if wrong:
            yield Broken(f"step {event.step} loads {identifier}, {wrong}", (identifier,))


EC_SYNC = Property(
    "EC-SYNC",
    "Connector books change exactly when the encoder cache's allocation changes, in every combination of roles.",
    "An entry is freed under a transfer, loaded a second time, or never.",
    "engine",
    sometimes="an embedding is loaded",
    evidence=("vLLM PRs 34783, 38668", "LMCache issue 4938"),
    twin="ENC-HIT",
    monitor=lambda: {StepPlanned: ec_sync},
    of_media=True,
)
