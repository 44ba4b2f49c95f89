"""The strip at admission, deferred, and at a resume."""

from __future__ import annotations

import pytest

from epdsim.core.items import BatchedKind, Field, FlatKind, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.releases.dialects import named
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.slots import merge_slot
from epdsim.core.strip import (
    defer_payloads,
    late_payloads,
    payload_kind,
    resend_on_resume,
    strip_at_admission,
    strip_covered,
)

PIXELS = Field(TensorHandle("bfloat16", (16, 1536)), FlatKind((((0, 16, None),),)))
GRID = Field(TensorHandle("int64", (3,)), BatchedKind(keep_on_cpu=True))
PICTURE = MediaItem({"pixel_values": PIXELS, "image_grid_thw": GRID})
SOUND = MediaItem({"input_features": Field(TensorHandle("float32", (80, 30)), BatchedKind())})
ADDRESS = MediaItem({"address": Field(64, BatchedKind()), "monotonic_id": Field(7, BatchedKind())})


def feature(offset: int, length: int, data: MediaItem | None = PICTURE) -> MediaFeature:
    return MediaFeature("image", f"h{offset}", PlaceholderRange(offset, length), data)


def kinds(features: object) -> list[str]:
    return [payload_kind(one.data) for one in features]  # type: ignore[attr-defined]


def test_an_item_that_ends_at_the_computed_prefix_is_covered_and_one_that_ends_after_it_is_not():
    features = (feature(1, 3), feature(4, 4), feature(8, 2))
    assert kinds(strip_covered(features, 8)) == ["none", "none", "full"]
    assert kinds(strip_covered(features, 7)) == ["none", "full", "full"]
    assert kinds(strip_covered(features, 9)) == ["none", "none", "full"]


def test_nothing_is_touched_that_need_not_be():
    features = [feature(1, 3), feature(4, 4, None), feature(8, 2)]
    assert strip_covered(features, 0) is features
    assert strip_covered([], 5) == []
    empty: list[MediaFeature] = []
    assert strip_covered(empty, 5) is empty
    before = list(features)
    stripped = strip_covered(features, 8)
    assert features == before
    assert features[0].data is PICTURE
    assert stripped[1] is features[1]
    assert stripped[2] is features[2]
    assert stripped[0].data is None
    assert (stripped[0].position, stripped[0].identifier) == (features[0].position, features[0].identifier)


def test_where_nothing_is_said_of_positions_no_field_is_kept_for_them():
    features = (feature(1, 3), feature(8, 2))
    assert kinds(strip_at_admission(features, 8)) == kinds(strip_covered(features, 8)) == ["none", "full"]


@pytest.mark.parametrize("scheme", [{"uses_mrope": True}, {"uses_xdrope": True}])
def test_position_fields_survive_where_workers_read_them(scheme: dict[str, bool]):
    stripped = strip_covered((feature(1, 3), feature(4, 2, SOUND)), 6, **scheme)
    assert stripped[0].data == MediaItem({"image_grid_thw": GRID})
    assert stripped[1].data is None


def test_releases_send_an_item_without_fields_where_the_ideal_sends_nothing():
    features = (feature(1, 3), feature(4, 2, SOUND))
    for minor in range(29, 34):
        assert kinds(strip_covered(features, 6, uses_mrope=True, dialect=named(f"vllm-0.{minor}"))) == [
            "metadata",
            "empty",
        ]
        assert kinds(strip_covered(features, 6, dialect=named(f"vllm-0.{minor}"))) == ["none", "none"]


def test_before_0_29_everything_is_sent():
    features = (feature(1, 3), feature(4, 2))
    for minor in range(25, 29):
        assert strip_covered(features, 6, dialect=named(f"vllm-0.{minor}")) is features


def test_addresses_reach_the_worker_unless_a_defect_takes_them():
    features = (feature(1, 3, ADDRESS), feature(4, 2))
    assert kinds(strip_covered(features, 6, uses_mrope=True)) == ["address", "metadata"]
    assert kinds(defer_payloads(features, ())) == ["address", "none"]
    defect = IDEAL.replacing("a3", {"strip.exempt": Replacement(lambda _: False, "vLLM PR 54994")})
    assert kinds(strip_covered(features, 6, dialect=defect)) == ["none", "none"]


def test_a_defect_of_the_boundary_or_of_xdrope_is_one_replaced_rule():
    off_by_one = Replacement(lambda one, computed: one.position.end < computed, "test")
    mrope_only = Replacement(lambda *, uses_mrope, **_: uses_mrope, "vLLM PR 53456")
    defect = IDEAL.replacing("defect", {"strip.covered": off_by_one, "strip.reads_fields": mrope_only})
    assert kinds(strip_covered((feature(1, 3),), 4, dialect=defect)) == ["full"]
    assert kinds(strip_covered((feature(1, 3),), 5, uses_xdrope=True, dialect=defect)) == ["none"]


class TestDeferred:
    FEATURES = (feature(1, 3), feature(4, 4), feature(8, 2, SOUND), feature(10, 2, None))

    def test_only_scheduled_items_carry_their_payload(self):
        assert kinds(defer_payloads(self.FEATURES, {1}, uses_mrope=True)) == ["metadata", "full", "none", "none"]
        assert defer_payloads(self.FEATURES, {1})[1] is self.FEATURES[1]

    def test_a_later_run_sends_what_is_missing_and_no_byte_twice(self):
        held = defer_payloads(self.FEATURES, (), uses_mrope=True)
        updates = late_payloads(self.FEATURES, [2, 0, 3], held)
        assert list(updates) == [0, 2]
        assert updates[0].data == MediaItem({"pixel_values": PIXELS})
        now = [merge_slot(one.data, updates[i].data if i in updates else None) for i, one in enumerate(held)]
        assert now[0] is not None
        assert now[0].fields.keys() == PICTURE.fields.keys()
        assert now[2] == SOUND
        whole = [one if i not in updates else self.FEATURES[i] for i, one in enumerate(held)]
        assert late_payloads(self.FEATURES, [0, 2], whole) == {}

    def test_an_item_whose_run_never_comes_never_costs_its_payload(self):
        held = defer_payloads(self.FEATURES, ())
        sent = sum(one.data.nbytes for one in held if one.data is not None)
        assert sent == 0
        assert sum(one.data.nbytes for one in strip_covered(self.FEATURES, 3) if one.data is not None) > 0


class TestResume:
    def test_items_below_the_new_start_are_sent_again_and_no_others(self):
        features = (feature(1, 3), feature(4, 4), feature(8, 2))
        held = strip_covered(features, 8, uses_mrope=True)
        assert kinds(held) == ["metadata", "metadata", "full"]
        updates = resend_on_resume(features, 4, held)
        assert list(updates) == [1]
        assert updates[1].data == MediaItem({"pixel_values": PIXELS})
        assert list(resend_on_resume(features, 0, held)) == [0, 1]
        assert resend_on_resume(features, 8, held) == {}

    def test_a_worker_that_holds_everything_gets_nothing(self):
        features = (feature(1, 3), feature(4, 4))
        assert resend_on_resume(features, 0, features) == {}


def test_kinds_are_those_of_schedule_recordings():
    assert payload_kind(None) == "none"
    assert payload_kind(MediaItem({})) == "empty"
    assert payload_kind(PICTURE.subset()) == "metadata"
    assert payload_kind(PICTURE) == "full"
    assert payload_kind(SOUND) == "full"
    assert payload_kind(ADDRESS) == "address"
