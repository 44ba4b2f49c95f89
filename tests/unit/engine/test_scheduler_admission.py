"""Who is admitted when, with which chunk, which blocks and which part of the prompt known."""

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.kv.blocks import HIT_LIMIT
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler


def scheduler(dialect=IDEAL, **settings) -> Scheduler:
    defaults = {
        "block_size": 4,
        "num_gpu_blocks": 33,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": 128,
    }
    return Scheduler(SchedulerConfig(**defaults | settings), dialect)


class TestBudgets:
    def test_running_requests_come_first_then_arrivals_in_order(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 8, 5))
        engine.update_from_output(engine.schedule())
        for name in "bc":
            engine.add_request(text(name, 8))
        plan = engine.schedule()
        assert list(plan.num_scheduled_tokens.items()) == [("a", 1), ("b", 8), ("c", 7)]
        assert plan.samples == ["a", "b"]

    def test_a_prompt_longer_than_the_budget_is_computed_in_chunks(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("a", 40, 2))
        plans = run(engine)
        assert [plan.num_scheduled_tokens["a"] for plan in plans] == [16, 16, 8, 1]
        assert [row.num_computed_tokens for plan in plans for row in plan.cached] == [16, 32, 40]
        assert [len(plan.samples) for plan in plans] == [0, 0, 1, 1]

    def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget(self, text) -> None:
        engine = scheduler(enable_chunked_prefill=False)
        engine.add_request(text("a", 10, 1))
        engine.add_request(text("b", 10, 1))
        assert dict(engine.schedule().num_scheduled_tokens) == {"a": 10}

    def test_no_more_run_than_max_num_seqs(self, text) -> None:
        engine = scheduler(max_num_seqs=2)
        for name in "abc":
            engine.add_request(text(name, 2, 3))
        engine.schedule()
        assert (engine.running, engine.waiting) == (["a", "b"], ["c"])

    def test_priority_orders_by_priority_then_arrival_then_id(self, text) -> None:
        engine = scheduler(policy="priority", max_num_seqs=1)
        engine.add_request(text("late", 2, priority=0, arrival_time=9.0))
        engine.add_request(text("rude", 2, priority=1, arrival_time=0.0))
        engine.add_request(text("b", 2, priority=0, arrival_time=1.0))
        engine.add_request(text("a", 2, priority=0, arrival_time=1.0))
        assert engine.waiting == ["a", "b", "late", "rude"]
        assert list(engine.schedule().num_scheduled_tokens) == ["a"]


class TestLongPrefill:
    def test_the_threshold_binds_among_others_only(self, text) -> None:
        engine = scheduler(long_prefill_token_threshold=3)
        engine.add_request(text("a", 40))
        assert dict(engine.schedule().num_scheduled_tokens) == {"a": 16}
        engine.add_request(text("b", 40))
        assert dict(engine.schedule().num_scheduled_tokens) == {"a": 3, "b": 3}

    def test_up_to_0_30_it_always_binds(self, text) -> None:
        engine = scheduler(named("vllm-0.30"), long_prefill_token_threshold=3)
        engine.add_request(text("a", 40))
        assert dict(engine.schedule().num_scheduled_tokens) == {"a": 3}


