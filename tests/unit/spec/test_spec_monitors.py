"""Each monitor on events made by hand: what holds is held, what is broken is told, what is not reached is inconclusive."""

from __future__ import annotations

import pytest
from verdicts import outcome

from epdsim.events import (
    Admitted,
    CacheReset,
    EngineDied,
    EngineStarted,
    EngineStopped,
    FeaturesStripped,
    FirstToken,
    Gathered,
    ItemInfo,
    PayloadsSent,
    Preempted,
    RequestAborted,
    RequestArrived,
    RequestFailed,
    RequestFinished,
    RequestQueued,
    RequestRefused,
    SpanInfo,
    StepFinished,
    StepPlanned,
    StepYielded,
    StrippedItem,
)
from epdsim.spec import JUDGED, REGISTER, Outcome, judge

E = "e0"
IMAGE = ItemInfo("image", "x", 1, 4, None, has_position_fields=True)


def started(**changes):
    settings = {
        "system": "by hand", "block_size": 4, "num_gpu_blocks": 7, "max_num_batched_tokens": 8, "max_num_seqs": 2,
        "encoder_cache_size": 4, "max_num_encoder_input_tokens": 4,
    } | changes  # fmt: skip
    return EngineStarted(0, E, **settings)


def queued(name="a", tokens=6, items=(IMAGE,), max_tokens=2, ids=(), at=0):
    return RequestQueued(at, E, name, tokens, max_tokens, items, ids or [1] * tokens)


def admitted(name="a", computed=0, payloads=("full",), *, resumed=False, blocks=(1, 2), at=0):
    return Admitted(at, E, name, 6, computed, 0, payloads, resumed, blocks)


def planned(step=0, scheduled=None, computed=None, **more):
    scheduled = {"a": 6} if scheduled is None else scheduled
    computed = dict.fromkeys(scheduled, 0) if computed is None else computed
    return StepPlanned(step, E, step, scheduled, num_computed_tokens=computed, **more)


def yielded(step=0, tokens=None, running=("a",), waiting=(), free=4):
    return StepYielded(step, E, step, tokens or {}, running, waiting, free)


def told(name, *events):
    first = judge(events, [REGISTER[name]])[name].first
    assert first is not None
    return first.told


LOST = (
    started(),
    queued(),
    admitted(computed=5, payloads=("none",)),
    Preempted(1, E, "a"),
    admitted(computed=0, payloads=(), resumed=True, at=2),
)
"""An item is stripped, and its request resumes with nothing computed."""


