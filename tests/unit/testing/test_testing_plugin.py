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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--epd-report", "."), "--epd-report '.': it is a folder"),
        (("--epd-report", "none/r.json"), "--epd-report 'none/r.json': its folder does not exist"),
        (("--epd-sut", "nope"), "system 'nope': the systems are"),
        (("--epd-dialect", "vllm-9"), "dialect 'vllm-9': no such name"),
        (("-o", "epd_budget=abc"), "epd_budget: 'abc' is not int of at least 1"),
        (("--epd-budget", "0"), "'0' is not int of at least 1"),
        (("--epd-budget=-3",), "'-3' is not int of at least 1"),
        (("--epd-seed=-1",), "'-1' is not int of at least 0"),
        (("--epd-seconds", "nan"), "'nan' is not float of at least 0"),
        (("--epd-seconds=-1",), "'-1' is not float of at least 0"),
    ],
)
def test_what_cannot_be_used_is_told_before_any_test(pytester, words, told):
    pytester.makepyfile(test_plain="def test_it(): pass")
    result = pytester.runpytest_inprocess("-p", "epdsim.testing.plugin", "-p", "no:cacheprovider", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = result.stderr.str()
    assert told in said
    assert "Traceback" not in said


def test_an_ordinary_run_says_nothing_of_properties(pytester):
    pytester.makepyfile(test_plain="def test_it(): pass")
    result = pytester.runpytest_subprocess("-p", "epdsim.testing.plugin", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    assert "epdsim: properties" not in result.stdout.str()
