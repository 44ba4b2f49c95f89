"""What every replay reports: how much was equal, and the first difference told in words."""

from __future__ import annotations

from dataclasses import field

from epdsim.core.records import record


@record
class ReplayCount:
    """One row of a replay: what was compared, how many of how many were equal."""

    what: str
    equal: int
    total: int


@record
class ReplayReport:
    """The result of a replay.

    Attributes:
        recording: Path as the user gave it.
        release: What was recorded, for example `"vllm 0.32.0"`.
        counts: One row per kind of comparison.
        first_difference: Lines that tell the first difference (place, field, both values, the story so far); empty when equal.
        notes: Further lines that a reader should see, for example what was not compared and why.
    """

    recording: str
    release: str
    counts: tuple[ReplayCount, ...]
    first_difference: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def is_equal(self) -> bool:
        """Whether everything compared was equal, and something was compared."""
        return bool(self.counts) and all(row.equal == row.total for row in self.counts)
