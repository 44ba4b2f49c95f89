"""Families TOK, KV, CHUNK and LIVE: what a step computes, on which blocks, and that everybody is served in the end."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import (
    Admitted,
    EngineStarted,
    EngineStopped,
    RequestAborted,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    StepPlanned,
    StepYielded,
)
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import BEYOND, Broken, Finding, Monitor, Property, Reached

MOST_IDLE_STEPS = 8
"""Steps without a token, one after the other while somebody waits and nothing happens from outside, that count as a standstill."""
_WAITS = Reached("somebody waits while others run")


class TokCons:
    """TOK-CONS."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._resumed = set[str]()

    def by_kind(self) -> Monitor:
        """Follow each request from admission to admission, and the budgets of each step."""
        return {Admitted: self._admitted, StepPlanned: self._planned}

    def _admitted(self, event: Admitted, _engine: EngineState) -> None:
        self._next[event.request_id] = event.num_computed_tokens
        if event.resumed:
            self._resumed.add(event.request_id)

    def _planned(self, event: StepPlanned, engine: EngineState) -> list[Finding]:
        for request_id in event.finished:
            self._next.pop(request_id, None)
            self._resumed.discard(request_id)
        found = self._positions(event, engine)
        if engine.started is not None:
            found += _budgets(event, engine.started, engine)
        return found

    def _positions(self, event: StepPlanned, engine: EngineState) -> list[Finding]:
        found: list[Finding] = []
        computed = event.num_computed_tokens
        for request_id, count in event.num_scheduled_tokens.items():
            start = computed.get(request_id)
            if start is None:
                continue
            before = self._next.get(request_id)
            if before is None:
                if engine.started is not None:
                    told = f"step {event.step} computes {request_id}, which this engine has not admitted since it began"
                    found.append(Broken(told, (request_id,)))
                continue
            end = self._next[request_id] = start + count
            if request_id in self._resumed:
                found.append(Reached(f"{request_id} computes after it was preempted"))
            if start != before:
                told = f"computes {request_id} from token {start} on, and the steps before it came to {before}"
                found.append(Broken(f"step {event.step} {told}", (request_id,)))
            if engine.tells_tokens and (known := engine.requests.get(request_id)) is not None and end > known.num_known:
                told = f"computes {request_id} up to token {end}, of which {known.num_known} are known"
                found.append(Broken(f"step {event.step} {told}", (request_id,)))
        return found


def _budgets(event: StepPlanned, started: EngineStarted, engine: EngineState) -> list[Finding]:
    scheduled, encoded = event.num_scheduled_tokens, event.scheduled_encoder_inputs
    weighed = (
        ("tokens", sum(scheduled.values()), started.max_num_batched_tokens * event.num_steps),
        ("requests", len(scheduled), started.max_num_seqs),
        ("embeddings to encode", _num_encoded(event, engine) if encoded else 0, started.max_num_encoder_input_tokens),
    )
    return [
        Broken(f"step {event.step} has {spent} {what}, its budget is {budget}", tuple(scheduled))
        for what, spent, budget in weighed
        if spent > budget
    ]


def _num_encoded(event: StepPlanned, engine: EngineState) -> int:
    """Embeddings that come of the encoder runs of a step."""
    return sum(
        engine.requests[request_id].items[index].num_embeds
        for request_id, indices in event.scheduled_encoder_inputs.items()
        if request_id in engine.requests
        for index in indices
    )


def _tables_cover(event: StepPlanned, engine: EngineState) -> list[Finding] | None:
    """KV-CONS of a plan."""
    started = engine.started
    # The blocks of what ended within several steps are given back before these are told.
    if started is None or not started.num_gpu_blocks or event.num_steps != 1:
        return None
    found: list[Finding] = []
    size, computed = started.block_size, event.num_computed_tokens
    for request_id, count in event.num_scheduled_tokens.items():
        known, start = engine.requests.get(request_id), computed.get(request_id)
        if known is not None and start is not None and len(known.table) * size < start + count:
            told = f"up to token {start + count} on {len(known.table)} blocks of {size}"
            found.append(Broken(f"step {event.step} computes {request_id} {told}", (request_id,)))
    return found


