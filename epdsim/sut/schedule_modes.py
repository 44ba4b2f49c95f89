"""Modes of random workloads for schedulers: a model runner and what is special, joined by dashes, as in `"v2-async-prio"`.

Any combination makes a workload; `MODES` lists those that are run by default.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from epdsim.core.errors import InputError
from epdsim.sut.schedule_ec_workloads import EC_MODES, EC_TRAITS

RUNNERS = ("v1", "v2")

TRAITS: Mapping[str, str] = {
    "async": "async scheduling",
    "prio": "priority policy",
    "noprefix": "prefix caching off",
    "long": "a long-prefill threshold",
    "hash": "three token ids, the placeholder among them, in prompts and outputs, and further turns on what has ended",
    "late": "aborts between schedule and update",
    "mixed": "images, videos and sounds, the last without keep-on-CPU field",
    "ecc": "EC consumer with embeddings in the store",
    "ecp": "EC producer",
    "ecb": "EC producer and consumer",
    "chunkoff": "chunked media input off",
    "tight": "still fewer blocks, and later arrivals more urgent",
    "masks": "long items of few embeddings that several chunks share",
    "keys": "cache salts and adapters",
    "reset": "resets of prefix and encoder cache at any time",
    "whole": "chunked prefill off",
    "large": "pools of hundreds of blocks, dozens of requests",
    "remote": "tokens whose KV cache another engine hands over",
    "mismatch": "identifiers that are used again for another number of embeddings",
    "ties": "equal priorities and arrival times",
    "sessions": "streaming sessions, whose input grows",
    "stops": "outputs that end at a stop token",
    "resetrunning": "resets of the prefix cache that preempt all that runs",
    "pause": "pauses of admission and of everything",
    **EC_TRAITS,
    "encdec": "an encoder-decoder model, with blocks for cross attention",
    "encodeonly": "an EC producer that only encodes",
    "drafts": "speculative decoding with drafts that come from tokens (n-gram) or from a model of its own",
    "eagle": "speculative decoding with a drafter that reads the model's hidden states, and ahead in the prompt",
    "aligned": "chunks of prompts that end at block boundaries",
    "kvload": "a KV connector that loads between steps, and does not always know at once",
    "kvfail": "KV cache that could not be loaded",
    "kvsend": "a KV connector that holds blocks of requests that ended",
}
"""What a mode can add, and what that means."""

RECORDED_MODES = (
    *("v1", "v1-async", "v2", "v2-async", "v1-prio", "v2-prio", "v2-noprefix", "v2-long", "v1-hash", "v2-async-hash"),
    *("v2-late", "v2-async-late", "v1-mixed", "v2-async-mixed", "v1-ecc", "v2-ecc", "v1-chunkoff"),
    *("v1-prio-tight", "v1-async-prio-tight", "v2-prio-tight"),
)
"""The twenty modes of the first recordings."""

SESSION_MODES = (
    *("v1-sessions", "v2-sessions", "v1-async-sessions-stops", "v2-async-sessions-stops", "v2-prio-sessions"),
    *("v1-async-tight-sessions", "v2-async-hash-sessions", "v1-mixed-masks-sessions", "v2-chunkoff-sessions-keys"),
    *("v1-async-late-ecc-sessions", "v2-ecb-sessions", "v2-prio-long-mismatch-sessions", "v1-large-sessions-stops"),
    *("v1-reset-sessions", "v2-async-prio-sessions-stops-resetrunning", "v1-async-resetrunning", "v2-resetrunning"),
    *("v2-async-late-stops-resetrunning", "v1-remote-sessions-resetrunning", "v1-async-stops", "v2-pause"),
    *("v1-async-prio-sessions-pause", "v2-whole-sessions", "v1-noprefix-sessions", "any-sessions", "any-resetrunning"),
)
"""Streaming sessions, resets with all that runs, stop tokens and pauses."""

ENCODER_MODES = (
    *(
        "v1-encdec",
        "v2-async-encdec",
        "v1-prio-encdec",
        "v2-async-tight-encdec",
        "v2-late-encdec",
        "v1-tight-reset-encdec",
    ),
    *("v1-async-late-reset-encdec", "v2-prio-ties-encdec", "v1-large-encdec", "v2-async-keys-encdec", "any-encdec"),
    *("v1-encodeonly", "v2-encodeonly", "v2-async-encodeonly", "v1-prio-encodeonly", "v2-async-tight-late-encodeonly"),
    *(
        "v1-mixed-reset-encodeonly",
        "v2-async-mixed-masks-encodeonly",
        "v2-mismatch-encodeonly",
        "v1-chunkoff-encodeonly",
    ),
    *("v1-async-late-reset-encodeonly", "v2-large-mixed-encodeonly", "v1-whole-encodeonly", "any-encodeonly"),
)
"""Encoder-decoder models, and engines that only encode."""

TRANSFER_MODES = (
    *("v1-kvload", "v2-async-kvload", "v1-prio-kvload-kvfail", "v2-async-kvload-kvfail-late", "v1-kvfail-mixed"),
    *("v2-async-kvfail", "v1-kvsend", "v2-async-kvsend-tight", "v1-async-kvload-kvfail-kvsend", "v2-async-remote"),
    *(
        "v2-kvload-kvsend-resetrunning",
        "v1-kvload-sessions",
        "v2-async-kvload-kvfail-sessions-stops",
        "v2-kvload-pause",
    ),
    *("any-kvload", "any-kvfail", "any-kvload-kvfail-kvsend-resetrunning"),
)
"""KV connectors with books of their own."""

NEW_MODES = (
    *("v1-masks", "v2-async-mixed-masks", "v1-chunkoff-masks", "v1-keys", "v2-async-hash-keys", "v1-ecp", "v2-ecb"),
    *("v2-async-ecc", "v1-async-ecb-late", "v1-reset", "v2-async-reset", "v2-whole", "v1-async-whole", "v1-large"),
    *("v2-async-large-mixed", "v2-prio-large-keys", "v1-remote", "v2-prio-remote", "v1-mismatch", "v2-async-mismatch"),
    *("v1-prio-ties", "v2-async-prio-long-late", "any", *SESSION_MODES, *EC_MODES, *ENCODER_MODES, *TRANSFER_MODES),
)
"""What the first recordings do not cover."""

DRAFT_MODES = (
    *("v1-drafts", "v2-async-drafts", "v1-prio-drafts", "v2-async-prio-tight-drafts", "v1-hash-drafts", "any-drafts"),
    *("v1-eagle", "v2-async-eagle", "v2-prio-tight-eagle", "v1-async-masks-eagle", "v2-async-hash-eagle", "any-eagle"),
    *("v1-aligned", "v2-async-hash-aligned", "v1-prio-tight-aligned", "v2-async-eagle-aligned", "any-aligned"),
)
"""Speculative decoding and block-aligned chunks."""

TOGETHER_MODES = (
    *("v1-sessions-drafts", "v2-async-sessions-stops-drafts", "v2-sessions-stops-eagle", "v1-async-sessions-eagle"),
    *("v2-async-prio-sessions-resetrunning-eagle", "v1-mixed-sessions-stops-aligned", "any-sessions-drafts"),
    *("v1-kvload-drafts", "v2-async-kvload-eagle", "v1-prio-kvload-kvfail-eagle", "v2-async-kvfail-drafts"),
    *("v2-async-kvsend-tight-eagle", "v1-async-remote-eagle", "v1-async-kvload-kvfail-kvsend-drafts"),
    *("v1-kvload-aligned", "v2-async-kvload-kvfail-eagle-aligned", "any-kvload-kvfail-eagle"),
    *("v1-drafts-encdec", "v2-async-drafts-encdec", "v1-prio-tight-drafts-encdec", "v2-async-late-reset-drafts-encdec"),
    "any-drafts-encdec",
)
"""Both of them with sessions, a KV connector and encoder-decoder models."""

MODES = (*RECORDED_MODES, *NEW_MODES, *DRAFT_MODES, *TOGETHER_MODES)
"""All that are listed."""

LATER_MODES = (*SESSION_MODES, *EC_MODES, *DRAFT_MODES, *TRANSFER_MODES, *TOGETHER_MODES)
"""What older releases are not compared in; in those of sessions 0.28 and 0.30 die."""

LATER_SINCE = 32
"""Minor version of the first release that is compared in them."""

ANY = "any"
"""The runner that stands for one drawn anew for each seed, with several traits besides those that are named."""

_NAMED_ONLY = frozenset(
    {"sessions", "stops", "resetrunning", "pause", *EC_TRAITS, "encdec", "encodeonly", "drafts", "eagle", "aligned"}
    | {"kvload", "kvfail", "kvsend"}
)
"""Traits that `any` does not draw, so that its workloads stay what they were; they are added by name, as in `any-sessions`."""

_TRANSFERS = ("kvload", "kvfail", "kvsend")
_APART = ("sessions", "ecc", "ecp", "ecb", "remote", *EC_TRAITS, *_TRANSFERS)

CONFLICTS = (
    *(("ecc", "ecp"), ("ecc", "ecb"), ("ecp", "ecb"), ("evict", "pull"), ("pull", "sessions")),
    *(("drafts", "eagle"), ("chunkoff", "eagle", "aligned"), ("chunkoff", "eagle", "long")),
    *(("encdec", other) for other in ("encodeonly", *_APART, "eagle", "aligned", "mixed", "masks", "mismatch", "hash")),
    *(("encodeonly", other) for other in (*_APART, "drafts", "eagle", "aligned")),
)
"""An engine has one EC role, one kind of connector and one drafter, and offers are of a first input; an item that must not be split
and whose chunk cannot hold it together with what a drafter reads ahead is never begun; encoder-decoder models have one modality,
beside the prompt, no connector, and no drafter that reads ahead; an engine that only encodes is a producer, without KV cache, and
yields nothing to draft."""


def parse_mode(mode: str) -> tuple[str, frozenset[str]]:
    """Runner and traits of a mode.

    Raises:
        InputError: It does not begin with a runner, has an unknown trait, or two that exclude each other.
    """
    runner, *traits = mode.split("-")
    unknown = [trait for trait in traits if trait not in TRAITS]
    if runner not in {*RUNNERS, ANY} or unknown:
        raise InputError(
            f"mode {mode!r}",
            "a mode is v1, v2 or any and what is special, joined by dashes",
            f"what can be special is {', '.join(TRAITS)}",
        )
    excluded = _conflict(frozenset(traits))
    if excluded:
        raise InputError(f"mode {mode!r}", f"{' and '.join(excluded)} exclude each other")
    return runner, frozenset(traits)


def default_modes(release: str) -> tuple[str, ...]:
    """What is run against a release, for example `"0.32.0"`, when no mode is named."""
    minor = int(release.split(".")[1])
    return MODES if minor >= LATER_SINCE else tuple(mode for mode in MODES if mode not in LATER_MODES)


def _conflict(traits: frozenset[str]) -> Sequence[str]:
    return next((those for those in CONFLICTS if traits.issuperset(those)), ())


def drawn_mode(rng: random.Random, named: frozenset[str]) -> tuple[str, frozenset[str]]:
    """A runner and traits, among them those that are named and do not exclude each other."""
    while True:
        traits = named.union([trait for trait in TRAITS if trait not in _NAMED_ONLY and rng.random() < 0.25])
        if not _conflict(traits):
            return rng.choice(RUNNERS), traits
