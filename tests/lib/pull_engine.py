"""An engine with an EC connector that pulls, for tests."""

from __future__ import annotations

from epdsim.core.ec.pull import PullConnector
from epdsim.core.ec.read import PullTimes
from epdsim.core.ec.serve import Answer
from epdsim.core.items import MediaFeature
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import EcOffer, Request
from epdsim.core.rules import IDEAL, Dialect, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler

TIMES = PullTimes(wait_ms=100, answer_ms=20, read_ms=20, quarantine_ms=30, lease_ms=40)


class Engine:
    """A scheduler with a connector, and a hand on the clock."""

    def __init__(self, role: str = "consumer", capacity: int = 16, dialect: Dialect = IDEAL, **settings) -> None:
        defaults = {"block_size": 4, "num_gpu_blocks": 65, "max_num_batched_tokens": 16, "max_num_seqs": 4}
        self.ec = PullConnector(role, capacity, TIMES, dialect)
        self.scheduler = Scheduler(SchedulerConfig(**defaults | settings), dialect, self.ec)

    def step(self, now_ms: float | None = None):
        if now_ms is not None:
            self.ec.now_ms = now_ms
        plan = self.scheduler.schedule()
        outcome = self.scheduler.update_from_output(plan)
        self.ec.saved(plan.ec_saves)
        self.ec.loaded(plan.ec_loads)
        return plan, outcome

    def grant(self, identifier: str, until_ms: float = float("inf")) -> None:
        self.ec.reads.answered("p", identifier, Answer.GRANTED, until_ms)

    def arrive(self, identifier: str, *, is_good: bool = True) -> None:
        self.ec.reads.ended("p", identifier, self.ec.now_ms, is_good=is_good)


def metadata_only(feature: MediaFeature) -> MediaFeature:
    return MediaFeature(feature.modality, feature.identifier, feature.position, feature.data.subset())


def offered(name: str, *features: MediaFeature, length: int = 12, **fields) -> Request:
    offers = {one.identifier: EcOffer("p", one.position.num_embeds) for one in features}
    return Request(name, TokenPrompt([7] * length), 1, features, ec_offers=offers, **fields)


def ideal_but(*rules) -> Dialect:
    released = named("vllm-0.32").replacements
    return IDEAL.replacing(
        "defect", {rule.name: Replacement(released[rule.name].behaviour, "on purpose") for rule in rules}
    )
