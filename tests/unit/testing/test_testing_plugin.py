"""The pytest plugin as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

HELD = """
from epdsim.testing.hunt import drawn
from epdsim.testing.strategies import render_cases
import pytest

PROMPTS = drawn("prompts", render_cases(max_items=3), level="protocol")

@pytest.mark.parametrize("name", ["SLOT-RT", "SLOT-ACCEPT", "SLOT-FALLBACK"])
def test_slots(epd, name):
    epd(name, PROMPTS)
"""


@pytest.fixture
def run(pytester):
    """Runs the file above in a process of its own."""
    pytester.makepyfile(test_mine=HELD)

    def go(*words):
        return pytester.runpytest_subprocess("-p", "epdsim.testing.plugin", "-p", "no:cacheprovider", "-q", *words)

    return go


def test_verdicts_stories_and_report(run, pytester):
    result = run("--epd-dialect", "vllm-0.32", "--epd-budget", "40", "--epd-seed", "3", "--epd-report", "verdicts.json")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*SLOT-ACCEPT: Whatever render emits*",
            "*1. a prompt is rendered:*",
            "*found in reference vllm-0.32, seed 3; again, in this folder and environment: epdsim replay slot-accept-*",
            "*inconclusive: no case reached its premise*",
            "SLOT-ACCEPT * violated * epdsim replay slot-accept-*",
            "SLOT-FALLBACK * inconclusive *",
            "SLOT-RT * holds * premise reached * times",
        ]
    )
    report = json.loads((pytester.path / "verdicts.json").read_text())
    assert (report["dialect"], report["seed"], report["budget"]) == ("vllm-0.32", 3, 40)
    assert {one["id"]: one["outcome"] for one in report["verdicts"]} == {
        "SLOT-ACCEPT": "violated", "SLOT-FALLBACK": "inconclusive", "SLOT-RT": "holds",
    }  # fmt: skip
    failure = next(one["stories"][0]["failure"] for one in report["verdicts"] if one["outcome"] == "violated")
    assert (pytester.path / ".epdsim" / "failures" / failure / "case.json").is_file()


def test_nothing_heavy_is_loaded_before_a_property_is_tested():
    """The plugin loads in every pytest run of the environment."""
    code = (
        "import sys, epdsim.testing.plugin\n"
        "heavy = {'torch', 'simpy', 'hypothesis', 'numpy', 'pydantic', 'epdsim.spec', 'epdsim.sut'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_an_ordinary_run_says_nothing_of_properties(pytester):
    pytester.makepyfile(test_plain="def test_it(): pass")
    result = pytester.runpytest_subprocess("-p", "epdsim.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert "epdsim: properties" not in result.stdout.str()
