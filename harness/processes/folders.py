"""The folders of runs: those of new ones, made or refused, and those that the instances of a run write to.

Instance 0's folder is the run; the others, where they write at all, have folders of their own beside it, which are called
alike: <name>_worker<k>_XYZ, or under poprun <name>_popdist_instance_<k>_XYZ; or after their --name-suffix, where each has
another one.
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
from base.storage.tables import TABLES, run_table
from harness.checkpoints import find, run_record
from harness.checkpoints.checkpoint import UNSAVED, CheckpointError
from harness.cluster.cluster import POPRUN
from harness.processes.team import Team
from harness.run.recorded_arguments import RUN_ID
from harness.run.run import Run
from log import record

Config = dict[str, Any]  # what an instance was asked for: its run's name, and its --name-suffix, --log-dir and --logs-path
_RANDOM, _RANDOM_OF_TEMPORARY = 3, 8  # characters at the end of a folder's name; Python's own
_KERNEL = ("/proc", "/sys")  # file systems in which nobody makes a folder


class FolderError(WrongInput):
    """A run folder that cannot be made or written."""


def new_run_folder(name: str, log_dir: str, logs_path: str | None, keep: bool, anew: bool = False) -> Path:
    """A folder for a new run: `logs_path` itself, or <log_dir>/<name>_<three random characters>.

    With `keep` False it lies below the system's temporary folder. A folder that holds a run is refused; with `anew` that of
    a run that saved nothing is taken, and its record, log and rows are removed.
    """
    with _refusals():
        if not keep:
            return Path(tempfile.mkdtemp(prefix=f"{name}_"))
        if logs_path is not None:
            folder = Path(logs_path)
            folder = folder.resolve() if folder.is_symlink() else folder  # so that a link set anew does not move the run
            check_no_run(folder, anew)
            folder.mkdir(parents=True, exist_ok=True)
            if anew:
                _forget_unsaved(folder)
            return folder
        return _fresh(Path(log_dir), name)


def check_folder(name: str, log_dir: str, logs_path: str | None, keep: bool, anew: bool) -> None:
    """The FolderError of `new_run_folder`, as far as it is known without making a folder."""
    with _refusals():
        if not keep:
            _there(Path(tempfile.gettempdir()) / f"{name}_{'X' * _RANDOM_OF_TEMPORARY}")
            return
        if logs_path is not None:
            check_no_run(Path(logs_path), anew)
        _check_room(Path(log_dir if logs_path is None else logs_path))
        if logs_path is None:
            _there(_there(Path(log_dir)) / f"{name}_{'X' * _RANDOM}")  # wherever it lies, the name has one length


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise an OSError as the FolderError that names the folder."""
    try:
        yield
    except OSError as error:
        if not error.filename:  # there is no temporary folder
            reason = f"{error.strerror}; set TMPDIR to a folder that can be written"
            raise FolderError(f"cannot make a run folder: {reason}") from None
        reason = f"{error.filename}: {error.strerror}"
        raise FolderError(f"cannot make a run folder in {reason}; give a place with --logs-path") from None


def _check_room(folder: Path) -> None:
    """OSError if the folder cannot be made, or nothing in it where it exists."""
    there, above = _there(folder), _there(folder) != folder
    if not there.is_dir():
        reason = errno.ENOTDIR if above else errno.EEXIST
    elif not os.access(there, os.W_OK | os.X_OK):
        reason = files.refused(there)
    elif there.stat().st_dev in {os.stat(kernel).st_dev for kernel in _KERNEL if os.path.ismount(kernel)}:
        reason = errno.EPERM  # whatever its modes say
    else:
        return
    raise OSError(reason, os.strerror(reason), str(folder))


