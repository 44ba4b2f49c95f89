"""SPLICE-EQ: the rows of embeddings that workers splice into a chunk are those that stand there."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import EncoderFed, Gathered, ItemInfo, StepPlanned, StepYielded
from epdsim.spec.engine_state import PAYLOADS, EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


def _embeds(item: ItemInfo, start: int, end: int) -> list[int]:
    """Tokens of `[start, end)` that take an embedding of the item."""
    mask = item.is_embed
    low, high = max(start, item.offset), min(end, item.end)
    return [place for place in range(low, high) if mask is None or mask[place - item.offset]]


class SpliceEq:
    """SPLICE-EQ."""

    def __init__(self) -> None:
        self._to_come = set[tuple[str, int]]()
        self._is_lost = False

    def by_kind(self) -> Monitor:
        """Compare what each chunk takes with what stands there, and look at the end of a step whether anything is missing."""
        return {
            StepPlanned: self._planned,
            EncoderFed: self._fed,
            Gathered: self._gathered,
            StepYielded: self._yielded,
        }

    def _planned(self, _event: StepPlanned, engine: EngineState) -> None:
        if engine.started is not None and engine.started.has_workers:
            self._to_come = set(engine.gathers())

    def _fed(self, event: EncoderFed, _engine: EngineState) -> None:
        # Without pixels a worker ends: STRIP-AVAIL.
        if event.payload not in PAYLOADS:
            self._is_lost = True

    def _gathered(self, event: Gathered, engine: EngineState) -> Iterator[Finding] | None:
        self._to_come.discard((event.request_id, event.index))
        if not event.is_resident:
            # As it does without the entry: ENC-HIT.
            self._is_lost = True
            return None
        return _judged(event, engine) if event.places else None

    def _yielded(self, event: StepYielded, _engine: EngineState) -> list[Finding]:
        told = f"step {event.step} computes tokens of item"
        found: list[Finding] = [
            Broken(f"{told} {index} of {request_id}, and nothing is spliced in", (request_id,))
            for request_id, index in (() if self._is_lost else sorted(self._to_come))
        ]
        self._to_come.clear()
        return found


def _judged(event: Gathered, engine: EngineState) -> Iterator[Finding]:
    known = engine.requests.get(event.request_id)
    if known is None:
        return
    item = known.items[event.index]
    places = _embeds(item, event.start, event.end)
    first = len(_embeds(item, item.offset, event.start))
    rows = list(range(first, first + len(places)))
    if first or first + len(places) < item.num_embeds:
        yield Reached(f"{item.identifier} is gathered in parts")
    if item.is_embed is not None and not all(item.is_embed):
        yield Reached(f"{item.identifier} takes embeddings at some of its tokens only")
    if list(event.places) != places or list(event.rows) != rows:
        yield Broken(
            f"{event.request_id} takes rows {list(event.rows)} of {item.identifier} at tokens {list(event.places)}, and it should "
            f"be rows {rows} at {places}",
            (event.request_id, item.identifier),
        )


SPLICE_EQ = Property(
    "SPLICE-EQ",
    "As many embeddings are spliced as the span takes, in order, for every chunking.",
    "The merge ends the engine, or puts a picture's rows at the wrong tokens.",
    "engine",
    sometimes="an item is gathered in parts, or takes embeddings at some of its tokens only",
    evidence=(
        "vLLM PRs 54548, 30475",
        "sglang PRs 35799, 36595, 26737",
        "vllm-ascend issue 6934",
    ),
    twin="ENC-HIT",
    monitor=lambda: SpliceEq().by_kind(),
    of_media=True,
    exempt={
        "recorded": "recordings of schedules tell no worker",
        "simulated": "a fleet has no workers, only what they are sent",
    },
)
