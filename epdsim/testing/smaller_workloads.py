"""The steps by which a workload becomes smaller; each yields what is a little smaller than the workload it is given.

None makes an engine smaller: what could be served before still can, so that a request that waits for ever does not do so because
nothing could ever serve it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from epdsim.core.errors import InputError
from epdsim.sut.schedule_model import scheduler_config
from epdsim.sut.schedule_records import RecordedItem, RecordedRequest, RecordedWorkload

T = TypeVar("T")
_ROOMY = 64
"""Tokens of a step that hardly ever cut a prompt of a hunt."""


def workload_size(workload: RecordedWorkload) -> tuple[int, ...]:
    """How large a workload is: who and what happens, media, tokens, steps until all have come, settings that are not plain."""
    requests, config = workload.requests, workload.config
    others = (workload.updates, workload.aborts, workload.late_aborts, workload.resets, workload.pauses)
    inputs = [*requests, *workload.updates]
    return (
        len(requests) + sum(map(len, others)),
        sum(len(one.mm_features) for one in inputs),
        sum(len(one.prompt_token_ids) + one.max_tokens for one in inputs),
        sum(one.arrival_step for one in inputs),
        sum(getattr(config, name) != value for name, value in _PLAIN.items()),
    )


def has_valid_settings(workload: RecordedWorkload) -> bool:
    """Whether an engine is started with such settings.

    A scheduler by itself need not look: vLLM refuses, or overrides, where it makes its configuration.
    """
    try:
        scheduler_config(workload)
    except InputError:
        return False
    return True


def _with(thing: T, **changes: Any) -> T:
    return msgspec.structs.replace(thing, **changes)  # type: ignore[type-var]


def _without(things: Sequence[T], place: int) -> list[T]:
    return [*things[:place], *things[place + 1 :]]


def fewer_requests(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """A request fewer, with all that befalls it."""
    for place in reversed(range(len(workload.requests))):
        gone = workload.requests[place].request_id
        yield _with(
            workload,
            requests=_without(workload.requests, place),
            updates=[one for one in workload.updates if one.request_id != gone],
            aborts=[one for one in workload.aborts if one[1] != gone],
            late_aborts=[one for one in workload.late_aborts if one[1] != gone],
        )


def fewer_incidents(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """An abort or a reset fewer, no pauses, an input of a session fewer (but for the word that there is none any more)."""
    if workload.pauses:
        yield _with(workload, pauses=[])
    for name in ("aborts", "late_aborts", "resets"):
        things = getattr(workload, name)
        for place in reversed(range(len(things))):
            yield _with(workload, **{name: _without(things, place)})
    for place in reversed(range(len(workload.updates))):
        if workload.updates[place].prompt_token_ids:
            yield _with(workload, updates=_without(workload.updates, place))


_PLAIN: dict[str, Any] = {
    "async_scheduling": False,
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "disable_chunked_mm_input": False,
    "scheduler_reserve_full_isl": False,
    "uses_mrope": False,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "model_runner": "v1",
}
"""Settings at their plainest; with none of them is there less room."""


def plainer_settings(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """One setting as most have it, or no connector."""
    config = workload.config
    if workload.ec_store is not None:
        yield _with(workload, config=_with(config, ec_role=None), ec_store=None, ec=None)
    for name, value in _PLAIN.items():
        if getattr(config, name) != value:
            yield _with(workload, config=_with(config, **{name: value}))
    if config.max_num_batched_tokens < _ROOMY:
        yield _with(workload, config=_with(config, max_num_batched_tokens=_ROOMY))


def fewer_features(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """No drafts, no aligned chunks, no KV transfers, no stop tokens; a session that is an ordinary request."""
    config, requests = workload.config, workload.requests
    if config.speculative_method != "none":
        yield _with(workload, config=_with(config, **_NO_DRAFTS))
    if config.mamba_block_aligned_split:
        yield _with(workload, config=_with(config, mamba_block_aligned_split=False))
    if config.kv_role is not None or any(one.num_remote_tokens for one in requests):
        alone = [_with(one, kv=None, num_remote_tokens=0) for one in requests]
        yield _with(workload, config=_with(config, kv_role=None, kv_load_failure_policy=None), requests=alone)
    if any(one.stop_token_ids for one in (*requests, *workload.updates)):
        changes = {
            name: [_with(one, stop_token_ids=[]) for one in getattr(workload, name)] for name in ("requests", "updates")
        }
        yield _with(workload, **changes)
    for place, request in enumerate(requests):
        if request.resumable:
            others = [one for one in workload.updates if one.request_id != request.request_id]
            yield _with(_replaced(workload, place, _with(request, resumable=False)), updates=others)


_NO_DRAFTS: dict[str, Any] = {
    "speculative_method": "none",
    "num_speculative_tokens": 0,
    "parallel_drafting": False,
    "disable_eagle_block_drop": False,
}


def plainer_requests(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """A request that asks for less: no salt, no adapter, a shorter output, an earlier arrival."""
    for place, request in enumerate(workload.requests):
        if request.cache_salt is not None or request.adapter is not None:
            yield _replaced(workload, place, _with(request, cache_salt=None, adapter=None))
        if request.priority:
            yield _replaced(workload, place, _with(request, priority=0))
        for number in _lower(request.max_tokens, 1):
            yield _replaced(workload, place, _with(request, max_tokens=number))
        for number in _lower(request.arrival_step, 0):
            yield _replaced(workload, place, _with(request, arrival_step=number))


def earlier_incidents(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """Aborts and resets at an earlier step."""
    for name in ("aborts", "late_aborts", "resets"):
        things = getattr(workload, name)
        for place, (step, what) in enumerate(things):
            for number in _lower(step, 0):
                yield _with(workload, **{name: [*things[:place], (number, what), *things[place + 1 :]]})


def fewer_items(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """An item fewer, with its span: in all prompts that are alike up to its end, then in one."""
    for place, request in enumerate(workload.requests):
        for item in request.mm_features:
            yield from _cut(workload, place, item.offset, item.offset + item.length)


def fewer_tokens(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """Less text: a stretch of it between two items, its half, or a token, likewise."""
    for place, request in enumerate(workload.requests):
        for start, end in reversed(_texts(request)):
            for length in dict.fromkeys((end - start, (end - start) // 2, 1)):
                if length and length < len(request.prompt_token_ids):
                    yield from _cut(workload, place, end - length, end)


def shorter_items(workload: RecordedWorkload) -> Iterator[RecordedWorkload]:
    """Items without mask, or with a token less; all that are alike together, as an identifier stands for one picture."""
    if workload.updates:
        return  # their items would have to change too
    kinds = {
        (item.identifier, item.length, None if item.is_embed is None else tuple(item.is_embed)): item
        for request in workload.requests
        for item in request.mm_features
    }
    for item in kinds.values():
        if item.is_embed is not None:
            yield _all_items(workload, item, item.length, None)
        if item.length > 1:
            mask = None if item.is_embed is None else item.is_embed[:-1]
            if mask is None or any(mask):
                yield _all_items(workload, item, item.length - 1, mask)


WORKLOAD_STEPS: tuple[Callable[[RecordedWorkload], Iterator[RecordedWorkload]], ...] = (
    fewer_requests,
    fewer_features,
    fewer_incidents,
    plainer_settings,
    fewer_items,
    plainer_requests,
    fewer_tokens,
    earlier_incidents,
    shorter_items,
)
"""All steps, from coarse to fine."""


def _replaced(workload: RecordedWorkload, place: int, request: RecordedRequest) -> RecordedWorkload:
    requests = [*workload.requests[:place], request, *workload.requests[place + 1 :]]
    return _with(workload, requests=sorted(requests, key=lambda one: one.arrival_step))


def _lower(number: int, least: int) -> Iterator[int]:
    """Lower numbers: the least, half way there, one less."""
    for lower in dict.fromkeys((least, (number + least) // 2, number - 1)):
        if least <= lower < number:
            yield lower


def _texts(request: RecordedRequest) -> list[tuple[int, int]]:
    """Stretches of a prompt that belong to no item."""
    found: list[tuple[int, int]] = []
    begin = 0
    for item in [*request.mm_features, None]:
        end = len(request.prompt_token_ids) if item is None else item.offset
        if begin < end:
            found.append((begin, end))
        begin = end if item is None else item.offset + item.length
    return found


def _cut(workload: RecordedWorkload, place: int, start: int, end: int) -> Iterator[RecordedWorkload]:
    """A stretch of a prompt left out, in all that are alike up to its end, and in this one alone."""
    request = workload.requests[place]
    if end - start >= len(request.prompt_token_ids):
        return
    alike = [
        one.request_id
        for one in workload.requests
        if _beginning(one, end) == _beginning(request, end) and len(one.prompt_token_ids) > end - start
    ]
    for names in ([alike] if len(alike) > 1 else []) + [[request.request_id]]:
        if workload.ec is not None and any(name in workload.ec.metadata_only for name in names):
            continue
        requests = [_shortened(one, start, end) if one.request_id in names else one for one in workload.requests]
        yield _with(workload, requests=requests)


def _beginning(request: RecordedRequest, end: int) -> tuple[list[int], list[RecordedItem]]:
    return request.prompt_token_ids[:end], [one for one in request.mm_features if one.offset < end]


def _shortened(request: RecordedRequest, start: int, end: int) -> RecordedRequest:
    kept = [one for one in request.mm_features if not (start <= one.offset < end)]
    items = [_with(one, offset=one.offset - (end - start)) if one.offset >= end else one for one in kept]
    tokens = [*request.prompt_token_ids[:start], *request.prompt_token_ids[end:]]
    return _with(
        request,
        prompt_token_ids=tokens,
        mm_features=items,
        num_remote_tokens=min(request.num_remote_tokens, len(tokens)),
    )


def _all_items(
    workload: RecordedWorkload, like: RecordedItem, length: int, mask: list[bool] | None
) -> RecordedWorkload:
    """All items of one kind, in another form."""
    requests: list[RecordedRequest] = []
    for request in workload.requests:
        one = request
        for index, item in enumerate(request.mm_features):
            if (item.identifier, item.length, item.is_embed) == (like.identifier, like.length, like.is_embed):
                now = one.mm_features[index]
                end = now.offset + now.length
                one = _shortened(one, end - (now.length - length), end)
                items = [
                    *one.mm_features[:index],
                    _with(now, length=length, is_embed=mask),
                    *one.mm_features[index + 1 :],
                ]
                one = _with(one, mm_features=items)
        requests.append(one)
    return _with(workload, requests=requests)
