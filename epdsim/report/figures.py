"""Figures of a report, as SVG text. Needs matplotlib (extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import numpy as np

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.report.books import STAGES
from epdsim.report.metrics import RunMetrics
from epdsim.report.observer import RunPicture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 12
"""Runs or instances that one figure can still tell apart."""


@record
class DrawnRun:
    """One run as figures need it.

    Attributes:
        name: In legends.
        metrics: Its figures.
        picture: Its latencies and loads.
    """

    name: str
    metrics: RunMetrics
    picture: RunPicture


@record
class DrawnFleet:
    """A fleet that a plan tried.

    Attributes:
        name: Its instances by pool.
        gpus: What it costs.
        ratio: Its worst figure against the bound of it; None where the run was given up.
        kind: The answer, run on all of the traffic, or on its busiest stretch only.
    """

    name: str
    gpus: float
    ratio: float | None
    kind: Literal["answer", "all", "stretch"]


@record
class DrawnCurve:
    """A fleet under several loads.

    Attributes:
        name: Its instances by pool, and what it is.
        gpus: What it costs.
        most_req_s: Highest offered rate that meets the level; 0 for none.
        points: Offered rate, and rate of the requests that are served within the bounds.
    """

    name: str
    gpus: float
    most_req_s: float
    points: Sequence[tuple[float, float]]
    is_answer: bool = False


def check_installed() -> None:
    """See that figures can be drawn, before the work that they show.

    Raises:
        InputError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        rule = "it draws with matplotlib, which is not installed"
        raise InputError("--html", rule, "pip install 'epdsim[report]'")


def latency_cdf(runs: Sequence[DrawnRun]) -> str:
    """Share of requests with at most a latency: TTFT, TPOT and E2E side by side, a line per run."""
    figure = _figure(3, 3.2)
    for axes, (label, which) in zip(
        figure.subplots(1, 3), (("TTFT, ms", "ttft_ms"), ("TPOT, ms", "tpot_ms"), ("E2E, ms", "e2e_ms")), strict=True
    ):
        for run in runs[:MOST_LINES]:
            values = getattr(run.picture, which)
            if values:
                axes.plot(values, np.linspace(0, 1, len(values)), label=run.name or None, linewidth=1.4)
        axes.set_xlabel(label)
        axes.set_ylim(0, 1.01)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    _legend(figure, runs)
    return _svg(figure)


def ttft_stages(runs: Sequence[DrawnRun]) -> str:
    """Where the mean TTFT goes: a bar per run, stacked by stage."""
    shown = [run for run in runs if run.metrics.ttft_by_stage_ms]
    figure = _figure(3, 0.8 + 0.32 * len(shown))
    axes: Axes = figure.subplots()
    left = np.zeros(len(shown))
    for stage in STAGES:
        spent = np.array([run.metrics.ttft_by_stage_ms.get(stage, 0.0) for run in shown])
        if spent.any():
            axes.barh(range(len(shown)), spent, left=left, label=stage)
            left += spent
    axes.set_yticks(range(len(shown)), [run.name or "run" for run in shown])
    axes.invert_yaxis()
    axes.set_xlabel("mean TTFT, ms")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return _svg(figure)


def bytes_by_leg(runs: Sequence[DrawnRun]) -> str:
    """Bytes between instances, and to the tensor-parallel ranks with and without strip; logarithmic."""
    rows: list[Mapping[str, int]] = [
        {
            **{f"{leg} leg": count for leg, count in run.metrics.leg_bytes.items()},
            "embeddings": run.metrics.ec_bytes,
            "KV hand-over": run.metrics.kv_bytes,
            "broadcast": run.metrics.broadcast_bytes,
            "broadcast,\nunstripped": run.metrics.broadcast_bytes_unstripped,
        }
        for run in runs
    ]
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) for row in rows)]
    figure = _figure(3, 3.0)
    axes: Axes = figure.subplots()
    width = 0.8 / min(len(runs), MOST_LINES)
    for index, (run, row) in enumerate(zip(runs[:MOST_LINES], rows, strict=False)):
        places = np.arange(len(names)) + index * width
        axes.bar(places, [row.get(name, 0) for name in names], width, label=run.name or None)
    axes.set_yscale("log")
    axes.set_ylabel("bytes")
    axes.set_xticks(np.arange(len(names)) + 0.4 - width / 2, names)
    axes.grid(alpha=0.3, axis="y")
    _legend(figure, runs)
    return _svg(figure)


def loads(run: DrawnRun) -> str:
    """Utilisation, running and waiting requests over time, a line per instance."""
    found = run.picture.loads
    figure = _figure(3, 5.4)
    times_s = np.arange(len(next(iter(found.values())).busy)) * run.picture.bin_ms / 1e3
    shown = dict(list(found.items())[:MOST_LINES])
    rows = figure.subplots(3, 1, sharex=True)
    for axes, (label, which) in zip(
        rows, (("busy, share", "busy"), ("running", "running"), ("waiting", "waiting")), strict=True
    ):
        for name, load in shown.items():
            axes.step(times_s, getattr(load, which), where="post", linewidth=1.0, label=name)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    rows[-1].set_xlabel("time, s")
    rows[0].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    return _svg(figure)


