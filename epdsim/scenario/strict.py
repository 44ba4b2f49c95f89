"""What all sections of a scenario file have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Instances = Annotated[int, Field(ge=1, le=10_000)]
Ranks = Annotated[int, Field(ge=1, le=10_000)]
Size = Annotated[float, Field(ge=0)]
AxisValue = int | float | bool | str | None


class Strict(BaseModel):
    """Unknown keys, NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, defer_build=True)
