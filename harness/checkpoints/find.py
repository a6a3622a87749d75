"""Finds checkpoints: in a run folder, and by the paths that --restore-path and --init-path name. No content but that of .npz
files, and the file `checkpoint`, is read."""

from __future__ import annotations

import glob
import os
from contextlib import suppress
from pathlib import Path

from base.process.command_line import as_value
from base.process.commands import in_shell
from harness.checkpoints import npz_weights
from harness.checkpoints.checkpoint import AVERAGES, NUMBERED, Checkpoint, CheckpointError

_MAX_NAMED = 3  # runs in a folder that is none itself


def numbered(folder: Path) -> list[Checkpoint]:
    """The ckpt-<n> of a folder in order of n."""
    names = [index for index in indices(folder) if NUMBERED.fullmatch(index.stem)]
    return sorted(map(Checkpoint.of_index, names), key=lambda checkpoint: checkpoint.updates)


def indices(folder: Path) -> list[Path]:
    """The *.index directly in a folder; none if there is no folder, CheckpointError if it may not be looked into."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}") from None
    return [folder / name for name in names if name.endswith(".index")]


def run_checkpoints(folder: Path, option: str = "--restore-path") -> list[Checkpoint]:
    """Return the ckpt-<n> that a run can resume from; CheckpointError if there are none."""
    if option == "--restore-path":
        check_run_folder(folder)
    checkpoints = numbered(folder)
    if not checkpoints:
        looked_for = f"looked for {folder}/ckpt-<number>.index"
        raise CheckpointError(f"{option} {folder} holds no checkpoint ({looked_for}){_runs_in(folder)}")
    return checkpoints


def check_run_folder(folder: Path) -> None:
    """CheckpointError for anything else that --restore-path names where a run folder is needed."""
    _check_local("--restore-path", folder)
    if not folder.is_dir():
        raise CheckpointError(f"--restore-path {folder} is not a folder; give the run folder, as in logs/<run>")


def select(path: Path, by_prefix: bool = True) -> list[Checkpoint]:
    """`--restore-path` of a validation: all checkpoints of a folder (numbered first, then averages in its ckpt/ folder), the
    checkpoints with a common prefix, or weights in a .npz file. `by_prefix` False: for one network, of which a name that
    only begins like another's is a mistake."""
    _check_local("--restore-path", path)
    file = npz_weights.located(path)
    if file:
        return [Checkpoint(str(file))]
    path = _run_folder_of_averages(path)
    if path.is_dir():
        averages = [Checkpoint(str(index).removesuffix(".index")) for index in sorted(indices(path / AVERAGES))]
        checkpoints = [*numbered(path), *averages]
        if not checkpoints:
            looked_for = "looked for ckpt-<number>.index and ckpt/*.index"
            raise CheckpointError(f"--restore-path {path} holds no checkpoint ({looked_for}){_runs_in(path)}")
        return checkpoints
    index = _index(path)
    if index.exists():
        return [Checkpoint.of_index(index)]
    checkpoints = [Checkpoint.of_index(index) for index in sorted(path.parent.glob(f"{glob.escape(path.name)}*.index"))]
    if not checkpoints:
        _check_own_format("--restore-path", path)
        raise CheckpointError(
            f"--restore-path {path}: no such folder, and no checkpoint {path}*.index"
            f"; weights that come with the project: {', '.join(npz_weights.BUNDLED)}"
        )
    checkpoints.sort(key=lambda checkpoint: checkpoint.updates)
    if not by_prefix:
        names = ", ".join(checkpoint.name for checkpoint in checkpoints[:_MAX_NAMED])
        raise CheckpointError(f"--restore-path {path}: no such checkpoint; names that begin so: {names}")
    return checkpoints


def _runs_in(folder: Path) -> str:
    """'; runs in it: a, b' for a folder around runs, as cnn finetune and cnn sweep make, or nothing."""
    runs = []
    with suppress(OSError, CheckpointError):
        runs = [str(each) for each in sorted(folder.iterdir()) if numbered(each)]
    more = ", ..." if len(runs) > _MAX_NAMED else ""
    return f"; runs in it: {', '.join(runs[:_MAX_NAMED])}{more}" if runs else ""


def init_checkpoint(path: Path) -> Checkpoint | Path:
    """`--init-path`: a checkpoint, or a folder that has some. CheckpointError for neither; weights in a .npz file are read,
    so that damaged ones are refused before anything is written."""
    _check_local("--init-path", path)
    file = npz_weights.located(path)
    if file:
        npz_weights.options(file)
        npz_weights.arrays(file)
        return Checkpoint(str(file))
    if path.is_dir() and numbered(path):
        return path
    if not path.is_dir() and _index(path).exists():
        return Checkpoint.of_index(_index(path))
    _check_own_format("--init-path", path)
    raise CheckpointError(
        f"--init-path {path}: no checkpoint there; give a run folder, a prefix as in logs/<run>/ckpt-500, a .npz file, "
        f"or {' or '.join(npz_weights.BUNDLED)}"
    )


def prefix(path: Path) -> Path:
    """The prefix of a checkpoint's files; the path may be that of its index."""
    name = path.name.removesuffix(".index").removesuffix(".meta")
    return path.with_name(name) if name else path


def _index(path: Path) -> Path:
    """The .index of a checkpoint's prefix."""
    return prefix(path).with_name(prefix(path).name + ".index")


def run_folder(path: Path) -> Path:
    """The place of a restore path's options: the run folder, or the .npz file itself."""
    file = npz_weights.located(path)
    if file:
        return file
    if path.is_dir():
        return _run_folder_of_averages(path)
    return path.parent.parent if path.parent.name == AVERAGES else path.parent


def _run_folder_of_averages(path: Path) -> Path:
    """Return `<run>` for `<run>/ckpt`, and any other path unchanged. A run records `<run>/ckpt` as its checkpoint_path: the
    folder of its averages, and the common prefix of its checkpoints."""
    of_averages = path.name == AVERAGES and path.is_dir() and not numbered(path) and not (path / AVERAGES).is_dir()
    return path.parent if of_averages and numbered(path.parent) else path


def _check_local(option: str, path: Path) -> None:
    """Refuse an address, as nothing is fetched. A path has one slash where an address has two."""
    scheme, _, rest = str(path).partition(":/")
    if rest and scheme.isalnum() and not path.exists():
        raise CheckpointError(f"{option} {scheme}://{rest}: only files here are read; download it first, and give its path")


def _check_own_format(option: str, path: Path) -> None:
    """Other projects' files are named as such."""
    if path.suffix in npz_weights.FOREIGN:
        raise CheckpointError(
            f"{option} {path}: weights of another project have to be imported first: "
            f"python tools/import_weights.py {in_shell([as_value(path)])}"
        )
