"""Family SLOT, and PROTO-RT: the four parallel tables are complete, and what was rendered is what arrives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from epdsim.events import ItemsMerged, MergedItem, MetadataWeighed, RenderedItem, TablesRendered
from epdsim.events.protocol import Slot
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached

Tables = Mapping[str, Sequence[Slot]]


def _light(item: RenderedItem) -> Slot:
    """What the metadata slot of an item must hold."""
    if item.fields is None:
        return None
    wanted = {*item.keep_on_cpu, *item.declared}
    return {name: digest for name, digest in item.fields.items() if name in wanted} or None


def _by_modality(items: Sequence[RenderedItem]) -> dict[str, list[RenderedItem]]:
    """Items in order of offset as lists by modality, in the same order."""
    found: dict[str, list[RenderedItem]] = {}
    for item in items:
        found.setdefault(item.modality, []).append(item)
    return found


def _tables(event: TablesRendered) -> Iterator[tuple[str, Tables]]:
    if event.kwargs_data is not None:
        yield "kwargs_data", event.kwargs_data
    if event.mm_metadata is not None:
        yield "mm_metadata", event.mm_metadata


def slot_keys(event: TablesRendered, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-KEYS."""
    if event.refused:
        return
    lights = {m: any(_light(one) for one in items) for m, items in _by_modality(event.items).items()}
    if len(set(lights.values())) > 1:
        yield Reached("a modality without metadata beside one with some")
    for name, table in _tables(event):
        if set(table) != set(event.mm_hashes):
            told = f"{name} has the modalities {sorted(table)}, mm_hashes has {sorted(event.mm_hashes)}"
            yield Broken(told, (event.case,))


