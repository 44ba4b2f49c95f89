"""CPU time and peak memory of this simulator and of its peers on the same requests, in one run, as ratios.

    python tests/bench/speed_beside_peers.py --peers FOLDER [--requests 10000 20000 100000] [--rounds 3]
        [--compiled .venv-fast/bin] [--monitors]

The work: text requests, Poisson 20 a second, over four instances, 512 prompt and 128 output tokens each. Each peer that the Python
index has is installed in an environment of its own in FOLDER, and is left out with a reason where that fails. Every measured
command is a process of its own, start-up included; rounds go through all of them in turn, so that a busy host slows all alike, and
ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
SCENARIO = ROOT / "scenarios" / "capacity" / "text-baseline.yaml"
NOTHING = Path(os.devnull)

DYNAMO = """
import sys
from dynamo._core import _normalize_mocker_config, run_mocker_synthetic_trace_replay
run_mocker_synthetic_trace_replay(
    512, 128, int(sys.argv[1]), extra_engine_args=_normalize_mocker_config({}), num_workers=4, request_rate=20,
    capture_planner_details=False,
)
"""

BARE = """
import random, sys, simpy
env, draw = simpy.Environment(), random.Random(1)
queues, wakes = [[] for _ in range(4)], [env.event() for _ in range(4)]

def engine(number):
    running = []
    while True:
        running += [128] * len(queues[number])
        queues[number].clear()
        if not running:
            wakes[number] = env.event()
            yield wakes[number]
            continue
        yield env.timeout(9.0 + 0.05 * len(running))
        running = [left - 1 for left in running if left > 1]

def arrivals():
    for index in range(int(sys.argv[1])):
        yield env.timeout(draw.expovariate(20) * 1000)
        queues[index % 4].append(index)
        if not wakes[index % 4].triggered:
            wakes[index % 4].succeed()

for number in range(4):
    env.process(engine(number))
env.process(arrivals())
env.run()
"""


def tell(line: str, *, aside: bool = False) -> None:
    """Write a line of the table, or aside of it."""
    stream = sys.stderr if aside else sys.stdout
    stream.write(f"{line}\n")
    stream.flush()


@dataclass(frozen=True)
class Contender:
    """One simulator.

    Attributes:
        name: For the table.
        what: What it leaves out, or how it is run.
        requirement: What the Python index calls it; empty for what this environment has.
        command: The command for an environment's `bin` and a number of requests.
    """

    name: str
    what: str
    requirement: str
    command: Callable[[Path, int, Path], Sequence[str]]


def _ours(check: str) -> Callable[[Path, int, Path], Sequence[str]]:
    def command(bin_folder: Path, count: int, _: Path) -> Sequence[str]:
        run = [str(bin_folder / "epdsim"), "run", str(SCENARIO), check, "--json"]
        return [*run, "--set", f"workload.num_requests={count}"]

    return command


def _python(code: str) -> Callable[[Path, int, Path], Sequence[str]]:
    return lambda bin_folder, count, _: [str(bin_folder / "python"), "-c", code, str(count)]


def _fleet_sim(bin_folder: Path, count: int, folder: Path) -> Sequence[str]:
    fleet, lengths = folder / "fleet4.json", folder / "cdf640.json"
    pool = {"id": "p", "gpu": "h100", "n_gpus": 4, "max_ctx": 8192}
    fleet.write_text(json.dumps({"pools": [pool], "router": "length"}))
    lengths.write_text(json.dumps([[639, 0.00001], [640, 1.0]]))  # it takes 80 % of these as prompt
    options = ["--cdf", str(lengths), "--lam", "20", "--n-req", str(count)]
    return [str(bin_folder / "vllm-sr-sim"), "simulate-fleet", str(fleet), *options]


OURS = Contender("epdsim", "as users run it, no monitors", "", _ours("--no-check"))
JUDGED = Contender("epdsim, monitors on", "the same, judged as it goes", "", _ours("--check"))
DYNAMO_MOCKER = Contender(
    "Dynamo mocker 1.6.1", "Rust; offline replay, round robin", "ai-dynamo-runtime==1.6.1", _python(DYNAMO)
)
CONTENDERS = (
    OURS,
    DYNAMO_MOCKER,
    Contender("bare SimPy loop", "steps and nothing else: no cache, no blocks, no figures", "", _python(BARE)),
    Contender("vllm-sr-sim", "whole requests: no steps at all", "vllm-sr-sim==0.1.0.dev20260713123629", _fleet_sim),
)


@dataclass(frozen=True)
class Cost:
    """What one process took: user and system seconds, wall seconds, peak resident megabytes."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def bin_of(contender: Contender, peers: Path) -> Path:
    """The environment of a contender, made where it is not there yet.

    Raises:
        subprocess.CalledProcessError: The index does not have it, or not for this Python.
    """
    if not contender.requirement:
        return Path(sys.executable).parent
    folder = peers / contender.requirement.partition("=")[0]
    if not (folder / "installed").exists():
        venv.create(folder, with_pip=True)
        install = [str(folder / "bin" / "pip"), "install", "-q", contender.requirement]
        subprocess.run(install, check=True, capture_output=True, text=True)
        (folder / "installed").touch()
    return folder / "bin"


