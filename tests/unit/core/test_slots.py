"""Slots: extract, merge, align, and what releases do otherwise."""

from __future__ import annotations

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, FlatKind, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.slots import (
    DeclaredFields,
    FeatureTables,
    Rendered,
    check_tables,
    extract_features,
    features_of,
    merge_slot,
    tables_of,
)

GRID = Field(TensorHandle("int64", (3,), digest="grid"), BatchedKind(keep_on_cpu=True))
PIXELS = Field(TensorHandle("bfloat16", (16, 1536), digest="pixels"), FlatKind((((0, 16, None),),)))
SIZES = Field(TensorHandle("int64", (2,), digest="sizes"), BatchedKind())
PICTURE = MediaItem({"pixel_values": PIXELS, "image_grid_thw": GRID, "image_sizes": SIZES})
SOUND = MediaItem({"input_features": Field(TensorHandle("float32", (80, 30)), BatchedKind())})


def rendered(**items: list[MediaItem | None]) -> Rendered:
    """A prompt with the given items, two tokens each, modalities taking turns."""
    hashes = {modality: [f"{modality}{i}" for i in range(len(slots))] for modality, slots in items.items()}
    spans: dict[str, list[PlaceholderRange]] = {modality: [] for modality in items}
    offset = 1
    for turn in range(max(map(len, items.values()))):
        for modality, slots in items.items():
            if turn < len(slots):
                spans[modality].append(PlaceholderRange(offset, 2))
                offset += 2
    return Rendered(TokenPrompt(range(offset)), hashes, spans, dict(items))


class TestExtract:
    def test_metadata_holds_keep_on_cpu_and_declared_fields_only(self):
        tables = extract_features(rendered(image=[PICTURE]), lambda _: {"image_sizes", "absent"})
        assert tables is not None
        assert tables.metadata("image", 0) == MediaItem({"image_grid_thw": GRID, "image_sizes": SIZES})
        assert tables.payload("image", 0) is PICTURE

    def test_metadata_is_null_for_an_item_without_light_fields_and_absent_when_no_item_has_any(self):
        mixed = extract_features(rendered(image=[PICTURE], audio=[SOUND, SOUND]))
        assert mixed is not None
        assert mixed.mm_metadata is not None
        assert mixed.mm_metadata["audio"] == [None, None]
        assert mixed.mm_metadata["image"][0] is not None
        bare = extract_features(rendered(audio=[SOUND]))
        assert bare is not None
        assert bare.mm_metadata is None

    def test_a_cache_hit_between_two_misses_keeps_its_null_slots(self):
        tables = extract_features(rendered(image=[PICTURE, None, PICTURE]))
        assert tables is not None
        assert [tables.payload("image", i) is None for i in range(3)] == [False, True, False]
        assert [tables.metadata("image", i) is None for i in range(3)] == [False, True, False]

    def test_without_payload_only_hashes_and_placeholders_remain(self):
        tables = extract_features(rendered(image=[PICTURE]), mm_payload="none")
        assert tables is not None
        assert (tables.kwargs_data, tables.mm_metadata) == (None, None)
        assert tables.mm_hashes == {"image": ["image0"]}

    def test_a_text_prompt_has_no_tables(self):
        assert extract_features(Rendered(TokenPrompt([1, 2]))) is None

    def test_an_unknown_payload_option_is_refused(self):
        with pytest.raises(InputError) as refused:
            extract_features(rendered(image=[PICTURE]), mm_payload="all")  # type: ignore[arg-type]
        assert str(refused.value) == 'mm_payload = \'all\': no such option; use "tensors" or "none"'

    @pytest.mark.parametrize(
        ("hashes", "placeholders"), [({"image": ["h"]}, {}), ({}, {"image": [PlaceholderRange(0, 1)]})]
    )
    def test_hashes_or_placeholders_alone_are_no_text_prompt(self, hashes, placeholders):
        with pytest.raises(InputError, match="mm_placeholders has the modalities"):
            extract_features(Rendered(TokenPrompt([1, 2]), hashes, placeholders))

    def test_the_embed_mask_travels_in_the_ideal_and_is_lost_in_releases(self):
        sparse = Rendered(
            TokenPrompt(range(4)),
            {"image": ["h"]},
            {"image": [PlaceholderRange(1, 3, b"\1\0\1")]},
            {"image": [PICTURE]},
        )
        ideal, release = extract_features(sparse), extract_features(sparse, dialect=named("vllm-0.32"))
        assert ideal is not None
        assert release is not None
        assert ideal.mm_placeholders["image"][0].num_embeds == 2
        assert release.mm_placeholders["image"][0] == PlaceholderRange(1, 3)


