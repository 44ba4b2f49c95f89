"""Prompts: real token ids, or runs of equal content where only lengths and sharing matter.

A replay of a hundred thousand requests must not hold a hundred million token ids. What the scheduler needs of a prompt is its
length and, for block keys, whether a slice of it equals a slice of another prompt. `TokenPrompt` answers with ids, `RunPrompt` with
runs: two slices are equal exactly when they clip to the same runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from epdsim.core.errors import InputError


class Prompt(Protocol):
    """What the scheduler asks of a prompt."""

    @property
    def num_tokens(self) -> int:
        """Tokens in all, placeholders included."""
        ...

    def slice_key(self, start: int, end: int) -> Hashable:
        """Content of tokens `[start, end)`, equal for equal tokens; `0 <= start < end <= num_tokens`."""
        ...


class TokenPrompt:
    """A prompt of real token ids."""

    __slots__ = ("num_tokens", "token_ids")

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.token_ids = tuple(token_ids)
        self.num_tokens = len(self.token_ids)

    def slice_key(self, start: int, end: int) -> Hashable:
        """The ids themselves."""
        return self.token_ids[start:end]


class TokenRun(NamedTuple):
    """`length` tokens that start `start` tokens into the content named `content`."""

    content: Hashable
    start: int
    length: int


class RunPrompt:
    """A prompt as runs of named content, without ids.

    Args:
        runs: In prompt order; runs of length 0 are dropped, neighbours that continue each other are joined so that equal content
            has one form.
    """

    __slots__ = ("_ends", "_shifts", "num_tokens", "runs")

    num_tokens: int
    runs: tuple[TokenRun, ...]
    _ends: tuple[int, ...]
    _shifts: tuple[int, ...]

    def __init__(self, runs: Sequence[TokenRun]) -> None:
        if len(runs) == 1 and runs[0].length:
            (run,) = runs
            self.runs, self._ends, self._shifts, self.num_tokens = (run,), (run.length,), (run.start,), run.length
            return
        joined: list[TokenRun] = []
        for run in runs:
            last = joined[-1] if joined else None
            if run.length == 0:
                continue
            if last is not None and last.content == run.content and last.start + last.length == run.start:
                joined[-1] = TokenRun(last.content, last.start, last.length + run.length)
            else:
                joined.append(run)
        self.runs = tuple(joined)
        self._ends = tuple(accumulate([run.length for run in joined]))
        self._shifts = tuple([run.start - end + run.length for run, end in zip(joined, self._ends, strict=True)])
        self.num_tokens = self._ends[-1] if self._ends else 0

    def run_at(self, start: int) -> tuple[Hashable, int, int]:
        """The run that holds token `start`: its content, the token's place in that, and where in the prompt the run ends."""
        index = bisect_right(self._ends, start)
        return self.runs[index].content, start + self._shifts[index], self._ends[index]

    def slice_key(self, start: int, end: int) -> tuple[TokenRun, ...]:
        """The runs clipped to the slice."""
        index = bisect_right(self._ends, start)
        content, shift, run_end = self.runs[index].content, self._shifts[index], self._ends[index]
        if end <= run_end:
            return (TokenRun(content, start + shift, end - start),)
        return (TokenRun(content, start + shift, run_end - start), *self.slice_key(run_end, end))


def first_tokens(prompt: Prompt, count: int) -> TokenPrompt | RunPrompt:
    """The first tokens of a prompt."""
    if isinstance(prompt, TokenPrompt):
        return TokenPrompt(prompt.token_ids[:count])
    assert isinstance(prompt, RunPrompt), "no other prompt grows"
    return RunPrompt(prompt.slice_key(0, count) if count else ())


def joined_prompt(first: Prompt, second: Prompt) -> TokenPrompt | RunPrompt:
    """Two prompts as one.

    Raises:
        InputError: One has ids and the other has runs.
    """
    if isinstance(first, TokenPrompt) and isinstance(second, TokenPrompt):
        return TokenPrompt(first.token_ids + second.token_ids)
    if isinstance(first, RunPrompt) and isinstance(second, RunPrompt):
        return RunPrompt(first.runs + second.runs)
    kinds = f"a {type(second).__name__} behind a {type(first).__name__}"
    raise InputError(kinds, "the inputs of a session are all token ids or all runs")
