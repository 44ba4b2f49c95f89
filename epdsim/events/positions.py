"""What positions tokens were given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from epdsim.events.base import Event


class PositionsComputed(Event, frozen=True):
    """Positions of tokens `[start, end)` of a prompt and of what follows it, as one way of computing it came to them.

    Attributes:
        case: Ways of one prompt share it.
        how: `"whole"`, `"chunk"`, `"resumed"` (its output counted as prompt), `"metadata"` (items without payloads, as in a
            hand-over), `"turn"` (of a session, from what it has until then) or `"stripped"` (at a prefix hit).
        columns: One list of ids for each dimension.
        decode_delta: What the index of a generated token lacks to its position.
        num_items: Media of the prompt as far as they are known then.
        num_computed: Tokens of the prefix hit.
        num_covered: Items that lie in it.
        refused: Why there are none; empty when there are.
    """

    is_detail: ClassVar[bool] = True

    case: str
    scheme: str
    how: str
    start: int
    end: int
    columns: Sequence[Sequence[int]]
    decode_delta: int
    num_items: int
    num_computed: int = 0
    num_covered: int = 0
    refused: str = ""
