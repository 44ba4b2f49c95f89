"""Models for pydantic that are imported and built when they are met: descriptions told apart by `kind`, sections that few have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from epdsim.workload.workload import Workload


class Description(Protocol):
    """What a description of a workload is for."""

    def build(self, base_dir: Path, seed: int) -> Workload:
        """The workload; relative paths start at `base_dir`."""
        ...


class Kinds:
    """A union of models for pydantic: `Annotated[Description, Kinds({"fixed": "epdsim.workload.fixed:FixedSpec"})]`.

    A union that names its models has all of them built, which took a quarter of the start of a program that meets one of them.
    Errors are those of a union with `kind` as its discriminator, without the tag in their places.

    Args:
        places: Module and class of each kind.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def models(self) -> Mapping[str, type[BaseModel]]:
        """All of them by kind."""
        return {kind: resolve_name(place) for kind, place in self._places.items()}

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validated)

    def _validated(self, given: object) -> object:
        if not isinstance(given, Mapping):
            raise PydanticKnownError("model_attributes_type")
        if "kind" not in given:
            raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
        place = self._places.get(str(given["kind"]))
        if place is None:
            expected = ", ".join(map(repr, self._places))
            told = {"discriminator": "'kind'", "tag": str(given["kind"]), "expected_tags": expected}
            raise PydanticKnownError("union_tag_invalid", told)
        return resolve_name(place).model_validate(given)


class Section:
    """A model for pydantic that few descriptions have: `Annotated[Any, Section("epdsim.workload.leaving:ClientsSpec")]`.

    Args:
        place: Its module and class.
    """

    def __init__(self, place: str) -> None:
        self._place = place

    def model(self) -> type[BaseModel]:
        """The model."""
        return resolve_name(self._place)

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(lambda given: self.model().model_validate(given))
