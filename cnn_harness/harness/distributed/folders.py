"""Create and find the directories of a run: one for each instance (process) that writes files.

The directory of instance 0 is the run directory. The directories of other instances are next to the run directory. They are
named <name>_worker<k>_XYZ, or <name>_popdist_instance_<k>_XYZ under poprun. If every instance has a different --name-suffix,
the suffix replaces worker<k>.
"""

from __future__ import annotations

import errno
import os
import secrets
import string
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from cnn_harness.base.errors import WrongInput
from cnn_harness.base.process import command_line, commands
from cnn_harness.base.storage import files, locks
from cnn_harness.base.storage.run_files import ARGUMENTS, REPLACED
from cnn_harness.base.storage.tables import TABLES
from cnn_harness.harness.checkpoints import find, run_record
from cnn_harness.harness.checkpoints.checkpoint import CheckpointError
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.options.sections import CheckpointOptions, RunOptions
from cnn_harness.harness.run.cluster import POPRUN, Cluster, Execution
from cnn_harness.harness.run.recorded_arguments import RUN_ID
from cnn_harness.harness.run.run import Run

Config = dict[str, Any]  # The keys are an instance's run name, name_suffix, log_dir and logs_path.
_RANDOM = 3  # The number of random characters at the end of a directory name.


class FolderError(WrongInput):
    """Raised if a run directory cannot be created, written or used."""


def new_run_folder(name: str, log_dir: str, logs_path: str | None, keep: bool, restart: bool = False) -> Path:
    """Create and return the directory of a new run: `logs_path`, or <log_dir>/<name>_<three random characters>.

    If `keep` is False, create a temporary directory. Raise FolderError if the directory contains a run. If `restart` is True
    and that run saved no checkpoint, delete the run's files instead.
    """
    with _as_folder_errors():
        if not keep:
            return Path(tempfile.mkdtemp(prefix=f"{name}_"))
        if logs_path is None:
            return _fresh(Path(log_dir), name)
        folder = Path(logs_path)
        check_no_run(folder, restart)
        folder.mkdir(parents=True, exist_ok=True)
        if restart and (folder / ARGUMENTS[0]).exists():
            # Lock before the check, because another process may save a checkpoint meanwhile.
            with locks.lock_folder(folder):
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


def check(run: Run, cluster: Cluster) -> None:
    """Raise FolderError if the directory of a new run cannot be created. Create nothing."""
    logging = run.options.logging
    if cluster.instance or run.options.device.compile_only or not logging.logs:
        return
    with _as_folder_errors():
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
def _as_folder_errors() -> Iterator[None]:
    """Raise an OSError as a FolderError."""
    try:
        yield
    except OSError as error:
        place = f"in {error.filename}: {error.strerror}. Give another directory with --logs-path"
        raise FolderError(f"cannot create a run directory {place if error.filename else f'({error}). Set TMPDIR'}") from None


def check_no_run(folder: Path, restart: bool = False) -> None:
    """Raise FolderError if the folder contains a run. If `restart` is True, accept a stopped run without checkpoints."""
    locked = locks.is_locked(folder)
    if not _holds_run(folder) or (restart and not locked and unsaved_run(folder)):
        return
    restore = (
        f"{commands.as_invoked('python restore.py')} --restore-path {commands.in_shell([command_line.as_value(folder)])}"
    )
    remedy = f"resume the run: {restore} --epochs NUMBER" if any(folder.glob("ckpt-*.index")) else "delete this one"
    remedy = "wait until the run ends" if locked else remedy
    raise FolderError(f"--logs-path {folder} contains a run already. Give another directory, or {remedy}")


def _holds_run(folder: Path) -> bool:
    files_of_run = (*(folder / name for name in (ARGUMENTS[0], *TABLES)), *folder.glob("ckpt-*.index"))
    return any(file.is_file() for file in files_of_run)


def unsaved_run(folder: Path) -> dict[str, Any]:
    """Return the recorded options of the run in a folder if the run saved no checkpoint; otherwise {}.

    Raise FolderError if the run saved checkpoints that no longer exist.
    """
    recorded: dict[str, Any] = {}
    with suppress(CheckpointError):
        recorded = {} if find.numbered(folder) else run_record.arguments(folder)
    if recorded.get(RUN_ID) and (folder / "checkpoint").exists():
        raise FolderError(
            f"--logs-path {folder} contains a run, but its checkpoints are missing. Restore them from a backup, or give "
            "another directory"
        )
    return recorded if recorded.get(RUN_ID) else {}


class Folders(NamedTuple):
    """The directory of this instance, and those of all instances that write files. `all_log`: every instance has a log."""

    own: Path
    listed: tuple[str, ...]
    all_log: bool


