"""Style `per_item`: an encode leg for each item, then prefill, then decode, which pulls the KV cache (llm-d's coordinator)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epdsim.events import KvTransferred
from epdsim.fleet.clock import Steps
from epdsim.fleet.encode import EncodeItem
from epdsim.fleet.engine import EngineInstance
from epdsim.fleet.faults import InstanceLostError
from epdsim.fleet.orchestrators.base import Orchestrator
from epdsim.fleet.orchestrators.encoding import EncodeLeg, Take
from epdsim.fleet.orchestrators.task import Task


def one_each(items: Sequence[EncodeItem], take: Take) -> Iterator[EncodeLeg]:
    """A leg for each item."""
    for item in items:
        yield EncodeLeg(take(item), [item])


class PerItem(Orchestrator):
    """Prefill once the embeddings are there, decode once the prompt is computed."""

    def _generate(self, task: Task) -> Steps:
        calls = self._calls
        engine = task.consumer or (yield from calls.choose_prefill(task))
        request, way = calls.send_prefill(task, engine)
        yield from calls.answer(engine, request, task, way, is_visible=not calls.hands_over)
        if calls.hands_over:
            yield from self._hand_over(task, engine)

    def _hand_over(self, task: Task, prefill: EngineInstance) -> Steps:
        """Move the KV cache to a decode engine and let it generate all tokens from the prompt's last position on."""
        world, calls, num_losses = self._world, self._calls, prefill.num_losses
        engine = yield from calls.choose_decode(task)
        request, way = calls.send_decode(task, engine)
        yield way
        kv_bytes = calls.kv_bytes(task)
        yield calls.kv.to(engine.name).transfer([kv_bytes])
        if prefill.num_losses != num_losses:
            raise InstanceLostError(prefill.name, world.env.now)
        world.emit(KvTransferred(world.env.now, engine.name, task.request_id, prefill.name, kv_bytes))
        yield from calls.answer(engine, request, task, world.after(0.0), is_visible=True)
