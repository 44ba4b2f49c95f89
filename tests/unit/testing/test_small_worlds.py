"""What is searched to the end: how much it is, and that it finds what is there to find."""

from __future__ import annotations

from itertools import islice

from epdsim.spec import properties_of
from epdsim.sut.systems import find_system
from epdsim.testing.hunt import Hunter, listed
from properties.small_worlds import strips, worlds
from properties.test_ecv import shapes


def test_what_the_documentation_counts():
    assert [sum(1 for _ in cases()) for cases in (shapes, worlds, strips)] == [5792, 2304, 972]


def test_small_worlds_hold_the_loss_of_a_release():
    """Those of v1 runners without async scheduling are enough to find it."""
    hunter = Hunter(find_system("reference", "vllm-0.32"), properties=properties_of(["STRIP-AVAIL"]))
    found = hunter.explored(listed("a quarter", lambda: islice(worlds(), 576), level="engine"))
    assert found.verdicts["STRIP-AVAIL"].num_broken
