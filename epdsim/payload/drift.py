"""How fast a shared host is now, compared with when it was calibrated.

Three plans of the calibration serve as probes, one per way that a message can go: nothing but a header, whose time is that of
waking ranks; data through the ring; data through the sockets. Load on a host slows the three differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from epdsim.core.plan import StepPlan
from epdsim.cost.profile import MeasuredCell
from epdsim.payload.calibrate import single_tensor_plan
from epdsim.payload.message import MessageSize, message_size
from epdsim.payload.ring import wire_bytes

Way = Literal["header", "ring", "socket"]


def way(size: MessageSize, chunk_bytes: int) -> Way:
    """The way that a message goes."""
    if wire_bytes(size.total_bytes, chunk_bytes).socket_bytes_per_reader:
        return "socket"
    return "ring" if size.payload_bytes else "header"


def probe_plans(chunk_bytes: int) -> list[StepPlan]:
    """The probes: plans that every calibration measures too."""
    return [single_tensor_plan(share, chunk_bytes) for share in (0, 1 / 2, 2)]


def host_drift(
    measured: Sequence[MeasuredCell], readers: int, now_ms: Sequence[float], chunk_bytes: int
) -> dict[Way, float]:
    """How many times as long each probe takes now as its calibration fits; a way whose probe was not measured then is left out.

    The fitted time stands for then, not the probe's own median: it rests on all that was measured, and predictions rest on it.

    Args:
        measured: Of the calibration's record.
        readers: Ranks now.
        now_ms: Time of each probe, in the order of `probe_plans`.
        chunk_bytes: Of the ring.
    """
    then_ms: Mapping[tuple[int, int, int], float] = {
        (cell.readers, cell.message_bytes, cell.num_unique_tensors): cell.predicted_ms for cell in measured
    }
    drifts: dict[Way, float] = {}
    for plan, time_ms in zip(probe_plans(chunk_bytes), now_ms, strict=True):
        size = message_size(plan)
        then = then_ms.get((readers, size.total_bytes, size.num_unique_tensors))
        if then is not None:
            drifts[way(size, chunk_bytes)] = time_ms / then
    return drifts
