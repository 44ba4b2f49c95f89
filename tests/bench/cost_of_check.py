"""What judging costs: CPU seconds of the same run with monitors and without, by turns in one process.

python tests/bench/cost_of_check.py scenarios/capacity/text-baseline.yaml --rounds 3
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import process_time

from epdsim.scenario import load_scenario, run_point


def main() -> None:
    """Print the seconds of each round and the median of the ratios."""
    parser = argparse.ArgumentParser(description="CPU time of a run with monitors over that without.")
    parser.add_argument("scenario", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    scenario = load_scenario(asked.scenario)
    ratios: list[float] = []
    for number in range(asked.rounds):
        seconds: list[float] = []
        for is_judged in (False, True):
            began = process_time()
            run_point(scenario, scenario.points[0], scenario.spec.seed, is_judged=is_judged)
            seconds.append(process_time() - began)
        ratios.append(seconds[1] / seconds[0])
        print(f"round {number}: {seconds[0]:.2f} s without, {seconds[1]:.2f} s with")  # noqa: T201
    print(f"ratio: {median(ratios):.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
