"""Which payloads workers are sent: the strip of prefix-covered items and its variants.

The tokens of an item inside the computed prefix need no embedding again, so its payload need not be broadcast (vLLM PR 52041).
Three times of sending: `strip_covered` when a request is admitted, `defer_payloads` and `late_payloads` when the encoder run is
scheduled, `resend_on_resume` when a preempted request comes back to a worker that kept its stripped features. All are functions of
their arguments; the scheduler's own request keeps its full features whatever was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from epdsim.core.items import MediaFeature, MediaItem
from epdsim.core.rules import IDEAL, Dialect, Rule

PayloadKind = Literal["full", "metadata", "empty", "none", "address"]
"""What a worker is sent for an item: all fields, keep-on-CPU fields only, an item without fields, nothing, a cache address."""

Strip = Callable[..., Sequence[MediaFeature]]


def is_covered(feature: MediaFeature, num_computed_tokens: int) -> bool:
    """Whether every token of the item is computed; an item that ends exactly there is."""
    return feature.position.end <= num_computed_tokens


def is_exempt(item: MediaItem) -> bool:
    """Whether the item must reach the worker in any case: an address, so that the sender's reference is given back."""
    return item.is_address


def reads_fields(*, uses_mrope: bool, uses_xdrope: bool) -> bool:
    """Whether workers compute positions of the whole prompt from fields of its items."""
    return uses_mrope or uses_xdrope


def keep_position_fields(item: MediaItem) -> MediaItem | None:
    """The keep-on-CPU fields, or nothing when the item has none."""
    kept = item.subset()
    return kept if kept.fields else None


def keep_subset(item: MediaItem) -> MediaItem | None:
    """The keep-on-CPU fields, an item without fields when there are none: what vLLM 0.29 to 0.33 send."""
    return item.subset()


COVERED = Rule(
    "strip.covered",
    "An item is covered when offset + length <= num_computed_tokens",
    source="vLLM PR 52041",
    ideal=is_covered,
)
EXEMPT = Rule(
    "strip.exempt",
    "An item that is a shared-memory address is never stripped",
    source="vLLM PR 54994",
    ideal=is_exempt,
)
READS_FIELDS = Rule(
    "strip.reads_fields",
    "Workers need position fields of stripped items under M-RoPE and under XD-RoPE",
    source="vLLM PRs 52041 and 53456",
    ideal=reads_fields,
)
KEPT = Rule(
    "strip.kept",
    "Where workers need position fields, a stripped item keeps its keep-on-CPU fields, if it has any",
    source="vLLM PR 52041",
    ideal=keep_position_fields,
)


def _stripped(feature: MediaFeature, dialect: Dialect, *, needs_fields: bool) -> MediaFeature:
    """The feature without payload; itself when there is none to take or it must not be taken."""
    if feature.data is None or dialect[EXEMPT](feature.data):
        return feature
    return replace(feature, data=dialect[KEPT](feature.data) if needs_fields else None)


def strip_at_admission(
    features: Sequence[MediaFeature],
    num_computed_tokens: int,
    *,
    uses_mrope: bool = False,
    uses_xdrope: bool = False,
    dialect: Dialect = IDEAL,
) -> Sequence[MediaFeature]:
    """Take the payload from covered items; see `strip_covered`."""
    if not features or num_computed_tokens == 0:
        return features
    covered, needs_fields = dialect[COVERED], dialect[READS_FIELDS](uses_mrope=uses_mrope, uses_xdrope=uses_xdrope)
    return tuple(
        _stripped(one, dialect, needs_fields=needs_fields) if covered(one, num_computed_tokens) else one
        for one in features
    )


def send_everything(features: Sequence[MediaFeature], num_computed_tokens: int, **_: object) -> Sequence[MediaFeature]:
    """No strip: vLLM before 0.29."""
    assert num_computed_tokens >= 0
    return features


ADMITTED: Rule[Strip] = Rule(
    "strip.admitted",
    "At admission covered items are sent without payload",
    source="vLLM PR 52041; before 0.29 every payload is sent",
    ideal=strip_at_admission,
)


