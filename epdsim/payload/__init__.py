"""Real tensors: step plans as messages, a shared-memory ring, tensor-parallel worker processes, calibration of the host."""

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
