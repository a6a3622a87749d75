"""Find checkpoints in run directories and at the paths of --restore-path and --init-path.

This module reads the names of files, but no file except weights files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from cnn_harness.base.process.command_line import as_value
from cnn_harness.base.process.commands import in_shell
from cnn_harness.harness.checkpoints import weights_file
from cnn_harness.harness.checkpoints.checkpoint import AVERAGES, NUMBERED, Checkpoint, CheckpointError

_MAX_NAMED, _MAX_LISTED = 3, 12


def numbered(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints ckpt-<n> of a folder, in order of n."""
    return in_order(index for index in indices(folder) if NUMBERED.fullmatch(index.stem))


def in_order(indices: Iterable[Path]) -> list[Checkpoint]:
    """Return the checkpoints of .index files, in order of updates."""
    return sorted(map(Checkpoint.of_index, indices), key=lambda checkpoint: (checkpoint.updates, checkpoint.prefix))


def indices(folder: Path) -> list[Path]:
    """Return the *.index files directly in a folder, or [] if the folder does not exist.

    Raise CheckpointError if the folder cannot be read.
    """
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".index"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None


def run_checkpoints(folder: Path, option: str = "--restore-path") -> list[Checkpoint]:
    """Return the checkpoints ckpt-<n> of a run directory. Raise CheckpointError if there are none."""
    check_run_folder(folder, option)
    checkpoints = numbered(folder)
    if not checkpoints:
        raise nothing_in(folder, "ckpt-<number>.index", option)
    return checkpoints


def check_run_folder(folder: Path, option: str = "--restore-path") -> None:
    """Raise CheckpointError if a path is not a folder."""
    if not os.path.isdir(folder):
        run = folder.parent if numbered(folder.parent) else "such as logs/<run>"
        raise CheckpointError(f"{option} {folder} is not a folder; give the run directory, {run}")


def nothing_in(folder: Path, looked_for: str, option: str = "--restore-path") -> CheckpointError:
    """Return the error for a folder without checkpoints. The message lists runs in the folder, if there are any."""
    return CheckpointError(f"{option} {folder} has no checkpoint (searched for {looked_for}){runs_in(folder)}")


def runs_in(folder: Path) -> str:
    """Return text for the end of a message: the runs in a folder, or nothing if there are none."""
    runs = [str(each) for each in sorted(folder.iterdir()) if os.access(each, os.R_OK) and numbered(each)]
    return f"; runs in it: {', '.join(runs[:_MAX_NAMED])}{', ...' * (len(runs) > _MAX_NAMED)}" if runs else ""


def existing_checkpoints(path: Path) -> str:
    """Return text for the end of a message: the checkpoints next to a path, or nothing if there are none."""
    names = [checkpoint.name for checkpoint in numbered(path.parent)]
    shown = names if len(names) <= _MAX_LISTED else [*names[:_MAX_NAMED], "...", names[-1]]
    return f"; checkpoints there: {', '.join(shown)}" if names else ""


def select(path: Path, by_prefix: bool = True) -> list[Checkpoint]:
    """Return the checkpoints of `--restore-path` for a validation.

    The path is a run directory, the beginning of the names of checkpoints, or a weights file. A run directory has numbered
    checkpoints and averages (in ckpt/). If `by_prefix` is False, the path must be the full name of a checkpoint.
    """
    file = weights_file.located(path)
    if file:
        return [Checkpoint(str(file))]
    path = _run_folder_of_averages(path)
    if os.path.isdir(path):
        averages = [Checkpoint(str(index).removesuffix(".index")) for index in indices(path / AVERAGES)]
        checkpoints = [*numbered(path), *averages]
        if not checkpoints:
            raise nothing_in(path, "ckpt-<number>.index and ckpt/*.index")
        return checkpoints
    if os.path.exists(_index(path)):
        return [Checkpoint.of_index(_index(path))]
    checkpoints = in_order(path.parent.glob(f"{glob.escape(path.name)}*.index"))
    if not checkpoints:
        _check_own_format("--restore-path", path)
        own = ", ".join(weights_file.BUNDLED)
        raise CheckpointError(
            f"--restore-path {path}: no such folder, and no checkpoint {path}*.index"
            f"{existing_checkpoints(path) or f'; included weights: {own}'}"
        )
    if not by_prefix:
        names = ", ".join(checkpoint.name for checkpoint in checkpoints[:_MAX_NAMED])
        raise CheckpointError(f"--restore-path {path}: no such checkpoint; names that begin like it: {names}")
    return checkpoints


def init_checkpoint(path: Path) -> Checkpoint | Path:
    """Return the checkpoint of `--init-path`, or the run directory. Raise CheckpointError for any other path.

    Read a weights file, so that a damaged file is rejected before a run directory is written.
    """
    file = weights_file.located(path)
    if file:
        weights_file.options(file)
        weights_file.arrays(file)
        return Checkpoint(str(file))
    if os.path.isdir(path) and numbered(path):
        return path
    if not os.path.isdir(path) and os.path.exists(_index(path)):
        return Checkpoint.of_index(_index(path))
    _check_own_format("--init-path", path)
    raise CheckpointError(
        f"--init-path {path}: no checkpoint found; give a run directory, a checkpoint such as logs/<run>/ckpt-500, an .npz "
        f"file, a .safetensors file of cnn export, or {' or '.join(weights_file.BUNDLED)}{existing_checkpoints(path)}"
    )


def prefix(path: Path) -> Path:
    """Return the path of a checkpoint without the ending .index or .meta."""
    name = path.name.removesuffix(".index").removesuffix(".meta")
    return path.with_name(name) if name else path


def _index(path: Path) -> Path:
    return prefix(path).with_name(prefix(path).name + ".index")


def run_folder(path: Path) -> Path:
    """Return the run directory or the weights file that records the options of a checkpoint or path."""
    file = weights_file.located(path)
    if file:
        return file
    if os.path.isdir(path):
        return _run_folder_of_averages(path)
    return path.parent.parent if path.parent.name == AVERAGES else path.parent


def _run_folder_of_averages(path: Path) -> Path:
    """Return `<run>` for `<run>/ckpt`, and any other path unchanged.

    A run records `<run>/ckpt` as its checkpoint_path: its checkpoints begin with it, and the folder has its averages.
    """
    of_averages = path.name == AVERAGES and os.path.isdir(path) and not numbered(path) and not (path / AVERAGES).is_dir()
    return path.parent if of_averages and numbered(path.parent) else path


def _check_own_format(option: str, path: Path) -> None:
    """Raise CheckpointError for a weights file of another project, which must be imported first."""
    if path.suffix in weights_file.FOREIGN:
        command = f"cnn import-weights {in_shell([as_value(path)])}"
        raise CheckpointError(f"{option} {path}: weights of other projects must be imported first: {command}")
