"""What streaming sessions hold, read out of an engine and told as events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from epdsim.core.kv.block_keys import RequestKeys
from epdsim.core.prompt import TokenPrompt
from epdsim.events import SessionItem, SessionSeen
from epdsim.sut.schedule_records import RecordedWorkload


class SessionsUnderTest(Protocol):
    """Reads what a session of an engine holds, by its id."""

    def num_prompt(self, engine: Any, request_id: str) -> int:
        """Tokens of its prompt, which grows with every input; 0 when there is no such session any more."""
        ...

    def seen(self, engine: Any, request_id: str, number: int, instance: str) -> SessionSeen:
        """What it holds, as an event of a step of an instance."""
        ...


class ReferenceSessions:
    """The model's (`ModelEngine`)."""

    def num_prompt(self, engine: Any, request_id: str) -> int:
        """Tokens of its prompt."""
        known = self._engine(engine).requests.get(request_id)
        return 0 if known is None else known.num_prompt

    def seen(self, engine: Any, request_id: str, number: int, instance: str) -> SessionSeen:
        """What it holds."""
        state, config = self._engine(engine), engine.scheduler.config
        known, table = state.requests[request_id], state.table.clone()
        tokens = [*known.request.prompt.token_ids, *(known.outputs or ())]
        whole = replace(known.request, prompt=TokenPrompt(tokens))
        num_blocks = len(tokens) // config.block_size
        fresh = RequestKeys(table, whole, config.block_size, engine.scheduler.dialect)
        items = [SessionItem(one.identifier, one.position.offset, one.position.length) for one in known.features]
        keys, whole_keys = (
            [str(key) for key in one.upto(num_blocks)[:num_blocks]] for one in (known.keys.clone(table), fresh)
        )
        return SessionSeen(number, instance, request_id, tokens, items, keys, whole_keys)

    def _engine(self, engine: Any) -> Any:
        return engine.scheduler._engine  # noqa: SLF001 - nothing else tells what a request holds


class SessionTeller:
    """Tells what the sessions of a workload hold, whenever they have taken in an input.

    Args:
        workload: Which sessions there are.
        engine: That they are in.
        sessions: Reads what they hold.
    """

    def __init__(self, workload: RecordedWorkload, engine: Any, sessions: SessionsUnderTest) -> None:
        self._engine, self._sessions = engine, sessions
        self._num_prompt = {one.request_id: len(one.prompt_token_ids) for one in workload.requests if one.resumable}

    def seen(self, number: int, instance: str) -> list[SessionSeen]:
        """What has changed with a step."""
        found: list[SessionSeen] = []
        for name, before in self._num_prompt.items():
            num_prompt = self._sessions.num_prompt(self._engine, name)
            if num_prompt not in (0, before):
                self._num_prompt[name] = num_prompt
                found.append(self._sessions.seen(self._engine, name, number, instance))
        return found
