"""Hypothesis strategies for media caches: budgets of a few items, requests that share and outgrow them, resets in between."""

from __future__ import annotations

from hypothesis import strategies as st

from epdsim.sut.cache_cases import CacheItem, CacheOperation, MirrorCase, RingCase

UNIT_BYTES = 16
_MODALITIES = ("image", "video")


@st.composite
def _requests(draw: st.DrawFn, unit_bytes: int, *, contents: int = 1, most: int = 4) -> list[CacheItem]:
    """Items of a request; a key stands for one size, and for so many contents."""
    keys = draw(st.lists(st.integers(0, 5), min_size=1, max_size=most))
    return [
        CacheItem(
            f"k{key}", key + 10 * draw(st.integers(0, contents - 1)), unit_bytes * (1 + key), _MODALITIES[key % 2]
        )
        for key in keys
    ]


@st.composite
def mirror_cases(draw: st.DrawFn) -> MirrorCase:
    """Requests rendered side by side, handed over in any order, some refused, and resets at any time."""
    operations: list[CacheOperation] = []
    under_way: list[str] = []
    for number in range(draw(st.integers(2, 14))):
        do = draw(st.sampled_from(["render", "render", "hand over", "hand over", "hand over", "refuse", "reset"]))
        if do == "render" or (do in ("hand over", "refuse") and not under_way):
            name = f"r{number}"
            operations.append(CacheOperation("render", name, draw(_requests(UNIT_BYTES))))
            under_way.append(name)
        elif do == "reset":
            operations.append(CacheOperation("reset"))
            later = draw(st.integers(0, 2))
            operations += [CacheOperation("hand over", name) for name in under_way[:later]]
            del under_way[:later]
            operations.append(CacheOperation("finish reset"))
        else:
            operations.append(CacheOperation(do, under_way.pop(draw(st.integers(0, len(under_way) - 1)))))
    return MirrorCase(
        UNIT_BYTES * draw(st.integers(2, 9)), [*operations, *(CacheOperation("hand over", one) for one in under_way)]
    )


@st.composite
def direct_cases(draw: st.DrawFn) -> MirrorCase:
    """Payloads that come to an engine past its front end's cache, under keys that stand for several contents."""
    requests = draw(st.lists(_requests(UNIT_BYTES, contents=3, most=2), min_size=2, max_size=6))
    operations = [CacheOperation("direct", f"r{number}", items) for number, items in enumerate(requests)]
    return MirrorCase(UNIT_BYTES * draw(st.integers(4, 12)), operations)


@st.composite
def ring_cases(draw: st.DrawFn) -> RingCase:
    """Requests by way of a ring that holds a few items, in one of two plots.

    Either they are read once, again after a preemption, or never, with seldom a reset; or they go round and round: each is read and
    ends when one to four more have come.
    """
    operations = draw(_laps() if draw(st.booleans()) else _mixed())
    # An item of a real ring takes some 360 bytes more than its payload: some rings are small enough for a model, some for both.
    size = draw(st.integers(90, 260) | st.integers(900, 1800))
    return RingCase(size, draw(st.sampled_from([72, 900])), draw(st.integers(1, 2)), operations)


@st.composite
def _mixed(draw: st.DrawFn) -> list[CacheOperation]:
    unit_bytes = draw(st.sampled_from([8, 24]))
    operations: list[CacheOperation] = []
    sent: list[str] = []
    for number in range(draw(st.integers(2, 16))):
        do = draw(st.sampled_from(["send", "send", "read", "read", "read", "end", "end", "reset"]))
        if do in ("send", "reset") or not sent:
            # What comes behind a reset may lie where something else lay that is still to be read.
            operations += [CacheOperation("reset")] * (do == "reset")
            operations.append(CacheOperation("send", f"r{number}", draw(_requests(unit_bytes, most=2))))
            sent.append(f"r{number}")
        else:
            name = draw(st.sampled_from(sent))
            operations.append(CacheOperation(do, name))
            if do == "end":
                sent.remove(name)
    return operations


@st.composite
def _laps(draw: st.DrawFn) -> list[CacheOperation]:
    operations: list[CacheOperation] = []
    behind = draw(st.integers(1, 4))
    for number, size in enumerate(draw(st.lists(st.integers(1, 30), min_size=8, max_size=30))):
        item = CacheItem(f"k{number}", number, 2 * size)
        operations.append(CacheOperation("send", f"r{number}", [item]))
        if number >= behind:
            operations += [CacheOperation(do, f"r{number - behind}") for do in ("read", "end")]
    return operations
