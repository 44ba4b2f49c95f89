"""What a scheduler remembers of KV transfers: loads under way, blocks that a transfer or a step still needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import chain

from epdsim.core.kv.block_keys import BlockKeyTable
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.state import RequestState


class Transfers:
    """Requests and blocks that a KV connector is at work on.

    With steps under way a block that is given up may still be written, while a connector would fill it for somebody else without
    regard to the order of steps. So a consumer with async scheduling gives blocks back only when the steps planned so far are done
    (vLLM 0.32).

    Attributes:
        defers: Whether it does.
        delivers: Whether output of steps under way is thrown away at a preemption: a producer must not end a request whose blocks
            are gone.
        recomputes: Whether requests whose load failed compute the rest themselves, and do not fail.
        received: Ids whose load is over, and which have not been looked at since.
        failed: Those whose load, under way or over, lost tokens.
        num_loading: Requests whose load is under way, or over and not looked at.
        prefills: Requests with tokens of their prompt to come, whose blocks an asynchronous load must leave free.
        withheld: Requests that ended and whose blocks a transfer still needs.
        rewound: Ids that a failed load sent back behind items of which workers may have no payload.
        sends: Ids that ended since the last plan and are sent.
    """

    __slots__ = (
        "_deferred",
        "_num_done",
        "_num_planned",
        "defers",
        "delivers",
        "failed",
        "num_loading",
        "prefills",
        "received",
        "recomputes",
        "rewound",
        "sends",
        "withheld",
    )

    def __init__(self, config: SchedulerConfig) -> None:
        self.defers = config.async_scheduling and config.kv_role in {"consumer", "both"}
        self.delivers = config.kv_role in {"producer", "both"}
        self.recomputes = config.kv_load_failure_policy == "recompute"
        self.received: dict[str, None] = {}
        self.failed: dict[str, None] = {}
        self.num_loading = 0
        self.prefills: dict[str, RequestState] = {}
        self.withheld: dict[str, RequestState] = {}
        self.rewound: dict[str, None] = {}
        self.sends: list[str] = []
        self._num_planned = self._num_done = 0
        self._deferred: deque[tuple[int, list[int]]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether nothing that comes from outside can change what is scheduled."""
        return not (self.num_loading or self.withheld or self._deferred)

    def is_settled(self, state: RequestState) -> bool:
        """Whether no step under way may write the request's blocks."""
        return not self.defers or state.last_step <= self._num_done

    def defer(self, blocks: list[int]) -> None:
        """Keep blocks that nobody owns until all steps planned so far are done."""
        if blocks:
            self._deferred.append((self._num_planned, blocks))

    def planned(self, samples: list[str], computing: Mapping[str, int], requests: Mapping[str, RequestState]) -> None:
        """A step is planned.

        Args:
            samples: Ids that reach the end of their known tokens.
            computing: Tokens by request.
            requests: All live ones.
        """
        self.sends = []
        for request_id in samples:
            self.prefills.pop(request_id, None)
        if self.defers and computing:
            self._num_planned += 1
            for request_id in computing:
                requests[request_id].last_step = self._num_planned

    def done(self, *, computed: bool) -> list[list[int]]:
        """A step is done; the block tables that can be given up now.

        Args:
            computed: Whether it computed a token.
        """
        if not (self.defers and computed):
            return []
        self._num_done += 1
        tables: list[list[int]] = []
        while self._deferred and self._deferred[0][0] <= self._num_done:
            tables.append(self._deferred.popleft()[1])
        return tables

    def clone(self, requests: Mapping[str, RequestState], table: BlockKeyTable) -> Transfers:
        """An independent copy over copies of the live requests."""
        other = object.__new__(Transfers)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.received, other.failed, other.rewound = dict(self.received), dict(self.failed), dict(self.rewound)
        other.prefills = {name: requests[name] for name in self.prefills}
        other.withheld = {name: state.clone(state.keys.clone(table)) for name, state in self.withheld.items()}
        other.sends = list(self.sends)
        other._deferred = deque((fence, list(blocks)) for fence, blocks in self._deferred)
        return other

    def deferred_blocks(self) -> list[int]:
        """Blocks that wait for a step to be done, in order."""
        return list(chain.from_iterable(blocks for _, blocks in self._deferred))

    def fingerprint(self) -> tuple[object, ...]:
        """All that decides what it does next, blocks and requests aside."""
        fences = [(fence - self._num_done, len(blocks)) for fence, blocks in self._deferred]
        lists = (list(self.received), sorted(self.failed), sorted(self.prefills), list(self.withheld), self.sends)
        return (*lists, sorted(self.rewound), fences, self._num_planned - self._num_done)