def strip_covered(
    features: Sequence[MediaFeature],
    num_computed_tokens: int,
    *,
    uses_mrope: bool = False,
    uses_xdrope: bool = False,
    dialect: Dialect = IDEAL,
) -> Sequence[MediaFeature]:
    """The features of a request as broadcast at its admission.

    Args:
        features: The request's items; neither the sequence nor an item is changed.
        num_computed_tokens: Prefix hit plus remote tokens at the moment of sending.
        uses_mrope: Whether positions are M-RoPE, which reads fields of all items.
        uses_xdrope: Whether positions are XD-RoPE, which reads them too.
        dialect: Whose rules.

    Returns:
        The input itself when there are no items or nothing is computed. Items that are not stripped are the same objects.
    """
    return dialect[ADMITTED](
        features, num_computed_tokens, uses_mrope=uses_mrope, uses_xdrope=uses_xdrope, dialect=dialect
    )


def defer_payloads(
    features: Sequence[MediaFeature],
    scheduled: Collection[int],
    *,
    uses_mrope: bool = False,
    uses_xdrope: bool = False,
    dialect: Dialect = IDEAL,
) -> Sequence[MediaFeature]:
    """The deferred variant at admission: only items whose encoder run is scheduled in this step carry their payload.

    Args:
        features: The request's items.
        scheduled: Indices of the items whose encoder run is scheduled in this step.
        uses_mrope: As for `strip_covered`.
        uses_xdrope: As for `strip_covered`.
        dialect: Whose rules.
    """
    needs_fields = dialect[READS_FIELDS](uses_mrope=uses_mrope, uses_xdrope=uses_xdrope)
    return tuple(
        one if i in scheduled else _stripped(one, dialect, needs_fields=needs_fields) for i, one in enumerate(features)
    )


def late_payloads(
    features: Sequence[MediaFeature],
    scheduled: Collection[int],
    held: Sequence[MediaFeature],
) -> Mapping[int, MediaFeature]:
    """The deferred variant in a later step: what goes along for items whose encoder run is scheduled now.

    Only fields that the worker lacks are sent; it lays them over what it holds (`core.slots.merge_slot`), so that with metadata
    sent at admission no byte goes twice.

    Args:
        features: The request's items, in full.
        scheduled: Indices of the items whose encoder run is scheduled in this step.
        held: The items as the worker has them now.

    Returns:
        By index, the feature with the missing fields; no entry for an item that the worker has in full.
    """
    updates: dict[int, MediaFeature] = {}
    for i in sorted(scheduled):
        full, there = features[i].data, held[i].data
        if full is None or (there is not None and there.fields.keys() >= full.fields.keys()):
            continue
        missing = {key: one for key, one in full.fields.items() if there is None or key not in there.fields}
        updates[i] = replace(features[i], data=MediaItem(missing))
    return updates


def resend_on_resume(
    features: Sequence[MediaFeature],
    num_computed_tokens: int,
    held: Sequence[MediaFeature],
    dialect: Dialect = IDEAL,
) -> Mapping[int, MediaFeature]:
    """The re-send variant: what a worker that kept its stripped features must get when the request resumes.

    A preempted request starts again below items that were covered when it was admitted; a worker of the v1 style keeps the features
    of the admission and would be asked to encode without pixels.

    Args:
        features: The request's items, in full.
        num_computed_tokens: At the resume.
        held: The items as the worker has them.
        dialect: Whose rules.

    Returns:
        By index, the missing fields of every item that is not covered any more; empty when the worker has them all.
    """
    covered = dialect[COVERED]
    return late_payloads(features, [i for i, one in enumerate(features) if not covered(one, num_computed_tokens)], held)


def resends() -> bool:
    """Whether a v1-style worker gets what it lacks when a request resumes."""
    return True


def never_resends() -> bool:
    """A resumed request is told as a difference without media: vLLM 0.29 to 0.33, whose v1 worker then lacks what was stripped."""
    return False


RESUMED = Rule(
    "strip.resumed",
    "A request that resumes below items that were stripped is sent their payloads again, where the worker kept its stripped ones",
    source="STRIP-AVAIL on runs of the model; preempted and resumed requests with a v1-style runner, seen on top of vLLM PR 52041",
    ideal=resends,
)


UNCOVERED = Rule(
    "strip.uncovered",
    "A running request that a failed load sends back below items that were stripped is sent their payloads again",
    source="STRIP-AVAIL on schedules of vLLM 0.32.0 with a KV connector; no public report known",
    ideal=resends,
)


def payload_kind(data: MediaItem | None) -> PayloadKind:
    """What was sent for an item, in the words of a schedule recording."""
    if data is None:
        return "none"
    if data.is_address:
        return "address"
    if not data.fields:
        return "empty"
    return "metadata" if all(one.keep_on_cpu for one in data.fields.values()) else "full"