class TestReleases:
    @pytest.mark.parametrize("minor", range(30, 34))
    def test_a_modality_without_metadata_beside_one_with_some_cannot_be_rendered(self, minor: int):
        with pytest.raises(InputError, match=r"mm_metadata has the modalities \['image'\].*\['audio', 'image'\]"):
            extract_features(rendered(image=[PICTURE], audio=[SOUND]), dialect=named(f"vllm-0.{minor}"))

    def test_the_gap_also_opens_when_the_item_with_metadata_is_a_cache_hit(self):
        both = rendered(image=[PICTURE], video=[None])
        with pytest.raises(InputError, match="mm_metadata"):
            extract_features(both, dialect=named("vllm-0.32"))
        assert extract_features(both) is not None

    @pytest.mark.parametrize("minor", range(25, 30))
    def test_before_metadata_nothing_is_sent_and_nothing_is_read(self, minor: int):
        dialect = named(f"vllm-0.{minor}")
        tables = extract_features(rendered(image=[PICTURE], audio=[SOUND]), dialect=dialect)
        assert tables is not None
        assert tables.mm_metadata is None
        sent = FeatureTables({"image": ["h"]}, {"image": [PlaceholderRange(1, 2)]}, None, {"image": [PICTURE.subset()]})
        assert features_of(sent, dialect)[0].data is None
        assert features_of(sent)[0].data == PICTURE.subset()


class TestArrival:
    def test_either_slot_may_be_missing_and_metadata_wins_a_shared_field(self):
        light = MediaItem({"image_grid_thw": SIZES, "late": GRID})
        assert merge_slot(None, None) is None
        assert merge_slot(PICTURE, None) is PICTURE
        assert merge_slot(None, light) is light
        merged = merge_slot(PICTURE, light)
        assert merged is not None
        assert dict(merged.fields) == {**PICTURE.fields, "image_grid_thw": SIZES, "late": GRID}
        assert list(merged.fields) == ["pixel_values", "image_grid_thw", "image_sizes", "late"]

    def test_a_client_that_sends_payload_alone_is_understood(self):
        spans = {"image": [PlaceholderRange(4, 2), PlaceholderRange(1, 2)]}
        features = features_of(FeatureTables({"image": ["b", "a"]}, spans, {"image": [PICTURE, None]}))
        assert [(one.identifier, one.data) for one in features] == [("a", None), ("b", PICTURE)]

    def test_metadata_survives_beside_a_null_payload(self):
        tables = extract_features(rendered(image=[PICTURE]))
        assert tables is not None
        hit = FeatureTables(tables.mm_hashes, tables.mm_placeholders, {"image": [None]}, tables.mm_metadata)
        assert features_of(hit)[0].data == PICTURE.subset()

    def test_items_come_in_order_of_offset_and_go_back_to_tables(self):
        tables = extract_features(rendered(image=[PICTURE, None], audio=[SOUND, SOUND, SOUND]))
        assert tables is not None
        features = features_of(tables)
        assert [one.identifier for one in features] == ["image0", "audio0", "image1", "audio1", "audio2"]
        back = tables_of(features)
        assert back is not None
        assert features_of(back) == features
        assert tables_of(()) is None

    def test_the_way_back_names_an_item_by_its_own_hash_not_by_that_under_an_adapter(self):
        one = MediaFeature("image", "adapter:h", PlaceholderRange(0, 2), PICTURE, mm_hash="h")
        back = tables_of([one, MediaFeature("image", "g", PlaceholderRange(2, 2), PICTURE)])
        assert back is not None
        assert back.mm_hashes == {"image": ["h", "g"]}


