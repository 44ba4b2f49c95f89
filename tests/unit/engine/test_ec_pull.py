"""An EC connector that pulls: waiting that blocks nobody, refusals, bounds, leases, and failures of one request alone."""

from __future__ import annotations

import pytest
from pull_engine import Engine, ideal_but, metadata_only, offered

from epdsim.core.ec.pull import FIRST, NUMBER, TOGETHER, WAIT, PullConnector
from epdsim.core.ec.read import LEASE, LOST
from epdsim.core.ec.serve import Answer
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import EcOffer, Request
from epdsim.core.rules import IDEAL, Dialect


class TestWaiting:
    def test_a_request_waits_for_its_embedding_and_others_pass_it(self, image, text) -> None:
        engine = Engine()
        engine.scheduler.add_request(offered("a", metadata_only(image("x", 2, 4))))
        engine.scheduler.add_request(text("b", 8))
        plan, _ = engine.step(0)
        assert list(plan.num_scheduled_tokens) == ["b"]
        assert engine.scheduler.waiting == ["a"]
        assert list(engine.ec.take_asked()) == [("p", "x")]

        engine.grant("x")
        assert not engine.step(1)[0].num_scheduled_tokens
        assert list(engine.ec.take_begun()) == [("p", "x")]
        engine.arrive("x")
        plan, _ = engine.step(2)
        assert list(plan.num_scheduled_tokens) == ["a"]
        assert list(plan.ec_loads) == ["x"]
        assert not plan.scheduled_encoder_inputs
        engine.step(3)
        assert not engine.ec.is_busy

    def test_not_ready_is_asked_again_and_missing_is_not(self, image) -> None:
        engine = Engine()
        engine.scheduler.add_request(offered("a", image("x", 2, 4)))
        for answer, asked_again in ((Answer.NOT_READY, True), (Answer.MISSING, False)):
            engine.step(0)
            engine.ec.take_asked()
            engine.ec.reads.answered("p", "x", answer, 0)
            plan, _ = engine.step(1)
            assert bool(engine.ec.take_asked()) == asked_again
        assert dict(plan.scheduled_encoder_inputs) == {"a": [0]}, "it brought its pixels"

    def test_an_answer_that_is_late_is_asked_for_again(self, image) -> None:
        engine = Engine()
        engine.scheduler.add_request(offered("a", image("x", 2, 4)))
        engine.step(0)
        engine.step(20)
        assert len(engine.ec.take_asked()) == 1
        engine.step(21)
        assert list(engine.ec.take_asked()) == [("p", "x")]

    def test_a_running_request_waits_too_and_keeps_its_place(self, image, text) -> None:
        engine = Engine(capacity=4, max_num_batched_tokens=4)
        engine.scheduler.add_request(offered("a", image("x", 6, 4), length=12))
        engine.step(0)
        engine.grant("x")
        engine.step(1)
        engine.arrive("x")
        assert engine.step(2)[0].num_scheduled_tokens == {"a": 4}
        engine.ec.reset()  # what was here is gone before the chunk that needs it
        engine.scheduler.add_request(text("b", 3))
        assert engine.step(3)[0].num_scheduled_tokens == {"b": 3}
        assert engine.scheduler.running == ["a"]


