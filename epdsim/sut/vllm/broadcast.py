"""The installed release's own message queue between engine core and tensor-parallel ranks, all ends of it in this process."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from epdsim.core.items import TensorHandle
from epdsim.payload.tensors import tensor_bytes, tensor_over
from epdsim.sut.broadcast_cases import BroadcastCase, Sent, digest_of
from epdsim.sut.vllm.release import load

_TIMEOUT_S = 30


def vllm_broadcast() -> VllmBroadcast | None:
    """The installed release's; None before 0.32, whose queues do not close their sockets and may wait for them for ever."""
    load()
    queue = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast").MessageQueue
    return VllmBroadcast(queue) if hasattr(queue, "_close_zmq_on_collect") else None


class VllmBroadcast:
    """Tensors through the release's queue.

    Args:
        queue: Its class.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def send(self, case: BroadcastCase) -> Iterator[Sent]:
        """Send plans."""
        num_ranks = case.num_ranks
        writer = self._queue(num_ranks, num_ranks, max_chunk_bytes=case.chunk_bytes, max_chunks=4)
        readers = [self._queue.create_from_handle(writer.export_handle(), rank) for rank in range(num_ranks)]
        for end in (writer, *readers):
            end.wait_until_ready()
        meter = _Meter(writer)
        for number in range(len(case.items)):
            tensors = [tensor_over("uint8", one.shape, tensor_bytes(one)).source for one in case.tensors(number)]
            meter.reset()
            writer.enqueue({"step": number, "tensors": tensors}, timeout=_TIMEOUT_S)
            held = [reader.dequeue(timeout=_TIMEOUT_S)["tensors"] for reader in readers]
            digests = [digest_of([TensorHandle("uint8", tuple(one.shape), one) for one in mine]) for mine in held]
            yield Sent(*meter.read(), digests)


class _Meter:
    """Counts what a writer puts into the ring and onto its socket.

    Args:
        writer: Of which slots and socket are looked at.
    """

    def __init__(self, writer: Any) -> None:
        self._acquire, self._socket = writer.acquire_write, writer.local_socket
        self._slot: Any = None
        self._socket_bytes = 0
        writer.acquire_write = self._acquired
        writer.local_socket = self

    def reset(self) -> None:
        """A message begins."""
        self._socket_bytes = 0

    def send_multipart(self, parts: Sequence[Any], **options: Any) -> None:
        """The writer sends a message, which goes to every rank that has subscribed."""
        # Counted as in the ring: how many parts there are, and the length of each before it.
        self._socket_bytes += 2 + sum(4 + memoryview(part).nbytes for part in parts)
        self._socket.send_multipart(parts, **options)

    @contextmanager
    def _acquired(self, *args: Any, **options: Any) -> Iterator[Any]:
        with self._acquire(*args, **options) as slot:
            yield slot
            self._slot = bytes(slot)

    def read(self) -> tuple[int, int, int]:
        """Bytes of the message without its flag, of these in the ring, and over the socket of each rank."""
        if self._slot[0] == 1:
            return self._socket_bytes, 1, self._socket_bytes
        end, count = 3, int.from_bytes(self._slot[1:3], "big")
        for _ in range(count):
            end += 4 + int.from_bytes(self._slot[end : end + 4], "big")
        return end - 1, end - 1, self._socket_bytes
