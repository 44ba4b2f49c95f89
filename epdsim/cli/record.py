"""`epdsim record`: write down what a real scheduler decides on random workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from epdsim.cli.live import LiveOption, ModesOption, SeedsOption, mode_names, seed_range


def record(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where the recording goes (.jsonl or .jsonl.gz).", metavar="FILE")
    ],
    seeds: SeedsOption = "0:3",
    modes: ModesOption = None,
    live: LiveOption = "vllm",
) -> None:
    """Record what a real scheduler decides on random workloads.

    Equal seeds give equal bytes.
    """
    from rich.console import Console

    from epdsim.core.files import check_place
    from epdsim.sut.live import live_system, record_live
    from epdsim.sut.schedule_records import write_schedules

    wanted, names = seed_range(seeds), mode_names(modes)
    check_place(output, str(output))  # said before a minute of importing, not after
    with Console(stderr=True).status(f"importing {live}") as status:
        workloads = record_live(
            live_system(live or "vllm"),
            names,
            wanted,
            progress=lambda done, total: status.update(f"workload {done + 1} of {total}"),
        )
        num_workloads, num_steps = write_schedules(output, workloads)
    typer.echo(f"{output}: {num_workloads:,} workloads, {num_steps:,} steps")
