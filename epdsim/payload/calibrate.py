"""Measure this host's broadcast and fit a profile to it.

Groups of one, two and four ranks stay alive together and take turns, so that a slow spell of a shared machine falls on all of
them alike; what counts of a plan is the median over the rounds.

The fit is one non-negative least squares in relative error over three cumulative times of every plan: serialised, copied,
delivered everywhere. The last is what a prediction is judged by; the first two tell the rates of the parts from each other.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import median

import numpy as np

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import NewRequestData, StepPlan
from epdsim.core.records import record
from epdsim.cost.broadcast import FREE_BYTES_PER_MS, BroadcastLoad, BroadcastProfile, broadcast_ms
from epdsim.cost.nnls import relative_nnls
from epdsim.cost.profile import MeasuredCell, ProfileRecord
from epdsim.payload.message import encode, message_size
from epdsim.payload.ring import RingOptions, wire_bytes
from epdsim.payload.rounds import timed_rounds
from epdsim.payload.tp_workers import BroadcastResult, Staging, TpGroup

DEFAULT_READERS = (1, 2, 4)
DEFAULT_REPEATS = 25

_CHUNK_SHARES = (1 / 16, 1 / 4, 1 / 2, 15 / 16, 5 / 4, 2.0, 4.0, 8.0)
"""Payloads of single tensors in chunks, on both sides of the limit."""
_NUM_ITEMS = 26
_SMALL_TENSOR_BYTES = 4096


@record
class Cell:
    """One load and how long its broadcasts took.

    Attributes:
        load: What was sent to how many.
        results: One per timed round.
    """

    load: BroadcastLoad
    results: tuple[BroadcastResult, ...]

    @property
    def total_ms(self) -> tuple[float, ...]:
        """Sorted, from start to the last rank."""
        return tuple(sorted(result.total_ms for result in self.results))


def calibrate_host(
    readers: Sequence[int] = DEFAULT_READERS,
    repeats: int = DEFAULT_REPEATS,
    options: RingOptions | None = None,
    *,
    in_band: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ProfileRecord:
    """Measure, fit, and say how well the fit describes what was measured.

    Args:
        readers: Sizes of the groups, at least two different ones, else their effect cannot be told.
        repeats: Timed rounds.
        options: Shape of the ring.
        in_band: As for `TpGroup`.
        progress: Told after each round how many of how many are done.

    Raises:
        InputError: Too few sizes or rounds.
        RankLostError: A rank died on the way.
    """
    if len(set(readers)) < 2 or min(readers) < 1:
        raise InputError(f"readers={list(readers)!r}", "at least two different group sizes of 1 or more are needed")
    if repeats < 3:
        raise InputError(f"repeats={repeats!r}", "a median needs at least 3 rounds")
    options = options or RingOptions()
    cells, digest_bytes_per_ms = measure(readers, repeats, options, in_band=in_band, progress=progress)
    profile = fit(cells, options.chunk_bytes, in_band=in_band)
    if not in_band:
        profile = replace(profile, serialise_bytes_per_ms=_in_band_rate(options.chunk_bytes, repeats))
    return ProfileRecord(profile, digest_bytes_per_ms, host_facts(), tuple(_described(cell, profile) for cell in cells))


def measure(
    readers: Sequence[int],
    repeats: int,
    options: RingOptions,
    *,
    in_band: bool,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Cell], float]:
    """Broadcast the calibration plans; the cells, and how many bytes a rank hashes per ms."""
    plans = calibration_plans(options.chunk_bytes)
    with ExitStack() as stack:
        groups = [stack.enter_context(TpGroup(size, options, in_band=in_band)) for size in readers]
        results = timed_rounds(groups, plans, repeats, progress)
        # What hashing costs shows where a rank does not compete with others for a core.
        hashed = min(groups, key=lambda group: group.size).broadcast(plans[-1])
    cells = [
        Cell(message_size(plan).load(group.size), tuple(found))
        for group, of_group in zip(groups, results, strict=True)
        for plan, found in zip(plans, of_group, strict=True)
    ]
    return cells, hashed.size.payload_bytes / median(hashed.digest_ms)


def calibration_plans(chunk_bytes: int) -> list[StepPlan]:
    """Plans that tell the constants apart, the largest last.

    No items, items without data, many small tensors, one tensor in many items, then single tensors of growing size.
    """
    small = [_tensor(_SMALL_TENSOR_BYTES, index) for index in range(_NUM_ITEMS)]
    many = [_plan(small), _plan([_tensor(chunk_bytes // 2, 0)] * _NUM_ITEMS)]
    bare = [bare_plan(count) for count in (0, _NUM_ITEMS // 3, _NUM_ITEMS)]
    return [*bare, *many, *(single_tensor_plan(share, chunk_bytes) for share in _CHUNK_SHARES)]


def bare_plan(num_items: int) -> StepPlan:
    """A plan whose items carry no data, as if all were stripped."""
    return _plan([None] * num_items)


def single_tensor_plan(share: float, chunk_bytes: int) -> StepPlan:
    """A plan with one item whose tensor fills a share of a chunk."""
    return _plan([_tensor(int(share * chunk_bytes), 7)])


def _in_band_rate(chunk_bytes: int, repeats: int) -> float:
    """How fast data are copied into a message, for the profile of a group that does not do it."""
    message = encode(calibration_plans(chunk_bytes)[-1])
    buffer = Staging().take(message.size.total_bytes)
    times_ms: list[float] = []
    for _ in range(repeats):
        started_ns = time.perf_counter_ns()
        message.write_to(buffer)
        times_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
    return message.size.total_bytes / median(times_ms)


def _tensor(num_bytes: int, seed: int) -> TensorHandle:
    import torch  # noqa: PLC0415 - late on purpose: sizes need no torch

    generator = torch.Generator().manual_seed(seed)
    tensor = torch.rand(num_bytes // 4, generator=generator)
    return TensorHandle("float32", tuple(tensor.shape), source=tensor)


def _plan(handles: Sequence[TensorHandle | None]) -> StepPlan:
    features = tuple(
        MediaFeature(
            "image",
            f"{index:064x}",
            PlaceholderRange(index * 300, 280),
            None if handle is None else MediaItem({"pixel_values": Field(handle, BatchedKind())}),
            f"{index:064x}",
        )
        for index, handle in enumerate(handles)
    )
    new = NewRequestData("calibrate", 0, tuple(range(len(features) * 20)), features, len(features) * 300 + 1)
    return StepPlan(0, {"calibrate": new.num_prompt_tokens}, new=(new,))


def fit(cells: Sequence[Cell], chunk_bytes: int, *, in_band: bool) -> BroadcastProfile:
    """The profile that describes the cells best, in relative error of their medians.

    All constants but the contention enter linearly; the contention is the one of a fixed grid with which the rest fits best.
    """
    return min(
        (_fit_rest(cells, chunk_bytes, contention, in_band=in_band) for contention in _CONTENTIONS),
        key=lambda found: found[0],
    )[1]


_CONTENTIONS = tuple(step / 50 for step in range(101))
"""0 to 2: beyond 1, ranks hinder each other more than taking turns would."""

_COLUMNS = (
    "fixed_sender",
    "tensor_sender",
    "item_sender",
    "serialise",
    "ring",
    "socket",
    "fixed",
    "reader",
    "tensor",
    "item",
    "deserialise",
)
"""Those of the sender alone describe the first two times of a cell; they keep what is not the model's out of the rates."""


