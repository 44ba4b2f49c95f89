"""SPLICE-EQ: the rows of embeddings that workers splice into a chunk are those that stand there."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import EncoderFed, Event, Gathered, ItemInfo, StepPlanned, StepYielded
from epdsim.spec.encoder import gathers
from epdsim.spec.engine_state import PAYLOADS, EngineState
from epdsim.spec.property import Broken, Finding, Property, Reached


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

    def __call__(self, event: Event, engine: EngineState) -> Iterator[Finding]:
        """Compare what each chunk takes with what stands there, and look at the end of a step whether anything is missing."""
        match event:
            case StepPlanned() if engine.started is not None and engine.started.has_workers:
                self._to_come = set(gathers(event, engine))
            case EncoderFed():
                # Without pixels a worker ends: STRIP-AVAIL.
                if event.payload not in PAYLOADS:
                    self._is_lost = True
            case Gathered():
                self._to_come.discard((event.request_id, event.index))
                if not event.is_resident:
                    # As it does without the entry: ENC-HIT.
                    self._is_lost = True
                elif event.places:
                    yield from _judged(event, engine)
            case StepYielded():
                for request_id, index in () if self._is_lost else sorted(self._to_come):
                    yield Broken(
                        f"step {event.step} computes tokens of item {index} of {request_id}, and nothing is spliced in",
                        (request_id,),
                    )
                self._to_come.clear()
            case _:
                pass


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
    monitor=SpliceEq,
    reads=(StepPlanned, EncoderFed, Gathered, StepYielded),
    exempt={
        "recorded": "recordings of schedules tell no worker",
        "simulated": "a fleet has no workers, only what they are sent",
    },
)