class TestPrefixHits:
    def test_a_known_prefix_is_not_computed_again(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("a", 10, content="same"))
        run(engine)
        engine.add_request(text("b", 14, content="same"))
        (new,) = engine.schedule().new
        assert (new.num_computed_tokens, new.num_cached_tokens) == (8, 8)
        assert list(new.block_ids[:2]) == [1, 2]

    def test_a_prefix_is_known_as_soon_as_it_is_scheduled(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 9, content="same"))
        engine.add_request(text("b", 9, content="same"))
        plan = engine.schedule()
        assert [new.num_cached_tokens for new in plan.new] == [0, 8]
        assert list(plan.new[0].block_ids[:2]) == list(plan.new[1].block_ids[:2])

    @pytest.mark.parametrize(("length", "hit"), [(7, 4), (8, 4), (9, 8)])
    def test_a_full_hit_backs_off_to_the_last_block(self, text, run, length: int, hit: int) -> None:
        engine = scheduler()
        engine.add_request(text("a", 16, content="same"))
        run(engine)
        engine.add_request(text("b", length, content="same"))
        (new,) = engine.schedule().new
        assert new.num_computed_tokens == hit

    def test_a_hit_up_to_the_end_would_leave_nothing_to_sample_from(self, text, run) -> None:
        greedy = IDEAL.replacing("greedy", {HIT_LIMIT.name: Replacement(lambda num_tokens: num_tokens, "no back-off")})
        engine = scheduler(greedy)
        engine.add_request(text("a", 8, content="same"))
        run(engine)
        engine.add_request(text("b", 8, content="same"))
        assert not engine.schedule().num_scheduled_tokens

    def test_a_resumed_request_backs_off_as_well(self, text, run) -> None:
        """Keys of its outputs are known when it is looked up; the block that holds its last known token is computed again."""
        engine = scheduler(num_gpu_blocks=6, max_num_seqs=2)
        engine.add_request(text("a", 8, 9))
        engine.add_request(text("b", 4, 13))
        resumed = [row for plan in run(engine) for row in plan.cached if row.resumed]
        assert [row.request_id for row in resumed] == ["b"]
        assert resumed[0].num_computed_tokens == 4

    def test_without_caching_nothing_is_found(self, text, run) -> None:
        engine = scheduler(enable_prefix_caching=False)
        engine.add_request(text("a", 12, content="same"))
        run(engine)
        engine.add_request(text("b", 12, content="same"))
        assert engine.schedule().new[0].num_computed_tokens == 0

    def test_a_later_turn_finds_prompt_and_output(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("turn-1", 6, 7))
        run(engine)
        prompt = RunPrompt([TokenRun("turn-1", 0, 6), TokenRun(("output", "turn-1"), 0, 7), TokenRun("more", 0, 4)])
        engine.add_request(Request("turn-2", prompt, 1))
        # 12 tokens were computed: the last of the 7 output tokens never is.
        assert engine.schedule().new[0].num_cached_tokens == 12

    def test_reset_needs_an_idle_pool(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("a", 8, 2, content="same"))
        engine.update_from_output(engine.schedule())
        assert not engine.reset_prefix_cache()
        run(engine)
        assert engine.reset_prefix_cache()
        engine.add_request(text("b", 8, content="same"))
        assert engine.schedule().new[0].num_cached_tokens == 0


class TestRemoteTokens:
    def test_handed_over_tokens_count_as_computed(self, text) -> None:
        engine = scheduler()
        engine.add_request(text("a", 30, 3, num_remote_tokens=30))
        plan = engine.schedule()
        assert (plan.new[0].num_computed_tokens, plan.new[0].num_cached_tokens) == (29, 0)
        assert dict(plan.num_scheduled_tokens) == {"a": 1}
        assert plan.samples == ["a"]
        assert len(plan.new[0].block_ids) == 8

    def test_they_serve_later_requests(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("a", 30, 3, num_remote_tokens=30, content="same"))
        run(engine)
        engine.add_request(text("b", 30, content="same"))
        assert engine.schedule().new[0].num_cached_tokens == 28

    def test_a_local_hit_beyond_them_wins(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("a", 30, 3, content="same"))
        run(engine)
        engine.add_request(text("b", 30, content="same", num_remote_tokens=9))
        assert engine.schedule().new[0].num_computed_tokens == 28

    def test_after_a_preemption_they_are_gone(self, text, run) -> None:
        engine = scheduler(num_gpu_blocks=6, max_num_seqs=2, enable_prefix_caching=False)
        engine.add_request(text("a", 8, 9))
        engine.add_request(text("b", 4, 13, num_remote_tokens=4))
        resumed = [row for plan in run(engine) for row in plan.cached if row.resumed]
        assert [row.num_computed_tokens for row in resumed] == [0]


