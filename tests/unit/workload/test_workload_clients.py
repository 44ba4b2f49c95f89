"""Who leaves, and when."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from epdsim.core.errors import InputError
from epdsim.core.request import WARM_UP
from epdsim.workload import ClientsSpec, Workload, WorkloadRequest, with_clients, write_jsonl


def workload(count, **more):
    return Workload("w", "s", lambda: iter([WorkloadRequest(f"r{i}", float(i), (), 1, **more) for i in range(count)]))


def test_a_share_leaves_and_who_does_depends_on_the_request_and_the_seed_alone():
    spec = ClientsSpec(patience_ms=50, leave_share=0.25, leave_ms={"kind": "uniform", "low": 10, "high": 20})
    many, few = list(with_clients(workload(4000), spec, 3)), list(with_clients(workload(7), spec, 3))
    assert many[:7] == few
    leaving = [one.leaves_ms for one in many if one.leaves_ms]
    assert len(leaving) == pytest.approx(1000, rel=0.1)
    assert (min(leaving), max(leaving)) == (10, 20)
    assert {one.patience_ms for one in many} == {50}
    assert list(with_clients(workload(4000), spec, 4)) != many
    assert with_clients(workload(1), spec, 3).assumptions.startswith("clients leave: patience_ms 50")


def test_warm_ups_stay():
    spec = ClientsSpec(patience_ms=5, leave_share=1, leave_ms=1)
    assert list(with_clients(workload(3, slo_class=WARM_UP), spec, 0)) == list(workload(3, slo_class=WARM_UP))


def test_a_share_without_a_moment_is_refused():
    with pytest.raises(ValidationError, match="say when with leave_ms"):
        ClientsSpec(leave_share=0.5)


def test_a_moment_without_a_share_is_refused_and_one_of_nobody_is_not():
    with pytest.raises(ValidationError, match="say which part of them with leave_share"):
        ClientsSpec(leave_ms=300)
    assert not any(one.leaves_ms for one in with_clients(workload(50), ClientsSpec(leave_ms=300, leave_share=0), 0))


def test_who_leaves_cannot_be_kept_in_a_trace(tmp_path):
    for spec in (ClientsSpec(patience_ms=5), ClientsSpec(leave_share=1, leave_ms=1)):
        with pytest.raises(InputError, match="clients that leave cannot be kept in a trace"):
            write_jsonl(with_clients(workload(3), spec, 0), tmp_path / "trace.jsonl")
