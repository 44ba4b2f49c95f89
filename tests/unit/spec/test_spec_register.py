"""The register: what must be in it, what each entry says, and the gate over runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.spec import FAMILIES, JUDGED, REGISTER, properties_of, uncovered
from epdsim.spec.property import SYSTEMS

ROOT = Path(__file__).resolve().parents[3]
PACK = ROOT / "properties"


def test_every_property_says_what_and_why():
    for one in REGISTER.values():
        assert one.sentence.endswith("."), one.id
        assert one.why.endswith((".", "!")), one.id
        assert one.monitor is not None or one.stands_as or len(one.not_judged) > 10, one.id
        assert not set(one.exempt) - set(SYSTEMS[one.level]), one.id
        assert all(reason for reason in one.exempt.values())


def test_ids_are_family_and_matter():
    assert all(re.fullmatch(r"[A-Z]+(-[A-Z]+)?", name) for name in REGISTER)
    assert sum(len(group) for _, group in FAMILIES.values()) == len(REGISTER)


def test_every_judged_property_is_in_the_pack():
    """The pack fails where a premise is not reached, so being in it is what covers the system that it runs against."""
    named = {name for file in PACK.glob("test_*.py") for name in re.findall(r'"([A-Z]+-[A-Z]+|ISO)"', file.read_text())}
    assert named == {one.id for one in JUDGED if "reference" in one.systems}


def test_tests_that_stand_for_a_property_are_there_and_name_it():
    standing = [one for one in REGISTER.values() if one.stands_as]
    assert standing
    for one in standing:
        files = {test.partition("::")[0] for test in one.stands_as}
        assert len(one.stands_as) > 1, f"{one.id}: a law, and a planted bug"
        assert any(one.id in (ROOT / file).read_text() for file in files)
        for test in one.stands_as:
            file, _, name = test.partition("::")
            assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_families_and_ids_choose():
    assert [one.id for one in properties_of(["SLOT-KEYS"])] == ["SLOT-KEYS"]
    assert {one.family for one in properties_of(["ECV", "STRIP-AVAIL"])} == {"ECV", "STRIP"}
    with pytest.raises(InputError, match="property 'NO-SUCH': no such property or family"):
        properties_of(["NO-SUCH"])


def test_the_gate_names_what_has_not_run():
    runs = {(one.id, system) for one in JUDGED for system in one.systems}
    assert uncovered(runs, ["reference", "vllm", "recorded", "simulated"]) == []
    missing = uncovered(runs - {("ECV-SAYS", "reference")}, ["reference"])
    assert missing == ["ECV-SAYS claims reference and has not run against it, or without reaching: a refusal"]
    assert uncovered(set(), []) == []


def test_nothing_is_left_unjudged():
    assert [one.id for one in REGISTER.values() if one.monitor is None and not one.stands_as] == []
