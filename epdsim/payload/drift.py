"""How fast a shared host is now, compared with when it was calibrated.

Three plans of the calibration serve as probes, one per way that a message can go: nothing but a header, whose time is that of
waking ranks; data through the ring; data through the sockets. Load on a host slows the three differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from epdsim.core.plan import StepPlan
from epdsim.cost.profile import MeasuredCell
from epdsim.payload.calibrate import bare_plan, single_tensor_plan
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
    return [bare_plan(8), single_tensor_plan(1 / 2, chunk_bytes), single_tensor_plan(2, chunk_bytes)]


def host_drift(
    measured: Sequence[MeasuredCell], readers: int, probes_ms: Sequence[Sequence[float]], chunk_bytes: int
) -> dict[Way, float]:
    """By what each way's predictions are to be multiplied now; a way whose probe was not measured then is left out.

    It is 1 while the time fitted then lies between the quartiles of a probe's times now, since the noise of a probe has no place in
    the predictions; beyond them it is what brings the fitted time to the probe's median.

    Args:
        measured: Of the calibration's record.
        readers: Ranks now.
        probes_ms: Times of each probe, in the order of `probe_plans`.
        chunk_bytes: Of the ring.
    """
    fitted_ms: Mapping[tuple[int, int, int], float] = {
        (cell.readers, cell.message_bytes, cell.num_unique_tensors): cell.predicted_ms for cell in measured
    }
    drifts: dict[Way, float] = {}
    for plan, times_ms in zip(probe_plans(chunk_bytes), probes_ms, strict=True):
        size = message_size(plan)
        then_ms = fitted_ms.get((readers, size.total_bytes, size.num_unique_tensors))
        if then_ms is not None:
            low_ms, median_ms, high_ms = np.quantile(times_ms, (0.25, 0.5, 0.75)).tolist()
            drifts[way(size, chunk_bytes)] = 1.0 if low_ms <= then_ms <= high_ms else median_ms / then_ms
    return drifts
