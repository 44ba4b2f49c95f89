"""Connectors of the real scheduler whose far side is a set of identifiers or a number of tokens."""

from __future__ import annotations

import importlib
from collections.abc import Container, Mapping
from functools import cache
from typing import Any

from epdsim.sut.schedule_records import RecordedRequest
from epdsim.sut.vllm.settings import StandIn


@cache
def _ec_class() -> Any:
    # The module names safetensors alone but uses a part of it.
    importlib.import_module("safetensors.torch")
    module = importlib.import_module("vllm.distributed.ec_transfer.ec_connector.example_connector")

    class SetConnector(module.ECExampleConnector):
        """The release's example connector on a set instead of a shared folder."""

        stored: Container[str]

        def has_cache_item(self, identifier: str) -> bool:
            """Whether the embedding stands in the store."""
            return identifier in self.stored

        def request_finished(self, request: Any) -> tuple[bool, None]:
            """No parameters for a client, which are no matter of scheduling."""
            del request
            return False, None

    return SetConnector


def ec_connector(release: Any, settings: StandIn, role: str, stored: Container[str]) -> Any:
    """The scheduler's side of the example connector.

    Args:
        release: The loaded release.
        settings: Of the engine.
        role: `"producer"`, `"consumer"` or `"both"`.
        stored: Identifiers in the store; a live collection.
    """
    transfer = StandIn(
        is_ec_producer=role in {"producer", "both"},
        is_ec_consumer=role in {"consumer", "both"},
        get_from_extra_config=lambda _, default: default,
    )
    wanted = StandIn(model_config=settings.model_config, ec_transfer_config=transfer)
    connector = _ec_class()(vllm_config=wanted, role=release.ECConnectorRole.SCHEDULER)
    connector.stored = stored
    return connector


@cache
def _kv_class(release_base: Any, release_metadata: Any) -> Any:
    class HandOver(release_base):
        """Says of each request, once, how many tokens another engine has computed; they are there when they are loaded."""

        def __init__(self, requests: Mapping[str, RecordedRequest]) -> None:
            # The base wants settings of a transport, of which there is none.
            self.requests = requests
            self.taken: set[str] = set()

        requires_kv_delivery = False

        def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
            """Tokens beyond those found in the engine's own cache, loaded within the step."""
            if request.request_id in self.taken:
                return 0, False
            num_remote = min(self.requests[request.request_id].num_remote_tokens, request.num_tokens - 1)
            return max(0, num_remote - num_computed_tokens), False

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            """The request is admitted: a later admission computes by itself."""
            del blocks, num_external_tokens
            self.taken.add(request.request_id)

        def reset_cache(self) -> bool:
            """What was computed for requests that wait is gone."""
            self.taken |= set(self.requests)
            return True

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            """Nothing that a worker must know."""
            del scheduler_output
            return release_metadata()

        def start_load_kv(self, forward_context: Any, **_: Any) -> None:
            """Worker side."""

        def wait_for_layer_load(self, layer_name: str) -> None:
            """Worker side."""

        def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
            """Worker side."""

        def wait_for_save(self) -> None:
            """Worker side."""

    return HandOver


def kv_connector(release: Any, requests: Mapping[str, RecordedRequest]) -> Any:
    """A KV connector that hands over `num_remote_tokens` of each request at its first admission."""
    return _kv_class(release.KVConnectorBase_V1, release.KVConnectorMetadata)(requests)
