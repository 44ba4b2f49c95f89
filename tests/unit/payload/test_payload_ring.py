"""The ring by itself: one writer and its readers, here as threads of one process."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from types import SimpleNamespace

import pytest

from epdsim.core.errors import InputError
from epdsim.payload import RankLostError, RingOptions, wire_bytes
from epdsim.payload.message import PREAMBLE
from epdsim.payload.ring import RingReader, RingWriter

pytestmark = pytest.mark.xdist_group("shared-memory")  # one at a time: others look at which segments there are

CHUNK = 4096
OPTIONS = RingOptions(num_chunks=3, chunk_bytes=CHUNK, timeout_s=0.3)


def message(size, fill=7):
    """Frames of a message of `size` bytes: all that a ring reads is the preamble."""
    head = PREAMBLE.pack(0, 0, size)
    return [memoryview(head), memoryview(bytes([fill]) * (size - len(head)))]


@contextmanager
def ring(num_readers, options=OPTIONS):
    writer = RingWriter(num_readers, options)
    readers = []
    for rank in range(num_readers):
        end = writer.reader_end(rank)
        readers.append(RingReader(replace(end, channel=end.channel.dup())))  # as a process of its own would have it
    writer.release_reader_ends()
    try:
        yield writer, readers
    finally:
        for reader in readers:
            reader.close()
        writer.close()


def publish(writer, frames, times=1):
    for _ in range(times):
        writer.write(frames)
        writer.announce()


def receive_in_thread(reader, count=1):
    """Start to receive; a list of what came, None where the writer had gone."""
    got = []

    def receive():
        for _ in range(count):
            found = reader.receive(lambda size: memoryview(bytearray(size)))
            got.append(None if found is None else (bytes(found.message), found.overflowed))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    return SimpleNamespace(thread=thread, got=got)


@pytest.mark.parametrize("size", [PREAMBLE.size + 1, CHUNK - 1, CHUNK, CHUNK + 1, 40 * CHUNK + 5])
@pytest.mark.parametrize("num_readers", [1, 3])
def test_every_reader_gets_every_byte_by_the_way_that_the_size_decides(size, num_readers):
    with ring(num_readers) as (writer, readers):
        waiting = [receive_in_thread(reader) for reader in readers]
        written, sent = writer.write(message(size)), writer.announce()
        for one in waiting:
            one.thread.join(5)
            assert one.got == [(b"".join(message(size)), size >= CHUNK)]
    assert (written, sent) == ((size, 0) if size < CHUNK else (1, size))
    predicted = wire_bytes(size, CHUNK)
    assert (predicted.ring_bytes, predicted.socket_bytes_per_reader) == (written, sent)


def test_many_frames_arrive_in_order():
    body = [memoryview(bytes([i % 256]) * (1 + i % 5)) for i in range(3000)]
    frames = [memoryview(PREAMBLE.pack(0, 0, PREAMBLE.size + sum(map(len, body)))), *body]
    with ring(2) as (writer, readers):
        waiting = [receive_in_thread(reader) for reader in readers]
        writer.write(frames)
        assert writer.announce() > CHUNK
        for one in waiting:
            one.thread.join(5)
            assert one.got[0][0] == b"".join(frames)


def test_messages_of_both_kinds_go_round_the_ring_in_order():
    sizes = [100, 5000, 200, 300, 9000, 4095, 4096, 50] * 3
    with ring(2) as (writer, readers):
        waiting = [receive_in_thread(reader, len(sizes)) for reader in readers]
        for index, size in enumerate(sizes):
            writer.write(message(size, index))
            writer.announce()
        for one in waiting:
            one.thread.join(5)
            assert one.got == [(b"".join(message(size, i)), size >= CHUNK) for i, size in enumerate(sizes)]


def test_a_chunk_is_not_written_again_before_every_reader_has_acknowledged_it():
    with ring(2) as (writer, readers):
        for index in range(OPTIONS.num_chunks):
            writer.write(message(100, index))
            writer.announce()
        quick = receive_in_thread(readers[0], OPTIONS.num_chunks)
        quick.thread.join(5)
        started = time.monotonic()
        with pytest.raises(RankLostError, match="rank 1: did not acknowledge"):
            writer.write(message(100, 99))
        assert OPTIONS.timeout_s * 0.9 < time.monotonic() - started < 10 * OPTIONS.timeout_s
        slow = receive_in_thread(readers[1], OPTIONS.num_chunks + 1)
        deadline = time.monotonic() + 5
        while len(slow.got) < OPTIONS.num_chunks and time.monotonic() < deadline:
            time.sleep(0.001)
        assert [found[0][-1] for found in slow.got] == [0, 1, 2], "nothing was overwritten"
        writer.write(message(100, 3))
        writer.announce()
        slow.thread.join(5)
        assert slow.got[-1][0][-1] == 3


def test_a_reader_that_stops_reading_an_overflow_is_lost_in_time():
    enough_for_the_quick_one = replace(OPTIONS, timeout_s=3)
    with ring(2, enough_for_the_quick_one) as (writer, readers):
        quick = receive_in_thread(readers[0])
        writer.write(message(64 << 20))
        with pytest.raises(RankLostError, match="rank 1: did not take its message"):
            writer.announce()
        quick.thread.join(5)
        assert quick.got[0][1] is True


@pytest.mark.parametrize("size", [100, 64 << 20])
def test_a_reader_that_has_gone_is_told_at_once(size):
    options = RingOptions(num_chunks=2, chunk_bytes=CHUNK, timeout_s=60)
    with ring(1, options) as (writer, readers):
        readers[0].close()
        started = time.monotonic()
        with pytest.raises(RankLostError, match=r"rank 0: (its channel broke|has ended)"):
            publish(writer, message(size), times=options.num_chunks + 1)
        assert time.monotonic() - started < 10


def test_readers_end_when_the_writer_closes_even_half_way_through_a_message():
    with ring(1) as (writer, readers):
        waiting = receive_in_thread(readers[0])
        writer.close()
        waiting.thread.join(5)
        assert waiting.got == [None]
    with ring(1) as (writer, readers):
        whole = message(2 * CHUNK)
        waiting = receive_in_thread(readers[0])
        writer.write(whole)
        writer._send([memoryview(b"\x02"), whole[0], whole[1][:10]])
        writer.close()
        waiting.thread.join(5)
        assert waiting.got == [None]


@pytest.mark.parametrize("forget_early", [True, False])
def test_the_segment_has_no_name_once_it_is_closed(forget_early):
    writer = RingWriter(1, OPTIONS)
    end = writer.reader_end(0)
    reader = RingReader(end)
    if forget_early:
        writer.forget_name()
        with pytest.raises(FileNotFoundError):
            SharedMemory(name=end.name)
        waiting = receive_in_thread(reader)
        writer.write(message(100))
        writer.announce()
        waiting.thread.join(5)
        assert len(waiting.got) == 1, "without its name the segment still works"
    reader.close()
    writer.close()
    with pytest.raises(FileNotFoundError):
        SharedMemory(name=end.name)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"num_chunks": 0}, "at least one chunk"),
        ({"chunk_bytes": 0}, "positive multiple"),
        ({"chunk_bytes": 1001}, "positive multiple"),
        ({"timeout_s": 0}, "positive time"),
        ({"timeout_s": float("nan")}, "positive time"),
    ],
)
def test_options_that_make_no_ring_are_refused(options, rule):
    with pytest.raises(InputError, match=rule):
        RingOptions(**options)


def test_a_ring_that_does_not_fit_is_refused_before_anything_is_made(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=CHUNK))
    with pytest.raises(InputError, match=r"12,288 bytes: .*4,096 bytes free"):
        RingWriter(1, OPTIONS)
