"""BurstGPT's traces of ChatGPT and GPT-4 traffic (arXiv 2401.17644; CC-BY 4.0): CSV with seconds and token counts.

Columns (github.com/HPMLL/BurstGPT): `Timestamp` in seconds, `Request tokens`, `Response tokens`, further ones that say nothing
about the load, and in the third file `Session ID`. A response of 0 tokens is a request that failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from epdsim.core.prompt import TokenRun
from epdsim.workload.csv_rows import ZERO_REMEDY, CsvTable, ZeroTokens, settle_zero
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.trace_files import TimedRow, in_order
from epdsim.workload.traces import TraceSpec


class _Row(NamedTuple):
    prompt_tokens: int
    output_tokens: int
    session_id: str


def _timed_rows(path: Path, zero_tokens: ZeroTokens) -> Iterator[TimedRow[_Row]]:
    table = CsvTable(path, "a BurstGPT trace")
    time_column, prompt_column, output_column = table.require(
        "Timestamp", "Request tokens", "Response tokens", example="Timestamp,Model,Request tokens,Response tokens"
    )
    session_column = table.find("Session ID")
    for cells in table.rows():
        try:
            time_s, prompt, output = float(cells[time_column]), int(cells[prompt_column]), int(cells[output_column])
        except ValueError:
            raise table.error(cells, "needs seconds and whole numbers of tokens") from None
        if not math.isfinite(time_s):
            raise table.error(cells, f"has the time {time_s:g}")
        try:
            settled = settle_zero(prompt, output, zero_tokens, ("request", "response"))
        except ValueError as error:
            raise table.error(cells, str(error), ZERO_REMEDY) from error
        if settled:
            session_id = "" if session_column is None else cells[session_column]
            yield time_s * 1e3, table.line, _Row(*settled, session_id)


class BurstGptSpec(TraceSpec):
    """A BurstGPT trace.

    Attributes:
        zero_tokens: What a line of 0 tokens means: a failed request, which is left out.
    """

    kind: Literal["burstgpt-csv"] = "burstgpt-csv"
    zero_tokens: ZeroTokens = "skip"

    def read(self, path: Path, seed: int) -> Iterator[WorkloadRequest]:  # noqa: ARG002 - one signature for all traces
        """The requests of the file; ids are line numbers, every request's text is new."""
        rows = in_order(_timed_rows(path, self.zero_tokens), path, self.reorder_ms)
        for arrival_ms, line, row in self.cut.apply(rows, path, None):
            request_id = f"burstgpt-{line}"
            text = (TokenRun(request_id, 0, row.prompt_tokens),)
            yield WorkloadRequest(request_id, arrival_ms, text, row.output_tokens, row.session_id)

    def statements(self, path: Path) -> list[str]:  # noqa: ARG002 - one signature for all traces
        """What reading the file assumes."""
        failed = {"skip": "left out", "one": "of 1 token", "refuse": "refused"}[self.zero_tokens]
        return [f"the text of every request is new; responses of 0 tokens, which failed, are {failed}"]
