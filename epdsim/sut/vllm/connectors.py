"""An EC connector of the real scheduler whose far side is a set of identifiers."""

from __future__ import annotations

import importlib
from collections.abc import Container
from functools import cache
from typing import Any

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
