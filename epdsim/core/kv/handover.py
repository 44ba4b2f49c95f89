"""The hand-over of one request's KV cache from a prefill engine P to a decode engine D, as a protocol: who waits for whom.

Three orders: *pull* (D is called when P has ended, reads, and says so), *push* (D is called first, P computes into D's blocks layer
by layer), *concurrent* (both are called at once). Either way P holds its blocks until it may give them up, and D's blocks hold
nothing until all has come. `HandOver` keeps the books of one hand-over and costs no time; whoever owns it says what happens when.

    handover = HandOver("pull", lease_ms=30_000)
    handover.prefilled(now_ms)
    handover.allocated()
    if handover.may_transfer:
        handover.begun()
    handover.ended(later_ms)
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

from epdsim.core.rules import IDEAL, Dialect, Rule

Order = Literal["pull", "push", "concurrent"]


def within_lease(ended_ms: float, until_ms: float) -> bool:
    """Whether a read brought what it should: it ended before the lease did."""
    return ended_ms <= until_ms


def any_time(_ended_ms: float, _until_ms: float) -> bool:
    """Whenever it ended: the reader does not look at the lease."""
    return True


READ_IN_TIME = Rule(
    "kv_handover.read_in_time",
    "KV cache that was read when its lease had ended counts as lost, for its blocks may hold something else by then.",
    source="vLLM 0.32 (NIXL): the sending side gives blocks up at the end of the lease, whoever reads them",
    ideal=within_lease,
)


class Stage(Enum):
    """Where a hand-over stands."""

    OPEN = "one side has not come so far, or nothing moves yet"
    MOVING = "KV cache moves"
    RECEIVED = "D has it"
    LOST = "D does not get it, and computes the prompt itself or fails, by its policy"


class HandOver:
    """The books of one hand-over.

    Args:
        order: `"pull"`, `"push"` or `"concurrent"`.
        lease_ms: How long P holds its blocks when it hears nothing.
        extension_ms: By how much, from then on, a word of D's makes that longer; two thirds of the lease when not said.
        dialect: Rules `kv_handover.*`.

    Attributes:
        stage: Where it stands.
        until_ms: End of the lease; infinite before P has ended, and when P holds nothing any more.
        holds_blocks: Whether P's blocks are held for it.
    """

    __slots__ = (
        "_dialect",
        "_extension_ms",
        "_has_prefilled",
        "_is_allocated",
        "_lease_ms",
        "holds_blocks",
        "order",
        "stage",
        "until_ms",
    )

    def __init__(
        self, order: Order, lease_ms: float, extension_ms: float | None = None, dialect: Dialect = IDEAL
    ) -> None:
        assert lease_ms > 0, "P holds its blocks for some time"
        self.order = order
        self._lease_ms = lease_ms
        self._extension_ms = lease_ms * 2 / 3 if extension_ms is None else extension_ms
        self._dialect = dialect
        self._has_prefilled = self._is_allocated = False
        self.stage = Stage.OPEN
        self.until_ms = float("inf")
        self.holds_blocks = False

    @property
    def may_prefill(self) -> bool:
        """Whether P may be called: a push needs D's blocks first, of a hand-over that is not lost."""
        return self.stage is not Stage.LOST and (self.order != "push" or self._is_allocated)

    @property
    def may_decode(self) -> bool:
        """Whether D may be called: for a pull P must have ended."""
        return self.order != "pull" or self._has_prefilled

    @property
    def may_transfer(self) -> bool:
        """Whether KV cache can begin to move: for a push with P's first layer, else when P has ended; D has its blocks."""
        return self.stage is Stage.OPEN and self._is_allocated and (self.order == "push" or self.holds_blocks)

    def allocated(self) -> None:
        """D has blocks for it."""
        assert self.may_decode, "D was not to be called yet"
        self._is_allocated = True

    def prefilled(self, now_ms: float) -> None:
        """P has ended: from now on its blocks are held, unless nobody wants them any more."""
        assert self.may_prefill or self.stage is Stage.LOST, "P was not to be called yet"
        self._has_prefilled = True
        if self.stage in {Stage.OPEN, Stage.MOVING}:
            self.holds_blocks = True
            self.until_ms = now_ms + self._lease_ms

    def heard(self, now_ms: float) -> None:
        """D says that it still wants it; it is too late when the lease has ended."""
        if self.holds_blocks and now_ms < self.until_ms:
            self.until_ms = max(self.until_ms, now_ms + self._extension_ms)

    def begun(self) -> None:
        """KV cache moves."""
        assert self.may_transfer, "nothing can move yet"
        self.stage = Stage.MOVING

    def ended(self, now_ms: float) -> None:
        """All that was to move has arrived; P's blocks are given up."""
        assert self.stage is Stage.MOVING, "nothing moves"
        assert self._has_prefilled, "the last layer moves when P has ended"
        in_time = self.order == "push" or self._dialect[READ_IN_TIME](now_ms, self.until_ms)
        self.stage = Stage.RECEIVED if in_time else Stage.LOST
        self._give_up()

    def broke(self) -> None:
        """The transfer failed; P hears of it, or its lease ends."""
        assert self.stage in {Stage.OPEN, Stage.MOVING}, "it is over"
        self.stage = Stage.LOST

    def dropped(self) -> None:
        """D does not want it any more, and says so to P."""
        if self.stage in {Stage.OPEN, Stage.MOVING}:
            self.stage = Stage.LOST
        self._give_up()

    def expired(self, now_ms: float) -> bool:
        """Let time pass for P: whether its lease ends now, so that it gives its blocks up.

        A read that is under way goes on, and is judged when it ends (`READ_IN_TIME`); one that had not begun is lost. For a push P
        itself moves the blocks, and keeps them as long as it does.
        """
        if not self.holds_blocks or now_ms < self.until_ms or (self.order == "push" and self.stage is Stage.MOVING):
            return False
        if self.stage is Stage.OPEN:
            self.stage = Stage.LOST
        self.holds_blocks = False
        return True

    def _give_up(self) -> None:
        self.holds_blocks = False
        self.until_ms = float("inf")


def layerwise_end_ms(start_ms: float, prefill_ms: float, num_layers: int, layer_transfer_ms: float) -> float:
    """When the last layer of a push has arrived; layers are computed in turn, and each moves when it and the wire are free.

    Args:
        start_ms: P begins.
        prefill_ms: All layers.
        num_layers: At least 1.
        layer_transfer_ms: One layer over the wire.
    """
    assert num_layers >= 1, "a model has layers"
    layer_ms = prefill_ms / num_layers
    # The slower of the two sets the pace; the other adds one layer.
    return start_ms + layer_ms + layer_transfer_ms + (num_layers - 1) * max(layer_ms, layer_transfer_ms)
