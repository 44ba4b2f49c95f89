"""The model's shared-memory media cache beside the release's own, on random requests, step by step."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any

from epdsim.core.caches.shm_cache import ShmReader, ShmSender, handle_of
from epdsim.core.caches.shm_ring import StaleHandleError
from epdsim.core.items import MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.rules import Dialect
from epdsim.sut.vllm.mirrored_caches import (
    CacheReport,
    content_of_spec,
    feature_spec,
    load_media_caches,
    media_item,
    merged,
    real_item,
)
from epdsim.sut.vllm.settings import StandIn

_NAME = "VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"


class RealShm:
    """The release's sender and its readers, all in this process.

    Args:
        size_bytes: Of the ring.
        max_object_bytes: Of an object in it.
        num_readers: Ranks.
    """

    def __init__(self, size_bytes: int, max_object_bytes: int, num_readers: int) -> None:
        self._vllm = vllm = load_media_caches()
        media = StandIn(
            mm_processor_cache_gb=size_bytes / 2**30, mm_shm_cache_max_object_size_mb=max_object_bytes / 2**20
        )
        settings = StandIn(
            parallel_config=StandIn(world_size=num_readers),
            model_config=StandIn(get_multimodal_config=lambda: media),
        )
        with _ring_name():
            self.sender = vllm.ShmObjectStoreSenderCache(settings)
            lock = multiprocessing.Lock()
            self.readers = [vllm.ShmObjectStoreReceiverCache(settings, lock) for _ in range(num_readers)]

    def send(self, features: Sequence[MediaFeature]) -> list[Any]:
        """A request's items as they are sent."""
        items = merged(self._vllm, self.sender, features)
        return [feature_spec(self._vllm, one, item) for one, item in zip(features, items, strict=True)]

    def receive(self, rank: int, sent: Sequence[Any]) -> list[str]:
        """A rank takes a request: contents."""
        copies = [self._vllm.copy(one) for one in sent]
        self.readers[rank].get_and_update_features(copies)
        return [content_of_spec(one) for one in copies]

    def reset(self) -> None:
        """Forget everything."""
        self.sender.clear_cache()
        for reader in self.readers:
            reader.clear_cache()

    def state(self) -> object:
        """Where what lies, references and acknowledgements."""
        store = self.sender._shm_cache  # noqa: SLF001
        ring = store.ring_buffer
        entries: list[tuple[str, int, int, int, int]] = []
        for key, (address, number) in store.key_index.items():
            with ring.access_buf(address) as (view, _):
                acknowledged = ring.byte2int(view[: store.flag_bytes])
            entries.append((key, address, number, store.writer_flag[number], acknowledged))
        return entries, ring.data_buffer_start, ring.data_buffer_end, ring.monotonic_id_end

    def close(self) -> None:
        """Give the segment back."""
        for cache in (*self.readers, self.sender):
            ring = cache._shm_cache.ring_buffer  # noqa: SLF001
            ring.close()
            del ring.shared_memory  # or the release closes it again when the interpreter is half gone


class ModelShm:
    """The model with the same operations."""

    def __init__(
        self,
        size_bytes: int,
        max_object_bytes: int,
        num_readers: int,
        dialect: Dialect,
        size_of: Callable[[MediaItem], int],
    ) -> None:
        self.sender = ShmSender(size_bytes, max_object_bytes, num_readers, dialect, size_of)
        self.readers = [ShmReader(self.sender.ring.memory, num_readers, dialect) for _ in range(num_readers)]

    def send(self, features: Sequence[MediaFeature]) -> list[MediaFeature]:
        """A request's items as they are sent."""
        return self.sender.take(features)

    def receive(self, rank: int, sent: Sequence[MediaFeature]) -> list[str]:
        """A rank takes a request: contents."""
        return [_content(one) for one in self.readers[rank].receive("", sent)]

    def reset(self) -> None:
        """Forget everything."""
        self.sender.reset()

    def state(self) -> object:
        """Where what lies, references and acknowledgements."""
        sender, ring = self.sender, self.sender.ring
        entries = [
            (key, handle.address, handle.monotonic_id, sender.references[handle.monotonic_id], chunk.acknowledged)
            for key, handle, chunk in sender.entries
        ]
        return entries, ring._head, ring._tail, ring.next_id  # noqa: SLF001