def _fit_rest(
    cells: Sequence[Cell], chunk_bytes: int, contention: float, *, in_band: bool
) -> tuple[float, BroadcastProfile]:
    """The other constants for a given contention, and the sum of squared relative errors."""
    samples = [sample for cell in cells for sample in _cumulative(cell, chunk_bytes, contention, in_band=in_band)]
    features, times = np.array([row for row, _ in samples]), np.array([value for _, value in samples])
    coefficients = relative_nnls(features, times)
    error = float(np.sum((features @ coefficients / times - 1) ** 2))
    cost = dict(zip(_COLUMNS, coefficients.tolist(), strict=True))
    profile = BroadcastProfile(
        fixed_ms=cost["fixed"],
        per_reader_ms=cost["reader"],
        per_tensor_ms=cost["tensor"],
        per_item_ms=cost["item"],
        serialise_bytes_per_ms=_rate(cost["serialise"]),
        ring_copy_bytes_per_ms=_rate(cost["ring"]),
        socket_bytes_per_ms=_rate(cost["socket"]),
        deserialise_bytes_per_ms=_rate(cost["deserialise"]),
        reader_contention=contention,
        chunk_bytes=chunk_bytes,
        in_band=in_band,
    )
    return error, profile


def _rate(ms_per_byte: float) -> float:
    return min(FREE_BYTES_PER_MS, 1 / ms_per_byte) if ms_per_byte else FREE_BYTES_PER_MS


def _cumulative(cell: Cell, chunk_bytes: int, contention: float, *, in_band: bool) -> list[tuple[list[float], float]]:
    """Features and median of a cell after serialising, after copying, and at the last rank; the terms of `broadcast_ms`."""
    load, size = cell.load, cell.load.message_bytes
    overflows = wire_bytes(size, chunk_bytes).socket_bytes_per_reader > 0
    unpacked = size if in_band or not overflows else 0
    slowdown = 1 + contention * (load.readers - 1)
    describe = (1 + slowdown) * np.array([load.num_unique_tensors, load.num_items])

    def row(**columns: float) -> list[float]:
        return [float(columns.get(name, 0)) for name in _COLUMNS]

    sender = {"fixed_sender": 1, "tensor_sender": load.num_unique_tensors, "item_sender": load.num_items}
    serialise = {"serialise": size if in_band else 0}
    copy = {"socket": load.readers * size} if overflows else {"ring": size}
    ranks = {"fixed": 1, "reader": load.readers, "tensor": describe[0], "item": describe[1]}
    serialised_ms = [result.serialise_ms for result in cell.results]
    copied_ms = [result.serialise_ms + result.copy_ms for result in cell.results]
    return [
        (row(**sender, **serialise), median(serialised_ms)),
        (row(**sender, **serialise, **copy), median(copied_ms)),
        (row(**ranks, **serialise, **copy, deserialise=slowdown * unpacked), median(cell.total_ms)),
    ]


def _described(cell: Cell, profile: BroadcastProfile) -> MeasuredCell:
    total_ms, load = cell.total_ms, cell.load
    return MeasuredCell(
        load.readers,
        load.message_bytes,
        load.num_unique_tensors,
        load.num_items,
        len(total_ms),
        total_ms[0],
        median(total_ms),
        total_ms[-1],
        broadcast_ms(load, profile).total_ms,
    )


def host_facts() -> dict[str, str | int]:
    """What of the host bears on the figures, without its name."""
    import torch  # noqa: PLC0415 - late on purpose: sizes need no torch

    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
