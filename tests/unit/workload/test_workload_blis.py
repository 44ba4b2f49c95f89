"""Draws from BLIS's descriptions of workloads."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import yaml

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenRun
from epdsim.workload import MediaRef, build_workload


def constant(value):
    return {"type": "constant", "params": {"value": value}}


def client(name="a", fraction=1.0, **more):
    given = {"id": name, "rate_fraction": fraction, "arrival": {"process": "poisson"}}
    return {**given, "input_distribution": constant(7), "output_distribution": constant(3), **more}


@pytest.fixture
def draw(tmp_path):
    """Writes a description, as keys of the file, and draws from it."""

    def drawn(file, seed=1, **spec):
        (tmp_path / "w.yaml").write_text(file if isinstance(file, str) else yaml.safe_dump(file))
        return list(build_workload({"kind": "blis-yaml", "path": "w.yaml", **spec}, tmp_path, seed))

    return drawn


def file(*clients, rate=50.0, **more):
    return {"version": "2", "aggregate_rate": rate, "clients": list(clients), **more}


def gaps_s(requests):
    return np.diff([request.arrival_ms for request in requests]) / 1e3


def names(requests):
    return Counter(request.request_id.rsplit("-", 1)[0] for request in requests)


def test_rates_are_shared_by_fraction_and_classes_are_those_of_version_2(draw):
    given = file(client("a", 0.75, slo_class="realtime"), client("b", 2.25, slo_class="batch"), version="1")
    requests = draw(given, duration_s=400)
    count = names(requests)
    assert len(requests) == pytest.approx(20_000, abs=5 * 20_000**0.5)
    assert count["b"] / count["a"] == pytest.approx(3, rel=0.07)
    assert {request.slo_class for request in requests} == {"critical", "batch"}
    assert {request.parts[0].length for request in requests} == {7}
    assert len({request.parts[0].content for request in requests}) == len(requests)


@pytest.mark.parametrize(
    ("arrival", "cv"),
    [
        ({"process": "poisson"}, 1),
        ({"process": "gamma", "cv": 2.5}, 2.5),
        ({"process": "gamma", "shape": 4.0, "scale": 9}, 0.5),
        ({"process": "weibull", "cv": 1.7}, 1.7),
        ({"process": "weibull", "cv": 0.5}, 0.5),
        ({"process": "constant"}, 0),
    ],
    ids=str,
)
def test_gaps_have_the_stated_mean_and_variation(draw, arrival, cv):
    gaps = gaps_s(draw(file(client(arrival=arrival), num_requests=40_001)))
    assert gaps.mean() == pytest.approx(0.02, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "mean", "least", "most"),
    [
        ({"type": "gaussian", "params": {"mean": 400, "std_dev": 120, "min": 100, "max": 800}}, 400, 100, 800),
        ({"type": "exponential", "params": {"mean": 120}}, 120, 1, 5000),
        (
            {
                "type": "pareto_lognormal",
                "params": {"alpha": 3, "xm": 100, "mu": 3, "sigma": 0.5, "mix_weight": 0.25},
            },
            0.25 * 150 + 0.75 * np.exp(3 + 0.125),
            1,
            1e6,
        ),
        ({"type": "empirical", "params": {"10": 3, 20: 1}}, 12.5, 10, 20),
        (constant(0), 1, 1, 1),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_lengths_follow_their_laws_and_are_at_least_1(draw, given, mean, least, most):
    requests = draw(file(client(output_distribution=given), num_requests=20_000))
    lengths = np.array([request.output_tokens for request in requests])
    assert lengths.mean() == pytest.approx(mean, rel=0.05)
    assert least <= lengths.min() <= lengths.max() <= most


def test_a_group_shares_the_prefix_of_its_first_client_and_a_timeout_makes_leave(draw):
    given = file(
        client("a", prefix_group="g", prefix_length=512, timeout=2_500_000),
        client("b", prefix_group="g", prefix_length=9),
        client("c", prefix_group="h"),
    )
    requests = {request.request_id[0]: request for request in draw(given, limit=50)}
    assert requests["a"].parts[0] == requests["b"].parts[0] == TokenRun(("blis-prefix", "g"), 0, 512)
    assert requests["c"].parts[0] == TokenRun(("blis-prefix", "h"), 0, 50)
    assert (requests["a"].leaves_ms, requests["b"].leaves_ms) == (2500, 0)


TALK = {"multi_turn": {"max_rounds": 3, "think_time_us": 200_000, "context_growth": "accumulate"}}


class TestConversations:
    def talk(self, **more):
        return client("t", reasoning=TALK, prefix_group="g", prefix_length=4, **more)

    def test_a_turn_repeats_what_was_said_and_waits_for_the_stated_answer(self, draw):
        requests = draw(file(self.talk(), rate=0.5, horizon=100_000_000), answer_s=1.5)
        turns = [request for request in requests if request.session_id == "t-0"]
        assert [request.parts[1] for request in turns] == [
            TokenRun(("blis-session", "t-0"), 0, length) for length in (7, 17, 27)
        ]
        assert {request.parts[0].length for request in turns} == {4}
        assert gaps_s(turns) == pytest.approx([1.7, 1.7])
        assert all(request.arrival_ms < 100_000 for request in requests)

    def test_an_open_loop_does_not_wait(self, draw):
        turns = draw(file(self.talk(closed_loop=False), rate=1e-3), limit=3)
        assert gaps_s(turns) == pytest.approx([0.200003] * 2)

    def test_without_growth_each_turn_is_new(self, draw):
        talk = client("t", reasoning={"multi_turn": {"max_rounds": 2}}, closed_loop=False)
        requests = draw(file(talk, num_requests=20))
        assert {request.parts[0].length for request in requests} == {7}
        assert len({request.parts[0].content for request in requests}) == 20


class TestWindows:
    def test_the_rate_holds_while_most_of_it_is_there(self, draw):
        """Of two phases that do not overlap each has the whole rate; BLIS's issue 1144."""
        phases = [
            client(name, lifecycle={"windows": [{"start_us": start, "end_us": start + 100_000_000}]})
            for name, start in (("a", 0), ("b", 100_000_000))
        ]
        requests = draw(file(*phases), duration_s=1000)
        early = [request for request in requests if request.arrival_ms < 100_000]
        assert set(names(early)) == {"a"}
        assert len(early) == pytest.approx(5000, abs=5 * 5000**0.5)
        assert len(requests) == pytest.approx(10_000, abs=5 * 10_000**0.5)

    def test_cohorts_spike_drain_and_have_days(self, draw):
        given = {**client("x", 1.0), "population": 20}
        spike = {**given, "id": "s", "spike": {"start_time_us": 10_000_000, "duration_us": 5_000_000}}
        times = [one.arrival_ms / 1e3 for one in draw({"aggregate_rate": 100, "cohorts": [spike]}, duration_s=60)]
        assert 10 <= min(times) < max(times) < 15
        drain = {**given, "drain": {"start_time_us": 100_000_000, "ramp_duration_us": 100_000_000}}
        times = [one.arrival_ms / 1e3 for one in draw({"aggregate_rate": 100, "cohorts": [drain]}, duration_s=500)]
        full, first, last = np.histogram(times, [0, 100, 150, 200])[0]
        assert full == pytest.approx(10_000, rel=0.06)
        assert (first / full, last / full) == pytest.approx((0.4, 0.15), rel=0.12)
        day = {**given, "diurnal": {"peak_hour": 2, "peak_to_trough_ratio": 4}}
        times = [one.arrival_ms / 3.6e6 for one in draw({"aggregate_rate": 0.5, "cohorts": [day]}, duration_s=86_400)]
        hours = np.histogram(times, range(25))[0]
        assert hours[2] == pytest.approx(1800, rel=0.15)
        assert hours[14] == pytest.approx(450, rel=0.25)

    def test_members_of_a_cohort_that_is_not_poisson_arrive_apart(self, draw):
        members = {**client("m", 1.0, arrival={"process": "constant"}), "population": 4}
        requests = draw({"aggregate_rate": 8, "cohorts": [members]}, limit=40)
        assert set(names(requests)) == {"m-0", "m-1", "m-2", "m-3"}


