"""A KV connector of the real scheduler whose far side is what a workload says of its requests.

vLLM's factory builds connectors by module and name; the class is made when it is first asked for, on the release's own base.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from epdsim.sut.schedule_records import RecordedRequest
from epdsim.sut.schedule_transfers import NO_TRANSFER
from epdsim.sut.vllm.release import load

CLASS_NAME = "WorkloadConnector"
"""What the factory asks this module for."""


def __getattr__(name: str) -> Any:
    if name == CLASS_NAME:
        return _connector_class()
    raise AttributeError(name)


@cache
def _connector_class() -> Any:
    release = load()

    class WorkloadConnector(release.KVConnectorBase_V1):
        """Answers look-ups as the workload says, and notes which transfers begin.

        Attributes:
            requests: What the workload says of each request; set by the engine.
        """

        requests: Mapping[str, RecordedRequest]

        def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
            super().__init__(vllm_config, role, kv_cache_config)
            self.block_size: int = vllm_config.cache_config.block_size
            self._num_asked: dict[str, int] = {}
            self._num_loads: dict[str, int] = {}
            self._num_local: dict[str, int] = {}
            self._loads: list[dict[str, Any]] = []
            self._sends: list[str] = []

        def take_transfers(self) -> dict[str, Any]:
            """Transfers begun since the last call, in the form of a recording."""
            begun = {"kv_loads": self._loads, "kv_sends": self._sends}
            self._loads, self._sends = [], []
            return begun

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
            """Tokens beyond those found in the engine's own cache; None as often as the workload says."""
            name = request.request_id
            recorded = self.requests[name]
            transfer = recorded.kv or NO_TRANSFER
            asked = self._num_asked[name] = self._num_asked.get(name, 0) + 1
            self._num_local[name] = num_computed_tokens
            if asked <= transfer.num_unready:
                return None, False
            if self._num_loads.get(name, 0) >= transfer.num_loads:
                return 0, False
            is_async = transfer.load_steps > 0
            most = request.num_tokens if is_async else request.num_tokens - 1
            found = max(0, min(recorded.num_remote_tokens, most) - num_computed_tokens)
            return found, is_async and found > 0

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            """The request has its blocks: it is admitted, or a load begins."""
            name = request.request_id
            if request.num_computed_tokens == 0:
                self._num_loads[name] = self._num_loads.get(name, 0) + 1
            if num_external_tokens:
                first, end = self._num_local[name], self._num_local[name] + num_external_tokens
                table = blocks.get_block_ids()[0][first // self.block_size : -(-end // self.block_size)]
                is_async = (self.requests[name].kv or NO_TRANSFER).load_steps > 0
                self._loads.append({"req_id": name, "block_ids": list(table), "is_async": is_async})

        def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
            """Hold the blocks of a request that has its tokens, where the workload says that they are sent."""
            del block_ids
            name = request.request_id
            is_sent = (self.requests[name].kv or NO_TRANSFER).send_steps > 0
            if not is_sent or request.status != release.RequestStatus.FINISHED_LENGTH_CAPPED:
                return False, None
            self._sends.append(name)
            return True, None

        def reset_cache(self) -> bool:
            """What was computed for requests that wait is gone."""
            self._num_loads.update(dict.fromkeys(self.requests, 1 << 30))
            return True

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """Nothing that a worker must know."""
            del scheduler_output
            return release.KVConnectorMetadata()

        def start_load_kv(self, forward_context: Any, **_: Any) -> None:
            """Worker side."""

        def wait_for_layer_load(self, layer_name: str) -> None:
            """Worker side."""

        def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
            """Worker side."""

        def wait_for_save(self) -> None:
            """Worker side."""

    return WorkloadConnector
