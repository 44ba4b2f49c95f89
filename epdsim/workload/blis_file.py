"""BLIS's descriptions of workloads (inference-sim, sim/workload/spec.go; Apache-2.0): YAML, microseconds, what each client sends.

Keys are read as strictly as BLIS reads them. What it has for itself alone (`tenant_id`, `model`, `streaming`, `network`, the reason
ratio) is taken and not used; what would change the requests and is not known here is refused.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from epdsim.core.errors import InputError
from epdsim.core.files import read_whole
from epdsim.workload.blis_laws import BlisArrival, BlisLengths
from epdsim.workload.specs import MAX_HELD, MAX_INT, NonNegativeInt, PositiveInt, SpecModel, as_input_error

MOST_YAML_BYTES = 1 << 24
_MAX_POPULATION = 100_000
_OLD_CLASSES = {"realtime": "critical", "interactive": "standard"}
_HOUR_US = 3_600_000_000
_DRAIN_SEGMENTS = 10
_MAX_EXACT = 10_000_000
_Rate = Annotated[float, Field(gt=0, le=1e9)]
_RateOrNone = Annotated[float, Field(ge=0, le=1e9)]
_Span = Annotated[int, Field(ge=1, le=1_000_000_000)]
DEFAULT_PREFIX_TOKENS = 50
"""Length of a `prefix_group` whose first client states none."""


class _Window(SpecModel):
    start_us: NonNegativeInt
    end_us: PositiveInt


class _Lifecycle(SpecModel):
    windows: tuple[_Window, ...]


class BlisMedia(SpecModel):
    """What a multimodal request consists of."""

    text_distribution: BlisLengths | None = None
    image_distribution: BlisLengths | None = None
    image_count_distribution: BlisLengths | None = None
    audio_distribution: BlisLengths | None = None
    audio_count_distribution: BlisLengths | None = None
    video_distribution: BlisLengths | None = None
    video_count_distribution: BlisLengths | None = None

    def of(self, modality: str) -> tuple[BlisLengths, BlisLengths] | None:
        """How many, and of how many tokens each; None where the file does not state both."""
        count: BlisLengths | None = getattr(self, f"{modality}_count_distribution")
        tokens: BlisLengths | None = getattr(self, f"{modality}_distribution")
        return (count, tokens) if count and tokens else None


class BlisTurns(SpecModel):
    """Conversations."""

    max_rounds: PositiveInt
    think_time_us: NonNegativeInt = 0
    context_growth: Literal["", "none", "fixed", "accumulate"] = ""
    single_session: bool = False


class _Reasoning(SpecModel):
    reason_ratio_distribution: dict[str, Any] | None = None
    multi_turn: BlisTurns | None = None


class _Behaviour(SpecModel):
    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    slo_target_us: NonNegativeInt | None = None
    model: str = ""
    arrival: BlisArrival = BlisArrival(process="poisson")
    input_distribution: BlisLengths
    output_distribution: BlisLengths
    prefix_group: str = ""
    prefix_length: NonNegativeInt = 0
    streaming: bool = False
    network: dict[str, float] | None = None
    multimodal: BlisMedia | None = None
    reasoning: _Reasoning | None = None
    timeout: NonNegativeInt | None = None
    closed_loop: bool | None = None

    @model_validator(mode="after")
    def _check_media(self) -> _Behaviour:
        if self.multimodal and self.turns:
            raise ValueError("multimodal beside reasoning.multi_turn: BLIS gives such a client no media")
        return self

    @property
    def turns(self) -> BlisTurns | None:
        """The client's conversations."""
        return self.reasoning.multi_turn if self.reasoning else None


class _ClientEntry(_Behaviour):
    rate_fraction: _RateOrNone = 0.0
    concurrency: NonNegativeInt = 0
    think_time_us: NonNegativeInt = 0
    lifecycle: _Lifecycle | None = None

    @model_validator(mode="after")
    def _check_rate(self) -> _ClientEntry:
        if bool(self.concurrency) == bool(self.rate_fraction):
            raise ValueError("a client has either a rate_fraction above 0 or a concurrency")
        return self


class _Diurnal(SpecModel):
    peak_hour: Annotated[int, Field(ge=0, le=23)]
    peak_to_trough_ratio: Annotated[float, Field(ge=1)]


class _Spike(SpecModel):
    start_time_us: NonNegativeInt
    duration_us: PositiveInt


class _Drain(SpecModel):
    start_time_us: NonNegativeInt
    ramp_duration_us: PositiveInt


