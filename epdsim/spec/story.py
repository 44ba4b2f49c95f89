"""A run told in plain words: one line for what befell one request in one step, and a timeline of all of them.

A story is short: steps in which everybody just goes on are one line, and when that is not enough only what concerns the subjects
of the violation is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from epdsim.events import (
    Admitted,
    BlocksKeyed,
    CacheReset,
    EngineDied,
    EngineStopped,
    Event,
    FeaturesStripped,
    InputQueued,
    ItemInfo,
    ItemsMerged,
    MediaHashed,
    MetadataWeighed,
    PositionsComputed,
    Preempted,
    RequestAborted,
    RequestChecked,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestRefused,
    StepPlanned,
    StepYielded,
    TablesRendered,
)
from epdsim.spec.identity import hashed_lines, keyed_line
from epdsim.spec.positions import positions_line
from epdsim.spec.property import Verdict
from epdsim.spec.story_caches import cache_lines

MOST_LINES = 12
"""Lines that a story has at most."""
MOST_NAME = 16
"""Characters of an identifier that a story tells; hashes are long."""
MOST_COLUMNS = 100
"""Steps that a timeline shows at most."""

_SENT = {
    "full": "in full",
    "metadata": "as metadata alone",
    "empty": "as an item without fields",
    "none": "not at all",
    "address": "as an address",
}


@dataclass(slots=True)
class _Line:
    """What befell somebody in a step.

    Attributes:
        step: First step of it, or the millisecond where time is told by a clock.
        last: Last step of it.
        unit: `"step"` or `"ms"`.
        who: A request, several, or the empty string for the engine.
        parts: Phrases, in order.
        is_plain: Whether it says no more than that somebody goes on.
    """

    step: int
    last: int
    unit: str
    who: str
    parts: list[str] = field(default_factory=list[str])
    is_plain: bool = False

    def __str__(self) -> str:
        if self.unit == "ms":
            when = f"{self.step} ms" if self.step == self.last else f"{self.step} to {self.last} ms"
        else:
            when = f"step {self.step}" if self.step == self.last else f"steps {self.step} to {self.last}"
        return f"{when}: {self.who} {', '.join(self.parts)}".replace(":  ", ": ")


def tell_story(events: Sequence[Event], verdict: Verdict) -> list[str]:
    """The story of a violation.

    Args:
        events: Of the run.
        verdict: With its first violation.

    Returns:
        At most `MOST_LINES` sentences; the last one is what is wrong.
    """
    assert verdict.first is not None, "there is a violation to tell of"
    seen = events[: verdict.at + 1]
    subjects = set(verdict.first.subjects)
    lines = [*_protocol_lines(seen)] or cache_lines(seen) or _shortened(_engine_lines(seen), subjects)
    return [*lines[-MOST_LINES + 1 :], verdict.first.told]


def _shortened(lines: list[_Line], subjects: set[str]) -> list[str]:
    kept = lines
    if len(kept) >= MOST_LINES:
        kept = [one for one in kept if not one.is_plain]
    if len(kept) >= MOST_LINES:
        kept = [one for one in kept if one.who in subjects or any(name in str(one) for name in subjects)]
    return [str(one) for one in kept]


class _Teller:
    """Lines in the making, step by step."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self.lines: list[_Line] = []
        self._open: dict[str, _Line] = {}
        self._items: dict[str, Sequence[ItemInfo]] = {}

    def say(self, event: Event, who: str, what: str) -> None:
        """A phrase about somebody in the current step."""
        step = int(event.time_ms)
        line = self._open.get(who)
        if line is None or line.step != step:
            line = self._open[who] = _Line(step, step, self._unit, who)
            self.lines.append(line)
        line.parts.append(what)

    def take(self, event: Event) -> None:
        """One event."""
        match event:
            case RequestQueued() | RequestRefused():
                self._arrived(event)
            case InputQueued():
                self._items[event.request_id] = [*self._items.get(event.request_id, ()), *event.items]
                given = f"an input of {event.num_prompt_tokens} tokens{_spans(event.items)}"
                self.say(event, event.request_id, f"is given {given if event.num_prompt_tokens else 'word of its end'}")
            case RequestAborted():
                self.say(event, event.request_id, "is left by its client")
            case CacheReset():
                self.say(event, "", f"the {event.which} cache is reset")
            case Preempted():
                self.say(event, event.request_id, "is preempted")
            case Admitted():
                self._admitted(event)
            case StepPlanned():
                self._planned(event)
            case RequestFinished():
                self.say(event, event.request_id, "ends")
            case RequestFailed():
                self.say(event, event.request_id, f"fails ({event.reason})")
            case EngineDied():
                self.say(event, "", "the engine dies")
            case EngineStopped():
                self.say(event, "", "nothing more is to come")
            case _:
                pass

    def _arrived(self, event: RequestQueued | RequestRefused) -> None:
        self._items[event.request_id] = event.items
        self.say(event, event.request_id, f"arrives with {event.num_prompt_tokens} tokens{_spans(event.items)}")
        if isinstance(event, RequestRefused):
            self.say(event, event.request_id, f"is refused ({event.reason})")

    def _admitted(self, event: Admitted) -> None:
        items = self._items.get(event.request_id, ())
        verb = "resumes" if event.resumed else "is admitted"
        found = f"{event.num_computed_tokens} tokens found" if event.num_computed_tokens else "nothing computed"
        self.say(event, event.request_id, f"{verb} with {found}")
        if event.payloads:
            sent = [
                f"{_short(item.identifier)} {_SENT.get(kind, kind)}"
                for item, kind in zip(items, event.payloads, strict=False)
            ]
            self.say(event, event.request_id, f"workers are sent {' and '.join(sent)}")
        elif event.resumed and items:
            self.say(event, event.request_id, "workers keep what they were sent of its items")

    def _planned(self, event: StepPlanned) -> None:
        if event.free_encoder_mm_hashes:
            self.say(event, "", f"workers drop {', '.join(map(_short, event.free_encoder_mm_hashes))}")
        if event.ec_loads:
            self.say(event, "", f"workers load {', '.join(map(_short, event.ec_loads))}")
        goes_on: list[str] = []
        for request_id, count in event.num_scheduled_tokens.items():
            items = self._items.get(request_id, ())
            indices = event.scheduled_encoder_inputs.get(request_id, ())
            # Another engine may have been sent fewer items of the same request.
            encoded = [_short(items[index].identifier) for index in indices if index < len(items)]
            if encoded:
                self.say(
                    event, request_id, f"{', '.join(encoded)} {'is' if len(encoded) == 1 else 'are'} to be encoded"
                )
            line = self._open.get(request_id)
            if (line is None or line.step != int(event.time_ms)) and count == 1:
                goes_on.append(request_id)
                continue
            start = event.num_computed_tokens.get(request_id)
            told = f"[{start}, {start + count})" if start is not None else f"{count} tokens"
            self.say(event, request_id, f"computes {told}")
        if goes_on:
            self._goes_on(int(event.time_ms), ", ".join(sorted(goes_on)), "goes on" if len(goes_on) == 1 else "go on")

    def _goes_on(self, step: int, who: str, verb: str) -> None:
        last = self.lines[-1] if self.lines else None
        if last is not None and last.is_plain and last.who == who and last.last == step - 1:
            last.last = step
            return
        self.lines.append(_Line(step, step, self._unit, who, [verb], is_plain=True))


