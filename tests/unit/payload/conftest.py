"""Plans with real tensors, small enough for a unit test."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.plan import NewRequestData, StepPlan


class Plans:
    """Makers of handles, items and plans."""

    @staticmethod
    def handle(num_bytes: int, seed: int = 0, digest: str = "") -> TensorHandle:
        """A float32 tensor of random values."""
        assert num_bytes % 4 == 0
        tensor = torch.rand(num_bytes // 4, generator=torch.Generator().manual_seed(seed))
        return TensorHandle("float32", (num_bytes // 4,), source=tensor, digest=digest)

    @staticmethod
    def feature(index: int, *handles: TensorHandle) -> MediaFeature:
        """A feature with one field per handle, or stripped when there is none."""
        item = MediaItem({f"field{i}": Field(one, BatchedKind()) for i, one in enumerate(handles)}) if handles else None
        return MediaFeature("image", f"h{index}", PlaceholderRange(index * 20, 16), item, f"h{index}")

    @staticmethod
    def plan(features: Sequence[MediaFeature], num_computed_tokens: int = 0) -> StepPlan:
        """A step that admits one request."""
        new = NewRequestData("a", num_computed_tokens, (1, 2, 3), tuple(features), 20 * len(features) + 1)
        return StepPlan(0, {"a": 1}, new=(new,))


@pytest.fixture(scope="session")
def plans() -> Plans:
    """The makers."""
    return Plans()
