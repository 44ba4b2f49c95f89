"""Kind `pull`: engines read embeddings out of the host memory of the encoder that made them (vLLM's CPU connector over NIXL).

Engines' side is `epdsim.core.ec.pull`, encoders' side `epdsim.core.ec.serve`: here is who carries their messages. Asking and
answering take the latency of the link, reading takes its bandwidth; the copy from host memory into the encoder cache takes no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from epdsim.core.ec.pull import PullConnector
from epdsim.core.ec.read import PullTimes
from epdsim.core.ec.serve import Grant, Leases
from epdsim.core.plan import StepPlan
from epdsim.core.request import EcOffer
from epdsim.events import EcLoaded
from epdsim.fleet.config import EcConfig
from epdsim.fleet.ec.consumer import Engine, TimedConsumer
from epdsim.fleet.ec.producer import Keeper
from epdsim.fleet.encode import EncodeItem, EncodeJob
from epdsim.fleet.lines import Line
from epdsim.fleet.world import World


class PullProducer(Keeper):
    """Serves what it keeps, to who asks; what was granted is kept until it is read, or the lease ends.

    Args:
        world: Clock.
        name: Of the instance.
        config: Capacity and lease.
    """

    def __init__(self, world: World, name: str, config: EcConfig) -> None:
        super().__init__(name, config.producer_embeds)
        self._world, self._lease_ms = world, config.lease_ms
        self._leases = Leases(self.kept, self._lease_ms)

    def publish(self, job: EncodeJob, item: EncodeItem) -> EcOffer | None:
        """Keep it; nothing is offered of what does not fit."""
        del job
        self._leases.answer(self._world.env.now)  # those that have ended make room
        return EcOffer(self.name, item.num_embeds) if self.keep(item) else None

    def asked(self, consumer: str, mm_hash: str) -> Grant:
        """Answer an engine that asks."""
        self._leases.asked(consumer, mm_hash)
        (grant,) = self._leases.answer(self._world.env.now)
        return grant

    def read(self, consumer: str, mm_hash: str) -> None:
        """An engine has read what it was granted."""
        self._leases.read(consumer, mm_hash)

    def come_back(self) -> None:
        """It begins anew."""
        super().come_back()
        self._leases = Leases(self.kept, self._lease_ms)


class PullConsumer(TimedConsumer[PullConnector]):
    """Reads what requests are offered, before they are scheduled.

    Args:
        world: Clock, configuration, sinks.
        engine: Whose it is.
        line: What embeddings come on.
        producers: By name of their instance.
    """

    def __init__(self, world: World, engine: Engine, line: Line, producers: Mapping[str, PullProducer]) -> None:
        super().__init__(world, engine, line)
        self._producers = producers
        self._latency_ms = world.config.costs.ec_link.latency_ms

    def _new(self) -> PullConnector:
        config = self._world.config.ec
        times = PullTimes(config.wait_ms, config.answer_ms, config.read_ms, lease_ms=config.lease_ms)
        return PullConnector("consumer", config.consumer_embeds, times, self._world.config.dialect)

    def planned(self, plan: StepPlan) -> float:
        """Ask, and begin to read."""
        del plan
        for name, mm_hash in self._connector.take_asked():
            self._later(self._world.after(self._latency_ms), partial(self._ask, self._producers[name], mm_hash))
        for name, mm_hash in self._connector.take_begun():
            self._read(self._producers[name], mm_hash)
        return 0.0

    def stepped(self, plan: StepPlan) -> None:
        """Copies that were loaded may go."""
        self._connector.loaded(plan.ec_loads)

    def _ask(self, producer: PullProducer, mm_hash: str) -> None:
        if producer.is_lost:
            return  # nobody answers
        grant = producer.asked(self._engine.name, mm_hash)
        self._later(self._world.after(self._latency_ms), partial(self._hear, producer.name, grant))

    def _hear(self, name: str, grant: Grant) -> None:
        self._connector.reads.answered(name, grant.identifier, grant.answer, grant.until_ms)
        self._engine.nudge()

    def _read(self, producer: PullProducer, mm_hash: str) -> None:
        """Move an embedding that was granted; an instance that was lost since then has nothing to read."""
        if producer.is_lost or not producer.kept.is_ready(mm_hash):
            self._end(producer, mm_hash, is_good=False)
            return
        nbytes, life = producer.size(mm_hash), producer.life

        def end() -> None:
            is_good = producer.life == life
            if is_good:
                producer.read(self._engine.name, mm_hash)
                self._world.emit(EcLoaded(self._world.env.now, self._engine.name, mm_hash, nbytes))
            self._end(producer, mm_hash, is_good=is_good)

        self._later(self._line.transfer([nbytes]), end)

    def _end(self, producer: PullProducer, mm_hash: str, *, is_good: bool) -> None:
        self._connector.reads.ended(producer.name, mm_hash, self._world.env.now, is_good=is_good)
        self._engine.nudge()


class PullSides:
    """The two sides of reads.

    Args:
        world: Clock, configuration, sinks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._producers: dict[str, PullProducer] = {}

    @property
    def keepers(self) -> list[PullProducer]:
        """Who keeps embeddings."""
        return list(self._producers.values())

    def producer(self, name: str) -> PullProducer:
        """An encode instance's."""
        made = self._producers[name] = PullProducer(self._world, name, self._world.config.ec)
        return made

    def consumer(self, engine: Engine, line: Line) -> PullConsumer:
        """An engine's."""
        return PullConsumer(self._world, engine, line, self._producers)
