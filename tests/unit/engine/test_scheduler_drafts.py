"""Speculative decoding: drafts that are given, accepted, rejected and lost, and what drafters that read ahead ask for."""

from __future__ import annotations

import pytest

from epdsim.core.drafters import DRAFTER_DROP, DRAFTER_PASSED, METHODS, REJECTED, Drafter, drafter_of
from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler

RELEASE = named("vllm-0.32")


def scheduler(method: str, num_drafts: int, dialect=IDEAL, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 65,
        "max_num_batched_tokens": 32,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    config = SchedulerConfig(speculative_method=method, num_speculative_tokens=num_drafts, **defaults | settings)
    return Scheduler(config, dialect)


def request(name: str, length: int, *features, max_tokens: int = 20, token: int = 7, **fields) -> Request:
    return Request(name, TokenPrompt([token] * length), max_tokens, features, **fields)


def step(engine: Scheduler, yielded: int = 1, drafts: int = 0):
    """A step in which each request yields so many tokens, and gets so many drafts for the next."""
    plan = engine.schedule()
    engine.update_from_output(plan, {name: [1] * yielded for name in plan.samples})
    engine.update_draft_tokens(dict.fromkeys(plan.num_scheduled_tokens, drafts))
    return plan


def state_of(engine: Scheduler, name: str):
    return engine._engine.requests[name]


class TestDrafters:
    """Figures by method: vLLM 0.32's own, with which `epdsim replay --live vllm` compares them."""

    @pytest.mark.parametrize(
        ("method", "parallel", "wanted"),
        [
            ("none", False, Drafter()),
            ("ngram", False, Drafter(3)),
            ("draft_model", False, Drafter(3, 3, 0, 1)),
            ("draft_model", True, Drafter(3, 3, 0, 3)),
            ("eagle", False, Drafter(3, 3, 1, 0, True)),
            ("eagle", True, Drafter(3, 3, 1, 2, True)),
            ("mtp", False, Drafter(3, 3, 3, 0, True)),
            ("dflash", False, Drafter(3, 4, 1, 3, True)),
        ],
    )
    def test_what_a_method_asks_for(self, method: str, parallel: bool, wanted: Drafter) -> None:
        assert drafter_of(method, 3, parallel=parallel, drops_block=True) == wanted
        assert not drafter_of(method, 3, parallel=parallel, drops_block=False).drops_block

    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"speculative_method": "eagle"}, "give both or neither"),
            ({"num_speculative_tokens": 2}, "give both or neither"),
            ({"speculative_method": "guess", "num_speculative_tokens": 2}, f"one of {METHODS[0]}"),
            ({"speculative_method": "ngram", "num_speculative_tokens": 2, "parallel_drafting": True}, "in one pass"),
            ({"speculative_method": "ngram", "num_speculative_tokens": 8, "max_num_batched_tokens": 8}, "room for 8"),
            ({"speculative_method": "dflash", "num_speculative_tokens": 4, "max_num_batched_tokens": 8}, "room for 4"),
            (
                {"speculative_method": "ngram", "num_speculative_tokens": 4, "long_prefill_token_threshold": 4},
                "more than",
            ),
            ({"speculative_method": "mtp", "num_speculative_tokens": 5, "block_size": 4}, "5 tokens ahead"),
        ],
    )
    def test_settings_that_cannot_be(self, settings: dict[str, object], match: str) -> None:
        with pytest.raises(InputError, match=match):
            SchedulerConfig(**{"max_num_batched_tokens": 64, "max_num_seqs": 4} | settings)