def against_axis(axis: str, series: Mapping[str, Sequence[tuple[float, float]]], label: str) -> str:
    """A figure against a numeric axis of the scenario, a line per combination of the other axes."""
    figure = _figure(1.5, 3.0)
    axes: Axes = figure.subplots()
    for name, points in list(series.items())[:MOST_LINES]:
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, marker="o", markersize=3, linewidth=1.4, label=name or None)
    axes.set_xlabel(axis)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    if any(series):
        axes.legend(fontsize=7)
    return _svg(figure)


def fleets(tried: Sequence[DrawnFleet]) -> str:
    """Fleets by GPUs and by how far their worst figure is from its bound; those that were given up stand at the top."""
    figure = _figure(2.2, 3.6)
    axes: Axes = figure.subplots()
    top = 1.25 * max([1.5, *(one.ratio for one in tried if one.ratio is not None)])
    looks = {
        "answer": ("the answer", "*", "#17652f", 170),
        "all": ("run on all of the traffic", "o", "#2a5db0", 34),
        "stretch": ("run on the busiest stretch", "^", "#8a94a6", 30),
    }
    for kind, (label, marker, colour, size) in looks.items():
        shown = [one for one in tried if one.kind == kind]
        if shown:
            heights = [top if one.ratio is None else one.ratio for one in shown]
            axes.scatter([one.gpus for one in shown], heights, s=size, c=colour, marker=marker, label=label, zorder=3)
    _annotate(axes, [(one.name, one.gpus, top if one.ratio is None else one.ratio) for one in tried])
    axes.axhline(1.0, color="#a3162a", linewidth=1.2, linestyle="--", label="the level")
    axes.axhline(top, color="#d5dae2", linewidth=0.8)
    axes.set_ylim(0, 1.12 * top)
    below = [tick for tick in axes.get_yticks() if 0 <= tick < 0.95 * top]
    axes.set_yticks([*below, top], [*(f"{tick:g}" for tick in below), "given up"])
    axes.set_xlabel("GPUs")
    axes.set_ylabel("worst figure / its bound")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure)


def goodput_curves(curves: Sequence[DrawnCurve]) -> str:
    """What share of requests is served within the bounds against requests offered, a line per fleet.

    A share, for as rates all fleets lie on one diagonal as long as they bear the load.
    """
    figure = _figure(2.2, 3.6)
    axes: Axes = figure.subplots()
    axes.axhline(100, color="#a3162a", linewidth=1.0, linestyle="--", label="all that are offered")
    least = 100.0
    for curve in curves[:MOST_LINES]:
        offered = [asked for asked, _ in curve.points]
        shares = [100.0 * good / asked if asked else 0.0 for asked, good in curve.points]
        least = min(least, *shares)
        width = 2.4 if curve.is_answer else 1.2
        axes.plot(offered, shares, marker="o", markersize=3, linewidth=width, label=curve.name)
    axes.set_xlabel("offered, requests/s")
    axes.set_ylabel("served within\nthe bounds, %")
    room = max(0.05 * (100.0 - least), 0.2)
    axes.set_ylim(least - room, 100 + room)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _svg(figure)


def pareto(curves: Sequence[DrawnCurve]) -> str:
    """Fleets by GPUs and by the highest rate that they bear; the line joins those that no cheaper one beats."""
    figure = _figure(2.2, 3.6)
    axes: Axes = figure.subplots()
    frontier: list[DrawnCurve] = []
    for curve in sorted(curves, key=lambda one: (one.gpus, -one.most_req_s)):
        if not frontier or curve.most_req_s > frontier[-1].most_req_s:
            frontier.append(curve)
    axes.step([one.gpus for one in frontier], [one.most_req_s for one in frontier], where="post", color="#8a94a6")
    for curve in curves:
        marker, colour, size = ("*", "#17652f", 170) if curve.is_answer else ("o", "#2a5db0", 34)
        axes.scatter([curve.gpus], [curve.most_req_s], s=size, c=colour, marker=marker, zorder=3)
    axes.set_xlabel("GPUs")
    _annotate(axes, [(curve.name, curve.gpus, curve.most_req_s) for curve in curves])
    axes.locator_params(axis="x", integer=True)
    axes.set_ylabel("highest rate that meets\nthe level, requests/s")
    axes.set_ylim(0, 1.15 * max(1e-9, *(one.most_req_s for one in curves)))
    axes.margins(x=0.25)
    axes.grid(alpha=0.3)
    return _svg(figure)


def _annotate(axes: Axes, named: Iterable[tuple[str, float, float]]) -> None:
    """Names beside points; those of one place one above the other."""
    places: dict[tuple[float, float], list[str]] = {}
    for name, x, y in named:
        places.setdefault((x, y), []).append(name)
    for place, names in places.items():
        axes.annotate("\n".join(names), place, (5, 4), textcoords="offset points", fontsize=7)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - most of a second, and an extra

    return Figure(figsize=(3.6 * width, height), layout="constrained")


def _legend(figure: Figure, runs: Sequence[DrawnRun]) -> None:
    if len(runs) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)


def _svg(figure: Figure) -> str:
    """Equal figures give equal text: ids are salted with a constant, and no date is written."""
    import matplotlib as mpl  # noqa: PLC0415 - as above

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "epdsim", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
