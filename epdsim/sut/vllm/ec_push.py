"""The model's EC connector that is pushed to beside the release's own scheduler delegate, on random calls, answer by answer.

The delegate's transport (sockets, threads, a library that the CPU package lacks) is played: readiness events come from a list,
cancellations go to one, the clock counts steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from random import Random
from typing import Any

from epdsim.core.ec.push import PushConnector, PushTimes
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import EcOffer, Request
from epdsim.core.rules import Dialect
from epdsim.sut.vllm.mirrored_caches import CacheReport
from epdsim.sut.vllm.release import load_with
from epdsim.sut.vllm.settings import StandIn

_MOONCAKE = "vllm.distributed.ec_transfer.ec_connector.mooncake"
_BYTES = 2
"""Of an embedding: one number of half precision."""

_METADATA = MediaItem({"image_grid_thw": Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))})
_MS_PER_STEP = 1000


@cache
def load_push_delegate() -> Any:
    """The release with the parts of its Mooncake connector that its scheduler uses."""
    return load_with(
        {
            "safetensors.torch": (),
            f"{_MOONCAKE}.metadata": ("ECMooncakeWorkerMetadata",),
            f"{_MOONCAKE}.scheduler": ("ECMooncakeScheduler",),
            _MOONCAKE: ("scheduler",),
        }
    )


class _Done:
    """A call of another thread that is over."""

    def done(self) -> bool:
        """Whether it is."""
        return True

    def result(self) -> bool:
        """What it gave."""
        return True


class RealPush:
    """The release's delegate with the calls of `PushConnector`.

    Args:
        role: `"producer"`, `"consumer"` or `"both"`.
        capacity: Embeddings that its buffers hold.
        wait: Steps that a push is awaited.
        keep: Steps that what came is kept.
    """

    def __init__(self, role: str, capacity: int, wait: int, keep: int) -> None:
        self._vllm = vllm = load_push_delegate()
        self._now = 0
        self._events: list[dict[str, Any]] = []
        self._cancelled: list[str] = []
        self._requests: dict[str, Any] = {}
        self._play_transport(vllm.scheduler, role, capacity, wait, keep)
        self._delegate = vllm.ECMooncakeScheduler(StandIn(model_config=StandIn(dtype=vllm.torch.float16)))

    def at(self, step: int) -> None:
        """A step begins."""
        self._now = step

    def came(self, name: str, identifier: str, num_embeds: int) -> None:
        """The release's word for a whole embedding in the buffers."""
        event = {"ready": True, "transfer_id": name, "mm_hash": identifier, "dtype": "float16"}
        self._events.append(event | {"nbytes": _BYTES * num_embeds, "shape": [num_embeds, 1]})

    def ready(self, request: Request, num_computed: int) -> bool:
        """Whether a request may be scheduled."""
        return self._delegate.ensure_cache_available(self._of(request), num_computed)

    def holds(self, request: Request, index: int) -> bool:
        """Whether an embedding came."""
        return self._delegate.has_cache_item(request.mm_features[index].identifier)

    def allocated(self, request: Request, index: int) -> None:
        """The encoder cache has an entry."""
        self._delegate.update_state_after_alloc(self._of(request), index)

    def released(self, request: Request, index: int) -> None:
        """A request gave an entry up."""
        self._delegate.update_state_after_free(self._of(request), index)

    def ended(self, request: Request) -> None:
        """A request is over."""
        self._delegate.request_finished(self._of(request))

    def step(self, freed: Sequence[str]) -> tuple[list[str], list[tuple[str, str, str]], list[str]]:
        """Loads, pushes and cancelled transfers of a step."""
        plan = StandIn(free_encoder_mm_hashes=list(freed), preempted_req_ids=None)
        made = self._delegate.build_connector_meta(plan)
        pushes = [(one.consumer_zmq, one.transfer_id, one.mm_hash) for one in made.pushes]
        cancelled, self._cancelled[:] = sorted(self._cancelled), []
        return [one.mm_hash for one in made.loads], pushes, cancelled

    def failed(self) -> list[str]:
        """Requests that cannot be served."""
        return sorted(self._delegate.take_unavailable_requests())

    def loaded(self, identifier: str, *, is_good: bool) -> None:
        """Workers are done with a load."""
        names = {"loaded" if is_good else "failed_loads": {identifier}}
        told = self._vllm.ECConnectorOutput(ec_connector_worker_meta=self._vllm.ECMooncakeWorkerMetadata(**names))
        self._delegate.update_connector_output(told)

    def _play_transport(self, module: Any, role: str, capacity: int, wait: int, keep: int) -> None:
        settings = StandIn(
            cross_encoder_cache=False,
            is_producer=role in {"producer", "both"},
            is_consumer=role in {"consumer", "both"},
            control_addr="here",
            push_wait_timeout_s=wait,
            control_timeout_ms=1,
            pool_size=_BYTES * capacity,
        )
        module.time = StandIn(monotonic=lambda: float(self._now))
        module.ensure_mooncake_available = lambda: None
        module.get_encoder_output_width = lambda _config, _modality: 1
        module._RESERVATION_TTL_SECONDS = keep  # noqa: SLF001
        module.MooncakeECConfig = StandIn(from_vllm_config=lambda _config: settings)
        module.ControlClient = lambda _timeout: StandIn()
        module.EventInbox = lambda _client, _executor: StandIn(shard_count=1, drain=lambda _addr: self._drain())
        module.ThreadPoolExecutor = lambda **_kwargs: StandIn(submit=self._submit)
        module.PlaceholderMetadataResolver = lambda _config: StandIn(fields_for=lambda _modality: set())

    def _drain(self) -> list[dict[str, Any]]:
        events, self._events = self._events, []
        return events

    def _submit(self, _call: Callable[..., Any], _addr: str, transfer: str) -> _Done:
        self._cancelled.append(transfer)
        return _Done()

    def _of(self, request: Request) -> Any:
        """The release's form of a request, as far as the delegate reads it."""
        known = self._requests.get(request.request_id)
        if known is None:
            offers = request.ec_offers or {}
            names = [one.identifier for one in request.mm_features]
            items = [{"mm_hash": one, "transfer_id": (offers.get(one) or EcOffer()).transfer_id} for one in names]
            peer = next((offer.peer for offer in offers.values()), None)
            known = StandIn(
                request_id=request.request_id,
                ec_transfer_params={"ec_items": items, "consumer_zmq": peer},
                mm_features=[_feature(self._vllm, one) for one in request.mm_features],
                get_num_encoder_embeds=lambda index: request.mm_features[index].position.num_embeds,
            )
            self._requests[request.request_id] = known
        return known


