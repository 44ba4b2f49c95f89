"""What a worker keeps, what it yields, and what it says when it is told something wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import CachedRequestData, KvLoad, NewRequestData, StepPlan
from epdsim.core.positions import ONE_D, QWEN2_VL
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.workers.records import Embedding, WorkerStep
from epdsim.core.workers.worker import Worker, token_of, undisturbed

GRID = (1, 4, 4)  # 4 tokens after merging, 2 positions


def item(content: str) -> MediaItem:
    pixels = Field(TensorHandle("uint8", (3,), digest=content), BatchedKind())
    grid = TensorHandle("int64", (3,), source=b"".join(n.to_bytes(8, "little") for n in GRID))
    return MediaItem({"pixel_values": pixels, "image_grid_thw": Field(grid, BatchedKind(keep_on_cpu=True))})


def image(content: str, offset: int, length: int = 4, identifier: str = "", mask: Sequence[int] | None = None):
    span = PlaceholderRange(offset, length, None if mask is None else bytes(mask))
    return MediaFeature("image", identifier or content, span, item(content))


def without(feature: MediaFeature, *names: str) -> MediaFeature:
    assert feature.data is not None
    return replace(feature, data=MediaItem({k: v for k, v in feature.data.fields.items() if k not in names}))


def request(name: str, length: int, *features: MediaFeature, max_tokens: int = 2, **more) -> Request:
    return Request(name, TokenPrompt([7] * length), max_tokens, features, **more)


def new(one: Request, blocks: Sequence[int], features: Sequence[MediaFeature] | None = None, **more) -> NewRequestData:
    features = one.mm_features if features is None else features
    computed = more.pop("num_computed_tokens", 0)
    tokens = more.pop("num_prompt_tokens", one.prompt.num_tokens)
    return NewRequestData(one.request_id, computed, blocks, features, tokens, **more)


def worker(*requests: Request, runner: str = "v1", **more) -> Worker:
    made = Worker(SchedulerConfig(block_size=4, model_runner=runner), **more)
    for one in requests:
        made.add_request(one)
    return made


def told(step: WorkerStep) -> list[str]:
    return [one.property_id for one in step.violations]


def plan(step: int = 0, tokens: dict[str, int] | None = None, **more) -> StepPlan:
    tokens = tokens or {}
    return StepPlan(step, tokens, samples=more.pop("samples", tuple(tokens)), **more)


class TestSound:
    def test_a_request_yields_the_tokens_of_its_undisturbed_run_in_chunks_and_whole(self):
        one = request("a", 9, image("x", 2), max_tokens=3)
        for chunks in ([9, 1, 1], [3, 2, 4, 1, 1]):
            runner = worker(one)
            got: list[int] = []
            computed = 0
            for number, count in enumerate(chunks):
                rows = {"new": [new(one, [5, 2, 9])]} if number == 0 else {}
                rows = rows or {"cached": [CachedRequestData("a", computed, None)]}
                inputs = {"a": [0]} if computed <= 2 < computed + count else {}
                computed += count
                samples = ("a",) if computed >= 9 else ()
                done = runner.execute(
                    plan(number, {"a": count}, scheduled_encoder_inputs=inputs, samples=samples, **rows)
                )
                assert not done.violations
                assert done.encoded == (["x"] if inputs else [])
                got += done.sampled["a"]
            assert got == undisturbed(one) == runner.outputs("a")

    def test_a_prefix_hit_reads_what_another_request_wrote(self):
        first, second = request("a", 8, image("x", 2)), request("b", 9, image("x", 2))
        runner = worker(first, second)
        runner.execute(plan(0, {"a": 8}, new=[new(first, [3, 4])], scheduled_encoder_inputs={"a": [0]}))
        hit = new(second, [3, 4, 5], num_computed_tokens=8, num_cached_tokens=8)
        done = runner.execute(plan(1, {"b": 1}, new=[hit]))
        assert not done.violations
        assert done.sampled["b"] == undisturbed(second)[:1]

    def test_kv_that_another_engine_hands_over_is_there(self):
        one = request("a", 8, num_remote_tokens=7)
        runner = worker(one)
        load = KvLoad("a", [3, 4], 0, 7, is_async=False)
        done = runner.execute(plan(0, {"a": 1}, new=[new(one, [3, 4], num_computed_tokens=7)], kv_loads=[load]))
        assert not done.violations
        assert done.sampled["a"] == undisturbed(one)[:1]

    def test_kv_that_comes_between_steps_is_there_once_it_has_come(self):
        one = request("a", 8, num_remote_tokens=8)
        admission = plan(1, {"a": 1}, new=[new(one, [3, 4], num_computed_tokens=7)])
        for comes in (True, False):
            runner = worker(one)
            runner.execute(plan(0, kv_loads=[KvLoad("a", [3, 4], 0, 8, is_async=True)]))
            if comes:
                runner.receive("a")
            done = runner.execute(admission)
            assert told(done) == ([] if comes else ["KEY-INJ"])
            assert done.sampled["a"] == undisturbed(one)[:1] or not comes

    def test_a_lost_block_is_nobodys_fault_until_it_is_known(self):
        """A request may then be sent back behind it, once, and yields what it should."""
        one = request("a", 8, num_remote_tokens=7)
        runner = worker(one)
        load = KvLoad("a", [3, 4], 0, 7, is_async=False)
        first = plan(0, {"a": 1}, new=[new(one, [3, 4], num_computed_tokens=7)], kv_loads=[load])
        done = runner.execute(first, lost=[4])
        assert not done.violations
        runner.hear_lost([4])
        runner.keep_outputs("a", 0)
        done = runner.execute(plan(1, {"a": 4}, cached=[CachedRequestData("a", 4, None)]))
        assert not done.violations
        assert done.sampled["a"] == undisturbed(one)[:1]
        done = runner.execute(plan(2, {"a": 1}, cached=[CachedRequestData("a", 6, None)]))
        assert told(done) == ["TOK-CONS"]

    def test_a_lost_block_that_is_known_must_not_be_read(self):
        one = request("a", 8, num_remote_tokens=7)
        runner = worker(one)
        load = KvLoad("a", [3, 4], 0, 7, is_async=False)
        runner.execute(plan(0, {"a": 1}, new=[new(one, [3, 4, 5], num_computed_tokens=7)], kv_loads=[load]), lost=[4])
        runner.hear_lost([4])
        assert told(runner.execute(plan(1, {"a": 1}, cached=[CachedRequestData("a", 8, None)]))) == ["KEY-INJ"]

    def test_prompts_without_ids_name_their_output_after_the_request(self):
        one = Request("a", RunPrompt([TokenRun("doc", 0, 6)]), 4)
        other = Request("b", RunPrompt([TokenRun("doc", 0, 6)]), 4)
        assert len(undisturbed(one)) == 4
        assert undisturbed(one)[0] == undisturbed(other)[0]

    def test_a_sampler_is_the_callers(self):
        one = request("a", 3)
        done = worker(one, sample=lambda tag: 10 + token_of(tag)).execute(plan(0, {"a": 3}, new=[new(one, [1])]))
        assert done.sampled["a"] == [10 + undisturbed(one)[0]]

    def test_embeddings_come_from_the_ec_store_as_asked_or_as_they_are_there(self):
        one = request("a", 6, image("x", 1))
        broadcast = {"new": [new(one, [1, 2])], "ec_loads": ["x"]}
        assert not worker(one).execute(plan(0, {"a": 6}, **broadcast)).violations
        stored = {"x": Embedding(b"another", 4)}
        assert told(worker(one, ec_store=stored).execute(plan(0, {"a": 6}, **broadcast))) == ["ENC-KEY"]


class TestWrong:
    @pytest.mark.parametrize(
        ("sent", "kind"),
        [(None, "no payload"), (item("x").subset(), "only ['image_grid_thw']"), (MediaItem({}), "only []")],
    )
    def test_an_encoder_run_without_payload_is_told_and_leaves_no_embedding(self, sent, kind):
        one = request("a", 6, image("x", 1))
        stripped = new(one, [1, 2], [replace(one.mm_features[0], data=sent)])
        done = worker(one).execute(plan(0, {"a": 6}, new=[stripped], scheduled_encoder_inputs={"a": [0]}))
        assert told(done) == ["STRIP-AVAIL", "ENC-HIT"]
        assert kind in str(done.violations[0])
        assert done.sampled["a"] != []
        assert done.encoded == []

    def test_a_payload_that_lacks_one_of_its_fields_is_none(self):
        one = request("a", 6, image("x", 1))
        runner = worker(one)
        sent = [replace(one.mm_features[0], data=item("x").subset(["pixel_values"], keep_on_cpu=False))]
        broadcast = plan(0, {"a": 6}, new=[new(one, [1, 2], sent)], scheduled_encoder_inputs={"a": [0]})
        assert told(runner.execute(broadcast)) == ["STRIP-AVAIL", "ENC-HIT"]

    def test_what_is_sent_late_is_laid_over_what_is_there(self):
        one = request("a", 8, image("x", 4))
        runner = worker(one)
        stripped = [replace(one.mm_features[0], data=item("x").subset())]
        runner.execute(plan(0, {"a": 4}, new=[new(one, [1, 2], stripped)], samples=()))
        late = {0: replace(one.mm_features[0], data=item("x").subset(["pixel_values"], keep_on_cpu=False))}
        row = CachedRequestData("a", 4, None, mm_updates=late)
        assert not runner.execute(plan(1, {"a": 4}, cached=[row], scheduled_encoder_inputs={"a": [0]})).violations

    def test_a_gather_without_embedding_with_a_wrong_count_or_of_something_else_is_told(self):
        one = request("a", 6, image("x", 1))
        for entry, property_id in [
            (None, "ENC-HIT"),
            (Embedding(b"x", 3), "SPLICE-EQ"),
            (Embedding(b"y", 4), "ENC-KEY"),
        ]:
            runner = worker(one)
            runner.embeddings |= {} if entry is None else {"x": entry}
            assert told(runner.execute(plan(0, {"a": 6}, new=[new(one, [1, 2])]))) == [property_id]

    def test_a_chunk_that_holds_only_text_of_a_sparse_span_needs_no_embedding(self):
        one = request("a", 8, image("x", 2, 4, mask=[1, 0, 0, 1]))
        runner = worker(one)
        runner.execute(plan(0, {"a": 3}, new=[new(one, [1, 2])], scheduled_encoder_inputs={"a": [0]}, samples=()))
        freed = plan(1, {"a": 2}, cached=[CachedRequestData("a", 3, None)], free_encoder_mm_hashes=["x"], samples=())
        assert not runner.execute(freed).violations
        assert told(runner.execute(plan(2, {"a": 3}, cached=[CachedRequestData("a", 5, None)]))) == ["ENC-HIT"]

    def test_one_identifier_for_two_contents_shows_and_runners_differ_in_which(self):
        first = request("a", 5, image("red", 0, identifier="u"))
        second = request("b", 5, image("blue", 0, identifier="u"))
        found = {}
        for runner in ("v1", "v2"):
            made = worker(first, second, runner=runner)
            made.execute(plan(0, {"a": 5}, new=[new(first, [1, 2])], scheduled_encoder_inputs={"a": [0]}))
            broadcast = plan(1, {"b": 5}, new=[new(second, [3, 4])], scheduled_encoder_inputs={"b": [0]})
            found[runner] = told(made.execute(broadcast))
        assert found == {"v1": [], "v2": ["ENC-KEY"]}

    def test_reuse_of_a_block_of_other_content_is_told_and_spreads(self):
        red, blue = request("a", 8, image("red", 0)), request("b", 9, image("blue", 0))
        third = request("c", 13, image("blue", 0))
        runner = worker(red, blue, third)
        runner.execute(plan(0, {"a": 8}, new=[new(red, [1, 2])], scheduled_encoder_inputs={"a": [0]}))
        hit = new(blue, [1, 2, 3], num_computed_tokens=8, num_cached_tokens=8)
        done = runner.execute(plan(1, {"b": 1}, new=[hit]))
        assert told(done) == ["KEY-INJ"]
        assert "something else at token 0 (block 1)" in done.violations[0].what
        spread = new(third, [7, 8, 3, 9], num_computed_tokens=9, num_cached_tokens=9)
        assert told(runner.execute(plan(2, {"c": 4}, new=[spread]))) == ["KEY-INJ"]

    def test_a_block_that_was_never_written_is_told(self):
        one = request("a", 9)
        hit = new(one, [1, 2, 3], num_computed_tokens=8, num_cached_tokens=8)
        (violation,) = worker(one).execute(plan(0, {"a": 1}, new=[hit])).violations
        assert (violation.property_id, violation.what) == ("KEY-INJ", "reads nothing at token 0 (block 1)")

    def test_adapters_make_content_differ_and_salts_do_not(self):
        plain = request("a", 8)
        for more, expected in [({"cache_salt": "s"}, []), ({"adapter": "l"}, ["KEY-INJ"])]:
            other = request("b", 9, **more)
            runner = worker(plain, other)
            runner.execute(plan(0, {"a": 8}, new=[new(plain, [1, 2])]))
            hit = new(other, [1, 2, 3], num_computed_tokens=8, num_cached_tokens=8)
            assert told(runner.execute(plan(1, {"b": 1}, new=[hit]))) == expected

    def test_gaps_overlaps_unknown_tokens_and_missing_blocks_are_told(self):
        one = request("a", 6)
        runner = worker(one)
        runner.execute(plan(0, {"a": 4}, new=[new(one, [1, 2])], samples=()))
        assert told(runner.execute(plan(1, {"a": 1}, cached=[CachedRequestData("a", 5, None)], samples=()))) == [
            "TOK-CONS",
            "KEY-INJ",
        ]
        assert (
            told(runner.execute(plan(2, {"a": 2}, cached=[CachedRequestData("a", 6, None)], samples=())))[0]
            == "TOK-CONS"
        )
        short = worker(one)
        assert told(short.execute(plan(0, {"a": 6}, new=[new(one, [1])]))) == ["KV-CONS"]

    def test_a_request_that_comes_with_another_length_is_told(self):
        one = request("a", 6)
        done = worker(one).execute(plan(0, {"a": 6}, new=[new(one, [1, 2], num_prompt_tokens=8)]))
        assert told(done) == ["TOK-CONS"]


class TestPositions:
    def test_fields_that_positions_read_must_come_with_a_stripped_item(self):
        one = request("a", 8, image("x", 1), max_tokens=3)
        for sent, expected in [
            (one.mm_features, []),
            ([replace(one.mm_features[0], data=item("x").subset())], []),
            ([replace(one.mm_features[0], data=None)], ["STRIP-META"]),
        ]:
            runner = worker(one, scheme=QWEN2_VL)
            runner.embeddings["x"] = Embedding(worker(one)._true["a"].contents[0], 4)
            assert told(runner.execute(plan(0, {"a": 8}, new=[new(one, [1, 2], sent)]))) == expected
            assert worker(one, scheme=ONE_D).execute(plan(0, {}, new=[new(one, [1, 2], sent)])).violations == []

    def test_positions_of_another_grid_are_told(self):
        one = request("a", 8, image("x", 1))
        wrong = TensorHandle("int64", (3,), source=b"".join(n.to_bytes(8, "little") for n in (1, 2, 8)))
        fields = {**item("x").fields, "image_grid_thw": Field(wrong, BatchedKind(keep_on_cpu=True))}
        runner = worker(one, scheme=QWEN2_VL)
        runner.embeddings["x"] = Embedding(worker(one)._true["a"].contents[0], 4)
        sent = [replace(one.mm_features[0], data=MediaItem(fields))]
        assert told(runner.execute(plan(0, {"a": 8}, new=[new(one, [1, 2], sent)]))) == ["POS-EQ"]


class TestRunners:
    def test_v1_keeps_a_preempted_request_until_it_ends_and_v2_does_not(self):
        one = request("a", 6)
        for runner, kept in [("v1", ["a"]), ("v2", [])]:
            made = worker(one, runner=runner)
            made.execute(plan(0, {"a": 6}, new=[new(one, [1, 2])]))
            made.execute(plan(1, preempted=["a"]))
            assert list(made.requests) == kept
            made.execute(plan(2, finished=["a"]))
            assert not made.requests

    def test_a_resume_is_a_difference_for_one_and_a_new_request_for_the_other(self):
        one = request("a", 6)
        again = {"v1": {"cached": [CachedRequestData("a", 0, [5, 6], resumed=True)]}, "v2": {"new": [new(one, [5, 6])]}}
        for runner, other in [("v1", "v2"), ("v2", "v1")]:
            made = worker(one, runner=runner)
            made.execute(plan(0, {"a": 6}, new=[new(one, [1, 2])], samples=()))
            made.execute(plan(1, preempted=["a"]))
            assert not made.execute(plan(2, {"a": 6}, **again[runner])).violations
            assert made.requests["a"].block_ids == [5, 6]
            if other == "v1":
                made.execute(plan(3, preempted=["a"]))
                assert told(made.execute(plan(4, {"a": 6}, **again[other]))) == ["TOK-CONS"]

    def test_a_reset_drops_embeddings_alone(self):
        one = request("a", 6, image("x", 1))
        made = worker(one)
        made.execute(plan(0, {"a": 6}, new=[new(one, [1, 2])], scheduled_encoder_inputs={"a": [0]}))
        made.reset_encoder_cache()
        assert not made.embeddings
        assert list(made.requests) == ["a"]


def test_an_engine_that_only_encodes_gathers_and_reads_nothing():
    one = request("a", 9, image("x", 1))
    made = Worker(SchedulerConfig(block_size=4, ec_role="producer"))
    made.add_request(one)
    # The store has the item, so nothing is to be encoded; and it has no KV cache that a hit could be read from.
    hit = new(one, [1, 2, 3], num_computed_tokens=4, num_cached_tokens=4)
    assert not made.execute(plan(0, {"a": 5}, new=[hit])).violations


def test_known_tokens_are_taken_as_they_are():
    one = request("a", 3, max_tokens=3)
    made = worker(one)
    done = made.execute(plan(0, {"a": 3}, new=[new(one, [1, 2])], samples=()), sampled={"a": [41, 42]})
    assert done.sampled == {"a": [41, 42]}
    assert made.outputs("a") == [41, 42]
