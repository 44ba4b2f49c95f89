"""Hand-over parameters: embeddings from encode to prefill, KV cache from prefill to decode, per connector and mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast

from pydantic import BaseModel, Field

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.wire.base import OpenModel, WireModel, parse

EcConnector = Literal["example", "nixl", "cpu", "mooncake"]


class EcDescriptor(OpenModel):
    """Where one item's embedding is: an entry of `ec_transfer_params`.

    Attributes:
        mm_hash: The item, in the list form; in the map it is the key.
        item_indices: Its occurrences in the encode call.
        metadata: Small fields as plain numbers, for example `image_grid_thw`.
        peer_host: Host of the encoder (NIXL).
        peer_port: Its port, 5601 unless set.
        size_bytes: Size of the embedding.
        shape: Its rows and width.
        transfer_id: Of the push (Mooncake).
    """

    mm_hash: str | None = None
    item_indices: list[int] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    peer_host: str | None = None
    peer_port: int | None = Field(default=None, ge=1, le=65_535)
    size_bytes: int | None = Field(default=None, ge=0)
    shape: list[int] | None = Field(default=None, min_length=2, max_length=2)
    transfer_id: str | None = None

    @property
    def has_address(self) -> bool:
        """Whether it says where to pull from; an encoder whose entry is gone answers without address and metadata."""
        return self.peer_host is not None


_NEEDED: Mapping[EcConnector, tuple[str, ...]] = MappingProxyType(
    {
        "example": (),
        "nixl": ("peer_host", "peer_port", "size_bytes", "shape"),
        "cpu": (),
        "mooncake": ("transfer_id",),
    }
)
"""Fields without which the consumer of a connector cannot fetch."""


class MooncakeWish(OpenModel):
    """EC parameters of an encode request where the encoder pushes: the consumer is chosen before the encode."""

    consumer_zmq: str
    ec_items: list[EcDescriptor]


def ec_descriptors(
    ec_transfer_params: Mapping[str, Any] | None, mm_hashes: Sequence[str], connector: EcConnector
) -> dict[str, EcDescriptor]:
    """The descriptors of a prefill request by hash, from the map, the list `ec_items`, or both.

    Args:
        ec_transfer_params: As sent.
        mm_hashes: Hashes of the request in order of offset: a listed descriptor without hash belongs to the item at its place.
        connector: Whose fields are needed.

    Raises:
        InputError: A descriptor is null, belongs to no item, names a hash again with another content, or lacks what the
            connector needs.
    """
    params = dict(ec_transfer_params or {})
    listed = params.pop("ec_items", [])
    if not isinstance(listed, list):
        raise InputError("ec_transfer_params.ec_items", "a list of descriptors")
    found: dict[str, EcDescriptor] = {}
    entries = [(f"ec_items[{i}]", i, one) for i, one in enumerate(cast("list[Any]", listed))]
    for place, position, value in [*((key, key, one) for key, one in params.items()), *entries]:
        at = f"ec_transfer_params.{place}"
        try:
            one = parse(EcDescriptor, value)
        except InputError as error:
            raise error.at(at) from None
        by_place = mm_hashes[position] if isinstance(position, int) and position < len(mm_hashes) else None
        key = position if isinstance(position, str) else one.mm_hash or by_place
        if key is None:
            raise InputError(at, f"it has no mm_hash, and the request has {len(mm_hashes)} items")
        missing = [name for name in _NEEDED[connector] if getattr(one, name) is None]
        if missing:
            raise InputError(
                f"{at} lacks {', '.join(missing)}", f"the {connector} connector needs them", "encode it again"
            )
        if key in found and found[key] != one:
            raise InputError(f"{at} names {key!r} again", "with another content")
        found[key] = one
    return found


def check_rows(descriptor: EcDescriptor, num_embeds: int, place: str) -> None:
    """Refuse an embedding whose rows are not the item's.

    Raises:
        InputError: It has another number of rows.
    """
    if descriptor.shape is not None and descriptor.shape[0] != num_embeds:
        raise InputError(f"{place} offers {descriptor.shape[0]} rows", f"its placeholder takes {num_embeds} embeddings")


class NixlWish(OpenModel):
    """Asks prefill to keep its KV cache for a decode engine that pulls it; without it there is no handle in the answer."""

    do_remote_decode: Literal[True]
    do_remote_prefill: Literal[False] = False


class NixlHandle(OpenModel):
    """Where decode pulls from; goes to it verbatim. The blocks stay pinned until it reads or the lease runs out."""

    do_remote_prefill: Literal[True]
    do_remote_decode: Literal[False] = False
    remote_block_ids: list[Any]
    remote_engine_id: str
    remote_request_id: str | None = None
    remote_host: str
    remote_port: int
    tp_size: int | None = None
    dcp_size: int | None = None
    pp_size: int | None = None
    remote_num_tokens: int | None = None
    remote_blocks_expiry_time: float | None = None
    transfer_mode: str | None = None


class MooncakeTransfer(OpenModel):
    """Both sides of a push carry the same id."""

    transfer_id: str


class Bootstrap(OpenModel):
    """Both sides meet in a room (SGLang)."""

    bootstrap_host: str
    bootstrap_port: int
    bootstrap_room: int


class Metaserver(OpenModel):
    """Decode is called first and calls this address with its own blocks; then prefill is called (Ascend, layer-wise push)."""

    do_remote_prefill: Literal[True]
    metaserver: str


class MetaserverPrefill(OpenModel):
    """What decode told the metaserver, passed on to prefill."""

    do_remote_decode: Literal[True]
    remote_engine_id: str
    remote_block_ids: list[Any]
    remote_host: str
    remote_port: int


class OffloadPeer(WireModel):
    """The other side of a transfer through an offloading tier."""

    kv_request_id: str
    remote_host: str | None = None
    remote_port: int | None = None


class OffloadPrefill(OpenModel):
    """Prefill of an offloading tier (llm-d)."""

    remote_decoder: OffloadPeer


class OffloadDecode(OpenModel):
    """Decode of an offloading tier (llm-d)."""

    remote_prefiller: OffloadPeer


@record
class KvMode:
    """How KV caches are handed over.

    Attributes:
        order: Which call comes first, or that both are made at once.
        prefill_request: Parameters of the prefill call.
        prefill_response: Parameters of its answer; None when it carries none.
        decode_request: Parameters of the decode call.
    """

    order: Literal["prefill first", "decode first", "concurrent"]
    prefill_request: type[BaseModel]
    prefill_response: type[BaseModel] | None
    decode_request: type[BaseModel]


KV_MODES: Mapping[str, KvMode] = MappingProxyType(
    {
        "nixl": KvMode("prefill first", NixlWish, NixlHandle, NixlHandle),
        "mooncake": KvMode("prefill first", MooncakeTransfer, None, MooncakeTransfer),
        "bootstrap": KvMode("concurrent", Bootstrap, None, Bootstrap),
        "layerwise": KvMode("decode first", MetaserverPrefill, None, Metaserver),
        "offloading": KvMode("concurrent", OffloadPrefill, None, OffloadDecode),
    }
)
"""The modes by name."""


def check_kv(
    kv_transfer_params: object, mode: str, stage: Literal["prefill_request", "prefill_response", "decode_request"]
) -> BaseModel | None:
    """The KV parameters of one message of a mode; None for a message that carries none.

    Raises:
        InputError: Unknown mode, or parameters that do not fit.
    """
    if mode not in KV_MODES:
        raise InputError(f"KV mode {mode!r}", "no such mode", f"the modes are {', '.join(KV_MODES)}")
    model: type[BaseModel] | None = getattr(KV_MODES[mode], stage)
    if model is None:
        if kv_transfer_params is not None:
            raise InputError(f"kv_transfer_params in a {stage}", f"mode {mode!r} has none there")
        return None
    return parse(model, kv_transfer_params)