def run(command: Sequence[str]) -> Cost:
    """Run a command with its output thrown away.

    Raises:
        RuntimeError: It failed.
    """
    # Compiled modules stand beside their sources, as they do where a package is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    with NOTHING.open("wb") as nothing:
        process = subprocess.Popen(command, stdout=nothing, stderr=nothing, env=environment)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - start, used.ru_maxrss / 1024)


def measure(commands: dict[str, Sequence[str]], rounds: int) -> dict[str, list[Cost]]:
    """All commands in turn, again and again; one that fails is told and left out."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name in list(costs):
            try:
                costs[name].append(run(commands[name]))
            except RuntimeError as error:
                tell(f"left out: {name}: {error}", aside=True)
                del costs[name]
    return costs


def main() -> None:
    """Measure and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder for the environments of peers")
    parser.add_argument("--requests", type=int, nargs="+", default=[10_000, 20_000, 100_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--monitors", action="store_true", help="measure this simulator with monitors too")
    parser.add_argument(
        "--compiled", type=Path, default=ROOT / ".venv-fast" / "bin", help="where the compiled program is, if anywhere"
    )
    options = parser.parse_args()
    options.peers.mkdir(parents=True, exist_ok=True)
    places: dict[str, Path] = {}
    own = [OURS, JUDGED] if options.monitors else [OURS]
    contenders = [*own, *CONTENDERS[1:]]
    for one in contenders:
        try:
            places[one.name] = bin_of(one, options.peers)
        except subprocess.CalledProcessError as error:
            tell(f"left out: {one.name}: {error.stderr.strip().splitlines()[-1]}", aside=True)
    if (options.compiled / "epdsim").exists():
        for one in reversed(own):
            compiled = replace(one, name=f"{one.name}, compiled")
            contenders.insert(len(own), compiled)
            places[compiled.name] = options.compiled
    else:
        tell(f"left out: epdsim, compiled: it is not in {options.compiled}; make compiled makes it", aside=True)
    tell("| Requests | Simulator | CPU s | Wall s | Peak MB | CPU over Dynamo's |\n|---|---|---|---|---|---|")
    ours_s: dict[int, float] = {}
    for count in options.requests:
        commands = {
            one.name: one.command(places[one.name], count, options.peers) for one in contenders if one.name in places
        }
        costs = measure(commands, options.rounds)
        ours_s[count] = median(one.cpu_s for one in costs["epdsim"])
        for name, own in costs.items():
            rounds = zip(own, costs.get(DYNAMO_MOCKER.name, ()), strict=False)
            ratio = median([mine.cpu_s / theirs.cpu_s for mine, theirs in rounds] or [float("nan")])
            cpu_s, wall_s = median(one.cpu_s for one in own), median(one.wall_s for one in own)
            peak_mb = max(one.peak_mb for one in own)
            tell(f"| {count:,} | {name} | {cpu_s:.2f} | {wall_s:.2f} | {peak_mb:.0f} | {ratio:.2f} |")
    for count in options.requests:
        if 2 * count in ours_s:
            tell(f"\ntime({2 * count:,}) / time({count:,}) = {ours_s[2 * count] / ours_s[count]:.2f}")


if __name__ == "__main__":
    main()
