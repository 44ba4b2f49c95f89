"""What render lays out is what positions can number, before and after a strip: families and schemes agree."""

import pytest

from epdsim.core.items import MediaFeature, PlaceholderRange
from epdsim.core.positions import lay_out, position_scheme, spans_from_features
from epdsim.core.strip import strip_covered
from epdsim.media.family import families, family

NAMES = [name for name in families() if family(name).position_scheme != "1d"]


def rendered(name):
    one = family(name)
    media = [one.image(300, 500), one.image(64, 64)]
    if "video" in one.modalities:
        media += [one.video(9, 200, 300), one.video(4, 100, 100, fps=1.0)]
    if "audio" in one.modalities:
        media.append(one.audio(3.3))
    return one, media


def test_there_are_families_with_positions_of_their_own():
    assert {family(name).position_scheme for name in NAMES} >= {
        "mrope-qwen2-vl",
        "mrope-qwen2.5-vl",
        "mrope-qwen3-vl",
        "mrope-qwen2.5-omni",
        "mrope-qwen3-omni",
    }


@pytest.mark.parametrize("name", NAMES)
def test_rendered_media_have_positions_and_keep_them_when_stripped(name):
    one, media = rendered(name)
    scheme = position_scheme(one.position_scheme)
    features, end = [], 3
    for number, part in enumerate(media):
        position = PlaceholderRange(end, part.num_tokens, part.is_embed)
        features.append(MediaFeature(part.modality, f"m{number}", position, part.item))
        end = position.end + 2
    layout = lay_out(scheme, end, spans_from_features(scheme, features))
    assert layout.decode_delta < 0
    stripped = strip_covered(features, end, uses_mrope=one.uses_mrope, uses_xdrope=scheme.uses_xdrope)
    assert lay_out(scheme, end, spans_from_features(scheme, stripped)) == layout


@pytest.mark.parametrize("name", NAMES)
def test_fields_that_positions_read_are_declared_and_flagged(name):
    """vLLM PRs 52827 and 52881: what positions read is a part of what stays on the CPU."""
    one, media = rendered(name)
    scheme = position_scheme(one.position_scheme)
    assert scheme.uses_mrope == one.uses_mrope
    for part in media:
        read = set(scheme.fields[part.modality])
        assert read <= one.position_fields[part.modality]
        assert all(part.item.fields[field].keep_on_cpu for field in one.position_fields[part.modality])


@pytest.mark.parametrize("name", NAMES)
def test_both_merge_as_many_patches(name):
    one = family(name)
    assert position_scheme(one.position_scheme).spatial_merge_size == one.merge
