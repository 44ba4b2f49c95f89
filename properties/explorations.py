"""Ways to come by cases that several families share."""

from __future__ import annotations

from epdsim.testing.broadcast import broadcast_cases
from epdsim.testing.caches import direct_cases, mirror_cases, ring_cases
from epdsim.testing.door import door_cases
from epdsim.testing.hunt import drawn, listed
from epdsim.testing.identity import hash_cases, key_cases
from epdsim.testing.machine import machine
from epdsim.testing.modes import modes
from epdsim.testing.positions import position_cases
from epdsim.testing.strategies import check_cases, render_cases, strip_cases
from epdsim.testing.workloads import Traits, engine_cases
from properties.small_worlds import strips, worlds

PROMPTS = drawn("prompts of mixed items", render_cases(), level="protocol")
FAILING_FAMILIES = drawn("prompts of a family that fails", render_cases(fails=True), level="protocol", weight=0.3)
REQUESTS = drawn("requests with and without EC parameters", check_cases(), level="protocol", weight=2)
STRIPS = drawn("items and computed tokens", strip_cases(), level="protocol", weight=2)
WORKLOADS = drawn("workloads", engine_cases(), level="engine", weight=2)
RESUMES = drawn(
    "workloads that regret a strip", engine_cases(Traits(plots=("resume",), mismatches=False)), level="engine"
)
MACHINE = machine("machine", weight=0.5)
MIRRORS = drawn("front ends and engines with mirrored caches", mirror_cases(), level="caches", weight=2)
DIRECT = drawn("payloads past the front end's cache", direct_cases(), level="caches")
RINGS = drawn("requests by way of a ring", ring_cases(), level="caches", weight=2)
MODES = modes("modes of the live comparison", weight=3)
BROADCASTS = drawn("messages about as large as a chunk", broadcast_cases(), level="broadcast", weight=0.3)
HASHES = drawn("media that are nearly the same", hash_cases(), level="identity", weight=4)
KEYS = drawn("prompts that begin alike", key_cases(), level="identity", weight=2)
POSITIONS = drawn("prompts of every position scheme", position_cases(), level="positions", weight=2)

DOOR = drawn("requests that need all that there is", door_cases(), level="engine", weight=2)
DOOR_DRAFTS = drawn(
    "requests that need all that there is, with drafts",
    door_cases(drafts=True),
    level="engine",
    weight=2,
    mode="v2-async-eagle-aligned",
)

WORLDS = listed("all small worlds of three requests", worlds, level="engine")
LATE = drawn(
    "workloads whose payloads are sent late",
    engine_cases(Traits(strip="deferred", mismatches=False)),
    level="engine",
    weight=0.5,
)
SMALL_STRIPS = listed("all strips of up to two items", strips, level="protocol")

ENGINE = (RESUMES, WORKLOADS, MODES, MACHINE, WORLDS)
"""All that drives an engine; what finds a violation first tells its story."""
