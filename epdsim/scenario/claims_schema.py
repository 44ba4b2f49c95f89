"""Sections of a scenario file for what is published, and what must hold."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from typing import Annotated, Literal

from pydantic import Field

from epdsim.scenario.strict import AxisValue, Strict


class PublishedSpec(Strict):
    """One published figure.

    Attributes:
        at: Axis values that it was taken at, all that the run has.
        metric: Which figure.
        value: What was published.
        given: Whether it went into the costs as it stands, so that meeting it proves nothing.
    """

    at: dict[str, AxisValue]
    metric: str
    value: Annotated[float, Field(gt=0)]
    given: bool = False


class DeviationClaim(Strict):
    """Simulated figures lie within some percent of the published ones, at the points named.

    Attributes:
        metric: Which figure.
        where: Which published points: axis and the values that take part, null for an axis that the point does not have.
        within_percent: How far off the worst of them may be.
    """

    kind: Literal["deviation"]
    metric: str
    where: dict[str, list[AxisValue]]
    within_percent: Annotated[float, Field(gt=0)]


class GapClaim(Strict):
    """The difference of a metric between two points lies near a published difference.

    Attributes:
        metric: Which figure.
        high: Axis values of the point from which is subtracted.
        low: Those of the point that is subtracted.
        published: The published difference.
        within: How far off the simulated difference may be, in the metric's unit.
    """

    kind: Literal["gap"]
    metric: str
    high: dict[str, AxisValue]
    low: dict[str, AxisValue]
    published: float
    within: Annotated[float, Field(gt=0)]


class EqualClaim(Strict):
    """Metrics are equal to the last bit between points that differ in one axis only.

    Attributes:
        metrics: Which figures.
        where: Which runs: axis and the values that take part.
        across: The axis in which they differ.
    """

    kind: Literal["equal"]
    metrics: list[str] = Field(min_length=1)
    where: dict[str, list[AxisValue]]
    across: str


Claim = DeviationClaim | GapClaim | EqualClaim
