"""The record of a run in its folder: the options in arguments.json and arguments_restore.json, or in a .npz file, and the
run's id, seed and invocations in the states of its checkpoints. Either may be lost, damaged, or another run's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from base.fields import brief
from base.storage import input_files, run_files
from harness.checkpoints import find, npz_weights, state_file
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.checkpoints.state_file import Invocation, invocations
from harness.run.recorded_arguments import ASKED, OPTIONS, RUN_ID, SEED, invalid_option

_REMEDY = "; put it back as the run wrote it"
_ARGUMENTS, _ARGUMENTS_RESTORE = run_files.ARGUMENTS
State = dict[str, Any]


def options(folder: Path) -> dict[str, Any]:
    """The options of the run in a folder (or of the weights in a file), as they were requested."""
    recorded = arguments(folder)
    return {**recorded, **(recorded.get(ASKED) or {})}


def arguments(folder: Path) -> dict[str, Any]:
    """The content of a run's last arguments file, or of a .npz file's entry; empty without one."""
    path = arguments_file(folder)
    if npz_weights.located(folder):
        return _validated(path, npz_weights.options(path))
    return _read(path) if _has_content(path) else {}


def first_arguments(folder: Path) -> dict[str, Any]:
    """Return the arguments of the invocation that began a run; empty if they are lost."""
    path = folder / _ARGUMENTS
    with suppress(CheckpointError):
        return _read(path)
    return {}


def arguments_file(folder: Path) -> Path:
    """The file with the options of the run in a folder: that of its last restore, or of its beginning. An emptied one counts
    as missing. A .npz file has its own."""
    last = folder / _ARGUMENTS_RESTORE
    return npz_weights.located(folder) or (last if _has_content(last) else folder / _ARGUMENTS)


def _validated(path: Path, recorded: dict[str, Any]) -> dict[str, Any]:
    """The arguments in a file; CheckpointError for values that no run records."""
    wrong = invalid_option(recorded)
    if wrong:
        raise CheckpointError(f"{path} is damaged: {wrong}{_REMEDY}")
    return recorded


def _read(path: Path) -> dict[str, Any]:
    """The arguments in a JSON file."""
    return _validated(path, state_file.json_object(path, _REMEDY))


def _has_content(path: Path) -> bool:
    """Return whether a file is there and not empty; one that cannot be read counts, as a link that leads nowhere."""
    with suppress(OSError):
        return b"".join(input_files.content(path, state_file.MAX_JSON).split()) not in (b"", b"{}")
    return os.path.lexists(path)


def run_id(folder: Path) -> str | None:
    """Return the id of the run in a folder; None if nothing tells it: the checkpoints may be anybody's then."""
    with suppress(CheckpointError):
        return arguments(folder).get(RUN_ID)
    return None


def seeds(folder: Path, newest: Checkpoint) -> list[int]:
    """The seed in the state of a run's newest checkpoint; without one, every other state's. States of the calls before the
    recorded one, which may have saved nothing, do not count: it may have been given another seed."""
    last = _recorded_invocations(arguments_file(folder), arguments(folder)) or []
    states = [(checkpoint, state) for checkpoint, state in _states_of_this_run(folder) if SEED in state]
    known = {checkpoint: state[SEED] for checkpoint, state in states if not _continues(last, invocations(state))}
    return [known[newest]] if newest in known else sorted(set(known.values()))


def _states(folder: Path, newest_first: bool = False) -> Iterator[tuple[Checkpoint, State]]:
    """The checkpoints of a folder whose states can be read, with their states, each read when it is asked for."""
    for checkpoint in find.numbered(folder)[:: -1 if newest_first else 1]:
        with suppress(CheckpointError):
            yield checkpoint, state_file.read(checkpoint)


def _states_of_this_run(folder: Path) -> list[tuple[Checkpoint, State]]:
    """The readable checkpoints, less copies of another run's."""
    own = (None, run_id(folder))
    return [(checkpoint, state) for checkpoint, state in _states(folder) if state.get(RUN_ID) in own]


def stale_record_reason(folder: Path) -> str | None:
    """Return why the recorded options are older than the newest checkpoint, or None: a checkpoint's state lists an
    invocation that the record does not. Instances after the first may save without recording options."""
    recorded, path = arguments(folder), arguments_file(folder)
    if path.name not in (_ARGUMENTS, _ARGUMENTS_RESTORE) or recorded.get("instance"):
        return None
    known = _recorded_invocations(path, recorded)
    name = next(
        (checkpoint.name for checkpoint, state in _states_of_this_run(folder) if _continues(invocations(state), known)), None
    )
    return f"{name} is of a later call of the run than {path}" if name else None


def _changed_options(folder: Path) -> str | None:
    """Return how the recorded options differ from those that a checkpoint of that call was trained with, or None."""
    recorded, path = arguments(folder), arguments_file(folder)
    own, ids = _recorded_invocations(path, recorded), (None, run_id(folder))
    for checkpoint, state in _states(folder, newest_first=True):
        saved = invocations(state)
        if state.get(RUN_ID) not in ids:
            continue
        if saved == own or (own is None and len(saved) == 1 and not saved[0][1]):
            trained = state.get(OPTIONS, {})
            changed = [
                f"{name} {_shown(recorded[name])} instead of {_shown(trained[name])}"
                for name in sorted((trained.keys() & recorded.keys()) - {SEED})  # null there if it was drawn; checked apart
                if recorded[name] != trained[name]
            ]
            return f"{path} says {brief(', '.join(changed))}, as {checkpoint.name} was trained" if changed else None
    return None


def _shown(value: Any) -> str:
    return brief(json.dumps(value))


def _recorded_invocations(path: Path, recorded: State) -> list[Invocation] | None:
    """Return the invocations that a record lists; None for that of the call that began the run, which may list none."""
    return None if path.name == _ARGUMENTS else invocations(recorded)


def _continues(saved: Sequence[Invocation], recorded: Sequence[Invocation] | None) -> bool:
    """Return whether the invocations of a saved state continue the recorded ones; None: those of the invocation that began
    the run, which an older version may have left out."""
    if recorded is None:
        return len(saved) > 1 or any(since for _, since in saved)
    return bool(recorded) and len(saved) > len(recorded) and saved[: len(recorded)] == recorded


def warnings(folder: Path, stale: str | None) -> list[str]:
    """Return a warning if arguments_restore.json of the last invocation is lost (`stale`), if the options in a file are not
    those that the run was trained with, or if arguments.json is unusable and arguments_restore.json is read instead. Later
    instances get none."""
    if not stale and not arguments(folder).get("instance"):
        changed = _changed_options(folder)
        if changed:
            return [f"warning: {changed}; put the file back as the run wrote it, or give what is to change as an option"]
    if stale:
        return [f"warning: {stale}, which tells the options; {_ARGUMENTS_RESTORE} of that call is missing or empty"]
    first_file, last = folder / _ARGUMENTS, arguments_file(folder)
    if last.name != _ARGUMENTS_RESTORE or arguments(folder).get("instance"):
        return []
    why = f"{first_file} is missing or empty"
    try:
        if _has_content(first_file):
            _read(first_file)
            return []
    except CheckpointError as error:
        why = str(error)
    return [f"warning: {why}; {last.name} tells the options"]
