"""Errors in a person's input: the message is one line and complete in itself, lists may follow.

A message may quote a given value as it is: commands print every line of an error without control characters.
"""

from __future__ import annotations


class WrongInput(Exception):
    """An error in what a person gave: exit code 2."""


class Failure(Exception):
    """A failure at run time: exit code 1."""


class Answered(Exception):
    """The call asked a question, which has been answered: exit code 0."""


class UserError(Exception):
    """An error for the user. `listed`: lines below the message."""

    def __init__(self, message: str = "", listed: str = "") -> None:
        super().__init__(message, *([listed] if listed else []))
        self.message, self.listed = message, listed

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.message, self.listed)))


def parts(error: Exception, before: str = "") -> tuple[str, str]:
    """The message of any error, after `before`, and the lines below it."""
    message, listed = (error.message, error.listed) if isinstance(error, UserError) else (str(error), "")
    return before + message, listed


class OptionError(UserError, WrongInput):
    """Options that cannot be met."""


class DataError(UserError, WrongInput):
    """Missing or wrong data."""
