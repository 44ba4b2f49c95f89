"""Rules of the scheduler that a release, a policy or a defect changes, and what releases do in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from epdsim.core.caches.encoder_cache import ITEM_SLOTS, MISMATCH
from epdsim.core.drafters import (
    DRAFT_PADDING,
    DRAFTER_CUT,
    DRAFTER_DROP,
    DRAFTER_KEPT,
    DRAFTER_PASSED,
    DRAFTER_SETTLED,
    DRAFTER_WINDOW,
    REJECTED,
)
from epdsim.core.ec.connector import EcConnector, has_input
from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.kv.blocks import HIT_LIMIT
from epdsim.core.rules import Dialect, Rule
from epdsim.core.scheduler.aligned import ALIGNED_CHUNK
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.state import RequestState


def limit_among_others(threshold: int, num_live: int) -> int:
    """Tokens that one request may get in a step; 0 for no limit."""
    return threshold if num_live > 1 else 0


def limit_always(threshold: int, _num_live: int) -> int:
    """The threshold, however many requests are alive: releases up to 0.30."""
    return threshold


def splits_item(_num_computed: int, end: int, position: PlaceholderRange) -> bool:
    """Whether a chunk `[num_computed, end)` that touches the item would leave a part of it for a later step."""
    return end < position.end


def splits_unstarted_item(num_computed: int, end: int, position: PlaceholderRange) -> bool:
    """The same, but blind to a chunk that starts with the item: releases 0.25 to 0.33."""
    return num_computed < position.offset and end < position.end


def confirmed_tokens(num_computed: int, num_placeholders: int) -> int:
    """Tokens that no roll-back can take away."""
    return num_computed - num_placeholders


def last_or_least_urgent(running: Sequence[RequestState], policy: str) -> int:
    """Index of the request to preempt: the last in order, under priorities the one that would be admitted last.

    Priorities must be a total order here: two requests that preempt each other in turn never end (LIVE-PROG).
    """
    if policy != "priority":
        return len(running) - 1
    urgencies = [state.urgency for state in running]
    return urgencies.index(max(urgencies))


def last_or_first_least_urgent(running: Sequence[RequestState], policy: str) -> int:
    """The same, but among requests of equal priority and arrival time the first in order: vLLM 0.32."""
    if policy != "priority":
        return len(running) - 1
    urgencies = [state.urgency[:2] for state in running]
    return urgencies.index(max(urgencies))


def same_request(index: int, victim_index: int, *, was_scheduled: bool) -> int:
    """Place of the needy request once the victim has left the running list."""
    del was_scheduled
    return index - (victim_index < index)


def same_request_after_scheduled(index: int, _victim_index: int, *, was_scheduled: bool) -> int:
    """The same, but blind to a victim ahead that had got nothing in this step, so that a request is skipped: up to 0.27."""
    return index - was_scheduled


def holds_repeats() -> bool:
    """Whether a further occurrence of an item that is encoded or loaded in the same step is held too."""
    return True


def leaves_repeats() -> bool:
    """It is held from the first later step on that needs it, if the entry is still there: releases up to 0.31."""
    return False


def guards_first() -> bool:
    """Whether an item that must not be split is left alone before the cache is asked for it."""
    return True


def asks_cache_first() -> bool:
    """No: an item that is cached may be split, and is held in any case: releases up to 0.31."""
    return False


def executed(num_computed: int, num_in_flight: int) -> int:
    """Prompt tokens by which an engine that only encodes is done with a request: those of steps that are over."""
    return num_computed - num_in_flight


def planned(num_computed: int, _num_in_flight: int) -> int:
    """Those of steps under way too, so that a request ends before its last encoder run: releases 0.28 to 0.33."""
    return num_computed


def yields_nothing() -> bool:
    """Whether each step of an engine that only encodes yields a token of each request that it has."""
    return False


def yields_tokens() -> bool:
    """It does, parts of prompts included, and `max_tokens` of the client is what ends a request: releases up to 0.27."""
    return True


def encodes_in_parts() -> bool:
    """Whether an engine that only encodes cuts prompts even with chunked prefill off."""
    return True


def encodes_at_once() -> bool:
    """It does not, though nothing is computed of a prompt: releases up to 0.31."""
    return False


def stops_at_prompt() -> bool:
    """Whether async scheduling goes beyond the prompt in an engine that only encodes."""
    return False


def decodes_encoded() -> bool:
    """It does, as it counts on a token that never comes: releases 0.25 to 0.33."""
    return True


def gives_back() -> bool:
    """Whether a request that could not be admitted gives its encoder-cache references back."""
    return True


def encode_nothing(_feature: MediaFeature) -> bool:
    """Encode whatever is not at hand, metadata alone too, of which a worker dies: releases 0.30 to 0.33."""
    return True


def reset_copies(ec: EcConnector) -> None:
    """Drop the connector's copies with the encoder cache."""
    ec.reset()


