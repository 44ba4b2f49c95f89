"""LIVE-ADMIT: whoever is let in ends, whoever is refused needed too much; a door that is too wide or too narrow is found out."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.admissible import DOOR, check_request
from epdsim.spec import REGISTER, Outcome
from epdsim.sut.systems import reference_of
from epdsim.testing.door import door_cases
from epdsim.testing.hunt import Hunter, drawn

PLAIN = drawn("near the limits", door_cases(), level="engine")
DRAFTING = drawn("near the limits, with drafts", door_cases(drafts=True, both=True), level="engine")


def explored(rules, exploration, budget=120):
    hunter = Hunter(reference_of(rules), budget=budget, properties=[REGISTER["LIVE-ADMIT"], REGISTER["LIVE-PROG"]])
    return hunter.explored(exploration).verdicts


def everybody(_engine, _request, _embeds):
    """A door that refuses nobody."""


def only_small(engine, request, embeds):
    """A door that refuses what needs the last block."""
    check_request(engine, request, embeds)
    if engine.blocks_for(request.prompt.num_tokens + request.max_tokens) >= engine.config.num_gpu_blocks - 1:
        raise InputError("the request", "it is too large for comfort")


@pytest.mark.parametrize("exploration", [PLAIN, DRAFTING], ids=["plain", "drafting"])
def test_nobody_who_is_let_in_stands_still(exploration):
    verdicts = explored(IDEAL, exploration)
    assert verdicts["LIVE-ADMIT"].outcome is Outcome.HOLDS
    assert verdicts["LIVE-PROG"].num_broken == 0


@pytest.mark.parametrize(
    ("door", "says"), [(everybody, "was let in, and needs"), (only_small, "is refused, and needs")]
)
def test_a_wrong_door_is_found_out(door, says):
    planted = IDEAL.replacing("planted", {DOOR.name: Replacement(door, "on purpose")})
    verdict = explored(planted, PLAIN)["LIVE-ADMIT"]
    assert verdict.outcome is Outcome.VIOLATED
    assert says in verdict.first.told
