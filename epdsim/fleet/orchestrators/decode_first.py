"""Style `decode_first`: the engine that generates is called first; prefill pushes into its blocks, layer by layer (vLLM-Ascend).

The decode engine takes the request, gives it blocks and says so; then prefill is called, on its behalf, and the KV cache of each
layer goes as soon as it is computed. Who waits for whom is `epdsim.core.kv.handover` in the order `"push"`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import simpy

from epdsim.core.errors import EpdsimError
from epdsim.core.kv.handover import HandOver
from epdsim.core.request import KvTransfer
from epdsim.events import KvTransferred
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import InstanceLostError
from epdsim.fleet.jobs import Job
from epdsim.fleet.orchestrators.base import Orchestrator
from epdsim.fleet.orchestrators.calls import Steps
from epdsim.fleet.orchestrators.task import Task

AWAITED = KvTransfer(loads_async=True, num_loads=1)
"""The request waits in the decode engine, with its blocks, until the KV cache has come."""


class DecodeFirst(Orchestrator):
    """Decode, which waits; prefill on its behalf."""

    def _generate(self, task: Task) -> Steps:
        world, calls = self._world, self._calls
        engine = yield from calls.choose_decode(task)
        request, way_ms = calls.send_decode(task, engine, AWAITED)
        engine.outstanding += 1
        try:
            yield world.after(way_ms)
            yield engine.gone(task.request_id)
            job = engine.submit(request, task.rendered, is_visible=True, setback=task.setback)
            job.done.defused = True  # it may fail while something else is waited for
            try:
                if job.allocated is not None:
                    yield job.allocated | job.done
                yield from self._fill(task, engine, job)
                yield job.done
            except EpdsimError:
                engine.abort(job)
                raise
        finally:
            engine.outstanding -= 1

    def _fill(self, task: Task, decode: EngineInstance, job: Job) -> Steps:
        """Have the prompt computed into the blocks of a request that waits for it."""
        world, calls = self._world, self._calls
        if job.allocated is None:
            return  # the engine is lost, and the caller will hear of it
        handover = HandOver("push", float("inf"), dialect=world.config.dialect)
        handover.allocated()
        prefill = yield from calls.choose_prefill(task, job.done)
        num_losses = prefill.num_losses
        began_ms = yield from self._prefill(task, prefill, job)
        handover.begun()
        handover.prefilled(world.env.now)
        num_layers, kv_bytes = world.config.costs.kv_layers, calls.kv_bytes(task)
        first_ms = began_ms + (world.env.now - began_ms) / num_layers
        yield world.after(calls.kv.to(decode.name).push(kv_bytes, first_ms, num_layers)) | job.done
        if prefill.num_losses != num_losses:
            raise InstanceLostError(prefill.name, world.env.now)
        handover.ended(world.env.now)
        world.emit(KvTransferred(world.env.now, decode.name, task.request_id, prefill.name, kv_bytes))
        decode.receive(job)

    def _prefill(self, task: Task, engine: EngineInstance, waiting: Job) -> Generator[simpy.Event, Any, float]:
        """Have an engine compute the prompt; when it began to."""
        world, calls = self._world, self._calls
        request, way_ms = calls.send_prefill(task, engine)
        engine.outstanding += 1
        try:
            yield world.after(way_ms) | waiting.done
            yield engine.gone(task.request_id)
            job = engine.submit(request, task.rendered, is_visible=False, setback=task.setback)
            job.done.defused = True
            try:
                yield job.done | waiting.done
            except EpdsimError:
                engine.abort(job)
                raise
        finally:
            engine.outstanding -= 1
        return job.began_ms if job.began_ms >= 0 else world.env.now