class _ModelPush:
    """The model's connector with the same calls."""

    def __init__(self, role: str, capacity: int, wait: int, keep: int, dialect: Dialect) -> None:
        times = PushTimes(wait * _MS_PER_STEP, keep * _MS_PER_STEP)
        self._connector = connector = PushConnector(role, capacity, times, dialect)
        self.came, self.ready, self.holds = connector.came, connector.ready, connector.holds
        self.allocated, self.released, self.ended = connector.allocated, connector.released, connector.ended
        self.loaded = connector.loaded

    def at(self, step: int) -> None:
        self._connector.now_ms = step * _MS_PER_STEP

    def step(self, freed: Sequence[str]) -> tuple[list[str], list[tuple[str, str, str]], list[str]]:
        loads = list(self._connector.take_step(freed).loads)
        pushes = [(one.consumer, one.name, one.identifier) for one in self._connector.take_pushes()]
        return loads, pushes, sorted(self._connector.take_cancelled())

    def failed(self) -> list[str]:
        return sorted(self._connector.take_failed())


def compare_pushed(seeds: range, dialect: Dialect, steps: int = 60) -> CacheReport:
    """Compare the model in a dialect with the release.

    Args:
        seeds: Each gives a sequence of calls.
        dialect: Of the installed release.
        steps: Of a sequence, each of several calls.
    """
    report = CacheReport(len(seeds), 0, {}, [])
    for seed in seeds:
        difference = _Sequence(Random(seed), dialect, report).play(steps)  # noqa: S311 - test data
        if difference:
            report.differences.append(f"seed {seed}, {difference}")
    return report


class _DifferenceError(Exception):
    """Both sides answer differently."""


