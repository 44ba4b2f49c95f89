"""KEY-INJ: two blocks have one key exactly when everything up to their ends is equal, whoever asked first and in what order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.kv import block_keys
from epdsim.core.kv.block_keys import BlockKeyTable, RequestKeys
from epdsim.core.prompt import RunPrompt, TokenRun
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL

BLOCK_SIZE = 3


@pytest.fixture(params=[4, 1 << 20], ids=["ranges of four", "ranges as they are"])
def length_of_ranges(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_keys, "RANGE", request.param)


@st.composite
def requests(draw: st.DrawFn, number: int) -> tuple[Request, int]:
    """A request, and how many tokens of it are known."""
    contents = st.sampled_from(["a", "b", ("output", "r0"), ("output", "r1")])
    runs = [
        TokenRun(draw(contents), draw(st.integers(0, 4)), draw(st.integers(1, 30)))
        for _ in range(draw(st.integers(1, 3)))
    ]
    prompt = RunPrompt(runs)
    features, offset = [], 0
    for identifier in draw(st.lists(st.sampled_from("xy"), max_size=2)):
        start = offset + draw(st.integers(0, 8))
        length = draw(st.integers(1, 7))
        if start + length <= prompt.num_tokens:
            features.append(MediaFeature("image", identifier, PlaceholderRange(start, length)))
            offset = start + length
    return Request(f"r{number}", prompt, 40, tuple(features)), prompt.num_tokens + draw(st.integers(0, 30))


def content_of(request: Request, end: int) -> tuple[object, ...]:
    """What the first `end` tokens are, token by token, and the items that begin in them: the plain form of a key."""
    tokens = [(run.content, run.start + index) for run in request.prompt.runs for index in range(run.length)]
    tokens += [(("output", request.request_id), index) for index in range(end)]
    items = [(one.identifier, one.position) for one in request.mm_features if one.position.offset < end]
    return tuple(tokens[:end]), tuple(items)


def by_block(features: tuple[object, ...], end: int) -> tuple[object, ...]:
    """Items as a key sees them: per block that they overlap, and not how far they go beyond it."""
    return tuple(
        (start, identifier, start - position.offset)
        for start in range(0, end, BLOCK_SIZE)
        for identifier, position in features
        if position.offset < start + BLOCK_SIZE and position.end > start
    )


@pytest.mark.usefixtures("length_of_ranges")
@settings(max_examples=200)
@given(st.data())
def test_keys_are_equal_exactly_where_prefixes_are(data: st.DataObject) -> None:
    table = BlockKeyTable()
    drawn = [data.draw(requests(number)) for number in range(3)]
    keys = [RequestKeys(table, request, BLOCK_SIZE, IDEAL) for request, _ in drawn]
    for _ in range(data.draw(st.integers(0, 6))):  # in any order, bit by bit
        which = data.draw(st.integers(0, 2))
        keys[which].upto(data.draw(st.integers(0, drawn[which][1] // BLOCK_SIZE)))
    if data.draw(st.booleans()):
        live = [number for one in keys for number in one.known()]
        table.keep_only(live)
    known: dict[int, object] = {}
    meaning: dict[object, int] = {}
    for (request, num_tokens), one in zip(drawn, keys, strict=True):
        count = num_tokens // BLOCK_SIZE
        for index, key in enumerate(one.upto(count)[:count]):
            end = (index + 1) * BLOCK_SIZE
            tokens, items = content_of(request, end)
            content = tokens, by_block(items, end)
            assert known.setdefault(key, content) == content, "one key, two contents"
            assert meaning.setdefault(content, key) == key, "one content, two keys"


def test_a_long_run_costs_one_entry() -> None:
    """The twin of equality: numbers for every block would be injective too, and slow."""
    table = BlockKeyTable()
    RequestKeys(table, Request("r", RunPrompt([TokenRun("a", 0, 300)]), 9), BLOCK_SIZE, IDEAL).upto(100)
    assert len(table) == 1
