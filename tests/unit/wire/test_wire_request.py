"""The generate request: what the release accepts, what the ideal refuses beyond it, and the way into the core."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.legs import prefill_leg
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.slots import FeatureTables, Rendered, extract_features
from epdsim.wire import (
    GenerateRequest,
    MultiModalFeatures,
    SamplingParams,
    encode_blob,
    features_from_json,
    features_to_json,
    find_faults,
    leg_to_json,
    request_faults,
    unknown_fields,
    validate_request,
)

RELEASE = named("vllm-0.32")
GRID = Field(TensorHandle("int64", (3,), bytes(24)), BatchedKind(keep_on_cpu=True))
PICTURE = MediaItem(
    {"pixel_values": Field(TensorHandle("float32", (2,), bytes(8)), BatchedKind()), "image_grid_thw": GRID}
)
FULL, LIGHT = encode_blob(PICTURE), encode_blob(PICTURE.subset())
HANDLE = {"item_indices": [0], "metadata": {"image_grid_thw": [1, 4, 4]}, "peer_host": "127.0.0.1", "peer_port": 5601}


def body(**changes: Any) -> dict[str, Any]:
    """A sound request with two pictures, changed at the top level."""
    features = {
        "mm_hashes": {"image": ["h0", "h1"]},
        "mm_placeholders": {"image": [{"offset": 1, "length": 2}, {"offset": 3, "length": 2}]},
        "kwargs_data": {"image": [FULL, FULL]},
        "mm_metadata": {"image": [LIGHT, LIGHT]},
    }
    sound = {"token_ids": [1, 9, 9, 8, 8, 7], "features": features, "sampling_params": {"max_tokens": 1}}
    return {**copy.deepcopy(sound), **changes}


def tables(**changes: Any) -> dict[str, Any]:
    """A sound request with its tables changed; None leaves a table out."""
    changed = body()
    changed["features"] = {key: one for key, one in (changed["features"] | changes).items() if one is not None}
    return changed


METADATA_ONLY = tables(kwargs_data=None)
BOTH_HANDLES = {"h0": HANDLE, "h1": HANDLE}

# Body, accepted by vLLM 0.32.0, accepted by the ideal: the table of the wire reference, section 6.
VERDICTS: list[tuple[str, dict[str, Any], bool, bool]] = [
    ("full payload and metadata", body(), True, True),
    ("payload alone", tables(mm_metadata=None), True, True),
    ("metadata with EC", METADATA_ONLY | {"ec_transfer_params": BOTH_HANDLES}, True, True),
    ("metadata without EC", METADATA_ONLY, False, False),
    ("metadata with null EC", METADATA_ONLY | {"ec_transfer_params": None}, False, False),
    ("metadata with empty EC", METADATA_ONLY | {"ec_transfer_params": {}}, False, False),
    (
        "EC in extra_args only",
        METADATA_ONLY | {"sampling_params": {"extra_args": {"ec_transfer_params": BOTH_HANDLES}}},
        False,
        False,
    ),
    ("one full, one metadata", tables(kwargs_data={"image": [FULL, None]}), False, False),
    ("EC names one of two", METADATA_ONLY | {"ec_transfer_params": {"h0": HANDLE}}, True, False),
    ("EC names a stranger", METADATA_ONLY | {"ec_transfer_params": {"x": HANDLE}}, True, False),
    ("EC is null for both", METADATA_ONLY | {"ec_transfer_params": {"h0": None, "h1": None}}, True, False),
    (
        "EC as a list",
        METADATA_ONLY | {"ec_transfer_params": {"ec_items": [{"mm_hash": "h1"}, {"mm_hash": "h0"}]}},
        True,
        True,
    ),
    ("hashes and placeholders only", tables(kwargs_data=None, mm_metadata=None), True, True),
    ("short payload table", tables(kwargs_data={"image": [FULL]}), False, False),
    ("payload table without the modality", tables(kwargs_data={}), False, False),
    ("metadata table of another modality", tables(mm_metadata={"audio": [None, None]}), False, False),
    ("empty blob text", tables(kwargs_data={"image": ["", None]}), False, False),
    ("empty blob text and payload", tables(kwargs_data={"image": ["", ""]}), True, True),
    (
        "overlap",
        tables(mm_placeholders={"image": [{"offset": 1, "length": 3}, {"offset": 3, "length": 2}]}),
        False,
        False,
    ),
    (
        "outside",
        tables(mm_placeholders={"image": [{"offset": 1, "length": 2}, {"offset": 5, "length": 2}]}),
        False,
        False,
    ),
    (
        "zero length",
        tables(mm_placeholders={"image": [{"offset": 1, "length": 0}, {"offset": 3, "length": 2}]}),
        False,
        False,
    ),
    (
        "unsorted",
        tables(mm_placeholders={"image": [{"offset": 3, "length": 2}, {"offset": 1, "length": 2}]}),
        True,
        True,
    ),
    ("same hash twice", tables(mm_hashes={"image": ["h0", "h0"]}), True, True),
    ("no token", body(token_ids=[]), False, False),
    ("negative token", body(token_ids=[1, 9, 9, 8, 8, -7]), False, False),
    ("no sampling", {"token_ids": [1]}, False, False),
    ("raw media and tables", body(content_parts=[{"type": "image_url", "url": "u"}]), False, False),
    ("no raw media and tables", body(content_parts=[]), True, True),
    ("streamed prefill", body(stream=True), True, True),
    ("two samples", body(sampling_params={"n": 2}), True, True),
    ("unknown field", body(mm_metdata={}), True, True),
    ("no token asked for", body(sampling_params={"max_tokens": 0}), False, False),
    ("more at least than at most", body(sampling_params={"max_tokens": 1, "min_tokens": 2}), False, False),
    ("text without detokenizing", body(output_mode="text", sampling_params={"detokenize": False}), False, False),
    ("salt", body(cache_salt="x" * 128), True, True),
    ("long salt", body(cache_salt="x" * 129), False, False),
    ("salt with a slash", body(cache_salt="a/b"), False, False),
    ("priority beyond 64 bits", body(priority=2**63), False, False),
    ("unknown option of the reasoning parser", body(reasoning_parser_kwargs={"x": 1}), False, False),
]


@pytest.mark.parametrize(
    ("request_body", "release", "ideal"), [row[1:] for row in VERDICTS], ids=[row[0] for row in VERDICTS]
)
def test_verdicts(request_body: dict[str, Any], release: bool, ideal: bool):
    assert (not request_faults(request_body, RELEASE)) is release
    assert (not request_faults(request_body)) is ideal


def test_a_refusal_names_the_path_and_for_the_gate_modality_index_and_hash():
    with pytest.raises(
        InputError, match=r"^GenerateRequest features.mm_placeholders.image\[0\].length: .*\(and 1 more\)$"
    ):
        validate_request(tables(mm_placeholders={"image": [{"offset": 1, "length": 0}, {"length": 2}]}))
    with pytest.raises(InputError, match=r"^GenerateRequest body: image\[1\] \(hash 'h1'\): metadata-only"):
        validate_request(METADATA_ONLY | {"ec_transfer_params": {"h0": HANDLE}})
    with pytest.raises(InputError, match="GenerateRequest body"):
        validate_request([1])


def test_releases_leave_fields_unread_that_they_do_not_know():
    junk = tables(mm_metadata="junk")
    assert request_faults(junk, named("vllm-0.29")) == ()
    assert request_faults(junk, RELEASE)
    assert validate_request(METADATA_ONLY, named("vllm-0.29")).features.mm_metadata is None  # type: ignore[union-attr]
    assert validate_request(body(ec_transfer_params=5), named("vllm-0.25")).ec_transfer_params is None
    masked = tables(
        mm_placeholders={"image": [{"offset": 1, "length": 2, "is_embed": [True]}, {"offset": 3, "length": 2}]}
    )
    assert request_faults(masked, RELEASE) == ()
    assert "is_embed has 1 entries for 2 tokens" in request_faults(masked)[0].message


def test_unknown_fields_are_found_wherever_they_are():
    misspelt = body(mm_metdata={}, stream_options={"free": "form"}, kv_transfer_params={"any": 1})
    misspelt["features"]["kwarg_data"] = {}
    misspelt["features"]["mm_placeholders"]["image"][1]["lenght"] = 2
    misspelt["sampling_params"]["max_token"] = 1
    assert unknown_fields(GenerateRequest, misspelt) == (
        "features.mm_placeholders.image[1].lenght",
        "features.kwarg_data",
        "sampling_params.max_token",
        "mm_metdata",
    )
    assert unknown_fields(GenerateRequest, body()) == ()


class TestContent:
    def test_tables_are_merged_in_order_of_offset(self):
        request = validate_request(
            tables(
                mm_placeholders={"image": [{"offset": 3, "length": 2}, {"offset": 1, "length": 2}]},
                kwargs_data={"image": [FULL, None]},
            )
            | {"ec_transfer_params": {"h1": HANDLE}}
        )
        first, second = request.mm_features()
        assert (first.identifier, first.position, first.data) == ("h1", PlaceholderRange(1, 2), PICTURE.subset())
        assert (second.identifier, second.data) == ("h0", PICTURE)
        assert validate_request({"token_ids": [1], "sampling_params": {}}).mm_features() == ()

    def test_a_broken_blob_is_told_by_its_path(self):
        request = validate_request(tables(kwargs_data={"image": [FULL, FULL[:-8]]}))
        with pytest.raises(InputError, match=r"^features.kwargs_data.image\[1\]"):
            request.mm_features()
        with pytest.raises(InputError, match=r"^features.mm_metadata.image\[0\]"):
            validate_request(tables(mm_metadata={"image": ["AAAA", None]})).media_tables()

    def test_raw_media_are_checked_by_type(self):
        request = validate_request(
            {"token_ids": [1], "sampling_params": {}, "content_parts": [{"type": "video_url", "url": "u"}]}
        )
        assert request.media_parts()[0].url == "u"
        bad = validate_request(
            {"token_ids": [1], "sampling_params": {}, "content_parts": [{"type": "video_url"}, {"type": "gif"}]}
        )
        with pytest.raises(InputError, match=r"content_parts\[1\].*type"):
            bad.media_parts()

    def test_null_slots_survive_json_both_ways(self):
        sent = FeatureTables(
            {"image": ["a", "b"], "audio": ["c"]},
            {"image": [PlaceholderRange(1, 1), PlaceholderRange(2, 2, b"\1\0")], "audio": [PlaceholderRange(5, 1)]},
            {"image": [None, PICTURE], "audio": [None]},
            {"image": [PICTURE.subset(), None], "audio": [None]},
        )
        text = features_to_json(sent)
        assert text["kwargs_data"] == {"image": [None, FULL], "audio": [None]}
        assert text["mm_metadata"] == {"image": [LIGHT, None], "audio": [None]}
        assert features_from_json(text) == sent
        assert features_to_json(features_from_json(text)) == text
        assert find_faults(MultiModalFeatures, text) == ()

    def test_a_leg_becomes_a_body_that_its_receiver_accepts(self):
        rendered = Rendered(
            TokenPrompt([1, 9, 9]), {"image": ["h"]}, {"image": [PlaceholderRange(1, 2)]}, {"image": [PICTURE]}
        )
        leg = prefill_leg("r", rendered.prompt, extract_features(rendered), ec_transfer_params={"h": HANDLE})
        request = validate_request(leg_to_json(leg))
        assert request.features is not None
        assert request.features.kwargs_data is None
        assert request.mm_features()[0].data == PICTURE.subset()


# Field, value, accepted: bounds of vLLM 0.32.0's sampling parameters, recorded from it.
@pytest.mark.parametrize(
    ("field", "value", "accepted"),
    [
        ("n", 0, False),
        ("n", 16_384, True),
        ("n", 16_385, False),
        ("presence_penalty", 2.1, False),
        ("frequency_penalty", -2, True),
        ("repetition_penalty", 0, False),
        ("repetition_penalty", float("inf"), False),
        ("temperature", 2, True),
        ("temperature", 2.5, False),
        ("temperature", -0.1, False),
        ("temperature", float("nan"), False),
        ("top_p", 0, False),
        ("top_p", 1, True),
        ("top_k", -1, True),
        ("top_k", -2, False),
        ("min_p", 1.5, False),
        ("max_tokens", None, True),
        ("max_tokens", "7", True),
        ("max_tokens", 7.5, False),
        ("min_tokens", -1, False),
        ("stream_interval", 0, False),
        ("logprobs", -1, True),
        ("logprobs", -2, False),
        ("prompt_logprobs", -2, False),
        ("stop", "", False),
        ("stop", ["a", ""], False),
        ("stop", "a", True),
        ("bad_words", [""], False),
        ("extra_args", {"a": [{"b": 2**64}]}, False),
        ("extra_args", {"a": [{"b": 2**64 - 1}]}, True),
        ("thinking_token_budget", -1, True),
        ("thinking_token_budget", -2, False),
        ("output_kind", 3, False),
        ("structured_outputs", {}, False),
        ("structured_outputs", {"json": "{}", "regex": "a"}, False),
        ("structured_outputs", {"json": {"type": "object"}}, True),
        ("repetition_detection", {"max_pattern_size": 2, "min_count": 1}, False),
        ("repetition_detection", {"max_pattern_size": 2, "min_pattern_size": 3, "min_count": 2}, False),
        ("repetition_detection", {"max_pattern_size": 2, "min_count": 2}, True),
        ("prompt_logprob_token_ids", [["1"]], False),
    ],
)
def test_sampling_parameters(field: str, value: object, accepted: bool):
    assert (find_faults(SamplingParams, {field: value}) == ()) is accepted


def test_greedy_sampling_gives_one_output_and_what_was_given_is_remembered():
    assert find_faults(SamplingParams, {"n": 2, "temperature": 0})
    assert find_faults(SamplingParams, {"n": 2, "temperature": 0.001}) == ()
    assert find_faults(SamplingParams, {"stop": "a", "detokenize": False})
    given = SamplingParams.model_validate({"temperature": 0})
    assert given.is_greedy
    assert given.model_fields_set == {"temperature"}
    assert given.max_tokens == 16