def _engine_lines(events: Sequence[Event]) -> list[_Line]:
    teller = _Teller("step" if _counts_steps(events) else "ms")
    for event in events:
        teller.take(event)
    return teller.lines


def _counts_steps(events: Sequence[Event]) -> bool:
    """Whether times are numbers of steps: engines without a clock say so by what their steps yield, or by the times of plans."""
    plans = [event for event in events if isinstance(event, StepPlanned)]
    is_counted = bool(plans) and all(event.time_ms == event.step for event in plans)
    return is_counted or any(isinstance(event, StepYielded) for event in events)


def _short(identifier: str) -> str:
    """An identifier that a reader can tell from others."""
    return identifier if len(identifier) <= MOST_NAME else identifier[:MOST_NAME]


def _spans(items: Sequence[ItemInfo]) -> str:
    told = [f"{_short(one.identifier)} at [{one.offset}, {one.end})" for one in items]
    return f", {' and '.join(told)}" if told else ""


def _protocol_lines(events: Sequence[Event]) -> Iterator[str]:
    for event in events:
        match event:
            case TablesRendered():
                yield from _tables_lines(event)
            case ItemsMerged():
                what = "without its payloads" if event.is_light else "in full"
                yield f"it is sent {what}, and the receiver makes of it {_merged(event)}"
            case RequestChecked():
                yield _checked_line(event)
            case FeaturesStripped():
                yield (
                    f"{event.num_computed_tokens} tokens are computed; to be sent are "
                    + ", ".join(f"{one.identifier} ({_names(one.fields)}, ends at {one.end})" for one in event.before)
                )
                sent = ", ".join(f"{one.identifier} ({_names(one.fields)})" for one in event.after)
                yield f"the strip sends {sent or 'nothing'}"
            case PositionsComputed():
                yield positions_line(event)
            case MetadataWeighed():
                light = f"{event.metadata_bytes} of {event.payload_bytes} bytes are metadata"
                yield f"{event.family} renders {event.modality} in {event.num_groups} groups: {light}"
            case MediaHashed():
                yield from hashed_lines(event)
            case BlocksKeyed():
                yield keyed_line(event)
            case _:
                pass


