"""Random workloads for schedulers: which settings, which requests, and what befalls them, by mode and seed.

Modes are those of `schedule_modes`. Workloads are small and cramped on purpose, since a scheduler that has room decides nothing:
few KV blocks, prompts that begin alike, encoder caches of one or two items, budgets that cut prompts and items.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from epdsim.core.records import record
from epdsim.sut.schedule_drafts import Drafting, least_input, num_spare_slots, with_drafts
from epdsim.sut.schedule_ec_workloads import EC_TRAITS, draw_far_side
from epdsim.sut.schedule_encoders import as_encoder_decoder, as_encoder_only
from epdsim.sut.schedule_events import STOP, draw_aborts, draw_pauses, draw_resets, draw_sessions
from epdsim.sut.schedule_modes import ANY, drawn_mode, parse_mode
from epdsim.sut.schedule_records import (
    RecordedConfig,
    RecordedItem,
    RecordedRequest,
    RecordedUpdate,
    RecordedWorkload,
)
from epdsim.sut.schedule_transfers import LOADS, draw_transfer, kv_role

PLACEHOLDER = 500
"""Token id of media spans."""

FEW_TOKENS = (1, 2, PLACEHOLDER)
"""Alphabet of trait `hash`: so few ids that prompts and outputs meet by chance."""

_MOST_OUTPUT = 80
"""Tokens up to which an output may fill the whole pool."""


class ScheduleScript(NamedTuple):
    """A workload to be played, and who answers while it is played."""

    workload: RecordedWorkload
    worker: Worker
    drafting: Drafting


@record
class _Sizes:
    """Bounds to draw from, both included."""

    block_size: tuple[int, int]
    num_gpu_blocks: tuple[int, int]
    budget: tuple[int, int]
    seqs: tuple[int, int]
    requests: tuple[int, int]
    item: tuple[int, int]
    prompt: tuple[int, int]
    output: tuple[int, int]
    identifiers: int
    arrivals: int


_SMALL = _Sizes((4, 4), (9, 24), (5, 16), (2, 5), (2, 7), (4, 8), (1, 40), (1, 20), 4, 12)
_MEDIUM = _Sizes((1, 8), (12, 60), (6, 40), (2, 6), (4, 12), (2, 16), (1, 90), (1, 30), 6, 16)
_LARGE = _Sizes((4, 16), (40, 300), (16, 192), (4, 16), (10, 32), (4, 48), (1, 300), (1, 60), 12, 40)


def schedule_workload(mode: str, seed: int, release: str) -> ScheduleScript:
    """A random workload.

    Args:
        mode: Of `schedule_modes.MODES`, or another combination of a runner and traits.
        seed: Equal seeds of a mode give equal workloads.
        release: vLLM's, which the settings name.

    Raises:
        InputError: No such mode.
    """
    rng = random.Random(f"schedule/{mode}/{seed}")  # noqa: S311  (reproducible, not secret)
    runner, traits = parse_mode(mode)
    if runner == ANY:
        runner, traits = drawn_mode(rng, traits)
    return _Draw(rng, mode, seed, runner, traits, release).script()


class Worker:
    """Who answers while a workload is played: the model that samples tokens, and clients that ask again.

    Args:
        rng: Drawn from in the order of the questions.
        traits: Of the mode.
        draw: The workload's own.
    """

    def __init__(self, rng: random.Random, traits: frozenset[str], draw: _Draw) -> None:
        self._rng = rng
        self._few = "hash" in traits
        self._stops = "stops" in traits
        self._turns_left = rng.randint(0, 3) if self._few else 0
        self._num_turns = 0
        self._next_token = 2 * PLACEHOLDER
        self._draw = draw

    def sample(self) -> int:
        """A token."""
        if self._stops and self._rng.random() < 0.12:
            return STOP
        if self._few:
            return self._rng.choice(FEW_TOKENS)
        self._next_token += 1
        return self._next_token

    def next_turn(self, ended: RecordedRequest, output: Sequence[int], step: int) -> RecordedRequest | None:
        """What the client of a request that ended in a step asks next, if anything."""
        if not self._turns_left or self._rng.random() < 0.4:
            return None
        self._turns_left -= 1
        turn = self._draw.turn(ended, output, step, self._num_turns)
        self._num_turns += turn is not None
        return turn


class _Draw:
    """A workload in the making."""

    def __init__(
        self, rng: random.Random, mode: str, seed: int, runner: str, traits: frozenset[str], release: str
    ) -> None:
        self._rng = rng
        self._traits = traits
        self._sizes = _LARGE if "large" in traits else _SMALL if rng.random() < 0.7 else _MEDIUM
        self._item_limit = self._between(self._sizes.item)
        self._config = config = with_drafts(rng, traits, self._settings(mode, seed, runner, release))
        num_slots = (config.num_gpu_blocks - 1) * config.block_size - num_spare_slots(config)
        self._most_tokens = min(num_slots, config.max_model_len)
        self._alphabet = FEW_TOKENS if "hash" in traits else tuple(range(1, 10))
        self._items = [self._item(number) for number in range(self._sizes.identifiers)]

    def script(self) -> ScheduleScript:
        """The workload."""
        rng, traits = self._rng, self._traits
        shared = [self._prompt(max(1, self._most_tokens // 3)) for _ in range(2)]
        requests: list[RecordedRequest] = []
        for number in range(self._between(self._sizes.requests)):
            requests.append(self._request(number, shared, requests))
        requests.sort(key=lambda request: request.arrival_step)
        updates: list[RecordedUpdate] = []
        if "sessions" in traits:
            least = least_input(self._config)
            requests, updates = draw_sessions(rng, requests, self._most_tokens, self._input, least)
        workload = RecordedWorkload(
            config=self._config,
            requests=requests,
            aborts=draw_aborts(rng, requests, 0.12),
            late_aborts=draw_aborts(rng, requests, 0.4) if "late" in traits else [],
            ec_store=self._stored() if traits & {"ecc", "ecp", "ecb", "encodeonly", *EC_TRAITS} else None,
            resets=self._resets(),
            updates=updates,
            ec=draw_far_side(rng, traits, self._config, self._items, requests) if traits & set(EC_TRAITS) else None,
            pauses=draw_pauses(rng) if "pause" in traits else [],
            steps=[],
            unfinished=[],
        )
        if "encdec" in traits:
            workload = as_encoder_decoder(workload, rng)
        if "encodeonly" in traits:
            workload = as_encoder_only(workload, rng)
        answers = random.Random(rng.random())  # noqa: S311  (as above)
        return ScheduleScript(workload, Worker(answers, traits, self), Drafting(answers, self._config))

    def turn(self, ended: RecordedRequest, output: Sequence[int], step: int, number: int) -> RecordedRequest | None:
        """A further turn on a request that ended in a step; None when it would not fit."""
        rng = self._rng
        tokens = [*ended.prompt_token_ids, *output, *rng.choices(self._alphabet, k=rng.randint(0, 4))]
        features = list(ended.mm_features)
        if rng.random() < 0.4:
            self._append(tokens, features, rng.choice(self._items))
        room = self._most_tokens - len(tokens)
        if room < 1:
            return None
        return RecordedRequest(
            request_id=f"f{number}",
            arrival_step=step + rng.randint(1, 3),
            prompt_token_ids=tokens,
            max_tokens=rng.randint(1, min(6, room)),
            priority=rng.randint(0, 3),
            arrival_time=float(100 + number),
            mm_features=features,
            cache_salt=ended.cache_salt,
            adapter=ended.adapter,
        )

    def _between(self, bounds: tuple[int, int]) -> int:
        return self._rng.randint(*bounds)

    def _settings(self, mode: str, seed: int, runner: str, release: str) -> RecordedConfig:
        rng, traits, sizes, item = self._rng, self._traits, self._sizes, self._item_limit
        seqs = self._between(sizes.seqs)
        budget = max(seqs, self._between(sizes.budget), item if "chunkoff" in traits else 0)
        blocks = self._between(sizes.num_gpu_blocks)
        if "tight" in traits:
            blocks = max(sizes.num_gpu_blocks[0], blocks // 2)
        block_size = self._between(sizes.block_size)
        model_len = rng.choice([512, 4096])
        if "whole" in traits:
            # A prompt that no step can hold would wait for ever.
            budget = model_len = (blocks - 1) * block_size + rng.randint(0, 8)
        role = {"ecp": "producer", "ecb": "both"}
        fails = "kvfail" in traits
        return RecordedConfig(
            vllm=release,
            mode=mode,
            seed=seed,
            block_size=block_size,
            num_gpu_blocks=blocks,
            max_num_batched_tokens=budget,
            max_num_seqs=min(seqs, budget),
            encoder_cache_size=rng.choice([item, item, item + rng.randint(0, item), 2 * item, 4 * item, item // 2 + 1]),
            max_num_encoder_input_tokens=rng.choice([item, item, item + rng.randint(0, item), 2 * item, item // 2 + 1]),
            max_tokens_per_mm_item=item,
            enable_prefix_caching="noprefix" not in traits,
            policy="priority" if traits & {"prio", "tight", "ties"} else "fcfs",
            async_scheduling="async" in traits,
            model_runner=runner,
            uses_mrope=rng.random() < 0.5,
            disable_chunked_mm_input="chunkoff" in traits,
            scheduler_reserve_full_isl=rng.random() < 0.5,
            long_prefill_token_threshold=rng.randint(2, max(2, budget // 2)) if "long" in traits else 0,
            max_model_len=model_len,
            enable_chunked_prefill="whole" not in traits,
            ec_role=next((role[trait] for trait in role if trait in traits), None),
            kv_role=kv_role(traits),
            kv_load_failure_policy=rng.choice(["recompute", "recompute", "fail"]) if fails else None,
        )

    def _item(self, number: int) -> RecordedItem:
        """An item at no place; its embeddings are at most the largest item's."""
        rng, limit = self._rng, self._item_limit
        has_masks = "masks" in self._traits
        modality = rng.choice(["image", "video", "audio"]) if "mixed" in self._traits else "image"
        longest = limit if "chunkoff" in self._traits else limit * (4 if has_masks else 2 if rng.random() < 0.1 else 1)
        length = rng.randint(max(1, longest // 2) if has_masks else 1, longest)
        mask = None
        if length > limit or rng.random() < (0.9 if has_masks else 0.5):
            mask = self._mask(length, rng.randint(0 if rng.random() < 0.1 else 1, min(length, limit)))
        return RecordedItem(
            modality=modality, identifier=f"{modality}-{number}", offset=0, length=length, is_embed=mask
        )

    def _mask(self, length: int, num_embeds: int) -> list[bool]:
        places = set(self._rng.sample(range(length), num_embeds))
        return [place in places for place in range(length)]

    def _append(self, tokens: list[int], features: list[RecordedItem], item: RecordedItem) -> bool:
        """Put an item behind what there is, if it fits."""
        if len(tokens) + item.length > self._most_tokens - 1:
            return False
        mask = item.is_embed
        if "mismatch" in self._traits and self._rng.random() < 0.2:
            mask = self._mask(item.length, self._rng.randint(1, min(item.length, self._item_limit)))
        features.append(
            RecordedItem(
                modality=item.modality,
                identifier=item.identifier,
                offset=len(tokens),
                length=item.length,
                is_embed=mask,
            )
        )
        tokens += [PLACEHOLDER] * item.length
        return True

    def _prompt(
        self, limit: int, beginning: tuple[Sequence[int], Sequence[RecordedItem]] = ((), ())
    ) -> tuple[list[int], list[RecordedItem]]:
        """A prompt that continues a beginning."""
        rng = self._rng
        tokens, features = list(beginning[0]), list(beginning[1])
        low, high = self._sizes.prompt
        wanted = rng.randint(min(low, limit), min(high, limit))
        while len(tokens) < wanted:
            if rng.random() < 0.35 and self._append(tokens, features, rng.choice(self._items)):
                continue
            tokens += rng.choices(self._alphabet, k=min(rng.randint(1, 6), wanted - len(tokens)))
        return tokens, features

    def _request(
        self,
        number: int,
        shared: Sequence[tuple[list[int], list[RecordedItem]]],
        others: Sequence[RecordedRequest],
    ) -> RecordedRequest:
        rng, traits, most = self._rng, self._traits, self._most_tokens
        tokens, features = self._prompt(most - 1, self._beginning(shared, others))
        room = most - len(tokens)
        low, high = self._sizes.output
        priority = max(0, 5 - number // 2) if "tight" in traits else rng.randint(0, 3)
        has_ties = "ties" in traits and rng.random() < 0.6
        return RecordedRequest(
            request_id=f"r{number}",
            arrival_step=rng.randint(0, self._sizes.arrivals),
            prompt_token_ids=tokens,
            max_tokens=room
            if room <= _MOST_OUTPUT and rng.random() < 0.1
            else rng.randint(min(low, room), min(high, room)),
            priority=1 if has_ties else priority,
            arrival_time=1.0 if has_ties else float(rng.choice([number, number, rng.randint(0, 5)])) + number / 64,
            mm_features=features,
            cache_salt=rng.choice([None, None, "salt-a", "salt-b"]) if "keys" in traits else None,
            adapter=rng.choice([None, None, "adapter-a", "adapter-b"]) if "keys" in traits else None,
            num_remote_tokens=rng.randint(0, len(tokens)) if traits & LOADS and rng.random() < 0.6 else 0,
            kv=draw_transfer(rng, traits),
            stop_token_ids=[STOP] if "stops" in traits and rng.random() < 0.8 else [],
        )

    def _input(self, limit: int) -> tuple[list[int], list[RecordedItem]]:
        """An input of a session: in part an item alone, in part text with items."""
        tokens: list[int] = []
        items: list[RecordedItem] = []
        item = self._rng.choice(self._items)
        if item.length <= limit and self._rng.random() < 0.3 and self._append(tokens, items, item):
            return tokens, items
        return self._prompt(limit)

    def _beginning(
        self,
        shared: Sequence[tuple[list[int], list[RecordedItem]]],
        others: Sequence[RecordedRequest],
    ) -> tuple[Sequence[int], Sequence[RecordedItem]]:
        """What a prompt begins with: a shared text, whole or cut, or all of another prompt."""
        rng = self._rng
        if rng.random() < 0.6:
            tokens, features = rng.choice(shared)
            cut = len(tokens) if rng.random() < 0.7 else rng.randint(0, len(tokens))
            return tokens[:cut], [item for item in features if item.offset + item.length <= cut]
        if others and rng.random() < 0.5:
            other = rng.choice(others)
            return other.prompt_token_ids, other.mm_features
        return (), ()

    def _stored(self) -> list[str]:
        return sorted({item.identifier for item in self._items if self._rng.random() < 0.5})

    def _resets(self) -> list[tuple[int, str]]:
        resets = draw_resets(self._rng, ["prefix", "encoder"]) if "reset" in self._traits else []
        if "resetrunning" in self._traits:
            resets = sorted(
                [*resets, *draw_resets(self._rng, ["running", "running", "running", "prefix", "connector"])]
            )
        return resets
