"""Laws of the EC connector that is pushed to, in the ideal: workers hold what the books say, waits end, who fails fails alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from epdsim.core.ec.push import ROOM, PushConnector, PushTimes
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import EcOffer, Request
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.workers.content import item_content
from epdsim.core.workers.records import Embedding
from epdsim.core.workers.worker import Worker

SIZES = {"w": 1, "x": 2, "y": 3, "z": 4}
"""Embeddings of the items."""

MOST_STEPS = 400


@dataclass(frozen=True)
class Asked:
    """A request: when it comes, when its client leaves, and by item when what it is to be pushed comes, None for never."""

    request: Request
    at: int
    leaves: int | None
    pushes: dict[str, int | None]


@dataclass(frozen=True)
class World:
    """An engine and what happens to it."""

    config: SchedulerConfig
    times: PushTimes
    capacity: int
    asked: list[Asked]


def item_at(name: str, offset: int, *, is_bare: bool) -> MediaFeature:
    pixels = Field(TensorHandle("bfloat16", (SIZES[name], 8)), BatchedKind())
    grid = Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))
    whole = MediaItem({"pixel_values": pixels, "image_grid_thw": grid})
    return MediaFeature("image", name, PlaceholderRange(offset, SIZES[name]), whole.subset() if is_bare else whole)


@st.composite
def requests(draw: st.DrawFn, number: int) -> Asked:
    name, offset, features = f"r{number}", draw(st.integers(0, 3)), []
    for item in draw(st.lists(st.sampled_from(sorted(SIZES)), max_size=4)):
        features.append(item_at(item, offset, is_bare=draw(st.booleans())))
        offset += SIZES[item] + draw(st.integers(0, 3))
    prompt = TokenPrompt(draw(st.lists(st.integers(1, 2), min_size=offset + 1, max_size=offset + 8)))
    at = draw(st.integers(0, 12))
    comes = st.none() | st.integers(0, at + 20)
    pushes = {one.identifier: draw(comes) for one in features if draw(st.integers(0, 4))}
    offers = {item: EcOffer(transfer_id=f"{name}-{item}") for item in pushes}
    request = Request(name, prompt, draw(st.integers(1, 12)), features, ec_offers=offers)
    return Asked(request, at, draw(st.none() | st.integers(at, at + 30)) if draw(st.booleans()) else None, pushes)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    config = SchedulerConfig(
        block_size=4,
        num_gpu_blocks=draw(st.integers(12, 30)),
        max_num_batched_tokens=draw(st.sampled_from([4, 8, 32])),
        max_num_seqs=draw(st.integers(1, 4)),
        encoder_cache_size=draw(st.integers(4, 9)),
        max_num_encoder_input_tokens=draw(st.integers(4, 9)),
        enable_prefix_caching=draw(st.booleans()),
        ec_role="consumer",
    )
    times = PushTimes(wait_ms=draw(st.sampled_from([3, 25])), keep_ms=draw(st.sampled_from([0.1, 4, 60])))
    return World(
        config, times, draw(st.integers(0, 8)), [draw(requests(number)) for number in range(draw(st.integers(1, 6)))]
    )


def play(world: World, dialect=IDEAL) -> list[str]:
    """What goes wrong, first things first."""
    connector = PushConnector("consumer", world.capacity, world.times, dialect)
    pushed = {name: Embedding(item_content(item_at(name, 0, is_bare=False)), size) for name, size in SIZES.items()}
    scheduler, worker = Scheduler(world.config, dialect, connector), Worker(world.config, ec_store=pushed)
    wrong, failed, ended = list[str](), dict[str, str](), set[str]()
    for step in range(MOST_STEPS):
        connector.now_ms = step
        for one in world.asked:
            name = one.request.request_id
            if one.at == step:
                worker.add_request(
                    replace(one.request, mm_features=[told_whole(item) for item in one.request.mm_features])
                )
                scheduler.add_request(one.request)
            if one.leaves == step and name not in ended:
                scheduler.finish_requests([name])
                ended.add(name)
            for item, at in one.pushes.items():
                if at == step:
                    connector.came(f"{name}-{item}", item, SIZES[item])
        plan = scheduler.schedule()
        wrong += [f"step {step} loads {name} again" for name in plan.ec_loads if name in worker.embeddings]
        done = worker.execute(plan)
        wrong += [f"step {step}: {one}" for one in done.violations]
        if sum(one.num_embeds for one in worker.embeddings.values()) > world.config.encoder_cache_size:
            wrong.append(f"after step {step} workers hold {sorted(worker.embeddings)}")
        outcome = scheduler.update_from_output(plan, done.sampled)
        for name in plan.ec_loads:
            connector.loaded(name)
        connector.take_cancelled()
        failed |= outcome.failed
        ended |= {*outcome.finished, *outcome.failed}
        if len(ended) == len(world.asked):
            break
    wrong += [f"{one.request.request_id} never ends" for one in world.asked if one.request.request_id not in ended]
    for one in world.asked:
        reason = failed.get(one.request.request_id)
        if reason is not None and not any("pixel_values" not in item.data.fields for item in one.request.mm_features):
            wrong.append(f"{one.request.request_id} fails with all that it needs: {reason}")
    return wrong


def told_whole(feature: MediaFeature) -> MediaFeature:
    """What an item stands for, whatever its request brings of it."""
    return item_at(feature.identifier, feature.position.offset, is_bare=False)


@pytest.mark.engine_law
@settings(max_examples=150)
@given(worlds())
def test_workers_hold_what_the_books_say_and_every_wait_ends(world: World) -> None:
    """ENC-HIT, ENC-CONS, EC-SYNC, STRIP-AVAIL, LIVE-WAIT, ISO."""
    assert play(world) == []
    event(f"{len(world.asked)} requests")


def test_loads_ahead_of_their_room_are_noticed() -> None:
    """The planted bug, which is the release's: two items are loaded where one has room."""
    items = [item_at(name, offset, is_bare=True) for name, offset in (("z", 0), ("y", 5))]
    request = Request(
        "a", TokenPrompt([1] * 12), 1, items, ec_offers={name: EcOffer(transfer_id=f"a-{name}") for name in "zy"}
    )
    config = SchedulerConfig(
        block_size=4, num_gpu_blocks=12, encoder_cache_size=4, max_num_encoder_input_tokens=4, ec_role="consumer"
    )
    world = World(config, PushTimes(), 8, [Asked(request, 0, None, {"z": 0, "y": 0})])
    assert play(world) == []
    released = named("vllm-0.32").replacements[ROOM.name]
    ahead = IDEAL.replacing("planted", {ROOM.name: Replacement(released.behaviour, "on purpose")})
    assert "workers hold" in play(world, ahead)[0]
