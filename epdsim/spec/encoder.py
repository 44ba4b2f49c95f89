"""Families ENC and ISO: the encoder cache holds what is gathered, its books are right, and one request's fault stays its own."""

from __future__ import annotations

from collections.abc import Iterator

from epdsim.events import EngineDied, Gathered, RequestFailed, StepPlanned
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import ALL_BUT_SESSIONS, BEYOND, Broken, Finding, Property, Reached


def _gathers_what_is_there(event: Gathered, _engine: EngineState) -> Iterator[Finding]:
    """ENC-HIT of a worker."""
    yield Reached("a worker gathers embeddings")
    if not event.is_resident:
        yield Broken(
            f"a worker gathers item {event.index} of {event.request_id} for [{event.start}, {event.end}) and has it not",
            (event.request_id,),
        )


def _computes_on_what_is_there(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    """ENC-HIT of a plan."""
    for request_id, index in engine.gathers():
        item = engine.requests[request_id].items[index]
        if index not in event.scheduled_encoder_inputs.get(request_id, ()):
            yield Reached(f"{request_id} gathers {item.identifier}, which another step or request encoded")
        if item.identifier not in engine.resident:
            start = event.num_computed_tokens[request_id]
            yield Broken(
                f"step {event.step} computes [{start}, {start + event.num_scheduled_tokens[request_id]}) of {request_id}, which "
                f"takes embeddings of {item.identifier}, and no worker has them",
                (request_id, item.identifier),
            )


def _gathers_its_own(event: Gathered, _engine: EngineState) -> tuple[Finding, ...] | None:
    """ENC-KEY of a worker."""
    if event.is_own:
        return None
    told = f"item {event.index} of {event.request_id} an embedding that was made of something else"
    return (Broken(f"a worker gathers for {told}", (event.request_id,)),)


def _sizes_fit(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    """ENC-KEY of a plan."""
    for request_id, index in engine.gathers():
        item = engine.requests[request_id].items[index]
        others = {
            other.num_embeds
            for known in engine.requests.values()
            for other in known.items
            if other.identifier == item.identifier
        }
        if len(others) > 1:
            yield Reached(f"{item.identifier} stands for items of {sorted(others)} embeddings")
        cached = engine.resident.get(item.identifier)
        if cached is not None and cached != item.num_embeds:
            yield Broken(
                f"step {event.step} gathers {item.num_embeds} embeddings of {item.identifier} for {request_id} from an entry "
                f"that holds {cached}",
                (request_id, item.identifier),
            )


def enc_mirror(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    """ENC-MIRROR."""
    is_producer = engine.started is not None and engine.started.ec_role == "producer"
    for identifier in event.free_encoder_mm_hashes if not is_producer else ():
        yield Reached(f"{identifier} is evicted")
        if identifier not in engine.resident_before:
            yield Broken(
                f"step {event.step} lets workers drop {identifier}, which they do not have: the books differ",
                (identifier,),
            )


def enc_cons(event: StepPlanned, engine: EngineState) -> Iterator[Finding]:
    """ENC-CONS."""
    if engine.started is None:
        return
    if event.free_encoder_mm_hashes:
        yield Reached("an entry makes room for another")
    held, room = sum(engine.resident.values()), engine.started.encoder_cache_size
    if held > room:
        yield Broken(
            f"after step {event.step} workers hold {held} embeddings ({', '.join(engine.resident)}), the cache has room for {room}",
            tuple(engine.resident),
        )


def _dies(event: EngineDied, engine: EngineState) -> tuple[Finding, ...]:
    """ISO of an engine that ends."""
    return (Broken(f"the engine dies: {event.reason}", tuple(engine.requests)),)


def _fails(event: RequestFailed, engine: EngineState) -> Iterator[Finding]:
    """ISO of a request that fails."""
    if engine.started is not None and engine.started.beyond:
        return  # whose fault it is stands in what the events do not tell
    known = engine.requests.get(event.request_id)
    if known is None:
        return
    yield Reached(f"{event.request_id} fails")
    sizes: dict[str, set[int]] = {}
    for one in engine.requests.values():
        for item in one.items:
            sizes.setdefault(item.identifier, set()).add(item.num_embeds)
    for identifier, resident in engine.resident.items():
        sizes.setdefault(identifier, set()).add(resident)
    if not any(len(sizes[item.identifier]) > 1 for item in known.items):
        yield Broken(f"{event.request_id} fails, and no fault is its own: {event.reason}", (event.request_id,))


PROPERTIES = (
    Property(
        "ENC-HIT",
        "At each gather every item that overlaps the gathered range is resident in the worker's encoder cache.",
        "The worker reads an entry that is not there; the engine dies.",
        "engine",
        sometimes="a gather of what another step or request encoded",
        evidence=("vLLM issue 38551", "vLLM PRs 39544, 39543, 45347, 29750, 34220, 51222"),
        monitor=lambda: {Gathered: _gathers_what_is_there, StepPlanned: _computes_on_what_is_there},
        copes=ALL_BUT_SESSIONS,
        of_media=True,
    ),
    Property(
        "ENC-MIRROR",
        "What the scheduler takes for cached is what the workers hold: a step drops only what is there.",
        "The two drift apart, until one relies on what the other has lost.",
        "engine",
        sometimes="an entry is evicted",
        evidence=("vLLM PR 39544",),
        monitor=lambda: {StepPlanned: enc_mirror},
        copes=ALL_BUT_SESSIONS,
        of_media=True,
    ),
    Property(
        "ENC-CONS",
        "The embeddings that workers hold never exceed the encoder cache.",
        "Memory runs out on the device, at a moment that depends on the mix of requests.",
        "engine",
        sometimes="an entry makes room for another",
        evidence=("vLLM PRs 54284, 31857, 30475, 37307", "vllm-ascend PR 16781"),
        monitor=lambda: {StepPlanned: enc_cons},
        copes=ALL_BUT_SESSIONS,
        of_media=True,
    ),
    Property(
        "ENC-KEY",
        "An entry serves only items of as many embeddings as it holds: the key determines the value.",
        "A client's own identifier for two pictures merges the wrong number of embeddings: the engine dies.",
        "engine",
        sometimes="two live items with one identifier and different sizes",
        evidence=("vLLM PR 57696", "vLLM issues 55547, 44939"),
        monitor=lambda: {Gathered: _gathers_its_own, StepPlanned: _sizes_fit},
        copes=frozenset({"stops", "pauses", "transfers", "cross attention"}),
        of_media=True,
        exempt={"simulated": "identifiers of a fleet are hashes of content, none of which stands for two items"},
    ),
    Property(
        "ISO",
        "A fault that one request brings ends that request and nothing else.",
        "One client's picture ends everybody's answers.",
        "engine",
        sometimes="a request fails",
        evidence=("vLLM PRs 53456, 57696, 46747", "vLLM issue 55547", "sglang PR 23481", "LMCache issue 4938"),
        monitor=lambda: {EngineDied: _dies, RequestFailed: _fails},
        copes=BEYOND,
        exempt={"simulated": "no scenario of the quick lane brings a faulty request"},
    ),
)
