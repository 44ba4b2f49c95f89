"""What vLLM 0.32.0 put on the wire and accepted from it, replayed.

`wire-vllm-0.32.0/` was made by running the release on random inputs (seed in its META.json); its messages are kept by their
meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epdsim.sut.wire_recording import replay_wire

OWN = Path(__file__).parent / "wire-vllm-0.32.0"


def test_our_recording_is_equal_in_everything():
    report = replay_wire(OWN)
    assert report.is_equal, "\n".join(report.first_difference)
    assert report.release == "vllm 0.32.0"
    totals = {row.what: row.total for row in report.counts}
    assert totals["items byte-equal both ways"] == 80
    assert totals["extracts rendered by the ideal dialect"] == totals["extracts equal in the vllm-0.32 dialect"] == 50
    assert totals["request verdicts equal in the vllm-0.32 dialect"] == 400
    assert totals["error locations equal in the vllm-0.32 dialect"] > 200


def test_the_reference_recording_is_equal_in_everything(shared_path: Callable[[str], Path]):
    report = replay_wire(shared_path("golden/wire/vllm-0.32.0"))
    assert report.is_equal, "\n".join(report.first_difference)
    assert [row.total for row in report.counts] == [200, 200, 300, 300, 1500, 575]
