"""Laws of both media caches under any order of events."""

from __future__ import annotations

from collections import Counter

from hypothesis import event, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from epdsim.core.caches.mm_cache import EngineLostError, ItemLostError
from epdsim.core.caches.mm_mirror import MirroredCaches
from epdsim.core.caches.shm_cache import ShmReader, ShmSender
from epdsim.core.caches.shm_ring import ShmRing, StaleHandleError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.releases.dialects import named

SIZES = {"a": 1, "b": 2, "c": 3, "d": 2, "e": 4, "f": 7}
"""Bytes of each item; the mirrored cache holds 6, the ring some more."""


def feature(key: str, place: int) -> MediaFeature:
    pixels = Field(TensorHandle("uint8", (SIZES[key],), digest=key), BatchedKind())
    modality = "video" if key in "bd" else "image"
    return MediaFeature(modality, key, PlaceholderRange(10 * place, 4), MediaItem({"pixels": pixels}))


REQUESTS = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=4).map(
    lambda keys: [feature(key, place) for place, key in enumerate(keys)]
)


class Mirror(RuleBasedStateMachine):
    """Requests rendered, refused and handed over in any order, and resets at any time, in the ideal dialect."""

    def __init__(self) -> None:
        super().__init__()
        self.caches = MirroredCaches(6)
        self.open: dict[str, list[MediaFeature]] = {}
        self.number = 0

    @rule(features=REQUESTS)
    def render(self, features: list[MediaFeature]) -> None:
        name = f"r{self.number}"
        self.number += 1
        self.caches.render(name, features)
        self.open[name] = features

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        features = self.open.pop(name)
        result = self.caches.hand_over(name)
        assert not result.missing, "MMC-MIRROR: a hash that the front end relied on is not there"
        assert list(result.features) == features, "an item is another one"
        assert result.sent_bytes <= sum(SIZES[one.identifier] for one in features)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[name]
        self.caches.reject(name)

    @rule()
    def reset(self) -> None:
        self.caches.reset()

    @invariant()
    def sides_are_equal(self) -> None:
        assert self.caches.are_equal

    @invariant()
    def budget_is_kept(self) -> None:
        for cache in (self.caches.sender.cache, self.caches.receiver.cache):
            assert cache.used_bytes == sum(SIZES[key] for key in cache.keys) <= 6


