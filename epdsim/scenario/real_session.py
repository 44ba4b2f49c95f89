"""What `epdsim run --payload real` does: broadcast real tensors, print what was sent and how long it took, judge."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from epdsim.cost.profile import load_record
from epdsim.payload import PlanBroadcast, WireBytes
from epdsim.report.table import console, print_table
from epdsim.scenario.claims import Verdict
from epdsim.scenario.points import described
from epdsim.scenario.progress import SweepProgress
from epdsim.scenario.real import RealRun, run_real_point
from epdsim.scenario.session import load, print_verdicts

_COLUMNS = [
    "at",
    "plan",
    "message B",
    "wire B",
    "bytes",
    "digests",
    "profile ms",
    "predicted ms",
    "min / median / max ms",
    "within",
]


def run_real(path: Path, overrides: Sequence[str], profile: Path | None, *, seed: int | None, as_json: bool) -> bool:
    """Run a scenario's broadcasts with real tensors; whether bytes and digests are as they must be.

    Times are judged too when a profile of this host is given: without one the constants are another host's.
    """
    scenario = load(path, overrides, profile)
    record = None if profile is None else load_record(profile)
    chosen = scenario.spec.seed if seed is None else seed
    runs: list[RealRun] = []
    with SweepProgress() as progress:
        progress.expect(len(scenario.points))
        for point in scenario.points:
            runs.append(run_real_point(scenario, point, chosen, record))
            progress.ended()
    plans = [plan for run in runs for plan in run.report.plans]
    verdicts = _verdicts(plans)
    within = sum(plan.is_within_spread for plan in plans)
    told = f"predicted times within the spread of repeated runs: {within} of {len(plans)} plans"
    if record is not None:
        verdicts.append(Verdict(within == len(plans), told))
    if as_json:
        body = {
            "scenario": scenario.spec.name,
            "seed": chosen,
            "runs": [dataclasses.asdict(run) for run in runs],
            "claims": [dataclasses.asdict(verdict) for verdict in verdicts],
        }
        sys.stdout.write(json.dumps(body, indent=2, sort_keys=True) + "\n")
        return all(verdict.holds for verdict in verdicts)
    print_table(f"{scenario.spec.name}: real tensors", _COLUMNS, _rows(runs))
    if record is None:
        console().print(f"{told} (constants of another host; measure yours: epdsim calibrate -o FILE)")
    else:
        _print_drift(runs)
    print_verdicts(verdicts)
    return all(verdict.holds for verdict in verdicts)


def _verdicts(plans: Sequence[PlanBroadcast]) -> list[Verdict]:
    return [
        Verdict(
            all(plan.are_digests_equal for plan in plans),
            f"every rank holds the sender's tensors in {len(plans)} plans",
        ),
        Verdict(all(plan.are_bytes_equal for plan in plans), "bytes on the wire equal the predicted bytes"),
    ]


def _print_drift(runs: Sequence[RealRun]) -> None:
    """How fast the host is now, and how far the profile would have come without that knowledge."""
    for run in runs:
        factors = ", ".join(f"{way} {factor:.2f}" for way, factor in run.report.drift.items())
        console().print(
            f"{described(run.point)}: times now in units of those at calibration: {factors or 'not measured'}"
        )
    plans = [plan for run in runs for plan in run.report.plans]
    within = sum(plan.is_profile_within_spread for plan in plans)
    console().print(f"the profile alone, as of its calibration, is within the spread in {within} of {len(plans)} plans")


def _wire(wire: WireBytes, readers: int) -> str:
    """Bytes in the ring, and through the sockets of all ranks."""
    sockets = f" + {readers} x {wire.socket_bytes_per_reader:,}" if wire.socket_bytes_per_reader else ""
    return f"{wire.ring_bytes:,}{sockets}"


def _rows(runs: Sequence[RealRun]) -> list[list[str]]:
    """A row per plan: bytes predicted and sent, digests, times."""
    rows: list[list[str]] = []
    for run in runs:
        told = described(run.point)
        for index, plan in enumerate(run.report.plans):
            rows.append(
                [
                    told,
                    str(index),
                    f"{plan.size.total_bytes:,}",
                    _wire(plan.predicted_wire, run.report.readers),
                    "equal" if plan.are_bytes_equal else "DIFFERENT",
                    "equal" if plan.are_digests_equal else "DIFFERENT",
                    f"{plan.profile_ms:.2f}",
                    f"{plan.predicted_ms:.2f}",
                    f"{plan.times_ms[0]:.2f} / {plan.median_ms:.2f} / {plan.times_ms[-1]:.2f}",
                    "yes" if plan.is_within_spread else "no",
                ]
            )
    return rows
