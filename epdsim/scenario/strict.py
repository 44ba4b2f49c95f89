"""What all sections of a scenario file have in common."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from epdsim.core.errors import InputError

Count = Annotated[int, Field(ge=1)]
Instances = Annotated[int, Field(ge=1, le=10_000)]
Ranks = Annotated[int, Field(ge=1, le=10_000)]
MOST = 1e12
"""Of sizes and durations, for example milliseconds of thirty years: what is larger is a mistake, and no clock adds it up."""
Size = Annotated[float, Field(ge=0, le=MOST)]
AxisValue = int | float | bool | str | None


class Strict(BaseModel):
    """Unknown keys, NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True, defer_build=True)


class RecordSpec(Strict):
    """A plain dataclass as a section of the file; `build` makes the dataclass."""

    record: ClassVar[type[Any]]

    def build(self, **more: object) -> Any:
        """The dataclass, with the values that the file does not choose."""
        return self.record(**self.model_dump(), **more)

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.build()
        except InputError as error:
            raise ValueError(str(error)) from error
        return self


def record_spec(record: type[Any], without: frozenset[str] = frozenset()) -> type[RecordSpec]:
    """A section with the fields and defaults of a dataclass, save those that other parts of the file decide."""
    hints = get_type_hints(record)
    shape: dict[str, Any] = {
        one.name: (hints[one.name], ... if one.default is MISSING else one.default)
        for one in fields(record)
        if one.name not in without
    }
    made = create_model(f"{record.__name__}Spec", __base__=RecordSpec, __doc__=record.__doc__, **shape)
    made.record = record
    return made