TestMirror = Mirror.TestCase
TestMirror.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=150)
@given(st.lists(REQUESTS, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_in_a_release_retries_recover_a_drifted_request_and_payloads_are_never_stale(requests, random) -> None:
    """The front end renders in one order and the engine takes in another; then each missed request comes again alone."""
    caches = MirroredCaches(6, named("vllm-0.32"))
    order = []
    for name, features in enumerate(requests):
        try:
            caches.render(str(name), features)
            order.append(name)
        except ItemLostError:
            event("lost at the front end")
    random.shuffle(order)
    missed = []
    for name in order:
        result = caches.hand_over(str(name))
        if result.missing:
            event("a request missed")
            missed.append(name)
        else:
            assert list(result.features) == requests[name]
    for name in missed:
        told: set[str] = set()
        for _ in range(len(SIZES) + 1):
            try:
                caches.render("again", requests[name])
            except ItemLostError:
                break
            result = caches.hand_over("again")
            # Sides that differ may miss once more, but never on what the front end has just forgotten.
            assert not told & set(result.missing)
            told = set(result.missing)
            if not told:
                assert list(result.features) == requests[name]
                break
            event("a retry missed")
        else:
            raise AssertionError("retries never end")


@settings(max_examples=60)
@given(st.lists(REQUESTS, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_before_misses_were_typed_the_engine_was_lost_where_a_later_release_misses(requests, random) -> None:
    order = list(range(len(requests)))
    random.shuffle(order)
    outcomes = []
    for release in ("vllm-0.27", "vllm-0.32"):
        caches = MirroredCaches(7, named(release))
        try:
            for name, features in enumerate(requests):
                caches.render(str(name), features)
            outcomes.append(any(caches.hand_over(str(name)).missing for name in order))
        except EngineLostError:
            outcomes.append(True)
        except ItemLostError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


class SharedMemory(RuleBasedStateMachine):
    """Requests sent to two readers, read at any time and more than once, ended or never heard of, in the ideal dialect."""

    def __init__(self) -> None:
        super().__init__()
        self.sender = ShmSender(70, 18, 2)
        self.readers = [ShmReader(self.sender.ring.memory, 2) for _ in range(2)]
        self.sent: dict[str, list[MediaFeature]] = {}
        self.true: dict[str, list[MediaFeature]] = {}
        self.heard: set[str] = set()
        self.to_end: list[set[str]] = [set(), set()]
        self.number = 0

    @rule(features=REQUESTS)
    def send(self, features: list[MediaFeature]) -> None:
        name = f"r{self.number}"
        self.number += 1
        self.sent[name] = self.sender.take(features)
        self.true[name] = features

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """All readers, for a step is broadcast to all; again when the request resumes."""
        name = data.draw(st.sampled_from(sorted(self.sent)))
        for reader, to_end in zip(self.readers, self.to_end, strict=True):
            # SHM-SAFE: neither StaleHandleError nor DamagedObjectError.
            assert reader.receive(name, self.sent[name]) == self.true[name]
            to_end.add(name)
        self.heard.add(name)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sent)))
        sent = self.sent.pop(name)
        if name not in self.heard:
            self.sender.give_back(sent)

    @rule(rank=st.integers(0, 1), data=st.data())
    def hear_of_an_end(self, rank: int, data: st.DataObject) -> None:
        ended = sorted(self.to_end[rank] - set(self.sent))
        if ended:
            name = data.draw(st.sampled_from(ended))
            self.to_end[rank].discard(name)
            self.readers[rank].ended(name)

    @rule()
    def reset(self) -> None:
        self.sender.reset()

    @invariant()
    def objects_lie_apart_within_the_ring(self) -> None:
        memory = self.sender.ring.memory
        spans = sorted(
            (handle.address % memory.size_bytes, chunk.total_bytes) for handle, chunk in self.sender.ring.live
        )
        ends = [start + total for start, total in spans]
        starts = [start for start, _ in spans[1:]] + [memory.size_bytes]
        assert all(end <= start for end, start in zip(ends, starts, strict=False))

    @invariant()
    def references_are_conserved(self) -> None:
        """STRIP-HANDLE: what is to be acknowledged is what is under way, reader by reader."""
        addresses = Counter({name: sum(one.data.is_address for one in sent) for name, sent in self.sent.items()})
        unheard = sum(count for name, count in addresses.items() if name not in self.heard)
        assert self.sender.num_outstanding >= 2 * unheard
        if not self.sent and not any(self.to_end):
            assert self.sender.num_outstanding == 0

    def teardown(self) -> None:
        """When everybody has ended, everything can go."""
        for name in sorted(self.sent):
            if name not in self.heard:
                self.sender.give_back(self.sent[name])
        for reader, to_end in zip(self.readers, self.to_end, strict=True):
            for name in sorted(to_end):
                reader.ended(name)
        assert self.sender.num_outstanding == 0
        for _ in range(8):
            (sent,) = self.sender.take([feature("f", 0)])
            assert sent.data is not None
            assert sent.data.is_address, "an item is pinned for ever"
            for reader in self.readers:
                reader.receive("last", [sent])
                reader.ended("last")
            self.sender.reset()


TestSharedMemory = SharedMemory.TestCase
TestSharedMemory.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


@settings(max_examples=150)
@given(st.lists(st.one_of(st.integers(1, 20), st.sampled_from(["free one", "free much", "pinned"])), max_size=60))
def test_the_ring_never_lays_an_object_over_one_that_lives(actions) -> None:
    ring = ShmRing(50)
    pinned: set[int] = set()
    for action in actions:
        if isinstance(action, int):
            ring.allocate(action, feature("a", 0).data)
        elif action == "pinned":
            pinned = {chunk.monotonic_id for _, chunk in ring.live[1:2]}
        else:
            stay = frozenset(pinned)
            gone = ring.reclaim(
                lambda chunk, stay=stay: chunk.monotonic_id not in stay, 1 if action == "free one" else 30
            )
            assert not pinned & set(gone)
        for handle, chunk in ring.live:
            assert ring.memory.read(handle) is chunk
    ring.reclaim(lambda _: True, 50)
    assert not ring.live
    assert ring.allocate(42, feature("a", 0).data) is not None, "memory is lost"


@settings(max_examples=150)
@given(st.lists(REQUESTS, min_size=3, max_size=12), st.randoms(use_true_random=False))
def test_a_release_without_resumes_never_reads_what_was_overwritten(requests, random) -> None:
    """Each request is read once by each reader, in order: references balance, and every address holds its item."""
    release = named("vllm-0.32")
    sender = ShmSender(70, 18, 2, release)
    readers = [ShmReader(sender.ring.memory, 2, release) for _ in range(2)]
    due: list[list[int]] = [[], []]
    sent: list[list[MediaFeature]] = []
    for features in requests:
        sent.append(sender.take(features))
        for rank, queue in enumerate(due):
            queue.append(len(sent) - 1)
            while queue and random.random() < 0.5:
                at = queue.pop(0)
                assert readers[rank].receive(str(at), sent[at]) == requests[at]
    for rank, queue in enumerate(due):
        for at in queue:
            assert readers[rank].receive(str(at), sent[at]) == requests[at]
    assert sender.num_outstanding == 0


@settings(max_examples=100)
@given(st.lists(REQUESTS, min_size=4, max_size=12), st.randoms(use_true_random=False))
def test_a_release_whose_requests_resume_may_read_a_stale_address_but_never_a_wrong_item(requests, random) -> None:
    release = named("vllm-0.32")
    sender = ShmSender(70, 18, 1, release)
    reader = ShmReader(sender.ring.memory, 1, release)
    sent = [sender.take(features) for features in requests[:1]]
    for features in requests[1:]:
        sent.append(sender.take(features))
        at = random.randrange(len(sent))
        try:
            assert reader.receive(str(at), sent[at]) == requests[at]
        except StaleHandleError:
            event("a stale address")
