"""The state in a checkpoint that is no variable, a JSON object: the update, the run, its invocations, averages and rows."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from base import bounds
from base.storage import input_files
from base.storage.run_tables import TABLES, run_table
from base.storage.tables import UNVERIFIED, kept_rows
from harness.checkpoints import find, manifest
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.run.recorded_arguments import (
    ARITHMETIC,
    COUNT,
    INVOCATIONS,
    LR_SCALE,
    OBJECT,
    OPTIMISER,
    OPTIONS,
    PAIRS,
    POSITIVE,
    RUN_ID,
    SEED,
    SWITCH,
    TEXT,
    WHOLE,
    Rule,
    invalid_entry,
    is_number,
)  # fmt: skip

ITERATION = "iteration"  # the updates that the run had done
SAFETY = "rolling"  # true in a checkpoint that the next one replaces
MAX_JSON = 64 << 20  # bytes of arguments or a state, whose rows make most of it
DIGEST = "digest"  # of the rest, in a state and in what else is kept with one
_ABOVE_ONE = 1e-3  # of a rounded mean of fractions
Invocation = tuple[str, int]  # of the command, for one run: its random name, and the updates done when it began


def _are_means(value: Any) -> bool:
    """(loss, accuracy) each; a loss need not be finite, as --keep-going continues after one."""
    pairs = isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)
    return pairs and all(is_number(loss) and is_number(share) and 0 <= share <= 1 + _ABOVE_ONE for loss, share in value)


_MEANS: Rule = (_are_means, "pairs of a loss and a fraction")
_RULES: Mapping[str, Rule] = {
    ITERATION: WHOLE,
    SAFETY: SWITCH,
    RUN_ID: TEXT,
    SEED: WHOLE,
    INVOCATIONS: PAIRS,
    OPTIMISER: TEXT,
    LR_SCALE: POSITIVE,
    ARITHMETIC: TEXT,
    OPTIONS: OBJECT,
    "host_steps": WHOLE,
    "updates_per_step": COUNT,
    "seconds": (lambda value: is_number(value) and 0 <= value < math.inf, "a number from 0 on"),
    "window": _MEANS,
    "open": _MEANS,
}


def with_digest(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as its file holds it, with a digest that is checked where there is no manifest, too."""
    state = json.loads(json.dumps(state))
    return {**state, DIGEST: digest_of(state)}


def digest_of(state: Mapping[str, Any]) -> str:
    """Return the digest of JSON content, whatever the order of its names."""
    return hashlib.blake2b(json.dumps(state, sort_keys=True).encode(), digest_size=8).hexdigest()


def read(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state; empty if its file is missing, or holds impossible values. CheckpointError for other content than was
    written."""
    return _read(checkpoint)[0]


def is_unverified(checkpoint: Checkpoint) -> bool:
    """Return whether neither a digest nor a manifest proves a saved state to be as it was written."""
    return _read(checkpoint)[1]


def _read(checkpoint: Checkpoint) -> tuple[dict[str, Any], bool]:
    """The state, and whether it `is_unverified`."""
    if not os.path.lexists(checkpoint.state_path):
        return {}, True
    state = json_object(checkpoint.state_path)
    digest = state.pop(DIGEST, None)
    if digest not in (None, digest_of(state)):
        raise CheckpointError(f"{checkpoint.state_path.name} has other content than was written")
    proved = digest is not None or manifest.matches(checkpoint.state_path, Path(checkpoint.prefix))
    return {} if invalid_entry(state, _RULES) else state, not proved


def json_object(path: Path, remedy: str = "") -> dict[str, Any]:
    """A file with one JSON object. `remedy`: the end of the message about a damaged one."""
    try:
        value = bounds.json_value(input_files.content(path, MAX_JSON))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {bounds.reason(error)}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {bounds.reason(error)}{remedy}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} is damaged: it must hold one JSON object{remedy}")
    return value


def lineage(folder: Path, newest: Checkpoint) -> list[tuple[int, dict[str, Any]]]:
    """Return (updates, state) of every checkpoint in the lineage of `newest` with a sound state, which says if it is
    UNVERIFIED.

    States beside the lineage are of updates that were done again: a checkpoint was damaged and left out, and the run resumed
    from an earlier one.
    """
    states = []
    for checkpoint in find.numbered(folder):
        if checkpoint.updates <= newest.updates:
            with suppress(CheckpointError):
                state, unverified = _read(checkpoint)
                if state.get(ITERATION) == checkpoint.updates:
                    states.append((checkpoint.updates, {**state, UNVERIFIED: True} if unverified else state))
    latest = next((invocations(state) for done, state in states if done == newest.updates), [])
    return [(done, state) for done, state in states if _is_in_lineage(done, invocations(state), latest)]


def contradiction(folder: Path) -> str | None:
    """Return which of a run's tables has other rows than its checkpoints keep, or None. Files that cannot be read are told
    of by their own readers."""
    with suppress(CheckpointError, OSError, ValueError):
        checkpoints = find.numbered(folder)
        states = lineage(folder, checkpoints[-1]) if checkpoints else []
        for name in TABLES if states else ():
            if not run_table(folder, name).agrees_with(checkpoints[-1].updates, kept_rows(states, name)):
                return f"{name} has other rows than its checkpoints keep; restore.py makes them anew"
    return None


def invocations(state: Mapping[str, Any]) -> list[Invocation]:
    """Return the invocations of the run that led to a state, in order."""
    return [(name, since) for name, since in state.get(INVOCATIONS, ())]


def with_new_invocation(state: Mapping[str, Any], updates: int) -> list[Invocation]:
    """Return the invocations of a state and a new one, under a random name, which begins after that many updates."""
    return [*invocations(state), (secrets.token_hex(4), updates)]


def _is_in_lineage(done: int, earlier: Sequence[Invocation], latest: Sequence[Invocation]) -> bool:
    """Return whether the run with the `latest` invocations passed a checkpoint after `done` updates; a saved state without
    invocations is believed."""
    if not earlier or not latest:
        return True
    ends = {name: next_since for (name, _), (_, next_since) in zip(latest, [*latest[1:], ("", done)])}
    return done <= ends.get(earlier[-1][0], -1)
