"""KV transfers of random workloads: which requests have them, and the workers that carry them out while a workload is played.

What a transfer does is a part of the workload, so that every engine meets the same: when a load is over, which of its blocks fail,
when a send is done.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from epdsim.core.plan import TransferReport
from epdsim.sut.schedule_records import RecordedRequest, RecordedTransfer, RecordedWorkload

LOADS = frozenset({"remote", "kvload", "kvfail"})
"""Traits with KV cache that comes from another engine."""

NO_TRANSFER = RecordedTransfer()


def kv_role(traits: Collection[str]) -> str | None:
    """The engine's side of the KV connector; None when what the traits want needs none."""
    loads, sends = not LOADS.isdisjoint(traits), "kvsend" in traits
    if sends:
        return "both" if loads else "producer"
    # Loads within the step that cannot fail need no books, unless steps under way could still write the blocks.
    return "consumer" if not {"kvload", "kvfail"}.isdisjoint(traits) or (loads and "async" in traits) else None


def draw_transfer(rng: random.Random, traits: Collection[str]) -> RecordedTransfer | None:
    """What the connector does about a request; None when the traits have no KV transfers."""
    if {"kvload", "kvfail", "kvsend"}.isdisjoint(traits):
        return None
    load_steps = rng.choice([0, 1, 1, 2, 3, 6]) if "kvload" in traits else 0
    fails = "kvfail" in traits and rng.random() < 0.5
    return RecordedTransfer(
        load_steps=load_steps,
        num_unready=rng.choice([0, 0, 0, 1, 2, 5]) if "kvload" in traits else 0,
        num_loads=rng.choice([1, 1, 2, 3]),
        failed=sorted(rng.sample(range(8), rng.randint(1, 3))) if fails else [],
        steps_early=rng.randint(0, load_steps - 1) if fails and load_steps else 0,
        fails_whole=fails and load_steps > 0 and rng.random() < 0.2,
        send_steps=rng.choice([0, 1, 2, 8]) if "kvsend" in traits else 0,
    )


class TransferWorkers:
    """The workers' side of the KV connector, and the other engine.

    Args:
        workload: Its requests say what their transfers do.
    """

    def __init__(self, workload: RecordedWorkload) -> None:
        self._transfers: dict[str, RecordedTransfer] = {}
        self._reports: dict[int, dict[str, list[Any]]] = {}
        self._has_failed: set[str] = set()
        for request in workload.requests:
            self.expect(request)

    def expect(self, request: RecordedRequest) -> None:
        """A request that may come."""
        self._transfers[request.request_id] = request.kv or NO_TRANSFER

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to report."""
        return not self._reports

    def begin(self, number: int, loads: Sequence[Mapping[str, Any]], sends: Sequence[str]) -> None:
        """Begin what the plan of step `number` says."""
        for load in loads:
            self._begin_load(number, load["req_id"], load["block_ids"], is_async=load["is_async"])
        for request_id in sends:
            steps = self._transfers[request_id].send_steps
            self._note(number + steps - 1, "sent", request_id)

    def report(self, number: int) -> TransferReport | None:
        """What comes with the output of step `number`."""
        found = self._reports.pop(number, None)
        return None if found is None else TransferReport(**found)

    def _begin_load(self, number: int, request_id: str, block_ids: Sequence[int], *, is_async: bool) -> None:
        transfer = self._transfers[request_id]
        end = number + transfer.load_steps - 1 if is_async else number
        if is_async:
            self._note(end, "received", request_id)
        if not transfer.failed or request_id in self._has_failed:
            return
        self._has_failed.add(request_id)
        at = end - transfer.steps_early if is_async else end
        if is_async and transfer.fails_whole:
            self._note(at, "failed", request_id)
            return
        for index in transfer.failed:
            if index < len(block_ids):
                self._note(at, "invalid_blocks", block_ids[index])

    def _note(self, number: int, what: str, thing: str | int) -> None:
        self._reports.setdefault(number, {}).setdefault(what, []).append(thing)