def leave_copies(_ec: EcConnector) -> None:
    """Leave the connector's copies: embeddings of the old weights are loaded again."""


def left_with_what_came_back(num_left: int, _num_left_then: int) -> int:
    """Encoder budget left after a request took its share, what preempted requests gave back included."""
    return num_left


def left_when_chosen(_num_left: int, num_left_then: int) -> int:
    """What was left when the share was chosen: what came back while the request looked for blocks is lost, vLLM 0.32."""
    return num_left_then


LONG_PREFILL = Rule(
    "scheduler.long_prefill",
    "The long-prefill threshold binds only while another request is alive.",
    source="vLLM 0.31; up to 0.30 it always binds",
    ideal=limit_among_others,
)
CHUNK_WHOLE = Rule(
    "scheduler.chunk_whole",
    "With chunked media input off, no step ends inside a media item.",
    source="vLLM issue 52306",
    ideal=splits_item,
)
CONFIRMED = Rule(
    "scheduler.confirmed",
    "An encoder-cache entry is given up by confirmed progress, not by what steps under way may still lose.",
    source="vLLM PR 45347",
    ideal=confirmed_tokens,
)
VICTIM = Rule(
    "scheduler.victim",
    "Preempted is the last of the running requests, under priorities the one that would be admitted last.",
    source="LIVE-PROG on random workloads; vLLM 0.32 leaves requests of equal priority and arrival time to their order",
    ideal=last_or_least_urgent,
)
CURSOR = Rule(
    "scheduler.cursor",
    "A preemption does not make another running request miss its turn.",
    source="vLLM issue 49097; in releases from 0.28 on",
    ideal=same_request,
)
REPEATS = Rule(
    "scheduler.repeats",
    "Each occurrence of an item in a chunk holds its entry, also when the item is encoded or loaded in this step.",
    source="vLLM 0.32 beside 0.31",
    ideal=holds_repeats,
)
GUARD = Rule(
    "scheduler.guard",
    "With chunked media input off, a chunk ends before an item that it would split, cached or not.",
    source="vLLM 0.32 beside 0.31",
    ideal=guards_first,
)
ENCODED = Rule(
    "scheduler.encoded",
    "An engine that only encodes ends a request when the last step of its prompt is over.",
    source="vLLM PR 50275; EC-READY on the release under async scheduling",
    ideal=executed,
)
ENCODER_TOKEN = Rule(
    "scheduler.encoder_token",
    "An engine that only encodes yields no tokens.",
    source="vLLM PR 50275; in releases from 0.28 on",
    ideal=yields_nothing,
)
ENCODER_PARTS = Rule(
    "scheduler.encoder_parts",
    "An engine that only encodes takes prompts in parts, whether chunked prefill is on or not.",
    source="vLLM 0.32 beside 0.31",
    ideal=encodes_in_parts,
)
ENCODER_END = Rule(
    "scheduler.encoder_end",
    "An engine that only encodes schedules nothing beyond a prompt.",
    source="schedules of vLLM 0.32.0 under async scheduling with max_tokens above 1",
    ideal=stops_at_prompt,
)
GIVE_BACK = Rule(
    "scheduler.give_back",
    "A request that gets encoder-cache references but no KV blocks gives them back.",
    source="vLLM PR 31857",
    ideal=gives_back,
)
ENCODER_LEFT = Rule(
    "scheduler.encoder_left",
    "Encoder budget of a request that is preempted after it was scheduled in this step goes to later ones.",
    source="live workloads of vLLM 0.32.0 (policy priority); no public report known",
    ideal=left_with_what_came_back,
)


