"""A ring of chunks in shared memory: one writer, N readers, and a local socket per reader.

The layout of responsibilities is vLLM's message queue (PR 6183, PR 50606): a message that fits a chunk is written into the ring
once for all readers; a larger one leaves a single overflow byte there, and its bytes go over the socket, once per reader.

The life of a chunk: free, published (a doorbell byte has gone to every reader), acknowledged by some readers, acknowledged by
all and so free again. Doorbells and acknowledgements travel on the same sockets as overflowing messages. That orders memory
between the processes, lets a waiting side sleep instead of spin (there may be more ranks than cores), and ends every wait at
once when the other side dies. The segment has a name only until all readers have opened it, so nothing can be left behind
afterwards, however the processes end.
"""

from __future__ import annotations

import mmap
import os
import secrets
import selectors
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from epdsim.core.errors import EpdsimError, InputError
from epdsim.core.records import record
from epdsim.payload.message import PREAMBLE

OVERFLOW_BYTES = 1
"""Bytes in the ring that tell of a message on the socket."""

DEFAULT_TIMEOUT_S = 60.0

_OVERFLOW = memoryview(b"\x01")
_DOORBELL = memoryview(b"\x02")
_ACKNOWLEDGED = memoryview(b"\x03")
_MAX_FRAMES_PER_SEND = 64
_SEND_BUFFER_BYTES = 4 << 20
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives on Linux


class RankLostError(EpdsimError):
    """A tensor-parallel rank has died or stopped answering."""


@record
class RingOptions:
    """Shape of the ring.

    Attributes:
        num_chunks: Messages under way at most (vLLM: 10).
        chunk_bytes: A message of this size or more overflows (vLLM: 16 MiB unless set otherwise, PR 50606).
        timeout_s: Longest wait for a rank before it counts as lost.
    """

    num_chunks: int = 10
    chunk_bytes: int = 16 << 20
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        if self.num_chunks < 1:
            raise InputError(f"num_chunks={self.num_chunks!r}", "a ring has at least one chunk")
        if self.chunk_bytes < PREAMBLE.size or self.chunk_bytes % PREAMBLE.size:
            raise InputError(
                f"chunk_bytes={self.chunk_bytes!r}",
                f"a chunk is a positive multiple of {PREAMBLE.size} bytes so that tensors in it stay aligned",
            )
        if not self.timeout_s > 0:
            raise InputError(f"timeout_s={self.timeout_s!r}", "a wait must be bounded by a positive time")


@record
class WireBytes:
    """What one message puts on the wire.

    Attributes:
        ring_bytes: Written once, for all readers.
        socket_bytes_per_reader: Sent to each of them.
    """

    ring_bytes: int
    socket_bytes_per_reader: int


def wire_bytes(message_bytes: int, chunk_bytes: int) -> WireBytes:
    """The rule of the ring: a message below the chunk size is written once, one at or above it goes once per reader."""
    if message_bytes < chunk_bytes:
        return WireBytes(message_bytes, 0)
    return WireBytes(OVERFLOW_BYTES, message_bytes)


def _check_room(ring_bytes: int) -> None:
    """Refuse what the shared-memory file system cannot hold: touching its pages would end the process without a word."""
    if _SHARED_MEMORY.is_dir() and (free := shutil.disk_usage(_SHARED_MEMORY).free) < ring_bytes:
        raise InputError(
            f"a ring of {ring_bytes:,} bytes",
            f"{_SHARED_MEMORY} has only {free:,} bytes free",
            "give it more room or choose fewer or smaller chunks",
        )


@record
class ReaderEnd:
    """What a reader's process needs to attach; it can be passed to a spawned process."""

    name: str
    options: RingOptions
    channel: socket.socket


