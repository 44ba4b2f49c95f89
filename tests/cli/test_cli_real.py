"""`--payload real`: real tensors reach real worker processes, and the verdict does not depend on another host's times."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from epdsim.payload import RealBroadcastReport
from epdsim.scenario.real import RealRun

pytestmark = pytest.mark.xdist_group("shared-memory")

SMALL = Path(__file__).parent / "data/small.yaml"
REQUEST = "{id: r, output_tokens: 1, parts: [{text_tokens: 9}, {modality: image, size: [280, 420]}, {text_tokens: 40}]}"
ONE_PICTURE_TWICE = (
    f"workload={{kind: repeat, times: 2, warmups: 1, requests: [{REQUEST}]}}",
    "runs=[{topology: [together], ranks: [2]}]",
    "claims=[]",
)
SETTINGS = [word for override in ONE_PICTURE_TWICE for word in ("--set", override)]


def test_a_picture_is_broadcast_once_and_stripped_when_it_is_cached(tmp_path):
    command = [sys.executable, "-W", "error", "-c", "from epdsim.cli import main; main()"]
    done = subprocess.run(
        [*command, "run", str(SMALL), "--payload", "real", *SETTINGS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if line[:1] == "│"
    ]
    first, again = rows
    assert first[0] == "topology together, ranks 2"
    assert first[4:6] == again[4:6] == ["equal", "equal"]
    assert int(first[2].replace(",", "")) > 700_000
    assert int(again[2].replace(",", "")) < 2_000, "the grid and the plan alone"
    assert re.search(r"within the spread of repeated runs: \d of 2 plans \(constants of another host;", done.stdout)
    assert done.stdout.splitlines()[-2:] == [
        "holds  every rank holds the sender's tensors in 2 plans",
        "holds  bytes on the wire equal the predicted bytes",
    ]
    assert not list(tmp_path.iterdir())


def test_json_has_every_run_and_claims_without_times(epdsim, monkeypatch):
    def without_processes(scenario, point, seed, record):
        return RealRun(point, RealBroadcastReport(scenario.at(point).fleet.prefill.tp, {"ring": 1.0}, ()))

    monkeypatch.setattr("epdsim.scenario.real_session.run_real_point", without_processes)
    body = json.loads(epdsim("run", "small.yaml", "--payload", "real", "--json", "--seed", "5", *SETTINGS).out)
    assert (body["scenario"], body["seed"], len(body["claims"])) == ("small", 5, 2)
    assert [(run["point"]["ranks"], run["report"]["readers"]) for run in body["runs"]] == [(2, 2)]
