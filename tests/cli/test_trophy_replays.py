"""Command lines of the trophy case: each shows the violation by the rule that it names, and without the rule there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epdsim.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "trophy-case.md"
LINES = re.findall(
    r"`epdsim check --dialect vllm-0\.32:(\S+) -p (\S+) --modes (\S+) --seeds (\d+:\d+)`",
    PAGE.read_text(encoding="utf-8"),
)


def outcome(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["check", *arguments, "--no-stories", "--json"])
    (verdict,) = json.loads(result.output)["verdicts"]
    return verdict["outcome"]


def test_the_page_has_them():
    assert len(LINES) > 6


@pytest.mark.parametrize(("rule", "name", "modes", "seeds"), LINES, ids=[one[0] for one in LINES])
def test_a_rule_of_the_release_breaks_the_property_and_the_ideal_does_not(rule, name, modes, seeds):
    played = "-p", name, "--modes", modes, "--seeds", seeds
    assert outcome("--dialect", f"vllm-0.32:{rule}", *played) == "violated"
    assert outcome(*played) != "violated"
