"""What tests of the engine share: short ways to say requests and to run a scheduler to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import StepPlan
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.scheduler.scheduler import Scheduler


def _text(request_id: str, length: int, max_tokens: int = 1, content: object = None, **fields: object) -> Request:
    prompt = RunPrompt([TokenRun(request_id if content is None else content, 0, length)])
    return Request(request_id, prompt, max_tokens, **fields)


@pytest.fixture
def text() -> Callable[..., Request]:
    """A request of `length` tokens of text, its own unless `content` names it."""
    return _text


@pytest.fixture
def image() -> Callable[..., MediaFeature]:
    """An image at an offset, with pixels and a grid that stays on the CPU."""

    def make(identifier: str, offset: int, length: int, mask: list[int] | None = None) -> MediaFeature:
        pixels = Field(TensorHandle("bfloat16", (length, 8)), BatchedKind())
        grid = Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))
        position = PlaceholderRange(offset, length, None if mask is None else bytes(mask))
        return MediaFeature("image", identifier, position, MediaItem({"pixel_values": pixels, "image_grid_thw": grid}))

    return make


@pytest.fixture
def run() -> Callable[..., list[StepPlan]]:
    """Plans until nothing is left, at most `limit` steps; each plan's output is handed in before the next is made."""

    def go(scheduler: Scheduler, limit: int = 1000) -> list[StepPlan]:
        plans: list[StepPlan] = []
        while scheduler.has_unfinished and len(plans) < limit:
            plans.append(scheduler.schedule())
            scheduler.update_from_output(plans[-1])
        return plans

    return go
