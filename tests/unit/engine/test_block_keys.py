"""Block keys: equal content has equal keys, and nothing else has."""

import pytest

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.kv.block_keys import MEDIA_KEY, BlockKeyTable, RequestKeys
from epdsim.core.prompt import RunPrompt, TokenPrompt, TokenRun
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Replacement

TABLE = BlockKeyTable()


def keys(prompt, features=(), count=None, outputs=(), dialect=IDEAL, request_id="r", **fields) -> list[int]:
    """The first `count` keys (all full blocks of the prompt) with blocks of 4, all from one table."""
    one = RequestKeys(TABLE, Request(request_id, prompt, 9, tuple(features), **fields), 4, dialect)
    one.outputs += outputs
    wanted = prompt.num_tokens // 4 if count is None else count
    return list(one.upto(wanted)[:wanted])


def image(identifier: str, offset: int, length: int) -> MediaFeature:
    return MediaFeature("image", identifier, PlaceholderRange(offset, length))


def test_equal_prefixes_have_equal_keys_up_to_the_first_difference() -> None:
    one, other = keys(TokenPrompt([1, 2, 3, 4, 5, 6, 7, 8, 9])), keys(TokenPrompt([1, 2, 3, 4, 5, 6, 0, 8]))
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_equal_blocks_after_different_prefixes_have_different_keys() -> None:
    assert keys(TokenPrompt([1] * 8))[1] != keys(TokenPrompt([2] * 4 + [1] * 4))[1]


def test_runs_are_equal_as_their_tokens_are() -> None:
    whole = RunPrompt([TokenRun("a", 0, 8)])
    in_parts = RunPrompt([TokenRun("a", 0, 3), TokenRun("a", 3, 5)])
    shifted = RunPrompt([TokenRun("a", 1, 8)])
    assert keys(whole) == keys(in_parts)
    assert not set(keys(whole)) & set(keys(shifted))


@pytest.mark.parametrize("length", range(1, 9))
def test_a_later_turn_finds_the_output_of_an_earlier_one(length: int) -> None:
    earlier = RunPrompt([TokenRun("a", 0, length)])
    later = RunPrompt([TokenRun("a", 0, length), TokenRun(("output", "first"), 0, 12), TokenRun("b", 0, 3)])
    known = (length + 12) // 4
    assert keys(earlier, count=known, request_id="first") == keys(later)[:known]
    assert keys(earlier, count=known, request_id="second")[-1] != keys(later)[known - 1]


def test_output_ids_continue_a_prompt_of_ids() -> None:
    assert keys(TokenPrompt([1, 2, 3]), count=2, outputs=[4, 5, 6, 7, 8]) == keys(TokenPrompt(range(1, 9)))


def test_keys_are_computed_as_tokens_become_known() -> None:
    """Incremental equals all at once, also when an item ends inside the block where computing stopped (vLLM PR 49448)."""
    prompt, features = TokenPrompt([5] * 8), [image("a", 4, 2), image("b", 7, 1)]
    stepwise = RequestKeys(TABLE, Request("r", prompt, 9, tuple(features)), 4, IDEAL)
    stepwise.upto(1)
    stepwise.outputs += [6, 6, 6, 6]
    assert stepwise.upto(3) == keys(prompt, features, count=3, outputs=[6] * 4)


class TestMedia:
    """Placeholders of all items look alike, so keys name the item and where it starts (vLLM PR 36708)."""

    HOLDERS = TokenPrompt([500] * 8)

    def test_another_item_is_another_key(self) -> None:
        assert keys(self.HOLDERS, [image("x", 0, 8)]) != keys(self.HOLDERS, [image("y", 0, 8)])

    def test_one_item_of_8_is_not_two_of_4(self) -> None:
        one, two = keys(self.HOLDERS, [image("x", 0, 8)]), keys(self.HOLDERS, [image("x", 0, 4), image("x", 4, 4)])
        assert one[0] == two[0]
        assert one[1] != two[1]

    def test_an_item_starting_a_block_earlier_is_another_part_of_it(self) -> None:
        early, late = keys(self.HOLDERS, [image("x", 0, 6)]), keys(self.HOLDERS, [image("x", 2, 6)])
        assert not set(early) & set(late)

    def test_text_after_an_item_depends_on_it_through_its_prefix_only(self) -> None:
        prompt = TokenPrompt([500] * 4 + [1] * 4)
        assert keys(prompt, [image("x", 0, 4)])[1] != keys(prompt, [image("y", 0, 4)])[1]

    def test_a_key_without_the_offset_confuses_them(self) -> None:
        """The defect that the rule guards against, put in its place."""
        blind = IDEAL.replacing("blind", {MEDIA_KEY.name: Replacement(lambda identifier, *_: identifier, "PR 11646")})
        one = keys(self.HOLDERS, [image("x", 0, 8)], dialect=blind)
        assert one == keys(self.HOLDERS, [image("x", 0, 4), image("x", 4, 4)], dialect=blind)


@pytest.mark.parametrize(
    ("release", "loses"), [("vllm-0.25", True), ("vllm-0.30", True), ("vllm-0.31", False), ("ideal", False)]
)
def test_up_to_0_30_a_block_that_is_filled_later_knows_the_last_item_alone(release: str, loses: bool) -> None:
    dialect, items = named(release), [image("a", 4, 1), image("b", 5, 1)]

    def both(prompt, features, outputs=()) -> list[int]:
        return keys(prompt, features, count=2, outputs=outputs, dialect=dialect)

    begun = TokenPrompt([5] * 6)
    assert (both(begun, items, [6, 6]) == both(begun, items[1:], [6, 6])) is loses
    assert (both(begun, items, [6, 6]) == both(TokenPrompt([5] * 6 + [6, 6]), items)) is not loses
    grown = RequestKeys(TABLE, Request("s", TokenPrompt([5] * 4), 9, ()), 4, dialect)
    grown.upto(1)
    grown.grow(0, TokenPrompt([5, 5, 6, 6]), items)
    assert (grown.upto(2)[:2] == both(TokenPrompt([5] * 6 + [6, 6]), items)) is not loses
    at_once = RequestKeys(TABLE, Request("s", TokenPrompt([5] * 2), 9, ()), 4, dialect)
    at_once.grow(0, TokenPrompt([5, 5, 5, 5, 6, 6]), items)
    assert at_once.upto(2)[:2] == both(TokenPrompt([5] * 6 + [6, 6]), items)


@pytest.mark.parametrize("fields", [{"cache_salt": "s"}, {"adapter": "lora"}, {"cache_salt": "s", "adapter": "lora"}])
def test_salt_and_adapter_separate_prefixes(fields: dict[str, str]) -> None:
    plain, other = keys(TokenPrompt([1] * 8)), keys(TokenPrompt([1] * 8), **fields)
    assert not set(plain) & set(other)
    assert other == keys(TokenPrompt([1] * 8), request_id="again", **fields)


def test_forgetting_keeps_what_lives_and_its_ancestors() -> None:
    table = BlockKeyTable()
    first = table.key(0, "a")
    second, third = table.key(first, "b"), table.key(first, "c")
    table.keep_only([second])
    assert table.key(first, "b") == second
    assert table.key(0, "a") == first
    assert table.key(first, "c") > third, "a forgotten number is never given again"
    assert len(table) == 3
