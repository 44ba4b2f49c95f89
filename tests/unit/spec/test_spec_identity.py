"""HASH-INJ and KEY-PARITY: on events made by hand, and each defect that is known of hashes and keys, planted in the model."""

from __future__ import annotations

from itertools import pairwise

import pytest
from verdicts import outcome

from epdsim.core import media_hash, prefix_index
from epdsim.core.rules import IDEAL, Replacement
from epdsim.events import BlocksKeyed, HashedItem, MediaHashed
from epdsim.spec import Outcome, properties_of
from epdsim.sut.systems import reference_of
from epdsim.testing.hunt import Hunter, drawn
from epdsim.testing.identity import hash_cases, key_cases

WIDE, TALL = HashedItem("array 1x6", "wide", "b", "h1"), HashedItem("array 6x1", "tall", "b", "h2")
HASHES = drawn("media", hash_cases(), level="identity")
KEYS = drawn("prompts", key_cases(), level="identity")


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([WIDE, TALL], Outcome.HOLDS),
        ([WIDE], Outcome.INCONCLUSIVE),
        ([WIDE, HashedItem("array 1x6", "wide", "c", "h3")], Outcome.INCONCLUSIVE),
        ([WIDE, HashedItem("array 6x1", "tall", "b", "h1")], Outcome.VIOLATED),
        ([WIDE, HashedItem("array 1x6", "wide", "c", "h1")], Outcome.VIOLATED),
        ([WIDE, HashedItem("array 1x6", "wide", "b", "h3")], Outcome.VIOLATED),
        ([TALL, WIDE, HashedItem("array 1x6", "wide", "b", "h3", "mine")], Outcome.HOLDS),
    ],
)
def test_hashes_tell_apart_what_differs_and_nothing_else(items, expected):
    assert outcome("HASH-INJ", MediaHashed(0, "identity", "c0", items)) is expected


def keyed(component, space, *keys, items=("x",)):
    names = [f"r{place}" for place in range(len(keys))]
    told = dict(zip(names, keys, strict=True))
    return BlocksKeyed(0, "identity", "c0", component, space, told, {name: list(items) for name in names})


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], Outcome.INCONCLUSIVE),
        ([keyed("decode leg", "engine", ["a", "b"], ["a", "c"])], Outcome.HOLDS),
        ([keyed("decode leg", "engine", ["a", "d"], ["a", "c"])], Outcome.VIOLATED),
        ([keyed("decode leg", "engine", ["a", "b"], ["a"])], Outcome.VIOLATED),
        ([keyed("index", "router", ["1", "2"], ["1", "3"])], Outcome.HOLDS),
        ([keyed("index", "router", ["1", "2"], ["1", "2"])], Outcome.VIOLATED),
        ([keyed("index", "router", ["1", "2"], ["4", "3"])], Outcome.VIOLATED),
        ([keyed("index", "router", ["1", "2"], ["1", "3"]), keyed("look-up", "router", ["1", "2"], ["1", "4"])], Outcome.VIOLATED),
    ],
)  # fmt: skip
def test_components_take_the_same_blocks_for_equal(others, expected):
    assert outcome("KEY-PARITY", keyed("engine", "engine", ["a", "b"], ["a", "c"]), *others) is expected


def test_prompts_without_media_are_no_premise():
    bare = [keyed("engine", "engine", ["a"], items=()), keyed("index", "router", ["1"], items=())]
    assert outcome("KEY-PARITY", *bare) is Outcome.INCONCLUSIVE


def hunted(rule, defect, cases):
    """Violations that a hunt finds in a model with one defect, and whether it finds none without."""
    found = []
    for rules in (IDEAL, IDEAL.replacing("planted", {rule.name: Replacement(defect, "planted")})):
        name = "HASH-INJ" if cases is HASHES else "KEY-PARITY"
        hunter = Hunter(reference_of(rules), budget=80, properties=properties_of([name]))
        found.append(hunter.explored(cases).verdicts[name].num_broken)
    return found[1] if not found[0] else -1


@pytest.mark.parametrize(
    ("rule", "defect"),
    [
        (media_hash.CONTENT, media_hash.bytes_alone),
        (media_hash.GIVEN_ID, media_hash.name_alone),
        (media_hash.STREAM, media_hash.joined),
        (media_hash.STREAM, media_hash.without_types),
    ],
)
def test_each_defect_of_the_media_hash_is_found(rule, defect):
    assert hunted(rule, defect, HASHES) > 0


def test_a_digest_that_is_cut_makes_two_of_some_thousand_items_one():
    cut = IDEAL.replacing("planted", {media_hash.DIGEST.name: Replacement(media_hash.last_digits, "LMCache PR 4783")})
    items = [media_hash.RawItem(number.to_bytes(2, "little"), (2,)) for number in range(2000)]
    for rules, is_cut in ((IDEAL, False), (cut, True)):
        told = [
            HashedItem("array 2", "line", str(number), media_hash.media_hash(one, {}, rules))
            for number, one in enumerate(items)
        ]
        told.sort(key=lambda one: one.mm_hash)
        neighbours = [MediaHashed(0, "identity", "c0", pair) for pair in pairwise(told)]
        assert (outcome("HASH-INJ", *neighbours) is Outcome.VIOLATED) is is_cut


@pytest.mark.parametrize(
    ("rule", "defect"),
    [
        (prefix_index.PUBLISHED, prefix_index.adapter_by_name),
        (prefix_index.READ, prefix_index.adapter_as_media),
        (prefix_index.LOOKED_UP, prefix_index.without_media),
        (prefix_index.DECODE_MEDIA, prefix_index.no_features),
    ],
)
def test_each_defect_of_keys_beside_the_engine_is_found(rule, defect):
    assert hunted(rule, defect, KEYS) > 0