class TestFailure:
    @pytest.mark.parametrize("has_pixels", [True, False])
    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            ("refused", "refused"),
            ("broken", "reading it failed"),
            ("never", "not there after 0.1 s"),
            ("stuck", "reading it failed"),
            ("other size", "has 3 embeddings and it needs 4"),
            ("too large", "do not fit"),
        ],
    )
    def test_one_request_fails_alone_with_a_reason_or_encodes_by_itself(
        self, image, text, case: str, reason: str, *, has_pixels: bool
    ) -> None:
        engine = Engine(capacity=3 if case == "too large" else 16)
        item = image("x", 2, 4) if has_pixels else metadata_only(image("x", 2, 4))
        wanted = offered("a", item)
        if case == "other size":
            wanted = Request("a", wanted.prompt, 1, (item,), ec_offers={"x": EcOffer("p", 3)})
        engine.scheduler.add_request(wanted)
        engine.scheduler.add_request(text("b", 4, max_tokens=60))
        encoded, failed = False, {}
        for now_ms in range(0, 400, 10):
            if engine.ec.take_asked() and case != "never":
                engine.ec.reads.answered("p", "x", Answer.MISSING if case == "refused" else Answer.GRANTED, 1e9)
            if engine.ec.take_begun() and case == "broken":
                engine.arrive("x", is_good=False)
            plan, outcome = engine.step(now_ms)
            encoded = encoded or plan.scheduled_encoder_inputs == {"a": [0]}
            failed |= outcome.failed
        assert encoded == has_pixels
        assert list(failed) == ([] if has_pixels else ["a"])
        assert all(reason in text for text in failed.values())
        assert engine.scheduler.running == ["b"]
        for now_ms in (400, 440, 480):  # what nobody waits for any more is looked at when somebody asks again
            engine.scheduler.add_request(Request(f"c{now_ms}", TokenPrompt([7] * 4), 1, (image("z", 0, 2),)))
            engine.step(now_ms)
        assert not engine.ec.is_busy
        assert engine.ec.copies.num_free + engine.ec.copies.num_evictable == engine.ec.copies.capacity

    @pytest.mark.parametrize("dialect", [IDEAL, named("vllm-0.32")], ids=lambda one: one.name)
    def test_metadata_alone_is_never_encoded(self, image, text, dialect: Dialect) -> None:
        engine = Engine(dialect=dialect)
        bare = metadata_only(image("x", 2, 4))
        engine.scheduler.add_request(Request("a", TokenPrompt([7] * 8), 1, (bare,), ec_offers={"x": EcOffer(None)}))
        engine.scheduler.add_request(text("b", 4))
        plan, outcome = engine.step(0)
        assert dict(plan.scheduled_encoder_inputs) == ({} if dialect is IDEAL else {"a": [0]})
        assert list(outcome.failed) == (["a"] if dialect is IDEAL else [])
        assert all("nothing to encode" in reason for reason in outcome.failed.values())

    def test_an_abort_leaves_nothing_behind(self, image) -> None:
        engine = Engine()
        engine.scheduler.add_request(offered("a", image("x", 2, 4)))
        engine.step(0)
        engine.grant("x")
        engine.step(1)
        engine.scheduler.finish_requests(["a"])
        engine.arrive("x")
        engine.step(2)
        engine.scheduler.add_request(offered("b", image("x", 2, 4)))
        engine.step(3)
        engine.ec.reads.ended("p", "x", 3, is_good=False)  # a second word, which is late
        engine.step(4)
        assert not engine.scheduler.has_unfinished
        assert engine.ec.copies.is_ready("x")


