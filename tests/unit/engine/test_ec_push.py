"""An EC connector that is pushed to: waits, loads before admission, what is kept, and failures of one request alone."""

from __future__ import annotations

import pytest

from epdsim.core.ec.push import LOCAL, ROOM, Push, PushConnector, PushTimes
from epdsim.core.ec.transfers import TransferState
from epdsim.core.items import MediaFeature
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import EcOffer, Request
from epdsim.core.rules import IDEAL, Dialect, Replacement, Rule
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler


def with_defect(rule: Rule) -> Dialect:
    """The ideal, but for what vLLM 0.32 has in place of one rule."""
    released = named("vllm-0.32").replacements[rule.name].behaviour
    return IDEAL.replacing("defect", {rule.name: Replacement(released, "on purpose")})


RELEASED, AHEAD = with_defect(LOCAL), with_defect(ROOM)


class Engine:
    """A scheduler with a connector, and a hand on the clock."""

    def __init__(self, role: str = "consumer", capacity: int = 16, dialect: Dialect = IDEAL, **settings) -> None:
        defaults = {"block_size": 4, "num_gpu_blocks": 65, "max_num_batched_tokens": 16, "max_num_seqs": 4}
        self.ec = PushConnector(role, capacity, PushTimes(wait_ms=100, keep_ms=300), dialect)
        self.scheduler = Scheduler(SchedulerConfig(**defaults | settings), dialect, self.ec)

    def step(self, now_ms: float):
        self.ec.now_ms = now_ms
        plan = self.scheduler.schedule()
        return plan, self.scheduler.update_from_output(plan)


def metadata_only(feature: MediaFeature) -> MediaFeature:
    return MediaFeature(feature.modality, feature.identifier, feature.position, feature.data.subset())


def named_push(name: str, *features: MediaFeature, transfer: str = "t", **fields) -> Request:
    offers = {one.identifier: EcOffer(transfer_id=f"{transfer}-{one.identifier}") for one in features}
    return Request(name, TokenPrompt([7] * 12), 1, features, ec_offers=offers, **fields)


def test_a_push_is_awaited_and_loaded_with_the_step_that_needs_it(image, text) -> None:
    engine = Engine()
    engine.scheduler.add_request(named_push("a", metadata_only(image("x", 2, 4))))
    engine.scheduler.add_request(text("b", 4))
    assert list(engine.step(0)[0].num_scheduled_tokens) == ["b"]
    engine.ec.came("t-x", "x", 4)
    plan, _ = engine.step(1)
    assert (list(plan.num_scheduled_tokens), list(plan.ec_loads)) == (["a"], ["x"])
    assert not plan.scheduled_encoder_inputs
    assert not engine.ec.is_busy


def test_items_that_fill_the_encoder_cache_together_are_loaded_one_after_the_other(image) -> None:
    """ENC-CONS: with room for one of them, each is loaded when the chunk that needs it is planned."""
    loads = {}
    for dialect in (IDEAL, AHEAD):
        engine = Engine(dialect=dialect, encoder_cache_size=4, max_num_encoder_input_tokens=4)
        items = [image("x", 0, 4), image("y", 5, 4)]
        engine.scheduler.add_request(named_push("a", *map(metadata_only, items)))
        for item in items:
            engine.ec.came(f"t-{item.identifier}", item.identifier, 4)
        loads[dialect.name] = [list(engine.step(now_ms)[0].ec_loads) for now_ms in range(3)]
    assert loads == {"ideal": [["x"], ["y"], []], "defect": [["x", "y"], [], []]}


def test_who_is_gone_before_it_is_admitted_leaves_nothing_with_the_workers(image) -> None:
    """EC-SYNC: what workers were told to load is known to the encoder cache, and so is dropped by it one day."""
    loads = {}
    for dialect in (IDEAL, AHEAD):
        engine = Engine(dialect=dialect)
        engine.ec.came("t-x", "x", 4)
        engine.scheduler.add_request(named_push("a", *map(metadata_only, (image("x", 2, 4), image("y", 7, 4)))))
        loads[dialect.name] = list(engine.step(0)[0].ec_loads)
        engine.scheduler.finish_requests(["a"])
        assert not engine.scheduler._engine.encoder_cache.entries
    assert loads == {"ideal": [], "defect": ["x"]}


def test_the_release_loads_first_and_then_its_request_runs(image) -> None:
    engine = Engine(dialect=AHEAD)
    engine.scheduler.add_request(named_push("a", metadata_only(image("x", 2, 4))))
    engine.step(0)
    engine.ec.came("t-x", "x", 4)
    plan, _ = engine.step(1)
    assert (list(plan.num_scheduled_tokens), list(plan.ec_loads)) == ([], ["x"])
    assert not engine.step(2)[0].num_scheduled_tokens, "workers have not loaded it"
    engine.ec.loaded("x")
    plan, _ = engine.step(3)
    assert list(plan.num_scheduled_tokens) == ["a"]
    assert not plan.scheduled_encoder_inputs
    assert not engine.ec.is_busy


def test_a_push_may_come_before_its_request_and_is_kept_for_a_while(image) -> None:
    for asked_ms, is_there in ((299, True), (300, False)):
        engine = Engine()
        engine.ec.came("t-x", "x", 4)
        engine.scheduler.add_request(Request("z", TokenPrompt([7] * 4), 1, (image("z", 0, 2),)))
        engine.step(0)
        engine.scheduler.add_request(named_push("a", metadata_only(image("x", 2, 4))))
        plan, outcome = engine.step(asked_ms)
        assert (list(plan.ec_loads), list(outcome.failed)) == ((["x"], []) if is_there else ([], ["a"]))
        assert list(engine.ec.take_cancelled()) == ([] if is_there else ["t-x"])


