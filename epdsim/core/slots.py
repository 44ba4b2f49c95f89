"""The four parallel tables in which media travel beside a prompt, and the two ways through them.

Render turns a prompt's media into `mm_hashes`, `mm_placeholders`, `kwargs_data` (payload: every field) and `mm_metadata` (the few
small fields that prefill needs when embeddings come from elsewhere). Each table is keyed by modality and has one slot per item; an
item with nothing to say has None. `extract_features` makes the tables, `features_of` merges them back into items in prompt order.

A slot is a `MediaItem` here and a base64 blob in `epdsim.wire`: the tables do not look inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Generic, Literal, TypeVar

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, MediaItem, PlaceholderRange
from epdsim.core.prompt import Prompt
from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect, Rule

S = TypeVar("S")
T = TypeVar("T")
Table = Mapping[str, Sequence[S | None]]
"""Slots by modality."""


@record
class Rendered:
    """What render made of one prompt.

    Attributes:
        prompt: Its tokens, placeholders expanded.
        mm_hashes: Content hash of each item, by modality.
        mm_placeholders: Where each item stands, by modality.
        mm_items: The processed items, by modality; None for an item that the receiver's cache is known to hold (a cache hit).
    """

    prompt: Prompt
    mm_hashes: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    mm_placeholders: Mapping[str, Sequence[PlaceholderRange]] = field(
        default_factory=dict[str, Sequence[PlaceholderRange]]
    )
    mm_items: Table[MediaItem] = field(default_factory=dict[str, Sequence[MediaItem | None]])


@record
class FeatureTables(Generic[S]):
    """The tables of one request (vLLM's `MultiModalFeatures`).

    Attributes:
        mm_hashes: Content hash of each item, by modality.
        mm_placeholders: Where each item stands, by modality.
        kwargs_data: Payload slots, or None for no payload at all.
        mm_metadata: Metadata slots, or None when no item has any.
    """

    mm_hashes: Mapping[str, Sequence[str]]
    mm_placeholders: Mapping[str, Sequence[PlaceholderRange]]
    kwargs_data: Table[S] | None = None
    mm_metadata: Table[S] | None = None

    def positions(self) -> Iterator[tuple[str, int]]:
        """Modality and index of every item, in order of offset."""
        spans = [
            (one.offset, modality, i)
            for modality, ranges in self.mm_placeholders.items()
            for i, one in enumerate(ranges)
        ]
        return ((modality, i) for _, modality, i in sorted(spans, key=lambda span: span[0]))

    def payload(self, modality: str, index: int) -> S | None:
        """The payload slot of an item; None when it is null or its table is absent."""
        return _slot(self.kwargs_data, modality, index)

    def metadata(self, modality: str, index: int) -> S | None:
        """The metadata slot of an item; None when it is null or its table is absent."""
        return _slot(self.mm_metadata, modality, index)

    def convert(self, one: Callable[[S, str], T]) -> FeatureTables[T]:
        """The same tables with every non-null slot put through `one(slot, place)`, place as in `kwargs_data.image[0]`."""

        def table(name: str, slots: Table[S] | None) -> Table[T] | None:
            if slots is None:
                return None
            return {
                modality: [
                    None if slot is None else one(slot, f"{name}.{modality}[{i}]") for i, slot in enumerate(items)
                ]
                for modality, items in slots.items()
            }

        return FeatureTables(
            self.mm_hashes,
            self.mm_placeholders,
            table("kwargs_data", self.kwargs_data),
            table("mm_metadata", self.mm_metadata),
        )


def _slot(table: Table[S] | None, modality: str, index: int) -> S | None:
    return None if table is None or modality not in table else table[modality][index]


def metadata_slot(item: MediaItem, declared: Collection[str]) -> MediaItem | None:
    """The fields that prefill needs when embeddings come from elsewhere: keep-on-CPU or declared; None when there are none."""
    subset = item.subset(frozenset(declared))
    return subset if subset.fields else None


def complete_table(slots: Table[MediaItem]) -> Table[MediaItem] | None:
    """All modalities with one slot per item, or None when no item of the prompt has anything to say."""
    return slots if any(slot is not None for items in slots.values() for slot in items) else None


def table_with_gaps(slots: Table[MediaItem]) -> Table[MediaItem] | None:
    """Only modalities in which some item has metadata: the table that vLLM 0.30 to 0.33 build and then refuse (vLLM PR 56069)."""
    kept = {modality: items for modality, items in slots.items() if any(slot is not None for slot in items)}
    return kept or None


def no_table(slots: Table[MediaItem]) -> None:
    """No metadata at all: vLLM before 0.30."""


def dense_placeholder(placeholder: PlaceholderRange) -> PlaceholderRange:
    """Offset and length alone: what every release puts on the wire, whatever the mask was (vLLM PR 54548)."""
    return placeholder if placeholder.is_embed is None else replace(placeholder, is_embed=None)


def length_alone() -> bool:
    """The mask does not stay on the CPU."""
    return False


def mask_too() -> bool:
    """It stays on the CPU beside the length, and so travels as metadata: vLLM from 0.29 on (PR 52827)."""
    return True


def merge_slot(payload: MediaItem | None, metadata: MediaItem | None) -> MediaItem | None:
    """One item of its two slots, either of which may be missing; for a field in both the metadata slot wins."""
    if payload is None or metadata is None:
        return metadata if payload is None else payload
    return MediaItem({**payload.fields, **metadata.fields})


def _as_is(value: T) -> T:
    return value


METADATA_SLOT = Rule(
    "slots.metadata_slot",
    "A metadata slot holds exactly the fields that are keep-on-CPU or declared as placeholder metadata, or is null",
    source="vLLM PR 54659",
    ideal=metadata_slot,
)
METADATA_TABLE = Rule(
    "slots.metadata_table",
    "A metadata table that is present has every modality and one slot per item",
    source="vLLM PR 54659; the gap of 0.30 to 0.33: vLLM PR 56069",
    ideal=complete_table,
)
METADATA_READ: Rule[Callable[[Table[Any] | None], Table[Any] | None]] = Rule(
    "slots.metadata_read",
    "A receiver reads the metadata table that it is sent",
    source="vLLM PR 54659; before 0.30 the key is dropped in silence",
    ideal=_as_is,
)
PLACEHOLDER_SENT: Rule[Callable[[PlaceholderRange], PlaceholderRange]] = Rule(
    "slots.placeholder_sent",
    "A placeholder travels with its embed mask",
    source="vLLM PR 54548",
    ideal=_as_is,
)
MASK_KEPT: Rule[Callable[[], bool]] = Rule(
    "slots.mask_kept",
    "Of a sound stays on the CPU, and so travels as metadata, how long it is and not the mask of its features",
    source="SLOT-MIN; positions and placeholder ranges read the length alone",
    ideal=length_alone,
)
MERGED = Rule(
    "slots.merged",
    "An item is its payload slot overlaid by its metadata slot",
    source="vLLM PR 54659",
    ideal=merge_slot,
)


class DeclaredFields:
    """Asks a model family for the fields that a placeholder of a modality is sized by, and survives its failure.

    After the first failure the family is not asked again: modalities it has answered for keep their answer, all others fall back to
    keep-on-CPU fields, and the fallback is told once.

    Args:
        ask: The family's answer for a modality; may raise anything.
        notify: Takes the one notice, for example `notices.append`.
    """

    __slots__ = ("_ask", "_failed", "_known", "_notify")

    def __init__(self, ask: Callable[[str], Collection[str]], notify: Callable[[str], None]) -> None:
        self._ask, self._notify = ask, notify
        self._known: dict[str, frozenset[str]] = {}
        self._failed = False

    def __call__(self, modality: str) -> frozenset[str]:
        """The declared fields of a modality; empty once the family has failed."""
        if modality in self._known or self._failed:
            return self._known.get(modality, frozenset())
        try:
            self._known[modality] = frozenset(self._ask(modality))
        except Exception as error:  # noqa: BLE001 - code of a model family may fail in any way and must not cost the request
            self._failed = True
            self._notify(
                f"declared metadata fields of {modality!r} could not be read ({type(error).__name__}: {error}): "
                "metadata holds keep-on-CPU fields only"
            )
        return self._known.get(modality, frozenset())


def _nothing_declared(modality: str) -> frozenset[str]:  # noqa: ARG001 - stands for a family
    return frozenset()


def extract_features(
    rendered: Rendered,
    declared: Callable[[str], Collection[str]] = _nothing_declared,
    *,
    mm_payload: Literal["tensors", "none"] = "tensors",
    dialect: Dialect = IDEAL,
) -> FeatureTables[MediaItem] | None:
    """The tables of a rendered prompt; None for a prompt without media.

    Args:
        rendered: Hashes, placeholders and items of the prompt.
        declared: Declared placeholder-metadata fields of a modality, best wrapped in `DeclaredFields`.
        mm_payload: `"none"` gives hashes and placeholders only: enough to route by, never to generate from.
        dialect: Whose tables.

    Raises:
        InputError: The tables are not parallel. In the releases 0.30 to 0.33 that befalls sound input too: a modality without any
            metadata beside one that has some (vLLM PR 56069).
    """
    if mm_payload not in ("tensors", "none"):
        raise InputError(f"mm_payload = {mm_payload!r}", "no such option", 'use "tensors" or "none"')
    if not rendered.mm_hashes and not rendered.mm_placeholders:
        return None
    sent = dialect[PLACEHOLDER_SENT]
    placeholders = {modality: [sent(one) for one in ranges] for modality, ranges in rendered.mm_placeholders.items()}
    payload = metadata = None
    if mm_payload == "tensors" and rendered.mm_items:
        slot, payload = dialect[METADATA_SLOT], rendered.mm_items
        metadata = dialect[METADATA_TABLE](
            {
                modality: [None if item is None else slot(item, fields) for item in items]
                for modality, items, fields in ((m, items, declared(m)) for m, items in payload.items())
            }
        )
    tables = FeatureTables(rendered.mm_hashes, placeholders, payload, metadata)
    check_tables(tables)
    return tables


def features_of(tables: FeatureTables[MediaItem], dialect: Dialect = IDEAL) -> tuple[MediaFeature, ...]:
    """The items of a request in order of offset, each the merge of its slots; data None means that a cache must hold it."""
    read = replace(tables, mm_metadata=dialect[METADATA_READ](tables.mm_metadata))
    merged = dialect[MERGED]
    return tuple(
        MediaFeature(
            modality=modality,
            identifier=read.mm_hashes[modality][i],
            position=read.mm_placeholders[modality][i],
            data=merged(read.payload(modality, i), read.metadata(modality, i)),
            mm_hash=read.mm_hashes[modality][i],
        )
        for modality, i in read.positions()
    )


def tables_of(features: Sequence[MediaFeature]) -> FeatureTables[MediaItem] | None:
    """Tables whose payload slots are the items themselves: the way back from `features_of`; None without items."""
    hashes: dict[str, list[str]] = {}
    placeholders: dict[str, list[PlaceholderRange]] = {}
    payload: dict[str, list[MediaItem | None]] = {}
    for one in features:
        hashes.setdefault(one.modality, []).append(one.mm_hash or one.identifier)
        placeholders.setdefault(one.modality, []).append(one.position)
        payload.setdefault(one.modality, []).append(one.data)
    return FeatureTables(hashes, placeholders, payload) if features else None


def check_tables(tables: FeatureTables[S], num_prompt_tokens: int | None = None) -> None:
    """Refuse tables that are not parallel or whose placeholders collide or leave the prompt.

    The order of the checks is that of vLLM 0.32, so that the first complaint is the same.

    Raises:
        InputError: With the table, what is wrong with it, and the modality where one is meant.
    """
    modalities = set(tables.mm_hashes)
    parallel: tuple[tuple[str, Mapping[str, Sequence[object]] | None], ...] = (
        ("mm_placeholders", tables.mm_placeholders),
        ("kwargs_data", tables.kwargs_data),
        ("mm_metadata", tables.mm_metadata),
    )
    for name, table in parallel:
        if table is not None and set(table) != modalities:
            raise InputError(
                f"{name} has the modalities {sorted(table)}",
                f"mm_hashes has {sorted(modalities)}",
                "give every table that is present every modality, with null for an item that has nothing",
            )
    for modality, hashes in tables.mm_hashes.items():
        for name, table in parallel:
            if table is not None and len(table[modality]) != len(hashes):
                raise InputError(
                    f"{name}.{modality} has length {len(table[modality])}",
                    f"mm_hashes.{modality} has length {len(hashes)}",
                    "give every item one slot",
                )
    check_spans(tables, num_prompt_tokens)


def check_spans(tables: FeatureTables[S], num_prompt_tokens: int | None = None) -> None:
    """Refuse placeholders that overlap or, where the length of the prompt is known, leave it.

    Raises:
        InputError: With the placeholders.
    """
    previous: tuple[str, int] | None = None
    for modality, i in tables.positions():
        span, place = tables.mm_placeholders[modality][i], f"mm_placeholders.{modality}[{i}]"
        if previous is not None:
            before = tables.mm_placeholders[previous[0]][previous[1]]
            if span.offset < before.end:
                raise InputError(
                    f"{place} = [{span.offset}, {span.end})",
                    f"it overlaps mm_placeholders.{previous[0]}[{previous[1]}] = [{before.offset}, {before.end})",
                    "give every item tokens of its own",
                )
        if num_prompt_tokens is not None and span.end > num_prompt_tokens:
            raise InputError(
                f"{place} = [{span.offset}, {span.end})", f"it leaves the prompt of {num_prompt_tokens} tokens"
            )
        previous = (modality, i)
