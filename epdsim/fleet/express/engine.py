"""One engine that serves text, in counts: the steps of `Stepper` over the decisions of `Scheduler`.

A request that decodes does the same in every step. So it is looked at when it is admitted, when it needs a block and when it ends:
two queues, ordered by step and within a step as the scheduler orders requests, say when that is. What a step computes and weighs
follows from sums over all that decode. The pool of KV blocks and the keys of blocks are those of every scheduler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, heapreplace
from itertools import accumulate, chain

from epdsim.core.kv.block_keys import BlockKeyTable, RequestKeys
from epdsim.core.kv.blocks import BlockPool, longest_hit
from epdsim.core.prompt import RunPrompt
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.cost.lm import StepLoad, chunk_pairs, decode_stepper
from epdsim.fleet.config import EnginePool
from epdsim.fleet.express.clock import NORMAL, STEP_END, Clock
from epdsim.fleet.express.counts import RunCounts
from epdsim.fleet.express.plan_size import WIDENS_AT, PlanSize, packed_bytes
from epdsim.fleet.step_cost import BroadcastCost, StepBroadcast
from epdsim.fleet.world import TICKS_PER_MS, on_grid

WAKE, END = 0, 1
"""Kinds of what an engine sets the clock for: it begins to step; a step, or the last one of a stride, ends."""

NO_BLOCKS: Sequence[int] = ()
MOST_STEPS = 32
"""Steps that are looked ahead at most: an arrival makes the rest of the look-ahead worthless."""


class DeclinedError(Exception):
    """Something happens that counts alone do not tell, such as a preemption."""


class Flight:
    """A request under way.

    Attributes:
        request_id: Its id.
        id_bytes: Of that in a plan's message.
        prompt: Its prompt.
        arrived_ms: When it came.
        sent_ms: When it was sent to an engine.
        admitted_ms: When it was admitted there.
        first_ms: When it had its first token.
        num_prompt: Tokens of its prompt.
        end_tokens: Known tokens at which it ends.
        num_computed: Tokens of its prompt that are computed.
        engine: Where it is sent.
        keys: Of its blocks there.
        blocks: Block table.
        num_published: Leading blocks of it that can be found.
        order: Among the requests of its engine, by admission.
        last_step: Number of the step that yields its last token, once it decodes.
    """

    __slots__ = (
        "admitted_ms",
        "arrived_ms",
        "blocks",
        "end_tokens",
        "engine",
        "first_ms",
        "id_bytes",
        "keys",
        "last_step",
        "num_computed",
        "num_prompt",
        "num_published",
        "order",
        "prompt",
        "request_id",
        "sent_ms",
    )

    engine: TextEngine
    keys: RequestKeys

    def __init__(self, request_id: str, prompt: RunPrompt, num_output: int, arrived_ms: float) -> None:
        self.request_id, self.prompt, self.arrived_ms = request_id, prompt, arrived_ms
        self.id_bytes = packed_bytes(request_id)
        self.sent_ms = self.admitted_ms = self.first_ms = 0.0
        self.num_prompt = prompt.num_tokens
        self.end_tokens = self.num_prompt + num_output
        self.num_computed = self.num_published = self.order = self.last_step = 0
        self.blocks: list[int] = []


class TextEngine:
    """An engine of a pool.

    Args:
        name: For figures.
        place: Among all engines, for steps that end at one instant.
        pool: What all engines of its pool have in common.
        clock: Of the run.
        counts: Of the run.

    Attributes:
        name: As given.
        outstanding: Requests sent to it and not answered, for routers.
        ended: Requests that have ended, for whoever waits for them.
        num_steps: Steps that are over.
        busy_ms: Spent in them.
    """

    def __init__(
        self, name: str, place: int, pool: EnginePool, clock: Clock, counts: RunCounts, broadcast: BroadcastCost
    ) -> None:
        config = pool.scheduler
        self.name, self.outstanding = name, 0
        self.ended: list[Flight] = []
        self.num_steps, self.busy_ms = 0, 0.0
        self._num_idle_plans = 1
        self._table = BlockKeyTable(config.num_gpu_blocks)
        self._place, self._clock, self._counts = STEP_END + place, clock, counts
        self._block_size, self._chunks, self._reserves = (
            config.block_size,
            config.enable_chunked_prefill,
            config.scheduler_reserve_full_isl,
        )
        self._max_num_batched_tokens, self._max_num_seqs = config.max_num_batched_tokens, config.max_num_seqs
        self._lm, self._decode_steps_ms, self._broadcast = pool.lm, decode_stepper(pool.lm), broadcast
        self._pool = BlockPool(config.num_gpu_blocks, enable_caching=config.enable_prefix_caching, dialect=IDEAL)
        self._waiting: deque[Flight] = deque()
        self._size = PlanSize()
        self._num_admitted = 0
        # Who has a part of its prompt; it is the last of those that run, for it took all tokens of its step.
        self._partial: Flight | None = None
        # Of those that decode: their number and known tokens, and by step and order when they end and when they need a block.
        self._num_decoding = self._num_known = 0
        self._ends: list[tuple[int, int, Flight]] = []
        self._needs: list[tuple[int, int, Flight]] = []
        # What is under way: a step and whose prompts it completes, or as many steps of a stride as end by `_ends_at`, in ticks.
        self._is_idle, self._set_number = True, 0
        self._num_steps = 0
        self._started_ms = 0.0
        self._completed: list[Flight] = []
        self._stride: Sequence[int] = ()
        self._under_way = broadcast.plain(0)
        self._prefill_tokens = self._prefill_pairs = 0

    def submit(self, flight: Flight) -> None:
        """Queue a request."""
        if self._table.is_crowded:
            self._table.keep_only(chain(self._pool.keys(), *(one.keys.known() for one in self._live())))
        request = Request(flight.request_id, flight.prompt, flight.end_tokens - flight.num_prompt)
        flight.keys = RequestKeys(self._table, request, self._block_size, IDEAL)
        self._waiting.append(flight)
        if self._is_idle:
            self._is_idle = False
            self._clock.set(self._clock.now_ms, NORMAL, WAKE, self)
        elif self._stride:
            self._cut_stride()

    def _live(self) -> Iterator[Flight]:
        yield from self._waiting
        yield from self._completed
        if self._partial is not None:
            yield self._partial
        for _, _, flight in self._ends:
            yield flight

    def advance(self) -> None:
        """Begin what comes next: steps that decide nothing, a step, or idleness."""
        is_full = self._num_decoding == self._max_num_seqs
        if self._num_decoding and self._partial is None and (is_full or not self._waiting):
            self._begin_stride()
        elif not self._begin_step():
            self._is_idle = True
            self._num_idle_plans += 1

    def end(self, number: int) -> None:
        """What the clock was set for by that number is over, unless it was cut."""
        if number != self._set_number:
            return
        if self._stride:
            self._end_stride()
        else:
            self._end_step()
        self.advance()

    def _begin_step(self) -> bool:
        """Plan a step; whether there is anything to compute."""
        step, size = self.num_steps, self._size
        if needed := self._take_needed(step):
            size.add_blocks(needed)
        self._prefill_tokens = self._prefill_pairs = 0
        num_scheduled = self._num_decoding + self._schedule_prompts(self._max_num_batched_tokens - self._num_decoding)
        nbytes = size.take(step + self._num_idle_plans, self._num_decoding)
        size.forget_finished()
        if not num_scheduled:
            if self._waiting:
                raise DeclinedError("nothing that waits will ever fit")
            return False
        broadcast = self._broadcast.text(nbytes) if nbytes else self._broadcast.plain(num_scheduled)
        load = StepLoad(self._prefill_tokens, self._prefill_pairs, self._num_decoding, self._num_known)
        duration_ms = on_grid(broadcast.total_ms + self._lm.step_ms(load))
        self._begin(1, duration_ms, broadcast)
        return True

    def _begin(self, num_steps: int, duration_ms: float, broadcast: StepBroadcast) -> None:
        now_ms = self._clock.now_ms
        self._num_steps, self._started_ms, self._under_way = num_steps, now_ms, broadcast
        self._set_number = self._clock.set(now_ms + duration_ms, self._place, END, self)

    def _schedule_prompts(self, left: int) -> int:
        """Go on with the prompt that is begun, then admit in order of arrival until one does not fit; how many get tokens."""
        num_scheduled, partial = 0, self._partial
        if partial is not None and left:
            self._partial = None
            num_computed = partial.num_computed
            blocks, count = self._compute(partial, left)
            is_last = self._partial is None
            self._size.add_chunk(partial.id_bytes, count, num_computed, blocks, is_last=is_last)
            left -= count
            num_scheduled = 1
        waiting = self._waiting
        num_running = self._num_decoding + num_scheduled
        while waiting and left and num_running < self._max_num_seqs:
            count = self._admit(waiting[0], left)
            if not count:
                break
            waiting.popleft()
            left -= count
            num_scheduled += 1
            num_running += 1
        return num_scheduled

    def _admit(self, flight: Flight, left: int) -> int:
        """Admit a request if it fits, with at most `left` tokens; how many it gets."""
        pool, size, num_prompt = self._pool, self._block_size, flight.num_prompt
        hit = self._find_prefix(flight)
        num_cached = len(hit) * size
        num_tokens = num_prompt - num_cached
        if num_tokens > left:
            if not self._chunks:
                return 0
            num_tokens = left
        room = pool.num_free - pool.num_idle(hit) + len(hit)
        end = num_prompt if self._reserves else num_cached + num_tokens
        if -(-end // size) > room:
            return 0
        pool.hold(hit)
        flight.blocks, flight.num_computed, flight.num_published = list(hit), num_cached, len(hit)
        flight.admitted_ms, flight.order = self._clock.now_ms, self._num_admitted
        self._num_admitted += 1
        counts = self._counts
        counts.queue_ms += flight.admitted_ms - flight.sent_ms
        counts.prompt_tokens += num_prompt
        counts.prefix_hit_tokens += num_cached
        self._compute(flight, num_tokens)
        is_last = self._partial is not flight
        self._size.add_new(flight.id_bytes, num_tokens, num_cached, flight.blocks, num_prompt, is_last=is_last)
        return num_tokens

    def _find_prefix(self, flight: Flight) -> list[int]:
        """Blocks of the longest known prefix, which leaves a token to compute."""
        if not self._pool.enable_caching:
            return []
        limit = longest_hit(flight.num_prompt) // self._block_size
        return self._pool.find_all(flight.keys.upto(limit)[:limit])

    def _compute(self, flight: Flight, most: int) -> tuple[list[int], int]:
        """Compute the next tokens of a prompt, `most` at most: the blocks that they need, and how many there are."""
        num_computed = flight.num_computed
        count = min(most, flight.num_prompt - num_computed)
        flight.num_computed = end = num_computed + count
        blocks = self._take(-(-end // self._block_size) - len(flight.blocks))
        flight.blocks += blocks
        self._publish(flight, end)
        self._prefill_tokens += count
        self._prefill_pairs += chunk_pairs(num_computed, count)
        if end < flight.num_prompt:
            self._partial = flight
        else:
            self._completed.append(flight)
        return blocks, count

    def _take(self, count: int) -> list[int]:
        if count > self._pool.num_free:
            raise DeclinedError("somebody is to be preempted")
        return self._pool.take(count)

    def _publish(self, flight: Flight, num_tokens: int) -> None:
        """Let the blocks be found that the first `num_tokens` tokens fill."""
        first, num_full = flight.num_published, num_tokens // self._block_size
        if num_full > first and self._pool.enable_caching:
            keys = flight.keys.upto(num_full)
            self._pool.publish(flight.blocks[first:num_full], keys[first:num_full])
            flight.num_published = num_full

    def _take_needed(self, last_step: int) -> Sequence[int]:
        """Give blocks to those that decode and need one up to a step."""
        needs, size = self._needs, self._block_size
        if not needs or needs[0][0] > last_step:
            return NO_BLOCKS
        flights: list[Flight] = []
        while needs and needs[0][0] <= last_step:
            step, order, flight = needs[0]
            flights.append(flight)
            again = step + size
            if again <= flight.last_step:
                heapreplace(needs, (again, order, flight))
            else:
                heappop(needs)
        blocks = self._take(len(flights))
        for flight, block in zip(flights, blocks, strict=True):
            if len(flight.blocks) * size in WIDENS_AT:
                self._size.widen(len(flight.blocks) * size)
            flight.blocks.append(block)
        return blocks

    def _begin_stride(self) -> None:
        """Steps that decide nothing, in one wait."""
        count, broadcast = self._num_decoding, self._broadcast.plain(self._num_decoding)
        num_steps = min(MOST_STEPS, self._ends[0][0] - self.num_steps + 1)
        fixed_ms = broadcast.total_ms
        steps_ms = self._decode_steps_ms(count, self._num_known, num_steps)
        self._stride = ends = list(accumulate([round((fixed_ms + step_ms) * TICKS_PER_MS) for step_ms in steps_ms]))
        self._begin(num_steps, ends[-1] / TICKS_PER_MS, broadcast)

    def _cut_stride(self) -> None:
        """A request has arrived: the stride ends with the step that is under way."""
        now_ms = self._clock.now_ms
        num_steps = bisect_left(self._stride, (now_ms - self._started_ms) * TICKS_PER_MS) + 1
        if num_steps < self._num_steps:
            self._num_steps = num_steps
            ends_ms = self._started_ms + self._stride[num_steps - 1] / TICKS_PER_MS
            self._set_number = self._clock.set(ends_ms, self._place, END, self)

    def _end_stride(self) -> None:
        self._stride = ()
        self._size.forget_finished()
        self._take_needed(self.num_steps + self._num_steps - 1)
        self._tell_steps()
        self._end_decoding()

    def _end_step(self) -> None:
        self._tell_steps()
        now_ms = self._clock.now_ms
        self._end_decoding()
        completed, self._completed = self._completed, []
        for flight in completed:
            flight.first_ms = now_ms
            if flight.end_tokens == flight.num_prompt + 1:
                self._finish(flight)
            else:
                self._begin_decoding(flight)

    def _tell_steps(self) -> None:
        """Count the steps that are over."""
        counts, num_steps, broadcast = self._counts, self._num_steps, self._under_way
        self.num_steps += num_steps
        self._num_known += num_steps * self._num_decoding
        counts.steps += num_steps
        counts.broadcast_bytes += num_steps * broadcast.sent_bytes
        counts.broadcast_ms += num_steps * broadcast.grid_ms
        self.busy_ms += self._clock.now_ms - self._started_ms

    def _begin_decoding(self, flight: Flight) -> None:
        """A request has its first token."""
        step, num_known = self.num_steps, flight.num_prompt + 1
        flight.last_step = step + flight.end_tokens - num_known - 1
        self._num_decoding += 1
        self._num_known += num_known
        self._size.begin_decoding(flight.id_bytes, flight.num_prompt)
        heappush(self._ends, (flight.last_step, flight.order, flight))
        needs_at = step + len(flight.blocks) * self._block_size - num_known + 1
        if needs_at <= flight.last_step:
            heappush(self._needs, (needs_at, flight.order, flight))

    def _end_decoding(self) -> None:
        """Let those go that have their last token."""
        ends = self._ends
        while ends and ends[0][0] < self.num_steps:
            _, _, flight = heappop(ends)
            self._num_decoding -= 1
            self._num_known -= flight.end_tokens
            self._size.end_decoding(flight.id_bytes, flight.end_tokens)
            self._finish(flight)

    def _finish(self, flight: Flight) -> None:
        """A request has all its tokens; what its output has filled is found from now on, which nobody else can look for."""
        self._publish(flight, flight.end_tokens - 1)
        self._pool.release(flight.blocks)
        self._size.add_finished(flight.id_bytes)
        self.ended.append(flight)
        counts, now_ms = self._counts, self._clock.now_ms
        num_output = flight.end_tokens - flight.num_prompt
        counts.end_ms = now_ms
        counts.output_tokens += num_output
        counts.prefill_ms += flight.first_ms - flight.admitted_ms
        counts.ttft_ms.append(flight.first_ms - flight.arrived_ms)
        counts.e2e_ms.append(now_ms - flight.arrived_ms)
        if num_output > 1:
            counts.tpot_ms.append((now_ms - flight.first_ms) / (num_output - 1))