class _Cohort(_Behaviour):
    population: Annotated[int, Field(ge=1, le=_MAX_POPULATION)]
    rate_fraction: _Rate
    diurnal: _Diurnal | None = None
    spike: _Spike | None = None
    drain: _Drain | None = None

    @property
    def windows_us(self) -> tuple[tuple[float, float], ...]:
        windows: list[tuple[float, float]] = []
        if self.diurnal:
            least = 1 / self.diurnal.peak_to_trough_ratio
            for hour in range(24):
                wave = (1 + math.cos(2 * math.pi * (hour - self.diurnal.peak_hour) / 24)) / 2
                windows.append((hour * _HOUR_US, hour * _HOUR_US + _HOUR_US * (least + wave * (1 - least))))
        if self.spike:
            windows.append((self.spike.start_time_us, self.spike.start_time_us + self.spike.duration_us))
        if self.drain:
            start, segment = self.drain.start_time_us, self.drain.ramp_duration_us / _DRAIN_SEGMENTS
            windows += [(0, start)] if start else []
            for index in range(_DRAIN_SEGMENTS):
                begin = start + index * segment
                windows.append((begin, begin + segment * (1 - index / _DRAIN_SEGMENTS)))
        return tuple(windows)


class _Stage(SpecModel):
    rate: _Rate
    duration: _Span


class _SharedPrefix(SpecModel):
    num_unique_system_prompts: PositiveInt
    num_users_per_system_prompt: PositiveInt
    system_prompt_len: NonNegativeInt
    question_len: NonNegativeInt
    output_len: NonNegativeInt
    enable_multi_turn_chat: bool = False


class _InferencePerf(SpecModel):
    stages: Annotated[tuple[_Stage, ...], Field(min_length=1)]
    shared_prefix: _SharedPrefix

    @model_validator(mode="after")
    def _check_size(self) -> _InferencePerf:
        users = self.shared_prefix.num_unique_system_prompts * self.shared_prefix.num_users_per_system_prompt
        if users * len(self.stages) > MAX_HELD:
            raise ValueError(f"has {users * len(self.stages)} users in all stages: {MAX_HELD} can be drawn at once")
        if len(self.stages) == 1 and self.stages[0].rate * self.stages[0].duration > _MAX_EXACT:
            raise ValueError(f"one stage of more than {_MAX_EXACT} requests")
        return self


class BlisClient(NamedTuple):
    """One client, whatever it was made from.

    Attributes:
        name: Unique in the file.
        behaviour: What it sends.
        weight: Its part of the rate; requests per second where the whole file states rates.
        windows_us: When it is there; empty for always.
        exactly: So many arrivals, that end with the span of so many microseconds; None for as many as come.
    """

    name: str
    behaviour: _Behaviour
    weight: float
    windows_us: tuple[tuple[float, float], ...] = ()
    exactly: tuple[int, int] | None = None


