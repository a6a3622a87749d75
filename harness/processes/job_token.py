"""The token of a job: a secret in the environment that every instance of a worker group proves to know before any common
graph runs. The token itself is never sent, logged or recorded."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from base.errors import OptionError

VARIABLE = "HARNESS_JOB_TOKEN"
_MIN_LENGTH, _MAX_LENGTH = 8, 1024  # characters


def check(environ: Mapping[str, str]) -> None:
    """OptionError for a token that is empty, too short to be a secret, or too long; nothing of it is shown."""
    length = len(environ.get(VARIABLE, ""))
    if VARIABLE in environ and not _MIN_LENGTH <= length <= _MAX_LENGTH:
        raise OptionError(f"{VARIABLE} has {length} characters, and must have {_MIN_LENGTH} to {_MAX_LENGTH}; or unset it")


def proof(environ: Mapping[str, str], identity: str, instance: int) -> str:
    """Return what only an instance with this token could publish at a meeting; "" without a token. `identity`: of the
    meeting, in which every server has a random number, so that no earlier proof serves."""
    token = environ.get(VARIABLE, "")
    if not token:
        return ""
    message = f"{instance} {identity}".encode()
    return hmac.new(token.encode(errors="surrogateescape"), message, hashlib.sha256).hexdigest()


def refusal(environ: Mapping[str, str], identity: str, instance: int, given: object) -> str:
    """Return the reason to refuse an instance whose status has `given` as its proof; "" if there is none."""
    wanted = proof(environ, identity, instance)
    if isinstance(given, str) and given.isascii() and hmac.compare_digest(given, wanted):
        return ""
    if not wanted:
        return f"has a {VARIABLE}, and this instance has none"
    return f"has another {VARIABLE} than this instance" if given else f"has no {VARIABLE}, and this instance has one"
