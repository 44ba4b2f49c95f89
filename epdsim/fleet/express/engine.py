"""One engine that serves text, in counts: the steps of `Stepper` over the decisions of `Scheduler`.

A request that decodes does the same in every step. So it is looked at when it is admitted, when it needs a block and when it ends:
two queues, ordered by step and within a step as the scheduler orders requests, say when that is. What a step computes and weighs
follows from sums over all that decode. The pool of KV blocks and the keys of blocks are those of every scheduler.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate, chain

from epdsim.core.kv.block_keys import BlockKeyTable, RequestKeys
from epdsim.core.kv.blocks import BlockPool, longest_hit
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL
from epdsim.cost.lm import StepLoad, chunk_pairs, decode_stepper
from epdsim.events import Sink
from epdsim.fleet.config import LONGEST_STRIDE, EnginePool
from epdsim.fleet.express.clock import NORMAL, STEP_END, Clock
from epdsim.fleet.express.flight import Flight
from epdsim.fleet.express.plan_size import WIDENS_AT, PlanSize
from epdsim.fleet.express.telling import Teller
from epdsim.fleet.grid import TICKS_PER_MS, on_grid
from epdsim.fleet.step_cost import BroadcastCost, StepBroadcast

WAKE, END = 0, 1
"""Kinds of what an engine sets the clock for: it begins to step; a step, or the last one of a stride, ends."""

NO_BLOCKS: Sequence[int] = ()


class TextEngine:
    """An engine of a pool.

    Args:
        name: For events.
        place: Among all engines, for steps that end at one instant.
        pool: What all engines of its pool have in common.
        broadcast: Weighs its plans.
        clock: Of the run.
        emit: Takes events.
        wants_detail: Whether those of detail are made too.

    Attributes:
        name: As given.
        outstanding: Requests sent to it and not answered, for routers.
        ended: Requests that have ended, for whoever waits for them.
    """

    def __init__(
        self,
        name: str,
        place: int,
        pool: EnginePool,
        broadcast: BroadcastCost,
        clock: Clock,
        emit: Sink,
        *,
        wants_detail: bool,
    ) -> None:
        self.name, self.outstanding = name, 0
        self.ended: list[Flight] = []
        config = pool.scheduler
        self._config, self._block_size = config, config.block_size
        self._max_num_seqs, self._is_v2 = config.max_num_seqs, config.model_runner == "v2"
        self._lm, self._decode_steps_ms, self._broadcast = pool.lm, decode_stepper(pool.lm), broadcast
        self._place, self._clock = STEP_END + place, clock
        self._tell = Teller(name, config, clock, emit, wants_detail=wants_detail)
        self._pool = BlockPool(config.num_gpu_blocks, enable_caching=config.enable_prefix_caching, dialect=IDEAL)
        self._table = BlockKeyTable(config.num_gpu_blocks)
        self._waiting: deque[Flight] = deque()
        # In scheduling order, by `Flight.order`. Who has but a part of what it knows is the last: it took all tokens of its step.
        self._running: dict[int, Flight] = {}
        self._partial: Flight | None = None
        self._num_admitted = 0
        # Of all others: their number and known tokens, and by step and order when they end and when they need a block.
        self._num_decoding = self._num_known = 0
        self._ends: list[tuple[int, int, Flight]] = []
        self._needs: list[tuple[int, int, Flight]] = []
        self._size = PlanSize()
        # Steps that are over, and plans that computed nothing, the first before anything came.
        self._num_steps, self._num_void = 0, 1
        # What is under way: a step, its tokens and whose prompts it completes, or a stride, whose steps end at these ticks.
        self._is_idle, self._set_number = True, 0
        self._started_ms, self._num_under_way = 0.0, 0
        self._num_requests = self._num_tokens = 0
        self._prefill_tokens = self._prefill_pairs = self._num_single = self._single_context = 0
        self._completed: list[Flight] = []
        self._stride: Sequence[int] = ()
        self._plan = broadcast.plain(0)

    def submit(self, flight: Flight) -> None:
        """Queue a request."""
        if self._table.is_crowded:
            live = chain(self._waiting, self._running.values())
            self._table.keep_only(chain(self._pool.keys(), *[one.keys.known() for one in live]))
        request = Request(flight.request_id, flight.prompt, flight.end_tokens - flight.num_prompt)
        flight.keys = RequestKeys(self._table, request, self._block_size, IDEAL)
        self._waiting.append(flight)
        self._tell.queued(request)
        if self._is_idle:
            self._is_idle = False
            self._clock.set(self._clock.now_ms, NORMAL, WAKE, self)
        elif self._stride:
            self._cut_stride()

    def advance(self) -> None:
        """Begin what comes next: steps that decide nothing, a step, or idleness."""
        num_steady = self._steady_steps()
        if num_steady > 1:
            self._begin_stride(num_steady)
            return
        while not (num_requests := self._plan_step()):
            self._size.forget_finished()
            has_preempted = self._tell.planned(self._num_steps + self._num_void)
            self._num_void += 1
            if not has_preempted:
                self._is_idle = True
                return
        self._begin_step(num_requests)

    def end(self, number: int) -> None:
        """What the clock was set for by that number is over, unless it was cut."""
        if number != self._set_number:
            return
        if self._stride:
            self._end_stride()
        else:
            self._end_step()
        self.advance()

    def _steady_steps(self) -> int:
        """Steps ahead that compute one token of each running request and nothing else, see `core.scheduler.steady`."""
        count = self._num_decoding
        if not count or self._partial is not None or (self._waiting and count < self._max_num_seqs):
            return 0
        most = min(LONGEST_STRIDE, self._ends[0][0] - self._num_steps + 1)
        num_free = self._pool.num_free
        if -(-most // self._block_size) * count <= num_free or self._blocks_after(most) <= num_free:
            return most
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._blocks_after(middle) <= num_free else (low, middle)
        return low

    def _blocks_after(self, num_steps: int) -> int:
        """Blocks that so many steps take."""
        size, step = self._block_size, self._num_steps + num_steps
        return sum([-(-(one.num_known_at(step) - 1) // size) - len(one.blocks) for one in self._running.values()])

    def _plan_step(self) -> int:
        """Schedule whoever runs, then, unless somebody is preempted, whoever waits; how many requests get tokens."""
        self._prefill_tokens = self._prefill_pairs = self._num_single = self._single_context = 0
        preempts = self._give_needed()
        if self._tell.wants_detail:
            self._tell_decoding()
        num_requests, left = self._num_decoding, self._config.max_num_batched_tokens - self._num_decoding
        if self._partial is not None and left:
            if count := self._go_on(self._partial, left):
                left -= count
                num_requests += 1
            else:
                preempts = True
        while self._waiting and left and not preempts and len(self._running) < self._max_num_seqs:
            count = self._admit(self._waiting[0], left)
            if not count:
                break
            left -= count
            num_requests += 1
        self._num_tokens = self._config.max_num_batched_tokens - left
        return num_requests

    def _begin_step(self, num_requests: int) -> None:
        number = self._num_steps + self._num_void
        self._tell.planned(number)
        nbytes = self._size.take(number, self._num_decoding)
        self._size.forget_finished()
        plan = self._broadcast.text(nbytes) if nbytes else self._broadcast.plain(num_requests)
        num_decoding, context = self._num_decoding + self._num_single, self._num_known + self._single_context
        load = StepLoad(self._prefill_tokens, self._prefill_pairs, num_decoding, context)
        self._num_requests = num_requests
        self._begin(1, on_grid(plan.total_ms + self._lm.step_ms(load)), plan)

    def _begin(self, num_steps: int, duration_ms: float, plan: StepBroadcast) -> None:
        now_ms = self._clock.now_ms
        self._num_under_way, self._started_ms, self._plan = num_steps, now_ms, plan
        self._set_number = self._clock.set(now_ms + duration_ms, self._place, END, self)

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

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

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
        flights = self._needing(self._num_steps)
        if not flights:
            return False
        if len(flights) <= self._pool.num_free:
            self._size.add_blocks(self._give(flights))
            return False
        given = [block for flight in flights for block in self._make_room(flight)]
        if given:
            self._size.add_blocks(given)
        return True

    def _needing(self, last_step: int) -> list[Flight]:
        """Who needs a block in a step up to that one, in order, as often as it does."""
        needs, size = self._needs, self._block_size
        flights: list[Flight] = []
        while needs and needs[0][0] <= last_step:
            step, order, flight = needs[0]
            flights.append(flight)
            again = step + size
            if again <= flight.last_step:
                heapreplace(needs, (again, order, flight))
            else:
                heappop(needs)
        return flights

    def _give(self, flights: Sequence[Flight]) -> Sequence[int]:
        """Give a block to each."""
        size = self._block_size
        blocks = self._pool.take(len(flights))
        for flight, block in zip(flights, blocks, strict=True):
            num_computed = len(flight.blocks) * size
            if num_computed in WIDENS_AT:
                self._size.widen(num_computed)
            flight.blocks.append(block)
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
            flight.num_known = num_known = flight.num_known_at(self._num_steps)
            self._publish(flight, num_known - 1)
            self._leave_decoding(flight, num_known)
            self._ends = [one for one in self._ends if one[2] is not flight]
            self._needs = [one for one in self._needs if one[2] is not flight]
            heapify(self._ends)
            heapify(self._needs)
        self._pool.release(flight.blocks)
        flight.blocks = []
        flight.was_preempted = True
        self._waiting.appendleft(flight)
        self._tell.preempted(flight.request_id)

    def _begin_stride(self, num_steps: int) -> None:
        """Steps that decide nothing, in one wait."""
        plan = self._broadcast.plain(self._num_decoding)
        fixed_ms = plan.total_ms
        steps_ms = self._decode_steps_ms(self._num_decoding, self._num_known, num_steps)
        self._stride = ends = list(accumulate([round((fixed_ms + step_ms) * TICKS_PER_MS) for step_ms in steps_ms]))
        self._begin(num_steps, ends[-1] / TICKS_PER_MS, plan)

    def _cut_stride(self) -> None:
        """A request has arrived: the stride ends with the step that is under way."""
        num_steps = bisect_left(self._stride, (self._clock.now_ms - self._started_ms) * TICKS_PER_MS) + 1
        if num_steps < self._num_under_way:
            self._num_under_way = num_steps
            ends_ms = self._started_ms + self._stride[num_steps - 1] / TICKS_PER_MS
            self._set_number = self._clock.set(ends_ms, self._place, END, self)

    def _end_stride(self) -> None:
        tell, num_steps, count = self._tell, self._num_under_way, self._num_decoding
        before = self._progress(self._num_steps) if tell.wants_detail else {}
        self._stride = ()
        if flights := self._needing(self._num_steps + num_steps - 1):
            self._give(flights)
        self._size.forget_finished()
        number = self._pass(num_steps)
        ended = self._take_ended()
        if tell.wants_detail:
            tell.stride(number, num_steps, before, [flight.request_id for flight in ended])
        self._tell_steps(number, num_steps * count, count)
        self._finish(ended)

    def _end_step(self) -> None:
        completed, self._completed = self._completed, []
        number = self._pass(1)
        ended = self._take_ended()
        for flight in completed:
            if flight.end_tokens == flight.num_known + 1:
                ended.append(flight)
                self._let_go(flight)
            else:
                self._begin_decoding(flight)
        self._tell_steps(number, self._num_tokens, self._num_requests)
        for flight in completed:
            if not flight.has_token:
                flight.has_token = True
                self._tell.first_token(flight.request_id)
        self._finish(ended)

    def _pass(self, num_steps: int) -> int:
        """Steps are over; the number of the first one."""
        number = self._num_steps + self._num_void
        self._num_steps += num_steps
        self._num_known += num_steps * self._num_decoding
        return number

    def _tell_steps(self, number: int, num_tokens: int, num_requests: int) -> None:
        states = len(self._running), len(self._waiting), self._pool.num_free
        duration_ms = self._clock.now_ms - self._started_ms
        self._tell.stepped(number, num_tokens, num_requests, states, duration_ms, self._plan, self._num_under_way)

    def _begin_decoding(self, flight: Flight) -> None:
        """A request has computed all that it knew, and sampled."""
        step, num_known = self._num_steps, flight.num_known + 1
        flight.last_step = step + flight.end_tokens - num_known - 1
        self._num_decoding += 1
        self._num_known += num_known
        self._size.begin_decoding(flight.id_bytes, num_known - 1)
        heappush(self._ends, (flight.last_step, flight.order, flight))
        needs_at = step + len(flight.blocks) * self._block_size - num_known + 1
        if needs_at <= flight.last_step:
            heappush(self._needs, (needs_at, flight.order, flight))

    def _leave_decoding(self, flight: Flight, num_known: int) -> None:
        self._num_decoding -= 1
        self._num_known -= num_known
        self._size.end_decoding(flight.id_bytes, num_known)

    def _take_ended(self) -> list[Flight]:
        """Those that decoded and have their last token, without their blocks."""
        ends = self._ends
        ended: list[Flight] = []
        while ends and ends[0][0] < self._num_steps:
            flight = heappop(ends)[2]
            self._leave_decoding(flight, flight.end_tokens)
            self._let_go(flight)
            ended.append(flight)
        return ended

    def _let_go(self, flight: Flight) -> None:
        """A request gives up its blocks, with its last token."""
        self._publish(flight, flight.end_tokens - 1)
        self._pool.release(flight.blocks)
        self._size.add_finished(flight.id_bytes)
        del self._running[flight.order]

    def _finish(self, ended: list[Flight]) -> None:
        for flight in ended:
            self._tell.finished(flight.request_id, flight.end_tokens - flight.num_prompt)
        self.ended += ended

    def _tell_decoding(self) -> None:
        """Tell who decodes in the step that is planned; who has filled its blocks has got another one."""
        for flight in self._running.values():
            if flight is not self._partial:
                num_computed = flight.num_known_at(self._num_steps) - 1
                blocks = NO_BLOCKS if num_computed % self._block_size else flight.blocks[-1:]
                self._tell.decodes(flight.request_id, num_computed, blocks)

    def _progress(self, step: int) -> dict[str, tuple[int, int, Sequence[int]]]:
        """Of all that decode: computed tokens, blocks, and the table of these, which grows."""
        running = [one for one in self._running.values() if one is not self._partial]
        return {one.request_id: (one.num_known_at(step) - 1, len(one.blocks), one.blocks) for one in running}