def test_media_are_counted_and_sized_and_the_text_is_their_own(draw):
    media = {
        "text_distribution": constant(11),
        "image_distribution": constant(300),
        "image_count_distribution": {"type": "empirical", "params": {1: 1, 3: 1}},
        "audio_distribution": constant(25),
        "audio_count_distribution": constant(1),
        "video_distribution": constant(25),
    }
    requests = draw(file(client(multimodal=media), num_requests=2000))
    images = [[part for part in one.parts if getattr(part, "modality", "") == "image"] for one in requests]
    assert Counter(map(len, images)).keys() == {1, 3}
    assert np.mean([len(one) for one in images]) == pytest.approx(2, rel=0.06)
    assert requests[0].parts[-2:] == (
        MediaRef("a-0/audio0", "audio", num_tokens=25),
        TokenRun("a-0", 0, 11),
    )
    assert {image.num_tokens for one in images for image in one} == {300}


PREFIX = {
    "num_unique_system_prompts": 3,
    "num_users_per_system_prompt": 2,
    "system_prompt_len": 100,
    "question_len": 447,
    "output_len": 248,
}


class TestInferencePerf:
    def of(self, *stages, **more):
        told = [{"rate": rate, "duration": duration} for rate, duration in stages]
        return {"version": "1", "inference_perf": {"stages": told, "shared_prefix": {**PREFIX, **more}}}

    def test_one_stage_has_exactly_its_requests(self, draw):
        requests = draw(self.of((8.0, 61)))
        assert len(requests) == 488
        assert max(names(requests).values()) - min(names(requests).values()) == 1
        assert requests[-1].arrival_ms == pytest.approx(61_000)
        assert Counter(one.parts[0].content for one in requests).keys() == {
            ("blis-prefix", f"prompt-{number}") for number in range(3)
        }
        assert [part.length for part in requests[0].parts] == [100, 447]

    @pytest.mark.parametrize("is_chat", [False, True])
    def test_an_hour_of_few_users(self, draw, is_chat):
        few = {"num_unique_system_prompts": 1, "num_users_per_system_prompt": 2, "enable_multi_turn_chat": is_chat}
        requests = draw(self.of((20.0, 3600), **few), answer_s=0)
        assert len(requests) == pytest.approx(72_000, rel=0.01)

    def test_more_than_can_be_drawn_is_refused(self, draw):
        with pytest.raises(InputError, match="can be drawn at once"):
            draw(self.of((8.0, 61), num_unique_system_prompts=10_000))
        with pytest.raises(InputError, match="one stage of more than"):
            draw(self.of((1e6, 1000)))

    def test_stages_follow_each_other(self, draw):
        requests = draw(self.of((8.0, 300), (20.0, 200)))
        counts = np.histogram([one.arrival_ms / 1e3 for one in requests], [0, 300, 500])[0]
        assert counts == pytest.approx([2400, 4000], rel=0.1)

    def test_chats_cycle_through_their_users(self, draw):
        requests = draw(self.of((6.0, 20), enable_multi_turn_chat=True), answer_s=0)
        one = [request for request in requests if request.session_id == requests[0].session_id]
        assert len({request.session_id for request in requests}) == 6
        assert gaps_s(one) == pytest.approx([1.0] * (len(one) - 1))
        assert {request.parts[1].length for request in requests} == {447}


