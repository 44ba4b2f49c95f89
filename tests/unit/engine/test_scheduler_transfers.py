"""The scheduler with a KV connector, case by case."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import TransferReport
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import KvTransfer, Request
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.loads import EMPTY_HANDED
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.strip import payload_kind

LATER = KvTransfer(loads_async=True)
PICTURE = MediaItem({"pixels": Field(TensorHandle("uint8", (3,)), BatchedKind())})


def scheduler(dialect: Dialect = IDEAL, **settings) -> Scheduler:
    given = {"block_size": 4, "num_gpu_blocks": 18, "max_num_batched_tokens": 64, "max_num_seqs": 4, "kv_role": "both"}
    return Scheduler(SchedulerConfig(**{**given, "kv_load_failure_policy": "recompute", **settings}), dialect)


def request(name: str, length: int, *, start: int = 0, max_tokens: int = 2, **more) -> Request:
    return Request(name, TokenPrompt(range(start, start + length)), max_tokens, **more)


def but_for(*rules: str) -> Dialect:
    return IDEAL.replacing("but for", {rule: named("vllm-0.32").replacements[rule] for rule in rules})


class TestLoadsBetweenSteps:
    def test_a_request_holds_its_blocks_and_waits_and_others_run(self):
        engine = scheduler()
        engine.add_request(request("a", 12, num_remote_tokens=12, kv_transfer=LATER))
        engine.add_request(request("b", 5, start=50))
        plan = engine.schedule()
        assert [(one.request_id, one.start, one.end, one.is_async) for one in plan.kv_loads] == [("a", 0, 12, True)]
        assert plan.num_scheduled_tokens == {"b": 5}
        assert engine.free_blocks == 17 - 3 - 2
        engine.update_from_output(plan)
        assert engine.waiting == ["a"]
        plan = engine.schedule()
        assert plan.num_scheduled_tokens == {"b": 1}
        engine.update_from_output(plan, report=TransferReport(received=["a"]))
        plan = engine.schedule()
        assert plan.num_scheduled_tokens == {"a": 1}
        assert plan.new[0].num_computed_tokens == 11

    @pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
    def test_a_load_that_could_never_begin_is_refused_at_the_door(self, method):
        """LIVE-ADMIT: three blocks for what is loaded, and none left for what a drafter needs next."""
        drafting = {} if method == "none" else {"speculative_method": method, "num_speculative_tokens": 1}
        for blocks, num_remote, is_taken in ((4, 12, True), (3, 12, False), (3, 8, True), (3, 0, True)):
            engine = scheduler(num_gpu_blocks=1 + blocks, max_num_seqs=1, max_model_len=12, **drafting)
            asked = request("a", 11, max_tokens=1, num_remote_tokens=num_remote, kv_transfer=LATER)
            if method != "none" and not is_taken:
                with pytest.raises(InputError, match="that loads 11 tokens"):
                    engine.add_request(asked)
                continue
            engine.add_request(asked)
            plan = engine.schedule()
            assert plan.kv_loads or plan.num_scheduled_tokens, "it begins"

    def test_a_load_leaves_room_for_the_first_decode_with_its_drafts(self):
        """A load of three blocks, and one for a token, three drafts and what the drafter writes with them."""
        drafting = {"speculative_method": "draft_model", "num_speculative_tokens": 3, "block_size": 8}
        for blocks, is_begun in ((4, True), (3, False)):
            engine = scheduler(num_gpu_blocks=1 + blocks, **drafting)
            engine.add_request(request("a", 20, num_remote_tokens=20, kv_transfer=LATER), trusted=True)
            plan = engine.schedule()
            assert [len(one.block_ids) for one in plan.kv_loads] == [3] * is_begun
            engine.update_from_output(plan, report=TransferReport(received=["a"] * is_begun))
            assert dict(engine.schedule().num_scheduled_tokens) == ({"a": 4} if is_begun else {})

    def test_what_came_can_be_found_only_once_it_is_there(self):
        engine = scheduler()
        engine.add_request(request("a", 12, num_remote_tokens=12, kv_transfer=LATER))
        engine.add_request(request("b", 13))
        plan = engine.schedule()
        assert plan.num_scheduled_tokens == {"b": 13}
        engine.update_from_output(plan, report=TransferReport(received=["a"]))
        engine.add_request(request("c", 14))
        assert {new.request_id: new.num_cached_tokens for new in engine.schedule().new} == {"a": 0, "c": 12}

    def test_not_yet_lets_others_overtake(self):
        engine = scheduler()
        engine.add_request(request("a", 8, num_remote_tokens=8, kv_transfer=KvTransfer(num_unready=2)))
        engine.add_request(request("b", 8, start=50))
        scheduled = []
        for _ in range(3):
            plan = engine.schedule()
            scheduled.append(dict(plan.num_scheduled_tokens))
            engine.update_from_output(plan)
        assert scheduled == [{"b": 8}, {"b": 1}, {"a": 1}]

    def test_one_that_is_aborted_keeps_its_blocks_until_its_load_is_over(self):
        engine = scheduler()
        engine.add_request(request("a", 12, num_remote_tokens=12, kv_transfer=LATER))
        plan = engine.schedule()
        engine.finish_requests(["a"])
        assert (engine.free_blocks, engine.num_withheld, engine.has_unfinished) == (14, 1, False)
        with pytest.raises(InputError, match="alive"):
            engine.add_request(request("a", 3))
        assert not engine.reset_prefix_cache(reset_running_requests=True)
        engine.update_from_output(plan, report=TransferReport(received=["a"]))
        assert (engine.free_blocks, engine.num_withheld) == (17, 0)

    def test_without_a_connector_it_is_refused(self):
        engine = scheduler(kv_role="none")
        for transfer in (LATER, KvTransfer(sends=True), KvTransfer(num_unready=1)):
            with pytest.raises(InputError, match="set kv_role"):
                engine.add_request(request("a", 12, num_remote_tokens=12, kv_transfer=transfer))


class TestSends:
    def test_blocks_are_held_until_they_are_sent(self):
        engine = scheduler()
        engine.add_request(request("a", 8, max_tokens=1, kv_transfer=KvTransfer(sends=True)))
        plan = engine.schedule()
        assert engine.update_from_output(plan).finished == ["a"]
        assert (engine.free_blocks, engine.num_withheld) == (15, 1)
        plan = engine.schedule()
        assert (plan.kv_sends, plan.finished) == (["a"], ["a"])
        engine.update_from_output(plan, report=TransferReport(sent=["a"]))
        assert (engine.free_blocks, engine.num_withheld) == (17, 0)

    def test_an_aborted_one_is_not_sent(self):
        engine = scheduler()
        engine.add_request(request("a", 8, kv_transfer=KvTransfer(sends=True)))
        engine.update_from_output(engine.schedule())
        engine.finish_requests(["a"])
        assert (engine.free_blocks, list(engine.schedule().kv_sends)) == (17, [])


class TestStepsUnderWay:
    @pytest.mark.parametrize(("role", "free"), [("producer", 17), ("consumer", 15)])
    def test_a_consumer_gives_blocks_back_when_they_are_done(self, role, free):
        engine = scheduler(kv_role=role, async_scheduling=True)
        engine.add_request(request("a", 8))
        plan = engine.schedule()
        engine.finish_requests(["a"])
        assert engine.free_blocks == free
        clone = engine.clone()
        assert clone.fingerprint() == engine.fingerprint()
        engine.update_from_output(plan)
        assert engine.free_blocks == 17
        assert (clone.free_blocks, clone.fingerprint() == engine.fingerprint()) == (free, role == "producer")


class TestFailures:
    def failed(self, engine: Scheduler, blocks: slice):
        """A request of 12 tokens, all but the last loaded within the step, without some of its blocks."""
        plan = engine.schedule()
        lost = plan.kv_loads[0].block_ids[blocks]
        return engine.update_from_output(plan, report=TransferReport(invalid_blocks=lost))

    def test_recompute_goes_back_behind_the_first_lost_block(self):
        engine = scheduler()
        engine.add_request(request("a", 12, num_remote_tokens=12))
        assert self.failed(engine, slice(1, 2)).new_tokens == {}
        plan = engine.schedule()
        assert (plan.cached[0].num_computed_tokens, plan.num_scheduled_tokens) == (4, {"a": 8})
        assert engine.update_from_output(plan).new_tokens == {"a": 1}

    def test_fail_ends_it_with_the_reason(self):
        engine = scheduler(kv_load_failure_policy="fail")
        engine.add_request(request("a", 12, num_remote_tokens=12))
        assert self.failed(engine, slice(1, 2)).failed == {"a": "its KV cache could not be loaded"}
        assert engine.free_blocks == 17

    @pytest.mark.parametrize("policy", ["recompute", "fail"])
    def test_a_lost_block_is_not_found(self, policy):
        """Nor is what stands behind it; what stands before it is."""
        engine = scheduler(kv_load_failure_policy=policy)
        engine.add_request(request("a", 12, num_remote_tokens=12))
        self.failed(engine, slice(1, 2))
        engine.finish_requests(["a"])
        engine.add_request(request("b", 13))
        assert engine.schedule().new[0].num_cached_tokens == 4

    def test_the_release_leaves_it_findable(self):
        engine = scheduler(but_for("scheduler.unloaded"))
        engine.add_request(request("a", 12, num_remote_tokens=12))
        self.failed(engine, slice(1, 2))
        engine.finish_requests(["a"])
        engine.add_request(request("b", 13))
        assert engine.schedule().new[0].num_cached_tokens == 12

    @pytest.mark.parametrize("runner", ["v1", "v2"])
    @pytest.mark.parametrize(("dialect", "sent"), [(IDEAL, ["full"]), (but_for("strip.uncovered"), [])])
    def test_what_was_stripped_is_sent_again(self, runner, dialect, sent):
        engine = scheduler(dialect, model_runner=runner)
        picture = MediaFeature("image", "x", PlaceholderRange(1, 3), PICTURE)
        engine.add_request(request("a", 12, num_remote_tokens=12, mm_features=(picture,)))
        plan = engine.schedule()
        assert [payload_kind(one.data) for one in plan.new[0].mm_features] == ["none"]
        lost = plan.kv_loads[0].block_ids[:1]
        engine.update_from_output(plan, report=TransferReport(invalid_blocks=lost))
        plan = engine.schedule()
        assert plan.scheduled_encoder_inputs == {"a": [0]}
        assert [payload_kind(one.data) for one in plan.cached[0].mm_updates.values()] == sent

    @pytest.mark.parametrize("dialect", [IDEAL, but_for("scheduler.empty_handed"), but_for("scheduler.reserved")])
    def test_one_that_lost_all_does_not_keep_out_who_holds_blocks(self, dialect):
        engine = scheduler(dialect, scheduler_reserve_full_isl=False)
        engine.add_request(request("a", 40, num_remote_tokens=37, kv_transfer=KvTransfer(True, num_loads=3)))
        engine.add_request(request("b", 32, start=50, num_remote_tokens=5, kv_transfer=LATER))
        plan = engine.schedule()
        assert [one.request_id for one in plan.kv_loads] == ["a", "b"]
        engine.update_from_output(plan, report=TransferReport(received=["a", "b"], failed=["a"]))
        plan = engine.schedule()
        assert list(plan.num_scheduled_tokens) == (["b"] if dialect[EMPTY_HANDED] is EMPTY_HANDED.ideal else [])
