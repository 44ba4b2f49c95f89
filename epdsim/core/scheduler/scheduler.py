"""The scheduler of one engine: which tokens of which requests a step computes, on which KV blocks, with which encoder runs.

It takes the decisions of vLLM's v1 scheduler, step by step and block by block. A plan costs no time; the caller says what a
step yields by `update_from_output`. With async scheduling a caller plans step n + 1 before it hands in the output of step n.

    scheduler = Scheduler(SchedulerConfig())
    scheduler.add_request(Request("r0", RunPrompt([TokenRun("text", 0, 100)]), max_tokens=2))
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        outcome = scheduler.update_from_output(plan)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from epdsim.core.ec.connector import EcConnector, SharedStore
from epdsim.core.errors import InputError
from epdsim.core.kv.block_keys import RequestKeys
from epdsim.core.plan import StepPlan, TransferReport
from epdsim.core.request import Request, StreamingUpdate
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.scheduler.admissible import DOOR, check_request, check_update
from epdsim.core.scheduler.broadcast import step_plan
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.drafts import take_drafts
from epdsim.core.scheduler.encoder_decoder import read_across
from epdsim.core.scheduler.engine import NEVER, EngineState, PauseState, StepDraft
from epdsim.core.scheduler.fingerprint import fingerprint
from epdsim.core.scheduler.rules import EC_RESET
from epdsim.core.scheduler.running import schedule_running
from epdsim.core.scheduler.sessions import reset_running, take_update
from epdsim.core.scheduler.state import RequestState, Status
from epdsim.core.scheduler.steady import steady_steps, take_steps
from epdsim.core.scheduler.update import StepOutcome, finish, update
from epdsim.core.scheduler.waiting import schedule_waiting

__all__ = ["PauseState", "Scheduler", "StepOutcome"]


class Scheduler:
    """The scheduler of one engine.

    Args:
        config: Its settings.
        dialect: How rules that releases change behave; the ideal by default.
        ec: The engine's side of the EC connector. By default that of a shared store in the role `config.ec_role`, which knows what
            each request says (`Request.remote_embeds`), or none.
    """

    __slots__ = ("_engine", "config", "dialect")

    def __init__(self, config: SchedulerConfig, dialect: Dialect = IDEAL, ec: EcConnector | None = None) -> None:
        if ec is None and config.ec_role != "none":
            ec = SharedStore(config.ec_role)
        self.config = config
        self.dialect = dialect
        self._engine = EngineState(config, dialect, ec)

    @property
    def has_unfinished(self) -> bool:
        """Whether a step could do something: a request runs, or waits for other than a client's input or the end of a pause."""
        engine = self._engine
        if engine.pause_state is PauseState.PAUSED_ALL:
            return False
        num_new = len(engine.waiting.members) if engine.pause_state is PauseState.UNPAUSED else 0
        return len(engine.running) + num_new + len(engine.holding.members) > engine.num_streaming

    @property
    def num_running(self) -> int:
        """Requests that run."""
        return len(self._engine.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait, preempted ones and those that hold blocks among them."""
        return len(self._engine.waiting.members) + len(self._engine.holding.members)

    @property
    def num_withheld(self) -> int:
        """Requests that ended and whose blocks a KV transfer still needs."""
        return len(self._engine.transfers.withheld) if self._engine.transfers is not None else 0

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds."""
        return self._engine.pool.num_free

    @property
    def running(self) -> list[str]:
        """Ids in scheduling order."""
        return [state.request_id for state in self._engine.running]

    @property
    def waiting(self) -> list[str]:
        """Ids in order of admission: those that hold blocks before the others."""
        return [state.request_id for queue in (self._engine.holding, self._engine.waiting) for state in queue]

    def add_request(self, request: Request, *, trusted: bool = False) -> None:
        """Queue a request.

        Args:
            request: Its id is not in use.
            trusted: Take it as it is, as a real scheduler does behind a front end that checks; for replays.

        Raises:
            InputError: The id is in use, or no schedule could ever finish the request (LIVE-ADMIT).
        """
        engine = self._engine
        withheld = engine.transfers.withheld if engine.transfers is not None else {}
        if request.request_id in engine.requests or request.request_id in withheld:
            raise InputError(f"request {request.request_id!r}", "a request of that id is alive", "use another id")
        embeds = tuple([engine.behaviour.item_slots(feature.position) for feature in request.mm_features])
        if not trusted:
            check_request(engine, request, embeds)
        engine.forget_unused_keys()
        keys = RequestKeys(engine.table, request, self.config.block_size, self.dialect)
        state = RequestState(request, keys, embeds, self.config.max_model_len)
        if self.config.is_encoder_decoder:
            read_across(engine, state)
        engine.requests[request.request_id] = state
        engine.waiting.add(state)

    def refusal(self, request: Request) -> str:
        """Why the front end does not let a request in, by the rule `scheduler.door`; empty when it does."""
        engine = self._engine
        embeds = [engine.behaviour.item_slots(feature.position) for feature in request.mm_features]
        try:
            self.dialect[DOOR](engine, request, embeds)
        except InputError as error:
            return str(error)
        return ""

    def add_update(self, update: StreamingUpdate, *, trusted: bool = False) -> bool:
        """Give a streaming session its next input; it is taken in when the turn under way and all earlier input are over.

        Args:
            update: The input.
            trusted: As in `add_request`.

        Returns:
            False when no such session is alive, and nothing is done: its client has been told.

        Raises:
            InputError: The request is not a session or has been closed, or no schedule could ever finish it with this input.
        """
        state = self._engine.requests.get(update.request_id)
        if state is None:
            return False
        if not trusted:
            check_update(self._engine, state, update)
        assert state.updates is not None, "callers that are trusted know which requests are sessions"
        if state.status is Status.STREAMING:
            take_update(self._engine, state, update)
        else:
            state.updates.append(update)
        return True

    def close_session(self, request_id: str) -> None:
        """Say that a session gets no further input: it ends when the turn under way and all earlier input are over."""
        state = self._engine.requests.get(request_id)
        if state is None or state.updates is None:
            return
        if state.status is Status.STREAMING:
            finish(self._engine, state)
        else:
            state.updates.append(None)

    def finish_requests(self, request_ids: Iterable[str]) -> None:
        """Abort requests in the given order, at any time; ids that are not alive are passed over."""
        for request_id in request_ids:
            state = self._engine.requests.get(request_id)
            if state is not None:
                finish(self._engine, state)

    def schedule(self) -> StepPlan:
        """Plan the next step."""
        engine = self._engine
        draft = StepDraft(engine)
        schedule_running(engine, draft)
        schedule_waiting(engine, draft)
        plan = step_plan(engine, draft)
        engine.step += 1
        if engine.transfers is not None:
            engine.transfers.planned(draft.samples, draft.num_scheduled, engine.requests)
        engine.finished, engine.preempted = [], []
        return plan

    def update_from_output(
        self,
        plan: StepPlan,
        sampled: Mapping[str, Sequence[int]] | None = None,
        report: TransferReport | None = None,
    ) -> StepOutcome:
        """Hand in what a step yielded.

        Args:
            plan: The step; each plan is handed in once, in order.
            sampled: Output tokens by request, accepted drafts first; None for one token of each request that reached the end of
                its known tokens.
            report: What the KV connector's workers say with it.
        """
        return update(self._engine, plan, sampled, report)

    def update_draft_tokens(self, num_drafts: Mapping[str, int]) -> None:
        """Hand in, after the output of a step, how many draft tokens were proposed for its requests.

        Not asked with async scheduling, where workers keep their proposals and a step is planned before they are known.

        Args:
            num_drafts: By request, at most `num_speculative_tokens` each; ids that are not alive are passed over.
        """
        assert not self.config.async_scheduling, "with async scheduling workers keep their drafts"
        take_drafts(self._engine, num_drafts)

    def progress(self) -> dict[str, tuple[int, int, Sequence[int]]]:
        """Of each request that runs: computed tokens, blocks, and the table of these, the scheduler's own that grows with it."""
        return {
            state.request_id: (state.num_computed, len(state.blocks), state.blocks) for state in self._engine.running
        }

    @property
    def num_running_tokens(self) -> int:
        """Known tokens of all requests that run."""
        return sum([state.num_tokens for state in self._engine.running])

    def steady_steps(self, most: int = NEVER) -> int:
        """How many of the next steps decide nothing, `most` at most: one token for each running request; 0 when the next decides.

        Holds until something is handed in from outside, except `add_request`, whose request joins at the first planned step.
        """
        return steady_steps(self._engine, most)

    def take_steps(self, count: int) -> StepOutcome:
        """Take steps that are steady, at once; the same as `schedule` and `update_from_output` that many times (FWD-EQ).

        Args:
            count: At least 1, at most what `steady_steps` said; fewer than that when a request was added meanwhile is the
                caller's business, as a waiting request changes nothing about steps that were begun before it.
        """
        return take_steps(self._engine, count)

    @property
    def pause_state(self) -> PauseState:
        """What is held back."""
        return self._engine.pause_state

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Hold back new requests or everything from the next step on, or let everything go on."""
        self._engine.pause_state = pause_state

    def reset_prefix_cache(self, *, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all known prefixes.

        Args:
            reset_running_requests: Preempt all requests that hold blocks first; they come back in the same order, and output of
                steps under way is dropped.
            reset_connector: Forget as well what another engine computed for requests that wait.

        Returns:
            False, and no prefix is forgotten, while a block is in use.
        """
        engine = self._engine
        if reset_running_requests:
            reset_running(engine)
        if reset_connector:
            for state in engine.requests.values():
                state.num_loads = 0
        return engine.pool.reset()

    def reset_encoder_cache(self) -> None:
        """Forget all embeddings."""
        engine = self._engine
        engine.encoder_cache.reset()
        if engine.ec is not None:
            self.dialect[EC_RESET](engine.ec)

    def clone(self) -> Scheduler:
        """An independent copy: what happens to one does not show in the other."""
        other = object.__new__(Scheduler)
        other.config, other.dialect, other._engine = self.config, self.dialect, self._engine.clone()
        return other

    def fingerprint(self) -> str:
        """Digest of all that decides what the scheduler does next, the same under any renaming of blocks and of steps."""
        return fingerprint(self._engine)
