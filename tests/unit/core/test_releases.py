"""Releases by name."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.releases.dialects import DEVIATIONS, named, release_names
from epdsim.core.rules import IDEAL


def test_all_names_are_known_and_carry_a_reason_for_every_difference():
    assert release_names() == ("ideal", *(f"vllm-0.{minor}" for minor in range(25, 34)))
    assert named("ideal") is IDEAL
    for name in release_names()[1:]:
        dialect = named(name)
        assert dialect.name == name
        assert dialect.replacements
        assert all(len(one.why) > 20 for one in dialect.replacements.values())


def test_a_patch_version_means_its_release():
    assert named("vllm-0.32.0").name == "vllm-0.32"
    assert named("vllm-0.32.0").replacements == named("vllm-0.32").replacements


@pytest.mark.parametrize("name", ["vllm-0.24", "vllm-0.34", "vllm-1.0", "0.32", "vllm-0.32rc1", "IDEAL", ""])
def test_an_unknown_name_lists_the_known_ones(name: str):
    with pytest.raises(InputError, match=r"ideal, vllm-0\.25.*vllm-0\.33") as caught:
        named(name)
    assert repr(name) in str(caught.value)


def test_no_release_has_two_behaviours_for_one_rule():
    taken: set[tuple[str, int]] = set()
    for row in DEVIATIONS:
        assert row.first <= row.last
        for minor in range(row.first, row.last + 1):
            assert (row.rule.name, minor) not in taken
            taken.add((row.rule.name, minor))
