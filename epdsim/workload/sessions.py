"""Conversations over a stream of frames: each turn sees the frames of earlier turns again, one fresh frame and a longer transcript.

The load of vLLM PR 52041's rolling-window control: turn t has t cached frames, one fresh one, and all questions and answers so far.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from epdsim.core.prompt import TokenRun
from epdsim.core.records import record
from epdsim.workload.arrivals import BurstArrivals, ConstantArrivals, GammaArrivals, PoissonArrivals, WeibullArrivals
from epdsim.workload.distributions import Constant, LengthDistribution
from epdsim.workload.media import media_ref
from epdsim.workload.request import MediaRef, Parts, WorkloadRequest
from epdsim.workload.sizes import MediaSize, SizeValue
from epdsim.workload.specs import Held, NonNegativeInt, PositiveInt, SpecModel
from epdsim.workload.streams import named_stream
from epdsim.workload.workload import Workload

ArrivalProcess = Annotated[
    PoissonArrivals | GammaArrivals | WeibullArrivals | ConstantArrivals | BurstArrivals, Field(discriminator="kind")
]


@record
class _Session:
    """One conversation: when it starts, and the lengths of its questions and answers."""

    name: str
    start_ms: float
    questions: list[int]
    answers: list[int]


class SessionsSpec(SpecModel):
    """Conversations with a rolling window of frames.

    Attributes:
        num_sessions: Conversations in all.
        turns: Requests of each.
        starts: When conversations start; its rate is conversations a second.
        turn_interval_s: From one turn of a conversation to its next, whether or not the answer is complete by then.
        frame: Size of a frame.
        max_frames: The window: older frames are left out of the prompt; all are kept when absent.
        system_tokens: Text in front that all conversations share.
        question_tokens: Text that each turn adds.
        answer_tokens: Output of each turn, part of the transcript from the next turn on.
        layout: `interleaved` appends frame, question and answer turn by turn, so that a prompt begins with the one before as long
            as no frame is left out; `frames-first` has all frames in front of all text.
    """

    kind: Literal["sessions"] = "sessions"
    num_sessions: PositiveInt = 1
    turns: Held = 16
    starts: ArrivalProcess = ConstantArrivals(rate_req_s=1.0)
    turn_interval_s: PositiveFloat = 10.0
    frame: SizeValue
    max_frames: PositiveInt | None = None
    system_tokens: NonNegativeInt = 0
    question_tokens: LengthDistribution
    answer_tokens: LengthDistribution
    layout: Literal["interleaved", "frames-first"] = "interleaved"

    @model_validator(mode="after")
    def _check_answers(self) -> SessionsSpec:
        if self.answer_tokens == Constant(value=0):
            raise ValueError("answer_tokens is 0, but every request generates at least 1")
        return self

    def _sessions(self, seed: int) -> Iterator[_Session]:
        blocks = self.starts.arrival_blocks_s(named_stream(seed, self.kind, "starts"))
        times = (time_s for block in blocks for time_s in block.tolist())
        for index, start_s in zip(range(self.num_sessions), times, strict=False):
            name = f"session-{index}"
            rng = named_stream(seed, self.kind, name)
            questions = self.question_tokens.draw(rng, self.turns).tolist()
            answers = [max(1, length) for length in self.answer_tokens.draw(rng, self.turns).tolist()]
            yield _Session(name, start_s * 1e3, questions, answers)

    def requests(self, seed: int) -> Iterator[WorkloadRequest]:
        """All turns by time; only conversations under way are held in memory."""
        under_way: list[tuple[float, int, int, _Session]] = []
        for order, session in enumerate(self._sessions(seed)):
            yield from self._until(under_way, session.start_ms)
            heapq.heappush(under_way, (session.start_ms, order, 0, session))
        yield from self._until(under_way, float("inf"))

    def _until(self, under_way: list[tuple[float, int, int, _Session]], end_ms: float) -> Iterator[WorkloadRequest]:
        while under_way and under_way[0][0] < end_ms:
            time_ms, order, turn, session = heapq.heappop(under_way)
            yield WorkloadRequest(
                request_id=f"{session.name}/turn{turn}",
                arrival_ms=time_ms,
                parts=self._parts(session, turn),
                output_tokens=session.answers[turn],
                session_id=session.name,
            )
            if turn + 1 < self.turns:
                next_ms = session.start_ms + (turn + 1) * self.turn_interval_s * 1e3
                heapq.heappush(under_way, (next_ms, order, turn + 1, session))

    def _parts(self, session: _Session, turn: int) -> Parts:
        oldest = 0 if self.max_frames is None else max(0, turn + 1 - self.max_frames)
        size = MediaSize(*self.frame)
        parts: list[TokenRun | MediaRef] = [TokenRun("sessions/system", 0, self.system_tokens)]
        texts: list[TokenRun | MediaRef] = []
        for earlier in range(turn + 1):
            if earlier >= oldest:
                parts.append(media_ref(f"{session.name}/frame{earlier}", size))
            spoken = parts if self.layout == "interleaved" else texts
            spoken.append(TokenRun(f"{session.name}/question{earlier}", 0, session.questions[earlier]))
            if earlier < turn:
                spoken.append(TokenRun(f"{session.name}/answer{earlier}", 0, session.answers[earlier]))
        return tuple(part for part in (*parts, *texts) if isinstance(part, MediaRef) or part.length)

    def build(self, base_dir: Path, seed: int) -> Workload:  # noqa: ARG002 - one signature for all kinds
        """The workload."""
        return Workload(self.kind, "generated", partial(self.requests, seed), f"{self.summary()}; seed {seed}")
