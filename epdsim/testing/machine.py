"""A state machine over an engine, with rules as coarse as a story: arrive, advance, press, leave, reset.

Fine rules (one scheduler action each) need thousands of examples for what coarse ones find in hundreds. What the machine does is
kept as a workload, so that what it finds can be played again without it.
"""

from __future__ import annotations

import warnings
from typing import Any

from hypothesis import seed, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from msgspec.structs import replace

from epdsim.events import EngineDied, Event
from epdsim.sut.cases import EngineCase
from epdsim.sut.schedule_play import Play
from epdsim.sut.schedule_records import RecordedItem, RecordedRequest, RecordedWorkload
from epdsim.sut.systems import SystemUnderTest
from epdsim.sut.told import INSTANCE, MOST_STEPS, StepTeller, next_token
from epdsim.testing.hunt import Collector, Exploration, quiet_settings
from epdsim.testing.workloads import PLACEHOLDER, cramped

MOST_REQUESTS = 8
STEP_COUNT = 14
"""Rules of a run."""


class EngineMachine(RuleBasedStateMachine):
    """Drives the engine of `system`, and hands the run to `collector` at its end.

    Derive from it, set both, and add rules: `arrive`, `advance`, `abort` and `reset` are there to be called.

    Attributes:
        system: Under test.
        collector: Judges the run.
    """

    system: SystemUnderTest
    collector: Collector

    @initialize(
        runner=st.sampled_from(["v1", "v2"]),
        usable=st.integers(5, 9),
        largest=st.integers(2, 6),
        budget=st.integers(6, 20),
        is_async=st.booleans(),
    )
    def begin(self, runner: str, usable: int, largest: int, budget: int, is_async: bool) -> None:
        """An engine of few blocks and an encoder cache of one item."""
        plain = cramped(
            self.system.release,
            "machine",
            runner=runner,
            block_size=4,
            usable=usable,
            budget=budget,
            seqs=3,
            largest=largest,
            length=512,
        )
        config = replace(plain, async_scheduling=is_async)
        self.slots = usable * 4
        self.number = 0
        self.alive: list[str] = []
        self.is_dead = False
        self.workload = RecordedWorkload(config=config, requests=[], aborts=[], steps=[], unfinished=[])
        self.events: list[Event] = []
        self._known: dict[str, list[int]] = {}
        self._play: Play[Any] = self.system.play(self.workload)
        self._teller = StepTeller(
            self.workload, self.system.title, self.events.append, has_workers=self._play.has_workers
        )

    @precondition(lambda self: len(self.workload.requests) < MOST_REQUESTS)
    @rule(
        image=st.integers(0, 1),
        text=st.integers(1, 5),
        output=st.sampled_from([1, 2, 8, 40]),
        steps=st.integers(0, 3),
    )
    def ask(self, image: int, text: int, output: int, steps: int) -> None:
        """A request with one of two images in front, and some steps; equal ones begin alike."""
        length = self.workload.config.max_tokens_per_mm_item
        item = RecordedItem(modality="image", identifier=f"image-{image}", offset=1, length=length, is_embed=None)
        self.arrive([1] + [PLACEHOLDER] * length + [2] * text, [item], output)
        self.advance(steps)

    @precondition(lambda self: len(self.workload.requests) < MOST_REQUESTS)
    @rule(share=st.sampled_from([1, 2]), steps=st.integers(0, 6))
    def press(self, share: int, steps: int) -> None:
        """A text of its own that wants the whole pool, or half of it, and some steps."""
        number = len(self.workload.requests)
        self.arrive([10 + number] * max(1, self.slots // share - 2), [], 2)
        self.advance(steps)

    @rule(steps=st.integers(1, 20))
    def go_on(self, steps: int) -> None:
        """Some steps."""
        self.advance(steps)

    @precondition(lambda self: bool(self.alive))
    @rule(place=st.integers(0, MOST_REQUESTS))
    def leave(self, place: int) -> None:
        """A client leaves."""
        self.abort(self.alive[place % len(self.alive)])

    @rule(which=st.sampled_from(["prefix", "encoder"]))
    def forget(self, which: str) -> None:
        """A cache is reset."""
        self.reset(which)

    def arrive(self, prompt: list[int], items: list[RecordedItem], max_tokens: int) -> None:
        """A request arrives; it is cut to what the pool holds."""
        prompt = prompt[: self.slots - 2]
        request = RecordedRequest(
            request_id=f"r{len(self.workload.requests)}",
            arrival_step=self.number,
            prompt_token_ids=prompt,
            max_tokens=max(1, min(max_tokens, self.slots - len(prompt))),
            priority=0,
            arrival_time=float(len(self.workload.requests)),
            mm_features=[one for one in items if one.offset + one.length <= len(prompt)],
        )
        self.workload.requests.append(request)
        self._known[request.request_id] = [*request.prompt_token_ids]
        self._play.arrives_later(request)
        self._teller.arrives_later(request)

    def advance(self, steps: int) -> None:
        """Some steps, while there is something to do."""
        for _ in range(steps):
            if self.is_dead or (not self.alive and self._play.is_idle):
                return
            self._teller.before(self.number)
            try:
                told = self._play.step(self.number, self._sample)
            except Exception as error:  # noqa: BLE001 - whatever an engine dies of is a finding
                self.events.append(EngineDied(self.number, INSTANCE, f"{type(error).__name__}: {error}"))
                self.is_dead = True
                return
            self._teller.after(self.number, told)
            self.number += 1
            self.alive = [*told["running"], *told["waiting"]]

    def abort(self, request_id: str) -> None:
        """A client leaves before the next step."""
        if not self.is_dead:
            self.workload.aborts.append((self.number, request_id))
            self._play.engine.abort(request_id)

    def reset(self, which: str) -> None:
        """A cache is reset before the next step."""
        if not self.is_dead:
            self.workload.resets.append((self.number, which))
            self._play.engine.reset(which)

    def _sample(self, name: str, _num_drafts: int) -> list[int]:
        tokens = self._known[name]
        tokens.append(next_token(tokens))
        return tokens[-1:]

    def teardown(self) -> None:
        """Nothing more comes: everybody is served, and the run is judged."""
        if not hasattr(self, "workload"):
            return
        self.advance(MOST_STEPS - self.number)
        if not self.is_dead:
            self._teller.end(self.number, self.alive)
        self.collector.take(EngineCase(self.workload), self.events)


def machine(name: str, kind: type[EngineMachine] = EngineMachine, *, weight: float = 1.0) -> Exploration:
    """The runs of a state machine.

    Args:
        name: For messages.
        kind: `EngineMachine`, or what is derived from it.
        weight: Share of the budget.
    """

    def run(collector: Collector, system: SystemUnderTest, number: int, budget: int) -> None:
        driven = type(kind.__name__, (kind,), {"system": system, "collector": collector})
        wanted = settings(quiet_settings(budget), stateful_step_count=STEP_COUNT)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            run_state_machine_as_test(seed(number)(driven), settings=wanted)

    return Exploration(name, "engine", run, weight)
