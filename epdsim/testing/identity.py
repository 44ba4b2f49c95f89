"""Hypothesis strategies for identity: media that are nearly the same, and prompts that begin alike."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from epdsim.sut.identity_cases import HashCase, HashItem, KeyCase, KeyedItem, KeyedRequest
from epdsim.testing.workloads import PLACEHOLDER

_NUMBERS: tuple[int | float, ...] = (2, 3, 0.5, 1.5)
_LEAVES: st.SearchStrategy[Any] = st.sampled_from([None, True, *_NUMBERS, "", "a", "ab", "b"])
_OPTIONS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["a", "ab", "b", "size"]),
    st.one_of(
        _LEAVES, st.lists(_LEAVES, max_size=2), st.dictionaries(st.sampled_from(["0", "a", "b"]), _LEAVES, max_size=2)
    ),
    max_size=2,
)
_NUMBERED: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries({"size": st.sampled_from(_NUMBERS)})
_DTYPES = ("uint8", "int8", "bool")
"""Of one byte each, so that bytes fit every shape."""


@st.composite
def hash_items(draw: st.DrawFn) -> HashItem:
    """An image or an array of a few bytes."""
    data = bytes(draw(st.lists(st.integers(0, 1), min_size=6, max_size=6)))
    options = draw(st.one_of(st.just({}), _NUMBERED, _OPTIONS))
    given = draw(st.sampled_from([None, None, None, "mine"]))
    mode = draw(st.sampled_from(["", "L", "RGB", "P"]))
    if mode:
        shape = (1, 2) if mode == "RGB" else draw(st.sampled_from([(2, 3), (3, 2), (1, 6)]))
        palette = draw(st.sampled_from([bytes(6), bytes([9] * 6)])) if mode == "P" else b""
        return HashItem(data, shape, "uint8", mode, palette, given, options)
    shape = draw(st.sampled_from([(6,), (2, 3), (3, 2), (1, 6)]))
    return HashItem(data, shape, draw(st.sampled_from(_DTYPES)), given_id=given, options=options)


@st.composite
def hash_cases(draw: st.DrawFn) -> HashCase:
    """An item, the same again, and some that differ from it in one thing."""
    first = draw(hash_items())
    items = [first, first]
    for _ in range(draw(st.integers(1, 3))):
        items += [draw(_nearly(first))]
    return HashCase(items)


@st.composite
def _nearly(draw: st.DrawFn, item: HashItem) -> HashItem:
    """An item like another one but for its layout, its bytes or its options."""
    what = draw(st.sampled_from(["layout", "bytes", "options", "types", "borders"]))
    if what == "layout":
        other = draw(hash_items())
        return replace(other, data=item.data, options=item.options, given_id=item.given_id)
    if what == "bytes":
        return replace(item, data=bytes(1 - one for one in item.data))
    if what == "options":
        return replace(item, options=draw(_OPTIONS))
    options = dict(item.options) or {"size": draw(st.sampled_from(_NUMBERS)), "a": "b"}
    name = draw(st.sampled_from(sorted(options)))
    value = options.pop(name)
    if what == "types":
        return replace(item, options={**options, name: _of_another_type(value)})
    if isinstance(value, str) and value:  # the border between a name and its value
        return replace(item, options={**options, name + value[0]: value[1:]})
    return replace(item, options={**options, name: {"0": value}})


def _of_another_type(value: Any) -> Any:
    """A value that is written with the same bytes as another one: a whole number and a fraction, a text and a number."""
    if isinstance(value, bool) or value is None:
        return ""
    if isinstance(value, int):
        return struct.pack("<q", value).decode()
    if isinstance(value, float):
        return struct.unpack("<q", struct.pack("<d", value))[0]
    if isinstance(value, list):
        return {str(place): one for place, one in enumerate(value)}
    return [value]


@st.composite
def keyed_requests(draw: st.DrawFn) -> KeyedRequest:
    """A prompt with items that begin and end anywhere, output behind it, a salt, an adapter."""
    tokens: list[int] = []
    items: list[KeyedItem] = []
    for _ in range(draw(st.integers(0, 3))):
        tokens += [1] * draw(st.integers(0, 3))
        length = draw(st.integers(1, 5))
        items.append(KeyedItem(draw(st.sampled_from(["red", "blue"])), len(tokens), length))
        tokens += [PLACEHOLDER] * length
    tokens += [1] * draw(st.integers(0 if tokens else 1, 4))
    return KeyedRequest(
        tokens,
        items,
        [2] * draw(st.integers(0, 4)),
        draw(st.sampled_from([None, None, "salt"])),
        draw(st.sampled_from([None, None, "red"])),
    )


@st.composite
def key_cases(draw: st.DrawFn) -> KeyCase:
    """A prompt, and one that is like it but for one thing, or all its own."""
    first = draw(keyed_requests())
    what = draw(st.sampled_from(["item", "salt", "adapter", "path", "all"]))
    other = draw(keyed_requests())
    if what == "item" and first.items:
        named = [replace(one, identifier="green") for one in first.items]
        other = replace(first, items=named)
    elif what == "salt":
        other = replace(first, cache_salt="other")
    elif what == "adapter":
        other = replace(first, adapter="blue")
    elif what == "path":
        first = replace(first, adapter="red")
        other = replace(first, adapter_path="/b")
    return KeyCase(draw(st.sampled_from([2, 4])), [first, other])