def slot_len(event: TablesRendered, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-LEN."""
    if event.refused:
        return
    for items in _by_modality(event.items).values():
        cached = [one.fields is None for one in items]
        if any(cached[1:-1]) and not all(cached):
            yield Reached("a cache hit between two items that are none")
    for name, table in _tables(event):
        for modality, slots in table.items():
            wanted = len(event.mm_hashes.get(modality, ()))
            if len(slots) != wanted:
                yield Broken(f"{name}.{modality} has {len(slots)} slots for {wanted} items", (event.case,))


def slot_meta(event: TablesRendered, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-META."""
    if event.refused or event.permutes or event.kwargs_data is None:
        return
    places: dict[str, int] = {}
    for item in event.items:
        place = places[item.modality] = places.get(item.modality, -1) + 1
        wanted = _light(item)
        slots = (event.mm_metadata or {}).get(item.modality, ())
        got = slots[place] if place < len(slots) else None
        if item.fields is not None and set(item.declared) - set(item.keep_on_cpu) and item.keep_on_cpu:
            yield Reached("a declared field that is not kept on the CPU")
        if got != wanted:
            yield Broken(
                f"the metadata slot of {item.modality}[{place}] holds {_names(got)}, it should hold {_names(wanted)}",
                (event.case, item.mm_hash),
            )


def _names(slot: Slot) -> str:
    return "nothing" if slot is None else f"{list(slot)}"


def slot_null(event: ItemsMerged, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-NULL."""
    if not event.is_light or event.refused:
        return
    for item in event.items:
        if item.rendered is None:
            continue
        wanted = _light(item.rendered)
        yield Reached("metadata without payload" if wanted else "neither payload nor metadata")
        if (wanted is None) != (item.fields is None):
            yield Broken(
                f"{item.modality} {item.mm_hash} was forwarded without payload and with {_names(wanted)} as metadata, "
                f"and arrived with {_names(item.fields)}",
                (event.case, item.mm_hash),
            )


def slot_rt(event: ItemsMerged, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-RT."""
    if event.refused:
        yield Broken(f"what was rendered cannot be merged: {event.refused}", (event.case,))
    for item in event.items:
        if item.rendered is None:
            continue
        wanted = _light(item.rendered) if event.is_light else item.rendered.fields
        if wanted is not None:
            yield Reached("an item with fields")
        if item.fields != wanted or list(item.fields or ()) != list(wanted or ()):
            yield Broken(
                f"{item.modality} {item.mm_hash} was rendered with {_names(wanted)} and arrived with "
                f"{_names(item.fields)}, or with other bytes in them",
                (event.case, item.mm_hash),
            )


def proto_rt(event: ItemsMerged, _engine: EngineState) -> Iterator[Finding]:
    """PROTO-RT."""
    if event.refused:
        return
    for item in event.items:
        wanted = item.rendered
        if wanted is None:
            yield Broken(f"{item.modality} {item.mm_hash} arrived and was not rendered", (event.case, item.mm_hash))
            continue
        if wanted.span.is_embed is not None:
            yield Reached("an item with an embed mask")
        if (item.modality, item.mm_hash) != (wanted.modality, wanted.mm_hash):
            yield Broken(f"{wanted.modality} {wanted.mm_hash} arrived as {item.modality} {item.mm_hash}", (event.case,))
        if item.span != wanted.span:
            yield Broken(
                f"{item.modality} {item.mm_hash} stood at {_span(wanted)} and arrived at {_span(item)}",
                (event.case, item.mm_hash),
            )


def _span(item: RenderedItem | MergedItem) -> str:
    span = item.span
    mask = "" if span.is_embed is None else f" with mask {''.join(map(str, span.is_embed))}"
    return f"[{span.offset}, {span.offset + span.length}){mask}"


def slot_accept(event: TablesRendered, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-ACCEPT."""
    modalities = sorted({item.modality for item in event.items})
    if len(modalities) > 1:
        yield Reached("mixed modalities")
    if event.refused:
        yield Broken(f"render of {' and '.join(modalities)} fails: {event.refused}", (event.case,))
    elif event.rejected:
        yield Broken(f"what render made of {' and '.join(modalities)} is refused: {event.rejected}", (event.case,))


class SlotOrder:
    """SLOT-ORDER."""

    def __init__(self) -> None:
        self._base: dict[str, TablesRendered] = {}

    def by_kind(self) -> Monitor:
        """Compare a permuted case with its base."""
        return {TablesRendered: self._rendered}

    def _rendered(self, event: TablesRendered, _engine: EngineState) -> Iterator[Finding]:
        if event.refused:
            return
        base = self._base.get(event.permutes)
        if not event.permutes:
            self._base[event.case] = event
        if base is None:
            return
        yield Reached("items permuted")
        for name in ("kwargs_data", "mm_metadata", "mm_hashes"):
            tables: Mapping[str, Sequence[object]] | None = getattr(event, name)
            before: Mapping[str, Sequence[object]] | None = getattr(base, name)
            if (tables is None) != (before is None):
                yield Broken(f"{name} is there before items are permuted, or after, but not both", (event.case,))
            for modality, slots in (tables or {}).items():
                wanted = [(before or {})[modality][place] for place in event.order[modality]]
                if list(slots) != wanted:
                    yield Broken(f"{name}.{modality} is not permuted as its items are", (event.case,))


def slot_fallback(event: TablesRendered, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-FALLBACK."""
    if not event.declared_failed:
        return
    yield Reached("the source of declared fields fails")
    if event.refused:
        yield Broken(f"render fails with the source of declared fields: {event.refused}", (event.case,))
    elif event.num_notices != 1:
        yield Broken(f"the fall-back was told {event.num_notices} times, not once", (event.case,))


ITEM_METADATA_BYTES, GROUP_METADATA_BYTES = 64, 16
"""What the metadata of an item may weigh: for grids and counts of the whole, and for the time or place of each frame or tile."""


def slot_min(event: MetadataWeighed, _engine: EngineState) -> Iterator[Finding]:
    """SLOT-MIN."""
    # A group has a patch at least.
    most = ITEM_METADATA_BYTES + GROUP_METADATA_BYTES * min(event.num_groups, event.num_patches)
    if event.fields and event.payload_bytes >= 100 * most:
        yield Reached(f"metadata of a {event.modality} of {event.family}")
    if event.metadata_bytes > most or event.metadata_bytes >= event.payload_bytes > 0:
        yield Broken(
            f"metadata of {event.modality} of {event.family} in {event.num_groups} groups ({', '.join(event.fields)}) weigh "
            f"{event.metadata_bytes} bytes of {event.payload_bytes}, and may weigh {min(most, event.payload_bytes - 1)}",
            (event.family,),
        )


PROPERTIES = (
    Property(
        "SLOT-KEYS",
        "Every table that is present has exactly the modalities of mm_hashes.",
        "A receiver that checks the tables refuses the whole request; one that does not reads another item's slot.",
        "protocol",
        sometimes="a modality without any metadata beside one that has some",
        evidence=("vLLM PR 56069",),
        monitor=lambda: {TablesRendered: slot_keys},
    ),
    Property(
        "SLOT-LEN",
        "In every modality every table that is present has one slot per item; an item that has nothing has null.",
        "A missing slot shifts all that follow: items get each other's pixels or grids.",
        "protocol",
        sometimes="a cache hit (null payload) between two items that are none",
        evidence=("vLLM PR 56069",),
        monitor=lambda: {TablesRendered: slot_len},
    ),
    Property(
        "SLOT-META",
        "A metadata slot holds exactly the fields that are keep-on-CPU or declared for the modality, and is null without any.",
        "Prefill computes positions and placeholder sizes from it: a field less is a wrong position, a field more is pixels twice.",
        "protocol",
        sometimes="a declared field that is not kept on the CPU, beside a kept one",
        evidence=("vLLM PRs 54659, 52827, 52881",),
        twin="`exactly`: too many fields are wrong too",
        monitor=lambda: {TablesRendered: slot_meta},
    ),
    Property(
        "SLOT-NULL",
        "A null payload slot never turns a present metadata slot into null, nor the reverse, across JSON, forwarding and merge.",
        "Prefill would compute positions without grid, or take an item for one that it must fetch.",
        "protocol",
        sometimes="an item forwarded with metadata alone, and one with neither",
        evidence=("vLLM PRs 54659, 56069",),
        monitor=lambda: {ItemsMerged: slot_null},
    ),
    Property(
        "SLOT-RT",
        "Render, JSON, parse and merge give the items that were rendered: fields, order, dtypes, shapes, bytes, field kinds.",
        "What is lost on the way is missing in the model's input.",
        "protocol",
        sometimes="items with fields (nested, empty and bfloat16 tensors among them)",
        evidence=("vLLM PR 54659",),
        monitor=lambda: {ItemsMerged: slot_rt},
    ),
    Property(
        "PROTO-RT",
        "Render, wire and generate keep modality, hash, span, embed mask and order of every item.",
        "A sparse mask that is lost splices embeddings at text tokens: wrong answers without an error.",
        "protocol",
        sometimes="an item with an embed mask",
        evidence=("vLLM PR 54548", "smg PR 2365", "TensorRT-LLM PR 12944"),
        monitor=lambda: {ItemsMerged: proto_rt},
    ),
    Property(
        "SLOT-ACCEPT",
        "Whatever render emits, the receiver's validator accepts, with EC parameters where payloads are left out.",
        "A chat with a picture and a sound cannot be served at all.",
        "protocol",
        sometimes="a prompt of several modalities",
        evidence=("vLLM PR 56069",),
        monitor=lambda: {TablesRendered: slot_accept},
    ),
    Property(
        "SLOT-ORDER",
        "Permuting items within a modality permutes their slots and changes nothing else.",
        "An item's slots depend on its neighbours: a cache hit next to it changes what is sent for it.",
        "protocol",
        sometimes="a permutation that is not the identity",
        monitor=lambda: SlotOrder().by_kind(),
    ),
    Property(
        "SLOT-FALLBACK",
        "When the source of declared fields fails, metadata holds keep-on-CPU fields, stays complete, and that is told once.",
        "One model's broken processor must not cost requests, nor flood the log.",
        "protocol",
        sometimes="a failure at the first and at a later question",
        evidence=("vLLM PR 54659",),
        monitor=lambda: {TablesRendered: slot_fallback},
        exempt={"vllm": "the release asks a processor, which no adapter builds; see docs/reference/live-vllm.md"},
    ),
    Property(
        "SLOT-MIN",
        "Metadata is light: for every family within a stated number of bytes that depends on the item's grid alone.",
        "It is what disaggregation saves: metadata as heavy as pixels would make prefill's body no smaller.",
        "protocol",
        sometimes="metadata of an item whose payload is a hundred times the bound",
        evidence=("vLLM PRs 52827, 52881",),
        twin="SLOT-META",
        monitor=lambda: {MetadataWeighed: slot_min},
    ),
)
