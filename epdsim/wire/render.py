"""Render: options of the request, and the generate request that it answers with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, cast

from pydantic import model_validator

from epdsim.core.errors import InputError
from epdsim.core.prompt import TokenPrompt
from epdsim.core.rules import IDEAL, Dialect
from epdsim.core.slots import Rendered, extract_features
from epdsim.wire.base import WireModel
from epdsim.wire.features import features_to_json


class RenderOptions(WireModel):
    """What a render request asks for beside its chat or prompt.

    Attributes:
        mm_payload: `"none"` leaves payload and metadata out: enough for a routing decision, never to be generated from.
        return_mm_kwargs: The older name: False means `"none"`; without effect beside `mm_payload`.
    """

    mm_payload: Literal["tensors", "none"] = "tensors"
    return_mm_kwargs: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _read_older_name(cls, body: Any) -> Any:
        if isinstance(body, dict):
            fields = cast("dict[str, Any]", body)
            if fields.get("return_mm_kwargs") is False and "mm_payload" not in fields:
                return {**fields, "mm_payload": "none"}
        return cast("Any", body)


def render_body(
    request_id: str,
    rendered: Rendered,
    declared: Callable[[str], Collection[str]],
    *,
    sampling_params: Mapping[str, Any],
    model: str = "",
    options: RenderOptions | None = None,
    stream: bool = False,
    dialect: Dialect = IDEAL,
) -> dict[str, Any]:
    """The JSON body that render answers with: a GenerateRequest, ready for an encoder.

    Args:
        request_id: Of the answer.
        rendered: The prompt, of token ids, and its media.
        declared: Declared placeholder-metadata fields of a modality.
        sampling_params: The client's, as generate takes them.
        model: Name of the served model; empty leaves it out.
        options: What the client asked for.
        stream: The client's wish.
        dialect: Whose tables.

    Raises:
        InputError: As `extract_features`; or the prompt has no token ids.
    """
    if not isinstance(rendered.prompt, TokenPrompt):
        raise InputError("a prompt of runs", "it has no token ids to send", "render with a prompt of tokens")
    wanted = (options or RenderOptions()).mm_payload
    tables = extract_features(rendered, declared, mm_payload=wanted, dialect=dialect)
    body: dict[str, Any] = {
        "request_id": request_id,
        "model": model or None,
        "token_ids": list(rendered.prompt.token_ids),
        "features": None if tables is None else features_to_json(tables),
        "sampling_params": dict(sampling_params),
        "stream": stream,
    }
    return {key: value for key, value in body.items() if value is not None}
