"""Style `push`: the engine that computes the prompt is chosen before encode, so that encoders can push to it (Mooncake).

An engine that is lost takes what was pushed to it along: its requests are encoded again, for another one.
"""

from __future__ import annotations

from epdsim.events import InstanceChosen
from epdsim.fleet.clock import Steps
from epdsim.fleet.orchestrators.encoding import Encoding
from epdsim.fleet.orchestrators.per_item import PerItem
from epdsim.fleet.orchestrators.task import Task
from epdsim.fleet.telling import NAME


class Push(PerItem):
    """As `per_item`, with the consumer chosen first."""

    def _encode(self, task: Task, encoding: Encoding) -> Steps:
        world = self._world
        if task.rendered.items:
            task.consumer = yield from self._calls.choose_prefill(task)
            world.emit(InstanceChosen(world.env.now, NAME, task.request_id, "prefill", task.consumer.name))
        yield from encoding.encode(task)

    def _forget(self, task: Task) -> None:
        task.handles = task.consumer = None
