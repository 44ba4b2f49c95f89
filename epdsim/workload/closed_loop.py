"""Any other workload with so many requests in flight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from epdsim.workload.registry import OpenSpec
from epdsim.workload.specs import PositiveInt, SpecModel
from epdsim.workload.workload import Workload


class ClosedLoopSpec(SpecModel):
    """Any other workload as a closed loop: its order and its prompts, and its arrival times only where asked for.

    Attributes:
        concurrency: Requests in flight.
        keeps_arrivals: Send none before its arrival time: the concurrency is the most that are in flight. One that has to wait for
            its turn counts as arrived when it is sent.
        requests: Where the requests come from.
    """

    kind: Literal["closed-loop"] = "closed-loop"
    concurrency: PositiveInt
    keeps_arrivals: bool = False
    requests: OpenSpec

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload, with its concurrency set."""
        inner = self.requests.build(base_dir, seed)
        arrivals = (
            "none sent before its arrival time" if self.keeps_arrivals else "arrival times of the source not used"
        )
        told = f"{inner.assumptions}; closed loop of {self.concurrency}, {arrivals}".removeprefix("; ")
        return replace(inner, concurrency=self.concurrency, keeps_arrivals=self.keeps_arrivals, assumptions=told)
