"""The EC validator: may this request be generated from what it carries?

An item that carries only metadata gets its embedding from elsewhere, so the request must say from where: `ec_transfer_params` at
its top level. How strictly that is checked differs; the three validators are functions of the items' slot states and the parameters
alone, so that all small shapes can be enumerated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar, cast

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect, Rule
from epdsim.core.slots import FeatureTables

S = TypeVar("S")
EcParams = Mapping[str, Any] | None
"""`ec_transfer_params` as sent: `{hash: descriptor}`, or `{"ec_items": [{"mm_hash": hash, ...}]}` (Mooncake), or both in one."""


class SlotState(Enum):
    """Which slots of an item are filled."""

    NEITHER = "neither"
    """Hash only: a cache must hold the item. Whether it does is run-time state and no matter of validation (vLLM PR 55333)."""
    PAYLOAD = "payload"
    METADATA = "metadata"
    BOTH = "both"

    @classmethod
    def of(cls, *, payload: bool, metadata: bool) -> SlotState:
        """The state of an item by which slots it has."""
        if payload:
            return cls.BOTH if metadata else cls.PAYLOAD
        return cls.METADATA if metadata else cls.NEITHER


@record
class GateItem:
    """One item as the validator sees it."""

    modality: str
    index: int
    mm_hash: str
    state: SlotState

    @property
    def is_metadata_only(self) -> bool:
        """Whether its embedding must come from elsewhere."""
        return self.state is SlotState.METADATA


Gate = Callable[[Sequence[GateItem], EcParams], tuple[GateItem, ...]]
"""Takes the items in order of offset and the parameters; returns the items that nothing provides for: none means accepted."""


def gate_items(tables: FeatureTables[S]) -> tuple[GateItem, ...]:
    """The items of a request in order of offset, with their slot states."""
    return tuple(
        GateItem(
            modality,
            i,
            tables.mm_hashes[modality][i],
            SlotState.of(
                payload=tables.payload(modality, i) is not None, metadata=tables.metadata(modality, i) is not None
            ),
        )
        for modality, i in tables.positions()
    )


def offered_hashes(items: Sequence[GateItem], ec_transfer_params: EcParams) -> frozenset[str]:
    """Hashes whose embedding the parameters offer.

    An offer is a descriptor, that is a mapping, under the item's hash. A null descriptor offers nothing. An empty one does: with a
    shared-file connector the hash says it all. In the list form a descriptor without hash belongs to the item at its position in
    order of offset.
    """
    params = dict(ec_transfer_params or {})
    listed: object = params.pop("ec_items", None)
    offered = {key for key, descriptor in params.items() if isinstance(descriptor, Mapping)}
    for position, descriptor in enumerate(cast("list[object]", listed) if isinstance(listed, list) else []):
        if not isinstance(descriptor, Mapping):
            continue
        named = cast("Mapping[str, object]", descriptor).get("mm_hash")
        if isinstance(named, str):
            offered.add(named)
        elif named is None and position < len(items):
            offered.add(items[position].mm_hash)
    return frozenset(offered)


def keyed(items: Sequence[GateItem], ec_transfer_params: EcParams) -> tuple[GateItem, ...]:
    """Per item and by hash: a metadata-only item needs an offer of its own hash."""
    offered = offered_hashes(items, ec_transfer_params)
    return tuple(one for one in items if one.is_metadata_only and one.mm_hash not in offered)


def per_item(items: Sequence[GateItem], ec_transfer_params: EcParams) -> tuple[GateItem, ...]:
    """Per item, any parameters will do: vLLM 0.30 to 0.33. An empty map counts as none; null descriptors count as some."""
    return () if ec_transfer_params else tuple(one for one in items if one.is_metadata_only)


def whole_request(items: Sequence[GateItem], ec_transfer_params: EcParams) -> tuple[GateItem, ...]:
    """One payload excuses every item: vLLM's main between PR 54659 and PR 56070, in no release."""
    if any(one.state in (SlotState.PAYLOAD, SlotState.BOTH) for one in items):
        return ()
    return per_item(items, ec_transfer_params)


def nothing_unprovided(items: Sequence[GateItem], ec_transfer_params: EcParams) -> tuple[GateItem, ...]:
    """No validator: vLLM before 0.30."""
    del items, ec_transfer_params
    return ()


def no_params(ec_transfer_params: EcParams) -> EcParams:
    """Parameters dropped on arrival: vLLM before 0.26."""
    del ec_transfer_params
    return None


def _as_sent(ec_transfer_params: EcParams) -> EcParams:
    return ec_transfer_params


UNPROVIDED: Rule[Gate] = Rule(
    "ec_gate.unprovided",
    "Every metadata-only item is offered, by its hash, in ec_transfer_params at the top level",
    source="vLLM PRs 54659 and 56070; llm-d-router PR 2723",
    ideal=keyed,
)


EC_PARAMS_READ: Rule[Callable[[EcParams], EcParams]] = Rule(
    "ec_gate.params_read",
    "A receiver reads ec_transfer_params at the top level of the body",
    source="vLLM 0.26, the first release with the field; before, it is dropped in silence",
    ideal=_as_sent,
)


def name_items(unprovided: Sequence[GateItem]) -> str:
    """Modality, index and hash of each."""
    return ", ".join(f"{one.modality}[{one.index}] (hash {one.mm_hash!r})" for one in unprovided)


def name_nothing(_unprovided: Sequence[GateItem]) -> str:
    """That there are some: vLLM 0.30 to 0.33."""
    return "media items"


REFUSED: Rule[Callable[[Sequence[GateItem]], str]] = Rule(
    "ec_gate.refused",
    "A refusal names modality, index and hash of every item that nothing provides for (ECV-SAYS)",
    source="found by the properties in vLLM 0.30 to 0.32, which name none",
    ideal=name_items,
)


def check_gate(tables: FeatureTables[S], ec_transfer_params: EcParams, dialect: Dialect = IDEAL) -> None:
    """Refuse a request with items that nothing provides for.

    Args:
        tables: Of the request; only which slots are null matters.
        ec_transfer_params: At the top level of the body; what hides in `sampling_params.extra_args` does not count.
        dialect: Whose validator.

    Raises:
        InputError: With modality, index and hash of every such item. On the wire this is a client error (400).
    """
    unprovided = dialect[UNPROVIDED](gate_items(tables), dialect[EC_PARAMS_READ](ec_transfer_params))
    if unprovided:
        raise InputError(
            dialect[REFUSED](unprovided),
            "metadata-only, and ec_transfer_params do not offer the embedding",
            "send the payload, or the descriptor that the encoder returned for that hash in ec_transfer_params at the top level",
        )
