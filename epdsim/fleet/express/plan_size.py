"""How long the message of a text plan is, without the plan: `payload.message_size` in sums that are kept from step to step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from epdsim.payload.message import PREAMBLE

_EMPTY_BYTES = PREAMBLE.size + 7
"""The preamble, the head of the array of all fields, and the six fields that are empty in a text plan."""

_DECODE_BYTES = 4
"""Of a request that decodes, beside its ids, its computed tokens and its blocks: its one token, the head of its row, not resumed,
no blocks."""

WIDENS_AT = frozenset({1 << 7, 1 << 8, 1 << 16, 1 << 32})
"""Numbers that take more bytes than the one before."""

_encode = msgspec.msgpack.Encoder().encode


def int_bytes(value: int) -> int:
    """Bytes of a number that is not negative."""
    if value < 1 << 8:
        return 1 if value < 1 << 7 else 2
    if value < 1 << 16:
        return 3
    return 5 if value < 1 << 32 else 9


def head_bytes(length: int) -> int:
    """Bytes before the elements of an array, or the pairs of a map."""
    return 1 if length < 1 << 4 else 3 if length < 1 << 16 else 5


def packed_bytes(value: str | Sequence[int]) -> int:
    """Bytes of a string, or of an array of numbers."""
    return len(_encode(value))


class PlanSize:
    """Bytes of the plans of one engine.

    Requests that decode are followed all the time; what else a plan holds is added to each (`add_*`) until its size is taken.
    """

    __slots__ = (
        "_decoding_bytes",
        "_finished_bytes",
        "_num_cached",
        "_num_finished",
        "_num_new",
        "_num_samples",
        "_plan_bytes",
    )

    def __init__(self) -> None:
        self._decoding_bytes = 0
        self._finished_bytes = self._num_finished = 0
        self._begin()

    def _begin(self) -> None:
        self._plan_bytes = self._num_new = self._num_cached = self._num_samples = 0

    def begin_decoding(self, id_bytes: int, num_computed: int) -> None:
        """A request decodes from now on. If it needs a block at once, that says how wide its computed tokens are (`widen`)."""
        self._decoding_bytes += 3 * id_bytes + _DECODE_BYTES + int_bytes(num_computed - 1)

    def widen(self, num_computed: int) -> None:
        """A request that decodes has computed so many tokens, one of `WIDENS_AT`.

        It needs a block then, since blocks divide the least of these.
        """
        self._decoding_bytes += int_bytes(num_computed) - int_bytes(num_computed - 1)

    def end_decoding(self, id_bytes: int, num_known: int) -> None:
        """A request that knows so many tokens does not decode any more; if it needs a block, it has not got it."""
        self._decoding_bytes -= 3 * id_bytes + _DECODE_BYTES + int_bytes(num_known - 2)

    def add_finished(self, id_bytes: int) -> None:
        """The next plan tells that a request has ended."""
        self._finished_bytes += id_bytes
        self._num_finished += 1

    def forget_finished(self) -> None:
        """It was told."""
        self._finished_bytes = self._num_finished = 0

    def add_blocks(self, blocks: Sequence[int]) -> None:
        """Requests that decode get blocks, one each."""
        self._plan_bytes += packed_bytes(blocks) - head_bytes(len(blocks))

    def add_cached(
        self, id_bytes: int, num_scheduled: int, num_computed: int, blocks: Sequence[int], *, is_last: bool
    ) -> None:
        """A known request computes a part of what it knows.

        Args:
            id_bytes: Of its id.
            num_scheduled: Tokens of the part.
            num_computed: Tokens before it.
            blocks: New ones, or all of them when it is resumed.
            is_last: Whether it samples then.
        """
        self._num_cached += 1
        row_bytes = 2 + int_bytes(num_computed) + (packed_bytes(blocks) if blocks else 1)
        self._add(id_bytes, row_bytes + int_bytes(num_scheduled), is_last=is_last)

    def add_new(
        self,
        id_bytes: int,
        num_scheduled: int,
        num_computed: int,
        blocks: Sequence[int],
        num_known: int,
        *,
        is_last: bool,
    ) -> None:
        """A request is told in full.

        Args:
            id_bytes: Of its id.
            num_scheduled: Tokens to compute.
            num_computed: Tokens that were found.
            blocks: Its table.
            num_known: Tokens that it knows.
            is_last: Whether it samples then.
        """
        self._num_new += 1
        row_bytes = 2 + 2 * int_bytes(num_computed) + packed_bytes(blocks) + int_bytes(num_known)
        self._add(id_bytes, row_bytes + int_bytes(num_scheduled), is_last=is_last)

    def _add(self, id_bytes: int, more_bytes: int, *, is_last: bool) -> None:
        self._plan_bytes += (2 + is_last) * id_bytes + more_bytes
        self._num_samples += is_last

    def take(self, number: int, num_decoding: int) -> int:
        """Bytes of a plan; 0 when it tells nobody in full: such a plan is weighed by its rows (`BroadcastCost.plain`).

        Args:
            number: Of the plan.
            num_decoding: Requests of it that decode.
        """
        num_new, num_cached = self._num_new, self._num_cached + num_decoding
        num_samples, plan_bytes = self._num_samples + num_decoding, self._plan_bytes
        self._begin()
        if not num_new:
            return 0
        heads = head_bytes(num_new + num_cached) + head_bytes(num_new) + head_bytes(num_cached)
        heads += head_bytes(num_samples) + head_bytes(self._num_finished)
        return _EMPTY_BYTES + int_bytes(number) + heads + self._decoding_bytes + self._finished_bytes + plan_bytes
