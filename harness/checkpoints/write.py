"""Writes checkpoints: in a folder of their own first, onto the disk, then renamed into place, the index last; so a
checkpoint that is listed is whole. A writer does it in a thread of its own while training goes on.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from base.errors import Failure
from base.process import tf_runtime
from base.storage import files, locks
from harness.checkpoints import manifest, state_file
from harness.checkpoints.checkpoint import AVERAGES, NUMBERED, Checkpoint
from harness.checkpoints.state_file import ITERATION
from harness.run.recorded_arguments import RUN_ID

if TYPE_CHECKING:
    import numpy as np

_CHECKPOINT_SUFFIX = re.compile(r"\.(index|data-[0-9]+-of-[0-9]+|state\.json|manifest\.json|meta)")
STAGING_PREFIX = ".saving-"  # begins the name of a folder with unfinished files


class SaveError(Failure):
    """A checkpoint that could not be written; the earlier ones are as they were."""


def save_numbered(checkpoint: Checkpoint, values: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Write a numbered checkpoint, and the file `checkpoint` in which TensorFlow's own programs look for the newest."""
    prefix = Path(checkpoint.prefix)
    identity = {ITERATION: checkpoint.updates, RUN_ID: state.get(state_file.RECORDED, {}).get(RUN_ID)}
    write_checkpoint(prefix, values, state, identity)
    listed = f'"{prefix.name}"'
    try:
        files.write_atomically(
            prefix.parent / "checkpoint", f"model_checkpoint_path: {listed}\nall_model_checkpoint_paths: {listed}\n"
        )
    except OSError as error:
        raise SaveError(f"{prefix.parent / 'checkpoint'} cannot be written: {error.strerror}") from None