class TestDrafts:
    def test_accepted_drafts_are_kept_and_rejected_ones_computed_again(self) -> None:
        engine = scheduler("ngram", 3)
        engine.add_request(request("a", 6))
        first, second = step(engine, drafts=3), step(engine, yielded=2, drafts=3)
        assert dict(first.num_scheduled_spec_tokens) == {}
        assert dict(second.num_scheduled_tokens) == {"a": 4}
        assert dict(second.num_scheduled_spec_tokens) == {"a": 3}
        # 6 of the prompt, the token that was due, one accepted draft: two rejected ones are taken back.
        assert (state_of(engine, "a").num_tokens, state_of(engine, "a").num_computed) == (9, 8)
        assert step(engine).cached[0].num_computed_tokens == 8

    def test_fewer_drafts_and_none_are_given_as_proposed(self) -> None:
        engine = scheduler("ngram", 3)
        engine.add_request(request("a", 6))
        step(engine, drafts=2)
        assert dict(step(engine).num_scheduled_spec_tokens) == {"a": 2}
        plan = step(engine)
        assert (dict(plan.num_scheduled_tokens), dict(plan.num_scheduled_spec_tokens)) == ({"a": 1}, {})

    def test_drafts_for_the_middle_of_a_prompt_count_for_nothing(self) -> None:
        engine = scheduler("ngram", 3, max_num_batched_tokens=4)
        engine.add_request(request("a", 6))
        step(engine, drafts=3)
        assert dict(step(engine).num_scheduled_tokens) == {"a": 2}

    def test_the_budget_cuts_drafts(self) -> None:
        engine = scheduler("ngram", 3, max_num_batched_tokens=7)
        for name in "ab":
            engine.add_request(request(name, 3, token=ord(name)))
        step(engine, drafts=3)
        plan = step(engine)
        assert dict(plan.num_scheduled_tokens) == {"a": 4, "b": 3}
        assert dict(plan.num_scheduled_spec_tokens) == {"a": 3, "b": 2}

    def test_the_end_of_the_model_cuts_drafts(self) -> None:
        engine = scheduler("ngram", 3, max_model_len=9)
        engine.add_request(request("a", 6, max_tokens=3))
        step(engine, drafts=3)
        # One place is left free for the token that the step yields in any case.
        assert dict(step(engine).num_scheduled_spec_tokens) == {"a": 1}

    def test_tokens_past_the_end_of_a_request_are_dropped(self) -> None:
        engine = scheduler("ngram", 3)
        engine.add_request(request("a", 6, max_tokens=2))
        step(engine, drafts=3)
        plan = engine.schedule()
        outcome = engine.update_from_output(plan, {"a": [1, 1, 1, 1]})
        assert (dict(outcome.new_tokens), list(outcome.finished)) == ({"a": 1}, ["a"])
        engine.update_draft_tokens({"a": 3})  # the worker has drafted for one that is gone

    def test_a_block_is_found_only_for_accepted_tokens(self) -> None:
        engine = scheduler("ngram", 3)
        engine.add_request(request("a", 5))
        step(engine, drafts=3)
        step(engine, yielded=1, drafts=3)  # computes tokens 5 to 8, keeps 5
        pool = engine._engine.pool
        assert len(list(pool.keys())) == 1
        step(engine, yielded=1, drafts=0)
        step(engine, yielded=1)
        assert len(list(pool.keys())) == 2

    def test_slots_of_the_drafter_are_taken_off_the_budget(self) -> None:
        engine = scheduler("dflash", 2, max_num_batched_tokens=12)
        for name in "ab":
            engine.add_request(request(name, 4, token=ord(name)))
        assert dict(step(engine).num_scheduled_tokens) == {"a": 4, "b": 4}
        late = scheduler("dflash", 2, max_num_batched_tokens=11)
        for name in "ab":
            late.add_request(request(name, 4, token=ord(name)))
        assert dict(step(late).num_scheduled_tokens) == {"a": 4, "b": 3}

    def test_what_the_drafter_writes_has_slots_up_to_the_end_of_the_model(self) -> None:
        engine = scheduler("draft_model", 3, max_model_len=14)
        engine.add_request(request("a", 6, max_tokens=8))
        assert len(step(engine, drafts=3).new[0].block_ids) == 3  # 6 + 3 tokens
        assert [row.new_block_ids for row in step(engine, yielded=4, drafts=3).cached] == [[4]]  # 10 + 3
        assert [row.new_block_ids for row in step(engine).cached] == [None]  # 13 + 3, but the model ends at 14

    def test_a_request_needs_room_for_its_drafts(self) -> None:
        engine = scheduler("draft_model", 3, num_gpu_blocks=5)
        engine.add_request(request("a", 6, max_tokens=5))  # 10 slots, and 6 for drafts and drafter
        with pytest.raises(InputError, match="the pool has 4 blocks"):
            engine.add_request(request("b", 6, max_tokens=6))

    def test_a_draft_that_is_rejected_in_a_defect_stays_computed(self) -> None:
        keeps = IDEAL.replacing("keeps", {REJECTED.name: Replacement(lambda *_, **__: 0, "a defect")})
        engine = scheduler("ngram", 3, keeps)
        engine.add_request(request("a", 6))
        step(engine, drafts=3)
        step(engine)
        assert state_of(engine, "a").num_computed == 10 > state_of(engine, "a").num_tokens

    def test_preemption_loses_drafts(self) -> None:
        engine = scheduler("ngram", 3, num_gpu_blocks=7, max_num_seqs=2)
        for name in "ab":
            engine.add_request(request(name, 10, max_tokens=8, token=ord(name)))
        step(engine, drafts=3)
        plan = step(engine, drafts=3)
        assert list(plan.preempted) == ["b"]
        assert state_of(engine, "b").num_drafts == 0
        assert dict(plan.num_scheduled_spec_tokens) == {"a": 3}

    def test_many_steps_at_once_are_refused(self) -> None:
        engine = scheduler("ngram", 3)
        engine.add_request(request("a", 6))
        step(engine)
        assert engine.steady_steps() == 0


