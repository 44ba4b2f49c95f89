"""Which fields travel as metadata: the model beside the processors of the vLLM that is installed."""

from __future__ import annotations

import importlib.util

import pytest

from epdsim.media import families, family
from epdsim.sut.family_cases import FamilyCase, MediaSize, ReferenceMedia
from epdsim.sut.probe import events_of
from epdsim.sut.systems import find_system

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed in this environment: make vllm"
)


def test_fields_are_those_of_the_release() -> None:
    release = find_system("vllm")
    model = find_system("reference", f"vllm-{release.version.rpartition('.')[0]}")
    if release.media is None:
        pytest.skip(f"vLLM {release.version} sends no metadata")
    assert isinstance(model.media, ReferenceMedia)
    sizes = {
        "image": MediaSize("image", 720, 1280),
        "video": MediaSize("video", 360, 640, 8),
        "audio": MediaSize("audio", duration_s=4.0),
    }
    compared = 0
    for name in families():
        takes = [size for modality, size in sizes.items() if modality in family(name).modalities]
        theirs = events_of(FamilyCase(name, takes), release)
        compared += len(theirs)
        assert theirs in ([], events_of(FamilyCase(name, takes), model))
    assert compared > 40
