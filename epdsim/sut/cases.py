"""Cases: what a property run puts to a system, as data that can be kept, shrunk and played again.

A case of an engine is a `RecordedWorkload`; the others are put to the functions of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.items import (
    ITEM_BYTES,
    BatchedKind,
    Field,
    FieldData,
    FieldKind,
    FlatKind,
    MediaFeature,
    MediaItem,
    PlaceholderRange,
    SharedKind,
    TensorHandle,
)
from epdsim.core.prompt import TokenPrompt
from epdsim.core.slots import Rendered
from epdsim.sut.broadcast_cases import BroadcastCase
from epdsim.sut.cache_cases import MirrorCase, RingCase
from epdsim.sut.family_cases import FamilyCase
from epdsim.sut.identity_cases import HashCase, KeyCase
from epdsim.sut.position_cases import PositionCase
from epdsim.sut.schedule_records import RecordedWorkload


class CaseField(msgspec.Struct, frozen=True, omit_defaults=True):
    """One field of an item.

    Attributes:
        num_parts: 0 for a plain tensor, else so many tensors in a list.
        fill: What its bytes are made of.
    """

    name: str
    shape: tuple[int, ...] = (1,)
    dtype: str = "float32"
    keep_on_cpu: bool = False
    kind: str = "batched"
    num_parts: int = 0
    fill: int = 0

    def field(self) -> Field:
        """As the core has it."""
        size = ITEM_BYTES[self.dtype]
        for one in self.shape:
            size *= one
        # Bytes 0 and 1 are valid in every dtype, bool among them.
        handle = TensorHandle(self.dtype, self.shape, bytes((self.fill + i) % 2 for i in range(size)))
        data: FieldData = (handle,) * self.num_parts if self.num_parts else handle
        return Field(data, self._kind())

    def _kind(self) -> FieldKind:
        if self.kind == "flat":
            return FlatKind(((0, 1, None),), 0, self.keep_on_cpu)
        return SharedKind(1, self.keep_on_cpu) if self.kind == "shared" else BatchedKind(self.keep_on_cpu)


class CaseItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item in order of offset.

    Attributes:
        gap: Text tokens before it.
        fields: None for an item that the receiver's cache must hold.
    """

    modality: str
    mm_hash: str
    length: int = 1
    gap: int = 0
    is_embed: list[int] | None = None
    fields: list[CaseField] | None = None

    def item(self) -> MediaItem | None:
        """As the core has it."""
        return None if self.fields is None else MediaItem({one.name: one.field() for one in self.fields})


class RenderCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="render"):
    """A prompt to be rendered, sent and merged.

    Attributes:
        declared: Fields that the model family declares, by modality.
        tail: Text tokens behind the last item.
        order: Further, the same with the items of each modality in this order; empty for no such.
        fails_at: The question for declared fields at which the family begins to fail; None for never.
    """

    items: list[CaseItem]
    declared: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    tail: int = 0
    order: dict[str, list[int]] = msgspec.field(default_factory=dict[str, list[int]])
    fails_at: int | None = None


class CheckCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="check"):
    """A request to be judged, with variants of it.

    Attributes:
        items: Modality, hash and state (`"neither"`, `"payload"`, `"metadata"`, `"both"`) in order of offset.
        offers: What `ec_transfer_params` says of hashes: a descriptor, or null (False); None for no parameters.
        order: The items of a permuted variant.
        more_payload: Items that a variant gives a payload.
        more_offers: Hashes for which a variant has a descriptor.
    """

    items: list[tuple[str, str, str]]
    offers: dict[str, bool] | None = None
    order: list[int] = []
    more_payload: list[int] = []
    more_offers: list[str] = []


class StripCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="strip"):
    """Items of a request to be stripped at its admission."""

    items: list[CaseItem]
    num_computed_tokens: int
    reads_position_fields: bool = False


class EngineCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="engine"):
    """A workload to be played to an engine."""

    workload: RecordedWorkload


Case = (
    RenderCase
    | CheckCase
    | StripCase
    | EngineCase
    | MirrorCase
    | RingCase
    | PositionCase
    | HashCase
    | KeyCase
    | FamilyCase
    | BroadcastCase
)

_decoder: msgspec.json.Decoder[Case] = msgspec.json.Decoder(Case)


def read_case(text: bytes) -> Case:
    """A case from its JSON form.

    Raises:
        InputError: It is none.
    """
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError("the case", f"it cannot be read ({error})", "let the property fail again") from error


def write_case(case: Case) -> bytes:
    """The JSON form of a case."""
    return msgspec.json.format(msgspec.json.encode(case), indent=1)


def spans_of(items: Sequence[CaseItem]) -> list[PlaceholderRange]:
    """Where the items stand."""
    spans: list[PlaceholderRange] = []
    offset = 0
    for one in items:
        offset += one.gap
        spans.append(PlaceholderRange(offset, one.length, None if one.is_embed is None else bytes(one.is_embed)))
        offset += one.length
    return spans


def rendered_of(case: RenderCase, order: Mapping[str, Sequence[int]] | None = None) -> Rendered:
    """What render makes of a prompt, the items of each modality in their order of offset or in another one."""
    hashes: dict[str, list[Any]] = {}
    placeholders: dict[str, list[Any]] = {}
    items: dict[str, list[Any]] = {}
    for one, span in zip(case.items, spans_of(case.items), strict=True):
        for table, entry in ((hashes, one.mm_hash), (placeholders, span), (items, one.item())):
            table.setdefault(one.modality, []).append(entry)
    if order:
        for table in (hashes, placeholders, items):
            for modality, places in order.items():
                table[modality] = [table[modality][place] for place in places]
    num_tokens = sum(one.gap + one.length for one in case.items) + case.tail
    return Rendered(TokenPrompt([1] * max(1, num_tokens)), hashes, placeholders, items)


def features_to_strip(case: StripCase) -> list[MediaFeature]:
    """The items of a request to be stripped."""
    return [
        MediaFeature(one.modality, one.mm_hash, span, one.item(), one.mm_hash)
        for one, span in zip(case.items, spans_of(case.items), strict=True)
    ]
