"""Real worker processes: they get what was sent, and nothing of them is left however things end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from epdsim.core.errors import InputError
from epdsim.payload import RankLostError, RingOptions, TpGroup, message_size, tensor_digests, wire_bytes

pytestmark = pytest.mark.xdist_group("shared-memory")

CHUNK = 64 << 10
OPTIONS = RingOptions(chunk_bytes=CHUNK, timeout_s=30)
SEGMENTS = Path("/dev/shm")


def segments(pid):
    """Names of what a process has in shared memory; other processes of the machine have theirs."""
    return {one.name for one in SEGMENTS.glob(f"epdsim-{pid}-*")} if SEGMENTS.is_dir() else set()


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def wait_until(claim, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not claim() and time.monotonic() < deadline:
        time.sleep(0.02)
    return claim()


@pytest.fixture(scope="module", params=[False, True], ids=["out of band", "in band"])
def group(request):
    with TpGroup(2, OPTIONS, in_band=request.param) as started:
        yield started


def test_every_rank_holds_what_was_sent_and_the_wire_carries_what_the_handles_say(group, plans):
    for sizes in ([], [4096], [CHUNK], [20_000, 44, 16_000], [CHUNK // 2, CHUNK], [8], [3 << 20, 4]):
        handles = [plans.handle(size, seed) for seed, size in enumerate(sizes)]
        plan = plans.plan([plans.feature(i, one) for i, one in enumerate(handles)])
        result = group.broadcast(plan)
        size = message_size(plan)
        assert result.size == size
        assert result.wire == wire_bytes(size.total_bytes, CHUNK)
        assert result.received_bytes == (size.total_bytes,) * 2
        assert result.digests == (tensor_digests(handles),) * 2
        times = [result.serialise_ms, result.copy_ms, *result.deliver_ms]
        assert min(times) >= 0
        assert result.total_ms == result.serialise_ms + result.copy_ms + max(result.deliver_ms)


def test_a_changed_byte_changes_the_digest_on_every_rank(group, plans):
    handle = plans.handle(4096)
    plan = plans.plan([plans.feature(0, handle)])
    before = group.broadcast(plan)
    handle.source[7] += 1
    after = group.broadcast(plan)
    assert before.digests[0] == before.digests[1] != after.digests[0] == after.digests[1]


def test_digests_are_left_out_when_nobody_asks(group, plans):
    result = group.broadcast(plans.plan([plans.feature(0, plans.handle(64))]), digest=False)
    assert (result.digests, result.digest_ms) == (((), ()), (0.0, 0.0))


def test_a_plan_without_data_leaves_the_group_usable(group, plans):
    unreal = plans.plan([plans.feature(0, plans.handle(64).__class__("float32", (16,)))])
    with pytest.raises(TypeError):
        group.broadcast(unreal)
    assert group.broadcast(plans.plan([])).size.num_unique_tensors == 0


def test_a_killed_rank_is_told_and_everything_is_freed(plans):
    before = segments(os.getpid())
    plan = plans.plan([plans.feature(0, plans.handle(4 * CHUNK))])
    with TpGroup(2, OPTIONS) as group:
        assert segments(os.getpid()) == before, "once all have joined, the segment has no name to leave behind"
        pids = [process.pid for process in group._processes]
        os.kill(pids[1], signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(RankLostError, match=r"rank 1: (its channel broke|its process has ended with exit code -9)"):
            group.broadcast(plan)
        assert time.monotonic() - started < OPTIONS.timeout_s / 2, "told by the broken channel, not by a time limit"
    assert not any(map(is_running, pids))
    assert segments(os.getpid()) == before


def test_a_rank_that_stops_answering_is_lost_in_time_and_killed_at_the_end(plans):
    plan = plans.plan([plans.feature(0, plans.handle(64))])
    with TpGroup(1, RingOptions(chunk_bytes=CHUNK, timeout_s=0.5)) as group:
        pid = group._processes[0].pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RankLostError, match=r"rank 0: did not answer within 0\.5 s"):
            group.broadcast(plan)
    assert not is_running(pid)


def test_a_group_of_nobody_is_refused():
    with pytest.raises(InputError, match="at least one rank"):
        TpGroup(0)


SCRIPT = """
    import sys
    import time

    import torch

    from epdsim.core.items import BatchedKind, Field, MediaFeature, MediaItem, PlaceholderRange, TensorHandle
    from epdsim.core.plan import NewRequestData, StepPlan
    from epdsim.payload import RingOptions, TpGroup

    if __name__ == "__main__":
        handle = TensorHandle("float32", (1 << 20,), torch.zeros(1 << 20))
        item = MediaItem({"x": Field(handle, BatchedKind())})
        new = NewRequestData("a", 0, (), (MediaFeature("image", "h", PlaceholderRange(0, 1), item),), 1)
        with TpGroup(1, RingOptions(chunk_bytes=65536)) as group:
            print(group._processes[0].pid, flush=True)
            while True:
                group.broadcast(StepPlan(0, {"a": 1}, new=(new,)))
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_when_the_sender_is_interrupted_or_killed_no_rank_and_no_segment_is_left(tmp_path, ending):
    script = tmp_path / "sender.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as sender:
        rank = int(sender.stdout.readline())
        time.sleep(0.2)
        num_sent, told = 0, None
        try:
            # Python ignores an interrupt that meets it in a finaliser: whoever sits at the terminal presses the keys again.
            while told is None and num_sent < 8:
                num_sent += 1
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if ending is signal.SIGINT:
                        os.killpg(sender.pid, ending)  # as a terminal does: to the sender and to its ranks
                    else:
                        sender.kill()
                    _, told = sender.communicate(timeout=30)
        finally:
            if told is None:
                os.killpg(sender.pid, signal.SIGKILL)
    assert told is not None, f"it lived through {num_sent} signals"
    assert wait_until(lambda: not is_running(rank))
    assert wait_until(lambda: not segments(sender.pid))
    assert "resource_tracker" not in told
    assert "leaked" not in told
    assert told.count("Traceback") == (num_sent if ending is signal.SIGINT else 0), told
    if ending is signal.SIGINT:
        assert told.rstrip().endswith("KeyboardInterrupt")
