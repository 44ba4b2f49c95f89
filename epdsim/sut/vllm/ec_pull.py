"""The release's own CPU connector over NIXL, before the far side of a play: its transports carry calls, its clock counts steps."""

from __future__ import annotations

import importlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

from epdsim.core.ec.connector import EcStep
from epdsim.core.ec.serve import Answer
from epdsim.sut.schedule_ec import FarRead, FarSide
from epdsim.sut.vllm.settings import StandIn

_CPU = "vllm.distributed.ec_transfer.ec_connector.cpu"
_BYTES = 2
"""Of an embedding, which is one block of the region: one number of half precision."""

_STATUS = {Answer.GRANTED: "OK", Answer.NOT_READY: "NACK_NOT_READY", Answer.MISSING: "NACK_MISSING"}
_STATUS[Answer.INCOMPATIBLE] = "NACK_INCOMPAT"


@cache
def _modules() -> Any:
    names = {"scheduler": "scheduler", "session": "session", "protocol": "protocol", "common": "common"}
    loaded = {key: importlib.import_module(f"{_CPU}.{name}") for key, name in names.items()}
    return SimpleNamespace(**loaded, connector=importlib.import_module(f"{_CPU}.connector"))


class _Wire:
    """Both control transports and the data transport in one: each call goes to the far side, or comes from it."""

    def __init__(self, far: FarSide) -> None:
        self._far = far
        protocol, msgpack = _modules().protocol, importlib.import_module("msgspec").msgpack
        self._protocol, self._encode = protocol, msgpack.Encoder().encode
        self._read_ask = msgpack.Decoder(protocol.XferReq).decode
        self._read_answer = msgpack.Decoder(protocol.XferAck).decode

    # The consumer's side.

    def connect(self, addr: tuple[str, int]) -> Any:
        """A connection to a producer."""
        return SimpleNamespace(send=lambda message: self._far.ask(addr[0], self._read_ask(message).mm_hash))

    def poll(self, timeout_ms: int | None = None) -> Any:
        """Answers by producer; for a producer (which gives a timeout) asks of consumers."""
        if timeout_ms is not None:
            return [(consumer.encode(), self._ask(consumer, name)) for consumer, name in self._far.asks()]
        answers: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        for producer, name, answer in self._far.answers():
            status = self._protocol.XferStatus[_STATUS[answer]]
            message = self._protocol.XferAck(mm_hash=name, status=status, agent_metadata=producer.encode())
            answers[producer, 0].append(self._encode(message))
        return answers

    def poll_dead(self) -> Sequence[tuple[str, int]]:
        """Producers that are gone."""
        return [(producer, 0) for producer in self._far.lost_producers()]

    def remove(self, addr: tuple[str, int]) -> None:
        """A connection is closed."""

    def add_remote_peer(self, metadata: bytes, _descriptor: bytes) -> str:
        """A producer's name is what it sent of itself."""
        return metadata.decode()

    def remove_remote_peer(self, name: str) -> None:
        """A producer is forgotten."""

    def post_read(self, _local: Any, producer: str, _remote: Any, notif_msg: bytes) -> FarRead:
        """A read begins."""
        return self._far.begin_read(producer, notif_msg.decode().partition(":")[2])

    def check_xfer_state(self, read: FarRead) -> str:
        """How far a read is."""
        if not self._far.is_over(read):
            return "PROC"
        return "DONE" if read.is_good else "ERR"

    def release_xfer_handle(self, read: FarRead) -> None:
        """A read is forgotten."""

    # The producer's side.

    def send(self, consumer: bytes, message: bytes) -> None:
        """An answer to a consumer."""
        answer = self._read_answer(message)
        status = next(key for key, name in _STATUS.items() if name == answer.status.name)
        self._far.hear(consumer.decode(), answer.mm_hash, status)

    def get_new_notifs(self) -> Mapping[str, list[bytes]]:
        """Consumers that have read."""
        return {"all": [f"{consumer}:{name}".encode() for consumer, name in self._far.finished_reads()]}

    def get_agent_metadata(self) -> bytes:
        """Nothing that a consumer here needs."""
        return b""

    get_mem_descriptor = get_agent_metadata

    def _ask(self, consumer: str, name: str) -> bytes:
        return self._encode(self._protocol.XferReq(mm_hash=name, compatibility_hash="same", session_id=consumer))


