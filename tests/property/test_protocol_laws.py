"""Laws of slots, validator and strip over drawn prompts and prefix lengths."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from epdsim.core.ec.gate import GateItem, SlotState, keyed, per_item, whole_request
from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.legs import decode_leg, encode_legs, prefill_leg
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.slots import Rendered, extract_features, features_of, merge_slot, tables_of
from epdsim.core.strip import defer_payloads, late_payloads, payload_kind, resend_on_resume, strip_covered
from epdsim.wire import encode_blob, features_from_json, features_to_json, leg_to_json, request_faults

FIELD_NAMES = ("pixel_values", "image_grid_thw", "tgt_sizes", "num_crops")
fields = st.builds(
    lambda size, keep: Field(TensorHandle("uint8", (size,), bytes(size)), BatchedKind(keep_on_cpu=keep)),
    st.integers(0, 5),
    st.booleans(),
)
items = st.dictionaries(st.sampled_from(FIELD_NAMES), fields, max_size=4).map(MediaItem)
declared = st.dictionaries(st.sampled_from(["image", "video", "audio"]), st.frozensets(st.sampled_from(FIELD_NAMES)))


optional_items: st.SearchStrategy[MediaItem | None] = st.none() | items


@st.composite
def prompts(draw: st.DrawFn, slot: st.SearchStrategy[MediaItem | None] = optional_items) -> Rendered:
    """A rendered prompt of up to six items of up to three modalities."""
    order = draw(st.lists(st.sampled_from(["image", "video", "audio"]), min_size=1, max_size=6))
    hashes: dict[str, list[str]] = {}
    spans: dict[str, list[PlaceholderRange]] = {}
    data: dict[str, list[MediaItem | None]] = {}
    offset = 0
    for modality in order:
        offset += draw(st.integers(0, 3))
        length = draw(st.integers(1, 4))
        hashes.setdefault(modality, []).append(f"h{offset}")
        spans.setdefault(modality, []).append(PlaceholderRange(offset, length))
        data.setdefault(modality, []).append(draw(slot))
        offset += length
    return Rendered(TokenPrompt(range(offset + draw(st.integers(0, 2)))), hashes, spans, data)


class TestSlots:
    @given(prompts(), declared)
    def test_tables_are_complete_and_slots_exact(self, rendered: Rendered, names: dict[str, frozenset[str]]):
        tables = extract_features(rendered, lambda modality: names.get(modality, ()))
        assert tables is not None
        for table in (tables.kwargs_data, tables.mm_metadata):
            if table is not None:
                assert list(table) == list(rendered.mm_hashes)
                assert all(len(table[modality]) == len(hashes) for modality, hashes in rendered.mm_hashes.items())
        for modality, i in tables.positions():
            item, light = rendered.mm_items[modality][i], tables.metadata(modality, i)
            wanted = {
                name: one
                for name, one in (item.fields if item else {}).items()
                if one.keep_on_cpu or name in names.get(modality, ())
            }
            assert dict(light.fields if light else {}) == wanted
            assert light is None or light.fields, "a slot without fields is null"
            assert tables.payload(modality, i) is item

    @given(prompts(), declared)
    def test_render_json_parse_merge_is_the_identity(self, rendered: Rendered, names: dict[str, frozenset[str]]):
        tables = extract_features(rendered, lambda modality: names.get(modality, ()))
        assert tables is not None
        features = features_of(features_from_json(features_to_json(tables)))
        assert [one.position.offset for one in features] == sorted(one.position.offset for one in features)
        for one, (modality, i) in zip(features, tables.positions(), strict=True):
            item = rendered.mm_items[modality][i]
            assert (one.modality, one.identifier) == (modality, rendered.mm_hashes[modality][i])
            assert (one.data is None) is (item is None)
            assert item is None or one.data is None or encode_blob(one.data) == encode_blob(item)
        back = tables_of(features)
        assert back is not None
        assert features_of(back) == features

    @settings(max_examples=50)
    @given(prompts(slot=items), declared)
    def test_whatever_render_emits_is_accepted(self, rendered: Rendered, names: dict[str, frozenset[str]]):
        tables = extract_features(rendered, lambda modality: names.get(modality, ()))
        handles = {one: {"item_indices": [0]} for hashes in rendered.mm_hashes.values() for one in hashes}
        legs = [
            *encode_legs("r", rendered.prompt, tables),
            *encode_legs("r", rendered.prompt, tables, batched=True),
            prefill_leg("r", rendered.prompt, tables, mode="full"),
            prefill_leg("r", rendered.prompt, tables, ec_transfer_params=handles),
            prefill_leg("r", rendered.prompt, tables, ec_transfer_params=dict(list(handles.items())[:1])),
            decode_leg("r", rendered.prompt, tables, kv_transfer_params={}),
        ]
        for leg in legs:
            for dialect in ("ideal", "vllm-0.32", "vllm-0.29"):
                assert request_faults(leg_to_json(leg), named(dialect)) == ()

    @given(prompts(), declared)
    def test_the_release_differs_by_its_gap_alone(self, rendered: Rendered, names: dict[str, frozenset[str]]):
        ideal = extract_features(rendered, lambda modality: names.get(modality, ()))
        assert ideal is not None
        has_gap = ideal.mm_metadata is not None and any(
            all(slot is None for slot in slots) for slots in ideal.mm_metadata.values()
        )
        event(f"gap: {has_gap}")
        if has_gap:
            with pytest.raises(InputError, match="mm_metadata has the modalities"):
                extract_features(rendered, lambda modality: names.get(modality, ()), dialect=named("vllm-0.32"))
        else:
            assert extract_features(rendered, lambda m: names.get(m, ()), dialect=named("vllm-0.32")) == ideal

    @given(prompts(), st.randoms(use_true_random=False))
    def test_permuting_items_permutes_slots_and_nothing_else(self, rendered: Rendered, random: object):
        orders = {modality: list(range(len(hashes))) for modality, hashes in rendered.mm_hashes.items()}
        for order in orders.values():
            random.shuffle(order)  # type: ignore[attr-defined]
        shuffled = Rendered(
            rendered.prompt,
            {modality: [rendered.mm_hashes[modality][i] for i in order] for modality, order in orders.items()},
            {modality: [rendered.mm_placeholders[modality][i] for i in order] for modality, order in orders.items()},
            {modality: [rendered.mm_items[modality][i] for i in order] for modality, order in orders.items()},
        )
        tables, permuted = extract_features(rendered), extract_features(shuffled)
        assert tables is not None
        assert permuted is not None
        for modality, order in orders.items():
            assert [permuted.metadata(modality, i) for i in range(len(order))] == [
                tables.metadata(modality, i) for i in order
            ]
        assert features_of(permuted) == features_of(tables)


class TestValidator:
    @given(
        st.lists(st.sampled_from(SlotState), max_size=12),
        st.lists(st.sampled_from(["h0", "h1", "h2", "h3", "x"])),
        st.randoms(use_true_random=False),
    )
    def test_beyond_the_small_shapes(self, states: list[SlotState], offers: list[str], random: object):
        shape = [GateItem("image" if i % 2 else "audio", i, f"h{i % 4}", state) for i, state in enumerate(states)]
        ec = {one: {"metadata": {}} for one in offers}
        refused = {gate: set(gate(shape, ec)) for gate in (whole_request, per_item, keyed)}
        assert refused[whole_request] <= refused[per_item] <= refused[keyed]
        assert refused[keyed] == {one for one in shape if one.is_metadata_only and one.mm_hash not in offers}
        shuffled = list(shape)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        assert all(set(gate(shuffled, ec)) == refused[gate] for gate in refused)


def features_and_prefix() -> st.SearchStrategy[tuple[tuple[MediaFeature, ...], int]]:
    def drawn(rendered: Rendered) -> st.SearchStrategy[tuple[tuple[MediaFeature, ...], int]]:
        tables = extract_features(rendered)
        assert tables is not None
        features = features_of(tables)
        ends = [0, *(one.position.end for one in features)]
        return st.tuples(st.just(features), st.sampled_from(ends) | st.integers(0, ends[-1] + 2))

    return prompts().flatmap(drawn)


schemes = st.sampled_from([{}, {"uses_mrope": True}, {"uses_xdrope": True}])
dialects = st.sampled_from([named("ideal"), named("vllm-0.32")])


def nbytes(features: Sequence[MediaFeature]) -> int:
    return sum(one.data.nbytes for one in features if one.data is not None)


class TestStrip:
    @given(features_and_prefix(), schemes, dialects)
    def test_covered_items_lose_their_payload_and_no_others_anything(self, case, scheme, dialect):
        features, computed = case
        stripped = strip_covered(features, computed, dialect=dialect, **scheme)
        for before, after in zip(features, stripped, strict=True):
            if computed == 0 or before.position.end > computed or before.data is None:
                assert after is before
                continue
            event("stripped")
            kept = {name: one for name, one in before.data.fields.items() if one.keep_on_cpu} if scheme else {}
            assert dict(after.data.fields if after.data else {}) == kept
            assert (after.position, after.identifier, after.modality) == (
                before.position,
                before.identifier,
                before.modality,
            )
        assert strip_covered(stripped, computed, dialect=dialect, **scheme) == stripped, (
            "stripping twice is stripping once"
        )

    @given(features_and_prefix(), schemes)
    def test_without_a_prefix_hit_nothing_changes(self, case, scheme):
        features, _ = case
        assert strip_covered(features, 0, **scheme) is features

    @given(features_and_prefix(), st.integers(0, 5), schemes)
    def test_a_longer_prefix_never_sends_more(self, case, more, scheme):
        features, computed = case
        assert nbytes(strip_covered(features, computed + more, **scheme)) <= nbytes(
            strip_covered(features, computed, **scheme)
        )

    @given(features_and_prefix(), st.lists(st.frozensets(st.integers(0, 5)), max_size=4), schemes)
    def test_deferring_gives_every_run_its_payload_and_sends_no_more(self, case, steps, scheme):
        """Encoder runs are scheduled, in any steps, for items that the prefix does not cover."""
        features, computed = case
        due = {i for i, one in enumerate(features) if one.position.end > computed}
        admitted = strip_covered(features, computed, **scheme)
        first, *later = [[i for i in sorted(step) if i in due] for step in (steps or [frozenset()])]
        held = list(defer_payloads(features, first, **scheme))
        sent = nbytes(held)
        for scheduled in [first, *later]:
            for i, update in late_payloads(features, scheduled, held).items():
                sent += nbytes([update])
                held[i] = MediaFeature(
                    update.modality,
                    update.identifier,
                    update.position,
                    merge_slot(held[i].data, update.data),
                    update.mm_hash,
                )
            for i in scheduled:
                full = features[i].data
                assert full is None or (held[i].data is not None and dict(held[i].data.fields) == dict(full.fields))
        assert sent <= nbytes(admitted)

    @given(features_and_prefix(), schemes)
    def test_an_item_that_is_not_due_is_sent_as_one_that_is_covered(self, case, scheme):
        """What positions read stays under every scheme, deferred or not."""
        features, _ = case
        end = max((one.position.end for one in features), default=0)
        assert list(defer_payloads(features, (), **scheme)) == list(strip_covered(features, end, **scheme))

    @given(features_and_prefix(), st.integers(0, 20), schemes)
    def test_a_resume_heals_what_admission_stripped(self, case, resumed_at, scheme):
        features, computed = case
        held = strip_covered(features, computed, **scheme)
        updates = resend_on_resume(features, resumed_at, held)
        for i, one in enumerate(features):
            now = merge_slot(held[i].data, updates[i].data if i in updates else None)
            if one.data is not None and one.position.end > resumed_at:
                assert now is not None
                assert dict(now.fields) == dict(one.data.fields)
            else:
                assert i not in updates
        event(f"healed: {bool(updates)}")

    @given(features_and_prefix(), schemes)
    def test_kinds_tell_what_was_sent(self, case, scheme):
        features, computed = case
        for before, after in zip(features, strip_covered(features, computed, **scheme), strict=True):
            kind = payload_kind(after.data)
            assert (kind == "none") is (after.data is None)
            assert kind in ("metadata", "empty", "none") or after is before
