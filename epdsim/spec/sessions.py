"""SES-EQ: a session holds what one request with all its inputs would hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epdsim.events import InputQueued, ItemInfo, RequestQueued, SessionSeen
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import BEYOND, Broken, Finding, Monitor, Property, Reached

_Input = tuple[Sequence[int], Sequence[ItemInfo]]
"""Tokens, and items with offsets within them."""


class SesEq:
    """SES-EQ."""

    def __init__(self) -> None:
        self._inputs: dict[str, list[_Input]] = {}

    def by_kind(self) -> Monitor:
        """Compare what a session holds with what it was given, and its keys with those of one request."""
        return {RequestQueued: self._begins, InputQueued: self._goes_on, SessionSeen: self._seen}

    def _begins(self, event: RequestQueued, engine: EngineState) -> None:
        if "sessions" in engine.beyond:
            self._inputs[event.request_id] = [(event.prompt_token_ids, event.items)]

    def _goes_on(self, event: InputQueued, _engine: EngineState) -> None:
        if event.request_id in self._inputs and event.prompt_token_ids:
            self._inputs[event.request_id].append((event.prompt_token_ids, event.items))

    def _seen(self, event: SessionSeen, _engine: EngineState) -> Iterator[Finding]:
        if event.request_id not in self._inputs:
            return
        if event.items:
            yield Reached(f"{event.request_id} has taken in another input, and has media")
        told = _misplaced(event, self._inputs[event.request_id]) or _miskeyed(event)
        if told:
            yield Broken(f"{event.request_id} {told}", (event.request_id,))


def _misplaced(event: SessionSeen, given: Sequence[_Input]) -> str:
    """Which input is not there as it was given; empty when all that it has taken in are.

    Inputs that bring media tell by these where they begin. Between two there is output.
    """
    items, past = list(event.items), 0
    for number, (tokens, added) in enumerate(given):
        if not added:
            continue
        if not items:
            return ""  # not taken in yet
        found, items = items[: len(added)], items[len(added) :]
        start = found[0].offset - added[0].offset
        where = [(one.identifier, start + one.offset, one.length) for one in added]
        if [(one.identifier, one.offset, one.length) for one in found] != where or start < past:
            return f"holds items of input {number} elsewhere than it was given them"
        if list(event.token_ids[start : start + len(tokens)]) != list(tokens):
            return f"holds items of input {number} from token {start} on, and other tokens than it was given there"
        past = start + len(tokens)
    return f"holds {len(items)} items that it was not given" if items else ""


def _miskeyed(event: SessionSeen) -> str:
    """Which block is known by another key than in one request; empty when none is."""
    for place, (ours, whole) in enumerate(zip(event.keys, event.whole_keys, strict=False)):
        if ours != whole:
            return f"knows block {place} by another key than one request with the same tokens and media does"
    if len(event.keys) != len(event.whole_keys):
        return f"knows {len(event.keys)} blocks by keys, one request with the same tokens and media {len(event.whole_keys)}"
    return ""


SES_EQ = Property(
    "SES-EQ",
    "A streamed session ends in the same state as one request with the whole prompt.",
    "A session's blocks are found under the keys of a prompt that it no longer has.",
    "engine",
    sometimes="a session with media takes in another input",
    evidence=("vLLM PR 49448", "vLLM issue 42489", "sglang PR 33716"),
    monitor=lambda: SesEq().by_kind(),
    copes=BEYOND,
    exempt={
        "recorded": "recordings tell what a session decides and not what it holds",
        "simulated": "a fleet has no streaming sessions",
    },
)
