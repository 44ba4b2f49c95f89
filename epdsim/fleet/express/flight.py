"""A request under way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epdsim.core.kv.block_keys import RequestKeys
from epdsim.core.prompt import RunPrompt
from epdsim.fleet.express.plan_size import packed_bytes

if TYPE_CHECKING:
    from epdsim.fleet.express.engine import TextEngine


class Flight:
    """A request under way.

    Attributes:
        request_id: Its id.
        id_bytes: Of that in a plan's message.
        prompt: Its prompt.
        num_prompt: Tokens of that.
        end_tokens: Known tokens at which it ends.
        engine: Where it is sent.
        keys: Of its blocks there.
        num_known: Tokens to compute before it can sample: the prompt, and after a preemption its output so far.
        num_computed: Those that are computed; followed until it decodes.
        blocks: Block table.
        num_published: Leading blocks of it that can be found.
        order: Among the admissions to its engine.
        last_step: Number of the step that yields its last token; set when it decodes, as is the next.
        needs: Those that need blocks in the same steps, it among them.
        has_token: Whether its client has its first token.
        was_preempted: Whether it lost its blocks before.
    """

    __slots__ = (
        "blocks",
        "end_tokens",
        "engine",
        "has_token",
        "id_bytes",
        "keys",
        "last_step",
        "needs",
        "num_computed",
        "num_known",
        "num_prompt",
        "num_published",
        "order",
        "prompt",
        "request_id",
        "was_preempted",
    )

    engine: TextEngine
    keys: RequestKeys
    needs: list[Flight]

    def __init__(self, request_id: str, prompt: RunPrompt, num_output: int) -> None:
        self.request_id, self.prompt = request_id, prompt
        self.id_bytes = packed_bytes(request_id)
        self.num_prompt = self.num_known = prompt.num_tokens
        self.end_tokens = self.num_prompt + num_output
        self.num_computed = self.num_published = self.order = self.last_step = 0
        self.blocks: list[int] = []
        self.has_token = self.was_preempted = False

    def num_known_at(self, step: int) -> int:
        """Known tokens of one that decodes, when a step begins."""
        return self.end_tokens - 1 - (self.last_step - step)
