"""The shared-memory ring and the cache in it: one rule at a time, and the public defects as replaced rules."""

from __future__ import annotations

import pytest

from epdsim.core.caches.shm_cache import ShmReader, ShmSender, address_item, handle_of
from epdsim.core.caches.shm_ring import (
    Chunk,
    DamagedObjectError,
    Handle,
    Memory,
    ShmRing,
    StaleHandleError,
    at_gone,
)
from epdsim.core.errors import InputError
from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
from epdsim.core.releases.dialects import named
from epdsim.core.rules import IDEAL, Replacement
from epdsim.core.strip import strip_covered

RELEASE = named("vllm-0.32")


def item(content: str, size: int = 8) -> MediaItem:
    return MediaItem({"pixel_values": Field(TensorHandle("uint8", (size,), digest=content), BatchedKind())})


def features(*keys: str, size: int = 8) -> list[MediaFeature]:
    return [
        MediaFeature("image", key, PlaceholderRange(10 * place, 4), item(key, size)) for place, key in enumerate(keys)
    ]


def contents(received: list[MediaFeature]) -> list[str]:
    return [one.data.fields["pixel_values"].data.digest for one in received]


def always(_chunk: Chunk) -> bool:
    return True


class TestRing:
    def test_objects_lie_whole_and_start_a_new_lap_where_they_do_not_fit(self):
        ring = ShmRing(100)
        first, second = ring.allocate(22, item("a")), ring.allocate(42, item("b"))
        assert (first, second) == (Handle(0, 0), Handle(30, 1))
        assert ring.allocate(22, item("c")) is None
        assert ring.reclaim(always, 1) == [0]
        assert ring.allocate(22, item("c")) == Handle(100, 2)
        assert ring.allocate(1, item("d")) is None
        assert ring.memory.read(Handle(30, 1)).item == item("b")

    def test_the_first_that_may_not_go_keeps_all_younger_ones(self):
        ring = ShmRing(100)
        for key in "abc":
            ring.allocate(12, item(key))
        assert ring.reclaim(lambda chunk: chunk.monotonic_id != 1, 100) == [0]
        assert [handle.monotonic_id for handle, _ in ring.live] == [1, 2]

    def test_no_more_goes_than_is_asked_for(self):
        ring = ShmRing(100)
        for key in "abc":
            ring.allocate(12, item(key))
        assert ring.reclaim(always, 21) == [0, 1]

    def test_a_ring_that_is_empty_starts_afresh(self):
        ring = ShmRing(100)
        ring.allocate(60, item("a"))
        ring.reclaim(always, 1)
        assert ring.allocate(92, item("b")) == Handle(0, 1)

    def test_a_reader_sees_that_something_else_lies_there(self):
        ring = ShmRing(100)
        old = ring.allocate(60, item("a"))
        assert old is not None
        ring.clear()
        ring.allocate(20, item("b"))
        with pytest.raises(StaleHandleError, match="object 0 is not at address 0"):
            ring.memory.read(old)
        with pytest.raises(StaleHandleError):
            ring.memory.read(Handle(50, 7))

    def test_numbers_go_on_after_a_clear_unless_told_otherwise(self):
        for restart, number in [(False, 1), (True, 0)]:
            ring = ShmRing(100)
            ring.allocate(20, item("a"))
            ring.clear(restart_ids=restart)
            assert ring.allocate(20, item("b")) == Handle(0, number)

    def test_memory_tells_an_object_that_lost_its_end(self):
        memory = Memory(100)
        memory.write(0, Chunk(40, 0, item("a")))
        memory.write(30, Chunk(20, 1, item("b")))
        with pytest.raises(DamagedObjectError, match="object 0 at address 0"):
            memory.read(Handle(0, 0))
        assert memory.read(Handle(30, 1)).item == item("b")

    def test_defect_d9_a_wrong_start_lets_live_objects_be_overwritten(self):
        """vLLM PR 27117: the start follows the object that has gone, and later a lap ahead of it."""
        defect = IDEAL.replacing("d9", {"shm_ring.head": Replacement(at_gone, "vLLM PR 27117")})
        assert first_damage(ShmRing(100)) == ""
        assert first_damage(ShmRing(100, defect)) == "object 5 is not at address 49 any more"


