"""Family ECV: the validator lets pass what can be served, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epdsim.events import CheckedItem, RequestChecked
from epdsim.spec.engine_state import EngineState
from epdsim.spec.property import Broken, Finding, Monitor, Property, Reached


def _metadata_only(event: RequestChecked) -> list[CheckedItem]:
    return [one for one in event.items if one.state == "metadata"]


def _tell(items: Sequence[CheckedItem]) -> str:
    return ", ".join(f"{one.modality}[{one.index}] ({one.mm_hash}, {one.state})" for one in items) or "no items"


def ecv_sound(event: RequestChecked, _engine: EngineState) -> Iterator[Finding]:
    """ECV-SOUND."""
    if event.has_ec_params:
        return
    bare = _metadata_only(event)
    if bare and len(bare) < len(event.items):
        yield Reached("a metadata-only item beside others, without EC parameters")
    if bare and event.accepted:
        yield Broken(f"accepted without ec_transfer_params: {_tell(event.items)}", (event.case,))


def ecv_complete(event: RequestChecked, _engine: EngineState) -> Iterator[Finding]:
    """ECV-COMPLETE."""
    if any(one.mm_hash not in event.offered for one in _metadata_only(event)):
        return
    if event.items and not event.has_ec_params:
        yield Reached("payload or hash alone, without EC parameters")
    if not event.accepted:
        yield Broken(f"refused though each item is provided for: {_tell(event.items)}: {event.reason}", (event.case,))


def ecv_keyed(event: RequestChecked, _engine: EngineState) -> Iterator[Finding]:
    """ECV-KEYED."""
    if not event.has_ec_params:
        return
    lacking = [one for one in _metadata_only(event) if one.mm_hash not in event.offered]
    if lacking:
        yield Reached("EC parameters that lack the hash of a metadata-only item")
    if lacking and event.accepted:
        yield Broken(
            f"accepted with EC parameters for {list(event.offered) or 'no hash'}: {_tell(lacking)} is offered by nobody",
            (event.case, *(one.mm_hash for one in lacking)),
        )


def ecv_says(event: RequestChecked, _engine: EngineState) -> Iterator[Finding]:
    """ECV-SAYS."""
    if event.accepted:
        return
    yield Reached("a refusal")
    if not event.is_client_error:
        yield Broken(f"refused by a failure of the server: {event.reason}", (event.case,))
        return
    guilty = [one for one in _metadata_only(event) if one.mm_hash not in event.offered]
    missing = [
        one
        for one in guilty
        if one.modality not in event.reason or str(one.index) not in event.reason or one.mm_hash not in event.reason
    ]
    if missing:
        yield Broken(f"the refusal does not name {_tell(missing)}", (event.case,))


class Variants:
    """ECV-MONO and ECV-PERM: what a variant of a request may change in the verdict.

    Args:
        variant: `"given more"` or `"permuted"`.
    """

    def __init__(self, variant: str) -> None:
        self._variant = variant
        self._base: dict[str, RequestChecked] = {}

    def by_kind(self) -> Monitor:
        """Compare a variant with its base."""
        return {RequestChecked: self._checked}

    def _checked(self, event: RequestChecked, _engine: EngineState) -> Iterator[Finding]:
        base = self._base.get(event.variant_of)
        if not event.variant_of:
            self._base[event.case] = event
        if base is None or event.variant != self._variant:
            return
        yield Reached(f"a request that was {self._variant}")
        is_worse = base.accepted and not event.accepted
        if is_worse or (self._variant == "permuted" and base.accepted != event.accepted):
            verdicts = ["refused", "accepted"]
            yield Broken(
                f"{_tell(base.items)} with {len(base.offered)} offers is {verdicts[base.accepted]}; {self._variant}, as "
                f"{_tell(event.items)} with {len(event.offered)} offers, it is {verdicts[event.accepted]}",
                (event.case, base.case),
            )


PROPERTIES = (
    Property(
        "ECV-SOUND",
        "Accepted means: no item is metadata-only without ec_transfer_params at the top level; no other item's payload excuses.",
        "The request dies in the worker, which has neither pixels nor embeddings, and may take the engine along.",
        "protocol",
        sometimes="a metadata-only item beside others, without EC parameters",
        evidence=("vLLM PR 56070 (flaw in PR 54659)",),
        twin="ECV-COMPLETE",
        monitor=lambda: {RequestChecked: ecv_sound},
    ),
    Property(
        "ECV-COMPLETE",
        "Hash-only (cached) items and full payloads are accepted without EC; nothing that is provided for is refused.",
        "Clients of before the split, and every second turn of a chat, would be turned away.",
        "protocol",
        sometimes="payload or hash alone, without EC parameters",
        evidence=("vLLM PRs 55332, 55333",),
        twin="ECV-SOUND",
        monitor=lambda: {RequestChecked: ecv_complete},
    ),
    Property(
        "ECV-KEYED",
        "Every metadata-only item is offered by its own hash, with a descriptor that is not null.",
        "Parameters for another item let it pass: the worker finds out when it looks for an embedding that nobody made.",
        "protocol",
        sometimes="EC parameters that lack the hash of a metadata-only item",
        evidence=("llm-d-router PR 2723", "vLLM PR 47941 (review)"),
        monitor=lambda: {RequestChecked: ecv_keyed},
    ),
    Property(
        "ECV-MONO",
        "Adding EC parameters or payload never turns an accepted request into a refused one.",
        "An orchestrator that sends more to be safe would break what worked.",
        "protocol",
        sometimes="a request that was given more",
        monitor=lambda: Variants("given more").by_kind(),
    ),
    Property(
        "ECV-PERM",
        "The verdict does not depend on the order of items within and across modalities.",
        "Whether a chat is served would depend on which picture stands first.",
        "protocol",
        sometimes="a request that was permuted",
        monitor=lambda: Variants("permuted").by_kind(),
    ),
    Property(
        "ECV-SAYS",
        "A refusal names modality, index and hash of what is not provided for, and is a client error (400), never a crash.",
        "An orchestrator cannot re-send an item that the answer does not name.",
        "protocol",
        sometimes="a refusal",
        evidence=("vLLM PR 54659: the message names no item",),
        monitor=lambda: {RequestChecked: ecv_says},
    ),
)
