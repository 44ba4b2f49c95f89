"""The examples of the reference pages run and say what they claim."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import epdsim.wire
from epdsim.core.releases.dialects import DEVIATIONS

REFERENCE = Path(__file__).resolve().parents[3] / "docs/reference"


@pytest.mark.parametrize("page", ["wire.md", "protocol.md"])
def test_the_example_runs(page: str):
    (code,) = re.findall(r"```python\n(.*?)```", (REFERENCE / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "assert" in code
    exec(compile(code, page, "exec"), {})


def test_every_public_name_can_be_imported_and_the_page_names_none_that_cannot():
    for name in epdsim.wire.__all__:
        assert getattr(epdsim.wire, name) is not None
    tables = [
        line for line in (REFERENCE / "wire.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    named = {name for line in tables for name in re.findall(r"`([A-Za-z_]+)(?:`|\()", line.split("|")[1])}
    elsewhere = {"to_tensor", "to_field_data", "from_field_data"}
    assert named - elsewhere <= set(epdsim.wire.__all__), named - elsewhere - set(epdsim.wire.__all__)


def test_the_page_tells_every_rule_that_a_release_replaces():
    page = (REFERENCE / "protocol.md").read_text(encoding="utf-8")
    protocol = [row.rule.name for row in DEVIATIONS if row.rule.name.split(".")[0] in ("slots", "ec_gate", "strip")]
    assert protocol
    for name in protocol:
        assert f"| `{name}` |" in page