class TestStrip:
    def test_a_run_of_the_encoder_on_what_was_never_sent_is_a_violation(self):
        run = planned(2, scheduled_encoder_inputs={"a": [0]})
        assert outcome("STRIP-AVAIL", *LOST, run) is Outcome.VIOLATED
        assert told("STRIP-AVAIL", *LOST, run) == ("step 2 is to encode x for a, and of it the workers hold nothing")

    def test_what_is_sent_again_is_held(self):
        run = planned(2, scheduled_encoder_inputs={"a": [0]})
        assert outcome("STRIP-AVAIL", *LOST, PayloadsSent(2, E, "a", {0: "full"}), run) is Outcome.HOLDS
        anew = admitted(computed=0, payloads=("full",), resumed=True, at=2)
        assert outcome("STRIP-AVAIL", *LOST[:-1], anew, run) is Outcome.HOLDS

    def test_without_a_regretted_strip_nothing_is_said(self):
        run = planned(scheduled_encoder_inputs={"a": [0]})
        assert outcome("STRIP-AVAIL", started(), queued(), admitted(), run) is Outcome.INCONCLUSIVE

    def test_a_covered_item_in_full_is_too_much(self):
        before = (started(), queued())
        assert outcome("STRIP-MAX", *before, admitted(computed=5, payloads=("full",))) is Outcome.VIOLATED
        assert outcome("STRIP-MAX", *before, admitted(computed=5, payloads=("none",))) is Outcome.HOLDS
        assert outcome("STRIP-MAX", *before, admitted(computed=4, payloads=("full",))) is Outcome.INCONCLUSIVE

    def test_position_fields_are_needed_where_positions_read_them(self):
        for kind, reads, expected in (
            ("none", True, Outcome.VIOLATED), ("empty", True, Outcome.VIOLATED), ("metadata", True, Outcome.HOLDS),
            ("none", False, Outcome.INCONCLUSIVE),
        ):  # fmt: skip
            events = started(reads_position_fields=reads), queued(), admitted(computed=5, payloads=(kind,))
            assert outcome("STRIP-META", *events) is expected

    def test_without_a_hit_nothing_is_stripped(self):
        assert outcome("NO-HIT", started(), queued(), admitted(payloads=("none",))) is Outcome.VIOLATED
        assert outcome("NO-HIT", started(), queued(), admitted()) is Outcome.HOLDS
        light = ItemInfo("image", "x", 1, 4, payload="metadata")
        assert outcome("NO-HIT", started(), queued(items=(light,)), admitted(payloads=("metadata",))) is Outcome.HOLDS

    @pytest.mark.parametrize(
        ("reads", "has_fields", "kind", "expected"),
        [
            (True, True, "metadata", Outcome.HOLDS),
            (True, True, "none", Outcome.VIOLATED),
            (False, True, "none", Outcome.HOLDS),
            (True, False, "none", Outcome.HOLDS),
        ],
    )
    def test_what_comes_late_leaves_what_positions_read(self, reads, has_fields, kind, expected):
        late = started(sends_late=True, reads_position_fields=reads)
        item = ItemInfo("image", "x", 1, 4, has_position_fields=has_fields)
        assert outcome("NO-HIT", late, queued(items=(item,)), admitted(payloads=(kind,))) is expected

    @pytest.mark.parametrize(
        ("name", "change", "expected"),
        [
            ("STRIP-MAX", {}, Outcome.HOLDS),
            ("STRIP-MAX", {"after": [("pixels", "grid")]}, Outcome.VIOLATED),
            ("STRIP-META", {}, Outcome.HOLDS),
            ("STRIP-META", {"after": [None]}, Outcome.VIOLATED),
            (
                "STRIP-PURE",
                {"computed": 0, "after": [("pixels", "grid")], "same": [True], "is_input": True},
                Outcome.HOLDS,
            ),
            ("STRIP-PURE", {"computed": 0, "after": [("pixels", "grid")], "same": [True]}, Outcome.VIOLATED),
            ("STRIP-PURE", {"computed": 1, "after": [("pixels", "grid")], "same": [False]}, Outcome.VIOLATED),
            ("STRIP-PURE", {"is_unchanged": False}, Outcome.VIOLATED),
        ],
    )
    def test_calls_of_the_strip(self, name, change, expected):
        before = [StrippedItem("x", SpanInfo(1, 4), ("pixels", "grid"), ("grid",))]
        after = [StrippedItem("x", SpanInfo(1, 4), names) for names in change.get("after", [("grid",)])]
        event = FeaturesStripped(
            0, "protocol", change.get("computed", 5), True, before, after, change.get("is_input", False),
            change.get("same", [False]), change.get("is_unchanged", True),
        )  # fmt: skip
        assert outcome(name, event) is expected

    def test_an_address_goes_through(self):
        before = [StrippedItem("x", SpanInfo(0, 1), ("address",)), StrippedItem("y", SpanInfo(1, 1), ("pixels",))]
        for kept, expected in ((("address",), Outcome.HOLDS), (None, Outcome.VIOLATED)):
            after = [StrippedItem("x", SpanInfo(0, 1), kept), StrippedItem("y", SpanInfo(1, 1))]
            event = FeaturesStripped(0, "protocol", 2, False, before, after, False, [True, False], True)
            assert outcome("STRIP-HANDLE", event) is expected


