"""What an event must satisfy by itself before it is judged, beyond the types of its fields."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epdsim.core.errors import InputError
from epdsim.events import (
    Admitted,
    EncoderFed,
    EngineStarted,
    Event,
    Gathered,
    InputQueued,
    ItemInfo,
    MetadataWeighed,
    PayloadsSent,
    RequestChecked,
    RequestQueued,
    RequestRefused,
    StepPlanned,
)

PAYLOAD_WORDS = ("full", "metadata", "empty", "address", "none")
"""What is sent of an item, in a word."""


ITEM_STATES = ("neither", "payload", "metadata", "both")
"""What a checked request has of an item, in a word."""


def check_event(event: Event) -> None:
    """Refuse what no reader could make sense of.

    Raises:
        InputError: A size that cannot be, a mask of another length than its item, an index below 0, or a word that is none.
    """
    match event:
        case EngineStarted() if event.block_size < 1:
            raise InputError(f"EngineStarted with block_size {event.block_size}", "a block holds at least one token")
        case MetadataWeighed() if (
            min(event.num_groups, event.num_patches, event.metadata_bytes, event.payload_bytes) < 0
        ):
            raise InputError(f"MetadataWeighed of {event.family}", "a count or a size is negative", "tell none below 0")
        case RequestChecked():
            for item in event.items:
                _check_word(f"RequestChecked of {event.case} with state", item.state, ITEM_STATES)
        case RequestQueued() | InputQueued() | RequestRefused():
            _check_items(event, event.items)
        case Admitted():
            _check_words(event, event.payloads)
        case PayloadsSent():
            _check_words(event, event.payloads.values())
            _check_indices(event, event.payloads)
        case EncoderFed():
            _check_words(event, [event.payload])
            _check_indices(event, [event.index])
        case Gathered():
            _check_indices(event, [event.index])
        case StepPlanned():
            for indices in event.scheduled_encoder_inputs.values():
                _check_indices(event, indices)
        case _:
            pass


def _check_items(event: RequestQueued | InputQueued | RequestRefused, items: Iterable[ItemInfo]) -> None:
    for item in items:
        what = f"{type(event).__name__} of {event.request_id} with item {item.identifier}"
        if item.offset < 0 or item.length < 0:
            raise InputError(f"{what} of {item.length} tokens at {item.offset}", "neither is ever negative")
        if item.is_embed is not None and len(item.is_embed) != item.length:
            rule = f"is_embed has {len(item.is_embed)} entries, and the item {item.length} tokens"
            raise InputError(what, rule, "tell one entry per token, or leave is_embed out")


def _check_indices(event: Event, indices: Iterable[int]) -> None:
    for index in indices:
        if index < 0:
            raise InputError(f"{type(event).__name__} with item {index}", "items count from 0")


def _check_words(event: Admitted | PayloadsSent | EncoderFed, words: Iterable[str]) -> None:
    for word in words:
        _check_word(f"{type(event).__name__} of {event.request_id} with payload", word, PAYLOAD_WORDS)


def _check_word(what: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise InputError(f"{what} {word!r}", "there is no such word", f"the words are {', '.join(known)}")
