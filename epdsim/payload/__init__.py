"""Real tensors: step plans as messages, a shared-memory ring, tensor-parallel worker processes, calibration of the host.

A simulation weighs messages and needs neither processes nor shared memory.
"""

from typing import TYPE_CHECKING

from epdsim.core.lazy import names_in

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

if TYPE_CHECKING:
    from epdsim.payload.calibrate import calibrate_host
    from epdsim.payload.message import DecodedMessage, Message, MessageSize, decode, encode, message_size
    from epdsim.payload.real_broadcast import PlanBroadcast, RealBroadcastReport, run_real_broadcast
    from epdsim.payload.ring import RankLostError, RingOptions, WireBytes, wire_bytes
    from epdsim.payload.tensors import tensor_bytes, tensor_digests
    from epdsim.payload.tp_workers import BroadcastResult, TpGroup
else:
    __getattr__, __dir__ = names_in(
        __name__, ("message", "tensors", "ring", "tp_workers", "real_broadcast", "calibrate"), __all__
    )