def _there(folder: Path) -> Path:
    """The folder, or the nearest existing one above it; OSError if an unreadable one lies between, or a name is too long."""
    for path in (folder, *folder.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(path)
            return path
    return Path()


def check_no_run(folder: Path, anew: bool = False) -> None:
    """FolderError for the folder of an earlier run, or for rows of one, which those of a new run would follow; with `anew`
    not for one that saved nothing, unless another process writes there. FolderError, too, for another program's files in
    the places of a run's, which would be replaced."""
    saved = list(folder.glob("ckpt-*.index"))
    rows = any((folder / name).is_file() for name in TABLES)
    locked = locks.is_locked(folder)
    if _content_of_run(folder):
        if anew and not locked and unsaved_run(folder):
            return
        command = (
            f"{commands.as_invoked('python restore.py')} --restore-path {commands.in_shell([command_line.as_value(folder)])}"
        )
        instead = (
            f"go on with it, and for longer if it is done: {command} --epochs NUMBER"
            if saved
            else f"delete it{': it saved nothing' * (not rows)}"
        )
        if locked:
            instead = "wait for it: it is being written by another process"
        raise FolderError(f"--logs-path {folder} holds a run already; give another folder, or {instead}")
    foreign = _foreign(folder)
    if foreign:
        raise FolderError(
            f"--logs-path {folder} holds {foreign[0]}, which is of no run and would be replaced; give another folder, or "
            "move the file away"
        )


def _content_of_run(folder: Path) -> str:
    """Return the name of one of the files by which a folder is a run's, or nothing."""
    first = ARGUMENTS[0] if (folder / ARGUMENTS[0]).exists() else ""
    tables = (name for name in TABLES if (folder / name).is_file())
    return first or next(tables, next((index.name for index in folder.glob("ckpt-*.index")), ""))


def _foreign(folder: Path) -> list[str]:
    """Return the files that a run would replace, which in a folder without a run are another program's."""
    return [name for name in REPLACED if (folder / name).is_file()]


def unsaved_run(folder: Path) -> dict[str, Any]:
    """Return the record of the run in a folder if it has saved nothing; empty for any other folder. FolderError for a run
    that has saved, though its checkpoints are not there."""
    recorded: dict[str, Any] = {}
    with suppress(CheckpointError):
        recorded = {} if find.numbered(folder) else run_record.arguments(folder)
    if not recorded.get(RUN_ID):
        return {}
    validated: list[str] = []
    with suppress(OSError, ValueError):
        validated = [row["name"] for row in run_table(folder, "validation.csv").read()]
    if any(name != UNSAVED for name in validated) or (folder / "checkpoint").exists():
        raise FolderError(
            f"--logs-path {folder} holds a run that has saved, and its checkpoints are gone: put them back, delete the "
            "folder, or give another one"
        )
    return recorded


def _forget_unsaved(folder: Path) -> None:
    """Remove the record, the log and the rows of a run that has saved nothing; OptionError while another process writes."""
    if (folder / ARGUMENTS[0]).exists():
        with locks.lock_folder(folder):  # before the look: another call may have saved since
            for name in ("log.txt", *TABLES, *REPLACED) if unsaved_run(folder) else ():
                (folder / name).unlink(missing_ok=True)


def _fresh(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    alphabet = string.ascii_uppercase + string.digits
    while True:
        folder = parent / f"{name}_{''.join(secrets.choice(alphabet) for _ in range(_RANDOM))}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue


def _begun(run: Run, name: str) -> Path:
    """The folder of a new run of that name, as the options have it."""
    logging = run.options.logging
    return new_run_folder(name, logging.log_dir, logging.logs_path, logging.logs, logging.autoresume)


def begin(run: Run, team: Team) -> tuple[Run, Path]:
    """Return the run as it is recorded, and this instance's folder for a new run, made if it is to write."""
    logging, configs, source = run.options.logging, team.configs, run.cluster.source
    if team.size == 1:
        return run, _begun(run, run.name)
    if len({config["name_suffix"] for config in configs}) > 1:  # they are to be told apart
        run = replace(run, options=replace(run.options, logging=replace(logging, log_all_instances=True)))
    names = _names(configs, source) if all_write(run) else [run.name] * team.size
    first = _begun(run, names[0]) if team.is_first else Path()
    top = Path(team.broadcast_text(str(first.absolute())))
    everyone = [top, *(_beside(top, names, configs, k, source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if writes(run) and not team.is_first:
        new_run_folder(run.name, "", str(folder), keep=True, anew=logging.autoresume)
    return replace(run, folders=_listed(everyone) if all_write(run) else ()), folder


def check(run: Run) -> None:
    """FolderError if the call's new folder cannot be made or written, as far as can be told without; the
    others' lie beside that of instance 0."""
    logging = run.options.logging
    if not run.cluster.instance and not run.options.device.compile_only:
        check_folder(run.name, logging.log_dir, logging.logs_path, logging.logs, logging.autoresume)


def resume(run: Run, team: Team, given: Path) -> tuple[Run, Path]:
    """Return the run and this instance's folder of a resumed run; `given`: what it was told, instance 0's folder or its
    own."""
    recorded = run_record.arguments(given)
    listed = recorded.get("instance_folders") or []
    listed = [] if _is_copy(given.absolute(), listed) else listed
    if team.size == 1:
        return replace(run, folders=tuple(listed)), given
    top, listed = team.broadcast_json([str(given.absolute()), listed])
    everyone = [Path(top), *(sibling(Path(top), listed, k, run.cluster.source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if not team.is_first and given.absolute() != everyone[0] and recorded.get("instance") == team.instance:
        folder = given.absolute()
    if writes(run):
        if not team.is_first:
            _check_own(folder, run, [] if listed else recorded.get("instance_folders") or [])
        folder.mkdir(parents=True, exist_ok=True)
    added = _listed(everyone)[len(listed) :] if all_write(run) else ()  # of a larger team than before, too
    return replace(run, folders=(*listed, *added)), folder


def _check_own(folder: Path, run: Run, copied: Sequence[str]) -> None:
    """FolderError for the folder of a later instance that holds another run, or another program's files. `copied`: the
    folders that the run has recorded, where it goes on in a copy of instance 0's: this instance's may be copied, too, and
    else is of an earlier copy that went on by itself."""
    instance, recorded = run.cluster.instance, run_record.arguments(folder)
    owner = run_record.run_id(folder)
    own = recorded.get("instance", instance) == instance and (not owner or owner == run.run_id)
    if recorded and own and (not copied or recorded.get("instance_folders") == copied):
        return
    held = "another run" if recorded else _content_of_run(folder) or next(iter(_foreign(folder)), "")
    if held:
        raise FolderError(
            f"{folder}, where instance {instance} of this run is to write, holds {held}; move that folder away, or let "
            "instance 0 alone write with --no-log-all-instances --no-ckpt-all-instances"
        )


def writes(run: Run) -> bool:
    """Return whether this instance logs or saves."""
    return run.cluster.instance == 0 or all_write(run)


def all_write(run: Run) -> bool:
    """Return whether every instance logs or saves."""
    return run.options.logging.log_all_instances or run.options.checkpoint.ckpt_all_instances


def keep_options(run: Run, folder: Path, values: Config, restored: bool) -> None:
    """Record the options of an instance that saves without a log, so that it can resume from its own folder."""
    if run.options.logging.logs and run.options.checkpoint.ckpt_all_instances:
        record(folder, values, restored)


def sibling(top: Path, listed: Sequence[str], instance: int, source: str) -> Path:
    """An instance's folder: the one that the run has recorded, moved with instance 0's or not; a new one by its name."""
    for name in listed[instance : instance + 1]:
        for path in (top.parent / Path(name).name, *[Path(name)] * os.path.isabs(name)):
            if path.is_dir() and run_record.arguments(path).get("instance") == instance:
                return path
    before, tag, after = top.name.rpartition(_tag(0, source))
    own = _tag(instance, source)
    return top.with_name(f"{before}{own}{after}" if tag else f"{top.name}_{own}")


def _is_copy(top: Path, listed: Sequence[str]) -> bool:
    """Return whether a folder was copied from instance 0's, which is still where the run has recorded it: the others that
    are listed belong to that one."""
    for name in listed[:1]:
        for first in (top.parent / Path(name).name, *[Path(name)] * os.path.isabs(name)):
            its_own = first.is_dir() and run_record.arguments(first).get("instance") == 0
            if its_own and not first.samefile(top) and run_record.run_id(first) == run_record.run_id(top):
                return True
    return False


def _listed(everyone: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders as a run records them: those beside the first one by their names. Where another lies elsewhere, the
    first one is recorded in full, too, so that a copy of it can be told from it wherever it lies."""
    top = everyone[0].parent
    in_full = [each.parent != top for each in everyone]
    in_full[0] = any(in_full)
    return tuple(str(each) if full else each.name for each, full in zip(everyone, in_full, strict=True))


def _names(configs: Sequence[Config], source: str) -> list[str]:
    """Return the names of the instances' folders, less the random end."""
    apart = len({config["name_suffix"] for config in configs}) == len(configs)
    return [config["name"] if apart else f"{config['name']}_{_tag(k, source)}" for k, config in enumerate(configs)]


def _beside(top: Path, names: Sequence[str], configs: Sequence[Config], instance: int, source: str) -> Path:
    """An instance's new folder: the one given for itself, or one beside instance 0's."""
    own, first = configs[instance], configs[0]
    if own["logs_path"] not in (None, first["logs_path"]):
        return Path(own["logs_path"]).absolute()
    parent = top.parent if own["log_dir"] == first["log_dir"] else Path(own["log_dir"]).absolute()
    named = not first["logs_path"] and top.name.startswith(names[0])
    return parent / (names[instance] + top.name[len(names[0]) :] if named else f"{top.name}_{_tag(instance, source)}")


def _tag(instance: int, source: str) -> str:
    return f"popdist_instance_{instance}" if source == POPRUN else f"worker{instance}"
