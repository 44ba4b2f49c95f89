"""The form of a schedule recording: what happened to an engine, and what its scheduler decided in each step.

A recording is NDJSON, plain or gzipped, one workload a line: settings, requests with their arrival steps, aborts, and the steps.
It is read and written one line at a time. Equal workloads give equal bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from epdsim.core.errors import InputError
from epdsim.core.files import whole_file


class RecordedConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a recorded workload; all releases strip at admission, and are recorded behind their front end."""

    vllm: str
    mode: str
    seed: int
    block_size: int
    num_gpu_blocks: int
    max_num_batched_tokens: int
    max_num_seqs: int
    encoder_cache_size: int
    max_num_encoder_input_tokens: int
    max_tokens_per_mm_item: int
    enable_prefix_caching: bool
    policy: str
    async_scheduling: bool
    model_runner: str
    uses_mrope: bool
    disable_chunked_mm_input: bool
    scheduler_reserve_full_isl: bool
    long_prefill_token_threshold: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    ec_role: str | None = None
    is_encoder_decoder: bool = False
    mm_encoder_only: bool = False
    speculative_method: str = "none"
    num_speculative_tokens: int = 0
    parallel_drafting: bool = False
    disable_eagle_block_drop: bool = False
    mamba_block_aligned_split: bool = False
    kv_role: str | None = None
    kv_load_failure_policy: str | None = None
    strip: str = "admission"
    has_door: bool = False


class RecordedTransfer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the KV connector does about a recorded request.

    Attributes:
        load_steps: Steps that a load takes between steps; 0 when it is within the step that admits the request.
        num_unready: Look-ups that are first answered with "not yet".
        num_loads: Admissions at which the tokens can be loaded.
        failed: Blocks, counted from the first loaded one, that the first load leaves invalid.
        steps_early: Steps before the end of the load at which that is reported.
        fails_whole: Reported is the request and not the blocks.
        send_steps: Steps for which its blocks are held after it ended; 0 for none.
    """

    load_steps: int = 0
    num_unready: int = 0
    num_loads: int = 1
    failed: list[int] = []
    steps_early: int = 0
    fails_whole: bool = False
    send_steps: int = 0


class RecordedItem(msgspec.Struct, frozen=True, kw_only=True):
    """One media item of a recorded request."""

    modality: str
    identifier: str
    offset: int
    length: int
    is_embed: list[bool] | None


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a recorded workload; `num_remote_tokens` are handed over by another engine, in the way that `kv` says.

    One that is `resumable` is a streaming session.
    """

    request_id: str
    arrival_step: int
    prompt_token_ids: list[int]
    max_tokens: int
    priority: int
    arrival_time: float
    mm_features: list[RecordedItem]
    cache_salt: str | None = None
    adapter: str | None = None
    num_remote_tokens: int = 0
    stop_token_ids: list[int] = []
    resumable: bool = False
    kv: RecordedTransfer | None = None


class RecordedUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The next input of a streaming session, or, without tokens, word that there is none; offsets count from its first token."""

    request_id: str
    arrival_step: int
    prompt_token_ids: list[int] = []
    max_tokens: int = 0
    arrival_time: float = 0.0
    mm_features: list[RecordedItem] = []
    stop_token_ids: list[int] = []


class RecordedFar(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a producer serves one item: steps at which it is complete and gone, and what becomes of an ask and of a read.

    `answer_steps` and `read_steps` are None where the answer never comes and the read never ends.
    """

    producer: str
    identifier: str
    ready: int = 0
    gone: int | None = None
    is_compatible: bool = True
    answer_steps: int | None = 1
    read_steps: int | None = 1
    is_good: bool = True


class RecordedAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A consumer asks the engine for an item in a step; it has read it `read_steps` after it was granted, or never (None)."""

    step: int
    consumer: str
    identifier: str
    read_steps: int | None = 1


class RecordedEc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is beyond the engine's EC connector.

    A shared store has `events` alone: `(step, "stored" or "gone", identifier)`, before the schedule call. A connector that pulls
    has the rest: room for `capacity` embeddings, bounds in steps (wait, answer, read, quarantine, lease), updates after which
    workers report copies (`report_steps`), offers by request and identifier (producer or None, embeddings), the items of a request
    that come as metadata alone, producers, consumers that ask, and `(step, producer)` of those that are lost.
    """

    kind: str = "shared"
    events: list[tuple[int, str, str]] = []
    capacity: int = 0
    bounds: tuple[int, int, int, int, int] = (60, 30, 20, 60, 30)
    report_steps: int = 0
    offers: dict[str, dict[str, tuple[str | None, int]]] = {}
    metadata_only: dict[str, list[int]] = {}
    far: list[RecordedFar] = []
    asks: list[RecordedAsk] = []
    lost: list[tuple[int, str]] = []


class RecordedWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a recording; steps stay as they were written, since they are only compared.

    `resets` names what is reset before the schedule call of a step: `"prefix"`, `"encoder"`, `"running"` (the prefix cache with all
    that runs) or `"connector"` (the prefix cache with that of the KV connector). `pauses` names what is held back from a step on:
    `"new"` requests, `"all"` or `"nothing"`. `died` says that the scheduler died of an assertion of its own in the step
    after the last.
    """

    config: RecordedConfig
    requests: list[RecordedRequest]
    aborts: list[tuple[int, str]]
    steps: list[dict[str, Any]]
    unfinished: list[str]
    late_aborts: list[tuple[int, str]] = []
    ec_store: list[str] | None = None
    resets: list[tuple[int, str]] = []
    updates: list[RecordedUpdate] = []
    pauses: list[tuple[int, str]] = []
    ec: RecordedEc | None = None
    died: bool = False


def read_schedules(path: Path) -> Iterator[tuple[int, RecordedWorkload]]:
    """Line numbers and workloads of a recording, one at a time.

    Raises:
        InputError: The file cannot be read, or a line of it is not a recorded workload.
    """
    decoder = msgspec.json.Decoder(RecordedWorkload)
    line = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            for line, text in enumerate(lines, 1):
                yield line, decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path}, line {line}", f"it is not a recorded workload ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}, line {line + 1}", f"it cannot be read ({error})", "fetch the file again") from error


def write_schedules(path: Path, workloads: Iterable[RecordedWorkload]) -> tuple[int, int]:
    """Write a recording, gzipped when the name ends in `.gz`; the file is there only when it is whole.

    Returns:
        Workloads and steps written.

    Raises:
        InputError: It cannot be written.
    """
    encoder = msgspec.json.Encoder()
    num_workloads = num_steps = 0
    with whole_file(path, str(path)) as out:
        for workload in workloads:
            out.write(encoder.encode(workload) + b"\n")
            num_workloads += 1
            num_steps += len(workload.steps)
    return num_workloads, num_steps