class BlisFile(SpecModel):
    """A description of a workload; times in microseconds, rates in requests per second."""

    version: str = "1"
    seed: int = 0
    category: Literal["", "language", "multimodal", "reasoning"] = ""
    aggregate_rate: _RateOrNone = 0.0
    horizon: NonNegativeInt = 0
    num_requests: NonNegativeInt = 0
    clients: tuple[_ClientEntry, ...] = ()
    cohorts: tuple[_Cohort, ...] = ()
    inference_perf: _InferencePerf | None = None

    @field_validator("version", mode="before")
    @classmethod
    def _version(cls, given: Any) -> str:
        if str(given) not in {"1", "2"}:
            raise ValueError("versions 1 and 2 can be read")
        return str(given)

    @model_validator(mode="before")
    @classmethod
    def _no_data(cls, given: Any) -> Any:
        if isinstance(given, dict) and "servegen_data" in given:
            raise ValueError("servegen_data names a ServeGen set: use the workload servegen with its path")
        return given

    @model_validator(mode="after")
    def _check(self) -> BlisFile:
        if bool(self.clients or self.cohorts) == bool(self.inference_perf):
            raise ValueError("give either clients and cohorts or inference_perf")
        closed = [client for client in self.clients if client.concurrency]
        if closed and (len(self.clients) > 1 or self.cohorts or closed[0].think_time_us or closed[0].turns):
            raise ValueError("a client with concurrency is played alone, and without think_time_us or multi_turn")
        if not closed and not self.inference_perf and not self.aggregate_rate:
            raise ValueError("aggregate_rate must be above 0")
        return self

    def slo_class(self, behaviour: _Behaviour) -> str:
        """The service class under its name of version 2."""
        name = behaviour.slo_class
        return _OLD_CLASSES.get(name, name) if self.version == "1" else name

    @property
    def concurrency(self) -> int | None:
        """Requests in flight of the closed loop that the file describes."""
        return self.clients[0].concurrency or None if self.clients else None

    @property
    def end_us(self) -> float:
        """Where the description ends by itself."""
        staged = sum(stage.duration for stage in self.inference_perf.stages) * 1e6 if self.inference_perf else math.inf
        return min(self.horizon or math.inf, staged)

    def expanded(self) -> list[BlisClient]:
        """All clients. A cohort whose members arrive independently (Poisson, no conversations) is one client of their rate."""
        if self.inference_perf:
            return _of_stages(self.inference_perf)
        found = [
            BlisClient(
                entry.id or f"client{index}",
                entry,
                entry.rate_fraction,
                tuple((window.start_us, window.end_us) for window in entry.lifecycle.windows)
                if entry.lifecycle
                else (),
            )
            for index, entry in enumerate(self.clients)
        ]
        for index, cohort in enumerate(self.cohorts):
            name = cohort.id or f"cohort{index}"
            if cohort.arrival.process == "poisson" and not (cohort.turns and cohort.turns.single_session):
                found.append(BlisClient(name, cohort, cohort.rate_fraction, cohort.windows_us))
                continue
            part = cohort.rate_fraction / cohort.population
            found += [
                BlisClient(f"{name}-{member}", cohort, part, cohort.windows_us) for member in range(cohort.population)
            ]
        return found

    def rates_req_s(self, clients: list[BlisClient]) -> list[float]:
        """Each client's rate: `aggregate_rate` is what those give who are there together when most of it is."""
        if self.inference_perf:
            return [client.weight for client in clients]
        moments = {0.0, *(start for client in clients for start, _ in client.windows_us)}
        most = max(sum(one.weight for one in clients if is_there(one.windows_us, moment)) for moment in moments)
        return [self.aggregate_rate * client.weight / most if most else 0.0 for client in clients]

    def prefix_tokens(self, clients: list[BlisClient]) -> dict[str, int]:
        """Length of each group's prefix: that of its first client."""
        lengths: dict[str, int] = {}
        for client in clients:
            if client.behaviour.prefix_group:
                lengths.setdefault(
                    client.behaviour.prefix_group, client.behaviour.prefix_length or DEFAULT_PREFIX_TOKENS
                )
        return lengths


def is_there(windows_us: tuple[tuple[float, float], ...], moment_us: float) -> bool:
    """Whether a client is active then."""
    return not windows_us or any(start <= moment_us < end for start, end in windows_us)


def _of_stages(given: _InferencePerf) -> list[BlisClient]:
    """inference-perf's users: one per system prompt and user and stage, at an equal part of the stage's rate."""
    prefix, clients, start_s = given.shared_prefix, [], 0
    count = prefix.num_unique_system_prompts * prefix.num_users_per_system_prompt
    lengths = {
        name: BlisLengths(type="constant", params={"value": value})
        for name, value in (("input", prefix.question_len), ("output", prefix.output_len))
    }
    for number, stage in enumerate(given.stages):
        total = int(stage.rate * stage.duration)
        window = ((start_s * 1e6, (start_s + stage.duration) * 1e6),) if len(given.stages) > 1 else ()
        for index in range(count):
            prompt, user = divmod(index, prefix.num_users_per_system_prompt)
            own = total // count + (index < total % count)
            is_chat, between_us = prefix.enable_multi_turn_chat and own > 0, int(min(count / stage.rate * 1e6, MAX_INT))
            behaviour = _Behaviour(
                slo_class="standard",
                input_distribution=lengths["input"],
                output_distribution=lengths["output"],
                prefix_group=f"prompt-{prompt}" if prefix.system_prompt_len else "",
                prefix_length=prefix.system_prompt_len,
                reasoning=_Reasoning(
                    multi_turn=BlisTurns(max_rounds=own, think_time_us=between_us, single_session=True)
                )
                if is_chat
                else None,
            )
            exactly = (own, stage.duration * 1_000_000) if len(given.stages) == 1 and not is_chat else None
            if own or not (prefix.enable_multi_turn_chat or exactly):
                name = f"stage-{number}-prompt-{prompt}-user-{user}"
                clients.append(BlisClient(name, behaviour, stage.rate / count, window, exactly))
        start_s += stage.duration
    return clients


def read_blis_file(path: Path) -> BlisFile:
    """The description in a file.

    Raises:
        InputError: The file is no YAML, or none that describes a workload that can be drawn here.
    """
    try:
        given: Any = yaml.safe_load(read_whole(path, MOST_YAML_BYTES))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise InputError(f"BLIS workload {str(path)!r}", f"is no YAML ({error})", "check its indentation") from error
    try:
        return BlisFile.model_validate(given)
    except ValidationError as error:
        raise as_input_error(error, given, f"BLIS workload {path}", BlisFile.model_validate) from error
