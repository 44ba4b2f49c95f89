"""Monitors of the protocol's functions, on events made by hand."""

from __future__ import annotations

import pytest
from verdicts import outcome

from epdsim.events import (
    CheckedItem,
    ItemsMerged,
    MergedItem,
    MetadataWeighed,
    RenderedItem,
    RequestChecked,
    SpanInfo,
    TablesRendered,
)
from epdsim.spec import Outcome


class TestProtocol:
    LIGHT = RenderedItem("image", "h0", SpanInfo(0, 2), {"pixels": "p", "grid": "g"}, ["grid"], ["crops"])
    BARE = RenderedItem("audio", "h1", SpanInfo(2, 2), {"pixels": "q"})

    def tables(self, **changes):
        told = {
            "mm_hashes": {"image": ["h0"], "audio": ["h1"]},
            "kwargs_data": {"image": [{"pixels": "p", "grid": "g"}], "audio": [{"pixels": "q"}]},
            "mm_metadata": {"image": [{"grid": "g"}], "audio": [None]},
        }
        return TablesRendered(0, "protocol", "c0", [self.LIGHT, self.BARE], **(told | changes))

    @pytest.mark.parametrize(
        ("name", "changes", "expected"),
        [
            ("SLOT-KEYS", {}, Outcome.HOLDS),
            ("SLOT-KEYS", {"mm_metadata": {"image": [{"grid": "g"}]}}, Outcome.VIOLATED),
            ("SLOT-LEN", {"mm_metadata": {"image": [{"grid": "g"}], "audio": []}}, Outcome.VIOLATED),
            ("SLOT-META", {"mm_metadata": {"image": [{"pixels": "p"}], "audio": [None]}}, Outcome.VIOLATED),
            ("SLOT-META", {"mm_metadata": {"image": [{"grid": "g"}], "audio": [{}]}}, Outcome.VIOLATED),
            ("SLOT-META", {}, Outcome.HOLDS),
            ("SLOT-ACCEPT", {}, Outcome.HOLDS),
            ("SLOT-ACCEPT", {"refused": "no"}, Outcome.VIOLATED),
            ("SLOT-ACCEPT", {"rejected": "no"}, Outcome.VIOLATED),
            ("SLOT-FALLBACK", {"declared_failed": True, "num_notices": 1}, Outcome.HOLDS),
            ("SLOT-FALLBACK", {"declared_failed": True, "num_notices": 2}, Outcome.VIOLATED),
            ("SLOT-FALLBACK", {"num_notices": 2}, Outcome.INCONCLUSIVE),
        ],
    )
    def test_tables(self, name, changes, expected):
        assert outcome(name, self.tables(**changes)) is expected

    @pytest.mark.parametrize(
        ("groups", "metadata_bytes", "payload_bytes", "expected"),
        [
            (1, 24, 2_000_000, Outcome.HOLDS),
            (32, 64 + 16 * 32, 2_000_000, Outcome.HOLDS),
            (32, 64 + 16 * 32 + 1, 2_000_000, Outcome.VIOLATED),
            (1, 24, 3_000, Outcome.INCONCLUSIVE),
            (1, 24, 25, Outcome.INCONCLUSIVE),
            (1, 24, 24, Outcome.VIOLATED),
            (10**9, 64 + 16 * 64, 2_000_000, Outcome.HOLDS),  # of 64 patches there are 64 groups at most
            (10**9, 64 + 16 * 64 + 1, 2_000_000, Outcome.VIOLATED),
        ],
    )
    def test_metadata_are_light(self, groups, metadata_bytes, payload_bytes, expected):
        weighed = MetadataWeighed(0, "render", "mine", "video", groups, 64, metadata_bytes, payload_bytes, ["grid"])
        assert outcome("SLOT-MIN", weighed) is expected

    def test_permuted_items_permute_slots(self):
        one, two = {"pixels": "p"}, {"pixels": "q"}
        items = [RenderedItem("image", "h0", SpanInfo(0, 1), one), RenderedItem("image", "h1", SpanInfo(1, 1), two)]
        base = TablesRendered(0, "protocol", "c0", items, {"image": ["h0", "h1"]}, {}, {"image": [one, two]})
        order = {"permutes": "c0", "order": {"image": [1, 0]}}
        right = TablesRendered(0, "protocol", "c1", items, {"image": ["h1", "h0"]}, {}, {"image": [two, one]}, **order)
        wrong = TablesRendered(0, "protocol", "c1", items, {"image": ["h1", "h0"]}, {}, {"image": [one, two]}, **order)
        assert outcome("SLOT-ORDER", base, right) is Outcome.HOLDS
        assert outcome("SLOT-ORDER", base, wrong) is Outcome.VIOLATED

    def merged(self, fields, *, is_light=False, offset=0, arrived=None, mask=None):
        wanted = RenderedItem("image", "h0", SpanInfo(0, 2, mask), {"pixels": "p", "grid": "g"}, ["grid"])
        item = MergedItem("image", "h0", SpanInfo(offset, 2, arrived), fields, wanted)
        return ItemsMerged(0, "protocol", "c0", [item], is_light)

    def test_what_arrives_is_what_was_rendered(self):
        assert outcome("SLOT-RT", self.merged({"pixels": "p", "grid": "g"})) is Outcome.HOLDS
        assert outcome("SLOT-RT", self.merged({"grid": "g", "pixels": "p"})) is Outcome.VIOLATED
        assert outcome("SLOT-RT", self.merged({"pixels": "p", "grid": "other"})) is Outcome.VIOLATED
        assert outcome("SLOT-RT", self.merged({"grid": "g"}, is_light=True)) is Outcome.HOLDS
        assert outcome("SLOT-NULL", self.merged({"grid": "g"}, is_light=True)) is Outcome.HOLDS
        assert outcome("SLOT-NULL", self.merged(None, is_light=True)) is Outcome.VIOLATED
        assert outcome("PROTO-RT", self.merged({}, arrived=[1, 0], mask=[1, 0])) is Outcome.HOLDS
        assert outcome("PROTO-RT", self.merged({}, mask=[1, 0])) is Outcome.VIOLATED
        assert outcome("PROTO-RT", self.merged({}, offset=1)) is Outcome.VIOLATED


