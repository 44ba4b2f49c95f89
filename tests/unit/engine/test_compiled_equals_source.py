"""What is compiled does what its source does: the same schedules, the same figures and events to the byte."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from simulator_laws import PUSH, steady_file

import epdsim.core.scheduler.scheduler as module

ROOT = Path(__file__).parents[3]
RECORDED = ROOT / "tests" / "known_answers" / "schedules-vllm-0.32.0.jsonl.gz"
TEXT = ROOT / "scenarios" / "capacity" / "text-baseline.yaml"
IMAGES = ROOT / "scenarios" / "validation" / "cached-images.yaml"
PROGRAM = "import epdsim.core.scheduler.scheduler as s, sys; print(s.__file__, file=sys.stderr); import epdsim.cli as c; c.main()"

pytestmark = pytest.mark.skipif(
    module.__file__.endswith(".py"), reason="the package installed here is not compiled: make compiled"
)


def outputs(folder: Path, source: Path | None, *words: str) -> tuple[str, tuple[int, bytes]]:
    """Which file the scheduler came from, and how the program ended and what it printed; as installed, or of a source tree."""
    environment = {"PYTHONPATH": str(source)} if source else {}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.stdout, done.stderr.decode()
    return done.stderr.decode().splitlines()[0], (done.returncode, done.stdout)


STAGES_APART = {
    "a store": steady_file(),
    "pushed": steady_file(**PUSH),
    "prefill that decodes": steady_file("e+pd", router="media_affinity"),
    "decode alone": steady_file("p+d"),
}


@pytest.mark.parametrize("name", STAGES_APART)
def test_fleets_of_stages_apart_say_the_same(name: str, tmp_path: Path) -> None:
    file = tmp_path / "steady.yaml"
    file.write_text(json.dumps({**STAGES_APART[name], "slo": {"ttft_ms.p99": 400.0}}))
    (_, compiled), (_, source) = (outputs(tmp_path, tree, "run", str(file), "--json") for tree in (None, ROOT))
    assert compiled == source


@pytest.mark.parametrize(
    "words",
    [
        ("run", str(IMAGES), "--json"),
        ("run", str(TEXT), "--json", "--set", "workload.num_requests=300", "--events"),
        (
            "run",
            str(TEXT),
            "--json",
            "--set",
            "workload.num_requests=600",
            "--set",
            "fleet.prefill.scheduler.num_gpu_blocks=200",
        ),
        (
            "run",
            str(TEXT),
            "--json",
            "--set",
            "workload.num_requests=200",
            "--set",
            "faults.losses=[{instance: engine-0, at_ms: 2000, back_ms: 3000}]",
        ),
        ("replay", str(RECORDED)),
    ],
    ids=["images", "events", "preemptions", "losses", "recorded schedules"],
)
def test_compiled_and_source_say_the_same(words: tuple[str, ...], tmp_path: Path) -> None:
    written = []
    for source in (None, ROOT):
        events = tmp_path / "events.ndjson"
        given = (*words, str(events)) if words[-1] == "--events" else words
        loaded, printed = outputs(tmp_path, source, *given)
        assert loaded.endswith(".py") == (source is not None)
        written.append((printed, events.read_bytes() if events.exists() else b""))
    assert written[0] == written[1]
