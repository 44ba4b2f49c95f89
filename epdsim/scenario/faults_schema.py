"""The section `faults` of a scenario file."""

# Annotations are not left as texts here: pydantic would evaluate each, which takes as long again as making the models.

from itertools import pairwise
from math import inf
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from epdsim.scenario.strict import Size, Strict


class LossSpec(Strict):
    """An instance ends with all that it holds: requests, KV cache, embeddings; when it comes back, it begins anew.

    Attributes:
        instance: Its name: `engine-0` where one pool does everything, else `encode-0`, `prefill-0`, `decode-0`.
        at_ms: When.
        back_ms: When it comes back; null for never.
    """

    instance: str
    at_ms: Size
    back_ms: Size | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.back_ms is not None and self.back_ms <= self.at_ms:
            raise ValueError(f"back_ms is {self.back_ms:g}, not after at_ms, which is {self.at_ms:g}")
        return self


class SpanSpec(Strict):
    """A span of time.

    Attributes:
        from_ms: When it begins.
        until_ms: When it ends.
    """

    from_ms: Size
    until_ms: Size

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.until_ms <= self.from_ms:
            raise ValueError(f"until_ms is {self.until_ms:g}, not after from_ms, which is {self.from_ms:g}")
        return self


class SlowEncoderSpec(SpanSpec):
    """An encode instance that is slow for a time.

    Attributes:
        instance: Its name, for example `encode-0`.
        factor: How many times as long its runs take meanwhile.
    """

    instance: str
    factor: Annotated[float, Field(ge=1)]


class SlowLinkSpec(SpanSpec):
    """Links of one kind that are slow, or cut, for a time.

    Attributes:
        link: Which kind.
        factor: How many times as long transfers take meanwhile; null for cut: what is on its way waits meanwhile.
    """

    link: Literal["body", "ec", "kv"]
    factor: Annotated[float, Field(ge=1)] | None = None


class FaultsSpec(Strict):
    """What goes wrong in the runs, and what is done about it.

    Attributes:
        losses: Instances that end. Calls to them fail and are sent again to others of the pool; tokens that a client has become
            part of the prompt, and all of it is computed again.
        slow_encoders: Encode instances that are slow for a time.
        links: Links that are slow or cut for a time.
        ec_evictions_ms: When the EC store loses every embedding that nobody has a lease on.
        max_retries: How often a call that was lost with its instance is sent again before its request fails.
        detect_ms: From a loss until the orchestrator knows of it: until then it sends there, and calls do not return.
        give_up_ms: How long a request waits where all instances of a pool are lost, before it fails.
    """

    losses: list[LossSpec] = Field([])
    slow_encoders: list[SlowEncoderSpec] = Field([])
    links: list[SlowLinkSpec] = Field([])
    ec_evictions_ms: list[Size] = Field([])
    max_retries: Annotated[int, Field(ge=0)] = 2
    detect_ms: Size = 0.0
    give_up_ms: Size = 60_000.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        told = [(one.instance, one.at_ms, inf if one.back_ms is None else one.back_ms) for one in self.losses]
        told += [(f"{one.instance} (slow)", one.from_ms, one.until_ms) for one in self.slow_encoders]
        told += [(f"{one.link} link", one.from_ms, one.until_ms) for one in self.links]
        for (name, _, until_ms), (other, from_ms, _) in pairwise(sorted(told)):
            if name == other and from_ms < until_ms:
                raise ValueError(f"two faults of {name} overlap at {from_ms:g} ms: let one end before the next")
        return self
