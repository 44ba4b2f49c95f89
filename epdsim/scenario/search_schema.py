"""Sections of a scenario file for what is searched: constants that fit, fleets that serve, a rate that is met."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from epdsim.scenario.strict import AxisValue, Count, Instances, Strict

MOST_RATES = 100_000
"""Of a search for goodput."""


class FitParameter(Strict):
    """One constant to choose.

    Attributes:
        start: Where the search starts; the constant stays positive.
        sets: Dotted keys that take the constant times a factor: constants that the model ties to each other.
    """

    start: Annotated[float, Field(gt=0)]
    sets: dict[str, float] = Field(min_length=1)


class FitSpec(Strict):
    """Constants to choose so that some published points are met; every other point is a prediction.

    Attributes:
        metric: What is fitted.
        parameters: By name.
        where: Which published points are used: axis and the values that take part.
    """

    metric: str
    parameters: dict[str, FitParameter] = Field(min_length=1)
    where: dict[str, list[AxisValue]]


class PoolBounds(Strict):
    """How many instances a pool may have.

    Attributes:
        low: At least.
        high: At most.
        gpus: Of each instance: what it costs; null for the `tp` of the pool's engines, for `costs.encode.tp` of encode instances,
            and for 1 of front ends.
    """

    low: Count = 1
    high: Instances
    gpus: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low}, more than high, which is {self.high}")
        return self


class PlanSpec(Strict):
    """What `epdsim plan` may change to meet the service level.

    Attributes:
        pools: Dotted keys of numbers of instances, with their bounds.
        stretch_s: Traffic of at least four times this long is searched on the busiest stretch of this length first; null searches
            on all of it.
        check: Settings under which the answer is run once more with `--check`: a longer stretch of the traffic, say.
        what_if: Settings by name under which the answer is run with `--curves`: what is uncertain, another value of a cost, say.
    """

    pools: dict[str, PoolBounds] = Field(min_length=1)
    stretch_s: Annotated[float, Field(gt=0)] | None = 300.0
    check: dict[str, Any] = Field({})
    what_if: dict[str, dict[str, Any]] = Field({})


class GoodputSpec(Strict):
    """A search for the highest offered rate that meets the service level, at points whose axes leave the rate open.

    Attributes:
        key: Dotted key of the rate.
        low: Lowest rate to try, in the key's unit.
        high: Highest; a goodput of this much may be more.
        step: Between rates that are told apart.
    """

    key: str
    low: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]
    step: Annotated[float, Field(gt=0)] = 1.0

    @property
    def rates(self) -> list[float]:
        """From `low` by `step` to `high`."""
        # A hair more, so that steps of a tenth reach the end.
        return [self.low + index * self.step for index in range(int((self.high - self.low) / self.step + 1e-9) + 1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, more than high, which is {self.high:g}")
        if (self.high - self.low) / self.step > MOST_RATES:
            raise ValueError(f"more than {MOST_RATES:,} rates lie between low and high: raise step")
        return self
