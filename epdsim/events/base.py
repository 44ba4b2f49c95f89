"""What all events have."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, tag_field="kind", tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """What all events have.

    Attributes:
        time_ms: Since the start of the run; the number of the step where there is no clock.
        instance: Where: `"render-0"`, `"prefill-1"`, `"orchestrator"`.
    """

    is_detail: ClassVar[bool] = False

    time_ms: float
    instance: str
