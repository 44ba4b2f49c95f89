"""A worker that drafts: what it verifies, proposes and judges."""

from __future__ import annotations

import pytest

from epdsim.core.drafters import DRAFTER_DROP, DRAFTER_WINDOW
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.prompt import TokenPrompt
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.workers.drafts import DraftingWorker
from epdsim.core.workers.worker import undisturbed


class Engine:
    """A scheduler and its worker, step by step."""

    def __init__(self, method: str, num_drafts: int, *, right: int = 256, dialect: Dialect = IDEAL, **settings) -> None:
        defaults = {"block_size": 4, "num_gpu_blocks": 65, "max_num_batched_tokens": 32, "max_num_seqs": 4}
        config = SchedulerConfig(
            speculative_method=method, num_speculative_tokens=num_drafts, **defaults | {"max_model_len": 128} | settings
        )
        self.scheduler, self.worker = Scheduler(config, dialect), DraftingWorker(config, right)
        self.violations: list[str] = []

    def add(self, request: Request) -> None:
        self.worker.add_request(request)
        self.scheduler.add_request(request)

    def step(self):
        plan = self.scheduler.schedule()
        done = self.worker.execute(plan)
        self.violations += [one.property_id for one in done.violations]
        self.scheduler.update_from_output(plan, done.sampled)
        self.scheduler.update_draft_tokens(self.worker.num_drafts)
        return plan

    def run(self) -> int:
        """Steps until nothing is left."""
        steps = 0
        while self.scheduler.has_unfinished and steps < 100:
            self.step()
            steps += 1
        return steps


@pytest.mark.parametrize("method", ["ngram", "draft_model", "eagle", "mtp", "dflash"])
@pytest.mark.parametrize("right", [0, 128, 256])
def test_drafts_change_the_number_of_steps_and_not_the_output(method: str, right: int) -> None:
    request = Request("a", TokenPrompt([3] * 6), 13)
    engine = Engine(method, 3, right=right)
    engine.add(request)
    steps = engine.run()
    assert engine.worker.outputs("a")[:13] == undisturbed(request)
    assert engine.violations == []
    assert engine.worker.num_accepted > 0 if right else steps == 13
    if right == 256 and method != "ngram":
        assert steps == 4  # one token of the prompt's step, then four a step


def test_a_plan_that_counts_wrong_drafts_as_computed_is_seen() -> None:
    engine = Engine("draft_model", 2, right=0)
    engine.add(Request("a", TokenPrompt([3] * 6), 9))
    engine.step()
    plan = engine.scheduler.schedule()
    done = engine.worker.execute(plan)
    engine.scheduler.update_from_output(plan, {"a": [*done.sampled["a"], 1, 1]})
    later = engine.worker.execute(engine.scheduler.schedule())
    assert {one.property_id for one in later.violations} >= {"TOK-CONS"}


def test_slots_that_are_missing_for_the_drafter_are_seen() -> None:
    engine = Engine("draft_model", 3)
    engine.add(Request("a", TokenPrompt([3] * 6), 9))
    plan = engine.scheduler.schedule()
    del plan.new[0].block_ids[2:]
    assert [one.property_id for one in engine.worker.execute(plan).violations] == ["KV-CONS"]


def test_an_item_that_the_drafter_reads_and_nobody_encoded_is_seen() -> None:
    blind = IDEAL.replacing("blind", {DRAFTER_WINDOW.name: Replacement(lambda end, _: end, "a defect")})
    data = MediaItem({"pixels": Field(TensorHandle("uint8", (3,)), BatchedKind())})
    picture = MediaFeature("image", "x", PlaceholderRange(8, 4), data)
    found = []
    for dialect in (IDEAL, blind):
        engine = Engine("eagle", 2, dialect=dialect, max_num_batched_tokens=8)
        engine.add(Request("a", TokenPrompt([7] * 20), 2, (picture,)))
        engine.run()
        found.append(engine.violations)
    assert found == [[], ["DRAFT-HIT"]]


def after(first: str) -> TokenPrompt:
    """Two prompts whose first eight tokens are equal, and whose ninth is not."""
    return TokenPrompt([3] * 8 + [4 if first == "a" else 5] * 4)


def test_a_hit_without_its_last_block_is_of_the_drafter_s_own_making() -> None:
    keeps = IDEAL.replacing("keeps", {DRAFTER_DROP.name: Replacement(lambda blocks, **_: blocks, "a defect")})
    misread = []
    for dialect in (IDEAL, keeps):
        engine = Engine("eagle", 2, dialect=dialect)
        for name in "ab":
            engine.add(Request(name, after(name), 1))
            engine.run()
        misread.append(engine.worker.num_misread)
    assert misread == [0, 1]


def test_blocks_of_equal_keys_may_hold_what_the_drafter_made_of_other_tokens() -> None:
    """Dropping the last block does not help: the first of equal blocks serves a hit, whatever followed it."""
    engine = Engine("eagle", 2)
    for name, prompt in (("a", after("a")), ("b", after("b")), ("again", after("b"))):
        engine.add(Request(name, prompt, 1))
        engine.run()
    assert engine.violations == []
    engine.add(Request("longer", TokenPrompt([*after("b").token_ids, 5, 5, 5, 5, 5]), 1))
    engine.run()
    assert engine.worker.num_misread > 0
