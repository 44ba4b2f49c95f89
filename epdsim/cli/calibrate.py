"""`epdsim calibrate`: measure this host's broadcast and write its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the profile goes (JSON).", metavar="FILE")],
    readers: Annotated[
        list[int] | None,
        typer.Option(
            help="Ranks that receive; repeatable, at least two numbers.  [default: 1, 2, 4]", min=1, max=64, metavar="N"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed rounds.", min=3, metavar="N")] = 25,
    chunk_mib: Annotated[int, typer.Option(help="Chunk size of the ring in MiB.", min=1, max=1024, metavar="N")] = 16,
    in_band: Annotated[bool, typer.Option("--in-band", help="Copy data into the message, as vLLM up to 0.25.")] = False,
) -> None:
    """Measure how fast this host broadcasts, and write a profile.

    Plans of many sizes go to worker processes in turn; the constants of the broadcast model are fitted to the medians.
    """
    from rich.console import Console

    from epdsim.core.files import check_place
    from epdsim.cost.profile import save_profile
    from epdsim.payload import RingOptions, calibrate_host
    from epdsim.report.table import millis, nbytes, print_table

    check_place(output, str(output))  # said before minutes of measuring, not after
    with Console(stderr=True).status("starting ranks") as status:
        record = calibrate_host(
            readers or (1, 2, 4),
            repeats,
            RingOptions(chunk_bytes=chunk_mib << 20),
            in_band=in_band,
            progress=lambda done, total: status.update(f"round {done} of {total}"),
        )
    save_profile(output, record)
    rows = [
        [
            str(cell.readers),
            nbytes(cell.message_bytes),
            *map(millis, (cell.min_ms, cell.median_ms, cell.max_ms, cell.predicted_ms)),
            "yes" if cell.is_within_spread else "NO",
        ]
        for cell in record.measured
    ]
    print_table(f"{output}", ["ranks", "message", "min", "median", "max", "fitted", "within"], rows)