def first_damage(ring: ShmRing) -> str:
    """Sizes 22 to 32 round and round, the oldest going when there is no room; what lives is read after each step."""
    for step in range(60):
        if ring.allocate(14 + 5 * (step % 3), item(str(step))) is None:
            ring.reclaim(always, 1)
        for handle, _ in ring.live:
            try:
                ring.memory.read(handle)
            except (StaleHandleError, DamagedObjectError) as error:
                return str(error)
    return ""


class TestSender:
    def test_an_item_is_written_once_and_its_address_given_out_each_time(self):
        sender = ShmSender(1000, 100, 2)
        first, second = sender.take(features("a"))[0].data, sender.take(features("a"))[0].data
        assert first == second == address_item(Handle(0, 0))
        assert handle_of(first) == Handle(0, 0)
        assert sender.references == {0: 2}
        assert sender.num_outstanding == 4
        assert sender.keys == ["a"]

    def test_what_is_too_large_or_finds_no_room_goes_inline(self):
        sender = ShmSender(100, 60, 1)
        assert sender.take(features("large", size=60))[0].data == item("large", 60)
        (first, second, third) = sender.take(features("a", "b", "c", size=30))
        assert first.data.is_address
        assert second.data.is_address
        assert third.data == item("c", 30)
        assert not sender.is_cached("c")

    def test_the_oldest_goes_when_all_readers_have_acknowledged_all_references(self):
        sender = ShmSender(100, 42, 2)
        readers = [ShmReader(sender.ring.memory, 2) for _ in range(2)]
        sent = {"r": sender.take(features("a", "b", size=30)), "s": sender.take(features("a", size=30))}
        for reader in readers:
            for name, on_wire in sent.items():
                assert contents(reader.receive(name, on_wire)) == ["a", "b"][: len(on_wire)]
        for ended in [(0, "r"), (1, "r"), (0, "s")]:
            readers[ended[0]].ended(ended[1])
            assert not sender.take(features("c", size=30))[0].data.is_address
        readers[1].ended("s")
        assert sender.take(features("c", size=30))[0].data.is_address
        assert sender.keys == ["c"]

    def test_items_of_a_request_are_protected_from_each_other_and_no_longer(self):
        sender = ShmSender(100, 42, 1)
        reader = ShmReader(sender.ring.memory, 1)
        reader.receive("r", sender.take(features("a", "b", size=30)))
        reader.ended("r")
        sent = sender.take(features("c", "a", size=30))
        assert [one.data.is_address for one in sent] == [False, True]
        reader.receive("s", sent)
        reader.ended("s")
        assert sender.take(features("d", size=30))[0].data.is_address

    def test_a_hash_without_data_must_be_there(self):
        with pytest.raises(InputError, match="comes without data"):
            ShmSender(100, 42, 1).take([MediaFeature("image", "x", PlaceholderRange(0, 4))])
        with pytest.raises(InputError, match="num_readers 0"):
            ShmSender(100, 42, 0)