def write_checkpoint(
    prefix: Path, values: Mapping[str, np.ndarray], state: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write a checkpoint of these values, with a state beside them; another one of that name is replaced. `identity`: its
    run and update, for the manifest."""
    try:
        with locks.scratch_folder(prefix.parent, STAGING_PREFIX) as staging:
            _write_tensors(staging / prefix.name, values)
            if state is not None:
                (staging / f"{prefix.name}.state.json").write_text(json.dumps(state), encoding="utf-8")
            manifest.write(staging / prefix.name, identity)
            delete(prefix)
            for file in reversed(_in_order(staging.iterdir())):
                os.replace(file, prefix.parent / file.name)
            _sync(prefix.parent)
    except Exception as error:
        if not isinstance(error, OSError) and not tf_runtime.is_of_tensorflow(error):
            raise
        raise SaveError(_reason(prefix, values, error)) from error


def save_weights_only(
    prefix: Path, values: Mapping[str, np.ndarray], identity: Mapping[str, Any] | None = None
) -> Checkpoint:
    """Write a checkpoint of these values alone, as `write_checkpoint` does."""
    write_checkpoint(prefix, values, identity=identity)
    return Checkpoint(str(prefix))


def delete(prefix: Path) -> None:
    """Remove a checkpoint's files, the index first: the others are no checkpoint without it; and the manifest last, which
    says of what a killed process leaves that it was one."""
    for file in _files_of(prefix):
        file.unlink(missing_ok=True)


def foreign_file(prefix: Path) -> Path | None:
    """Return a file that a checkpoint of weights only would replace, though it is not of such a one: its manifest lists all
    files as they are, or all but the index, without which a killed process left them, and no training state is among them.
    None if there is none."""
    there = _files_of(prefix)
    with_state = any(file.name.endswith((".state.json", ".meta")) for file in there)
    whole = manifest.exists(prefix) and (manifest.find_damage(prefix) is None or _lacks_index_only(prefix, there))
    own = whole and not with_state
    return None if own else next(iter(there), None)


def _lacks_index_only(prefix: Path, there: Sequence[Path]) -> bool:
    tensors = [file for file in there if ".data-" in file.name]
    return not prefix.with_name(f"{prefix.name}.index").exists() and all(manifest.matches(file, prefix) for file in tensors)


def _files_of(prefix: Path) -> list[Path]:
    """A checkpoint's files, in order. Other files with a name like theirs, a backup for instance, are none."""
    checkpoint_files = [
        file
        for file in prefix.parent.glob(f"{glob.escape(prefix.name)}.*")
        if _CHECKPOINT_SUFFIX.fullmatch(file.name[len(prefix.name) :]) and (file.is_symlink() or not file.is_dir())
    ]
    return _in_order(checkpoint_files)


def _in_order(checkpoint_files: Iterable[Path]) -> list[Path]:
    """The order in which the files of a checkpoint go: the index first, the manifest last."""
    return sorted(checkpoint_files, key=lambda file: (file.suffix != ".index", file.name.endswith(".manifest.json")))


def check_writable(folder: Path, done: int = -1) -> None:
    """NotRegular for a folder in the place of a file of a checkpoint later than `done` updates, which `delete` leaves."""
    for path in folder.glob("ckpt-*.*"):
        name, dot, rest = path.name.partition(".")
        if NUMBERED.fullmatch(name) and int(name[5:]) > done and _CHECKPOINT_SUFFIX.fullmatch(dot + rest):
            files.check_writable(path, replaced=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of a process that was killed. Nothing else may be writing in the folder."""
    averages = folder / AVERAGES
    for parent in (folder, *[averages] * (not averages.is_symlink())):
        for left in parent.glob(f"{STAGING_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
    for left in list(files.unfinished(folder)):
        left.unlink(missing_ok=True)


class Writer:
    """Carries out one task at a time in a thread of its own; its error is raised where the next one begins. `latest`: the
    name of the checkpoint that the run can resume from, which the tasks set."""

    def __init__(self, latest: str | None = None) -> None:
        self.latest, self._resumed = latest, latest
        self._thread = ThreadPoolExecutor(1)
        self._task: Future[None] | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            self.wait_until_finished()
        except (SaveError, OSError) as save_error:
            if error is None:
                raise
            with suppress(OSError):  # the output may be what ends the run
                print(save_error, flush=True)  # beside the error that ends it
        finally:
            self._thread.shutdown()

    @property
    def has_saved(self) -> bool:
        """True once a checkpoint of this call holds its options."""
        return self.latest != self._resumed

    def submit(self, task: Callable[[], None]) -> None:
        """Start a task when the one before it has finished."""
        self.wait_until_finished()
        self._task = self._thread.submit(task)

    def wait_until_finished(self) -> None:
        """Wait for the present task, and raise its error."""
        task, self._task = self._task, None
        if task is not None:
            task.result()

    def poll(self) -> None:
        """Raise the present task's error if it has finished; wait for nothing."""
        if self._task is not None and self._task.done():
            self.wait_until_finished()


def fingerprint(values: Mapping[str, np.ndarray]) -> str:
    """16 hexadecimal digits that two sets of tensors share if names, types, shapes and all bits are the same."""
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(values):
        digest.update(f"{name} {values[name].dtype} {values[name].shape}".encode() + values[name].tobytes())
    return digest.hexdigest()


def _write_tensors(prefix: Path, values: Mapping[str, np.ndarray]) -> None:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default(), tf.Session() as session:
        fed = {name: tf.placeholder(value.dtype, value.shape) for name, value in values.items()}
        save = tf.raw_ops.SaveV2(
            prefix=os.fsencode(prefix), tensor_names=[*fed], shape_and_slices=[""] * len(fed), tensors=[*fed.values()]
        )
        session.run(save, {fed[name]: value for name, value in values.items()})


def _sync(folder: Path) -> None:
    """Put a folder's list of names onto the disk, where the system can do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems cannot
    finally:
        os.close(descriptor)


def _reason(prefix: Path, values: Mapping[str, np.ndarray], error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else tf_runtime.device_error(error).rsplit("; ", 1)[-1]
    megabytes = sum(value.nbytes for value in values.values()) / 1e6
    return f"checkpoint {prefix} cannot be written: {reason} (it takes {megabytes:,.1f} MB)"
