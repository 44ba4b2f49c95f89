"""Family STRIP, and NO-HIT: what need not be sent is not, and what is needed is there."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import Admitted, EncoderFed, FeaturesStripped, StepPlanned, StrippedItem
from epdsim.spec.engine_state import PAYLOADS, EngineState
from epdsim.spec.property import ALL_BUT_SESSIONS, Broken, Finding, Property, Reached


def _reopens(event: Admitted, engine: EngineState) -> tuple[Finding, ...] | None:
    """STRIP-AVAIL of an admission: its premise."""
    known = engine.requests.get(event.request_id)
    if not event.resumed or known is None or not known.reopened:
        return None
    item = known.items[known.reopened[0]]
    told = f"{event.request_id} resumes, and {item.identifier}, stripped before, is not covered any more"
    return (Reached(told),)


def _is_fed(event: EncoderFed, engine: EngineState) -> tuple[Finding, ...] | None:
    """STRIP-AVAIL of a worker."""
    known = engine.requests.get(event.request_id)
    if known is None:
        return None
    item = known.items[event.index]
    if event.payload in PAYLOADS or item.payload not in PAYLOADS:
        return None
    told = f"a worker is to encode {item.identifier} for {event.request_id} and holds {_held(event.payload)}"
    return (Broken(told, (event.request_id, item.identifier)),)


def _can_encode(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    """STRIP-AVAIL of a plan."""
    for request_id, indices in event.scheduled_encoder_inputs.items():
        known = engine.requests.get(request_id)
        for index in indices if known is not None else ():
            assert known is not None
            # An item whose payload was never there is a matter of the request, not of the strip.
            if known.held[index] not in PAYLOADS:
                item = known.items[index]
                yield Broken(
                    f"step {event.step} is to encode {item.identifier} for {request_id}, and of it the workers hold "
                    f"{_held(known.held[index])}",
                    (request_id, item.identifier),
                )


def _held(kind: str) -> str:
    return {"none": "nothing", "empty": "an item without fields", "metadata": "metadata alone"}[kind]


def _sends_no_more(event: Admitted, engine: EngineState) -> Iterator[Finding]:
    """STRIP-MAX of an admission."""
    known = engine.requests.get(event.request_id)
    for item, kind in zip(known.items if known is not None else (), event.payloads, strict=False):
        if event.num_computed_tokens and item.end <= event.num_computed_tokens:
            yield Reached(f"{item.identifier} is covered")
            if kind == "full":
                yield Broken(
                    f"{event.request_id} is admitted with {event.num_computed_tokens} computed tokens, and {item.identifier}, "
                    f"which ends at {item.end}, is sent in full",
                    (event.request_id, item.identifier),
                )


def _keeps_no_more(event: FeaturesStripped, _engine: EngineState) -> Iterator[Finding]:
    """STRIP-MAX of the strip itself."""
    for before, after in zip(event.before, event.after, strict=True):
        if before.fields is None or before.is_address or not event.num_computed_tokens:
            continue
        if abs(before.end - event.num_computed_tokens) <= 1:
            yield Reached("an item that ends at the computed tokens, or one beside")
        kept = set(before.keep_on_cpu) if event.reads_position_fields else set[str]()
        is_covered = before.end <= event.num_computed_tokens
        if is_covered and set(after.fields or ()) - kept:
            yield Broken(f"{_stripped(before, event)} and keeps {list(after.fields or ())}", (before.identifier,))


def _stripped(item: StrippedItem, event: FeaturesStripped) -> str:
    return f"{item.identifier} ends at {item.end} with {event.num_computed_tokens} tokens computed"


def _sends_fields(event: Admitted, engine: EngineState) -> Iterator[Finding]:
    """STRIP-META of an admission."""
    known = engine.requests.get(event.request_id)
    if known is None or engine.started is None or not engine.started.reads_position_fields:
        return
    for item, kind in zip(known.items, event.payloads, strict=False):
        if not item.has_position_fields:
            continue
        if kind == "metadata":
            yield Reached(f"{item.identifier} is sent as metadata")
        elif kind in ("none", "empty"):
            yield Broken(
                f"{event.request_id} is admitted with nothing of {item.identifier}, of which positions read fields",
                (event.request_id, item.identifier),
            )


def _keeps_fields(event: FeaturesStripped, _engine: EngineState) -> Iterator[Finding]:
    """STRIP-META of the strip itself."""
    for before, after in zip(event.before, event.after, strict=True):
        is_covered = before.end <= event.num_computed_tokens
        if not is_covered:
            if after.fields != before.fields:
                yield Broken(f"{_stripped(before, event)} and loses fields", (before.identifier,))
        elif event.reads_position_fields and before.keep_on_cpu:
            yield Reached("a covered item with position fields")
            lost = set(before.keep_on_cpu) - set(after.fields or ())
            if lost:
                yield Broken(f"{_stripped(before, event)} and loses {sorted(lost)}", (before.identifier,))


def strip_handle(event: FeaturesStripped, _engine: EngineState) -> Iterator[Finding]:
    """STRIP-HANDLE."""
    kinds = [(item.is_address, item.end <= event.num_computed_tokens) for item in event.before]
    if (True, True) in kinds and (False, True) in kinds:
        yield Reached("a covered address beside another covered item")
    for before, after in zip(event.before, event.after, strict=True):
        if before.is_address and not after.is_address:
            yield Broken(f"{_stripped(before, event)}, and its shared-memory address is dropped", (before.identifier,))
        if before.fields is None and after.fields is not None:
            yield Broken(f"{before.identifier} had no data and is sent with some", (before.identifier,))


def strip_pure(event: FeaturesStripped, _engine: EngineState) -> Iterator[Finding]:
    """STRIP-PURE."""
    if not event.before or not event.num_computed_tokens:
        yield Reached("nothing to strip")
        if not event.is_input:
            yield Broken("with nothing to strip the answer is not the input itself")
    if not event.is_unchanged:
        yield Broken("the input was changed")
    for before, after, is_same in zip(event.before, event.after, event.is_same, strict=True):
        is_kept = before.fields is None or before.is_address or before.end > event.num_computed_tokens
        if is_kept and not is_same:
            yield Broken(f"{before.identifier} is not stripped and yet another object", (before.identifier,))
        if before.fields is None and after.fields is not None:
            yield Broken(f"{before.identifier} had no data and has some now", (before.identifier,))


def no_hit(event: Admitted, engine: EngineState) -> Iterator[Finding]:
    """NO-HIT."""
    if event.num_computed_tokens or not event.payloads:
        return
    known = engine.requests.get(event.request_id)
    sends_late = engine.started is not None and engine.started.sends_late
    reads_fields = engine.started is None or engine.started.reads_position_fields
    yield Reached(f"{event.request_id} is admitted with nothing computed")
    for item, kind in zip(known.items if known is not None else (), event.payloads, strict=False):
        # What comes with the step that encodes its item has not come yet; until then there is what positions read of it.
        later = ("metadata",) if reads_fields and item.has_position_fields else ("metadata", "empty", "none")
        if kind not in PAYLOADS and kind != item.payload and not (sends_late and kind in later):
            yield Broken(
                f"{event.request_id} is admitted with nothing computed, and {item.identifier} is sent as {kind}",
                (event.request_id, item.identifier),
            )


PROPERTIES = (
    Property(
        "STRIP-AVAIL",
        "When the encoder is to run on an item of a request, every worker holds a usable payload of it then.",
        "The worker reads pixels that it was never sent; the engine dies, and with it every request in flight.",
        "engine",
        sometimes="an item is stripped, its request preempted, and the item not covered any more when it resumes",
        evidence=("downstream report on vLLM PR 52041", "vLLM PR 54994", "vLLM PR 50871", "TensorRT-LLM issue 17882"),
        twin="STRIP-MAX",
        monitor=lambda: {Admitted: _reopens, EncoderFed: _is_fed, StepPlanned: _can_encode},
        copes=ALL_BUT_SESSIONS,
        of_media=True,
        exempt={"simulated": "no fleet of the quick lane preempts a request whose item was stripped and is open again"},
    ),
    Property(
        "STRIP-MAX",
        "An item that is covered when it is sent carries no payload.",
        "A strip that strips nothing is safe and useless: pixels are serialised and delivered to every rank for nothing.",
        "engine",
        sometimes="a covered item; of the strip itself also items that end at the computed tokens and one beside",
        evidence=("vLLM PR 52041",),
        twin="STRIP-AVAIL, STRIP-META",
        monitor=lambda: {Admitted: _sends_no_more, FeaturesStripped: _keeps_no_more},
        copes=ALL_BUT_SESSIONS,
        of_media=True,
    ),
    Property(
        "STRIP-META",
        "Every worker has every field that positions of the whole prompt read, whatever is stripped.",
        "Positions of the tokens after the item come out wrong, in silence or with an index error that ends the engine.",
        "engine",
        sometimes="a covered item under M-RoPE or XD-RoPE",
        evidence=("vLLM PRs 53456, 52827, 52881", "vLLM issue 17007"),
        twin="STRIP-MAX",
        monitor=lambda: {Admitted: _sends_fields, FeaturesStripped: _keeps_fields},
        copes=ALL_BUT_SESSIONS,
        of_media=True,
    ),
    Property(
        "STRIP-HANDLE",
        "Dropping a payload neither drops nor duplicates a resource handle: addresses go through, and None stays None.",
        "A reference that is never given back pins its slot of the shared memory for ever.",
        "protocol",
        sometimes="a covered address beside another covered item",
        evidence=("vLLM PR 54994",),
        monitor=lambda: {FeaturesStripped: strip_handle},
    ),
    Property(
        "STRIP-PURE",
        "The strip changes neither its input nor an item; what is not stripped is the same object, and without work the same list.",
        "The scheduler's own request loses its payload, and with it every later encoder run.",
        "protocol",
        sometimes="no items, or nothing computed",
        evidence=("vLLM PR 52041",),
        monitor=lambda: {FeaturesStripped: strip_pure},
    ),
    Property(
        "NO-HIT",
        "Without a prefix hit every item is sent as it is: the strip changes nothing.",
        "A strip that touches requests without a hit takes pixels that are about to be encoded.",
        "engine",
        sometimes="a request with media admitted with nothing computed",
        evidence=("vLLM PR 52041",),
        monitor=lambda: {Admitted: no_hit},
        copes=ALL_BUT_SESSIONS - {"pull"},
        of_media=True,
    ),
)
