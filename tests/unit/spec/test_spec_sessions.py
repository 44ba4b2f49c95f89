"""SES-EQ on events made by hand, and on sessions with planted bugs: items without key, items in the wrong place, lost tokens."""

from __future__ import annotations

import pytest

from epdsim.core.items import MediaFeature
from epdsim.core.kv.block_keys import RequestKeys
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.sessions import FRONTIER, Frontier
from epdsim.events import EngineStarted, InputQueued, ItemInfo, RequestQueued, SessionItem, SessionSeen
from epdsim.spec import REGISTER, Outcome, judge, properties_of
from epdsim.sut.cases import EngineCase
from epdsim.sut.probe import events_of
from epdsim.sut.schedule_workloads import schedule_workload
from epdsim.sut.systems import reference_of

E = "e0"
GIVEN = [
    EngineStarted(0, E, "by hand", 4, 7, 8, 2, 4, 4, beyond=["sessions"]),
    RequestQueued(0, E, "s", 3, 2, [ItemInfo("image", "x", 1, 2)], [1, 9, 9]),
    InputQueued(1, E, "s", 2, 2, [ItemInfo("image", "y", 0, 1)], [9, 2]),
]
X, Y = SessionItem("x", 1, 2), SessionItem("y", 4, 1)
TOKENS = [1, 9, 9, 7, 9, 2]
"""What was given, and one token of output between."""


@pytest.mark.parametrize(
    ("tokens", "items", "keys", "expected"),
    [
        (TOKENS, [X, Y], ["a", "b"], Outcome.HOLDS),
        (TOKENS[:3], [X], ["a"], Outcome.VIOLATED),
        (TOKENS, [X, Y], ["a", "c"], Outcome.VIOLATED),
        (TOKENS, [X, Y], ["a"], Outcome.VIOLATED),
        (TOKENS, [X, SessionItem("y", 3, 1)], ["a", "b"], Outcome.VIOLATED),
        (TOKENS, [X, SessionItem("z", 4, 1)], ["a", "b"], Outcome.VIOLATED),
        (TOKENS, [X, Y, Y], ["a", "b"], Outcome.VIOLATED),
        ([1, 9, 7, 9, 9, 2], [X, Y], ["a", "b"], Outcome.VIOLATED),
    ],
)
def test_a_session_holds_what_it_was_given_under_the_keys_of_one_request(tokens, items, keys, expected):
    seen = SessionSeen(2, E, "s", tokens, items, keys, ["a", "b"])
    assert judge([*GIVEN, seen], [REGISTER["SES-EQ"]])["SES-EQ"].outcome is expected


def broken(rules=IDEAL, modes=("v1-sessions", "v2-async-sessions"), seeds=range(6)):
    """Violations in sessions of the model."""
    count = 0
    for mode in modes:
        for seed in seeds:
            case = EngineCase(schedule_workload(mode, seed, "0.32.0").workload)
            verdict = judge(events_of(case, reference_of(rules)), properties_of(["SES-EQ"]))["SES-EQ"]
            count += verdict.num_broken
    return count


def test_sessions_of_the_model_are_whole():
    assert broken() == 0


def test_an_item_that_is_forgotten_when_keys_go_on_is_found(monkeypatch):
    """vLLM PR 49448: keys go on from the last item, and an earlier one overlaps the first of their blocks."""
    whole = RequestKeys._go_on

    def from_the_last_item(keys):
        whole(keys)
        keys._next_feature = max(0, len(keys._features) - 1)

    monkeypatch.setattr(RequestKeys, "_go_on", from_the_last_item)
    assert broken(modes=("v1-sessions-mixed",), seeds=range(12)) > 0


def test_items_that_stay_where_their_input_had_them_are_found(monkeypatch):
    """sglang PR 33716: the offsets of a later turn."""
    monkeypatch.setattr(MediaFeature, "moved", lambda feature, _tokens: feature)
    assert broken() > 0


def test_a_turn_that_takes_tokens_of_the_prompt_along_is_found():
    def greedy(num_computed: int, num_tokens: int) -> Frontier:
        return Frontier(min(num_computed, num_tokens - 12), num_tokens - 12)

    assert broken(IDEAL.replacing("planted", {FRONTIER.name: Replacement(greedy, "planted")})) > 0
