"""Hypothesis strategies for workloads of an engine.

Settings are cramped on purpose, since a scheduler that has room decides nothing. Layouts are drawn at the boundaries where rules
change: an item ends at, one before or one after a block, a chunk or a prefix hit. A workload follows a plot, since uniform draws
reach a strip that is regretted once in a thousand runs:

* `any`: requests that begin alike or are all their own, small or as large as the pool;
* `resume`: a prompt with media is computed, asked for again with a long answer, and another request takes the blocks of both;
* `urgent`: later requests are more urgent, so that those that run, and are just being encoded, give way;
* `ties`: all are equally urgent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from epdsim.core.records import record
from epdsim.sut.cases import EngineCase
from epdsim.sut.schedule_records import RecordedConfig, RecordedItem, RecordedRequest, RecordedWorkload
from epdsim.testing.strategies import masks

PLACEHOLDER = 500
"""Token id of media spans."""

PLOTS = ("any", "resume", "urgent", "ties")


@record
class Traits:
    """What workloads may draw; the first of each is the simplest.

    Attributes:
        plots: See the module.
        runners: Model runners.
        async_scheduling: Without and with.
        whole_items: Chunked media input on (False), off (True).
        ec_roles: Sides of the EC connector; None for no connector.
        mismatches: Whether an identifier may stand for items of different sizes.
        aborts: Whether clients may leave.
        strip: How payloads are stripped, as in `SchedulerConfig`; all releases do it at admission.
    """

    plots: tuple[str, ...] = PLOTS
    runners: tuple[str, ...] = ("v1", "v2")
    async_scheduling: tuple[bool, ...] = (False, True)
    whole_items: tuple[bool, ...] = (False, True)
    ec_roles: tuple[str | None, ...] = (None, None, "consumer")
    mismatches: bool = True
    aborts: bool = True
    strip: str = "admission"


ALL_TRAITS = Traits()


def cramped(
    release: str,
    mode: str,
    *,
    runner: str,
    block_size: int,
    usable: int,
    budget: int,
    seqs: int,
    largest: int,
    length: int,
) -> RecordedConfig:
    """Settings of an engine with few blocks and an encoder cache of one item, all else as it is by default.

    Args:
        release: vLLM's.
        mode: Who made the workload.
        runner: The workers' model runner.
        block_size: Tokens of a block.
        usable: Blocks that requests can have.
        budget: Tokens of a step.
        seqs: Requests of a step.
        largest: Embeddings of the largest item.
        length: Tokens of the longest sequence (`max_model_len`).
    """
    return RecordedConfig(
        vllm=release,
        mode=mode,
        seed=0,
        block_size=block_size,
        num_gpu_blocks=usable + 1,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        encoder_cache_size=largest,
        max_num_encoder_input_tokens=largest,
        max_tokens_per_mm_item=largest,
        enable_prefix_caching=True,
        policy="fcfs",
        async_scheduling=False,
        model_runner=runner,
        uses_mrope=False,
        disable_chunked_mm_input=False,
        scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=0,
        max_model_len=length,
    )


@dataclass(slots=True)
class _Prompt:
    """Tokens and items of a prompt in the making."""

    tokens: list[int] = field(default_factory=list[int])
    features: list[RecordedItem] = field(default_factory=list[RecordedItem])

    def copy(self) -> _Prompt:
        return _Prompt([*self.tokens], [*self.features])

    def append(self, item: RecordedItem) -> None:
        self.features.append(_item(item.identifier, item.length, item.is_embed, len(self.tokens)))
        self.tokens += [PLACEHOLDER] * item.length

    def cut(self, limit: int) -> _Prompt:
        self.tokens = (self.tokens or [1])[:limit]
        self.features = [one for one in self.features if one.offset + one.length <= len(self.tokens)]
        return self


def _item(identifier: str, length: int, is_embed: list[bool] | None = None, offset: int = 0) -> RecordedItem:
    modality = identifier.partition("-")[0]
    return RecordedItem(modality=modality, identifier=identifier, offset=offset, length=length, is_embed=is_embed)


@st.composite
def engine_cases(draw: st.DrawFn, traits: Traits = ALL_TRAITS, release: str = "0.32.0") -> EngineCase:
    """A workload on an engine with few blocks and an encoder cache of one or two items.

    Args:
        draw: Hypothesis's.
        traits: What may be drawn.
        release: vLLM's, which the settings name.
    """
    plot = draw(st.sampled_from(traits.plots))
    config = draw(_settings(plot, traits, release))
    largest, slots = config.max_tokens_per_mm_item, (config.num_gpu_blocks - 1) * config.block_size
    pool = [draw(_pool_items(largest, number)) for number in range(draw(st.integers(1, 3)))]
    if plot == "resume":
        requests = draw(_resumed(pool, config, slots))
    else:
        shared = draw(_prompts(pool, config, slots // 2, _Prompt(), mismatches=False))
        requests = [
            draw(_requests(number, pool, config, slots, shared, plot, mismatches=traits.mismatches))
            for number in range(draw(st.integers(1, 6)))
        ]
    requests.sort(key=lambda one: one.arrival_step)
    names = [one.request_id for one in requests]
    leave = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(names)), max_size=1)
    return EngineCase(
        RecordedWorkload(
            config=config,
            requests=requests,
            aborts=draw(leave) if traits.aborts and plot == "any" else [],
            steps=[],
            unfinished=[],
            ec_store=[pool[0].identifier] if config.ec_role is not None else None,
        )
    )


@st.composite
def _settings(draw: st.DrawFn, plot: str, traits: Traits, release: str) -> RecordedConfig:
    size = draw(st.sampled_from([4, 2, 1]))
    usable = draw(st.integers(4, 7) if plot == "urgent" else st.integers(5, 10)) * 4 // size
    largest = draw(st.integers(2, 8))
    whole = draw(st.sampled_from(traits.whole_items))
    seqs = draw(st.integers(2, 4))
    budget = max(draw(st.integers(5, 24)), largest if whole else seqs)
    return RecordedConfig(
        vllm=release,
        mode=f"drawn-{plot}",
        seed=0,
        block_size=size,
        num_gpu_blocks=usable + 1,
        max_num_batched_tokens=budget,
        max_num_seqs=min(seqs, budget),
        encoder_cache_size=largest * draw(st.sampled_from([1, 1, 2])),
        max_num_encoder_input_tokens=largest * draw(st.sampled_from([1, 1, 2])),
        max_tokens_per_mm_item=largest,
        enable_prefix_caching=plot == "resume" or draw(st.sampled_from([True, True, True, False])),
        policy="priority" if plot in ("urgent", "ties") else "fcfs",
        async_scheduling=draw(st.sampled_from(traits.async_scheduling)),
        model_runner=draw(st.sampled_from(traits.runners)),
        uses_mrope=draw(st.booleans()),
        disable_chunked_mm_input=whole,
        scheduler_reserve_full_isl=draw(st.booleans()),
        # An item that must be whole and is longer than the threshold could never be computed.
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, max(largest if whole else 2, budget // 2)])),
        max_model_len=512,
        ec_role=draw(st.sampled_from(traits.ec_roles)),
        strip=traits.strip,
    )


@st.composite
def _pool_items(draw: st.DrawFn, largest: int, number: int) -> RecordedItem:
    length = draw(st.integers(1, largest))
    mask = draw(masks(length)) if draw(st.integers(0, 2)) == 2 else None
    modality = draw(st.sampled_from(["image", "image", "audio"]))
    return _item(f"{modality}-{number}", length, None if mask is None else [bool(bit) for bit in mask])


@st.composite
def _prompts(
    draw: st.DrawFn,
    pool: Sequence[RecordedItem],
    config: RecordedConfig,
    limit: int,
    beginning: _Prompt,
    *,
    mismatches: bool,
) -> _Prompt:
    """A prompt that continues a beginning with text and items, whose ends lie at boundaries."""
    prompt = beginning.copy()
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.integers(0, 2)) == 0:
            prompt.tokens += [draw(st.integers(1, 3))] * draw(st.integers(1, 6))
            continue
        item = draw(st.sampled_from(pool))
        if mismatches and draw(st.integers(0, 9)) == 9:
            item = _item(item.identifier, draw(st.integers(1, config.max_tokens_per_mm_item)))
        unit = draw(st.sampled_from([1, config.block_size, config.max_num_batched_tokens]))
        past = draw(st.sampled_from([0, 0, 1, -1]))
        gap = (past - len(prompt.tokens) - item.length) % unit
        if len(prompt.tokens) + gap + item.length <= limit:
            prompt.tokens += [1] * gap
            prompt.append(item)
    return prompt.cut(limit)


@st.composite
def _requests(
    draw: st.DrawFn,
    number: int,
    pool: Sequence[RecordedItem],
    config: RecordedConfig,
    slots: int,
    shared: _Prompt,
    plot: str,
    *,
    mismatches: bool,
) -> RecordedRequest:
    """A request: it begins like others, or is all its own; small, or as large as the pool."""
    kind = draw(st.sampled_from(["shared", "shared", "own", "pressure"]))
    if kind == "pressure":
        prompt = _Prompt([10 + number] * draw(st.sampled_from([slots // 2, slots - config.block_size, slots - 1])))
        prompt.cut(slots - 1)
    else:
        prompt = draw(
            _prompts(pool, config, slots - 2, shared if kind == "shared" else _Prompt(), mismatches=mismatches)
        )
    room = max(1, slots - len(prompt.tokens))
    length = draw(st.one_of(st.integers(1, 6), st.just(room), st.integers(1, 24)))
    priority = {"urgent": max(0, 5 - number), "ties": 1}.get(plot, 0)
    return _request(
        number, draw(st.integers(0, 10)), prompt, min(room, length), priority, 1.0 if plot == "ties" else None
    )


@st.composite
def _resumed(
    draw: st.DrawFn, pool: Sequence[RecordedItem], config: RecordedConfig, slots: int
) -> list[RecordedRequest]:
    """The plot `resume`."""
    first = draw(_prompts(pool[:1], config, slots // 2, _Prompt(), mismatches=False))
    if not first.features:
        first.append(pool[0])
        first.cut(slots - 2)
    first.tokens += [1] * draw(st.integers(1, config.block_size))
    first.cut(slots - 2)
    again = first.copy()
    again.tokens += [2] * draw(st.integers(0, 3))
    again.cut(slots - 1)
    other = _Prompt()
    for item in pool[1:]:
        if draw(st.booleans()) and item.length < slots - 2 - len(other.tokens):
            other.append(item)
    other.tokens += [3] * draw(st.integers(1, slots))
    other.cut(slots - 2)
    step = draw(st.integers(0, 8))
    rooms = [slots - len(one.tokens) for one in (first, again, other)]
    return [
        _request(0, 0, first, draw(st.integers(1, 2)), 0),
        _request(1, step, again, draw(st.one_of(st.just(rooms[1]), st.integers(1, rooms[1]))), 0),
        _request(2, draw(st.integers(0, step)), other, draw(st.one_of(st.just(rooms[2]), st.integers(1, rooms[2]))), 0),
    ]


def _request(
    number: int, step: int, prompt: _Prompt, max_tokens: int, priority: int, time: float | None = None
) -> RecordedRequest:
    return RecordedRequest(
        request_id=f"r{number}",
        arrival_step=step,
        prompt_token_ids=prompt.tokens,
        max_tokens=max_tokens,
        priority=priority,
        arrival_time=float(number) if time is None else time,
        mm_features=prompt.features,
    )
