"""The model's EC connector that pulls, before the far side of a play: messages in, messages out; a step lasts a second."""

from __future__ import annotations

from epdsim.core.ec.pull import PullConnector
from epdsim.core.ec.read import PullTimes
from epdsim.core.rules import Dialect
from epdsim.sut.schedule_ec import FarSide

MS_PER_STEP = 1000
_FOREVER_MS = float("inf")


def model_pull(role: str, far: FarSide, dialect: Dialect) -> PullConnector:
    """The connector of a workload."""
    times = PullTimes(*(steps * MS_PER_STEP for steps in far.ec.bounds))
    return PullConnector(role, far.ec.capacity, times, dialect)


def hand_in(connector: PullConnector, far: FarSide) -> None:
    """Before a step: what has come from others."""
    connector.now_ms = far.now * MS_PER_STEP
    for producer, identifier, answer in far.answers():
        connector.reads.answered(producer, identifier, answer, _FOREVER_MS)
    for producer, identifier, is_good in far.ended_reads():
        connector.reads.ended(producer, identifier, connector.now_ms, is_good=is_good)
    for producer in far.lost_producers():
        connector.reads.lost(producer)
    for consumer, identifier in far.asks():
        connector.leases.asked(consumer, identifier)
    for consumer, identifier in far.finished_reads():
        connector.leases.read(consumer, identifier)


def send_out(connector: PullConnector, far: FarSide) -> None:
    """After a step is planned: what others are told."""
    for producer, identifier in connector.take_asked():
        far.ask(producer, identifier)
    for producer, identifier in connector.take_begun():
        far.begin_read(producer, identifier)
    for grant in connector.take_grants():
        far.hear(grant.consumer, grant.identifier, grant.answer)


def report(connector: PullConnector, far: FarSide) -> None:
    """After an update: what workers have copied."""
    connector.saved(far.done.saves)
    connector.loaded(far.done.loads)


def announce(connector: PullConnector, far: FarSide) -> None:
    """What requests that have ended have to offer."""
    for request_id, offers in connector.take_announced().items():
        far.announce(request_id, offers)
