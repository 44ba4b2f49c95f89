"""What metadata of checkpoints weigh, by dialect."""

from __future__ import annotations

import pytest

from epdsim.core.releases.dialects import named
from epdsim.media import family, family_in
from epdsim.sut.family_cases import FamilyCase, MediaSize
from epdsim.sut.probe import events_of
from epdsim.sut.systems import find_system

SOUND = FamilyCase("qwen2.5-omni-7b", [MediaSize("audio", duration_s=2.0)])


@pytest.mark.parametrize(
    ("dialect", "weighs"), [("ideal", 8), ("vllm-0.28", 8), ("vllm-0.29", 120_008), ("vllm-0.33", 120_008)]
)
def test_the_mask_of_a_sound_is_metadata_from_0_29_on(dialect, weighs):
    (weighed,) = events_of(SOUND, find_system("reference", dialect))
    assert (weighed.metadata_bytes, weighed.payload_bytes) == (weighs, 171_208)


def test_what_a_scenario_says_of_a_checkpoint_wins():
    release = named("vllm-0.32")
    assert family_in(release, "qwen3-omni-30b-a3b") == family("qwen3-omni-30b-a3b")
    light = family_in(release, "qwen3-omni-30b-a3b", mask_kept=False)
    assert not light.audio(2.0).item.fields["feature_attention_mask"].kind.keep_on_cpu
    assert family_in(named("ideal"), "qwen3-vl-8b") == family("qwen3-vl-8b")
