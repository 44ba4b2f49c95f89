"""Tensor-parallel worker processes that receive step plans through the ring.

Each rank is a spawned process (a fork after torch has started threads is unsafe) that imports torch once, then waits. A
broadcast is a lockstep: the sender serialises and writes, every rank takes the message, rebuilds plan and tensors and reports
when it was done; only when all have reported do they digest what they hold, so that hashing never competes with a slower rank's
copying.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from epdsim.core.errors import InputError
from epdsim.core.plan import StepPlan
from epdsim.core.records import record
from epdsim.payload.message import MessageSize, decode, encode
from epdsim.payload.ring import RankLostError, ReaderEnd, RingOptions, RingReader, RingWriter, WireBytes
from epdsim.payload.tensors import tensor_digests

_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 5.0
_DIGEST = b"digest"
_GO_ON = b"go on"


class _RankReport(msgspec.Struct, frozen=True):
    """What a rank says of one message: when it held the plan, and how many bytes it took from where."""

    delivered_ns: int
    received_bytes: int
    overflowed: bool


class _RankDigests(msgspec.Struct, frozen=True):
    digests: tuple[str, ...]
    digest_ms: float


@record
class BroadcastResult:
    """One broadcast as it really happened.

    Attributes:
        size: The message as its handles size it.
        wire: Bytes written into the ring and sent to each reader, counted while writing and sending.
        received_bytes: Bytes that each rank took.
        serialise_ms: From plan to frames, and with in-band data their copy into one buffer.
        copy_ms: Writing into the ring, or sending to all readers over their sockets.
        deliver_ms: By rank, from the end of that until the rank held plan and tensors; 0 for a rank that was done sooner.
        digests: By rank, one per unique tensor in the order of the message; empty when not asked for.
        digest_ms: By rank, no part of the broadcast; 0 when not asked for.
    """

    size: MessageSize
    wire: WireBytes
    received_bytes: tuple[int, ...]
    serialise_ms: float
    copy_ms: float
    deliver_ms: tuple[float, ...]
    digests: tuple[tuple[str, ...], ...]
    digest_ms: tuple[float, ...]

    @property
    def total_ms(self) -> float:
        """From the start of serialising until the last rank held the plan."""
        return self.serialise_ms + self.copy_ms + max(self.deliver_ms)


class Staging:
    """Memory that is used again for every message.

    A first touch of fresh pages costs several times the copy into them, and how often an allocator hands out fresh ones depends
    on its history; warm memory makes the cost a property of the transport.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def take(self, num_bytes: int) -> memoryview:
        """A writable view of that many bytes; what was taken before is overwritten."""
        if self._memory.nbytes < num_bytes:
            self._memory = np.empty(0, np.uint8)  # let go first: the two together may not fit
            self._memory = np.zeros(num_bytes, np.uint8)
        return self._memory.data[:num_bytes]


