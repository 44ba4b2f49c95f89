"""Names of dialects that are the ideal with chosen rules of a release."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.releases.dialects import named
from epdsim.sut.systems import reference


def test_one_rule_of_a_release_or_several():
    release, one = named("vllm-0.32"), named("vllm-0.32.0:scheduler.victim+strip.resumed")
    assert one.name == "vllm-0.32:scheduler.victim+strip.resumed"
    assert dict(one.replacements) == {
        rule: release.replacements[rule] for rule in ("scheduler.victim", "strip.resumed")
    }
    assert named(one.name).replacements.keys() == one.replacements.keys()
    assert reference("vllm-0.28:strip.admitted").release == "0.28.0"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("vllm-0.32:strip.covered", "vllm-0.32 does not decide it otherwise; it does so with ec_gate"),
        ("vllm-9:strip.resumed", "the names are ideal"),
        ("vllm-0.32:strip.resumed+", "rule ''"),
    ],
)
def test_others_are_refused(name, says):
    with pytest.raises(InputError, match=says):
        named(name)
