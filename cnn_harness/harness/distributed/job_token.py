"""Authenticate the instances (processes) of a run when they start, by a shared secret in the environment variable
HARNESS_JOB_TOKEN. The token itself is never sent, logged or recorded."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from cnn_harness.base.errors import OptionError

VARIABLE = "HARNESS_JOB_TOKEN"
_MIN_LENGTH, _MAX_LENGTH = 8, 1024  # characters


def check(environ: Mapping[str, str]) -> None:
    """Raise OptionError if the token is too short or too long. The message does not show the token."""
    length = len(environ.get(VARIABLE, ""))
    if VARIABLE in environ and not _MIN_LENGTH <= length <= _MAX_LENGTH:
        plural = "s" * (length != 1)
        raise OptionError(
            f"{VARIABLE} has {length} character{plural}, but needs {_MIN_LENGTH} to {_MAX_LENGTH}. Set another token, or "
            "unset the variable"
        )


def proof(environ: Mapping[str, str], identity: str, instance: int) -> str:
    """Return a proof that the instance knows the token: an HMAC, or "" if no token is set.

    `identity` is a digest of random numbers that the servers drew when they started, so an earlier proof cannot be replayed.
    """
    token = environ.get(VARIABLE, "")
    if not token:
        return ""
    message = f"{instance} {identity}".encode()
    return hmac.new(token.encode(errors="surrogateescape"), message, hashlib.sha256).hexdigest()


def refusal(environ: Mapping[str, str], identity: str, instance: int, given: object) -> str:
    """Return the reason to reject an instance that sent the proof `given`, or "" if the proof is correct."""
    wanted = proof(environ, identity, instance)
    if isinstance(given, str) and given.isascii() and hmac.compare_digest(given, wanted):
        return ""
    if not wanted:
        return f"has a {VARIABLE}, but this instance has none"
    return f"has a different {VARIABLE}" if given else f"has no {VARIABLE}, but this instance has one"