ENCODABLE = Rule(
    "scheduler.encodable",
    "Beside an EC connector, an item that came as metadata alone is never scheduled to be encoded; its request fails alone.",
    source="vLLM PRs 47941 (review) and 55290",
    ideal=has_input,
)
EC_RESET = Rule(
    "scheduler.ec_reset",
    "A reset of the encoder cache drops the copies that an EC connector keeps in the engine.",
    source="ENC-KEY; read in vLLM 0.32.0, whose connectors are not told",
    ideal=reset_copies,
)


class Behaviour:
    """The rules of a dialect that every step asks, looked up once."""

    __slots__ = (
        "aligned_chunk",
        "confirmed",
        "cursor",
        "cut_before",
        "decodes_encoded",
        "differs",
        "drafter_window",
        "encodable",
        "encoded",
        "encoder_left",
        "encodes_in_parts",
        "encoding_yields",
        "gives_back",
        "guards_first",
        "hit_limit",
        "holds_repeats",
        "item_slots",
        "kept_ahead",
        "long_prefill",
        "num_rejected",
        "pads",
        "passed_items",
        "settled_tokens",
        "splits_item",
        "usable_hit",
        "victim",
    )

    def __init__(self, dialect: Dialect) -> None:
        self.aligned_chunk: Callable[[SchedulerConfig, RequestState, int, int], int] = dialect[ALIGNED_CHUNK]
        self.confirmed: Callable[[int, int], int] = dialect[CONFIRMED]
        self.cursor: Callable[..., int] = dialect[CURSOR]
        self.cut_before: Callable[[int, int, int, int], int] = dialect[DRAFTER_CUT]
        self.decodes_encoded: bool = dialect[ENCODER_END]()
        self.encoded: Callable[[int, int], int] = dialect[ENCODED]
        self.encodes_in_parts: bool = dialect[ENCODER_PARTS]()
        self.encoding_yields: bool = dialect[ENCODER_TOKEN]()
        self.differs: Callable[[int, int], bool] = dialect[MISMATCH]
        self.drafter_window: Callable[[int, int], int] = dialect[DRAFTER_WINDOW]
        self.encodable: Callable[[MediaFeature], bool] = dialect[ENCODABLE]
        self.encoder_left: Callable[[int, int], int] = dialect[ENCODER_LEFT]
        self.gives_back: Callable[[], bool] = dialect[GIVE_BACK]
        self.guards_first: bool = dialect[GUARD]()
        self.hit_limit: Callable[[int], int] = dialect[HIT_LIMIT]
        self.holds_repeats: bool = dialect[REPEATS]()
        self.item_slots: Callable[[PlaceholderRange], int] = dialect[ITEM_SLOTS]
        self.kept_ahead: Callable[[int, int, int, int], int] = dialect[DRAFTER_KEPT]
        self.long_prefill: Callable[[int, int], int] = dialect[LONG_PREFILL]
        self.num_rejected = dialect[REJECTED]
        self.pads = dialect[DRAFT_PADDING]
        self.passed_items: Callable[[int, int], int] = dialect[DRAFTER_PASSED]
        self.settled_tokens: Callable[[int, int], int] = dialect[DRAFTER_SETTLED]
        self.splits_item: Callable[[int, int, PlaceholderRange], bool] = dialect[CHUNK_WHOLE]
        self.usable_hit = dialect[DRAFTER_DROP]
        self.victim: Callable[[Sequence[RequestState], str], int] = dialect[VICTIM]