@cache
def _delegate_class() -> Any:
    modules = _modules()

    class FarScheduler(modules.scheduler.ECCPUScheduler):
        """The release's scheduler delegate on a wire of calls."""

        far: FarSide

        def _setup_nixl(self, vllm_config: Any) -> None:
            del vllm_config
            wire = _Wire(self.far)
            self._compat_hash, self._ack_timeout_s = "same", float(self.far.ec.bounds[1])
            self._data = self._transport = wire
            self._peer_host, self._peer_port = "here", 0
            if self._is_producer:
                self._producer_session = modules.session.ProducerSession(wire, wire, self._cache, "same")

        def _process_session_results(self, session: Any) -> None:
            # The release goes through a set of strings, whose order differs from process to process.
            results = session.take_results()
            results.completed = sorted(results.completed)
            super()._process_session_results(StandIn(take_results=lambda: results))

    return FarScheduler


class PullAdapter:
    """The release's connector with what a play needs around it.

    Args:
        settings: Of the engine.
        role: `"producer"`, `"consumer"` or `"both"`.
        far: What is beyond it.

    Attributes:
        connector: The release's own, for its scheduler.
    """

    def __init__(self, settings: StandIn, role: str, far: FarSide) -> None:
        self._far, modules = far, _modules()
        self._set_clock(modules)
        options = {"ec_enable_nixl": True}
        transfer = StandIn(
            is_ec_producer=role in {"producer", "both"},
            is_ec_consumer=role in {"consumer", "both"},
            engine_id="engine",
            get_from_extra_config=options.get,
            mm_encoder_output_widths=dict.fromkeys(("image", "video", "audio"), 1),
        )
        model = StandIn(dtype=importlib.import_module("torch").float16, uses_mrope=settings.model_config.uses_mrope)
        parallel = StandIn(tensor_parallel_size=1, prefill_context_parallel_size=1)
        region = StandIn(num_blocks=far.ec.capacity, block_size_bytes=_BYTES)
        modules.scheduler.create_ec_shared_region = lambda _config: region
        delegate_class = _delegate_class()
        delegate_class.far = far
        delegate = delegate_class(StandIn(ec_transfer_config=transfer, model_config=model, parallel_config=parallel))
        delegate._metadata_resolver = StandIn(fields_for=lambda _modality: {"image_grid_thw"})  # noqa: SLF001
        self._delegate = delegate
        self._transfers: dict[str, deque[int]] = defaultdict(deque)
        self.connector = object.__new__(modules.connector.ECCPUConnector)
        self.connector.connector_scheduler = delegate
        self.connector.request_finished = self._request_finished

    def params(self, offers: Mapping[str, tuple[str | None, int]]) -> dict[str, Any] | None:
        """Offers as the release reads them in a request."""
        return {
            name: {"metadata": {}}
            if producer is None
            else {"peer_host": producer, "peer_port": 0, "size_bytes": num * _BYTES, "shape": [num, 1]}
            for name, (producer, num) in offers.items()
        } or None

    def told(self, metadata: Any) -> EcStep:
        """Loads and saves of a plan just made."""
        for name, (transfer, _, _) in metadata.loads.items():
            self._transfers[name].append(transfer)
        return EcStep(list(metadata.loads), list(metadata.saves))

    def report(self, release: Any) -> Any:
        """What workers have copied, as the release's workers say it."""
        done = self._far.done
        return release.ECConnectorOutput(
            ec_connector_worker_meta=_modules().common.ECCPUWorkerMetadata(
                completed_saves=list(done.saves),
                completed_loads=[self._transfers[name].popleft() for name in done.loads],
            )
        )

    def _request_finished(self, request: Any) -> Any:
        outcome = self._delegate.request_finished(request)
        if outcome[1] is not None:
            offers = {name: item["shape"][0] if "shape" in item else None for name, item in outcome[1].items()}
            self._far.announce(request.request_id, offers)
        return outcome

    def _set_clock(self, modules: Any) -> None:
        """Let the release's modules live in steps, with the bounds of the workload."""
        clock = StandIn(monotonic=lambda: float(self._far.now))
        modules.scheduler.time = modules.session.time = clock
        wait, _, read, quarantine, lease = self._far.ec.bounds
        modules.scheduler._ADMIT_DEFER_TIMEOUT_S = wait  # noqa: SLF001
        modules.session._CONSUMER_READ_TIMEOUT_S = read  # noqa: SLF001
        modules.session._CONSUMER_QUARANTINE_TIMEOUT_S = quarantine  # noqa: SLF001
        modules.session.PRODUCER_PIN_LEASE_S = lease
