"""The far side of an EC connector, as a played workload has it."""

from __future__ import annotations

import msgspec

from epdsim.core.ec.serve import Answer
from epdsim.sut.schedule_ec import FarSide
from epdsim.sut.schedule_records import RecordedEc, RecordedFar
from epdsim.sut.schedule_workloads import schedule_workload


def test_answers_are_told_in_the_order_in_which_they_came() -> None:
    """An engine in which nobody waits looks later, at several at once."""
    serving = [
        RecordedFar(producer="p0", identifier=name, answer_steps=steps) for name, steps in (("slow", 4), ("quick", 1))
    ]
    workload = schedule_workload("v1", seed=0, release="0.32.0")
    far = FarSide(msgspec.structs.replace(workload.workload, ec=RecordedEc(kind="pull", far=serving)))
    far.begin(0)
    for name in ("slow", "quick"):
        far.ask("p0", name)
    far.begin(5)
    assert far.answers() == [("p0", "quick", Answer.GRANTED), ("p0", "slow", Answer.GRANTED)]
    assert far.answers() == []
