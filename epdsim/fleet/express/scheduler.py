"""The decisions of `Scheduler` for text, in counts.

A request that decodes does the same in every step. So it is looked at when it is admitted, when it needs a block and when it ends:
two queues, ordered by step and within a step as the scheduler orders requests, say when that is. What a step computes and weighs
follows from sums over all that decode. The pool of KV blocks and the keys of blocks are those of every scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import chain

from epdsim.core.kv.block_keys import BlockKeyTable, RequestKeys
from epdsim.core.kv.blocks import BlockPool, longest_hit
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.cost.lm import StepLoad, chunk_pairs
from epdsim.fleet.config import LONGEST_STRIDE
from epdsim.fleet.express.flight import Flight
from epdsim.fleet.express.plan_size import WIDENS_AT, PlanSize
from epdsim.fleet.express.telling import Teller

NO_BLOCKS: Sequence[int] = ()


class TextScheduler:
    """What an engine computes next, for whom and on which blocks.

    Args:
        config: Its settings.
        tell: Hears decisions.

    Attributes:
        step: Number of the next plan; plans that compute nothing count, but there is none while a request decodes.
        num_decoding: Requests that run and have computed all but the last token that they know, an output token.
        num_known: Tokens that these know.
        num_tokens: Tokens of the last plan.
    """

    def __init__(self, config: SchedulerConfig, tell: Teller) -> None:
        self.step = self.num_decoding = self.num_known = self.num_tokens = 0
        self._config, self._tell = config, tell
        self._block_size, self._max_num_seqs = config.block_size, config.max_num_seqs
        self._is_v2 = config.model_runner == "v2"
        self._pool = BlockPool(config.num_gpu_blocks, enable_caching=config.enable_prefix_caching, dialect=IDEAL)
        self._table = BlockKeyTable(config.num_gpu_blocks)
        self._waiting: deque[Flight] = deque()
        # In scheduling order, by `Flight.order`. Who has but a part of what it knows is the last: it took all tokens of its step.
        self._running: dict[int, Flight] = {}
        self._partial: Flight | None = None
        self._num_admitted = 0
        # Those that decode: by step and order, when they yield their last token; and by the last digit of a step, in a numeral
        # system with the block size as base, in order, who needs a block in such a step.
        self._ends: list[tuple[int, int, Flight]] = []
        self._needs: list[list[Flight]] = [[] for _ in range(config.block_size)]
        # Of the plan under way: who has all that it knows with it, tokens and pairs of prompts, and what counts as decoding there.
        self._completed: list[Flight] = []
        self._prefill_tokens = self._prefill_pairs = self._num_single = self._single_context = 0
        self._size = PlanSize()

    @property
    def state(self) -> tuple[int, int, int]:
        """Requests that run, those that wait, and free blocks."""
        return len(self._running), len(self._waiting), self._pool.num_free

    def add(self, flight: Flight) -> None:
        """Queue a request."""
        if self._table.is_crowded:
            live = chain(self._waiting, self._running.values())
            self._table.keep_only(chain(self._pool.keys(), *[one.keys.known() for one in live]))
        request = Request(flight.request_id, flight.prompt, flight.end_tokens - flight.num_prompt)
        flight.keys = RequestKeys(self._table, request, self._block_size, IDEAL)
        self._waiting.append(flight)
        self._tell.queued(request)

    def steady_steps(self) -> int:
        """Steps ahead that compute one token of each running request and nothing else, see `core.scheduler.steady`."""
        count = self.num_decoding
        if not count or self._partial is not None or (self._waiting and count < self._max_num_seqs):
            return 0
        most = min(LONGEST_STRIDE, self._ends[0][0] - self.step + 1)
        num_free = self._pool.num_free
        if self._blocks_for(most) * count <= num_free or self._blocks_after(most) <= num_free:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._blocks_after(middle) <= num_free else (low, middle)
        return low

    def take_steps(self, num_steps: int) -> list[Flight]:
        """Take steps that are steady, at once; who has its last token with them."""
        tell, step = self._tell, self.step
        before = self._progress() if tell.wants_detail else {}
        if flights := self._needing(num_steps):
            self._give(flights)
        self._size.forget_finished()
        ended = self._pass(num_steps)
        if tell.wants_detail:
            tell.stride(step, num_steps, before, [flight.request_id for flight in ended])
        return ended

    def schedule(self) -> int:
        """Plan a step for whoever runs, then, unless somebody is preempted, for whoever waits; how many requests get tokens."""
        self._prefill_tokens = self._prefill_pairs = self._num_single = self._single_context = 0
        preempts = self._give_needed()
        if self._tell.wants_detail:
            self._tell_decoding()
        num_requests, left = self.num_decoding, self._config.max_num_batched_tokens - self.num_decoding
        if self._partial is not None and left:
            count = self._go_on(self._partial, left)
            left -= count
            num_requests += count > 0
            preempts = preempts or not count
        while self._waiting and left and not preempts and len(self._running) < self._max_num_seqs:
            count = self._admit(self._waiting[0], left)
            if not count:
                break
            left -= count
            num_requests += 1
        self.num_tokens = self._config.max_num_batched_tokens - left
        return num_requests

    @property
    def load(self) -> StepLoad:
        """Of the plan."""
        num_decoding, context = self.num_decoding + self._num_single, self.num_known + self._single_context
        return StepLoad(self._prefill_tokens, self._prefill_pairs, num_decoding, context)

    def take_size(self) -> int:
        """Bytes of the plan's message, once, with those that have ended since the last one; see `PlanSize.take`."""
        nbytes = self._size.take(self.step, self.num_decoding)
        self._size.forget_finished()
        return nbytes

    def skip(self) -> None:
        """The plan computes nothing."""
        self._size.forget_finished()
        self.step += 1

    def update(self) -> tuple[list[Flight], list[Flight]]:
        """The plan is over: who has computed all that it knew with it, and who has its last token."""
        completed, self._completed = self._completed, []
        ended = self._pass(1)
        for flight in completed:
            if flight.end_tokens == flight.num_known + 1:
                ended.append(flight)
                self._let_go(flight)
            else:
                self._begin_decoding(flight, flight.num_known + 1)
        partial = self._partial
        if partial is not None and partial.has_token and partial.num_computed == partial.num_known - 1:
            self._partial = None
            self._begin_decoding(partial, partial.num_known)
        return completed, ended

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _blocks_after(self, num_steps: int) -> int:
        """Blocks that so many steps take."""
        step = self.step + num_steps
        return sum([self._blocks_for(one.num_known_at(step) - 1) - len(one.blocks) for one in self._running.values()])

    def _go_on(self, flight: Flight, left: int) -> int:
        """Compute the next tokens of the request that has a part; 0 when there are no blocks, and it loses those that it has."""
        num_computed = flight.num_computed
        count = min(left, flight.num_known - num_computed)
        num_blocks = self._blocks_for(num_computed + count) - len(flight.blocks)
        if num_blocks > self._pool.num_free:
            self._preempt(flight)
            return 0
        blocks = self._pool.take(num_blocks)
        self._compute(flight, count, blocks)
        is_last = flight.num_computed == flight.num_known
        self._size.add_cached(flight.id_bytes, count, num_computed, blocks, is_last=is_last)
        self._tell.goes_on(flight, count, num_computed, blocks)
        return count

    def _admit(self, flight: Flight, left: int) -> int:
        """Admit the head of the queue if it fits, with at most `left` tokens; how many it gets."""
        pool, num_known = self._pool, flight.num_known
        hit = self._find_prefix(flight)
        num_cached = len(hit) * self._block_size
        count = num_known - num_cached
        if count > left:
            if not self._config.enable_chunked_prefill:
                return 0
            count = left
        end = num_known if self._config.scheduler_reserve_full_isl else num_cached + count
        if self._blocks_for(end) - len(hit) > pool.num_free - pool.num_idle(hit):
            return 0
        self._waiting.popleft()
        pool.hold(hit)
        flight.num_computed, flight.num_published, flight.order = num_cached, len(hit), self._num_admitted
        self._num_admitted += 1
        self._running[flight.order] = flight
        flight.blocks = list(hit)
        self._compute(flight, count, pool.take(self._blocks_for(num_cached + count) - len(hit)))
        is_last = flight.num_computed == num_known
        if flight.was_preempted and not self._is_v2:
            self._size.add_cached(flight.id_bytes, count, num_cached, flight.blocks, is_last=is_last)
        else:
            told = num_known if self._is_v2 else flight.num_prompt
            self._size.add_new(flight.id_bytes, count, num_cached, flight.blocks, told, is_last=is_last)
        self._tell.admitted(flight, count, num_cached)
        return count

    def _find_prefix(self, flight: Flight) -> list[int]:
        """Blocks of the longest known prefix, which leaves a token to compute."""
        limit = longest_hit(flight.num_known) // self._block_size
        if not limit or not self._pool.enable_caching:
            return []
        return self._pool.find_all(flight.keys.upto(limit)[:limit])

    def _compute(self, flight: Flight, count: int, blocks: list[int]) -> None:
        """Compute the next tokens of what a request knows, on further blocks."""
        num_computed = flight.num_computed
        flight.num_computed = end = num_computed + count
        flight.blocks += blocks
        self._publish(flight, end)
        if count == 1 and num_computed >= flight.num_prompt:
            self._num_single += 1
            self._single_context += end
        else:
            self._prefill_tokens += count
            self._prefill_pairs += chunk_pairs(num_computed, count)
        self._partial = None
        if end < flight.num_known:
            self._partial = flight
        else:
            self._completed.append(flight)

    def _publish(self, flight: Flight, num_tokens: int) -> None:
        """Let the blocks be found that the first `num_tokens` tokens fill.

        Output is published when a request loses its blocks: nobody else has that content, so nobody looks for it before.
        """
        first, num_full = flight.num_published, num_tokens // self._block_size
        if num_full > first and self._pool.enable_caching:
            keys = flight.keys.upto(num_full)
            self._pool.publish(flight.blocks[first:num_full], keys[first:num_full])
            flight.num_published = num_full

    def _give_needed(self) -> bool:
        """Give blocks to those that decode and need one in this step; whether somebody is preempted for want of them."""
        flights = self._needing(1)
        if not flights:
            return False
        if len(flights) <= self._pool.num_free:
            self._size.add_blocks(self._give(flights))
            return False
        given = [block for flight in flights for block in self._make_room(flight)]
        if given:
            self._size.add_blocks(given)
        return True

    def _needing(self, num_steps: int) -> list[Flight]:
        """Who needs a block in the next steps, none of which is behind an end, in order, as often as it does."""
        needs, size = self._needs, self._block_size
        flights: list[Flight] = []
        for step in range(self.step, self.step + num_steps):
            flights += needs[step % size]
        return flights

    def _give(self, flights: Sequence[Flight]) -> list[int]:
        """Give a block to each."""
        size = self._block_size
        blocks = self._pool.take(len(flights))
        for flight, block in zip(flights, blocks):  # noqa: B905 - compiled, it is a loop without tuples
            table = flight.blocks
            num_computed = len(table) * size
            if num_computed & (num_computed - 1) == 0 and num_computed in WIDENS_AT:  # few are powers of two
                self._size.widen(num_computed)
            table.append(block)
        return blocks

    def _make_room(self, flight: Flight) -> Sequence[int]:
        """Give a block to a request, unless it lost all of them; the last in order loses its blocks while none is free."""
        while flight.order in self._running:
            if self._pool.num_free:
                return self._give([flight])
            self._preempt(next(reversed(self._running.values())))
        return NO_BLOCKS

    def _preempt(self, flight: Flight) -> None:
        """Send a request back to wait with nothing computed, ahead of the others."""
        del self._running[flight.order]
        if flight is self._partial:
            self._partial = None
        else:
            flight.num_known = num_known = flight.num_known_at(self.step)
            self._publish(flight, num_known - 1)
            self._leave_decoding(flight, num_known)
            self._ends = [one for one in self._ends if one[2] is not flight]
            heapify(self._ends)
        self._pool.release(flight.blocks, flight.num_published)
        flight.blocks = []
        flight.was_preempted = True
        self._waiting.appendleft(flight)
        self._tell.preempted(flight.request_id)

    def _pass(self, num_steps: int) -> list[Flight]:
        """Steps are over: who of those that decoded in them has its last token, and no blocks any more."""
        self.step += num_steps
        self.num_known += num_steps * self.num_decoding
        ends = self._ends
        ended: list[Flight] = []
        while ends and ends[0][0] < self.step:
            flight = heappop(ends)[2]
            self._leave_decoding(flight, flight.end_tokens)
            self._let_go(flight)
            ended.append(flight)
        return ended

    def _begin_decoding(self, flight: Flight, num_known: int) -> None:
        """A request has computed all but the last token that it knows, which it sampled just now or before it was preempted."""
        step = self.step
        flight.last_step = step + flight.end_tokens - num_known - 1
        self.num_decoding += 1
        self.num_known += num_known
        self._size.begin_decoding(flight.id_bytes, num_known - 1)
        heappush(self._ends, (flight.last_step, flight.order, flight))
        # Requests begin to decode in the order of their admission: who has but a part of its prompt lets nobody in behind it.
        flight.needs = self._needs[(step - num_known + 1) % self._block_size]
        flight.needs.append(flight)

    def _leave_decoding(self, flight: Flight, num_known: int) -> None:
        flight.needs.remove(flight)
        self.num_decoding -= 1
        self.num_known -= num_known
        self._size.end_decoding(flight.id_bytes, num_known)

    def _let_go(self, flight: Flight) -> None:
        """A request gives up its blocks, with its last token."""
        self._publish(flight, flight.end_tokens - 1)
        self._pool.release(flight.blocks, flight.num_published)
        self._size.add_finished(flight.id_bytes)
        del self._running[flight.order]

    def _decoding(self) -> list[Flight]:
        return [one for one in self._running.values() if one is not self._partial]

    def _tell_decoding(self) -> None:
        """Tell who decodes in the step that is planned; who has filled its blocks has got another one."""
        for flight in self._decoding():
            num_computed = flight.num_known_at(self.step) - 1
            blocks = NO_BLOCKS if num_computed % self._block_size else flight.blocks[-1:]
            self._tell.decodes(flight.request_id, num_computed, blocks)

    def _progress(self) -> dict[str, tuple[int, int, Sequence[int]]]:
        """Of all that decode: computed tokens, number of blocks, and the table of these, which grows."""
        decoding = self._decoding()
        return {one.request_id: (one.num_known_at(self.step) - 1, len(one.blocks), one.blocks) for one in decoding}