class TestEncoder:
    def test_what_is_gathered_is_resident(self):
        begin = started(), queued(), admitted()
        encoded = planned(0, {"a": 3}, scheduled_encoder_inputs={"a": [0]})
        go_on = planned(1, {"a": 3}, {"a": 3})
        dropped = planned(1, {"a": 3}, {"a": 3}, free_encoder_mm_hashes=["x"])
        assert outcome("ENC-HIT", *begin, encoded, go_on) is Outcome.HOLDS
        assert outcome("ENC-HIT", *begin, encoded, dropped) is Outcome.VIOLATED
        assert outcome("ENC-HIT", *begin, planned(0, {"a": 3})) is Outcome.VIOLATED
        assert outcome("ENC-HIT", *begin, planned(0, {"a": 1})) is Outcome.INCONCLUSIVE
        assert outcome("ENC-HIT", *begin, encoded, CacheReset(1, E, "encoder"), go_on) is Outcome.VIOLATED

    def test_a_worker_that_tells_its_gathers_is_believed(self):
        assert outcome("ENC-HIT", Gathered(0, E, "a", 0, 0, 4, is_resident=False)) is Outcome.VIOLATED
        assert outcome("ENC-HIT", Gathered(0, E, "a", 0, 0, 4, is_resident=True)) is Outcome.HOLDS

    def test_only_what_is_there_can_be_dropped(self):
        begin = started(), queued(), admitted()
        encoded = planned(0, {"a": 3}, scheduled_encoder_inputs={"a": [0]})
        drop = planned(1, {"a": 1}, {"a": 3}, free_encoder_mm_hashes=["x"])
        assert outcome("ENC-MIRROR", *begin, encoded, drop) is Outcome.HOLDS
        assert outcome("ENC-MIRROR", *begin, drop) is Outcome.VIOLATED

    def test_entries_fit_the_cache(self):
        other = ItemInfo("image", "y", 0, 4)
        begin = started(), queued(), admitted(), queued("b", items=(other,)), admitted("b", blocks=(3, 4))
        first = planned(0, {"a": 5}, scheduled_encoder_inputs={"a": [0]})
        both = planned(1, {"b": 4}, {"b": 0}, scheduled_encoder_inputs={"b": [0]})
        instead = planned(1, {"b": 4}, {"b": 0}, scheduled_encoder_inputs={"b": [0]}, free_encoder_mm_hashes=["x"])
        assert outcome("ENC-CONS", *begin, first, both) is Outcome.VIOLATED
        assert outcome("ENC-CONS", *begin, first, instead) is Outcome.HOLDS

    def test_what_is_loaded_ahead_of_its_use_takes_its_room_at_once(self):
        """By an engine that lets workers load what was pushed before it admits who asks for it."""
        other = ItemInfo("image", "y", 0, 4)
        begin = started(), queued(), queued("b", items=(other,))
        loads = [planned(step, {}, ec_loads=[identifier]) for step, identifier in enumerate("xy")]
        assert outcome("ENC-CONS", *begin, loads[0]) is Outcome.INCONCLUSIVE
        assert outcome("ENC-CONS", *begin, *loads) is Outcome.VIOLATED

    def test_an_entry_serves_items_of_its_size(self):
        other = ItemInfo("image", "x", 0, 2)
        begin = started(), queued(), admitted(), queued("b", items=(other,)), admitted("b", blocks=(3, 4))
        first = planned(0, {"a": 5}, scheduled_encoder_inputs={"a": [0]})
        assert outcome("ENC-KEY", *begin, first) is Outcome.HOLDS
        assert outcome("ENC-KEY", *begin, first, planned(1, {"b": 2}, {"b": 0})) is Outcome.VIOLATED

    def test_a_failure_is_the_failing_requests_own(self):
        other = ItemInfo("image", "x", 0, 2)
        failed = RequestFailed(1, E, "b", "it is odd")
        assert outcome("ISO", started(), queued(), queued("b", items=(other,)), failed) is Outcome.HOLDS
        assert outcome("ISO", started(), queued(), queued("b"), failed) is Outcome.VIOLATED
        assert outcome("ISO", started(), queued(), EngineDied(1, E, "AssertionError")) is Outcome.VIOLATED


