"""The pages that are made from the code have everything that the code has."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from epdsim.core.releases.dialects import DEVIATIONS
from epdsim.events.schema import AnyEvent
from epdsim.report.metrics import RunMetrics
from epdsim.scenario.schema import CostsSpec, FleetSpec, ScenarioSpec
from epdsim.spec import JUDGED, REGISTER

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generated():
    sys.path.insert(0, str(DOCS / "_ext"))
    try:
        import generated_reference

        yield generated_reference
    finally:
        sys.path.remove(str(DOCS / "_ext"))


def first_cells(markdown):
    return re.findall(r"^\| `([^`]+)` \|", markdown, flags=re.MULTILINE)


def test_every_mark_of_a_page_is_made_by_something(generated):
    marks = {
        mark for page in DOCS.glob("*/**/*.md") for mark in re.findall(r"<!-- generated: (.*?) -->", page.read_text())
    }
    assert marks == set(generated.GENERATED)


def test_every_key_of_a_scenario_file_is_there_with_its_meaning(generated):
    page = generated.scenario_file()
    keys = first_cells(page)
    for model in (ScenarioSpec, FleetSpec, CostsSpec):
        assert set(model.model_fields) <= set(keys)
        assert set(model.model_fields) <= set(generated.attributes(model))
    linked, defined = (
        set(re.findall(r"\(#(scenario-\w+)\)", page)),
        re.findall(r"^\((scenario-\w+)\)=", page, re.MULTILINE),
    )
    assert linked <= set(defined)
    assert len(defined) == len(set(defined))


def test_limits_and_choices_are_told(generated):
    page = generated.scenario_file()
    assert "| `hop_ms` | number ≥ 0, ≤ 1,000,000,000,000 | `7.5` |" in page
    assert "| `ec_capacity_gib` | number > 0 | null |" in page
    assert "| `topology` | `aggregated` or `p+d` or `e+pd` or `e+p+d` | `aggregated` |" in page


def test_rules_deviations_events_and_figures_are_complete(generated):
    assert {row.rule.name for row in DEVIATIONS} <= set(first_cells(generated.rules()))
    assert len(first_cells(generated.deviations())) == len(DEVIATIONS)
    events = generated.events()
    for kind in get_args(AnyEvent):
        section = events.split(f"## {kind.__name__}\n")[1].split("\n## ")[0]
        own = {one.name for one in msgspec.structs.fields(kind)} - {"time_ms", "instance"}
        assert set(first_cells(section)) == own
    told = generated.attributes(RunMetrics)
    assert set(RunMetrics.__dataclass_fields__) == set(told)


def test_the_help_of_every_verb_is_there(generated):
    page = generated.cli()
    assert re.findall(r"^## `(.*)`$", page, re.MULTILINE)[:3] == ["epdsim", "epdsim run", "epdsim plan"]
    assert "--events FILE" in page


def test_every_property_has_its_entry(generated):
    page = generated.properties()
    assert re.findall(r"^### (.*)$", page, re.MULTILINE) == list(REGISTER)
    assert page.count("* judged: at level") == len(JUDGED)


def test_indented_examples_of_docstrings_become_code(generated):
    plain = ["What it is.", "", "    code()", "    more()", "", "Args:", "    x: What.", "", "    y: And what."]
    assert generated.mark_code(plain) == [*plain[:2], "::", "", *plain[2:]]


def test_the_trophy_case_names_rules_that_releases_replace():
    page = (DOCS / "trophy-case.md").read_text()
    named = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", page))
    assert len(named) > 30
    assert named <= {row.rule.name for row in DEVIATIONS}
    properties = re.findall(r"^\| ([A-Z]+(?:-[A-Z]+)?(?:, [A-Z]+-[A-Z]+)*) \|", page, re.MULTILINE)
    assert {one for cell in properties for one in cell.split(", ")} <= set(REGISTER)
