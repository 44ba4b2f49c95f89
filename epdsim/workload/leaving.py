"""Clients that do not wait for the end: they leave when there is no first token in time, or at a moment of their own."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, model_validator

from epdsim.core.request import WARM_UP
from epdsim.workload.distributions import Constant, LengthDistribution
from epdsim.workload.request import WorkloadRequest
from epdsim.workload.specs import SpecModel
from epdsim.workload.streams import KeyedStreams
from epdsim.workload.workload import Workload


class ClientsSpec(SpecModel):
    """What clients put up with. A client that leaves has its request taken out: what was done for it is wasted.

    Attributes:
        patience_ms: A client leaves that has no first token so long after it asked; null for never.
        leave_share: Probability that a client leaves at a moment of its own, whatever it has by then.
        leave_ms: That moment, from when it asked, in whole milliseconds: a number or a distribution.
    """

    patience_ms: PositiveFloat | None = None
    leave_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    leave_ms: LengthDistribution = Constant(value=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.leave_share and self.leave_ms == Constant(value=0):
            raise ValueError("leave_share says that clients leave: say when with leave_ms")
        if "leave_share" not in self.model_fields_set and self.leave_ms != Constant(value=0):
            raise ValueError("leave_ms says when clients leave: say which part of them with leave_share")
        return self


def with_clients(workload: Workload, spec: ClientsSpec, seed: int) -> Workload:
    """A workload whose clients leave as described; who leaves when depends on its request's id and the seed alone.

    Args:
        workload: What they ask for; its warm-ups stay.
        spec: When they leave.
        seed: Of the run.
    """
    told = f"{workload.assumptions}; clients leave: {spec.summary()}".removeprefix("; ")
    make_requests = partial(_leaving, workload, spec, seed)
    return replace(workload, make_requests=make_requests, assumptions=told, most_text_tokens=None)


def _leaving(requests: Iterable[WorkloadRequest], spec: ClientsSpec, seed: int) -> Iterator[WorkloadRequest]:
    streams, patience_ms = KeyedStreams(seed, "clients"), spec.patience_ms or 0.0
    for request in requests:
        if request.slo_class == WARM_UP:
            yield request
            continue
        leaves_ms = 0.0
        if spec.leave_share and streams.coin(request.request_id) < spec.leave_share:
            (drawn,) = spec.leave_ms.draw(streams.generator(request.request_id), 1).tolist()
            leaves_ms = float(max(drawn, 1))
        yield replace(request, patience_ms=patience_ms, leaves_ms=leaves_ms)