class TestPadding:
    """An admission with one token left is given the rows of a full decode (vLLM PR 45237)."""

    def knowing(self, **settings) -> Scheduler:
        """An engine that knows the first eight tokens of a prompt of nine, all but its last."""
        engine = scheduler("ngram", 3, **settings)
        engine.add_request(request("first", 9, max_tokens=1))
        step(engine)
        return engine

    def test_rows_are_padded_and_rejected(self) -> None:
        engine = self.knowing()
        engine.add_request(request("again", 9, max_tokens=4))
        plan = step(engine)
        assert (plan.new[0].num_cached_tokens, dict(plan.num_scheduled_tokens)) == (8, {"again": 4})
        assert dict(plan.num_scheduled_spec_tokens) == {"again": 3}
        assert state_of(engine, "again").num_computed == 9

    def test_a_running_prompt_that_goes_on_forbids_it(self) -> None:
        engine = self.knowing()
        engine.add_request(request("long", 50, token=8))
        step(engine)
        engine.add_request(request("again", 9, max_tokens=4))
        assert step(engine).num_scheduled_tokens["again"] == 1

    def test_a_single_new_token_is_not_padded_beside_nobody(self) -> None:
        engine = scheduler("ngram", 3)
        engine.add_request(request("a", 1))
        assert dict(step(engine, drafts=0).num_scheduled_tokens) == {"a": 1}
        engine.add_request(request("b", 1, token=8))
        assert dict(step(engine).num_scheduled_tokens) == {"a": 1, "b": 4}

    def test_an_admission_waits_for_room_for_all_rows(self) -> None:
        engine = self.knowing(max_num_batched_tokens=9)
        for name in ("b", "c"):
            engine.add_request(request(name, 3, token=ord(name)))
        step(engine, drafts=3)
        engine.add_request(request("again", 9, max_tokens=4))
        assert dict(step(engine).num_scheduled_tokens) == {"b": 4, "c": 4}
        assert dict(step(engine).num_scheduled_tokens) == {"b": 1, "c": 1, "again": 4}

    def test_no_room_in_the_model_means_no_padding(self) -> None:
        engine = self.knowing(max_model_len=12)
        engine.add_request(request("short", 9, max_tokens=3))
        assert dict(step(engine).num_scheduled_tokens) == {"short": 1}


class TestAsync:
    def test_all_drafts_are_supposed_and_settled_later(self) -> None:
        engine = scheduler("eagle", 3, async_scheduling=True)
        engine.add_request(request("a", 6))
        prefill, decode = engine.schedule(), engine.schedule()
        assert dict(decode.num_scheduled_spec_tokens) == {"a": 3}
        assert state_of(engine, "a").num_placeholders == 5
        engine.update_from_output(prefill, {"a": [1]})
        following = engine.schedule()
        assert following.cached[0].num_computed_tokens == 10  # as if nothing had been rejected
        engine.update_from_output(decode, {"a": [1, 1]})
        state = state_of(engine, "a")
        assert (state.num_tokens, state.num_computed, state.num_placeholders) == (9, 12, 4)

    def test_rejections_from_before_a_preemption_take_nothing_back(self) -> None:
        engine = scheduler("ngram", 3, async_scheduling=True, num_gpu_blocks=7, max_num_seqs=2)
        for name in "ab":
            engine.add_request(request(name, 8, max_tokens=4, token=ord(name)))
        under_way = [engine.schedule(), engine.schedule()]
        while not under_way[-1].preempted:
            engine.update_from_output(under_way.pop(0), {"a": [1], "b": [1]})
            under_way.append(engine.schedule())
        assert list(under_way[-1].preempted) == ["b"]
        state = state_of(engine, "b")
        assert state.num_stale > 0
        engine.update_from_output(under_way.pop(0), {"a": [1], "b": [1]})
        assert (state.num_computed, state.num_placeholders, state.num_stale) == (0, 0, 0)