class TpGroup:
    """A group of tensor-parallel ranks, alive within its `with` block.

    Args:
        size: Ranks (readers of the ring), at least 1.
        options: Shape of the ring.
        in_band: Whether tensor data are copied into the message when it is serialised and out of it when it is read, as a plain
            pickle does (vLLM up to 0.25); by default they travel as buffers of their own (vLLM PR 48442).

    As with everything that spawns processes, a script that uses it needs the `if __name__ == "__main__":` guard.
    """

    def __init__(self, size: int, options: RingOptions | None = None, *, in_band: bool = False) -> None:
        if size < 1:
            raise InputError(f"size={size!r}", "a tensor-parallel group has at least one rank")
        self.size = size
        self.options = options or RingOptions()
        self.in_band = in_band
        self._staging = Staging()
        self._resources = ExitStack()
        self._processes: list[BaseProcess] = []
        self._results: list[Connection] = []

    def __enter__(self) -> Self:
        """Start the ranks and wait until each has imported torch and joined the ring.

        Raises:
            RankLostError: A rank did not come up.
        """
        with ExitStack() as resources:
            self._ring = RingWriter(self.size, self.options)
            resources.callback(self._end_processes)
            resources.callback(self._ring.close)
            context = multiprocessing.get_context("spawn")
            for rank in range(self.size):
                ours, theirs = context.Pipe()
                self._results.append(ours)
                resources.callback(ours.close)
                process = context.Process(
                    target=_rank_main,
                    args=(self._ring.reader_end(rank), theirs, self.in_band),
                    name=f"tp-rank-{rank}",
                    daemon=True,
                )
                self._processes.append(process)
                process.start()
                theirs.close()
            self._ring.release_reader_ends()
            self._gather(_START_TIMEOUT_S)
            self._ring.forget_name()
            self._resources = resources.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the ranks and free everything, however the block was left."""
        self._resources.close()

    def broadcast(self, plan: StepPlan, *, digest: bool = True) -> BroadcastResult:
        """Send one plan to every rank and wait until all hold it.

        Args:
            plan: Its handles must have bytes or tensors behind them.
            digest: Whether the ranks hash what they received (after the timed part).

        Raises:
            RankLostError: A rank died or did not answer within the ring's time limit; the group is of no use afterwards.
            TypeError: A handle of the plan has no bytes behind it.
        """
        started_ns = time.perf_counter_ns()
        message = encode(plan)
        frames = message.frames
        if self.in_band:
            frames = (self._staging.take(message.size.total_bytes),)
            message.write_to(frames[0])
        serialised_ns = time.perf_counter_ns()
        ring_bytes = self._ring.write(frames)
        written_ns = time.perf_counter_ns()
        socket_bytes = self._ring.announce()
        copied_ns = time.perf_counter_ns() if socket_bytes else written_ns
        reports = [msgspec.msgpack.decode(reply, type=_RankReport) for reply in self._gather(self.options.timeout_s)]
        for result in self._results:
            result.send_bytes(_DIGEST if digest else _GO_ON)
        digests = [_RankDigests((), 0.0)] * self.size
        if digest:
            replies = self._gather(self.options.timeout_s)
            digests = [msgspec.msgpack.decode(reply, type=_RankDigests) for reply in replies]
        return BroadcastResult(
            size=message.size,
            wire=WireBytes(ring_bytes, socket_bytes),
            received_bytes=tuple(report.received_bytes for report in reports),
            serialise_ms=(serialised_ns - started_ns) / 1e6,
            copy_ms=(copied_ns - serialised_ns) / 1e6,
            deliver_ms=tuple(max(0, report.delivered_ns - copied_ns) / 1e6 for report in reports),
            digests=tuple(one.digests for one in digests),
            digest_ms=tuple(one.digest_ms for one in digests),
        )

    def _gather(self, timeout_s: float) -> list[bytes]:
        """One reply of every rank, in the order of ranks."""
        replies: dict[int, bytes] = {}
        deadline = time.monotonic() + timeout_s
        while len(replies) < self.size:
            silent = {result: rank for rank, result in enumerate(self._results) if rank not in replies}
            ready = wait(list(silent), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankLostError(f"rank {min(silent.values())}: did not answer within {timeout_s:g} s")
            for result in ready:
                rank = silent[result]  # type: ignore[index]
                try:
                    replies[rank] = self._results[rank].recv_bytes()
                except (EOFError, OSError) as error:
                    self._processes[rank].join(_END_TIMEOUT_S)
                    code = self._processes[rank].exitcode
                    raise RankLostError(f"rank {rank}: its process has ended with exit code {code}") from error
        return [replies[rank] for rank in range(self.size)]

    def _end_processes(self) -> None:
        """Wait for the ranks, whose channels are closed by now, and kill those that do not end by themselves."""
        deadline = time.monotonic() + _END_TIMEOUT_S
        try:
            for process in self._processes:
                process.join(max(0.0, deadline - time.monotonic()))
        finally:
            for process in self._processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            self._processes.clear()
            self._results.clear()


def _rank_main(end: ReaderEnd, results: Connection, in_band: bool) -> None:
    """The life of a rank: import torch, join the ring, take messages until the sender closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt reaches the whole terminal group; the sender ends us
    import torch  # noqa: PLC0415 - only the ranks' processes need it at the start

    torch.set_num_threads(1)
    reader = RingReader(end)
    try:
        results.send_bytes(b"ready")
        _serve(reader, results, in_band=in_band)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the sender is gone, and so is the reason to live
    finally:
        reader.close()


def _serve(reader: RingReader, results: Connection, *, in_band: bool) -> None:
    staging, unpacked = Staging(), Staging()
    while (received := reader.receive(staging.take)) is not None:
        message = received.message
        if in_band and received.overflowed:
            # Out of the ring the data had to be copied anyway; read from a socket they lie in the message, as in a pickle.
            message = unpacked.take(received.message.nbytes)
            message[:] = received.message
        decoded = decode(message)
        report = _RankReport(time.perf_counter_ns(), message.nbytes, received.overflowed)
        results.send_bytes(msgspec.msgpack.encode(report))
        if results.recv_bytes() == _DIGEST:
            started_ns = time.perf_counter_ns()
            digests = tensor_digests(decoded.tensors)
            results.send_bytes(
                msgspec.msgpack.encode(_RankDigests(digests, (time.perf_counter_ns() - started_ns) / 1e6))
            )