def test_a_client_with_concurrency_is_a_closed_loop(tmp_path):
    given = client("c", 0, concurrency=6)
    (tmp_path / "w.yaml").write_text(yaml.safe_dump({"version": "2", "clients": [given], "num_requests": 30}))
    workload = build_workload({"kind": "blis-yaml", "path": "w.yaml"}, tmp_path, 0)
    assert (workload.concurrency, len(list(workload))) == (6, 30)


def test_another_client_changes_nobody_elses_draw(draw):
    window = {"windows": [{"start_us": 0, "end_us": 10_000_000}]}
    alone = draw(file(client("a", lifecycle=window)), duration_s=10)
    other = client("b", lifecycle={"windows": [{"start_us": 10_000_000, "end_us": 20_000_000}]})
    assert [
        one for one in draw(file(client("a", lifecycle=window), other), duration_s=20) if "a" in one.request_id
    ] == alone


TALKS = client(reasoning={"multi_turn": {"max_rounds": 2}})
REFUSED = {
    "no yaml": ("a: [", "is no YAML"),
    "a list": ("[1]", "BLIS workload"),
    "a typo": (file(client(rate_fractoin=1)), "rate_fractoin: is not a key that is known here"),
    "no end": (file(client()), "has no end.*give limit"),
    "no rate": (file(client(), rate=0, num_requests=1), "aggregate_rate must be above 0"),
    "no clients": ({"aggregate_rate": 1}, "give either clients and cohorts or inference_perf"),
    "neither rate nor concurrency": (file(client(fraction=0), num_requests=1), "either a rate_fraction above 0"),
    "two alike": (file(client(), client(), num_requests=1), "two clients named 'a'"),
    "version": (file(client(), version="3"), "versions 1 and 2 can be read"),
    "ServeGen": ({"servegen_data": {"path": "x"}}, "use the workload servegen"),
    "mixed": (file(client("c", 0, concurrency=2), client(), num_requests=9), "is played alone"),
    "open closed loop": (file(client("c", 0, concurrency=2)), "does not say of how many|has no end"),
    "waits": (file(TALKS, num_requests=9), "state answer_s"),
    "media that talk": (file({**TALKS, "multimodal": {}}, num_requests=9), "gives such a client no media"),
    "parameters": (file(client(input_distribution={"type": "exponential"})), "exponential needs params.mean"),
    "keys": (file(client(input_distribution={"type": "empirical", "params": {"x": 1}})), "numbers of tokens"),
    "weights": (file(client(input_distribution={"type": "empirical"})), "weights must be finite"),
    "order": (
        file(client(input_distribution={"type": "gaussian", "params": {"mean": 1, "std_dev": 1, "min": 2, "max": 1}})),
        "min is above",
    ),
    "below": (file(client(input_distribution={"type": "exponential", "params": {"mean": -1}})), "below 0"),
    "alpha": (
        file(
            client(
                input_distribution={
                    "type": "pareto_lognormal",
                    "params": {"alpha": 0, "xm": 1, "mu": 1, "sigma": 1, "mix_weight": 1},
                }
            )
        ),
        "alpha must be above 0",
    ),
    "too many": (
        {
            "aggregate_rate": 1,
            "num_requests": 1,
            "cohorts": [{**client(arrival={"process": "gamma", "cv": 2}), "population": 20_000}],
        },
        "has 20000 clients",
    ),
}


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_drawn_is_refused(draw, given, words):
    with pytest.raises(InputError, match=words):
        draw(given)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        build_workload({"kind": "blis-yaml", "path": "none.yaml"}, tmp_path, 0)
