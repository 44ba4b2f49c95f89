"""Broadcast MB/s beside a plain memory copy of the same bytes in the same run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import NewRequestData, StepPlan
from epdsim.payload import TpGroup, message_size

pytestmark = pytest.mark.bench

IMAGE_BYTES = 15_482_880  # Gemma 4 with 560 soft tokens, vLLM PR 52041


def plan_of(num_images):
    features = []
    for index in range(num_images):
        handle = TensorHandle("float32", (1, 5040, 768), torch.full((1, 5040, 768), float(index)))
        item = MediaItem({"pixel_values": Field(handle, BatchedKind())})
        features.append(MediaFeature("image", f"h{index}", PlaceholderRange(600 * index, 560), item, f"h{index}"))
    return StepPlan(0, {"a": 1}, new=(NewRequestData("a", 0, (), tuple(features), 600 * num_images + 1),))


@pytest.mark.parametrize("num_images", [1, 8], ids=["ring", "socket"])
@pytest.mark.parametrize("readers", [2, 4])
def test_broadcast(benchmark, readers, num_images):
    plan = plan_of(num_images)
    with TpGroup(readers) as group:
        group.broadcast(plan)
        result = benchmark.pedantic(lambda: group.broadcast(plan, digest=False), rounds=15, warmup_rounds=2)
    assert result.received_bytes == (message_size(plan).total_bytes,) * readers
    benchmark.extra_info["mb_per_s"] = result.size.total_bytes / benchmark.stats["median"] / 1e6


@pytest.mark.parametrize("num_images", [1, 8])
def test_memory_copy_of_the_same_bytes(benchmark, num_images):
    source = np.ones(num_images * IMAGE_BYTES, np.uint8)
    target = np.zeros_like(source)
    benchmark.pedantic(lambda: np.copyto(target, source), rounds=15, warmup_rounds=2)
    assert target[-1] == 1
    benchmark.extra_info["mb_per_s"] = source.nbytes / benchmark.stats["median"] / 1e6
