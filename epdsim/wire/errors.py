"""Error bodies, and which status each cause has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from epdsim.wire.base import OpenModel, WireModel

Cause = Literal[
    "validation",
    "value",
    "unknown model",
    "not enabled",
    "media",
    "engine",
    "not implemented",
    "queue full",
    "unauthorized",
]

STATUS: Mapping[Cause, tuple[int, str]] = MappingProxyType(
    {
        "validation": (400, "Bad Request"),
        "value": (400, "BadRequestError"),
        "unauthorized": (401, "Unauthorized"),
        "not enabled": (403, "PermissionDeniedError"),
        "unknown model": (404, "NotFoundError"),
        "media": (422, "UnprocessableEntityError"),
        "engine": (500, "InternalServerError"),
        "not implemented": (501, "NotImplementedError"),
        "queue full": (503, "ServiceUnavailableError"),
    }
)
"""Status and type of each cause, as vLLM 0.32 answers.

A body that fails validation is 400 and not 422; a broken blob is a "value"; a route that was not switched on is 403, which is no
matter of keys; a failed EC load is "engine"; "queue full" may be tried again.
"""


class ErrorInfo(OpenModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorResponse(OpenModel):
    """The body of every error but 401, and an event of a stream whose headers are already out."""

    error: ErrorInfo


class AbortRequest(WireModel):
    """Body of `/inference/v1/abort_requests`; answered at once with an empty 200, whether the ids are known or not."""

    request_ids: list[str]


def error_response(cause: Cause, message: str, param: str | None = None) -> ErrorResponse:
    """The body of an error.

    Args:
        cause: A row of `STATUS`.
        message: For the client.
        param: The parameter at fault; `"model"` for an unknown model.
    """
    code, kind = STATUS[cause]
    fault = "model" if cause == "unknown model" else param
    return ErrorResponse(error=ErrorInfo(message=message, type=kind, param=fault, code=code))