def begin(run: Run, team: Team) -> Folders:
    """Return the folders of a new run. Create this instance's folder if the instance writes files."""
    logging, configs, source = run.options.logging, team.configs, team.cluster.source
    if team.size == 1:
        return Folders(_created(run, run.name), (), logging.log_all_instances)
    suffixes = {config["name_suffix"] for config in configs}
    # A user who gives the instances different suffixes wants a log from each instance.
    all_log = logging.log_all_instances or len(suffixes) > 1
    all_write = all_log or run.options.checkpoint.ckpt_all_instances
    names = [run.name] * team.size
    if all_write:
        unique = len(suffixes) == len(configs)
        names = [config["name"] if unique else f"{config['name']}_{_tag(k, source)}" for k, config in enumerate(configs)]
    first = _created(run, names[0]) if team.is_first else Path()
    top = Path(team.broadcast_text(str(first.absolute())))
    everyone = [top, *(_beside(top, names, configs, k, source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if all_write and not team.is_first:
        new_run_folder(run.name, "", str(folder), keep=True, restart=logging.autoresume)
    return Folders(folder, _listed(everyone) if all_write else (), all_log)


def _created(run: Run, name: str) -> Path:
    logging = run.options.logging
    return new_run_folder(name, logging.log_dir, logging.logs_path, logging.logs, logging.autoresume)


def _beside(top: Path, names: Sequence[str], configs: Sequence[Config], instance: int, source: str) -> Path:
    """Return the new folder of an instance: its own --logs-path or --log-dir, or else a folder next to `top`, the folder of
    instance 0."""
    own, first = configs[instance], configs[0]
    if own["logs_path"] not in (None, first["logs_path"]):
        return Path(own["logs_path"]).absolute()
    parent = top.parent if own["log_dir"] == first["log_dir"] else Path(own["log_dir"]).absolute()
    named = not first["logs_path"] and top.name.startswith(names[0])
    return parent / (names[instance] + top.name[len(names[0]) :] if named else f"{top.name}_{_tag(instance, source)}")


def resume(options: RunOptions, team: Team, given: Path, run_id: str) -> Folders:
    """Return the folders of a resumed run.

    `given` is the folder that the call names. Only the value in instance 0 is used.
    """
    all_log = options.logging.log_all_instances
    all_write = all_log or options.checkpoint.ckpt_all_instances
    listed = run_record.arguments(given).get("instance_folders") or []
    if team.size == 1:
        return Folders(given, tuple(listed), all_log)
    top, listed = team.broadcast_json([str(given.absolute()), listed])
    if listed and Path(listed[0]).name != Path(top).name:
        listed = []  # The run directory was copied or renamed, so create new folders for the other instances.
    everyone = [Path(top), *(_sibling(Path(top), listed, k, team.cluster.source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if all_write or team.is_first:
        if not team.is_first and _holds_run(folder) and run_record.run_id(folder) != run_id:
            raise FolderError(
                f"{folder}, the folder of instance {team.instance}, contains another run. Move that folder away, or give "
                "--no-log-all-instances --no-ckpt-all-instances, so that only instance 0 writes"
            )
        folder.mkdir(parents=True, exist_ok=True)
    added = _listed(everyone)[len(listed) :] if all_write else ()  # The run may have more instances than before.
    return Folders(folder, (*listed, *added), all_log)


def _sibling(top: Path, listed: Sequence[str], instance: int, source: str) -> Path:
    """Return the folder of an instance of a resumed run.

    A recorded folder is also found if it was moved together with `top`, the folder of instance 0. An instance without a
    recorded folder gets a new folder next to `top`.
    """
    if instance < len(listed):
        beside = top.parent / Path(listed[instance]).name
        return Path(listed[instance]) if os.path.isabs(listed[instance]) and not beside.is_dir() else beside
    before, tag, after = top.name.rpartition(_tag(0, source))
    own = _tag(instance, source)
    return top.with_name(f"{before}{own}{after}" if tag else f"{top.name}_{own}")


def _listed(everyone: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders as a run records them: by name if they are next to the folder of instance 0, otherwise by path."""
    return tuple(each.name if each.parent == everyone[0].parent else str(each) for each in everyone)


def _tag(instance: int, source: str) -> str:
    return f"popdist_instance_{instance}" if source == POPRUN else f"worker{instance}"


def writes(execution: Execution, checkpoint: CheckpointOptions) -> bool:
    """Return whether this instance writes logs or checkpoints."""
    return execution.cluster.instance == 0 or execution.all_log or checkpoint.ckpt_all_instances