class TestReadingAhead:
    def test_a_hit_drops_its_last_block(self) -> None:
        for drops, wanted in ((True, 4), (False, 8)):
            engine = scheduler("eagle", 2, disable_eagle_block_drop=not drops)
            engine.add_request(request("first", 11, max_tokens=1))
            step(engine)
            engine.add_request(request("again", 11))
            assert step(engine).new[0].num_cached_tokens == wanted

    def test_dropping_can_be_replaced(self) -> None:
        keeps = IDEAL.replacing("keeps", {DRAFTER_DROP.name: Replacement(lambda blocks, **_: blocks, "a defect")})
        engine = scheduler("eagle", 2, keeps)
        engine.add_request(request("first", 11, max_tokens=1))
        step(engine)
        engine.add_request(request("again", 11))
        assert step(engine).new[0].num_cached_tokens == 8

    def test_a_chunk_needs_the_item_behind_it(self, image) -> None:
        ahead, plain = (scheduler(method, 2, max_num_batched_tokens=8) for method in ("eagle", "ngram"))
        for engine in (ahead, plain):
            engine.add_request(request("a", 20, image("x", 8, 4)))
        assert [dict(step(ahead).scheduled_encoder_inputs) for _ in range(2)] == [{"a": [0]}, {}]
        assert [dict(step(plain).scheduled_encoder_inputs) for _ in range(2)] == [{}, {"a": [0]}]

    def test_a_chunk_stays_clear_of_an_item_that_cannot_be_encoded(self, image) -> None:
        engine = scheduler("eagle", 2, encoder_cache_size=4)
        engine.add_request(request("a", 20, image("x", 1, 4), image("y", 8, 4)))
        assert [step(engine).num_scheduled_tokens["a"] for _ in range(2)] == [7, 13]

    def test_adjacent_items_that_do_not_fit_together_are_computed_one_by_one(self, image) -> None:
        """LIVE-PROG; in the release the request waits for ever (vLLM issue 47738)."""
        steps = []
        for dialect in (IDEAL, RELEASE):
            engine = scheduler("eagle", 2, dialect, encoder_cache_size=4)
            engine.add_request(request("a", 20, image("x", 1, 4), image("y", 5, 4)))
            steps.append([step(engine).num_scheduled_tokens.get("a", 0) for _ in range(6)])
        assert steps == [[4, 1, 15, 1, 1, 1], [4, 0, 0, 0, 0, 0]]

    def test_an_item_before_one_that_cannot_be_encoded_stays_whole(self, image) -> None:
        """CHUNK-WHOLE; the release cuts into it."""
        chunks = []
        for dialect in (IDEAL, RELEASE):
            engine = scheduler("eagle", 2, dialect, encoder_cache_size=4, disable_chunked_mm_input=True)
            engine.add_request(request("a", 20, image("x", 1, 4), image("y", 5, 4)))
            chunks.append(step(engine).num_scheduled_tokens["a"])
        assert chunks == [5, 4]

    def test_an_entry_is_given_up_when_the_drafter_is_past_it_too(self, image) -> None:
        held = []
        for dialect in (IDEAL, RELEASE):
            engine = scheduler("eagle", 2, dialect, max_num_batched_tokens=5)
            engine.add_request(request("a", 20, image("x", 1, 4)))
            step(engine)
            held.append(len(engine._engine.encoder_cache.held("a")))
        assert held == [0, 1]
        assert DRAFTER_PASSED.name in RELEASE.replacements

    def test_several_modules_leave_no_short_rest(self) -> None:
        engine = scheduler("mtp", 3, max_num_batched_tokens=8)
        engine.add_request(request("a", 10))
        assert [dict(step(engine).num_scheduled_tokens) for _ in range(2)] == [{"a": 7}, {"a": 3}]

    def test_a_rest_for_several_modules_does_not_split_a_whole_item(self, image) -> None:
        """CHUNK-WHOLE: leaving three tokens of ten would end the chunk inside the item."""
        ends = []
        for dialect in (IDEAL, RELEASE):
            engine = scheduler("mtp", 3, dialect, max_num_batched_tokens=9, disable_chunked_mm_input=True)
            engine.add_request(request("a", 10, image("x", 4, 5)))
            ends.append(step(engine).num_scheduled_tokens["a"])
        assert ends == [9, 7]

    def test_a_block_is_found_when_all_modules_have_written_it(self) -> None:
        found = []
        for method in ("eagle", "mtp"):
            engine = scheduler(method, 3)
            engine.add_request(request("a", 9))
            step(engine)
            found.append(len(list(engine._engine.pool.keys())))
        assert found == [2, 1]