class TestRules:
    def play_three(self, engine: Engine, image) -> dict[str, str]:
        """Three items of 1, 2 and 3 embeddings; each is granted at once, and read within its own time."""
        items = [metadata_only(image(name, at, size)) for name, at, size in (("x", 0, 1), ("y", 1, 2), ("z", 3, 3))]
        engine.scheduler.add_request(offered("a", *items))
        steps_of, ends, failed = {"x": 4, "y": 1, "z": 3}, dict[str, int](), dict[str, str]()
        for step in range(400):
            engine.ec.now_ms = step
            for name in [name for name, end in ends.items() if end == step]:
                engine.arrive(name)
            failed |= engine.step()[1].failed
            for _, name in engine.ec.take_asked():
                engine.grant(name)
            ends |= {name: step + steps_of[name] for _, name in engine.ec.take_begun()}
        return failed

    def test_items_that_push_each_other_out_are_not_waited_for_without_an_end(self, image) -> None:
        assert "not there after" in self.play_three(Engine(capacity=5, dialect=ideal_but(TOGETHER, FIRST)), image)["a"]
        assert not self.play_three(Engine(capacity=6), image)
        endless = Engine(capacity=5, dialect=ideal_but(TOGETHER, FIRST, WAIT))
        assert not self.play_three(endless, image)
        assert endless.scheduler.waiting == ["a"]

    @pytest.mark.parametrize("has_pixels", [True, False])
    def test_items_that_do_not_fit_together_are_not_read_at_all(self, image, *, has_pixels: bool) -> None:
        """At once and with one reason; what came with its payload is encoded here, and the others have room."""
        engine = Engine(capacity=7)
        items = [image("x", 0, 4), image("y", 4, 4), image("x", 8, 4)]
        request = offered("a", *(items if has_pixels else map(metadata_only, items)), length=20)
        engine.scheduler.add_request(request)
        _, outcome = engine.step(0)
        told = "its 4 embeddings do not fit into the 7 of the host copies with the 4 of the request's other items"
        assert outcome.failed == ({} if has_pixels else {"a": f"no embedding of 'x': {told}"})
        assert list(engine.ec.take_asked()) == ([("p", "y")] if has_pixels else [])
        if has_pixels:
            engine.grant("y")
            engine.step(1)
            engine.arrive("y")
            plan, _ = engine.step(2)
            assert (plan.scheduled_encoder_inputs, plan.ec_loads) == ({"a": [0]}, ("y",))

    @pytest.mark.parametrize("dialect", [IDEAL, ideal_but(FIRST)], ids=lambda one: one.name)
    def test_who_asks_first_has_its_items_first(self, image, dialect: Dialect) -> None:
        """Two requests of two items each, and room for two: of the release neither ever has both of its own."""
        engine = Engine(capacity=8, dialect=dialect)
        for name, items in (("a", "xy"), ("b", "zx")):
            features = [metadata_only(image(item, 6 * place, 4)) for place, item in enumerate(items)]
            engine.scheduler.add_request(offered(name, *features, length=14))
        done, num_reads = list[str](), 0
        engine.ec.copies.take("x", 4)
        engine.ec.copies.publish("x")
        for step in range(30):
            _, outcome = engine.step(step)
            done += outcome.finished
            for _, name in engine.ec.take_asked():
                engine.grant(name)
            for _, name in engine.ec.take_begun():
                num_reads += 1
                engine.arrive(name)
        assert (done, num_reads < 6) == ((["a", "b"], True) if dialect is IDEAL else ([], False))

    def test_an_item_twice_takes_its_room_once_and_what_is_past_none(self, image) -> None:
        items = [metadata_only(image(name, at, 4)) for name, at in (("x", 0), ("y", 4), ("y", 8))]
        connector = PullConnector("consumer", 4)
        request = offered("a", *items, length=20)
        assert not connector.ready(request, 4)
        assert list(connector.take_asked()) == [("p", "y")]
        assert not connector.take_failed()
        assert not PullConnector("consumer", 8).ready(request, 0)

    @pytest.mark.parametrize("dialect", [IDEAL, ideal_but(LEASE)], ids=lambda one: one.name)
    def test_what_was_read_after_the_lease_is_not_used(self, image, dialect: Dialect) -> None:
        engine = Engine(dialect=dialect)
        engine.scheduler.add_request(offered("a", image("x", 2, 4)))
        engine.step(0)
        engine.ec.take_asked()
        engine.grant("x", until_ms=5)
        engine.step(1)
        engine.ec.now_ms = 6
        engine.arrive("x")
        plan, _ = engine.step(7)
        assert bool(plan.ec_loads) == (dialect is not IDEAL)
        assert bool(plan.scheduled_encoder_inputs) == (dialect is IDEAL)
        assert not engine.ec.take_asked(), "a second read would take as long"

    @pytest.mark.parametrize("dialect", [IDEAL, ideal_but(LOST)], ids=lambda one: one.name)
    def test_room_comes_back_after_a_producer_was_lost(self, image, dialect: Dialect) -> None:
        engine = Engine(dialect=dialect)
        engine.scheduler.add_request(offered("a", metadata_only(image("x", 2, 4))))
        engine.step(0)
        engine.grant("x")
        engine.step(1)
        engine.ec.reads.lost("p")
        assert engine.step(2)[1].failed
        for now_ms in (40, 50, 60):
            engine.scheduler.add_request(offered(f"b{now_ms}", image("z", 2, 4)))
            engine.step(now_ms)
        assert (engine.ec.copies.get("x") is None) == (dialect is IDEAL)

    @pytest.mark.parametrize("dialect", [IDEAL, ideal_but(NUMBER)], ids=lambda one: one.name)
    def test_a_copy_of_another_number_of_embeddings_does_not_serve(self, image, dialect: Dialect) -> None:
        engine = Engine(dialect=dialect)
        engine.ec.copies.take("x", 4)
        engine.ec.copies.publish("x")
        engine.scheduler.add_request(Request("a", TokenPrompt([7] * 12), 1, (image("x", 2, 6),)))
        plan, _ = engine.step(0)
        assert (dict(plan.scheduled_encoder_inputs), list(plan.ec_loads)) == (
            ({"a": [0]}, []) if dialect is IDEAL else ({}, ["x"])
        )

    @pytest.mark.parametrize("dialect", [IDEAL, named("vllm-0.32")], ids=lambda one: one.name)
    def test_a_reset_drops_the_copies(self, image, dialect: Dialect) -> None:
        engine = Engine("both", dialect=dialect)
        engine.scheduler.add_request(Request("a", TokenPrompt([7] * 8), 1, (image("x", 2, 4),)))
        engine.step(0)
        assert engine.ec.copies.is_ready("x")
        engine.scheduler.reset_encoder_cache()
        assert engine.ec.copies.is_ready("x") == (dialect is not IDEAL)


def test_a_clone_is_independent_and_equal(image) -> None:
    engine = Engine("both")
    engine.scheduler.add_request(offered("a", image("x", 2, 4), image("y", 8, 4), length=16))
    engine.step(0)
    engine.grant("x")
    engine.step(1)
    clone, before = engine.scheduler.clone(), engine.scheduler.fingerprint()
    assert clone.fingerprint() == before
    engine.arrive("x")
    engine.grant("y")
    engine.step(2)
    assert clone.fingerprint() == before != engine.scheduler.fingerprint()


def test_a_digest_does_not_know_what_time_it_is(image) -> None:
    digests = set()
    for start_ms in (0, 1000):
        engine = Engine()
        engine.scheduler.add_request(offered("a", image("x", 2, 4)))
        engine.step(start_ms)
        engine.ec.now_ms = start_ms + 3
        digests.add(engine.scheduler.fingerprint())
    assert len(digests) == 1