class TestSteps:
    def test_every_position_once_and_in_order(self):
        begin = started(), queued(), admitted()
        again = Preempted(1, E, "a"), admitted(computed=0, payloads=(), resumed=True, at=1)
        assert outcome("TOK-CONS", *begin, planned(0, {"a": 4}), *again, planned(1, {"a": 4})) is Outcome.HOLDS
        assert outcome("TOK-CONS", *begin, planned(0, {"a": 4}), planned(1, {"a": 1}, {"a": 5})) is Outcome.VIOLATED
        assert outcome("TOK-CONS", *begin, planned(0, {"a": 4}), planned(1, {"a": 1}, {"a": 3})) is Outcome.VIOLATED
        beyond = planned(1, {"a": 1}, {"a": 6})
        assert outcome("TOK-CONS", *begin, planned(), yielded(), beyond) is Outcome.VIOLATED
        assert outcome("TOK-CONS", *begin, planned(), yielded(0, {"a": [1]}), beyond) is Outcome.INCONCLUSIVE

    def test_budgets(self):
        begin = started(max_num_batched_tokens=5, max_num_encoder_input_tokens=3), queued(), admitted()
        assert "6 tokens, its budget is 5" in told("TOK-CONS", *begin, planned())
        encoded = planned(0, {"a": 2}, scheduled_encoder_inputs={"a": [0]})
        assert "4 embeddings to encode, its budget is 3" in told("TOK-CONS", *begin, encoded)

    def test_blocks_add_up_and_cover(self):
        begin = started(), queued(), admitted(), planned()
        assert outcome("KV-CONS", *begin, yielded(free=4)) is Outcome.INCONCLUSIVE
        assert outcome("KV-CONS", *begin, yielded(free=5)) is Outcome.VIOLATED
        assert outcome("KV-CONS", started(), queued(), admitted(blocks=(1,)), planned()) is Outcome.VIOLATED
        both = (started(), queued(), admitted(), queued("b"))
        after = yielded(running=("a", "b"), free=3)
        assert outcome("KV-CONS", *both, admitted("b", blocks=(1, 3)), after) is Outcome.HOLDS
        assert outcome("KV-CONS", *both, admitted("b", blocks=(3, 1)), after) is Outcome.VIOLATED

    def test_items_stay_whole_where_they_must(self):
        begin = queued(), admitted()
        split, before = planned(0, {"a": 3}), planned(0, {"a": 1})
        assert outcome("CHUNK-WHOLE", started(disable_chunked_mm_input=True), *begin, split) is Outcome.VIOLATED
        assert outcome("CHUNK-WHOLE", started(disable_chunked_mm_input=True), *begin, before) is Outcome.HOLDS
        assert outcome("CHUNK-WHOLE", started(), *begin, split) is Outcome.INCONCLUSIVE

    def test_a_standstill_and_a_run_without_end(self):
        waits = started(), queued(), yielded(running=("b",), waiting=("a",))
        assert outcome("LIVE-PROG", *waits, *[planned(i, {}) for i in range(7)]) is Outcome.HOLDS
        assert outcome("LIVE-PROG", *waits, *[planned(i, {}) for i in range(8)]) is Outcome.VIOLATED
        moved = [*[planned(i, {}) for i in range(7)], planned(7, {"a": 1}), planned(8, {})]
        assert outcome("LIVE-PROG", *waits, *moved) is Outcome.HOLDS
        assert outcome("LIVE-PROG", *waits, EngineStopped(9, E, ["a"])) is Outcome.VIOLATED

    def test_everybody_ends_once_with_all_tokens(self):
        twice = started(), queued(), admitted(), admitted(resumed=True)
        assert outcome("LIVE-DONE", *twice, RequestFinished(3, E, "a", 2)) is Outcome.HOLDS
        assert outcome("LIVE-DONE", *twice, RequestFinished(3, E, "a", 1)) is Outcome.VIOLATED
        end = RequestFinished(3, E, "a", 2)
        assert outcome("LIVE-DONE", *twice, end, end) is Outcome.VIOLATED

    def test_an_answer_may_end_with_the_longest_sequence(self):
        twice = started(max_model_len=7), queued(), admitted(), admitted(resumed=True)
        assert outcome("LIVE-DONE", *twice, RequestFinished(3, E, "a", 1)) is Outcome.HOLDS
        assert outcome("LIVE-DONE", *twice, RequestFinished(3, E, "a", 2)) is Outcome.VIOLATED

    @pytest.mark.parametrize(
        ("tokens", "max_tokens", "items", "settings", "expected"),
        [
            (22, 4, (), {}, Outcome.HOLDS),  # 25 tokens are computed, 24 have room
            (22, 3, (), {}, Outcome.VIOLATED),
            (0, 2, (), {}, Outcome.HOLDS),
            (6, 4, (), {"max_model_len": 9}, Outcome.HOLDS),
            (6, 3, (), {"max_model_len": 9}, Outcome.VIOLATED),
            (6, 1, (ItemInfo("image", "x", 1, 5),), {}, Outcome.HOLDS),
            (6, 1, (ItemInfo("image", "x", 1, 5, [1, 1, 0, 1, 1]),), {}, Outcome.VIOLATED),
            (12, 1, (ItemInfo("image", "x", 1, 9, [1] + [0] * 8),), {"disable_chunked_mm_input": True}, Outcome.HOLDS),
            (12, 1, (ItemInfo("image", "x", 1, 9, [1] + [0] * 8),), {}, Outcome.VIOLATED),
            (6, 1, (), {"beyond": ["drafts"]}, Outcome.HOLDS),
        ],
    )
    def test_who_is_refused_needs_more_than_there_is(self, tokens, max_tokens, items, settings, expected):
        refused = RequestRefused(0, E, "a", tokens, max_tokens, items, "for a reason", is_too_large=True)
        assert outcome("LIVE-ADMIT", started(**{"max_model_len": 100} | settings), refused) is expected

    @pytest.mark.parametrize("settings", [{}, {"max_model_len": 100, "num_gpu_blocks": 0}, {"num_gpu_blocks": 0}])
    def test_who_is_refused_may_lack_what_is_not_told(self, settings):
        refused = RequestRefused(0, E, "a", 6, 2, (), "for a reason", is_too_large=True)
        assert outcome("LIVE-ADMIT", started(**settings), refused) is Outcome.INCONCLUSIVE

    def test_who_is_refused_for_another_reason_may_be_small(self):
        for tokens, expected in ((6, Outcome.INCONCLUSIVE), (101, Outcome.HOLDS)):
            refused = RequestRefused(0, E, "a", tokens, 2, (), "adapter 'x' is not loaded")
            assert outcome("LIVE-ADMIT", started(max_model_len=100), refused) is expected

    @pytest.mark.parametrize(
        ("tokens", "max_tokens", "settings", "expected"),
        [
            (10, 2, {"max_model_len": 9}, Outcome.VIOLATED),
            (9, 2, {"max_model_len": 9}, Outcome.INCONCLUSIVE),  # its answer is cut
            (23, 3, {"max_model_len": 100}, Outcome.VIOLATED),  # 25 tokens are computed, 24 have room
            (23, 2, {"max_model_len": 100}, Outcome.INCONCLUSIVE),
            (23, 3, {"max_model_len": 25}, Outcome.INCONCLUSIVE),
            (23, 3, {}, Outcome.INCONCLUSIVE),  # where its answer is cut is not told
            (26, 3, {}, Outcome.VIOLATED),
            (26, 3, {"num_gpu_blocks": 0}, Outcome.INCONCLUSIVE),
            (23, 3, {"max_model_len": 100, "beyond": ["stops"]}, Outcome.INCONCLUSIVE),
        ],
    )
    def test_who_can_never_end_is_not_let_in(self, tokens, max_tokens, settings, expected):
        whole = queued(tokens=tokens, max_tokens=max_tokens, items=())
        assert outcome("LIVE-ADMIT", started(**settings), whole, RequestAborted(1, E, "a")) is expected
        shared = whole, queued("b", items=()), RequestFinished(1, E, "b", 2), EngineStopped(9, E, ["a"])
        assert outcome("LIVE-ADMIT", started(**settings), *shared) is expected

    def test_who_ends_with_its_engine_or_waits_for_what_never_comes_was_let_in_rightly(self):
        stopped = EngineStopped(9, E, ["a"])
        dies = queued(), EngineDied(1, E, "out of memory"), stopped
        assert outcome("LIVE-ADMIT", started(), *dies) is Outcome.INCONCLUSIVE
        waits = RequestQueued(0, E, "a", 6, 2, num_remote_tokens=5, awaits_kv=True)
        assert outcome("LIVE-ADMIT", started(), waits, stopped) is Outcome.INCONCLUSIVE

    def test_who_has_the_engine_alone_ends(self):
        stopped = EngineStopped(9, E, ["a"])
        assert outcome("LIVE-ADMIT", started(), queued(), stopped) is Outcome.VIOLATED
        assert outcome("LIVE-ADMIT", started(), queued(), queued("b"), stopped) is Outcome.INCONCLUSIVE
        alone_again = queued("b"), queued(), RequestAborted(1, E, "a"), RequestAborted(1, E, "b"), queued()
        assert outcome("LIVE-ADMIT", started(), *alone_again, stopped) is Outcome.VIOLATED
        whole = queued(tokens=22, max_tokens=3, items=(), ids=[1] * 22)
        assert outcome("LIVE-ADMIT", started(), whole, RequestFinished(9, E, "a", 3)) is Outcome.HOLDS