def compare_shared_memory(seeds: range, dialect: Dialect, operations: int = 60) -> CacheReport:
    """Compare the model in a dialect with the release.

    Args:
        seeds: Each gives a sequence.
        dialect: Of the installed release.
        operations: Of a sequence.
    """
    report = CacheReport(len(seeds), 0, {}, [])
    sizes = _sizes()
    for seed in seeds:
        draw = Random(seed)  # noqa: S311 - test data
        shape = draw.randint(1200, 3000), draw.randint(500, 900), draw.randint(1, 3)
        real = RealShm(*shape)
        try:
            sequence = _Sequence(draw, ModelShm(*shape, dialect, sizes), real, report)
            difference = sequence.play(operations)
        finally:
            real.close()
        if difference:
            report.differences.append(f"seed {seed}, {difference}")
    return report


def _sizes() -> Callable[[MediaItem], int]:
    """Bytes of an item in the ring, as the release lays it down."""
    vllm = load_media_caches()
    serde = vllm.MsgpackSerde()
    known: dict[MediaItem, int] = {}

    def size_of(item: MediaItem) -> int:
        handle = item.fields["pixel_values"].data
        if handle not in known:
            _, data_bytes, _, metadata_bytes = serde.serialize(real_item(vllm, item))
            known[handle] = data_bytes + metadata_bytes  # type: ignore[index]
        return known[handle]  # type: ignore[index]

    return size_of


class _Sequence:
    """One random sequence on both."""

    def __init__(self, draw: Random, model: ModelShm, real: RealShm, report: CacheReport) -> None:
        self._draw, self._model, self._real, self._report = draw, model, real, report
        self._sent: list[tuple[list[MediaFeature], list[Any]]] = []
        self._due: list[list[int]] = [[] for _ in model.readers]

    def play(self, operations: int) -> str:
        """The first difference; empty when there is none."""
        for number in range(operations):
            told = self._send() if self._draw.random() < 0.4 else self._receive()
            if self._draw.random() < 0.01:
                self._model.reset()
                self._real.reset()
                self._report.count("reset")
            self._report.operations += 1
            states = self._model.state(), self._real.state()
            if told or states[0] != states[1]:
                return f"operation {number}: {told or 'state'}: model {states[0]}, release {states[1]}"
        return ""

    def _send(self) -> str:
        draw = self._draw
        features: list[MediaFeature] = []
        for place in range(draw.randint(1, 3)):
            key = draw.randrange(8)
            item, span = media_item(key, 40 + 90 * key), PlaceholderRange(10 * place, 4)
            features.append(MediaFeature(("image", "video")[key % 2], f"k{key}", span, item))
        sent = self._model.send(features), self._real.send(features)
        kinds = [_sent_model(one) for one in sent[0]], [address_of_spec(one) for one in sent[1]]
        for kind in kinds[0]:
            self._report.count("sent inline" if kind is None else "sent by address")
        self._sent.append(sent)
        # Some are refused before anybody hears of them, some come back after a preemption.
        times = draw.choices([0, 1, 2], [1, 12, 2])[0]
        self._report.count(("request that no reader hears of", "request read once", "request read again")[times])
        for due in self._due:
            due.extend([len(self._sent) - 1] * times)
        return "" if kinds[0] == kinds[1] else f"sent {kinds}"

    def _receive(self) -> str:
        rank = self._draw.randrange(len(self._due))
        due = self._due[rank]
        if not due:
            return ""
        model, real = self._sent[due.pop(0)]
        outcomes = _outcome(self._model, rank, model), _outcome(self._real, rank, real)
        self._report.count("stale address" if outcomes[0] == "stale" else "read")
        return "" if outcomes[0] == outcomes[1] else f"rank {rank} got {outcomes}"


def _outcome(system: Any, rank: int, sent: Sequence[Any]) -> object:
    try:
        return system.receive(rank, sent)
    except StaleHandleError:
        return "stale"
    except ValueError as error:
        return "stale" if "modified or is invalid" in str(error) else str(error)


def _content(feature: MediaFeature) -> str:
    assert feature.data is not None
    handle = feature.data.fields["pixel_values"].data
    assert isinstance(handle, TensorHandle)
    return handle.digest


def _sent_model(feature: MediaFeature) -> tuple[int, int] | None:
    assert feature.data is not None
    return handle_of(feature.data) if feature.data.is_address else None


def address_of_spec(spec: Any) -> tuple[int, int] | None:
    """Address and number in the release's form of a feature; None when its payload is inline."""
    return (spec.data["address"].data, spec.data["monotonic_id"].data) if "address" in spec.data else None


@contextmanager
def _ring_name() -> Any:
    """A name of its own for a segment, in the variable that the release reads it from."""
    before = os.environ.get(_NAME)
    os.environ[_NAME] = f"epdsim_{os.getpid()}_{os.urandom(4).hex()}"
    try:
        yield
    finally:
        os.environ.pop(_NAME)
        if before is not None:
            os.environ[_NAME] = before
