"""vLLM's releases as dialects: the ideal plus what each release does otherwise.

`DEVIATIONS` is the table: one row per rule, behaviour and span of releases. A new finding is a new row. What a row says was found
by running the releases 0.25 to 0.33 or stands in the threads that it names (for media caches see `core.releases.media`); where no
row says otherwise a release follows the ideal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from epdsim.core import drafters, slots
from epdsim.core.caches import encoder_cache, encoder_decoder_cache
from epdsim.core.ec import gate
from epdsim.core.errors import InputError
from epdsim.core.kv import blocks
from epdsim.core.releases.deviation import FIRST, LAST, Deviation
from epdsim.core.releases.embeddings import EMBEDDING_DEVIATIONS
from epdsim.core.releases.identity import IDENTITY_DEVIATIONS
from epdsim.core.releases.loads import LOAD_DEVIATIONS
from epdsim.core.releases.media import MEDIA_DEVIATIONS
from epdsim.core.rules import IDEAL, Dialect, Replacement
from epdsim.core.scheduler import admissible, aligned, preemption, rules, sessions

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        slots.METADATA_TABLE,
        FIRST,
        29,
        slots.no_table,
        "render sends no metadata: mm_metadata is first in 0.30 (vLLM PR 54659)",
    ),
    Deviation(
        slots.METADATA_TABLE,
        30,
        33,
        slots.table_with_gaps,
        "a modality without any metadata is left out of mm_metadata, which the release's own check refuses (vLLM PR 56069)",
    ),
    Deviation(
        slots.METADATA_READ,
        FIRST,
        29,
        slots.no_table,
        "an mm_metadata key is unknown and dropped in silence, so that a metadata-only item looks like one without payload",
    ),
    Deviation(
        slots.PLACEHOLDER_SENT,
        FIRST,
        33,
        slots.dense_placeholder,
        "offset and length travel, the embed mask does not (vLLM PR 54548, open)",
    ),
    Deviation(
        slots.MASK_KEPT,
        29,
        33,
        slots.mask_too,
        "the mask of Qwen2.5-Omni's and Qwen3-Omni's sounds stays on the CPU; the former pads it to 300 s (vLLM PR 52827)",
    ),
    Deviation(
        gate.EC_PARAMS_READ,
        FIRST,
        25,
        gate.no_params,
        "GenerateRequest has no ec_transfer_params before 0.26",
    ),
    Deviation(
        gate.UNPROVIDED,
        FIRST,
        29,
        gate.nothing_unprovided,
        "there is no validator before metadata exists (vLLM PR 54659)",
    ),
    Deviation(
        gate.UNPROVIDED,
        30,
        33,
        gate.per_item,
        "any non-empty ec_transfer_params provide for every item: a wrong hash, a missing one and null are found by the worker",
    ),
    Deviation(
        gate.REFUSED,
        30,
        33,
        gate.name_nothing,
        "the refusal does not say which item it is about",
    ),
    Deviation(
        admissible.DOOR,
        FIRST,
        33,
        admissible.check_lengths,
        "the front end looks at the prompt's length and at the size of items; what else a schedule needs is left to the settings",
    ),
    Deviation(
        rules.LONG_PREFILL,
        FIRST,
        30,
        rules.limit_always,
        "the long-prefill threshold binds even a request that is alone",
    ),
    Deviation(
        rules.CHUNK_WHOLE,
        FIRST,
        33,
        rules.splits_unstarted_item,
        "the guard against splitting an item does not see a chunk that starts with it (vLLM issue 52306, open)",
    ),
    Deviation(
        rules.ENCODABLE,
        FIRST,
        33,
        rules.encode_nothing,
        "an item without payload whose embedding is not at hand is scheduled to be encoded, of which the engine dies (seen in "
        "0.32.0, taken for all)",
    ),
    Deviation(
        encoder_cache.MISMATCH,
        FIRST,
        30,
        encoder_cache.never_differ,
        "an entry serves any item of its identifier, however many embeddings that needs (issue 55547)",
    ),
    Deviation(
        rules.CURSOR,
        FIRST,
        27,
        rules.same_request_after_scheduled,
        "a victim ahead of the needy request that got nothing in the step makes the next request miss its turn (issue 49097)",
    ),
    Deviation(
        rules.REPEATS,
        FIRST,
        31,
        rules.leaves_repeats,
        "a further occurrence of an item encoded or loaded in the step is not held, so that the entry can go too early",
    ),
    Deviation(
        rules.GUARD,
        FIRST,
        31,
        rules.asks_cache_first,
        "the cache is asked before the guard against splitting an item, which therefore does not see cached items",
    ),
    Deviation(
        rules.ENCODED,
        28,
        33,
        rules.planned,
        "an engine that only encodes ends a request when its last step is planned: under async scheduling before that has run",
    ),
    Deviation(
        rules.ENCODER_TOKEN,
        FIRST,
        27,
        rules.yields_tokens,
        "an engine that only encodes makes up a token for each request of a step; max_tokens ends it (vLLM PR 50275)",
    ),
    Deviation(
        rules.ENCODER_PARTS,
        FIRST,
        31,
        rules.encodes_at_once,
        "an engine that only encodes waits for a step that can take a whole prompt when chunked prefill is off",
    ),
    Deviation(
        rules.ENCODER_END,
        FIRST,
        33,
        rules.decodes_encoded,
        "under async scheduling an engine that only encodes plans steps beyond a prompt when max_tokens is above 1",
    ),
    Deviation(
        encoder_decoder_cache.CREDIT_ONCE,
        FIRST,
        33,
        encoder_decoder_cache.credits_every_step,
        "each step, preemption, end and failed admission credits all items of a request, so that the cache is never full "
        "(vLLM issue 55733)",
    ),
    Deviation(
        encoder_cache.CREDIT,
        FIRST,
        30,
        encoder_cache.credit_of_item,
        "an entry is credited with the embeddings of the item that gave it up last, whatever it holds (vLLM PR 57696)",
    ),
    Deviation(
        encoder_cache.LAST_OCCURRENCE,
        FIRST,
        28,
        encoder_cache.any_occurrence,
        "a request gives an entry up with the first occurrence that is past, though it needs it again (vLLM PR 54284)",
    ),
    Deviation(
        encoder_cache.FREED_REPORT,
        FIRST,
        27,
        encoder_cache.all_freed,
        "an entry evicted and encoded again in one step is reported as freed, and the worker drops it",
    ),
    Deviation(
        blocks.REUSE,
        27,
        27,
        blocks.reused_last,
        "without prefix caching a freed block is taken after all others (vLLM PR 48017, undone by PR 51482)",
    ),
    Deviation(
        preemption.WITHDRAWN,
        FIRST,
        33,
        preemption.leave_entries,
        "a request preempted after its encoder run was scheduled leaves an unfilled entry (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        preemption.UNWRITTEN,
        FIRST,
        33,
        preemption.leave_unwritten,
        "a request preempted after it was scheduled in the step leaves findable blocks that were never written (seen in 0.32.0, "
        "taken for all)",
    ),
    Deviation(
        rules.VICTIM,
        FIRST,
        33,
        rules.last_or_first_least_urgent,
        "of equal priority and arrival time the first in order is preempted, so that two may for ever preempt each other "
        "(seen in 0.32.0, taken for all)",
    ),
    Deviation(
        rules.ENCODER_LEFT,
        FIRST,
        33,
        rules.left_when_chosen,
        "encoder budget that comes back by a preemption is lost when the request that needed blocks encodes too (seen in 0.32.0, "
        "taken for all)",
    ),
    Deviation(
        sessions.BROADCAST,
        FIRST,
        33,
        sessions.send_again,
        "every input of a session is broadcast with all items of the session (vLLM issue 58324, open; seen in 0.32.0)",
    ),
    Deviation(
        sessions.LATE_END,
        FIRST,
        33,
        sessions.lose_place,
        "a session whose turn ends while it is preempted is in no queue any more and never ends (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        sessions.TURN_ENTRIES,
        FIRST,
        33,
        sessions.keep_last,
        "with async scheduling a turn that ends with the token after a media item keeps the item's encoder-cache entry, for which "
        "the session's next item may wait for ever (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        sessions.NEW_PLACE,
        FIRST,
        33,
        sessions.leave_in_queue,
        "the arrival time of a session's next input changes its order within the heap, which is not told (seen in 0.32.0, taken "
        "for all)",
    ),
    Deviation(
        sessions.GIVE_WAY,
        FIRST,
        33,
        sessions.hold_on,
        "sessions between two turns keep their blocks, so that several may wait for each other for ever (seen in 0.32.0, taken "
        "for all)",
    ),
    Deviation(
        sessions.RESET_HOLDING,
        FIRST,
        33,
        sessions.leave_holding,
        "a reset with running requests preempts them and then raises while a session holds blocks (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        sessions.FRONTIER,
        FIRST,
        33,
        sessions.as_computed,
        "without async scheduling a turn that ends before the last of its accepted drafts counts the others as computed, and so "
        "the first tokens of the session's next input; with it a session whose turn ends after a load failed forgets the tokens "
        "that it has to compute again (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        aligned.ALIGNED_CHUNK,
        FIRST,
        33,
        aligned.aligned_to_batch,
        "with block-aligned chunks and a drafter that takes slots of its own, a prompt is never begun whose blocks fit into a step "
        "without these slots alone (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        drafters.DRAFTER_CUT,
        FIRST,
        33,
        drafters.cut_ahead,
        "a chunk may be cut to nothing, so that a request waits for ever for room that its own progress would free (vLLM issue "
        "47738), or inside the item before, which was not to be split (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        drafters.DRAFTER_KEPT,
        FIRST,
        33,
        drafters.kept_ahead_or_nothing,
        "a chunk may be cut to nothing, for ever where it may not be longer (seen in 0.32.0, taken for all)",
    ),
    Deviation(
        drafters.DRAFTER_PASSED,
        FIRST,
        33,
        drafters.passed_ahead,
        "entries are held for as many tokens more as the drafter reads ahead (seen in 0.32.0, taken for all; vLLM PR 46315)",
    ),
    *EMBEDDING_DEVIATIONS,
    *IDENTITY_DEVIATIONS,
    *LOAD_DEVIATIONS,
    *MEDIA_DEVIATIONS,
)
"""Rows of the protocol, of the scheduler and of the media caches; rows of one rule do not overlap."""

_RELEASE = re.compile(r"vllm-0\.(\d+)(\.\d+)?")


def release_names() -> tuple[str, ...]:
    """The names that `named` knows, the ideal first."""
    return ("ideal", *(f"vllm-0.{minor}" for minor in range(FIRST, LAST + 1)))


def named(name: str) -> Dialect:
    """The dialect of a release, or the ideal.

    Args:
        name: `"ideal"` or for example `"vllm-0.32"`; a patch version (`"vllm-0.32.0"`) is accepted and means its minor release.
            `"vllm-0.32:strip.resumed"` is the ideal with that rule of the release alone, or with several joined by `+`.

    Raises:
        InputError: No such name; the message lists all names. Or the release does not decide such a rule otherwise.
    """
    if name == "ideal":
        return IDEAL
    release, _, chosen = name.partition(":")
    if chosen:
        return _only(named(release), chosen.split("+"))
    matched = _RELEASE.fullmatch(name)
    if matched is None or not FIRST <= int(matched[1]) <= LAST:
        raise InputError(f"dialect {name!r}", "no such name", f"the names are {', '.join(release_names())}")
    minor = int(matched[1])
    return Dialect(f"vllm-0.{minor}", _replacements(minor))


def _only(release: Dialect, chosen: Sequence[str]) -> Dialect:
    """The ideal with some rules of a release."""
    for rule in chosen:
        if rule not in release.replacements:
            others = ", ".join(sorted(release.replacements))
            raise InputError(
                f"rule {rule!r}", f"{release.name} does not decide it otherwise", f"it does so with {others}"
            )
    return Dialect(f"{release.name}:{'+'.join(chosen)}", {rule: release.replacements[rule] for rule in chosen})


def _replacements(minor: int) -> Mapping[str, Replacement]:
    return {row.rule.name: Replacement(row.behaviour, row.why) for row in DEVIATIONS if row.first <= minor <= row.last}
