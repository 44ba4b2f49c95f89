"""Terminal tables; figures on stdout, nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from epdsim.core.records import record
from epdsim.report.metrics import Distribution, RunMetrics

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def nbytes(count: float) -> str:
    """Bytes in decimal units, three digits."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def millis(value: float) -> str:
    """Milliseconds, or seconds from ten of them on."""
    return f"{value / 1000:,.1f} s" if abs(value) >= 10_000 else f"{value:,.1f} ms"


def console(*, stderr: bool = False) -> Console:
    """A console that does not fold tables to 80 columns where nobody's terminal says so, and takes text as it is."""
    from rich.console import Console  # noqa: PLC0415 - what is printed as JSON needs no tables

    width = None if sys.stdout.isatty() else 150
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


@record
class TextTable:
    """A table as text, for the terminal or a page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


def print_text(table: TextTable) -> None:
    """Print a table."""
    print_table(table.title, table.columns, table.rows, table.caption)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> None:
    """A plain table; columns of figures stand right."""
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table(
        title=title, caption=caption or None, title_justify="left", caption_justify="left", title_style="bold"
    )
    for index, column in enumerate(columns):
        is_figure = all(row[index][:1] in "0123456789-+" for row in rows)
        table.add_column(column, justify="right" if is_figure and rows else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


WORKING = "steps that only generate count too"
"""What is to be said of the share of time that an engine works: all of it is not all that it can do."""


def summary_table(title: str, metrics: RunMetrics) -> TextTable:
    """A run's figures."""
    caption = f"utilisation: share of the time in steps or encoder runs; {WORKING}" if metrics.busy_ms else ""
    return TextTable(title, ["figure", "value"], summary_rows(metrics), caption)


def summary_rows(metrics: RunMetrics) -> list[tuple[str, str]]:
    """A run's figures as label and value, in the order a planner asks for them."""
    rows = [("requests", _books(metrics)), ("simulated time", millis(metrics.duration_ms))]
    if told := latencies_are_of(metrics):
        rows.append(("latencies are of", told))
    rows += [("not served", f"{count:,} x: {reason}") for reason, count in metrics.failures.items()]
    rows += _latency("TTFT", metrics.ttft_ms)
    if metrics.ttft_by_stage_ms:
        parts = (f"{stage} {millis(spent)}" for stage, spent in metrics.ttft_by_stage_ms.items())
        rows.append(("its mean goes to", ", ".join(parts)))
    rows += _latency("TPOT", metrics.tpot_ms) + _latency("E2E", metrics.e2e_ms)
    rows.append(
        (
            "throughput",
            f"{metrics.request_throughput_per_s:.3g} requests/s, {metrics.token_throughput_per_s:,.0f} tokens/s",
        )
    )
    rows.append(
        ("prefix hit rate", f"{100 * metrics.prefix_hit_rate:.1f} % of {metrics.prompt_tokens:,} prompt tokens")
    )
    if metrics.media_items:
        rows.append(("media items", f"{metrics.media_items:,}, processor cache hits {metrics.processor_cache_hits:,}"))
        rows += _payload_rows(metrics.prefill_bytes_by_payload)
    rows.append(("broadcast to TP ranks", nbytes(metrics.broadcast_bytes)))
    rows.append(("the same without strip", nbytes(metrics.broadcast_bytes_unstripped)))
    if metrics.ec_loads:
        rows.append(("embeddings loaded (EC)", f"{metrics.ec_loads:,}, {nbytes(metrics.ec_bytes)}"))
    if metrics.kv_bytes:
        rows.append(("KV handed over", nbytes(metrics.kv_bytes)))
    rows.append(("steps, preemptions", f"{metrics.steps:,}, {metrics.preemptions:,}"))
    rows += [
        ("utilisation " + name, f"{100 * busy / metrics.duration_ms:.1f} %") for name, busy in metrics.busy_ms.items()
    ]
    if metrics.aborted:
        wasted = f"{metrics.wasted_prompt_tokens:,} prompt and {metrics.wasted_output_tokens:,} output tokens"
        rows.append(("wasted on who left", f"{wasted}; {metrics.aborted_waiting:,} had no first token"))
    if metrics.retries:
        rows.append(("legs sent again", f"{metrics.retries:,}"))
        rows += _latency("recovery", metrics.recovery_ms)
    return rows


def latencies_are_of(metrics: RunMetrics) -> str:
    """Which requests the latencies speak of, where they are not all: those that were turned away waited for nothing."""
    others = [f"{count:,} {name}" for name, count in _others(metrics).items() if count]
    if not metrics.completed or not others:
        return ""
    return f"the {metrics.completed:,} of {metrics.injected:,} requests that completed, not of {', '.join(others)}"


def _books(metrics: RunMetrics) -> str:
    parts = {"completed": metrics.completed, **_others(metrics)}
    return f"{metrics.injected:,} = " + " + ".join(f"{count:,} {name}" for name, count in parts.items())


def _others(metrics: RunMetrics) -> Mapping[str, int]:
    """Requests that did not complete, by their fate."""
    left = {"left by their clients": metrics.aborted} if metrics.aborted else {}
    return {"failed": metrics.failed, "refused": metrics.refused, **left, "unfinished": metrics.unfinished}


def _latency(name: str, values: Distribution | None) -> list[tuple[str, str]]:
    if values is None:
        return []
    shown = ", ".join(f"{label} {millis(value)}" for label, value in _quantiles(values).items())
    return [(name, f"{shown} (n {values.count:,})")]


def _quantiles(values: Distribution) -> Mapping[str, float]:
    return {"mean": values.mean, "p50": values.p50, "p90": values.p90, "p99": values.p99, "max": values.max}


def _payload_rows(by_payload: Mapping[str, int]) -> list[tuple[str, str]]:
    labels = {
        "full": "to prefill, full payloads",
        "metadata": "to prefill, metadata only",
        "deferred": "to prefill, raw media deferred",
    }
    return [(label, nbytes(by_payload.get(name, 0))) for name, label in labels.items()]
