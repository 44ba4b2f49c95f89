"""The one base exception of epdsim and the form of its messages."""

from __future__ import annotations


class EpdsimError(Exception):
    """A user-facing error: one sentence that states value, rule and remedy.

    Verbs of the command line print it and exit with 2; nothing else of the program is shown.
    """


class InputError(EpdsimError):
    """Input that cannot be used, told as value, rule and remedy.

    Args:
        value: What was given and where, in the user's terms.
        rule: Why it cannot be used.
        remedy: What to do instead; empty when the rule says it.
    """

    def __init__(self, value: str, rule: str, remedy: str = "") -> None:
        # Whoever rebuilds an exception from its arguments (another process, SimPy) gets the same one.
        super().__init__(value, rule, remedy)
        self.value, self.rule, self.remedy = value, rule, remedy

    def __str__(self) -> str:
        """The sentence."""
        return f"{self.value}: {self.rule}" + (f"; {self.remedy}" if self.remedy else "")

    def at(self, place: str) -> InputError:
        """The same error with the place that the caller knows put in front of the value."""
        return type(self)(f"{place}: {self.value}", self.rule, self.remedy)
