"""Cases of the broadcast: plans with tensors, sent to tensor-parallel ranks one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec

from epdsim.core.items import TensorHandle
from epdsim.events import PlanReceived, Sink
from epdsim.payload import tensor_digests

INSTANCE = "broadcast"


class BroadcastCase(msgspec.Struct, frozen=True, omit_defaults=True, tag="broadcast"):
    """Plans to be sent.

    Attributes:
        num_ranks: Who receives them.
        chunk_bytes: A message of this size or more overflows to the sockets.
        items: Of each plan, the bytes of its tensors; multiples of 4.
    """

    num_ranks: int
    chunk_bytes: int
    items: list[list[int]]

    def tensors(self, number: int) -> list[TensorHandle]:
        """The tensors of a plan, no two of a case alike."""
        made: list[TensorHandle] = []
        for place, num_bytes in enumerate(self.items[number]):
            seed = blake2b(f"{number} {place}".encode(), digest_size=32).digest()
            data = bytearray((seed * (num_bytes // len(seed) + 1))[:num_bytes])
            made.append(TensorHandle("uint8", (num_bytes,), data))
        return made


class Sent(NamedTuple):
    """What became of one plan.

    Attributes:
        message_bytes: Length of its message, as the sender compares it with a chunk.
        ring_bytes: Of it, written into the ring.
        socket_bytes: Of it, sent over the socket of each rank.
        digests: By rank, what it holds of the tensors.
    """

    message_bytes: int
    ring_bytes: int
    socket_bytes: int
    digests: Sequence[str]


class BroadcastUnderTest(Protocol):
    """How plans come to the ranks."""

    def send(self, case: BroadcastCase) -> Iterator[Sent]:
        """Send the plans in their order, each after all ranks hold the one before."""
        ...


def digest_of(tensors: Sequence[TensorHandle]) -> str:
    """One digest of the tensors of a plan."""
    return joined(tensor_digests(tensors))


def joined(digests: Sequence[str]) -> str:
    """One digest of those of the tensors of a plan."""
    return blake2b(" ".join(digests).encode(), digest_size=8).hexdigest()


def broadcast(case: BroadcastCase, system: BroadcastUnderTest, sink: Sink) -> None:
    """Send the plans of a case and tell what every rank holds of them."""
    for number, sent in enumerate(system.send(case)):
        told = sent.message_bytes, case.chunk_bytes, sent.ring_bytes, sent.socket_bytes
        sink(PlanReceived(number, INSTANCE, number, *told, digest_of(case.tensors(number)), sent.digests))