class TestContent:
    def test_a_found_block_of_another_prompt(self):
        first = started(), queued(ids=(1, 9, 9, 9, 9, 2)), admitted(), planned()
        same = queued("b", ids=(1, 9, 9, 9, 9, 3)), admitted("b", computed=4, blocks=(1, 3))
        other = queued("b", ids=(2, 9, 9, 9, 9, 3)), admitted("b", computed=4, blocks=(1, 3))
        step = planned(1, {"b": 2}, {"b": 4})
        assert outcome("KEY-INJ", *first, *same, step) is Outcome.HOLDS
        assert outcome("KEY-INJ", *first, *other, step) is Outcome.VIOLATED
        picture = queued("b", ids=(1, 9, 9, 9, 9, 3), items=(ItemInfo("image", "y", 1, 4),))
        assert outcome("KEY-INJ", *first, picture, same[1], step) is Outcome.VIOLATED
        assert "was never computed" in told("KEY-INJ", started(), *same, step)

    def test_what_is_found_may_be_written_in_the_same_step(self):
        both = started(max_num_batched_tokens=12), queued(), admitted(), queued("b"), admitted("b", 4, blocks=(1, 3))
        assert outcome("KEY-INJ", *both, planned(0, {"a": 6, "b": 2}, {"a": 0, "b": 4})) is Outcome.HOLDS

    def test_a_block_that_another_request_overwrites(self):
        begin = started(), queued(), admitted(), planned(0, {"a": 4})
        thief = queued("b", ids=[5] * 6, items=()), admitted("b", payloads=(), blocks=(1, 3)), planned(1, {"b": 4})
        assert outcome("RECOMP-EQ", *begin, *thief, planned(2, {"a": 2}, {"a": 4})) is Outcome.VIOLATED


