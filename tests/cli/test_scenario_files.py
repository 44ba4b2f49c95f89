"""Every scenario of the repository loads and builds; those of validation and documentation run, and what they claim holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from epdsim.scenario import load_scenario
from epdsim.scenario.runner import build_point

ROOT = Path(__file__).resolve().parents[2]
LONG = {
    "epd-blog": ["workload.num_prompts=20", "goodput.high=4"],
    "kimi-vl": ["workload.num_prompts=16"],
    "text-rates-h100": ["workload.num_requests=20", "fit=null"],
    "text-h100": ["workload.num_requests=20", "fit=null"],
    "data-parallel-encoder": ["workload.num_requests=20"],
}
"""What takes long with its published number of prompts is run with fewer here; its claims are left to `epdsim validate`."""
FILES = sorted([*ROOT.glob("scenarios/**/*.yaml"), *ROOT.glob("docs/**/files/*.yaml")])
OUTSIDE = re.compile(r"\$\{EPDSIM_SHARED:-[./]*shared\}/([^\s,}]+)")


def name_of(path):
    return str(path.relative_to(ROOT))


def test_all_kinds_are_here():
    assert {path.parent.name for path in FILES} >= {"validation", "capacity", "files"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_loads_and_says_where_its_figures_come_from(path):
    spec = load_scenario(path).spec
    assert spec.name == path.stem
    assert spec.title
    if spec.published and path.parent.name != "files":
        assert spec.source
        assert spec.assumptions
    if spec.fit:
        assert len(spec.published) > len(spec.fit.parameters), "some points stay predictions"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_point_of_a_file_builds(path, shared_path):
    for relative in OUTSIDE.findall(path.read_text(encoding="utf-8")):
        shared_path(relative)
    scenario = load_scenario(path)
    assert [build_point(scenario, point, scenario.spec.seed) for point in scenario.points]


@pytest.mark.parametrize("path", [path for path in FILES if path.parent.name != "capacity"], ids=name_of)
def test_claims_hold(epdsim, path):
    shorter = LONG.get(path.stem, [])
    done = epdsim("run", str(path), "--json", *[word for setting in shorter for word in ("--set", setting)])
    assert done.err == ""
    body = json.loads(done.out)
    if not shorter:
        assert done.code == 0
        assert all(claim["holds"] for claim in body["claims"])
    assert all(run["metrics"]["completed"] == run["metrics"]["injected"] > 0 for run in body["runs"])