def _tables_lines(event: TablesRendered) -> Iterator[str]:
    items = ", ".join(
        f"{one.modality} {one.mm_hash} (cached)"
        if one.fields is None
        else f"{one.modality} {one.mm_hash} ({_marked(list(one.fields), one.keep_on_cpu)})"
        for one in event.items
    )
    yield f"a prompt {'with its items permuted' if event.permutes else 'is rendered'}: {items}"
    for name, table in (("kwargs_data", event.kwargs_data), ("mm_metadata", event.mm_metadata)):
        if table is not None:
            slots = {
                modality: [_names(None if one is None else list(one)) for one in row] for modality, row in table.items()
            }
            yield f"{name} is " + "; ".join(f"{modality}: {', '.join(row)}" for modality, row in slots.items())


def _marked(names: Sequence[str], keep_on_cpu: Sequence[str]) -> str:
    return ", ".join(f"{one} kept on the CPU" if one in keep_on_cpu else one for one in names) or "no fields"


def _names(names: Sequence[str] | None) -> str:
    return "null" if names is None else "+".join(names) or "no fields"


def _merged(event: ItemsMerged) -> str:
    if event.refused:
        return f"nothing ({event.refused})"
    return ", ".join(
        f"{one.modality} {one.mm_hash} ({_names(None if one.fields is None else list(one.fields))})"
        for one in event.items
    )


def _checked_line(event: RequestChecked) -> str:
    items = ", ".join(f"{one.modality}[{one.index}] {one.mm_hash} with {_STATES[one.state]}" for one in event.items)
    offered = (
        f"EC parameters for {', '.join(event.offered) or 'no hash'}" if event.has_ec_params else "no EC parameters"
    )
    verdict = "is accepted" if event.accepted else f"is refused ({event.reason})"
    return (
        f"a request {f'({event.variant}) ' if event.variant else ''}of {items or 'no items'}, and {offered}, {verdict}"
    )


_STATES = {
    "neither": "its hash alone",
    "payload": "payload",
    "metadata": "metadata alone",
    "both": "payload and metadata",
}


def timeline(events: Sequence[Event], at: int) -> list[str]:
    """A row for each request, a column for each step.

    `.` waits, `h` admitted on a prefix hit, `a` without, `r` resumed, `=` computes, `E` encodes, `P` preempted, `x` the end;
    `!` stands under the violation.

    Args:
        events: Of the run.
        at: Number of the event of the violation.

    Returns:
        Lines; none for a run without steps, or with a clock.
    """
    if not _counts_steps(events):
        return []
    rows: dict[str, dict[int, str]] = {}
    ends: dict[str, int] = {}
    last = 0
    for event in events[: at + 1]:
        step = int(event.time_ms)
        for request_id, glyph in _glyphs(event):
            row = rows.setdefault(request_id, {})
            if _RANK[glyph] >= _RANK.get(row.get(step, " "), -1):
                row[step] = glyph
            if glyph == "x":
                ends[request_id] = step
            last = max(last, step)
    if not rows:
        return []
    first = max(0, last - MOST_COLUMNS + 1)
    width = max(len(name) for name in (*rows, "step"))
    steps = range(first, last + 1)
    lines = [f"{'step':<{width}}  " + "".join(str(step // 10 % 10) if step % 10 == 0 else " " for step in steps)]
    lines.append(" " * (width + 2) + "".join(str(step % 10) for step in steps))
    for name, row in rows.items():
        end = ends.get(name, last)
        cells = [row.get(step, "." if min(row) <= step <= end else " ") for step in steps]
        lines.append(f"{name:<{width}}  " + "".join(cells).rstrip())
    lines.append(" " * (width + 2 + last - first) + "!")
    return lines


_RANK = {" ": -1, ".": 0, "=": 1, "x": 2, "P": 3, "a": 4, "h": 4, "r": 4, "E": 5}


def _glyphs(event: Event) -> Iterator[tuple[str, str]]:
    match event:
        case RequestQueued():
            yield event.request_id, "."
        case Admitted():
            yield event.request_id, "r" if event.resumed else "h" if event.num_computed_tokens else "a"
        case Preempted():
            yield event.request_id, "P"
        case StepPlanned():
            for request_id in event.num_scheduled_tokens:
                yield request_id, "E" if event.scheduled_encoder_inputs.get(request_id) else "="
        case RequestFinished() | RequestFailed() | RequestAborted():
            yield event.request_id, "x"
        case _:
            pass
