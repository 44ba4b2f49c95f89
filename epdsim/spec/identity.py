"""Families HASH and KEY-PARITY: what has one name is one thing, and everybody gives it the same name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from epdsim.events import BlocksKeyed, HashedItem, MediaHashed
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


def hash_inj(event: MediaHashed, _engine: EngineState) -> Iterator[Finding]:
    """HASH-INJ."""
    for one, other in combinations(event.items, 2):
        is_equal = (one.data, one.layout) == (other.data, other.layout)
        is_alike = one.mm_hash == other.mm_hash
        if one.data == other.data and not is_equal:
            yield Reached("two items of the same bytes that are not the same")
        if is_alike and not is_equal:
            yield Broken(f"{_told(one)} and {_told(other)} share the hash {one.mm_hash}", (event.case,))
        if is_equal and one.told == other.told and one.given_id == other.given_id and not is_alike:
            told = f"{_told(one)} comes twice and is known as {one.mm_hash} and as {other.mm_hash}"
            yield Broken(told, (event.case,))


def _told(item: HashedItem) -> str:
    named = f" (which its client calls {item.given_id})" if item.given_id else ""
    return f"{item.told} of bytes {item.data}{named}"


class KeyParity:
    """KEY-PARITY."""

    def __init__(self) -> None:
        self._told: dict[str, list[BlocksKeyed]] = {}

    def by_kind(self) -> Monitor:
        """Compare a component with all that were told of before it."""
        return {BlocksKeyed: self._keyed}

    def _keyed(self, event: BlocksKeyed, _engine: EngineState) -> Iterator[Finding]:
        before = self._told.setdefault(event.case, [])
        for other in before:
            if any(event.items.values()) and any(event.keys.values()):
                yield Reached(f"{event.component} keys blocks of media")
            told = _apart(other, event) if event.space == other.space else _sorted_otherwise(other, event)
            if told:
                yield Broken(told, (event.case,))
        before.append(event)


def _apart(one: BlocksKeyed, other: BlocksKeyed) -> str:
    """How two components that must have the same keys differ; empty when they do not."""
    for name, ours in one.keys.items():
        theirs = other.keys[name]
        differing = [place for place, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]]
        if differing:
            return f"{one.component} and {other.component} key block {differing[0]} of {name} differently"
        if len(ours) != len(theirs):
            return f"{one.component} keys {len(ours)} blocks of {name}, {other.component} {len(theirs)}"
    return ""


def _sorted_otherwise(one: BlocksKeyed, other: BlocksKeyed) -> str:
    """Which blocks one of two components takes for equal and the other does not; empty when there are none."""
    for (name, place), (second, at) in combinations(_places(one), 2):
        ours = one.keys[name][place] == one.keys[second][at]
        theirs = _at(other.keys[name], place) == _at(other.keys[second], at)
        if ours != theirs:
            same, apart = (one, other) if ours else (other, one)
            return f"block {place} of {name} and block {at} of {second} are one to {same.component}, and not to {apart.component}"
    return ""


def _places(event: BlocksKeyed) -> list[tuple[str, int]]:
    return [(name, place) for name, keys in event.keys.items() for place in range(len(keys))]


def _at(keys: Sequence[str], place: int) -> str:
    """A key; of a block that is not keyed what no other key is."""
    return keys[place] if place < len(keys) else f"none at {place}"


def keyed_line(event: BlocksKeyed) -> str:
    """What a component came to, in plain words: blocks of equal keys have equal numbers."""
    numbers: dict[str, int] = {}
    told = (f"{name} {[numbers.setdefault(key, len(numbers)) for key in keys]}" for name, keys in event.keys.items())
    return f"{event.component} keys the blocks of {', '.join(told)}"


def hashed_lines(event: MediaHashed) -> Iterator[str]:
    """What was hashed, in plain words."""
    for item in event.items:
        yield f"{_told(item)} is hashed to {item.mm_hash[:16]}"


HASH_INJ = Property(
    "HASH-INJ",
    "The media hash is injective over bytes, shape, dtype, mode and processing options.",
    "Two pictures share a hash, and one gets the other's answer.",
    "protocol",
    sometimes="two items of the same bytes that are not the same",
    evidence=("dynamo PR 8341", "sglang PR 36595", "vLLM issue 55547", "vLLM PR 54283", "LMCache PR 4783"),
    twin="equal items have equal hashes, or no cache would ever hit",
    monitor=lambda: {MediaHashed: hash_inj},
)
KEY_PARITY = Property(
    "KEY-PARITY",
    "All that compute block keys (engine, router index, offload store, decode leg) compute the same ones.",
    "A hit that only one of them sees is a transfer that never comes, or a router that never finds.",
    "protocol",
    sometimes="two components key blocks of a prompt with media",
    evidence=("smg PR 2365", "llm-d-kv-cache issue 411", "llm-d-router issue 2927", "vllm-omni issue 6328"),
    twin="KEY-INJ",
    monitor=lambda: KeyParity().by_kind(),
)
