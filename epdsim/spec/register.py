"""The register of all properties, and the gate: every property has run against every system that it claims."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from epdsim.core.errors import InputError
from epdsim.spec import (
    caches,
    content,
    ecv,
    encoder,
    handover,
    positions,
    simulator,
    slots,
    stated,
    steps,
    strip,
    strip_cost,
)
from epdsim.spec.admission import LIVE_ADMIT
from epdsim.spec.broadcast import TP_SAME
from epdsim.spec.ec_sync import EC_SYNC
from epdsim.spec.faults import LIVE_HEAL, LIVE_WAIT
from epdsim.spec.identity import HASH_INJ, KEY_PARITY
from epdsim.spec.property import Property
from epdsim.spec.sessions import SES_EQ
from epdsim.spec.splice import SPLICE_EQ

FAMILIES: Mapping[str, tuple[str, Sequence[Property]]] = {
    "slots": ("Slots: tables that are complete", slots.PROPERTIES),
    "ecv": ("The validator", ecv.PROPERTIES),
    "strip": ("What workers are sent", (*strip.PROPERTIES, *strip_cost.PROPERTIES)),
    "encoder": ("Encoder cache and isolation", encoder.PROPERTIES),
    "steps": ("Steps, blocks and progress", (*steps.PROPERTIES, LIVE_ADMIT, LIVE_WAIT, LIVE_HEAL)),
    "content": ("KV content", content.PROPERTIES),
    "positions": ("Positions and splicing", (*positions.PROPERTIES, SPLICE_EQ)),
    "caches": ("Media caches", caches.PROPERTIES),
    "identity": ("Identity", (HASH_INJ, KEY_PARITY, *handover.PROTO)),
    "embeddings": ("Hand-over of embeddings and KV cache", (handover.EC_READY, EC_SYNC, handover.KV_HAND)),
    "sessions": ("Sessions", (SES_EQ,)),
    "broadcast": ("Broadcast and equivalences", (TP_SAME, *stated.EQUIVALENCES)),
    "simulator": ("The simulator's own laws", simulator.PROPERTIES),
}
"""Title and properties of each group."""

REGISTER: Mapping[str, Property] = {one.id: one for _, group in FAMILIES.values() for one in group}
"""All properties by id."""
assert len(REGISTER) == sum(len(group) for _, group in FAMILIES.values()), "ids are unique"

JUDGED: tuple[Property, ...] = tuple(one for one in REGISTER.values() if one.monitor is not None)
"""Those that a monitor judges."""

OF_FLEETS: tuple[Property, ...] = tuple(
    one for one in JUDGED if one.level != "protocol" and one.id not in ("KEY-INJ", "RECOMP-EQ", "LIVE-ADMIT")
)
"""Those that a simulated fleet can be judged by: it calls no functions of the protocol apart, tells prompts by their length, and
ends requests at its front end and not at an engine."""


def properties_of(names: Iterable[str]) -> tuple[Property, ...]:
    """Properties by id, or by the part of it before the dash.

    Raises:
        InputError: A name is neither.
    """
    found: dict[str, Property] = {}
    for name in names:
        matching = [one for one in REGISTER.values() if name in (one.id, one.family)]
        if not matching:
            raise InputError(
                f"property {name!r}", "no such property or family", "epdsim check --list tells all of them"
            )
        found |= {one.id: one for one in matching}
    return tuple(found.values())


def uncovered(runs: Collection[tuple[str, str]], systems: Collection[str]) -> list[str]:
    """What the coverage gate finds missing.

    Args:
        runs: Property id and system of each run in which the premise was reached.
        systems: Those that were there to run against.

    Returns:
        One sentence for each property and system that it claims and was not run against; empty when the gate is passed.
    """
    return [
        f"{one.id} claims {system} and has not run against it, or without reaching: {one.sometimes}"
        for one in JUDGED
        for system in one.systems
        if system in systems and (one.id, system) not in runs
    ]