class _Sequence:
    """One random sequence of calls on both."""

    def __init__(self, draw: Random, dialect: Dialect, report: CacheReport) -> None:
        self._draw, self._report = draw, report
        role = draw.choice(["consumer", "consumer", "both", "producer"])
        settings = (role, draw.choice([2, 4, 8]), draw.randint(2, 8), draw.randint(3, 20))
        self._sides = (_ModelPush(*settings, dialect), RealPush(*settings))
        self._items = [(f"i{number}", draw.randint(1, 4)) for number in range(4)]
        self._alive = [self._request(number, role) for number in range(6)]
        self._wanted = [
            (offer.transfer_id, one.identifier, one.position.num_embeds)
            for request in self._alive
            for one in request.mm_features
            if (offer := (request.ec_offers or {}).get(one.identifier)) and offer.transfer_id
        ]
        self._loading: list[str] = []

    def play(self, steps: int) -> str:
        """The first difference; empty when there is none."""
        for number in range(steps):
            try:
                self._step(number)
            except _DifferenceError as found:
                return f"step {number}: {found}"
        return ""

    def _step(self, number: int) -> None:
        draw = self._draw
        self._both("at", number)
        for _ in range(draw.choice([0, 0, 1, 2])):
            self._both("came", *self._arrival())
        for request in self._alive:
            if draw.random() < 0.7 and not self._both("ready", request, draw.choice([0, 0, 3, 6])):
                self._report.count("waits")
            for index in range(len(request.mm_features)):
                if draw.random() < 0.3:
                    self._report.count("is here" if self._both("holds", request, index) else "is not here")
                    if draw.random() < 0.5:
                        self._both("allocated", request, index)
                elif draw.random() < 0.1:
                    self._both("released", request, index)
        loads, pushes, cancelled = self._both("step", [name for name, _ in self._items if draw.random() < 0.12])
        for what, how_often in (("load", loads), ("push", pushes), ("cancelled", cancelled)):
            self._note(what, how_often)
        self._loading += loads
        if self._alive and draw.random() < 0.1:
            self._both("ended", self._alive.pop(draw.randrange(len(self._alive))))
        self._note("request failed", self._both("failed"))
        done = sorted({name for name in self._loading if draw.random() < 0.6})
        self._loading = [name for name in self._loading if name not in done]
        for name in done:
            is_good = draw.random() < 0.8
            self._note("load failed", [] if is_good else [name])
            self._both("loaded", name, is_good=is_good)

    def _both(self, call: str, *args: Any, **kwargs: Any) -> Any:
        model, real = (getattr(side, call)(*args, **kwargs) for side in self._sides)
        self._report.operations += 1
        if model != real:
            named = [one.request_id if isinstance(one, Request) else one for one in args]
            raise _DifferenceError(f"{call} {named}: model {model}, release {real}")
        return model

    def _note(self, what: str, happened: Collection[object]) -> None:
        for _ in happened:
            self._report.count(what)

    def _arrival(self) -> tuple[str, str, int]:
        """Mostly a transfer that somebody wants, under its name; else any name with any item."""
        if self._wanted and self._draw.random() < 0.7:
            return self._draw.choice(self._wanted)
        return f"t{self._draw.randint(0, 9)}", *self._draw.choice(self._items)

    def _request(self, number: int, role: str) -> Request:
        draw, start, features = self._draw, 0, list[MediaFeature]()
        offers: dict[str, EcOffer] = {}
        for _ in range(draw.randint(1, 3)):
            name, size = draw.choice(self._items)
            features.append(MediaFeature("image", name, PlaceholderRange(start, size), _METADATA))
            start += size + 1
        for one in dict.fromkeys(feature.identifier for feature in features):
            transfer = f"t{draw.randint(0, 9)}" if draw.random() < 0.8 else None
            if role != "consumer" or transfer:
                offers[one] = EcOffer(None if role == "consumer" else "c0", 0, transfer)
        return Request(f"r{number}", TokenPrompt([1] * start), 1, tuple(features), ec_offers=offers)


def _feature(vllm: Any, feature: MediaFeature) -> Any:
    """The release's form of an item that came as metadata alone."""
    return vllm.MultiModalFeatureSpec(
        data=None,
        modality=feature.modality,
        identifier=feature.identifier,
        mm_position=vllm.PlaceholderRange(offset=feature.position.offset, length=feature.position.length),
    )
