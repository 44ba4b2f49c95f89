"""Style `decode_first`: the engine that generates is called first; prefill pushes into its blocks, layer by layer (vLLM-Ascend).

The decode engine takes the request, gives it blocks and says so; then prefill is called, on its behalf, and the KV cache of each
layer goes as soon as it is computed. Who waits for whom is `epdsim.core.kv.handover` in the order `"push"`.
"""

from __future__ import annotations

from epdsim.core.kv.handover import HandOver
from epdsim.core.request import KvTransfer
from epdsim.events import KvTransferred
from epdsim.fleet.clock import Steps
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import InstanceLostError
from epdsim.fleet.jobs import Job
from epdsim.fleet.orchestrators.base import Orchestrator
from epdsim.fleet.orchestrators.calls import Outstanding, Wanted
from epdsim.fleet.orchestrators.task import Task

AWAITED = KvTransfer(loads_async=True, num_loads=1)
"""The request waits in the decode engine, with its blocks, until the KV cache has come."""


class DecodeFirst(Orchestrator):
    """Decode, which waits; prefill on its behalf."""

    def _generate(self, task: Task) -> Steps:
        calls = self._calls
        engine = yield from calls.choose_decode(task)
        request, way = calls.send_decode(task, engine, AWAITED)
        with Outstanding(engine):
            job = yield from calls.submit(engine, request, task, way, is_visible=True)
            with Wanted(task, engine, job):
                if job.allocated is not None:
                    yield job.allocated | job.done
                yield from self._fill(task, engine, job)
                yield job.done

    def _fill(self, task: Task, decode: EngineInstance, job: Job) -> Steps:
        """Have the prompt computed into the blocks of a request that waits for it."""
        world, calls = self._world, self._calls
        if job.allocated is None:
            return  # the engine is lost, and the caller will hear of it
        handover = HandOver("push", float("inf"), dialect=world.config.dialect)
        handover.allocated()
        prefill = yield from calls.choose_prefill(task, job.done)
        num_losses = prefill.num_losses
        request, way = calls.send_prefill(task, prefill)
        computed = yield from calls.answer(prefill, request, task, way, is_visible=False, beside=[job.done])
        began_ms = computed.began_ms if computed.began_ms >= 0 else world.env.now
        handover.begun()
        handover.prefilled(world.env.now)
        num_layers, kv_bytes = world.config.costs.kv_layers, calls.kv_bytes(task)
        first_ms = began_ms + (world.env.now - began_ms) / num_layers
        line = calls.kv.to(decode.name)
        is_whole = num_layers == 1
        way = line.transfer([kv_bytes]) if is_whole else world.after(line.push(kv_bytes, first_ms, num_layers))
        yield way | job.done
        if prefill.num_losses != num_losses:
            raise InstanceLostError(prefill.name, world.env.now)
        handover.ended(world.env.now)
        world.emit(KvTransferred(world.env.now, decode.name, task.request_id, prefill.name, kv_bytes))
        decode.receive(job)
