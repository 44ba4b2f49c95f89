"""The EC connector as a scheduler asks it: are embeddings at hand, what is loaded and saved, whose embeddings never come.

A connector is one engine's side of the hand-over of embeddings. It keeps books and costs no time: a step tells what workers load
and save, and whoever owns the connector carries its messages, hands in what comes back and says how late it is. `EcConnector`
itself offers nothing; kinds are `SharedStore` here, `PullConnector` (`core.ec.pull`) and `PushConnector` (`core.ec.push`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Container, Mapping, Sequence

from epdsim.core.items import MediaFeature
from epdsim.core.records import record
from epdsim.core.request import Request
from epdsim.core.rules import Dialect
from epdsim.core.strip import payload_kind

NOTHING_FAILED: Mapping[str, str] = {}
"""No request has failed."""


@record
class EcStep:
    """What the workers do for the connector in a step.

    Attributes:
        loads: Identifiers to bring into the encoder cache before the model runs, in order.
        saves: Identifiers to copy out once they are encoded, in order.
    """

    loads: Sequence[str] = ()
    saves: Sequence[str] = ()


NOTHING_TO_DO = EcStep()
"""Neither loads nor saves."""


class EcConnector:
    """One engine's side; as it stands it has nothing and waits for nothing."""

    __slots__ = ()

    @property
    def is_busy(self) -> bool:
        """Whether something may change that no step and no arrival brings about, so that steps must be taken one by one."""
        return False

    def ready(self, request: Request, num_computed: int) -> bool:
        """Whether a request may be scheduled; asked before it is, in every step, and free to start transfers.

        Args:
            request: It waits, or runs and has media.
            num_computed: Tokens whose KV cache is written: items that end within them are not needed any more.
        """
        del request, num_computed
        return True

    def holds(self, request: Request, index: int) -> bool:
        """Whether an item of a request is to be loaded, or left to the store, instead of encoded."""
        del request, index
        return False

    def allocated(self, request: Request, index: int) -> None:
        """The item's entry in the encoder cache has been taken, to be encoded or loaded in this step."""

    def released(self, request: Request, index: int) -> None:
        """The request has computed past the item and gave its entry up."""

    def withdrawn(self, identifier: str) -> None:
        """The encoder run of an entry taken in this step was dropped, and so was the entry."""

    def ended(self, request: Request) -> None:
        """The request has ended, in whatever way."""

    def reset(self) -> None:
        """The weights have changed: copies of embeddings are worth nothing."""

    def take_step(self, freed: Collection[str]) -> EcStep:
        """What the step just planned loads and saves; asked once per step.

        Args:
            freed: Identifiers that the workers drop from the encoder cache in it.
        """
        del freed
        return NOTHING_TO_DO

    def take_failed(self) -> Mapping[str, str]:
        """Requests whose embeddings cannot be had, with the reason; told once, after every step."""
        return NOTHING_FAILED

    def clone(self) -> EcConnector:
        """An independent copy; what is shared with other engines stays shared."""
        return self

    def fingerprint(self) -> object:
        """All of its own that decides what it does next."""
        return None


class TimedConnector(EcConnector):
    """A connector that waits, by a clock that is its owner's; what has come is taken in when the scheduler first asks in a step.

    Args:
        role: `"producer"`, `"consumer"` or `"both"`.
        dialect: Rules of the kind.

    Attributes:
        now_ms: The time, which the owner sets before it calls or hands in anything.
    """

    __slots__ = ("_dialect", "_fresh", "_given_up", "_is_consumer", "_is_producer", "now_ms", "role")

    def __init__(self, role: str, dialect: Dialect) -> None:
        self.role, self._dialect = role, dialect
        self._is_producer, self._is_consumer = role in {"producer", "both"}, role in {"consumer", "both"}
        self.now_ms = 0.0
        self._fresh = True
        self._given_up: set[tuple[str, str]] = set()

    @abstractmethod
    def _take_in(self) -> None:
        """Take in what has come, and what is overdue."""

    def _look(self) -> None:
        """The same, once a step."""
        if self._fresh:
            self._fresh = False
            self._take_in()

    def _copy_to(self, other: TimedConnector) -> None:
        other.now_ms, other._fresh, other._given_up = self.now_ms, self._fresh, set(self._given_up)


class SharedStore(EcConnector):
    """A store that every engine reads and writes, one entry per identifier (vLLM's example connector).

    What is not in the store is encoded; nobody waits.

    Args:
        role: `"producer"`, `"consumer"` or `"both"`: a producer leaves what is stored alone, the others load it.
        stored: Identifiers in the store, asked whenever an item is to be encoded; a live collection that is no part of the
            state. It adds to what each request knows by itself (`Request.remote_embeds`).
    """

    __slots__ = ("_loads", "_stored", "role")

    def __init__(self, role: str, stored: Container[str] = frozenset[str]()) -> None:
        self.role = role
        self._stored = stored
        self._loads: dict[str, None] = {}

    def holds(self, request: Request, index: int) -> bool:
        """Whether the embedding stands in the store."""
        identifier = request.mm_features[index].identifier
        return identifier in request.remote_embeds or identifier in self._stored

    def allocated(self, request: Request, index: int) -> None:
        """Load what is stored."""
        if self.role != "producer" and self.holds(request, index):
            self._loads[request.mm_features[index].identifier] = None

    def take_step(self, freed: Collection[str]) -> EcStep:
        """The loads; a producer saves whatever it encodes, which nobody need tell it."""
        del freed
        if not self._loads:
            return NOTHING_TO_DO
        step = EcStep(tuple(self._loads))
        self._loads = {}
        return step

    def clone(self) -> SharedStore:
        """A copy on the same store."""
        other = SharedStore(self.role, self._stored)
        other._loads = dict(self._loads)
        return other

    def fingerprint(self) -> object:
        """Loads of the step that is being planned."""
        return tuple(self._loads)


def has_input(feature: MediaFeature) -> bool:
    """Whether the item came with something that an encoder can work on, and not with metadata alone."""
    return payload_kind(feature.data) in {"full", "address"}
