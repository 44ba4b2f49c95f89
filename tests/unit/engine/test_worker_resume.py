"""Strip, preemption and resume by the scheduler itself, and what each generation of workers then lacks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epdsim.core.caches.shm_cache import ShmReader, ShmSender
from epdsim.core.prompt import TokenPrompt
from epdsim.core.releases.dialects import named
from epdsim.core.request import Request
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.scheduler.config import SchedulerConfig
from epdsim.core.scheduler.scheduler import Scheduler
from epdsim.core.workers.worker import Worker, undisturbed

ALWAYS = Replacement(lambda: True, "what is not of the story is given back")


def starved(image, runner: str, dialect, strip: str = "admission", *, sender: ShmSender | None = None) -> list[str]:
    """Defect A1, by the scheduler itself: admitted on a hit over an image, preempted, blocks and embeddings lost, resumed.

    With a sender payloads lie in shared memory, and new ones come in each step.
    """
    config = SchedulerConfig(
        block_size=4,
        num_gpu_blocks=7,
        max_num_batched_tokens=16,
        max_num_seqs=4,
        max_model_len=128,
        encoder_cache_size=4,
        scheduler_reserve_full_isl=False,
        model_runner=runner,
        strip=strip,
    )
    receiver = None if sender is None else ShmReader(sender.ring.memory, 1, dialect)
    engine, made = Scheduler(config, dialect), Worker(config, receiver=receiver)
    requests = [
        Request("A", TokenPrompt([7] * 6), 1, (image("x", 0, 4),)),
        Request("C", TokenPrompt([3] * 8), 17, (image("z", 0, 4),)),
        Request("B", TokenPrompt([7] * 7), 9, (image("x", 0, 4),)),
    ]
    found: list[str] = []
    for one in requests:
        made.add_request(one)
    arriving = {0: requests[:1], 1: requests[1:]}
    number = 0
    while engine.has_unfinished or number <= 1:
        for one in arriving.get(number, ()):
            features = one.mm_features if sender is None else tuple(sender.take(one.mm_features))
            engine.add_request(replace(one, mm_features=features))
        step = engine.schedule()
        done = made.execute(step)
        found += [one.property_id for one in done.violations]
        if sender is not None:
            sender.give_back(sender.take([image(f"new{number}", 0, 4)]))
        engine.update_from_output(step, done.sampled)
        number += 1
    if not found:
        assert [made.outputs(one.request_id) for one in requests] == [undisturbed(one) for one in requests]
    return found


class TestStripPreemptResume:
    def test_a_v1_worker_of_the_release_is_asked_to_encode_what_it_was_not_sent(self, image):
        assert starved(image, "v1", named("vllm-0.32"))[:2] == ["STRIP-AVAIL", "ENC-HIT"]

    @pytest.mark.parametrize("release", ["vllm-0.25", "vllm-0.28"])
    def test_releases_before_the_strip_do_not_break_it(self, image, release):
        assert starved(image, "v1", named(release)) == []

    @pytest.mark.parametrize(
        ("runner", "release", "strip"),
        [
            ("v2", "vllm-0.32", "admission"),
            ("v1", "ideal", "admission"),
            ("v1", "vllm-0.32", "resend"),
            ("v1", "vllm-0.32", "deferred"),
            ("v1", "vllm-0.32", "off"),
        ],
    )
    def test_a_v2_worker_the_ideal_and_the_other_strips_do(self, image, runner, release, strip):
        assert starved(image, runner, named(release), strip) == []

    @pytest.mark.parametrize(
        ("runner", "release", "expected"),
        [("v2", "vllm-0.32", ["SHM-SAFE"]), ("v1", "vllm-0.32", []), ("v2", "ideal", []), ("v1", "ideal", [])],
    )
    def test_with_shared_memory_a_v2_worker_of_the_release_may_be_sent_a_stale_address(
        self, image, runner, release, expected
    ):
        """A v1 worker keeps what it read at the admission, since addresses are not stripped; a v2 worker reads again."""
        dialect = named(release)
        sender = ShmSender(
            3 * (64 + 24 + 12), 104, 1, dialect.replacing("new items come and go", {"shm_cache.give_back": ALWAYS})
        )
        assert starved(image, runner, dialect, sender=sender)[:1] == expected

    def test_the_rule_alone_makes_the_difference(self, image):
        defect = IDEAL.replacing("a1", {"strip.resumed": Replacement(lambda: False, "vLLM PR 52041 with a v1 runner")})
        assert starved(image, "v1", defect)[:2] == ["STRIP-AVAIL", "ENC-HIT"]