class RingWriter:
    """The writing end; it owns the segment.

    Args:
        num_readers: Processes that will attach.
        options: Shape of the ring.
    """

    def __init__(self, num_readers: int, options: RingOptions) -> None:
        self._options = options
        ring_bytes = options.num_chunks * options.chunk_bytes
        _check_room(ring_bytes)
        # Named after its process, so that whoever looks at what was left behind knows whose it is.
        self._memory = SharedMemory(f"epdsim-{os.getpid()}-{secrets.token_hex(4)}", create=True, size=ring_bytes)
        self._is_named = True
        self._num_published = 0
        self._num_acknowledged = [0] * num_readers
        self._overflowing: tuple[memoryview, ...] = ()
        pairs = [socket.socketpair() for _ in range(num_readers)]
        self._channels = [ours for ours, _ in pairs]
        for channel in self._channels:
            # The more a socket holds, the fewer turns sender and rank must take; the system lowers it to what it allows.
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._theirs = [theirs for _, theirs in pairs]
        # First touch of a page costs more than copying into it; pay at the start, not within a message.
        view = self._view()
        zeros = bytes(options.chunk_bytes)
        for start in range(0, ring_bytes, options.chunk_bytes):
            view[start : start + options.chunk_bytes] = zeros

    def _view(self) -> memoryview:
        view = self._memory.buf
        assert view is not None, "the ring is open"
        return view

    def reader_end(self, rank: int) -> ReaderEnd:
        """The reading end of a rank, to be handed to its process."""
        return ReaderEnd(self._memory.name, self._options, self._theirs[rank])

    def release_reader_ends(self) -> None:
        """Close this process's copies of the reading ends; from then on a reader's death shows on its channel."""
        for channel in self._theirs:
            channel.close()

    def forget_name(self) -> None:
        """Unlink the segment once every reader has attached; it lives on until the last of them ends."""
        if self._is_named:
            self._is_named = False
            self._memory.unlink()

    def write(self, frames: Sequence[memoryview]) -> int:
        """Put one message into the next chunk, or the overflow byte when it does not fit; `announce` must follow.

        Args:
            frames: Buffers that make up the message, none of them empty.

        Returns:
            Bytes written into the ring.

        Raises:
            RankLostError: A reader has died, or has not freed the chunk within the time limit.
        """
        self._wait_for_chunk()
        chunk_bytes = self._options.chunk_bytes
        start = self._num_published % self._options.num_chunks * chunk_bytes
        self._overflowing = tuple(frames) if sum(frame.nbytes for frame in frames) >= chunk_bytes else ()
        view, end = self._view(), start
        for frame in (_OVERFLOW,) if self._overflowing else frames:
            view[end : end + frame.nbytes] = frame
            end += frame.nbytes
        return end - start

    def announce(self) -> int:
        """Ring every reader's doorbell and send what did not fit the ring.

        Returns:
            Message bytes that each reader got over its socket.

        Raises:
            RankLostError: A reader has died, or has not drained its socket within the time limit.
        """
        sent_bytes = self._send((_DOORBELL, *self._overflowing))
        self._num_published += 1
        self._overflowing = ()
        return sent_bytes - _DOORBELL.nbytes

    def _wait_for_chunk(self) -> None:
        """Wait until every reader has acknowledged what the next chunk holds."""
        needed = self._num_published - self._options.num_chunks + 1
        deadline = time.monotonic() + self._options.timeout_s
        for rank, channel in enumerate(self._channels):
            while self._num_acknowledged[rank] < needed:
                channel.settimeout(max(1e-3, deadline - time.monotonic()))
                try:
                    acknowledgements = channel.recv(self._options.num_chunks)
                except TimeoutError:
                    raise RankLostError(f"rank {rank}: did not acknowledge a message in time") from None
                except OSError as error:
                    raise RankLostError(f"rank {rank}: its channel broke ({error})") from error
                if not acknowledgements:
                    raise RankLostError(f"rank {rank}: has ended")
                self._num_acknowledged[rank] += len(acknowledgements)

    def _send(self, frames: Sequence[memoryview]) -> int:
        """Send frames to every reader, turn by turn as the sockets drain; the bytes that each of them got."""
        deadline = time.monotonic() + self._options.timeout_s
        outgoing = [_Outgoing(rank, channel, list(frames)) for rank, channel in enumerate(self._channels)]
        with selectors.DefaultSelector() as selector:
            for one in outgoing:
                one.channel.setblocking(False)
                if not one.advance():
                    selector.register(one.channel, selectors.EVENT_WRITE, one)
            while waiting := selector.get_map():
                writable = selector.select(max(0.0, deadline - time.monotonic()))
                if not writable:
                    ranks = sorted(key.data.rank for key in waiting.values())
                    raise RankLostError(f"rank {ranks[0]}: did not take its message in time")
                for key, _ in writable:
                    if key.data.advance():
                        selector.unregister(key.fileobj)
        (sent_bytes,) = {one.sent_bytes for one in outgoing}
        return sent_bytes

    def close(self) -> None:
        """Close the channels, which ends the readers, and free the segment."""
        for channel in (*self._theirs, *self._channels):
            channel.close()
        self._memory.close()
        self.forget_name()


