"""Laws of random scheduler workloads, whatever the mode and the seed."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from epdsim.core.errors import InputError
from epdsim.core.rules import IDEAL
from epdsim.sut.schedule_model import model_play, scheduler_config
from epdsim.sut.schedule_modes import MODES, RUNNERS, TRAITS, parse_mode
from epdsim.sut.schedule_recorder import MOST_STEPS, record_workload
from epdsim.sut.schedule_recording import replay_workload
from epdsim.sut.schedule_records import RecordedWorkload
from epdsim.sut.schedule_workloads import schedule_workload

RELEASE = "0.32.0"


@st.composite
def modes(draw: st.DrawFn) -> str:
    """Listed modes, and combinations that nobody listed."""
    if draw(st.booleans()):
        return draw(st.sampled_from(MODES))
    traits = draw(st.lists(st.sampled_from(sorted(TRAITS)), unique=True, max_size=5))
    mode = draw(st.sampled_from(RUNNERS))
    for trait in traits:
        try:
            parse_mode(f"{mode}-{trait}")
        except InputError:
            continue  # it does not go with those before it
        mode = f"{mode}-{trait}"
    return mode


seeds = st.integers(0, 10**6)


@given(modes(), seeds)
@settings(max_examples=60)
def test_equal_seeds_give_equal_workloads(mode: str, seed: int) -> None:
    one, two = (record_workload(schedule_workload(mode, seed, RELEASE), model_play) for _ in range(2))
    assert msgspec.json.encode(one) == msgspec.json.encode(two)


@given(modes(), seeds)
@settings(max_examples=60)
def test_a_workload_can_run_and_everybody_is_served(mode: str, seed: int) -> None:
    """The model refuses nothing of it, and in the ideal it ends.

    What a release does for ever is no matter here: equals that preempt each other (ties), requests that wait for what only they
    could free (eagle). Items that must not be split may be larger than a step's share, which the front end would have refused.
    """
    script = schedule_workload(mode, seed, RELEASE)
    splits = not script.workload.config.disable_chunked_mm_input
    recorded = record_workload(script, lambda workload: model_play(workload, IDEAL if splits else None))
    assert recorded.steps
    if splits or not any(part in mode for part in ("ties", "any", "eagle", "sessions", "pull")):
        assert recorded.unfinished == []
        assert len(recorded.steps) < MOST_STEPS


@given(modes(), seeds)
@settings(max_examples=40)
def test_a_recording_survives_its_file_form_and_replays(mode: str, seed: int) -> None:
    recorded = record_workload(schedule_workload(mode, seed, RELEASE), model_play)
    read = msgspec.json.decode(msgspec.json.encode(recorded), type=RecordedWorkload)
    assert read == recorded
    assert replay_workload(read) == (len(recorded.steps), None)


@given(modes(), seeds)
@settings(max_examples=100)
def test_items_stand_in_their_prompts(mode: str, seed: int) -> None:
    """Spans are in order, apart, inside the prompt and of placeholders, and no item is larger than the largest."""
    workload = schedule_workload(mode, seed, RELEASE).workload
    largest = workload.config.max_tokens_per_mm_item
    assert scheduler_config(workload).encoder_cache_size >= largest
    for request in workload.requests:
        end = 0
        for item in request.mm_features:
            assert (item.length if item.is_embed is None else sum(item.is_embed)) <= largest
            if workload.config.is_encoder_decoder:
                assert item.offset == 0
                continue
            assert item.offset >= end
            end = item.offset + item.length
            assert set(request.prompt_token_ids[item.offset : end]) == {500}
            assert item.is_embed is None or len(item.is_embed) == item.length
        assert end <= len(request.prompt_token_ids)
        assert 0 <= request.num_remote_tokens <= len(request.prompt_token_ids)
    known = {request.request_id for request in workload.requests}
    assert {name for _, name in (*workload.aborts, *workload.late_aborts)} <= known
    assert len(known) == len(workload.requests)