def _blocks_add_up(event: StepYielded, engine: EngineState) -> Iterator[Finding]:
    """KV-CONS at the end of a step."""
    if engine.started is None or not engine.started.num_gpu_blocks:
        return
    place: dict[int, tuple[int, str]] = {}
    for request_id in (*event.running, *event.waiting):
        known = engine.requests.get(request_id)
        for index, block in enumerate(known.table if known is not None else ()):
            other = place.setdefault(block, (index, request_id))
            if other[1] != request_id:
                yield Reached(f"{request_id} and {other[1]} share a block")
            if other[0] != index or block == 0:
                yield Broken(
                    f"after step {event.step} block {block} is number {index} of {request_id} and number {other[0]} of {other[1]}",
                    (request_id, other[1]),
                )
    usable = engine.started.num_gpu_blocks - 1
    if len(place) + event.free_blocks != usable:
        yield Broken(
            f"after step {event.step} {len(place)} blocks are in use and {event.free_blocks} free, of {usable}",
            (*event.running, *event.waiting),
        )


def chunk_whole(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    """CHUNK-WHOLE."""
    if engine.started is None or not engine.started.disable_chunked_mm_input:
        return
    for request_id, count in event.num_scheduled_tokens.items():
        known, start = engine.requests.get(request_id), event.num_computed_tokens.get(request_id)
        if known is None or start is None:
            continue
        end = start + count
        for item in known.items:
            if end == item.offset:
                yield Reached(f"a step ends just before {item.identifier}")
            if item.offset < end < item.end:
                yield Broken(
                    f"chunked media input is off, and step {event.step} computes [{start}, {end}) of {request_id}, which splits "
                    f"{item.identifier} at [{item.offset}, {item.end})",
                    (request_id, item.identifier),
                )


class LiveProg:
    """LIVE-PROG."""

    def __init__(self) -> None:
        self._idle = 0
        self._alive: list[str] = []

    def by_kind(self) -> Monitor:
        """Count steps without a token, and look who is left at the end."""
        return {
            RequestQueued: self._stirred,
            RequestAborted: self._stirred,
            StepYielded: self._yielded,
            StepPlanned: self._planned,
            EngineStopped: _left,
        }

    def _stirred(self, _event: RequestQueued | RequestAborted, _engine: EngineState) -> None:
        self._idle = 0

    def _yielded(self, event: StepYielded, _engine: EngineState) -> tuple[Finding, ...] | None:
        self._alive = [*event.running, *event.waiting]
        return (_WAITS,) if event.running and event.waiting else None

    def _planned(self, event: StepPlanned, engine: EngineState) -> tuple[Finding, ...] | None:
        idle = self._idle = 0 if event.num_scheduled_tokens else self._idle + 1
        alive = self._alive
        # What is beyond the events may let it wait rightly: for an input, a transfer, the end of a pause.
        if idle == MOST_IDLE_STEPS and alive and (engine.started is None or not engine.started.beyond):
            told = f"{idle} steps up to {event.step} compute nothing while {', '.join(alive)} waits"
            return (Broken(told, tuple(alive)),)
        return None


def _left(event: EngineStopped, engine: EngineState) -> tuple[Finding, ...] | None:
    """LIVE-PROG at the end."""
    if not event.unfinished:
        return None
    step = engine.plan.step if engine.plan is not None else 0
    names = ", ".join(event.unfinished)
    return (Broken(f"{names} has not ended by step {step}, and nothing more is to come", tuple(event.unfinished)),)


class LiveDone:
    """LIVE-DONE: everybody ends once, with what was asked for."""

    def __init__(self) -> None:
        self._ended = set[str]()

    def by_kind(self) -> Monitor:
        """Count outputs of what ends."""
        return {
            RequestQueued: self._queued,
            StepPlanned: self._planned,
            RequestFinished: self._ends,
            RequestFailed: self._ends,
        }

    def _queued(self, event: RequestQueued, _engine: EngineState) -> None:
        self._ended.discard(event.request_id)

    def _planned(self, event: StepPlanned, _engine: EngineState) -> None:
        self._ended.difference_update(event.finished)

    def _ends(self, event: RequestFinished | RequestFailed, engine: EngineState) -> Iterator[Finding] | None:
        return self._weigh(event, engine, engine.started) if engine.started is not None else None

    def _weigh(
        self, event: RequestFinished | RequestFailed, engine: EngineState, started: EngineStarted
    ) -> Iterator[Finding]:
        if event.request_id in self._ended:
            yield Broken(f"{event.request_id} ends a second time", (event.request_id,))
        self._ended.add(event.request_id)
        known = engine.requests.get(event.request_id)
        if known is None or isinstance(event, RequestFailed):
            return
        if known.admissions > 1:
            yield Reached(f"{event.request_id} ends after it was preempted")
        asked = known.queued.max_tokens
        if started.max_model_len:
            asked = min(asked, started.max_model_len - known.queued.num_prompt_tokens)
        asked += known.queued.num_delivered_tokens
        if event.output_tokens != asked:
            yield Broken(
                f"{event.request_id} asked for {asked} tokens and ends with {event.output_tokens}",
                (event.request_id,),
            )


PROPERTIES = (
    Property(
        "TOK-CONS",
        "From each admission on every position is computed exactly once, in order, no budget exceeded.",
        "A position left out is garbage in the KV cache; one computed twice is time lost, and a token sampled twice.",
        "engine",
        sometimes="a request computes again after a preemption",
        evidence=("vLLM issue 49250",),
        monitor=lambda: TokCons().by_kind(),
        copes=frozenset({"stops", "pauses", "pull", "cross attention", "encoding alone"}),
    ),
    Property(
        "KV-CONS",
        "Blocks are conserved: free and used add up, a table covers what is computed, a block is shared at equal places only.",
        "A block with two owners is overwritten by one of them; one without any is lost until the server restarts.",
        "engine",
        sometimes="two requests share a block",
        monitor=lambda: {StepPlanned: _tables_cover, StepYielded: _blocks_add_up},
        copes=frozenset({"sessions", "stops", "pauses", "pull", "drafts"}),
        exempt={"simulated": "a fleet does not tell its queues by name"},
    ),
    Property(
        "CHUNK-WHOLE",
        "With chunked media input off no step ends inside a media item.",
        "Models with attention in both directions inside an item compute wrong values, in silence.",
        "engine",
        sometimes="a step ends just before an item",
        evidence=("vLLM issue 52306", "vLLM PRs 52412, 34220"),
        monitor=lambda: {StepPlanned: chunk_whole},
        of_media=True,
        copes=frozenset({"stops", "pauses", "drafts", "transfers", "pull"}),
        exempt={"simulated": "no fleet turns chunked media input off"},
    ),
    Property(
        "LIVE-PROG",
        "No step after step computes nothing while somebody waits and nothing can change; in the end everybody is served.",
        "The server looks healthy and answers nobody.",
        "engine",
        kind="eventually",
        sometimes="somebody waits while others run",
        evidence=("vLLM issues 40707, 53130", "vLLM PRs 31857, 37307, 51603"),
        monitor=lambda: LiveProg().by_kind(),
        exempt={"simulated": "a fleet does not tell its queues by name"},
        copes=BEYOND,
    ),
    Property(
        "LIVE-DONE",
        "A request ends once, and one that ends well has as many tokens as it asked for.",
        "An answer that is cut, or delivered twice, without an error.",
        "engine",
        sometimes="a request ends well after it was preempted",
        evidence=("vllm-omni PR 7788",),
        monitor=lambda: LiveDone().by_kind(),
        copes=frozenset({"pauses"}),
    ),
)