@dataclass(slots=True)
class _Outgoing:
    """Frames on their way to one reader."""

    rank: int
    channel: socket.socket
    frames: list[memoryview]
    sent_bytes: int = 0

    def advance(self) -> bool:
        """Send what the socket takes now; whether that was the rest.

        Raises:
            RankLostError: The other side is gone.
        """
        while self.frames:
            try:
                count = self.channel.sendmsg(self.frames[:_MAX_FRAMES_PER_SEND])
            except BlockingIOError:
                return False
            except OSError as error:
                raise RankLostError(f"rank {self.rank}: its channel broke ({error})") from error
            self.sent_bytes += count
            done = 0
            while done < len(self.frames) and count >= self.frames[done].nbytes:
                count -= self.frames[done].nbytes
                done += 1
            del self.frames[:done]
            if count:
                self.frames[0] = self.frames[0][count:]
        return True


@record
class Received:
    """One message as a reader got it.

    Attributes:
        message: All of it, in memory of the reader's own.
        overflowed: Whether it came over the socket.
    """

    message: memoryview
    overflowed: bool


class RingReader:
    """The reading end, in the process of one rank.

    Args:
        end: As the writer handed it out.
    """

    def __init__(self, end: ReaderEnd) -> None:
        self._options = end.options
        self._channel = end.channel
        self._memory = SharedMemory(name=end.name)
        self._num_received = 0
        # Map every page now, for the reason that the writer zeroes the ring.
        view = self._view()
        sum(view[:: mmap.PAGESIZE])

    def _view(self) -> memoryview:
        view = self._memory.buf
        assert view is not None, "the ring is open"
        return view

    def receive(self, allocate: Callable[[int], memoryview]) -> Received | None:
        """Wait for the next message and copy or read it into memory of the caller's.

        Args:
            allocate: Gives exactly as many writable bytes as asked for.

        Returns:
            The message, or None when the writer has closed the ring or died.

        Raises:
            TimeoutError: A message stopped half-way for longer than the time limit.
        """
        self._channel.settimeout(None)
        if not self._channel.recv(_DOORBELL.nbytes):
            return None
        self._channel.settimeout(self._options.timeout_s)
        start = self._num_received % self._options.num_chunks * self._options.chunk_bytes
        chunk = self._view()[start : start + self._options.chunk_bytes]
        overflowed = chunk[0] == _OVERFLOW[0]
        message = self._read_socket(allocate) if overflowed else _read_chunk(chunk, allocate)
        if message is None:
            return None
        self._num_received += 1
        self._channel.sendall(_ACKNOWLEDGED)
        return Received(message, overflowed)

    def _read_socket(self, allocate: Callable[[int], memoryview]) -> memoryview | None:
        preamble = bytearray(PREAMBLE.size)
        if not self._fill(memoryview(preamble)):
            return None
        message = allocate(PREAMBLE.unpack(preamble)[-1])
        message[: PREAMBLE.size] = preamble
        return message if self._fill(message[PREAMBLE.size :]) else None

    def _fill(self, memory: memoryview) -> bool:
        while memory.nbytes:
            count = self._channel.recv_into(memory)
            if count == 0:
                return False
            memory = memory[count:]
        return True

    def close(self) -> None:
        """Leave the ring."""
        self._channel.close()
        self._memory.close()


def _read_chunk(chunk: memoryview, allocate: Callable[[int], memoryview]) -> memoryview:
    message_bytes = PREAMBLE.unpack_from(chunk)[-1]
    message = allocate(message_bytes)
    message[:] = chunk[:message_bytes]
    return message
