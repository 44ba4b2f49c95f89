"""The producing side of an EC connector that pulls: answers, leases, announcements, and an engine in both roles."""

from __future__ import annotations

import pytest
from pull_engine import Engine, ideal_but

from epdsim.core.ec.pull import COUNTED, PullConnector
from epdsim.core.ec.serve import ANNOUNCED, Answer
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.rules import EC_RESET


class TestProducer:
    def encode(self, engine: Engine, image, *, is_saved: bool = True):
        engine.scheduler.add_request(Request("a", TokenPrompt([7] * 8), 1, (image("x", 2, 4),)))
        plan = engine.scheduler.schedule()
        assert list(plan.ec_saves) == ["x"]
        engine.scheduler.update_from_output(plan)
        if is_saved:
            engine.ec.saved(plan.ec_saves)

    def ask(self, engine: Engine, consumer: str, now_ms: float) -> Answer:
        engine.ec.now_ms = now_ms
        engine.ec.leases.asked(consumer, "x")
        (grant,) = engine.ec.take_grants()
        return grant.answer

    def test_what_is_being_copied_is_not_ready_and_what_is_not_there_is_missing(self, image) -> None:
        engine = Engine("producer")
        assert self.ask(engine, "c", 0) is Answer.MISSING
        self.encode(engine, image, is_saved=False)
        assert self.ask(engine, "c", 1) is Answer.NOT_READY
        engine.ec.saved(["x"])
        assert self.ask(engine, "c", 2) is Answer.GRANTED

    @pytest.mark.parametrize("dialect", [IDEAL, ideal_but(ANNOUNCED)], ids=lambda one: one.name)
    def test_only_what_is_complete_is_announced(self, image, dialect: Dialect) -> None:
        engine = Engine("producer", dialect=dialect)
        self.encode(engine, image, is_saved=False)
        assert dict(engine.ec.take_announced()) == ({} if dialect is IDEAL else {"a": {"x": 4}})
        engine.ec.saved(["x"])
        assert dict(engine.ec.take_announced()) == ({"a": {"x": 4}} if dialect is IDEAL else {})

    def test_a_lease_keeps_an_entry_until_it_is_read_or_the_lease_ends(self, image) -> None:
        engine = Engine("producer", capacity=4)
        self.encode(engine, image)
        for _ in range(2):  # asking again takes no second pin
            assert self.ask(engine, "c", 0) is Answer.GRANTED
        assert self.ask(engine, "d", 10) is Answer.GRANTED
        assert not engine.ec.copies.take("y", 1)
        engine.ec.leases.read("c", "x")
        engine.ec.leases.read("c", "x")
        engine.ec.take_grants()
        assert not engine.ec.copies.take("y", 1)
        engine.ec.now_ms = 51
        engine.ec.take_grants()
        assert engine.ec.copies.take("y", 1)
        assert self.ask(engine, "d", 52) is Answer.MISSING

    def test_a_run_that_was_dropped_leaves_no_copy_to_wait_for(self) -> None:
        connector = PullConnector("producer", 8)
        connector.copies.take("x", 4)
        connector._saves["x"] = None
        connector.withdrawn("x")
        connector.withdrawn("y")
        assert not connector.is_busy
        assert connector.copies.num_free == 8


class TestCounted:
    """An engine in both roles: one step loads one item of a request and encodes, and saves, another."""

    def step_of_two(self, image, dialect: Dialect):
        engine = Engine("both", capacity=4, dialect=dialect)
        engine.scheduler.add_request(Request("a", TokenPrompt([7] * 6), 1, (image("x", 0, 4),)))
        engine.step(0)
        assert engine.ec.copies.is_ready("x")
        engine.scheduler.reset_encoder_cache()
        two = (image("y", 0, 4), image("x", 4, 4))
        engine.scheduler.add_request(Request("b", TokenPrompt([8] * 12), 1, two))
        return engine, engine.step(1)[0]

    def test_a_copy_that_a_plan_counts_on_is_loaded(self, image) -> None:
        keeping = ideal_but(EC_RESET)
        engine, plan = self.step_of_two(image, keeping)
        assert (plan.scheduled_encoder_inputs, plan.ec_loads, plan.ec_saves) == ({"b": [0]}, ("x",), ())
        assert engine.ec.copies.is_idle

    def test_the_release_saves_over_it(self, image) -> None:
        names = {rule.name: named("vllm-0.32").replacements[rule.name] for rule in (EC_RESET, COUNTED)}
        _, plan = self.step_of_two(image, IDEAL.replacing("defect", names))
        assert (plan.scheduled_encoder_inputs, plan.ec_loads) == ({"b": [0]}, ())
