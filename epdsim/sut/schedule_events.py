"""What befalls a random workload while it runs: aborts, resets, pauses, and further inputs of sessions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from epdsim.sut.schedule_records import RecordedItem, RecordedRequest, RecordedUpdate

STOP = 4
"""Token id that ends an output (trait `stops`)."""

DrawInput = Callable[[int], tuple[list[int], list[RecordedItem]]]
"""Draws tokens and items of an input, given the most tokens that it may have."""


def draw_aborts(rng: random.Random, requests: Sequence[RecordedRequest], share: float) -> list[tuple[int, str]]:
    """Steps in which a share of the requests is aborted."""
    return [
        (request.arrival_step + rng.randint(0, 25), request.request_id) for request in requests if rng.random() < share
    ]


def draw_resets(rng: random.Random, which: Sequence[str]) -> list[tuple[int, str]]:
    """Up to eight resets of any of the named kinds."""
    return sorted((rng.randint(0, 40), rng.choice(which)) for _ in range(rng.randint(1, 8)))


def draw_pauses(rng: random.Random) -> list[tuple[int, str]]:
    """Pauses of both kinds, each of which ends or turns into the other; at last nothing is held back."""
    pauses: list[tuple[int, str]] = []
    step = 0
    for _ in range(rng.randint(1, 3)):
        for what in (rng.choice(["new", "all"]), rng.choice(["nothing", "new", "all"]), "nothing"):
            step += rng.randint(0, 9)
            pauses.append((step, what))
    return pauses


def draw_sessions(
    rng: random.Random,
    requests: Sequence[RecordedRequest],
    most_tokens: int,
    draw_input: DrawInput,
    least_tokens: int = 1,
) -> tuple[list[RecordedRequest], list[RecordedUpdate]]:
    """Make sessions of some requests.

    Args:
        rng: Drawn from.
        requests: In order of arrival.
        most_tokens: That a session may have in the end.
        draw_input: Draws an input.
        least_tokens: Of an input; shorter ones are passed over.

    Returns:
        The requests, and the sessions' inputs in order of arrival; each session is closed in the end.
    """
    made: list[RecordedRequest] = []
    updates: list[RecordedUpdate] = []
    for request in requests:
        if rng.random() < 0.3:
            made.append(request)
            continue
        session = msgspec.structs.replace(
            request, resumable=True, max_tokens=min(request.max_tokens, rng.randint(1, 6))
        )
        made.append(session)
        updates += _inputs(rng, session, most_tokens, draw_input, least_tokens)
    return made, sorted(updates, key=lambda update: update.arrival_step)


def _inputs(
    rng: random.Random, session: RecordedRequest, most_tokens: int, draw_input: DrawInput, least_tokens: int
) -> list[RecordedUpdate]:
    step, time = session.arrival_step, session.arrival_time
    num_tokens = len(session.prompt_token_ids) + session.max_tokens
    inputs: list[RecordedUpdate] = []
    for _ in range(rng.randint(1, 5)):
        step += rng.choice([0, 1, rng.randint(0, 5), rng.randint(0, 15)])
        time = rng.choice([time, time + rng.randint(0, 4), float(rng.randint(0, 9))])
        room = most_tokens - num_tokens - 1
        if room < 1:
            break
        tokens, items = draw_input(min(room, rng.choice([3, 12, room])))
        if not least_tokens <= len(tokens) <= room:
            continue
        max_tokens = rng.randint(1, min(6, room + 1 - len(tokens)))
        num_tokens += len(tokens) + max_tokens
        inputs.append(
            RecordedUpdate(
                request_id=session.request_id,
                arrival_step=step,
                prompt_token_ids=tokens,
                max_tokens=max_tokens,
                arrival_time=time,
                mm_features=items,
                stop_token_ids=session.stop_token_ids,
            )
        )
    step += rng.choice([0, rng.randint(0, 20)])
    return [*inputs, RecordedUpdate(request_id=session.request_id, arrival_step=step)]