class TestDeclaredFields:
    def test_a_family_that_fails_at_once_is_asked_once_and_told_once(self):
        asked: list[str] = []
        notices: list[str] = []

        def ask(modality: str) -> set[str]:
            asked.append(modality)
            raise ImportError("no processor")

        declared = DeclaredFields(ask, notices.append)
        tables = extract_features(rendered(image=[PICTURE], audio=[SOUND]), declared)
        assert tables is not None
        assert tables.metadata("image", 0) == PICTURE.subset()
        assert set(tables.mm_metadata or {}) == {"image", "audio"}
        assert asked == ["image"]
        assert len(notices) == 1
        assert "no processor" in notices[0]
        assert "keep-on-CPU" in notices[0]

    def test_a_family_that_fails_later_keeps_what_it_has_answered(self):
        notices: list[str] = []

        def ask(modality: str) -> set[str]:
            if modality == "audio":
                raise RuntimeError("gone")
            return {"image_sizes"}

        declared = DeclaredFields(ask, notices.append)
        for _ in range(2):
            tables = extract_features(rendered(image=[PICTURE], audio=[SOUND]), declared)
            assert tables is not None
            assert tables.metadata("image", 0) == MediaItem({"image_grid_thw": GRID, "image_sizes": SIZES})
            assert tables.metadata("audio", 0) is None
        assert notices == [
            "declared metadata fields of 'audio' could not be read (RuntimeError: gone): metadata holds keep-on-CPU fields only"
        ]


SPANS = {"image": [PlaceholderRange(1, 2), PlaceholderRange(3, 2)]}
HASHES = {"image": ["a", "b"]}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            FeatureTables(HASHES, {}),
            (
                r"^mm_placeholders has the modalities \[\]: mm_hashes has \['image'\]; "
                "give every table that is present every modality, with null for an item that has nothing$"
            ),
        ),
        (FeatureTables(HASHES, SPANS, {"image": [None, None], "audio": []}), r"kwargs_data has the modalities"),
        (FeatureTables(HASHES, SPANS, None, {}), r"mm_metadata has the modalities \[\]"),
        (FeatureTables({"image": ["a"]}, SPANS), r"mm_placeholders.image has length 2.*mm_hashes.image has length 1"),
        (
            FeatureTables(HASHES, SPANS, {"image": [None]}),
            r"^kwargs_data.image has length 1: mm_hashes.image has length 2; give every item one slot$",
        ),
        (FeatureTables(HASHES, SPANS, None, {"image": [None] * 3}), r"mm_metadata.image has length 3"),
        (
            FeatureTables(HASHES, {"image": [PlaceholderRange(3, 2), PlaceholderRange(1, 3)]}),
            (
                r"^mm_placeholders.image\[0\] = \[3, 5\): it overlaps mm_placeholders.image\[1\] = \[1, 4\); "
                "give every item tokens of its own$"
            ),
        ),
        (
            FeatureTables({"image": ["a"]}, {"image": [PlaceholderRange(3, 5)]}),
            r"^mm_placeholders.image\[0\] = \[3, 8\): it leaves the prompt of 7 tokens$",
        ),
    ],
)
def test_tables_that_are_not_parallel_are_refused_by_name(tables: FeatureTables[MediaItem], said: str):
    with pytest.raises(InputError, match=said):
        check_tables(tables, num_prompt_tokens=7)


def test_items_at_one_place_are_told_in_the_order_of_the_tables():
    same = {"video": [PlaceholderRange(1, 2)], "audio": [PlaceholderRange(1, 2)]}
    tables = FeatureTables({"video": ["v"], "audio": ["a"]}, same)
    assert list(tables.positions()) == [("video", 0), ("audio", 0)]


def test_an_item_is_known_by_its_hash_to_caches_and_to_block_keys():
    (first, second) = features_of(FeatureTables(HASHES, SPANS))
    assert (first.mm_hash, first.identifier) == ("a", "a")
    assert (second.mm_hash, second.identifier) == ("b", "b")


def test_unsorted_placeholders_and_the_same_hash_twice_are_sound():
    check_tables(FeatureTables({"image": ["a", "a"]}, {"image": [PlaceholderRange(3, 2), PlaceholderRange(1, 2)]}), 5)


def test_convert_names_the_place_and_leaves_nulls():
    places: list[str] = []

    def note(slot: str, place: str) -> int:
        places.append(place)
        return len(slot)

    tables = FeatureTables(HASHES, SPANS, {"image": ["xx", None]}, {"image": [None, "y"]}).convert(note)
    assert (tables.kwargs_data, tables.mm_metadata) == ({"image": [2, None]}, {"image": [None, 1]})
    assert places == ["kwargs_data.image[0]", "mm_metadata.image[1]"]
    assert FeatureTables(HASHES, SPANS, {}).convert(note).kwargs_data == {}
