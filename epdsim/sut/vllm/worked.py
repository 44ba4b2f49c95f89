"""The real scheduler with the release's own runner behind it, as the engine of a play."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_play import Tokens
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workers import Worked, is_workable, told_until_lost
from epdsim.sut.vllm.engine import VllmEngine
from epdsim.sut.vllm.runners import State, V1Runner, V2Runner, has_known_runners


class WorkedVllm(VllmEngine):
    """The real scheduler with a real runner behind it, which takes every plan in until it is lost.

    Args:
        workload: Its settings are used.
        far: What is beyond its EC connector.
    """

    def __init__(self, workload: RecordedWorkload, far: FarSide) -> None:
        super().__init__(workload, far)
        self._runner = (V1Runner if workload.config.model_runner == "v1" else V2Runner)(workload)
        self._features: dict[str, Sequence[Any]] = {}
        self._worked: Worked | None = None
        self._is_lost = False

    def reset(self, which: str) -> None:
        """Reset a cache, of both sides."""
        super().reset(which)
        if which == "encoder":
            self._runner.reset_encoder_cache()

    def schedule(self) -> Any:
        """Plan the next step; the runner takes it in."""
        plan = super().schedule()
        self._features |= {name: request.mm_features for name, request in self.scheduler.requests.items()}
        if self.drives_on():
            self.took(self._runner.execute(plan, self._features))
        return plan

    def drives_on(self) -> bool:
        """Whether the runner takes the next step."""
        return not self._is_lost

    def took(self, state: State) -> None:
        """The runner has taken a step."""
        self._worked = None if self._is_lost else told_until_lost(state["runs"], state["splices"])
        self._is_lost = self._is_lost or (self._worked is not None and self._worked.is_last)

    def yielded(self, tokens: Tokens) -> None:
        """What the step just planned yields."""
        if self.drives_on():
            self._runner.sampled(tokens)

    def worked(self) -> Worked | None:
        """What the runner did in the step just planned; None once it is lost."""
        worked, self._worked = self._worked, None
        return worked


def vllm_engine() -> Callable[[RecordedWorkload, FarSide], VllmEngine]:
    """Builds the release's scheduler, with its runner behind it where that is known and can take what happens."""
    has_runners = has_known_runners()

    def make(workload: RecordedWorkload, far: FarSide) -> VllmEngine:
        return (WorkedVllm if has_runners and is_workable(workload) else VllmEngine)(workload, far)

    return make
