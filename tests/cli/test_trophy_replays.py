"""Command lines of the trophy case: each shows the violation by the rule that it names, and without the rule there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epdsim.cli.program import program

PAGE = Path(__file__).parents[2] / "docs" / "trophy-case.md"
LINES = re.findall(
    r"`epdsim check --dialect vllm-0\.32:(\S+) -p (\S+) --modes (\S+) --seeds (\d+:\d+)`",
    PAGE.read_text(encoding="utf-8"),
)


NOT_SHOWN = ("scheduler.unwritten", "KEY-INJ", "v2-async-prio-long-late", "80:81")
"""Not public yet, so that the page has no line that tells its story."""


def outcome(*arguments: str) -> str:
    result = CliRunner().invoke(program(), ["check", *arguments, "--no-stories", "--json"])
    (verdict,) = json.loads(result.output)["verdicts"]
    return verdict["outcome"]


def test_the_page_has_them():
    assert len(LINES) > 6
    assert NOT_SHOWN not in LINES


@pytest.mark.parametrize(("rule", "name", "modes", "seeds"), [*LINES, NOT_SHOWN], ids=lambda one: one)
def test_a_rule_of_the_release_breaks_the_property_and_the_ideal_does_not(rule, name, modes, seeds):
    played = "-p", name, "--modes", modes, "--seeds", seeds
    assert outcome("--dialect", f"vllm-0.32:{rule}", *played) == "violated"
    assert outcome(*played) != "violated"
