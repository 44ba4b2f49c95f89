"""Systems under test, and recordings of them to compare the model with."""

from epdsim.sut.dispatch import replay_any
from epdsim.sut.replay import ReplayCount, ReplayReport

__all__ = ["ReplayCount", "ReplayReport", "replay_any"]
