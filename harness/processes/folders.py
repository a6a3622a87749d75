"""The run directories of new and resumed runs, and those of the instances of a run.

Instance 0's folder is the run. The others, where they write at all, have folders beside it: <name>_worker<k>_XYZ, or under
poprun <name>_popdist_instance_<k>_XYZ; or by their --name-suffix, where each has another one.
"""

from __future__ import annotations

import errno
import os
import secrets
import string
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from base.errors import WrongInput
from base.process import command_line, commands
from base.storage import files, locks
from base.storage.run_files import ARGUMENTS, REPLACED
from base.storage.tables import TABLES
from harness.checkpoints import find, run_record
from harness.checkpoints.checkpoint import CheckpointError
from harness.cluster.cluster import POPRUN
from harness.processes.team import Team
from harness.run.recorded_arguments import RUN_ID
from harness.run.run import Run

Config = dict[str, Any]  # an instance's run name, --name-suffix, --log-dir and --logs-path
_RANDOM = 3  # characters at the end of a folder's name


class FolderError(WrongInput):
    """A run folder that cannot be made or written."""


def new_run_folder(name: str, log_dir: str, logs_path: str | None, keep: bool, anew: bool = False) -> Path:
    """Make the folder of a new run: `logs_path` itself, or <log_dir>/<name>_<three random characters>; without `keep` one
    for temporary files. A folder that holds a run is refused; with `anew` a run that saved nothing is removed."""
    with _refusals():
        if not keep:
            return Path(tempfile.mkdtemp(prefix=f"{name}_"))
        if logs_path is None:
            return _fresh(Path(log_dir), name)
        folder = Path(logs_path)
        check_no_run(folder, anew)
        folder.mkdir(parents=True, exist_ok=True)
        if anew and (folder / ARGUMENTS[0]).exists():
            with locks.lock_folder(folder):  # before the check: another call may have saved since
                for file in ("log.txt", *TABLES, *REPLACED) if unsaved_run(folder) else ():
                    (folder / file).unlink(missing_ok=True)
        return folder