class TestReservation:
    @pytest.mark.parametrize(("reserves", "admitted"), [(True, ["a"]), (False, ["a", "b"])])
    def test_full_sequence_reservation_looks_beyond_the_chunk(self, text, reserves: bool, admitted: list[str]) -> None:
        engine = scheduler(num_gpu_blocks=9, scheduler_reserve_full_isl=reserves, max_num_batched_tokens=12)
        engine.add_request(text("a", 8, 2))
        engine.add_request(text("b", 28, 1))
        engine.schedule()
        assert engine.running == admitted

    def test_found_blocks_that_are_free_count_against_the_free_ones(self, text, run) -> None:
        """8 free blocks of which 4 hold the prefix do not hold a prompt of 9 blocks, though 5 are missing."""
        engine = scheduler(num_gpu_blocks=10, max_num_batched_tokens=64)
        engine.add_request(text("old", 16, content="same"))
        run(engine)
        engine.add_request(text("busy", 3, 20))
        engine.update_from_output(engine.schedule())
        engine.add_request(text("new", 35, content="same"))
        engine.schedule()
        assert engine.running == ["busy"]

    def test_a_request_that_does_not_fit_keeps_its_place_and_those_behind_it_wait(self, text) -> None:
        engine = scheduler(num_gpu_blocks=9)
        engine.add_request(text("a", 16, 2))
        engine.add_request(text("big", 24, 1))
        engine.add_request(text("small", 2, 1))
        engine.schedule()
        assert (engine.running, engine.waiting) == (["a"], ["big", "small"])

    def test_a_blocked_request_sees_what_becomes_known_and_what_is_lost(self, text, run) -> None:
        """What was found for it is kept between steps, but only as long as it is true."""
        engine = scheduler(num_gpu_blocks=10, max_num_seqs=3, max_num_batched_tokens=64)
        engine.add_request(text("first", 16, 2, content="same"))
        engine.add_request(text("busy", 8, 9))
        run(engine, limit=1)
        engine.add_request(text("next", 28, 1, content="same"))
        hits = [plan.new[0].num_cached_tokens for plan in run(engine) if plan.new]
        assert hits == [16]


class TestRefusal:
    """LIVE-ADMIT: a request is accepted only if some schedule can finish it."""

    @pytest.mark.parametrize(
        ("settings", "length", "max_tokens", "says"),
        [
            ({"max_model_len": 20}, 16, 5, "max_model_len is 20"),
            ({"num_gpu_blocks": 5}, 16, 2, "4 blocks of 4"),
            ({}, 0, 2, "at least one prompt token"),
            ({}, 2, 0, "one output token"),
        ],
    )
    def test_what_can_never_run_is_refused(self, text, settings, length: int, max_tokens: int, says: str) -> None:
        engine = scheduler(**settings)
        with pytest.raises(InputError, match=says):
            engine.add_request(text("a", length, max_tokens))
        assert not engine.has_unfinished

    def test_what_just_fits_runs(self, text, run) -> None:
        """The last output token is never computed, so 17 tokens need 16 slots."""
        engine = scheduler(num_gpu_blocks=5, max_model_len=17)
        engine.add_request(text("a", 16, 1))
        assert len(run(engine)) == 1

    def test_an_item_larger_than_the_encoder_cache_is_refused(self, image) -> None:
        engine = scheduler(encoder_cache_size=5)
        with pytest.raises(InputError, match="6 embeddings"):
            engine.add_request(Request("a", TokenPrompt([1] * 8), 1, (image("x", 0, 6),)))
        engine.add_request(Request("b", TokenPrompt([1] * 8), 1, (image("x", 0, 6, [1, 1, 0, 1, 1, 1]),)))

    @pytest.mark.parametrize("limit", [{}, {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 19}])
    def test_an_item_that_must_not_be_split_and_exceeds_a_step_is_refused(self, limit) -> None:
        """A threshold that binds only among others counts too: two such requests would wait for each other to end."""
        item = MediaFeature("image", "x", PlaceholderRange(1, 20))
        engine = scheduler(disable_chunked_mm_input=True, **limit)
        with pytest.raises(InputError, match="items are not split"):
            engine.add_request(Request("a", TokenPrompt([1] * 24), 1, (item,)))
        scheduler(named("vllm-0.32"), disable_chunked_mm_input=True).add_request(
            Request("a", TokenPrompt([1] * 24), 1, (item,))
        )

    def test_an_id_is_used_once_at_a_time(self, text, run) -> None:
        engine = scheduler()
        engine.add_request(text("a", 4))
        with pytest.raises(InputError, match="alive"):
            engine.add_request(text("a", 4))
        run(engine)
        engine.add_request(text("a", 4))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("policy", "lottery"),
        ("model_runner", "v3"),
        ("strip", "always"),
        ("ec_role", "proxy"),
        ("block_size", 0),
        ("num_gpu_blocks", 1),
        ("max_num_seqs", 0),
        ("encoder_cache_size", -1),
        ("max_num_batched_tokens", 3),
    ],
)
def test_wrong_settings_are_refused_by_name(setting: str, value: object) -> None:
    with pytest.raises(InputError, match=setting):
        SchedulerConfig(**{"max_num_seqs": 4, setting: value})
