"""A worker that drafts: it verifies the drafts that a plan gives it, proposes new ones, and keeps the drafter's own KV cache.

A step with drafts is run as the steps that it stands for: the token that is due, then one more for every draft that turns out
right. What follows a wrong draft is computed for nothing, and its KV slots hold what nobody may read. The drafter guesses the
request's true output, wrong now and then as a digest has it.

Judged besides what `Worker` judges: DRAFT-HIT, embeddings that the drafter reads ahead are there, but for those of an item that
the chunk had to come so near to: else it would be empty, or split the item before. What it reads of a prefix hit that was made of
other tokens costs it guesses and nothing else, so that is counted: blocks of equal keys may differ in it, and dropping the last
block of a hit does not help against that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from epdsim.core.plan import CachedRequestData, StepPlan
from epdsim.core.request import Request
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.workers.content import NOTHING, digest
from epdsim.core.workers.records import PayloadReceiver, StepNotes, Violation, WorkerStep
from epdsim.core.workers.worker import Worker, undisturbed

RIGHT_OF = 256
"""Values of a digest's first byte, of which `right` say that a guess is right."""


class DraftingWorker(Worker):
    """One rank of an engine with speculative decoding.

    Args:
        config: The engine's.
        right: Of 256 guesses, how many are right.
        receiver: As for `Worker`.

    Attributes:
        num_drafts: Tokens proposed after the last step, by request; what `Scheduler.update_draft_tokens` is given.
        num_accepted: Drafts that were right so far.
        num_misread: Prefix hits so far whose KV of the drafter was made of other tokens than the request has.
    """

    __slots__ = (
        "_config",
        "_drafter",
        "_drafter_slots",
        "_drafts",
        "_rejected",
        "_right",
        "num_accepted",
        "num_drafts",
        "num_misread",
    )

    def __init__(self, config: SchedulerConfig, right: int = 180, *, receiver: PayloadReceiver | None = None) -> None:
        super().__init__(config, receiver=receiver)
        self._config = config
        self._drafter = config.drafter
        self._right = right
        self._drafts: dict[str, list[int]] = {}
        self._drafter_slots: dict[int, list[bytes]] = {}
        # Rejected in the last step, of which the scheduler has not heard when it plans the next one (async scheduling).
        self._rejected: dict[str, int] = {}
        self.num_drafts: Mapping[str, int] = {}
        self.num_accepted = self.num_misread = 0

    def hear_lost(self, lost: Collection[int]) -> None:
        """The same; who is sent back is told from where on it computes, without drafts that were rejected."""
        super().hear_lost(lost)
        for name in self._may_go_back:
            self._rejected.pop(name, None)

    def execute(
        self,
        plan: StepPlan,
        lost: Collection[int] = (),
        sampled: Mapping[str, Sequence[int]] | None = None,
    ) -> WorkerStep:
        """Run a step, whose tokens are always the worker's own: which drafts are right follows from them."""
        assert sampled is None, "known tokens would say nothing of drafts"
        given = plan.num_scheduled_spec_tokens
        due = replace(
            plan,
            num_scheduled_tokens={
                name: count - given.get(name, 0) for name, count in plan.num_scheduled_tokens.items()
            },
            cached=[self._as_known(row) for row in plan.cached],
        )
        started = super().execute(due, lost)
        yielded = {name: list(tokens) for name, tokens in started.sampled.items()}
        violations = list(started.violations)
        admitted = {new.request_id for new in plan.new} | {row.request_id for row in plan.cached if row.resumed}
        self._rejected = {}
        for name, count in plan.num_scheduled_tokens.items():
            num_given = given.get(name, 0)
            # An admission is padded with drafts that nobody proposed.
            drafts = [] if name in admitted else self._drafts.get(name, [])[:num_given]
            for draft in drafts:
                if not yielded[name] or draft != yielded[name][-1]:
                    break
                further = super().execute(_one_more(plan.step, name, self.requests[name].num_computed_tokens))
                yielded[name] += further.sampled[name]
                violations += further.violations
            num_accepted = max(0, len(yielded[name]) - 1)
            self.num_accepted += num_accepted
            if self._config.async_scheduling:
                self._rejected[name] = num_given - num_accepted
            violations += self._judge(plan.step, name, count, num_given, num_accepted, is_new=name in admitted)
        self._propose(plan, yielded)
        return WorkerStep(yielded, started.encoded, violations)

    def _as_known(self, row: CachedRequestData) -> CachedRequestData:
        """A row without the tokens that the scheduler counts because it does not know yet that they were rejected."""
        num_rejected = 0 if row.resumed else self._rejected.get(row.request_id, 0)
        return row._replace(num_computed_tokens=row.num_computed_tokens - num_rejected)

    def _judge(
        self, step: int, name: str, count: int, num_given: int, num_accepted: int, *, is_new: bool
    ) -> list[Violation]:
        """Lay wrong drafts and the drafter's KV over the slots, and judge what the drafter needed."""
        notes, held = StepNotes(step), self.requests[name]
        end = held.num_computed_tokens
        start = end - num_accepted - (count - num_given)
        asked = min(start + count + self._drafter.num_lookahead, self._config.max_model_len)
        if asked > len(held.block_ids) * self._config.block_size:
            notes.note(
                "KV-CONS", name, f"has {len(held.block_ids)} blocks for {asked} tokens, the drafter's among them"
            )
            return notes.violations
        for position in range(end, start + count):
            self._slot(held, position // self._config.block_size)[position % self._config.block_size] = digest("wrong")
        if self._drafter.num_prefill_lookahead:
            if is_new:
                self._read_drafter(name, start)
            self._read_ahead(notes, name, start, end)
            self._write_drafter(name, start, end)
        return notes.violations

    def _read_ahead(self, notes: StepNotes, name: str, start: int, end: int) -> None:
        """Gather the embeddings of the tokens behind a chunk, which the drafter reads with it."""
        ahead = self._drafter.num_prefill_lookahead
        for feature in self._true[name].request.mm_features:
            span = feature.position
            low, high = max(end, span.offset), min(end + ahead, span.end)
            if low >= high or feature.identifier in self.embeddings:
                continue
            if end <= span.offset and (span.offset - start <= ahead or self._config.disable_chunked_mm_input):
                return
            if span.embeds_before(low - span.offset) < span.embeds_before(high - span.offset):
                notes.note("DRAFT-HIT", name, f"reads ahead into {feature.identifier}, which is not there")

    def _write_drafter(self, name: str, start: int, end: int) -> None:
        """Write the drafter's KV of a chunk, and again that of the tokens before it that hung on guesses."""
        held, size = self.requests[name], self._config.block_size
        for position in range(max(0, start - self._drafter.num_prefill_lookahead + 1), end):
            slots = self._drafter_slots.setdefault(held.block_ids[position // size], [NOTHING] * size)
            slots[position % size] = self._drafter_tag(name, position) or digest("guess", name, position, end)

    def _read_drafter(self, name: str, end: int) -> None:
        """Read the drafter's KV of a prefix hit."""
        held, size = self.requests[name], self._config.block_size
        self.num_misread += any(
            self._drafter_slots.get(held.block_ids[position // size], [NOTHING] * size)[position % size]
            != self._drafter_tag(name, position)
            for position in range(end)
        )

    def _drafter_tag(self, name: str, position: int) -> bytes:
        """What the drafter's KV of a position is made of: the tokens as far as it reads ahead; nothing if not all are known."""
        true, last = self._true[name], position + self._drafter.num_prefill_lookahead
        return digest("drafter", true.tags(last + 1)[last]) if last < true.num_tokens else NOTHING

    def _propose(self, plan: StepPlan, sampled: Mapping[str, list[int]]) -> None:
        for name in plan.num_scheduled_tokens:
            if sampled[name]:
                self._drafts[name] = self._guesses(name, self._true[name].request, len(self.outputs(name)))
        self.num_drafts = {name: len(self._drafts.get(name, ())) for name in plan.num_scheduled_tokens}

    def _guesses(self, name: str, request: Request, num_outputs: int) -> list[int]:
        """What the drafter thinks comes next; n-grams are found or not."""
        most = self._drafter.num_drafts
        if self._config.speculative_method == "ngram":
            most = digest("found", name, num_outputs)[0] % (most + 1)
        coming = undisturbed(request, num_outputs + most)[num_outputs:]
        marks = [digest("guess", name, num_outputs, index)[0] for index in range(most)]
        return [token if mark % RIGHT_OF < self._right else -1 for token, mark in zip(coming, marks, strict=True)]


def _one_more(step: int, name: str, num_computed: int) -> StepPlan:
    """A step that computes one more token of a request and yields the next."""
    return StepPlan(step, {name: 1}, cached=[CachedRequestData(name, num_computed, None)], samples=[name])