def _fresh(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    alphabet = string.ascii_uppercase + string.digits
    while True:
        folder = parent / f"{name}_{''.join(secrets.choice(alphabet) for _ in range(_RANDOM))}"
        with suppress(FileExistsError):
            folder.mkdir()
            return folder


def check(run: Run) -> None:
    """Raise the FolderError of a new run's folder, as far as it is known without making it."""
    logging = run.options.logging
    if run.cluster.instance or run.options.device.compile_only or not logging.logs:
        return
    with _refusals():
        folder = Path(logging.log_dir if logging.logs_path is None else logging.logs_path)
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            reason = errno.EEXIST if existing == folder else errno.ENOTDIR
            raise OSError(reason, os.strerror(reason), str(folder))
        if not os.access(existing, os.W_OK | os.X_OK):
            raise OSError(files.refused(existing), os.strerror(files.refused(existing)), str(folder))
        if logging.logs_path is not None:
            check_no_run(folder, logging.autoresume)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise an OSError as a FolderError."""
    try:
        yield
    except OSError as error:
        place = f"in {error.filename}: {error.strerror}; give a place with --logs-path"
        raise FolderError(f"cannot make a run folder {place if error.filename else f'({error}); set TMPDIR'}") from None


def check_no_run(folder: Path, anew: bool = False) -> None:
    """FolderError for the folder of a run; with `anew` not for one that saved nothing and is not being written."""
    locked = locks.is_locked(folder)
    if not _holds_run(folder) or (anew and not locked and unsaved_run(folder)):
        return
    restore = (
        f"{commands.as_invoked('python restore.py')} --restore-path {commands.in_shell([command_line.as_value(folder)])}"
    )
    remedy = f"resume it: {restore} --epochs NUMBER" if any(folder.glob("ckpt-*.index")) else "delete it"
    remedy = "wait for it: it is being written by another process" if locked else remedy
    raise FolderError(f"--logs-path {folder} holds a run already; give another folder, or {remedy}")


def _holds_run(folder: Path) -> bool:
    files_of_run = (*(folder / name for name in (ARGUMENTS[0], *TABLES)), *folder.glob("ckpt-*.index"))
    return any(file.is_file() for file in files_of_run)


def unsaved_run(folder: Path) -> dict[str, Any]:
    """Return the record of the run in a folder if it has saved nothing; empty for any other folder. FolderError for a run
    whose checkpoints are gone."""
    recorded: dict[str, Any] = {}
    with suppress(CheckpointError):
        recorded = {} if find.numbered(folder) else run_record.arguments(folder)
    if recorded.get(RUN_ID) and (folder / "checkpoint").exists():
        raise FolderError(
            f"--logs-path {folder} holds a run whose checkpoints are gone: put them back, or give another folder"
        )
    return recorded if recorded.get(RUN_ID) else {}


def begin(run: Run, team: Team) -> tuple[Run, Path]:
    """Return the run as it is recorded, and this instance's folder for a new run, made if it is to write."""
    logging, configs, source = run.options.logging, team.configs, run.cluster.source
    if team.size == 1:
        return run, _begun(run, run.name)
    suffixes = {config["name_suffix"] for config in configs}
    if len(suffixes) > 1:  # the instances can be told apart, so that all of them log
        run = replace(run, options=replace(run.options, logging=replace(logging, log_all_instances=True)))
    names = [run.name] * team.size
    if all_write(run):
        apart = len(suffixes) == len(configs)
        names = [config["name"] if apart else f"{config['name']}_{_tag(k, source)}" for k, config in enumerate(configs)]
    first = _begun(run, names[0]) if team.is_first else Path()
    top = Path(team.broadcast_text(str(first.absolute())))
    everyone = [top, *(_beside(top, names, configs, k, source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if writes(run) and not team.is_first:
        new_run_folder(run.name, "", str(folder), keep=True, anew=logging.autoresume)
    return replace(run, folders=_listed(everyone) if all_write(run) else ()), folder


def _begun(run: Run, name: str) -> Path:
    logging = run.options.logging
    return new_run_folder(name, logging.log_dir, logging.logs_path, logging.logs, logging.autoresume)


def _beside(top: Path, names: Sequence[str], configs: Sequence[Config], instance: int, source: str) -> Path:
    """Return an instance's new folder: the one given for itself, or one beside instance 0's."""
    own, first = configs[instance], configs[0]
    if own["logs_path"] not in (None, first["logs_path"]):
        return Path(own["logs_path"]).absolute()
    parent = top.parent if own["log_dir"] == first["log_dir"] else Path(own["log_dir"]).absolute()
    named = not first["logs_path"] and top.name.startswith(names[0])
    return parent / (names[instance] + top.name[len(names[0]) :] if named else f"{top.name}_{_tag(instance, source)}")


def resume(run: Run, team: Team, given: Path) -> tuple[Run, Path]:
    """Return the run and this instance's folder of a resumed run. `given`: instance 0's folder, or this instance's own."""
    listed = run_record.arguments(given).get("instance_folders") or []
    if team.size == 1:
        return replace(run, folders=tuple(listed)), given
    top, listed = team.broadcast_json([str(given.absolute()), listed])
    if listed and Path(listed[0]).name != Path(top).name:
        listed = []  # a copy under another name, beside which the others are new
    everyone = [Path(top), *(_sibling(Path(top), listed, k, run.cluster.source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if writes(run):
        if not team.is_first and _holds_run(folder) and run_record.run_id(folder) != run.run_id:
            raise FolderError(
                f"{folder}, where instance {team.instance} of this run is to write, holds another run; move it away, or "
                "let instance 0 alone write with --no-log-all-instances --no-ckpt-all-instances"
            )
        folder.mkdir(parents=True, exist_ok=True)
    added = _listed(everyone)[len(listed) :] if all_write(run) else ()  # of a larger team than before
    return replace(run, folders=(*listed, *added)), folder


def _sibling(top: Path, listed: Sequence[str], instance: int, source: str) -> Path:
    """Return an instance's folder: the recorded one, moved with instance 0's or not, or a new one by its name."""
    if instance < len(listed):
        beside = top.parent / Path(listed[instance]).name
        return Path(listed[instance]) if os.path.isabs(listed[instance]) and not beside.is_dir() else beside
    before, tag, after = top.name.rpartition(_tag(0, source))
    own = _tag(instance, source)
    return top.with_name(f"{before}{own}{after}" if tag else f"{top.name}_{own}")


def _listed(everyone: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders as a run records them: by name where they are beside the first one, otherwise in full."""
    return tuple(each.name if each.parent == everyone[0].parent else str(each) for each in everyone)


def _tag(instance: int, source: str) -> str:
    return f"popdist_instance_{instance}" if source == POPRUN else f"worker{instance}"


def writes(run: Run) -> bool:
    """Return whether this instance logs or saves."""
    return run.cluster.instance == 0 or all_write(run)


def all_write(run: Run) -> bool:
    """Return whether every instance logs or saves."""
    return run.options.logging.log_all_instances or run.options.checkpoint.ckpt_all_instances