class TestReferences:
    def test_a_request_that_is_sent_again_is_acknowledged_once(self):
        for dialect, outstanding in [(IDEAL, 0), (RELEASE, -1)]:
            sender = ShmSender(100, 42, 1, dialect)
            reader = ShmReader(sender.ring.memory, 1, dialect)
            sent = sender.take(features("a"))
            for _ in range(2):  # admitted, and resumed on a v2 runner
                assert contents(reader.receive("r", sent)) == ["a"]
            reader.ended("r")
            assert sender.num_outstanding == outstanding

    def test_one_acknowledgement_too_many_lets_an_item_go_that_another_request_has_yet_to_read(self):
        for dialect, stays in [(IDEAL, True), (RELEASE, False)]:
            sender = ShmSender(100, 92, 1, dialect)
            reader = ShmReader(sender.ring.memory, 1, dialect)
            first = sender.take(features("a", size=60))
            for _ in range(2):
                reader.receive("r", first)
            waiting = sender.take(features("a", size=60))
            sender.take(features("b", size=60))
            if stays:
                assert contents(reader.receive("waiting", waiting)) == ["a"]
            else:
                with pytest.raises(StaleHandleError):
                    reader.receive("waiting", waiting)

    def test_a_request_that_comes_again_after_its_item_has_gone_finds_it_in_the_ideal_alone(self):
        for dialect, stays in [(IDEAL, True), (RELEASE, False)]:
            sender = ShmSender(100, 92, 1, dialect)
            reader = ShmReader(sender.ring.memory, 1, dialect)
            sent = sender.take(features("a", size=60))
            reader.receive("r", sent)
            assert sender.take(features("b", size=60))[0].data.is_address != stays
            if stays:
                assert contents(reader.receive("r", sent)) == ["a"]
            else:
                with pytest.raises(StaleHandleError):
                    reader.receive("r", sent)

    def test_a_request_of_which_no_reader_hears_gives_its_references_back(self):
        for dialect, outstanding in [(IDEAL, 0), (RELEASE, 1)]:
            sender = ShmSender(100, 42, 1, dialect)
            sender.give_back(sender.take(features("a", size=30)))
            assert sender.num_outstanding == outstanding
            sender.take(features("b", size=30))
            sender.give_back(sender.take(features("b", size=30)))
            assert sender.take(features("c", size=30))[0].data.is_address == (dialect is IDEAL)

    def test_defect_a3_a_strip_that_takes_addresses_pins_their_items_for_ever(self):
        defect = IDEAL.replacing("a3", {"strip.exempt": Replacement(lambda _: False, "vLLM PR 54994")})
        for dialect, outstanding in [(IDEAL, 0), (defect, 2)]:
            sender = ShmSender(200, 42, 2)
            readers = [ShmReader(sender.ring.memory, 2) for _ in range(2)]
            sent = strip_covered(sender.take(features("a")), 4, dialect=dialect)
            for reader in readers:
                reader.receive("r", sent)
                reader.ended("r")
            assert sender.num_outstanding == outstanding

    def test_a_stripped_inline_payload_needs_no_acknowledgement(self):
        sender = ShmSender(200, 42, 1)
        reader = ShmReader(sender.ring.memory, 1)
        sent = strip_covered([*sender.take(features("a")), *features("large", size=60)[:1]], 4)
        received = reader.receive("r", sent)
        assert received[0].data is not None
        assert received[1].data is None
        reader.ended("r")
        assert sender.num_outstanding == 0

    def test_looking_up_counted_as_a_reference_up_to_0_31(self):
        for release, counted in [("vllm-0.31", 3), ("vllm-0.32", 2)]:
            sender = ShmSender(200, 42, 1, named(release))
            sender.take(features("a"))
            sender.take(features("a"))
            assert sender.references == {0: counted}

    def test_up_to_0_31_two_readers_of_an_item_that_comes_twice_acknowledge_too_much(self):
        for release, outstanding in [("vllm-0.31", -2), ("vllm-0.32", 0)]:
            sender = ShmSender(200, 42, 2, named(release))
            sent = sender.take(features("a", "a"))
            for _ in range(2):
                ShmReader(sender.ring.memory, 2, named(release)).receive("r", sent)
            assert sender.num_outstanding == outstanding

    def test_a_reset_leaves_items_under_way_in_the_ideal_and_drops_or_renames_them_in_releases(self):
        found = {}
        for release in ("ideal", "vllm-0.32", "vllm-0.31"):
            sender = ShmSender(100, 92, 1, named(release))
            reader = ShmReader(sender.ring.memory, 1, named(release))
            under_way = sender.take(features("red", size=30))
            sender.reset()
            assert not sender.is_cached("red")
            sender.take(features("blue", size=30))
            try:
                found[release] = contents(reader.receive("r", under_way))
            except StaleHandleError:
                found[release] = "stale"
            reader.ended("r")
        assert found == {"ideal": ["red"], "vllm-0.32": "stale", "vllm-0.31": ["blue"]}

    def test_what_waited_for_a_reset_goes_when_it_is_acknowledged(self):
        sender = ShmSender(100, 92, 1)
        reader = ShmReader(sender.ring.memory, 1)
        sent = sender.take(features("a", size=60))
        reader.receive("r", sent)
        sender.reset()
        assert sender.keys == []
        assert not sender.take(features("b", size=60))[0].data.is_address
        reader.ended("r")
        assert sender.take(features("b", size=60))[0].data.is_address
        assert sender.keys == ["b"]
