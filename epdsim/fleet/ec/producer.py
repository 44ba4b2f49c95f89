"""An encode instance's side of the hand-over of embeddings."""

from __future__ import annotations

from typing import Protocol

from epdsim.fleet.encode import EncodeItem, EncodeJob


class Producer(Protocol):
    """What becomes of embeddings at the encoder that made them."""

    def has(self, item: EncodeItem) -> bool:
        """Whether they are at hand, so that the encoder need not run."""
        ...

    def publish(self, job: EncodeJob, item: EncodeItem) -> None:
        """They are complete: hand them to who wants them."""
        ...

    def lose(self) -> None:
        """The instance ends."""
        ...

    def come_back(self) -> None:
        """It begins anew, with nothing kept."""
        ...
