"""What the functions of the protocol did: render's tables, the validator's verdict, the merge, the strip.

Tensors are told as digests, so that equal digests mean equal dtype, shape, bytes and field kind. A *case* names what belongs
together: tables that were rendered, and the items that a receiver made of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from epdsim.events.base import Event

Slot = Mapping[str, str] | None
"""Digests by field name; None for a null slot."""


class SpanInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where an item stands: tokens `[offset, offset + length)`, and where in it embeddings go (None: everywhere)."""

    offset: int
    length: int
    is_embed: Sequence[int] | None = None


class RenderedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item that went into render, or came out of the receiver's merge.

    Attributes:
        fields: Digest of each field, in order; None for an item that the receiver's cache must hold.
        keep_on_cpu: Names of fields that workers read on the host.
        declared: Names of fields that the model family declares for its modality.
    """

    modality: str
    mm_hash: str
    span: SpanInfo
    fields: Slot = None
    keep_on_cpu: Sequence[str] = ()
    declared: Sequence[str] = ()


class TablesRendered(Event, frozen=True):
    """Render turned items into the four parallel tables, or refused to.

    Attributes:
        items: What it was given, in order of offset.
        mm_hashes: Content hashes by modality.
        mm_placeholders: Spans by modality.
        kwargs_data: Payload slots by modality; None when there is no such table.
        mm_metadata: Metadata slots by modality; None likewise.
        refused: Why render failed; empty when it did not.
        rejected: Why the receiver does not take the tables, as full payload or as metadata with EC parameters for all hashes;
            empty when it takes both.
        permutes: The case of which this one is a permutation of items within modalities.
        order: For such: by modality, which item of that case stands at each place.
        declared_failed: Whether the model family failed when it was asked for declared fields.
        num_notices: How often that was told.
    """

    is_detail: ClassVar[bool] = True

    case: str
    items: Sequence[RenderedItem]
    mm_hashes: Mapping[str, Sequence[str]] = {}
    mm_placeholders: Mapping[str, Sequence[SpanInfo]] = {}
    kwargs_data: Mapping[str, Sequence[Slot]] | None = None
    mm_metadata: Mapping[str, Sequence[Slot]] | None = None
    refused: str = ""
    rejected: str = ""
    permutes: str = ""
    order: Mapping[str, Sequence[int]] = {}
    declared_failed: bool = False
    num_notices: int = 0


class MetadataWeighed(Event, frozen=True):
    """Render made payload and metadata of an item of a model family.

    Attributes:
        family: The checkpoint.
        num_groups: Frames, tiles or chunks into which it falls.
        num_patches: Patches, or positions of sound, in all.
        metadata_bytes: Tensor bytes of its metadata.
        payload_bytes: Tensor bytes of all its fields.
        fields: Names of its metadata's fields.
    """

    is_detail: ClassVar[bool] = True

    family: str
    modality: str
    num_groups: int
    num_patches: int
    metadata_bytes: int
    payload_bytes: int
    fields: Sequence[str] = ()


class PlanReceived(Event, frozen=True):
    """The plan of a step has come to all tensor-parallel ranks.

    Attributes:
        message_bytes: Length of the message, by which it goes one way or the other.
        chunk_bytes: A message of this size or more overflows to the sockets.
        ring_bytes: Written into the ring, for all ranks together.
        socket_bytes: Sent over the socket of each rank.
        sent: Digest of the tensors as they were sent.
        held: By rank, digest of what it holds of them.
    """

    is_detail: ClassVar[bool] = True

    step: int
    message_bytes: int
    chunk_bytes: int
    ring_bytes: int
    socket_bytes: int
    sent: str
    held: Sequence[str]


class MergedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item as a receiver has it.

    Attributes:
        fields: Digest of each field, in order; None when it has no data.
        rendered: What was rendered at this place in order of offset; None when nothing was.
    """

    modality: str
    mm_hash: str
    span: SpanInfo
    fields: Slot = None
    rendered: RenderedItem | None = None


class ItemsMerged(Event, frozen=True):
    """A receiver made items of tables that came over the wire, in order of offset, or failed to.

    Attributes:
        is_light: Whether the payload table was left out on the way.
        refused: Why it failed; empty when it did not.
    """

    is_detail: ClassVar[bool] = True

    case: str
    items: Sequence[MergedItem]
    is_light: bool = False
    refused: str = ""


class CheckedItem(msgspec.Struct, frozen=True):
    """One item of a request as a validator sees it; `state` is neither, payload, metadata or both."""

    modality: str
    index: int
    mm_hash: str
    state: str


class RequestChecked(Event, frozen=True):
    """A validator judged a request.

    Attributes:
        offered: Hashes for which `ec_transfer_params` has a descriptor that is not null.
        has_ec_params: Whether `ec_transfer_params` is there and not empty.
        accepted: The verdict.
        reason: The words of a refusal.
        is_client_error: Whether a refusal is one of the client's request (400), not a failure of the server.
        variant_of: Case that this one varies; empty for a request of its own.
        variant: How: `"permuted"` or `"given more"` (payload or EC parameters were added).
    """

    is_detail: ClassVar[bool] = True

    case: str
    items: Sequence[CheckedItem]
    offered: Sequence[str]
    has_ec_params: bool
    accepted: bool
    reason: str = ""
    is_client_error: bool = True
    variant_of: str = ""
    variant: str = ""


class StrippedItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item before or after a strip.

    Attributes:
        fields: Names of its fields; None when it has no data.
        keep_on_cpu: Those of them that workers read on the host.
    """

    identifier: str
    span: SpanInfo
    fields: Sequence[str] | None = None
    keep_on_cpu: Sequence[str] = ()

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.span.offset + self.span.length

    @property
    def is_address(self) -> bool:
        """Whether it stands for a payload in the shared-memory cache."""
        return self.fields is not None and "address" in self.fields


class FeaturesStripped(Event, frozen=True):
    """The strip was asked what of a request's items to send.

    Attributes:
        num_computed_tokens: At the moment of sending.
        reads_position_fields: Whether workers read fields of all items for positions.
        is_input: Whether the answer is the very sequence that went in.
        is_same: Per item, whether the answer is the very object that went in.
        is_unchanged: Whether the input is as it was before.
    """

    is_detail: ClassVar[bool] = True

    num_computed_tokens: int
    reads_position_fields: bool
    before: Sequence[StrippedItem]
    after: Sequence[StrippedItem]
    is_input: bool
    is_same: Sequence[bool]
    is_unchanged: bool
