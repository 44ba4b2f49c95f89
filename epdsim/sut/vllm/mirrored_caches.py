"""The model's mirrored media cache beside the release's own two classes, on random requests, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from epdsim.core.caches.mm_cache import EngineLostError, ItemLostError
from epdsim.core.caches.mm_mirror import MirroredCaches
from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.rules import Dialect
from epdsim.sut.vllm.release import load_with
from epdsim.sut.vllm.settings import StandIn

UNIT_BYTES = 16
"""Sizes are multiples of it."""

_NAMES = {
    "vllm.multimodal.cache": (
        "LruKeyReplicatedReceiverCache",
        "LruKeyReplicatedSenderCache",
        "MultiModalCacheMissError",
        "ShmObjectStoreReceiverCache",
        "ShmObjectStoreSenderCache",
    ),
    "vllm.distributed.device_communicators.shm_object_storage": ("MsgpackSerde",),
    "vllm.multimodal.processing": ("BaseMultiModalProcessor",),
    "copy": ("copy",),
}


@cache
def load_media_caches() -> Any:
    """The release with its media caches."""
    return load_with(_NAMES)


@dataclass(slots=True)
class CacheReport:
    """A comparison.

    Attributes:
        sequences: Random sequences of operations.
        operations: In all of them, up to the first difference of each.
        reached: How often what matters was reached, by name: a comparison without any says little.
        differences: The first difference of each sequence that has one.
    """

    sequences: int
    operations: int
    reached: dict[str, int]
    differences: list[str]

    def count(self, what: str) -> None:
        """Note that something was reached."""
        self.reached[what] = self.reached.get(what, 0) + 1


def media_item(content: int, size_bytes: int) -> MediaItem:
    """An item of one field."""
    return MediaItem({"pixel_values": Field(TensorHandle("uint8", (size_bytes,), digest=str(content)), BatchedKind())})


class RealMirror:
    """The release's two caches with the same operations as `MirroredCaches`.

    Args:
        capacity_bytes: Of each.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._vllm = vllm = load_media_caches()
        settings = StandIn(get_multimodal_config=lambda: StandIn(mm_processor_cache_gb=capacity_bytes / 2**30))
        self.sender = vllm.LruKeyReplicatedSenderCache(settings)
        self.receiver = vllm.LruKeyReplicatedReceiverCache(settings)
        self._rendered: dict[str, list[tuple[MediaFeature, Any]]] = {}

    def render(self, request_id: str, features: Sequence[MediaFeature]) -> None:
        """Process the items of a request, by the release's own merge of cached and new items."""
        self._rendered[request_id] = list(zip(features, merged(self._vllm, self.sender, features), strict=True))

    def reject(self, request_id: str) -> None:
        """Refuse it."""
        del self._rendered[request_id]

    def hand_over(self, request_id: str) -> tuple[list[bool], list[str], list[str]]:
        """Give it to the engine: which items came by hash only, contents, missing keys."""
        specs = [feature_spec(self._vllm, feature, data) for feature, data in self._rendered.pop(request_id)]
        by_hash = [spec.data is None for spec in specs]
        try:
            taken = self.receiver.get_and_update_features(specs)
        except self._vllm.MultiModalCacheMissError as miss:
            for key in miss.mm_hashes:
                self.sender.invalidate(key)
            return by_hash, [], list(miss.mm_hashes)
        return by_hash, [content_of_spec(spec) for spec in taken], []

    def reset(self) -> None:
        """The front end's part of a reset."""
        self.sender.clear_cache()

    def finish_reset(self) -> None:
        """The engine's part."""
        self.receiver.clear_cache()

    def state(self) -> tuple[object, ...]:
        """Keys in order of use, and bytes, of both sides."""
        return tuple((list(side._cache.order), int(side._cache.currsize)) for side in (self.sender, self.receiver))  # noqa: SLF001


def real_item(vllm: Any, item: MediaItem) -> Any:
    """The release's form of an item; its content is in the first byte."""
    handle = item.fields["pixel_values"].data
    assert isinstance(handle, TensorHandle)
    tensor = vllm.torch.full(handle.shape, int(handle.digest), dtype=vllm.torch.uint8)
    return vllm.MultiModalKwargsItem(
        {"pixel_values": vllm.MultiModalFieldElem(data=tensor, field=vllm.MultiModalBatchedField())}
    )


def feature_spec(vllm: Any, feature: MediaFeature, data: Any) -> Any:
    """The release's form of a feature."""
    return vllm.MultiModalFeatureSpec(
        data=data,
        modality=feature.modality,
        identifier=feature.identifier,
        mm_hash=feature.mm_hash or feature.identifier,
        mm_position=vllm.PlaceholderRange(offset=feature.position.offset, length=feature.position.length),
    )


def content_of_spec(spec: Any) -> str:
    """The content of the release's form of a feature with its payload."""
    return str(int(spec.data["pixel_values"].data[0]))


