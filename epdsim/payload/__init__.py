"""Real tensors: step plans as messages, a shared-memory ring, tensor-parallel worker processes, calibration of the host.

Names are looked up when they are first asked for: a simulation weighs messages and needs neither processes nor shared memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from epdsim.payload.calibrate import calibrate_host
    from epdsim.payload.message import DecodedMessage, Message, MessageSize, decode, encode, message_size
    from epdsim.payload.real_broadcast import PlanBroadcast, RealBroadcastReport, run_real_broadcast
    from epdsim.payload.ring import RankLostError, RingOptions, WireBytes, wire_bytes
    from epdsim.payload.tensors import tensor_bytes, tensor_digests
    from epdsim.payload.tp_workers import BroadcastResult, TpGroup

__all__ = [
    "BroadcastResult",
    "DecodedMessage",
    "Message",
    "MessageSize",
    "PlanBroadcast",
    "RankLostError",
    "RealBroadcastReport",
    "RingOptions",
    "TpGroup",
    "WireBytes",
    "calibrate_host",
    "decode",
    "encode",
    "message_size",
    "run_real_broadcast",
    "tensor_bytes",
    "tensor_digests",
    "wire_bytes",
]

_MODULES = ("message", "tensors", "ring", "tp_workers", "real_broadcast", "calibrate")
"""Where the names are, the lightest first."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in (import_module(f"{__name__}.{module}") for module in _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
