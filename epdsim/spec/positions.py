"""Family POS: a token has one position, however its prompt comes to be computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epdsim.events import PositionsComputed
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached

_HOW = {
    "chunk": "in a chunk",
    "resumed": "when it resumes",
    "metadata": "from metadata alone",
    "turn": "in an earlier turn",
    "stripped": "after the strip",
}


class _Compared:
    """Compares ways of computing a prompt with the whole of it.

    Args:
        ways: Which ones.
    """

    def __init__(self, ways: Sequence[str]) -> None:
        self._ways = ways
        self._whole: dict[str, PositionsComputed] = {}

    def by_kind(self) -> Monitor:
        """Compare token by token."""
        return {PositionsComputed: self._computed}

    def _computed(self, event: PositionsComputed, _engine: EngineState) -> Iterator[Finding]:
        if event.how == "whole":
            self._whole[event.case] = event
            return
        whole = self._whole.get(event.case)
        if event.how not in self._ways or whole is None or whole.refused:
            return
        reached = self._reached(event, whole)
        if reached:
            yield Reached(reached)
        subjects = (event.case,)
        begin = f"{event.scheme} {_HOW[event.how]}"
        if event.refused:
            yield Broken(f"{begin} has no positions ({event.refused})", subjects)
            return
        for place in range(max(event.start, event.num_computed), min(event.end, whole.end)):
            ours, right = _at(event, place), _at(whole, place)
            if ours != right:
                yield Broken(f"{begin} gives token {place} position {ours}, and as a whole {right}", subjects)
                return
        # A turn of a session has its own end.
        if event.how != "turn" and event.decode_delta != whole.decode_delta:
            yield Broken(
                f"{begin} counts on with delta {event.decode_delta}, and as a whole with {whole.decode_delta}", subjects
            )

    def _reached(self, event: PositionsComputed, whole: PositionsComputed) -> str:
        if len(whole.columns) < 2:
            return ""
        if event.how == "stripped":
            return f"{event.num_covered} items of {event.scheme} are covered" if event.num_covered else ""
        return f"{event.scheme} {_HOW[event.how]}" if event.num_items else ""


def positions_line(event: PositionsComputed) -> str:
    """What a way of computing came to, in plain words."""
    how = {"whole": "as a whole"} | _HOW
    got = f"no positions ({event.refused})" if event.refused else f"delta {event.decode_delta}"
    computed = f", {event.num_computed} tokens computed" if event.num_computed else ""
    return f"tokens [{event.start}, {event.end}) {how[event.how]}, with {event.num_items} items{computed}: {got}"


def _at(event: PositionsComputed, place: int) -> tuple[int, ...]:
    return tuple(column[place - event.start] for column in event.columns)


PROPERTIES = (
    Property(
        "POS-EQ",
        "Positions and the decode delta are equal for monolithic, chunked, resumed, disaggregated and streamed execution.",
        "Answers are wrong from the first token after the picture, or empty.",
        "protocol",
        sometimes="a prompt with media of M-RoPE or XD-RoPE, computed otherwise than as a whole",
        evidence=("smg PR 2366", "dynamo PR 5281", "TensorRT-LLM PR 15661", "vLLM PR 46086"),
        monitor=lambda: _Compared(("chunk", "resumed", "metadata", "turn")).by_kind(),
    ),
    Property(
        "POS-SUFFIX",
        "Positions of tokens that are not computed yet do not change when covered items are stripped.",
        "A prefix hit changes the answer.",
        "protocol",
        sometimes="a covered item of M-RoPE or XD-RoPE",
        evidence=("vLLM PR 53456",),
        twin="STRIP-MAX",
        monitor=lambda: _Compared(("stripped",)).by_kind(),
    ),
)