@pytest.mark.parametrize("has_pixels", [True, False])
@pytest.mark.parametrize("case", ["never", "load fails", "load hangs", "name of another"])
def test_one_request_fails_alone_or_encodes_by_itself(image, text, case: str, *, has_pixels: bool) -> None:
    engine = Engine(dialect=AHEAD if case.startswith("load") else IDEAL)
    item = image("x", 2, 4)
    engine.scheduler.add_request(named_push("a", item if has_pixels else metadata_only(item)))
    engine.scheduler.add_request(text("b", 4, max_tokens=60))
    if case == "name of another":
        engine.ec.came("t-x", "y", 4)
    encoded, failed = False, {}
    for now_ms in range(0, 300, 10):
        plan, outcome = engine.step(now_ms)
        if now_ms == 10 and case.startswith("load"):
            engine.ec.came("t-x", "x", 4)
        if plan.ec_loads and case == "load fails":
            engine.ec.loaded("x", is_good=False)
        encoded = encoded or plan.scheduled_encoder_inputs == {"a": [0]}
        failed |= outcome.failed
    assert encoded == has_pixels
    assert list(failed) == ([] if has_pixels else ["a"])
    assert all("'x'" in reason and "t-x" in reason for reason in failed.values())
    assert engine.scheduler.running == ["b"]
    assert engine.ec.is_busy == (case == "name of another"), "the other item is still kept for somebody"


@pytest.mark.parametrize("dialect", [IDEAL, RELEASED], ids=lambda one: one.name)
def test_an_item_that_nobody_pushes_is_encoded_here(image, dialect: Dialect) -> None:
    engine = Engine(dialect=dialect)
    engine.scheduler.add_request(Request("a", TokenPrompt([7] * 12), 1, (image("x", 2, 4),)))
    outcomes = [engine.step(now_ms) for now_ms in range(0, 200, 10)]
    assert any(plan.scheduled_encoder_inputs for plan, _ in outcomes) == (dialect is IDEAL)
    assert [name for _, outcome in outcomes for name in outcome.failed] == ([] if dialect is IDEAL else ["a"])


def load(engine: Engine, identifier: str, num_embeds: int, now_ms: float, image) -> None:
    name = f"r{now_ms}"
    engine.ec.came(f"{name}-{identifier}", identifier, num_embeds)
    engine.scheduler.add_request(named_push(name, metadata_only(image(identifier, 0, num_embeds)), transfer=name))
    engine.step(now_ms)
    engine.ec.loaded(identifier)
    engine.step(now_ms + 1)
    engine.step(now_ms + 2)


def test_what_the_encoder_cache_drops_is_kept_in_the_buffers_while_there_is_room(image) -> None:
    engine = Engine(capacity=6, encoder_cache_size=4, max_num_encoder_input_tokens=4, enable_prefix_caching=False)
    for at, name in enumerate("xyz"):
        load(engine, name, 4, 10 * at, image)
    states = {name: [state for state in TransferState if engine.ec.transfers.find(name, state)] for name in "xyz"}
    assert states["z"] == [TransferState.LOADED]
    assert states["y"] == [TransferState.KEPT]
    assert states["x"] == [TransferState.CANCELLED]
    assert list(engine.ec.take_cancelled()) == ["r0-x"]
    engine.scheduler.add_request(named_push("again", metadata_only(image("y", 0, 4)), transfer="r10"))
    assert list(engine.step(50)[0].ec_loads) == ["y"]


def test_a_request_that_ends_cancels_its_transfers_and_late_words_revive_nothing(image) -> None:
    engine = Engine()
    engine.scheduler.add_request(named_push("a", metadata_only(image("x", 2, 4))))
    engine.step(0)
    engine.scheduler.finish_requests(["a"])
    assert list(engine.ec.take_cancelled()) == ["t-x"]
    engine.ec.came("t-x", "x", 4)
    engine.ec.loaded("x")
    engine.scheduler.add_request(named_push("b", metadata_only(image("x", 2, 4))))
    plan, outcome = engine.step(1)
    assert (list(plan.ec_loads), list(outcome.failed)) == ([], ["b"])


def test_a_producer_pushes_what_it_encodes_once_to_the_consumer_that_was_chosen(image) -> None:
    engine = Engine("producer", max_num_batched_tokens=8)
    offers = {"x": EcOffer("decode-1", transfer_id="t")}
    engine.scheduler.add_request(Request("a", TokenPrompt([7] * 20), 1, (image("x", 2, 4),), ec_offers=offers))
    engine.step(0)
    assert list(engine.ec.take_pushes()) == [Push("decode-1", "t", "x", 4)]
    engine.step(1)
    assert not engine.ec.take_pushes()


def test_a_reset_forgets_what_was_loaded(image) -> None:
    engine = Engine()
    load(engine, "x", 4, 0, image)
    engine.scheduler.reset_encoder_cache()
    engine.step(5)
    assert engine.ec.transfers.find("x", TransferState.LOADED) is None
    assert list(engine.ec.take_cancelled()) == ["r0-x"]


def test_a_clone_is_independent_and_equal(image) -> None:
    engine = Engine("both")
    engine.scheduler.add_request(named_push("a", image("x", 2, 4)))
    engine.step(0)
    clone, before = engine.scheduler.clone(), engine.scheduler.fingerprint()
    assert clone.fingerprint() == before
    engine.ec.came("t-x", "x", 4)
    engine.step(1)
    assert clone.fingerprint() == before != engine.scheduler.fingerprint()