def merged(vllm: Any, cache: Any, features: Sequence[MediaFeature]) -> list[Any]:
    """A request's items as the release's processor gets them from its cache, in the order of `features`."""
    indices: dict[str, list[int]] = {}
    for index, feature in enumerate(features):
        indices.setdefault(feature.modality, []).append(index)
    hashes = {modality: [features[index].identifier for index in own] for modality, own in indices.items()}
    is_cached = {modality: cache.is_cached(keys) for modality, keys in hashes.items()}
    missing = {
        modality: [
            real_item(vllm, data)
            for index, there in zip(own, is_cached[modality], strict=True)
            if not there and (data := features[index].data) is not None
        ]
        for modality, own in indices.items()
    }
    updates = {modality: [()] * len(items) for modality, items in missing.items()}
    try:
        kwargs, _ = vllm.BaseMultiModalProcessor._merge_mm_kwargs(StandIn(), cache, hashes, is_cached, missing, updates)  # noqa: SLF001
    finally:
        if hasattr(cache, "release_sender_touches"):  # before 0.32 nothing is held for the time of a call
            cache.release_sender_touches()
    items: list[Any] = [None] * len(features)
    for modality, own in indices.items():
        for index, item in zip(own, kwargs[modality], strict=True):
            items[index] = item
    return items


def compare_mirrored(seeds: range, dialect: Dialect, operations: int = 60) -> CacheReport:
    """Compare the model in a dialect with the release.

    Args:
        seeds: Each gives a sequence.
        dialect: Of the installed release.
        operations: Of a sequence.
    """
    report = CacheReport(len(seeds), 0, {}, [])
    for seed in seeds:
        difference = _Sequence(Random(seed), dialect, report).play(operations)  # noqa: S311 - test data
        if difference:
            report.differences.append(f"seed {seed}, {difference}")
    return report


class _Sequence:
    """One random sequence on both."""

    def __init__(self, draw: Random, dialect: Dialect, report: CacheReport) -> None:
        self._draw = draw
        self._report = report
        capacity = draw.randint(2, 8) * UNIT_BYTES
        self._largest = capacity // UNIT_BYTES + 1
        self._model, self._real = MirroredCaches(capacity, dialect), RealMirror(capacity)
        self._open: list[str] = []
        self._number = 0
        self._is_resetting = False

    def play(self, operations: int) -> str:
        """The first difference; empty when there is none."""
        for number in range(operations):
            name, act = self._drawn()
            outcomes = [_outcome(act, system) for system in (self._model, self._real)]
            self._report.operations += 1
            self._note(name, outcomes[0])
            model, real = self._model, self._real.state()
            sides = (model.sender.cache, model.receiver.cache)
            state = tuple((side.keys, side.used_bytes) for side in sides)
            if outcomes[0] != outcomes[1] or state != real:
                return f"operation {number} ({name}): model {outcomes[0]} {state}, release {outcomes[1]} {real}"
        return ""

    def _note(self, name: str, outcome: object) -> None:
        self._report.count(name)
        if isinstance(outcome, str):
            self._report.count(outcome)
        elif isinstance(outcome, tuple):
            by_hash, _, missing = outcome
            self._report.count("miss" if missing else "by hash only" if any(by_hash) else "with payloads alone")
        if not self._model.are_equal:
            self._report.count("sides differ")

    def _drawn(self) -> tuple[str, Callable[[Any], object]]:
        draw = self._draw
        kind = draw.choices(["render", "hand over", "reject", "reset", "finish reset"], [10, 10, 1, 0.3, 1])[0]
        if kind == "reset":
            self._is_resetting = True
            return kind, lambda system: system.reset()
        if kind == "finish reset":
            is_due, self._is_resetting = self._is_resetting, False
            return kind, lambda system: system.finish_reset() if is_due else None
        if kind == "render" or not self._open:
            request_id, features = f"r{self._number}", self._features()
            self._number += 1
            self._open.append(request_id)
            return "render", lambda system: self._render(system, request_id, features)
        request_id = self._open.pop(draw.randrange(len(self._open)) if draw.random() < 0.3 else 0)
        if kind == "reject":
            return kind, lambda system: system.reject(request_id)
        return kind, lambda system: _told(system.hand_over(request_id))

    def _render(self, system: Any, request_id: str, features: Sequence[MediaFeature]) -> None:
        try:
            system.render(request_id, features)
        except BaseException:
            if request_id in self._open:
                self._open.remove(request_id)
            raise

    def _features(self) -> list[MediaFeature]:
        draw, features = self._draw, list[MediaFeature]()
        for place in range(draw.randint(1, 4)):
            key = draw.randrange(6)
            # One key has several contents, as client-given ones may.
            content = key or 10 + draw.randrange(3)
            size = UNIT_BYTES * (1 + (content * 7) % self._largest)
            modality = draw.choice(["image", "image", "video"])
            span = PlaceholderRange(10 * place, 4)
            features.append(MediaFeature(modality, f"k{key}", span, media_item(content, size)))
        return features


def _told(result: Any) -> tuple[list[bool], list[str], list[str]]:
    if isinstance(result, tuple):
        return result
    contents = [one.data.fields["pixel_values"].data.digest for one in result.features]
    return list(result.by_hash), contents, list(result.missing)


def _outcome(act: Callable[[Any], object], system: Any) -> object:
    try:
        return act(system)
    except (InputError, ValueError):
        return "refused"
    except (ItemLostError, AssertionError):
        return "lost at the front end"
    except EngineLostError:
        return "engine lost"
