"""AIPerf's conversations: JSON lines with all turns of one, each sent some time after the answer to the one before.

One object a line, AIPerf's `multi_turn` (github.com/ai-dynamo/aiperf): `session_id`, and `turns`, each as a line of the
`single_turn` form, with a `timestamp` or a `delay` in ms. A turn is sent with all turns and answers before it. When an answer is
complete is known to a run alone; here each takes a time that the scenario states.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
from pydantic import NonNegativeFloat

from epdsim.core.prompt import TokenRun
from epdsim.workload.aiperf import AiperfLine, AiperfReader
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.streams import KeyedStreams
from epdsim.workload.trace_files import TimedRow, json_rows, line_error


class _Conversation(msgspec.Struct):
    turns: list[AiperfLine]
    session_id: str = ""


class _Turn(msgspec.Struct):
    """One turn of a conversation, and where in its file that stands."""

    line: int
    index: int
    of: _Conversation

    @property
    def itself(self) -> AiperfLine:
        return self.of.turns[self.index]


class AiperfTurnsSpec(AiperfReader):
    """A multi-turn data set of AIPerf's form. Conversations without a timestamp all begin at once.

    Attributes:
        answer_s: From when a turn is sent to when its answer counts as complete, whether or not it is; the next turn without a
            timestamp is sent its `delay` later.
    """

    kind: Literal["aiperf-multi-turn"] = "aiperf-multi-turn"
    answer_s: NonNegativeFloat

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:
        """All turns by time."""
        streams = KeyedStreams(seed, "aiperf-media")
        for arrival_ms, number, turn in self.cut.apply(self._rows(path), path, None):
            name = turn.of.session_id or f"aiperf-{number}"
            try:
                parts, output_tokens = self._prompt(turn, name, streams), self.output_of(turn.itself)
            except ValueError as error:
                told = f"turn {turn.index} {error}"
                raise line_error(path, number, "", told, "correct or drop the line") from error
            yield WorkloadRequest(f"{name}/turn{turn.index}", arrival_ms, parts, output_tokens, name)

    def statements(self, path: Path) -> list[str]:
        """What reading the file assumes."""
        return [*super().statements(path), f"an answer is complete {self.answer_s:g} s after its question was sent"]

    def _rows(self, path: Path) -> Iterator[TimedRow[_Turn]]:
        """Turns by time; those of one moment in the order of the file, which is held in memory."""
        rows: list[tuple[float, int, int, _Turn]] = []
        for number, conversation in json_rows(path, msgspec.json.Decoder(_Conversation)):
            if not conversation.turns:
                raise line_error(path, number, "", "has no turns", "drop the line")
            now_ms = 0.0
            for index, turn in enumerate(conversation.turns):
                after_ms = now_ms + (turn.delay or 0.0) + (self.answer_s * 1e3 if index else 0.0)
                sent_ms = after_ms if turn.timestamp is None else turn.timestamp
                if index and sent_ms < now_ms:
                    raise line_error(
                        path, number, "", f"turn {index} is sent before the one before it", "sort the turns"
                    )
                now_ms = sent_ms
                heapq.heappush(rows, (sent_ms, number, index, _Turn(number, index, conversation)))
        while rows:
            sent_ms, number, _, turn = heapq.heappop(rows)
            yield sent_ms, number, turn

    def _prompt(self, turn: _Turn, name: str, streams: KeyedStreams) -> Parts:
        """All turns and answers so far."""
        parts: list[TokenRun | MediaRef] = []
        for index, one in enumerate(turn.of.turns[: turn.index + 1]):
            parts += self.parts_of(one, f"{name}/turn{index}", streams)
            if index < turn.index:
                parts.append(TokenRun(("answer", name, index), 0, self.output_of(one)))
        return tuple(parts)
