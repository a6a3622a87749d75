"""Write checkpoints atomically, in a separate thread while training continues.

The files are written to a temporary folder, flushed to disk, and then moved into place. The index is moved last, so every
checkpoint with an index is complete.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import Failure
from cnn_harness.base.process import printed, tf_runtime
from cnn_harness.base.storage import files, locks
from cnn_harness.harness.checkpoints import find, manifest, run_record
from cnn_harness.harness.checkpoints.checkpoint import AVERAGES, Checkpoint, CheckpointError
from cnn_harness.harness.checkpoints.manifest import ITERATION
from cnn_harness.harness.run.recorded_arguments import RUN_ID

if TYPE_CHECKING:
    import numpy as np

_CHECKPOINT_SUFFIX = re.compile(r"\.(index|data-[0-9]+-of-[0-9]+|state\.json|manifest\.json|meta)")
STAGING_PREFIX = ".saving-"  # the names of temporary folders begin with it


class SaveError(Failure):
    """A checkpoint could not be written. Earlier checkpoints are unchanged."""


def save_numbered(checkpoint: Checkpoint, values: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
    """Write a numbered checkpoint, and its name to the file `checkpoint`, from which TensorFlow finds the newest one."""
    prefix = Path(checkpoint.prefix)
    identity = {ITERATION: checkpoint.updates, RUN_ID: state.get(run_record.RECORDED, {}).get(RUN_ID)}
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
) -> Checkpoint:  # fmt: skip
    """Write a checkpoint with these values and state. Replace a checkpoint with the same name.

    `identity` is the run and the update, for the manifest.
    """
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
    return Checkpoint(str(prefix))


def delete(prefix: Path) -> None:
    """Delete the files of a checkpoint: first the index, so that the other files no longer count as a checkpoint.

    The manifest is deleted last, so that `foreign_file` recognises files that a killed process left.
    """
    for file in _files_of(prefix):
        file.unlink(missing_ok=True)


def foreign_file(prefix: Path) -> Path | None:
    """Return a file that a checkpoint of weights only must not replace, or None if there is none.

    Such a checkpoint may replace only another one of weights only: it has a manifest and no training state.
    """
    there = _files_of(prefix)
    with_state = any(file.name.endswith((".state.json", ".meta")) for file in there)
    return None if manifest.exists(prefix) and not with_state else next(iter(there), None)


def prune(
    folder: Path, newest: Checkpoint, count: int | None, is_scheduled: Callable[[int], bool], keep_name: str = ""
) -> None:  # fmt: skip
    """Delete old checkpoints after `newest` is written.

    Delete all earlier safety checkpoints. Keep `keep_name` and the `count` newest of the other checkpoints. Checkpoints
    outside of the schedule are deleted first, because an uninterrupted run does not have them.
    """
    earlier = [each for each in find.numbered(folder) if each.updates < newest.updates]
    old_safety = [old for old in earlier if old.updates and not is_scheduled(old.updates) and _is_for_safety(old)]
    permanent = [old for old in earlier if old not in old_safety and old.name != keep_name]
    permanent.sort(key=lambda old: (old.updates == 0 or is_scheduled(old.updates), old.updates))
    surplus = max(0, len(permanent) + 1 - count) if count else 0
    for old in old_safety + permanent[:surplus]:
        delete(Path(old.prefix))


def _is_for_safety(checkpoint: Checkpoint) -> bool:
    """Return whether the next checkpoint replaces this one. Return False for a damaged checkpoint; readers skip it."""
    with suppress(CheckpointError):
        return bool(run_record.state(checkpoint).get(run_record.SAFETY))
    return False


def _files_of(prefix: Path) -> list[Path]:
    """Return the files of a checkpoint in the order of `_in_order`, without backups and other files that begin like it."""
    files_like_it = prefix.parent.glob(f"{glob.escape(prefix.name)}.*")
    return _in_order(file for file in files_like_it if _CHECKPOINT_SUFFIX.fullmatch(file.name[len(prefix.name) :]))


def _in_order(checkpoint_files: Iterable[Path]) -> list[Path]:
    """Sort the files of a checkpoint for deletion: the index first, the manifest last."""
    return sorted(checkpoint_files, key=lambda file: (file.suffix != ".index", file.name.endswith(".manifest.json")))


def remove_unfinished(folder: Path) -> None:
    """Delete the unfinished files of a killed process. No other process may write to the folder at this time."""
    for parent in (folder, folder / AVERAGES):
        for left in parent.glob(f"{STAGING_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
    for left in list(files.unfinished(folder)):
        left.unlink(missing_ok=True)


class Writer:
    """Run one task at a time in a separate thread. The next `submit` raises the error of the previous task.

    `latest` is the name of the checkpoint from which the run can resume. The tasks set it.
    """

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
            with suppress(OSError):  # the run may have ended because the output is closed
                print(save_error, flush=True)  # the error that ended the run is raised as well
        finally:
            self._thread.shutdown()

    @property
    def has_saved(self) -> bool:
        """True if this call has saved a checkpoint."""
        return self.latest != self._resumed

    def submit(self, task: Callable[[], None]) -> None:
        """Wait for the previous task, then start this task."""
        self.wait_until_finished()
        self._task = self._thread.submit(printed.for_thread(task))

    def wait_until_finished(self) -> None:
        """Wait for the current task, and raise its error."""
        task, self._task = self._task, None
        if task is not None:
            task.result()

    def poll(self) -> None:
        """Raise the error of the current task if it has finished, without waiting."""
        if self._task is not None and self._task.done():
            self.wait_until_finished()


def fingerprint(values: Mapping[str, np.ndarray]) -> str:
    """Return 16 hexadecimal digits that are the same only for tensors with the same names, types, shapes and bits."""
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
    """Flush the list of files in a folder to disk, if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some network file systems do not support it
    finally:
        os.close(descriptor)


def _reason(prefix: Path, values: Mapping[str, np.ndarray], error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) else tf_runtime.device_error(error).rsplit("; ", 1)[-1]
    megabytes = sum(value.nbytes for value in values.values()) / 1e6
    return f"checkpoint {prefix} cannot be written: {reason} (it needs {megabytes:,.1f} MB)"
