"""What all models of the wire share: the dialect that judges, errors with their place, unknown fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo

from epdsim.core.errors import InputError
from epdsim.core.records import record
from epdsim.core.rules import IDEAL, Dialect

M = TypeVar("M", bound=BaseModel)


class WireModel(BaseModel):
    """A body or a part of one; unknown fields are ignored, as the release does. `unknown_fields` finds them."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    def body(self) -> dict[str, Any]:
        """The JSON object, without fields that are null; null slots and nulls inside free-form parameters stay."""
        return self.model_dump(mode="json", exclude_none=True)


class OpenModel(WireModel):
    """A part that carries fields which nobody listed, for example parameters of a connector: they are kept."""

    model_config = ConfigDict(extra="allow")


@record
class Fault:
    """One reason to refuse a body.

    Attributes:
        loc: Keys and indices that lead to it; empty for the body as a whole.
        message: What is wrong.
    """

    loc: tuple[str | int, ...]
    message: str

    @property
    def place(self) -> str:
        """The location as a path, for example `features.mm_placeholders.audio[0].length`."""
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.loc)
        return path.removeprefix(".") or "body"


def dialect_of(info: ValidationInfo) -> Dialect:
    """The dialect under which a validator runs."""
    context = cast("Mapping[str, Any] | None", info.context)
    return context["dialect"] if context else IDEAL


def unread(body: Any, field: str) -> Any:
    """A body without a field that the dialect does not know: whatever stands there is no fault."""
    if isinstance(body, dict) and field in body:
        return {key: value for key, value in cast("dict[str, Any]", body).items() if key != field}
    return cast("Any", body)


def find_faults(model: type[M], body: object, dialect: Dialect = IDEAL) -> tuple[Fault, ...]:
    """All reasons to refuse a body, in the order of its fields; none means accepted."""
    try:
        model.model_validate(body, context={"dialect": dialect})
    except ValidationError as error:
        return _faults(error)
    return ()


def parse(model: type[M], body: object, dialect: Dialect = IDEAL) -> M:
    """The model of a body.

    Args:
        model: For example `GenerateRequest`.
        body: Decoded JSON.
        dialect: Who judges: a release as permissive as it is, the ideal stricter.

    Raises:
        InputError: With the path of the first fault. On the wire this is status 400.
    """
    try:
        return model.model_validate(body, context={"dialect": dialect})
    except ValidationError as error:
        first, *rest = _faults(error)
        more = f" (and {len(rest)} more)" if rest else ""
        raise InputError(f"{model.__name__} {first.place}", f"{first.message}{more}") from None


def _faults(error: ValidationError) -> tuple[Fault, ...]:
    return tuple(
        Fault(one["loc"], one["msg"].removeprefix("Value error, "))
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    )


def unknown_fields(model: type[BaseModel], body: object) -> tuple[str, ...]:
    """Paths of fields that no model knows: the release accepts them in silence, so that a misspelt table is lost."""
    return tuple(_unknown(model, body, ""))


def _unknown(annotation: Any, value: Any, place: str) -> Iterator[str]:
    origin, inner = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        if isinstance(value, dict) and annotation.model_config.get("extra") != "allow":
            known = {one.alias or name: one.annotation for name, one in annotation.model_fields.items()}
            for key, part in cast("dict[str, Any]", value).items():
                path = f"{place}.{key}".removeprefix(".")
                yield from _unknown(known[key], part, path) if key in known else (path,)
    elif origin is list and isinstance(value, list):
        for i, part in enumerate(cast("list[Any]", value)):
            yield from _unknown(inner[0], part, f"{place}[{i}]")
    elif origin is dict and isinstance(value, dict):
        for key, part in cast("dict[str, Any]", value).items():
            yield from _unknown(inner[1], part, f"{place}.{key}")
    elif origin in (Union, UnionType):
        for one in inner:
            yield from _unknown(one, value, place)
