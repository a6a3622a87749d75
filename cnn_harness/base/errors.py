"""Errors for users. Each has a message of one line, and may have a list of lines below the message.

Messages may quote values as given, because commands escape control characters when they print an error.
"""

from __future__ import annotations


class HarnessError(Exception):
    """The base of WrongInput and Failure, for programs that use the Python API."""


class WrongInput(HarnessError):
    """Wrong input: exit code 2."""


class Failure(HarnessError):
    """Failure at run time: exit code 1."""


class Answered(Exception):
    """The command only asked for information, which has been printed: exit code 0."""


class Leave(BaseException):
    """The end of a command because of `error`, which is reported as usual.

    hinted: whether the log already says how to resume
    seconds: after so many seconds, the process ends without the interpreter's clean-up; None means with it
    """

    def __init__(self, error: BaseException, hinted: bool = False, seconds: float | None = None) -> None:
        """Add to the orders of an earlier Leave, if `error` is one."""
        earlier = error if isinstance(error, Leave) else None
        super().__init__(*error.args)
        self.error = earlier.error if earlier else error
        self.hinted = hinted or bool(earlier and earlier.hinted)
        self.seconds = earlier.seconds if earlier and seconds is None else seconds


class UserError(Exception):
    """An error with a message for the user; `listed` is printed below the message."""

    def __init__(self, message: str = "", listed: str = "") -> None:
        super().__init__(message, *([listed] if listed else []))
        self.message, self.listed = message, listed

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.message, self.listed)))


def parts(error: Exception, before: str = "") -> tuple[str, str]:
    """Return an error's message, prefixed with `before`, and the list below the message, or ""."""
    message, listed = (error.message, error.listed) if isinstance(error, UserError) else (str(error), "")
    return before + message, listed


class OptionError(UserError, WrongInput):
    """Invalid options."""


class DataError(UserError, WrongInput):
    """Missing or invalid data."""
