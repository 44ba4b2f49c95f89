"""The steps by which media to be hashed and prompts to be keyed become smaller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from epdsim.sut.identity_cases import HashCase, HashItem, KeyCase, KeyedRequest


def plainer_media(case: HashCase) -> Iterator[HashCase]:
    """An item without a name, or with an option fewer."""
    for place, item in enumerate(case.items):
        for plain in _plainer_item(item):
            yield replace(case, items=[*case.items[:place], plain, *case.items[place + 1 :]])


def _plainer_item(item: HashItem) -> Iterator[HashItem]:
    if item.given_id is not None:
        yield replace(item, given_id=None)
    for name in item.options:
        yield replace(item, options={key: value for key, value in item.options.items() if key != name})


def shorter_prompts(case: KeyCase) -> Iterator[KeyCase]:
    """All prompts with less behind the last item, or without something that all of them may do without."""
    for change in _CHANGES:
        changed = [change(one) for one in case.items]
        if changed != case.items:
            yield replace(case, items=changed)


def _shorter(one: KeyedRequest) -> KeyedRequest:
    end = max((item.offset + item.length for item in one.items), default=1)
    return replace(one, tokens=one.tokens[: max(end, len(one.tokens) - 1)])


def _without_last_item(one: KeyedRequest) -> KeyedRequest:
    return replace(one, items=one.items[:-1])


_CHANGES: Sequence[Callable[[KeyedRequest], KeyedRequest]] = (
    lambda one: replace(one, outputs=[]),
    lambda one: replace(one, cache_salt=None),
    lambda one: replace(one, adapter=None, adapter_path="/a"),
    _without_last_item,
    _shorter,
)

HASH_STEPS: Sequence[Callable[[Any], Iterator[Any]]] = (plainer_media,)
KEY_STEPS: Sequence[Callable[[Any], Iterator[Any]]] = (shorter_prompts,)
