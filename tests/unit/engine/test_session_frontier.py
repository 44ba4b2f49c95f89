"""Where a session goes on whose turn ended with drafts beyond its end, or after a load that failed."""

from __future__ import annotations

import pytest

from epdsim.core.plan import TransferReport
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import KvTransfer, Request, StreamingUpdate
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler

RELEASE = named("vllm-0.32")
BOTH = pytest.mark.parametrize(("dialect", "is_ideal"), [(IDEAL, True), (RELEASE, False)], ids=["ideal", "release"])


def scheduler(dialect: Dialect, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 33,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


@BOTH
def test_an_input_is_computed_from_its_first_token_whatever_drafts_were_right(dialect: Dialect, is_ideal: bool) -> None:
    """Of three right drafts two are beyond the end of the turn; the release takes them for the next input's first tokens."""
    engine = scheduler(dialect, speculative_method="ngram", num_speculative_tokens=3)
    engine.add_request(Request("s", TokenPrompt([7] * 6), 3, resumable=True))
    engine.update_from_output(engine.schedule())
    engine.update_draft_tokens({"s": 3})
    plan = engine.schedule()
    outcome = engine.update_from_output(plan, {"s": [1, 2, 3, 4]})
    assert (dict(outcome.new_tokens), list(outcome.turned)) == ({"s": 2}, ["s"])
    engine.update_draft_tokens({"s": 3})
    engine.add_update(StreamingUpdate("s", TokenPrompt([8] * 5), 2))
    plan = engine.schedule()
    assert plan.new[0].num_computed_tokens == (8 if is_ideal else 10)  # of 6 and the first two of three output tokens
    assert dict(plan.num_scheduled_tokens) == ({"s": 5} if is_ideal else {"s": 4})
    assert not plan.num_scheduled_spec_tokens


@pytest.mark.parametrize("dialect", [IDEAL, RELEASE])
def test_with_async_scheduling_drafts_of_a_turn_that_is_over_leave_nothing(dialect: Dialect) -> None:
    engine = scheduler(dialect, speculative_method="draft_model", num_speculative_tokens=2, async_scheduling=True)
    engine.add_request(Request("s", TokenPrompt([7] * 6), 3, resumable=True))
    first = engine.schedule()
    second = engine.schedule()
    engine.update_from_output(first, {"s": [1]})
    third = engine.schedule()
    assert list(engine.update_from_output(second, {"s": [1, 2, 3]}).turned) == ["s"]
    engine.add_update(StreamingUpdate("s", TokenPrompt([8] * 5), 2))
    assert not engine.update_from_output(third, {"s": [4]}).new_tokens
    plan = engine.schedule()
    assert (plan.new[0].num_computed_tokens, dict(plan.num_scheduled_tokens)) == (8, {"s": 5})


@BOTH
def test_a_turn_that_ends_after_a_load_failed_keeps_its_tokens(dialect: Dialect, is_ideal: bool) -> None:
    """The load of the first block fails while the step behind it is under way, which ends the turn in the release."""
    settings = {"kv_role": "consumer", "kv_load_failure_policy": "recompute", "async_scheduling": True}
    engine = scheduler(dialect, max_num_batched_tokens=8, **settings)
    tokens = TokenPrompt(range(20, 36))
    engine.add_request(
        Request("s", tokens, 1, resumable=True, num_remote_tokens=4, kv_transfer=KvTransfer(num_loads=1))
    )
    engine.add_update(StreamingUpdate("s", TokenPrompt([8] * 5), 3))
    first, second = engine.schedule(), engine.schedule()
    assert [dict(plan.num_scheduled_tokens) for plan in (first, second)] == [{"s": 8}, {"s": 4}]
    (load,) = first.kv_loads
    engine.update_from_output(first, {}, report=TransferReport(invalid_blocks=list(load.block_ids)))
    third = engine.schedule()
    outcome = engine.update_from_output(second, {"s": [1]})
    assert list(outcome.turned) == ([] if is_ideal else ["s"])
    engine.update_from_output(third)
    lengths = []
    while engine.has_unfinished and len(lengths) < 9:
        plan = engine.schedule()
        lengths += plan.num_scheduled_tokens.values()
        engine.update_from_output(plan)
    computed = sum(third.num_scheduled_tokens.values()) + sum(lengths)
    # Sixteen of the prompt, five of the input, and two of its three output tokens; the release has lost tokens of the prompt.
    assert (computed == 16 + 5 + 2) is is_ideal
