"""Codec speed beside a plain memory copy of the same bytes: `pytest -m bench tests/bench/test_codec_bench.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from epdsim.core.items import BatchedKind, Field, FlatKind, MediaItem, TensorHandle
from epdsim.wire import decode_blob, decode_item, encode_blob, encode_item, item_size

pytestmark = pytest.mark.bench

PATCHES = 5_120
"""A picture of 1,280 tokens on Qwen3-VL: 15.7 MB of bfloat16."""

PIXELS = bytes(range(256)) * (PATCHES * 1536 * 2 // 256)
PICTURE = MediaItem(
    {
        "pixel_values": Field(TensorHandle("bfloat16", (PATCHES, 1536), PIXELS), FlatKind((((0, PATCHES, None),),))),
        "image_grid_thw": Field(TensorHandle("int64", (3,), bytes(24)), BatchedKind(keep_on_cpu=True)),
    }
)
MESSAGE, BLOB = encode_item(PICTURE), encode_blob(PICTURE)

RUNS: dict[str, Callable[[], Any]] = {
    "plain copy": lambda: bytearray(MESSAGE),
    "encode to msgpack": lambda: encode_item(PICTURE),
    "decode from msgpack": lambda: decode_item(MESSAGE),
    "encode to base64": lambda: encode_blob(PICTURE),
    "decode from base64": lambda: decode_blob(BLOB),
    "size only": lambda: item_size(PICTURE),
}


@pytest.mark.parametrize("what", RUNS)
def test_codec(benchmark: Any, what: str):
    benchmark.group = f"{len(MESSAGE) / 1e6:.1f} MB picture"
    result = benchmark(RUNS[what])
    benchmark.extra_info["megabytes_per_s"] = round(len(MESSAGE) / 1e6 / benchmark.stats.stats.min)
    if isinstance(result, (bytes, bytearray)):
        assert result == MESSAGE
    elif isinstance(result, MediaItem):
        assert encode_item(result) == MESSAGE
    else:
        assert result in (BLOB, len(MESSAGE))


def best_s(run: Callable[[], Any], rounds: int = 15) -> float:
    """The quickest of some rounds, in seconds."""
    taken: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return min(taken)


def test_messages_are_made_at_the_speed_of_copying_and_read_without_it(
    pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
):
    """A second copy of the tensor anywhere would halve the first figure; reading must not depend on the size at all."""
    copy_s = best_s(RUNS["plain copy"])
    rates = {what: len(MESSAGE) / 1e6 / best_s(run) for what, run in RUNS.items() if what != "size only"}
    with capsys.disabled():
        terminal = pytestconfig.get_terminal_writer()
        terminal.line()
        for what, rate in rates.items():
            terminal.line(f"{what:22} {rate:12,.0f} MB/s  {rate * copy_s / (len(MESSAGE) / 1e6):8.2f} of a copy")
    assert rates["encode to msgpack"] > 0.4 * rates["plain copy"]
    assert rates["decode from msgpack"] > 4 * rates["plain copy"]
