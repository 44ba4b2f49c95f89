"""Hunts find what a dialect does wrong, make it small, tell it in few lines, and know it again."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from epdsim.core.errors import InputError
from epdsim.core.rules import IDEAL, Replacement
from epdsim.spec import JUDGED, properties_of
from epdsim.spec.story import MOST_LINES
from epdsim.sut.cases import EngineCase, RenderCase, read_case, write_case
from epdsim.sut.probe import events_of
from epdsim.sut.reference import ReferenceProtocol, reference_engine
from epdsim.sut.schedule_model import ModelEngine
from epdsim.sut.schedule_workloads import schedule_workload
from epdsim.sut.systems import SystemUnderTest, find_system
from epdsim.testing.blame import rules_behind
from epdsim.testing.failures import (
    Failure,
    Status,
    find_failure,
    keep,
    read_failure,
    replay_failure,
    save_scenario,
    told_failure,
)
from epdsim.testing.hunt import Collector, Exploration, Hunter, drawn
from epdsim.testing.machine import machine
from epdsim.testing.modes import modes
from epdsim.testing.reduction import Effort, reduced, size_of, violation
from epdsim.testing.session import Session
from epdsim.testing.smaller_workloads import WORKLOAD_STEPS
from epdsim.testing.strategies import render_cases, strip_cases
from epdsim.testing.workloads import Traits, engine_cases

RESUMES = drawn("resumes", engine_cases(Traits(plots=("resume",), mismatches=False)), level="engine")
PROMPTS = drawn("prompts", render_cases(), level="protocol")
STRIPS = drawn("strips", strip_cases(), level="protocol")


def lines_of(story):
    return [line for line in story if line.lstrip()[:1].isdigit() and ". " in line[:5]]


@pytest.fixture(scope="module")
def lost():
    """The payload lost between strip and resume, in the dialect of 0.32."""
    return Hunter(find_system("reference", "vllm-0.32"), budget=150).smallest(RESUMES, "STRIP-AVAIL")


class TestTheTwoStories:
    def test_strip_preempt_resume_is_told_in_few_lines(self, lost):
        story = told_failure(lost)
        told = lines_of(story)
        assert len(told) <= MOST_LINES
        assert "workers are sent image-0 not at all" in "\n".join(told)
        assert "is preempted" in "\n".join(told)
        assert told[-1].endswith("is to encode image-0 for r1, and of it the workers hold nothing")
        assert story[-1].strip() == "!"

    def test_mixed_modalities_are_refused_by_the_validator_of_their_own_render(self):
        found = Hunter(find_system("reference", "vllm-0.32"), budget=60).smallest(PROMPTS, "SLOT-ACCEPT")
        assert isinstance(found.case, RenderCase)
        assert len(found.case.items) == 2
        assert 2 == len(lines_of(told_failure(found))) <= MOST_LINES

    def test_the_ideal_does_neither(self, lost):
        ideal = find_system("reference")
        verdicts = Collector(properties_of(["STRIP-AVAIL"]))
        verdicts.take(lost.case, events_of(lost.case, ideal))
        assert str(verdicts.verdicts["STRIP-AVAIL"].outcome) == "holds", "the premise is reached, and nothing is lost"


class TestPlantedDefects:
    """One rule is replaced; the property that is to catch it does."""

    @pytest.mark.parametrize(
        ("rule", "behaviour", "property_id", "exploration"),
        [
            ("strip.covered", lambda feature, n: feature.position.end <= n + 1, "STRIP-META", STRIPS),
            ("strip.covered", lambda feature, n: feature.position.end < n, "STRIP-MAX", STRIPS),
            ("strip.exempt", lambda _item: False, "STRIP-HANDLE", STRIPS),
            ("strip.kept", lambda _item: None, "STRIP-META", STRIPS),
            ("slots.merged", lambda payload, _metadata: payload, "SLOT-NULL", PROMPTS),
            ("slots.metadata_slot", lambda item, _declared: item, "SLOT-META", PROMPTS),
            ("encoder_cache.item_slots", lambda _position: 1, "ENC-CONS", RESUMES),
        ],
    )
    def test_is_caught(self, rule, behaviour, property_id, exploration):
        dialect = IDEAL.replacing("planted", {rule: Replacement(behaviour, "planted")})
        system = SystemUnderTest("planted", rule, "0.32.0", reference_engine(dialect), ReferenceProtocol(dialect))
        hunter = Hunter(system, budget=150, properties=properties_of([property_id]))
        assert hunter.explored(exploration).verdicts[property_id].num_broken


def _overridden(engine):
    """An engine that, like a scheduler by itself, computes the prompts of an encoder-decoder model at once whatever it is told."""

    def make(workload, far):
        if workload.config.is_encoder_decoder:
            whole = msgspec.structs.replace(workload.config, enable_chunked_prefill=False)
            workload = msgspec.structs.replace(workload, config=whole)
        return engine(workload, far)

    return make


class TestReduction:
    def test_what_is_left_is_needed(self, lost):
        """No step makes the story smaller that is told, and what is left are the three requests and the two items of it."""
        (one,) = properties_of(["STRIP-AVAIL"])
        system = find_system("reference", "vllm-0.32")
        assert isinstance(lost.case, EngineCase)
        workload = lost.case.workload
        assert len(workload.requests) == 3
        assert sum(len(request.mm_features) for request in workload.requests) <= 3
        for step in WORKLOAD_STEPS:
            for smaller in step(workload):
                assert violation(EngineCase(smaller), one, system) is None

    def test_effort_is_bounded_and_nothing_is_lost(self):
        (one,) = properties_of(["STRIP-AVAIL"])
        system = find_system("reference", "vllm-0.32")
        alike = Hunter(system, budget=150).explored(RESUMES).found["STRIP-AVAIL"].values()
        found = max((one for kind in alike for one in kind), key=lambda one: size_of(one.case))
        same = reduced(found, one, system, Effort(0))
        assert (same.case, same.verdict.first) == (found.case, found.verdict.first)
        assert reduced(found, one, system, Effort(10**6, ends_at=0.0)).case == found.case
        few, many = (reduced(found, one, system, Effort(attempts)) for attempts in (15, 400))
        assert size_of(many.case) < size_of(few.case) < size_of(found.case)

    @pytest.mark.parametrize("looks", [True, False], ids=["an engine that looks", "an engine that does not"])
    def test_settings_that_do_not_go_together_are_no_smaller_case(self, looks):
        """An encoder-decoder model has no chunked prefill, also where the scheduler alone would take it."""
        (one,) = properties_of(["ENC-CONS"])
        system = find_system("reference", "vllm-0.32")
        if not looks:
            system = replace(system, engine=_overridden(system.engine))
        found = violation(EngineCase(schedule_workload("v1-encdec", 6, "0.32.0").workload), one, system)
        small = reduced(found, one, system, Effort(150))
        assert size_of(small.case) < size_of(found.case)
        assert not small.case.workload.config.enable_chunked_prefill
        assert rules_behind(small.case, one, system)

    def test_another_system_reduces_nothing(self, lost):
        (one,) = properties_of(["STRIP-AVAIL"])
        assert reduced(lost, one, find_system("reference"), Effort(100)) is lost

    @pytest.mark.parametrize("step", WORKLOAD_STEPS, ids=lambda step: step.__name__)
    @given(case=engine_cases())
    @settings(
        max_examples=25, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    def test_smaller_workloads_are_whole(self, step, case):
        """They can be played by the ideal, where nothing is violated: no step makes what cannot be served."""
        taken = Collector(JUDGED)
        for smaller in itertools.islice(step(case.workload), 3):
            for request in smaller.requests:
                for item in request.mm_features:
                    assert item.offset + item.length <= len(request.prompt_token_ids)
                    assert item.is_embed is None or len(item.is_embed) == item.length
            taken.take(EngineCase(smaller), events_of(EngineCase(smaller), find_system("reference")))
        assert taken.found == {}

    def test_time_that_is_over_ends_an_exploration(self):
        said = []
        hunter = Hunter(find_system("reference"), budget=10_000, seconds=0.0, progress=said.append)
        assert hunter.explored(PROMPTS).is_cut
        assert 1 <= hunter.explored(PROMPTS).num_cases < 10_000
        assert said[0] == "exploring prompts"
        assert said[1].startswith("prompts: stopped after ")

    @pytest.mark.parametrize(
        ("budget", "told"), [(10_000, "the time was over, and no case reached"), (1, "no case reached")]
    )
    def test_a_premise_that_was_not_reached_in_time_says_so(self, budget, told):
        verdict = Session(budget=budget, seconds=0.0).check("STRIP-COST", [PROMPTS])
        assert verdict["outcome"] == "inconclusive"
        assert verdict["reason"].startswith(told)


class TestRulesBehind:
    def test_the_rule_is_named(self, lost):
        (one,) = properties_of(["STRIP-AVAIL"])
        for release in ("vllm-0.32", "vllm-0.29"):
            assert rules_behind(lost.case, one, find_system("reference", release)) == ("strip.resumed",)

    def test_what_the_model_does_not_do_is_new(self, lost):
        (one,) = properties_of(["STRIP-AVAIL"])
        assert rules_behind(lost.case, one, find_system("reference", "vllm-0.28")) is None
        assert rules_behind(lost.case, one, SystemUnderTest("fork", "1", "9.9.0")) is None

    def test_stories_differ_in_what_is_behind_them(self):
        """Two rules let somebody wait for ever; each has its story."""
        hunter = Hunter(find_system("reference", "vllm-0.32"), budget=150)
        stories = hunter.stories([modes("modes", weight=3)], "LIVE-PROG")
        behind = [story.rules for story in stories]
        assert len(behind) == len(set(behind)) >= 2
        assert {("sessions.give_way",), ("scheduler.drafter_passed",)} <= set(behind)
        for story in stories:
            assert len(lines_of(told_failure(story.found))) <= MOST_LINES


class TestMachine:
    def test_it_reaches_and_holds_in_the_ideal(self):
        hunter = Hunter(find_system("reference"), budget=25)
        collected = hunter.explored(machine("m"))
        assert collected.num_cases >= 25
        assert not [one.first for one in collected.verdicts.values() if one.num_broken]
        assert all(collected.verdicts[name].num_reached for name in ("STRIP-MAX", "KEY-INJ", "ENC-CONS", "LIVE-DONE"))

    def test_what_it_did_is_a_workload_that_plays_the_same(self):
        runs = []

        class Keeping(Collector):
            def take(self, case, events):
                runs.append((case, list(events)))

        machine("m").run(Keeping(JUDGED), find_system("reference"), 3, 12)
        assert sum(len(case.workload.requests) for case, _ in runs) > 12
        for case, events in runs:
            again = read_case(write_case(case))
            assert isinstance(again, EngineCase)
            if case.workload.requests:
                assert events_of(again, find_system("reference")) == events


class TestFailures:
    def kept(self, found, folder):
        return keep(
            found, system="reference", dialect="vllm-0.32", version="vllm-0.32", seed=0, exploration="r", folder=folder
        )

    def test_it_is_found_again_by_id_and_by_path(self, lost, tmp_path):
        identifier = self.kept(lost, tmp_path)
        assert identifier == self.kept(lost, tmp_path)
        assert identifier.startswith("strip-avail-")
        assert find_failure(identifier, tmp_path) == find_failure(tmp_path / identifier) == tmp_path / identifier
        assert find_failure("strip-avail-none", tmp_path) is None
        assert {one.name for one in (tmp_path / identifier).iterdir()} == {
            "case.json", "events.ndjson", "failure.json", "story.txt"
        }  # fmt: skip

    def test_replay_says_still_fails_fixed_and_changed(self, lost, tmp_path):
        place = tmp_path / self.kept(lost, tmp_path)
        assert replay_failure(place).status is Status.STILL_FAILS
        failure = msgspec.json.decode((place / "failure.json").read_bytes(), type=Failure)

        def rewritten(**changes):
            (place / "failure.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(failure, **changes)))
            return replay_failure(place)

        assert rewritten(told="something else").status is Status.CHANGED
        fixed = rewritten(dialect="ideal")
        assert (fixed.status, fixed.detail) == (Status.FIXED, "the premise is reached, and the property holds")
        older = rewritten(dialect="vllm-0.28")
        assert (older.status, older.detail) == (Status.FIXED, "the premise is not reached any more")

    def test_it_is_saved_as_one_file_that_replays_like_it(self, lost, tmp_path):
        place, file = tmp_path / self.kept(lost, tmp_path), tmp_path / "lost.yaml"
        save_scenario(place, file)
        assert find_failure(file) == file
        assert read_failure(file) == read_failure(place)
        replayed = replay_failure(file)
        assert replayed.status is Status.STILL_FAILS
        assert list(replayed.story) == (place / "story.txt").read_text().splitlines()
        file.write_text(file.read_text().replace("dialect: vllm-0.32", "dialect: ideal"))
        fixed = replay_failure(file)
        assert (fixed.status, list(fixed.story)) == (Status.FIXED, list(replayed.story))

    def test_a_file_that_is_none_is_told(self, lost, tmp_path):
        with pytest.raises(InputError, match=r"its name ends in \.yaml"):
            save_scenario(tmp_path / self.kept(lost, tmp_path), tmp_path / "lost.txt")
        (tmp_path / "other.yaml").write_text("name: capacity\n")
        with pytest.raises(InputError, match="it is no saved failure"):
            replay_failure(tmp_path / "other.yaml")

    def test_what_cannot_be_read_is_told(self, tmp_path):
        (tmp_path / "failure.json").write_text("{}")
        with pytest.raises(InputError, match="it cannot be read"):
            replay_failure(tmp_path)


class TestSession:
    def test_violated_held_and_inconclusive(self, tmp_path):
        session = Session(dialect="vllm-0.32", budget=40, folder=tmp_path)
        violated = session.check("SLOT-ACCEPT", [PROMPTS])
        assert violated["outcome"] == "violated"
        (story,) = violated["stories"]
        assert violated["replay"] == story["replay"] == f"epdsim replay {story['failure']}"
        assert story["rules"] == ("slots.metadata_table",)
        assert find_failure(story["failure"], tmp_path) is not None
        assert session.check("SLOT-RT", [PROMPTS])["outcome"] == "holds"
        silent = session.check("SLOT-FALLBACK", [PROMPTS])
        assert silent["outcome"] == "inconclusive"
        assert "the source" in silent["reason"] or "a failure" in silent["reason"]

    def test_a_system_that_lacks_something_is_not_run(self):
        session = Session(budget=5)
        session.system = session.hunter.system = SystemUnderTest("bare", "0", "0.32.0", engine=None, protocol=None)
        assert session.reason_to_skip("SLOT-RT", [PROMPTS]) == "bare 0 has no protocol to put cases to"


def test_an_engine_that_dies_is_a_finding():
    class Dying(ModelEngine):
        def schedule(self):
            raise RuntimeError("out of luck")

    system = SystemUnderTest("dying", "1", "0.32.0", lambda workload, far: Dying(workload, far, IDEAL))
    hunter = Hunter(system, budget=3, properties=properties_of(["ISO"]))
    first = hunter.explored(RESUMES).verdicts["ISO"].first
    assert first is not None
    assert first.told == "the engine dies: RuntimeError: out of luck"


def test_an_exploration_that_fails_says_nothing():
    def fails(collector, _system, _seed, _budget):
        collector.num_cases += 1
        raise RuntimeError("no such class")

    hunter = Hunter(find_system("reference"), budget=1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no such class"):
            hunter.explored(Exploration("failing", "engine", fails))


def test_systems_are_found_by_name():
    assert find_system("reference").title == "reference ideal"
    assert find_system("reference", "vllm-0.29").release == "0.29.0"
    with pytest.raises(InputError, match="system 'sglang': the systems are reference, vllm"):
        find_system("sglang")
    with pytest.raises(InputError, match="no such name"):
        find_system("reference", "vllm-9")


def test_entry_points_register_systems(monkeypatch):
    class Entry:
        name = "fork"

        def load(self):
            return lambda dialect: SystemUnderTest("fork", dialect or "1", "0.32.0")

    monkeypatch.setattr("epdsim.sut.systems.entry_points", lambda group: [Entry()] if group == "epdsim.sut" else [])
    assert find_system("fork").title == "fork 1"
