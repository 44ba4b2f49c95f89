"""Kind `push`: encoders write embeddings into the buffers of the engine that was chosen for them (vLLM's Mooncake connector).

Engines' side is `epdsim.core.ec.push`: here is who carries what is pushed. There is no store; what one request was sent is not
another's, though an encoder that still has an embedding pushes it without running.
"""

from __future__ import annotations

from collections.abc import Mapping

from epdsim.core.ec.push import PushConnector, PushTimes
from epdsim.core.plan import StepPlan
from epdsim.core.request import EcOffer
from epdsim.events import EcLoaded
from epdsim.fleet.config import EcConfig
from epdsim.fleet.ec.consumer import Engine, TimedConsumer
from epdsim.fleet.ec.producer import Keeper
from epdsim.fleet.encode import EncodeItem, EncodeJob
from epdsim.fleet.lines import Line
from epdsim.fleet.world import World


class PushConsumer(TimedConsumer[PushConnector]):
    """Takes what is pushed to its engine.

    Args:
        world: Clock, configuration, sinks.
        engine: Whose it is.
        line: What embeddings come on.
    """

    def _new(self) -> PushConnector:
        config = self._world.config.ec
        times = PushTimes(config.wait_ms, config.keep_ms)
        return PushConnector("consumer", config.consumer_embeds, times, self._world.config.dialect)

    def planned(self, plan: StepPlan) -> float:
        """Buffers of transfers that nobody wants are free."""
        del plan
        self._connector.take_cancelled()
        return 0.0

    def stepped(self, plan: StepPlan) -> None:
        """What was loaded stands in the encoder cache."""
        for mm_hash in plan.ec_loads:
            self._connector.loaded(mm_hash)

    def push(self, producer: PushProducer, item: EncodeItem) -> None:
        """An encoder writes an embedding into the buffers; one that is lost meanwhile leaves it incomplete."""
        life = producer.life

        def come() -> None:
            if producer.life != life:
                return
            self._world.emit(EcLoaded(self._world.env.now, self._engine.name, item.mm_hash, item.embedding_bytes))
            self._connector.came(item.transfer_id, item.mm_hash, item.num_embeds)
            self._engine.nudge()

        self._later(self._line.transfer([item.embedding_bytes]), come)


class PushProducer(Keeper):
    """Pushes what it encodes, or still has.

    Args:
        name: Of the instance.
        config: Capacity.
        consumers: By name of their engine.
    """

    def __init__(self, name: str, config: EcConfig, consumers: Mapping[str, PushConsumer]) -> None:
        super().__init__(name, config.producer_embeds)
        self._consumers = consumers

    def publish(self, job: EncodeJob, item: EncodeItem) -> EcOffer:
        """Push it to the engine that the leg names."""
        self.keep(item)
        self._consumers[job.consumer].push(self, item)
        return EcOffer(num_embeds=item.num_embeds, transfer_id=item.transfer_id)


class PushSides:
    """The two sides of pushes.

    Args:
        world: Clock, configuration, sinks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._consumers: dict[str, PushConsumer] = {}
        self.keepers: list[PushProducer] = []

    def producer(self, name: str) -> PushProducer:
        """An encode instance's."""
        made = PushProducer(name, self._world.config.ec, self._consumers)
        self.keepers.append(made)
        return made

    def consumer(self, engine: Engine, line: Line) -> PushConsumer:
        """An engine's."""
        made = self._consumers[engine.name] = PushConsumer(self._world, engine, line)
        return made