class TestValidator:
    def checked(self, states, *, accepted, offered=(), has_params=False, case="c0", **more):
        items = [CheckedItem("image", i, f"h{i}", state) for i, state in enumerate(states)]
        return RequestChecked(0, "protocol", case, items, offered, has_params or bool(offered), accepted, **more)

    def test_one_full_item_excuses_nothing(self):
        assert outcome("ECV-SOUND", self.checked(["both", "metadata"], accepted=True)) is Outcome.VIOLATED
        assert outcome("ECV-SOUND", self.checked(["both", "metadata"], accepted=False)) is Outcome.HOLDS

    def test_what_is_provided_for_is_accepted(self):
        assert outcome("ECV-COMPLETE", self.checked(["neither"], accepted=True)) is Outcome.HOLDS
        assert outcome("ECV-COMPLETE", self.checked(["neither"], accepted=False)) is Outcome.VIOLATED
        assert outcome("ECV-COMPLETE", self.checked(["metadata"], accepted=False)) is Outcome.INCONCLUSIVE

    def test_offers_count_by_hash(self):
        assert outcome("ECV-KEYED", self.checked(["metadata"], accepted=True, offered=["h9"])) is Outcome.VIOLATED
        assert outcome("ECV-KEYED", self.checked(["metadata"], accepted=False, offered=["h9"])) is Outcome.HOLDS
        assert outcome("ECV-KEYED", self.checked(["metadata"], accepted=True, has_params=True)) is Outcome.VIOLATED

    def test_a_refusal_says_which_item(self):
        for reason, is_client_error, expected in (
            ("image[0] (hash 'h0')", True, Outcome.HOLDS), ("an item", True, Outcome.VIOLATED),
            ("image[0] (hash 'h0')", False, Outcome.VIOLATED),
        ):  # fmt: skip
            event = self.checked(["metadata"], accepted=False, reason=reason, is_client_error=is_client_error)
            assert outcome("ECV-SAYS", event) is expected

    def test_variants(self):
        base = self.checked(["payload"], accepted=True)
        for name, variant in (("ECV-MONO", "given more"), ("ECV-PERM", "permuted")):
            for accepted, expected in ((True, Outcome.HOLDS), (False, Outcome.VIOLATED)):
                after = self.checked(["both"], accepted=accepted, case="c1", variant_of="c0", variant=variant)
                assert outcome(name, base, after) is expected
