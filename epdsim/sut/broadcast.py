"""The model's broadcast as a system under test: its ring and its messages, with a thread for each rank."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange
from epdsim.core.plan import NewRequestData, StepPlan
from epdsim.payload import decode, encode
from epdsim.payload.ring import Received, RingOptions, RingReader, RingWriter
from epdsim.sut.broadcast_cases import BroadcastCase, Sent, digest_of


class ReferenceBroadcast:
    """Plans through shared memory and sockets, as `payload.TpGroup` sends them to processes."""

    def send(self, case: BroadcastCase) -> Iterator[Sent]:
        """Send plans."""
        with ExitStack() as stack:
            writer = stack.enter_context(closing(RingWriter(case.num_ranks, RingOptions(4, case.chunk_bytes))))
            readers = [self.reader(writer, rank) for rank in range(case.num_ranks)]
            for reader in readers:
                stack.callback(reader.close)
            writer.forget_name()
            threads = stack.enter_context(ThreadPoolExecutor(case.num_ranks))
            for number in range(len(case.items)):
                message = encode(plan_of(case, number))
                waiting = [threads.submit(reader.receive, _allocate) for reader in readers]
                ring_bytes = writer.write(message.frames)
                socket_bytes = writer.announce()
                digests = [_digest(one.result()) for one in waiting]
                yield Sent(message.size.total_bytes, ring_bytes, socket_bytes, digests)

    def reader(self, writer: RingWriter, rank: int) -> RingReader:
        """The reading end of a rank."""
        return RingReader(writer.reader_end(rank))


def _allocate(num_bytes: int) -> memoryview:
    return memoryview(bytearray(num_bytes))


def _digest(received: Received | None) -> str:
    return "" if received is None else digest_of(decode(received.message).tensors)


def plan_of(case: BroadcastCase, number: int) -> StepPlan:
    """A step that admits a request with the tensors of a case, an item each."""
    features = [
        MediaFeature(
            "image",
            f"h{place}",
            PlaceholderRange(place, 1),
            MediaItem({"pixel_values": Field(tensor, BatchedKind())}),
            f"h{place}",
        )
        for place, tensor in enumerate(case.tensors(number))
    ]
    return StepPlan(number, {"r0": 1}, new=[NewRequestData("r0", 0, (), features, len(features) + 1)])