class TestSimulator:
    def test_books(self):
        arrived, end = RequestArrived(0, "orchestrator", "a", 2), RequestFinished(5, E, "a", 2)
        assert outcome("SIM-BOOKS", arrived, end) is Outcome.HOLDS
        assert outcome("SIM-BOOKS", arrived, end, end) is Outcome.VIOLATED
        assert outcome("SIM-BOOKS", arrived, arrived) is Outcome.VIOLATED

    def test_order(self):
        arrived, first, end = RequestArrived(2, "o", "a", 2), FirstToken(4, E, "a"), RequestFinished(5, E, "a", 2)
        assert outcome("SIM-ORDER", arrived, first, end) is Outcome.HOLDS
        assert outcome("SIM-ORDER", arrived, end) is Outcome.VIOLATED
        assert outcome("SIM-ORDER", arrived, FirstToken(1, E, "a"), end) is Outcome.VIOLATED

    def test_capacity(self):
        def step(end_ms, tokens, duration_ms, num_steps=1):
            return StepFinished(end_ms, E, 0, tokens, 1, 1, 0, duration_ms, num_steps=num_steps)

        assert outcome("SIM-CAP", started(), step(5, 8, 5), step(9, 16, 4, num_steps=2)) is Outcome.HOLDS
        assert outcome("SIM-CAP", started(), step(5, 9, 5)) is Outcome.VIOLATED
        assert outcome("SIM-CAP", started(), step(5, 8, 5), step(9, 8, 5)) is Outcome.VIOLATED
        assert outcome("SIM-CAP", step(5, 8, 5)) is Outcome.INCONCLUSIVE


def test_no_events_say_nothing_of_any_property():
    assert {one.outcome for one in judge([], JUDGED).values()} == {Outcome.INCONCLUSIVE}
