"""Read checkpoints and weights files.

The manifest shows whether files are intact, and which run and update they belong to. Checkpoints of other programs have no
manifest, so only TensorFlow's checksums reveal damage.
"""

from __future__ import annotations

import glob
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cnn_harness.base import bounds
from cnn_harness.base.fields import short
from cnn_harness.base.process import tf_runtime
from cnn_harness.emulator.plan.checkpoint_tensors import STEP
from cnn_harness.harness.checkpoints import find, manifest, run_record, weights_file
from cnn_harness.harness.checkpoints.checkpoint import NUMBERED, Checkpoint, CheckpointError, Shapes, updates_in_name
from cnn_harness.harness.checkpoints.manifest import ITERATION
from cnn_harness.harness.run import validations
from cnn_harness.harness.run.recorded_arguments import RUN_ID

if TYPE_CHECKING:
    import numpy as np

Tensors = dict[str, "np.ndarray"]
_PLAIN = re.compile(r"[\w /.,:;=+%@~#!()-]+", re.ASCII)  # a path that TensorFlow's reader does not treat as a pattern
_Result = TypeVar("_Result")


class DamagedCheckpoint(CheckpointError):
    """A checkpoint is damaged, or does not belong to this name."""

    def __init__(self, checkpoint: Checkpoint, reason: str) -> None:
        super().__init__(f"checkpoint {checkpoint.prefix} is damaged: {reason}")
        self.warning = f"warning: checkpoint {checkpoint.name} is damaged and skipped: {reason}"


def find_latest(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Return the newest intact checkpoint of a run directory, and a warning for each newer damaged checkpoint."""
    (newest,), warnings = load_each(find.run_checkpoints(folder), f"--restore-path {folder}", _verified, limit=1)
    return newest, warnings


def load_network_in(folder: Path, option: str = "--restore-path") -> tuple[Checkpoint, Tensors, list[str]]:
    """Return `load_network` of the numbered checkpoints of a run directory."""
    return load_network(find.run_checkpoints(folder, option), f"{option} {folder}")


def load_network(checkpoints: Sequence[Checkpoint], option: str) -> tuple[Checkpoint, Tensors, list[str]]:
    """Return the best or newest checkpoint, its tensors, and a warning for each damaged checkpoint that was skipped.

    In a run with --keep-best-ckpt, return the checkpoint with the best validation; otherwise return the newest. Errors begin
    with `option`.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.updates)
    folder = find.run_folder(Path(ordered[-1].prefix))
    recorded = run_record.options(folder) if len(ordered) > 1 else {}
    if recorded.get("keep_best_ckpt"):
        ranked = [row["name"] for row in validations.ranked_for(recorded, validations.of_run(folder))]
        ordered.sort(key=lambda each: -ranked.index(each.name) if each.name in ranked else -math.inf)
    ((chosen, values),), warnings = load_each(ordered, option, lambda each: (each, tensors(each)), limit=1)
    return chosen, values, warnings


def load_init_path(path: Path) -> tuple[Checkpoint, Tensors, list[str]]:
    """Return the checkpoint of `--init-path`, its tensors, and a warning for each newer damaged checkpoint."""
    place = find.init_checkpoint(path)
    return load_network_in(place, "--init-path") if isinstance(place, Path) else (place, tensors(place), [])


def usable_checkpoints(
    checkpoints: Sequence[Checkpoint], limit: int | None = None, finite: bool = True
) -> tuple[list[Checkpoint], list[str]]:
    """Return the intact checkpoints, at most the last `limit`, and a warning for each skipped checkpoint.

    With `finite`, also skip checkpoints with values that are not finite.
    """
    found, damaged = _load_each(checkpoints, _finite if finite else _verified, limit)
    return found[::-1], [error.warning for error in reversed(damaged)]


def load_each(
    checkpoints: Sequence[Checkpoint], option: str, load: Callable[[Checkpoint], _Result], limit: int | None = None
) -> tuple[list[_Result], list[str]]:
    """Return the result of `load` for each intact checkpoint, and a warning for each damaged checkpoint.

    The newest checkpoint is first; `limit` is the largest number of results. Raise CheckpointError if all checkpoints are
    damaged; the message begins with `option`.
    """
    found, damaged = _load_each(checkpoints, load, limit)
    if len(checkpoints) == len(damaged) == 1:
        raise damaged[0]
    if checkpoints and not found:
        raise CheckpointError(f"{option}: all {len(checkpoints)} checkpoints are damaged; newest: {damaged[0]}")
    return found, [error.warning for error in damaged]


def _load_each(
    checkpoints: Sequence[Checkpoint], load: Callable[[Checkpoint], _Result], limit: int | None
) -> tuple[list[_Result], list[DamagedCheckpoint]]:
    found: list[_Result] = []
    damaged: list[DamagedCheckpoint] = []
    for checkpoint in reversed(checkpoints):
        if len(found) == limit:
            break
        try:
            found.append(load(checkpoint))
        except DamagedCheckpoint as error:
            damaged.append(error)
    return found, damaged


def tensors(checkpoint: Checkpoint, *, verify: bool = True) -> Tensors:
    """Return every tensor of a checkpoint by name.

    Raise DamagedCheckpoint if the checkpoint is damaged, or belongs to another run or update than its name says. With
    `verify`, compare the files with the manifest first.
    """
    file = weights_file.located(Path(checkpoint.prefix))
    if file:
        return weights_file.arrays(file)
    if verify:
        _check_manifest(checkpoint)
    with _reader(checkpoint) as reader:
        values = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    done, number = values.get(STEP), updates_in_name(checkpoint.name)
    if number is not None and done is not None and done.tolist() != [number]:
        raise DamagedCheckpoint(checkpoint, f"it contains the weights of update {short(str(done).strip('[]'))}")
    return values


def shapes(checkpoint: Checkpoint) -> Shapes:
    """Return the shapes of the tensors by name. Raise the same errors as `tensors`.

    Compare only the lengths of the files with the manifest.
    """
    if weights_file.located(Path(checkpoint.prefix)):
        return {name: value.shape for name, value in tensors(checkpoint).items()}
    _check_manifest(checkpoint, digests=False)
    with _reader(checkpoint) as reader:
        return {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}


def _verified(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint. Raise DamagedCheckpoint if it is damaged. Read the tensors only if there is no manifest."""
    _check_manifest(checkpoint)
    if not manifest.exists(Path(checkpoint.prefix)):
        tensors(checkpoint, verify=False)
    return checkpoint


def _finite(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint. Raise DamagedCheckpoint if it is damaged or has values that are not finite."""
    import numpy as np

    for name, value in tensors(checkpoint).items():
        if not np.isfinite(value).all():
            raise DamagedCheckpoint(checkpoint, f"{short(name)} has values that are not finite")
    return checkpoint


def _check_manifest(checkpoint: Checkpoint, digests: bool = True) -> None:
    """Raise DamagedCheckpoint if files differ from the manifest, or belong to another run or update."""
    prefix = Path(checkpoint.prefix)
    damage = manifest.find_damage(prefix, digests)
    if damage:
        raise DamagedCheckpoint(checkpoint, damage)
    identity, own = manifest.identity(prefix), {ITERATION: updates_in_name(checkpoint.name)}
    if NUMBERED.fullmatch(checkpoint.name):  # checkpoints with other names may be from any run
        own[RUN_ID] = run_record.run_id(prefix.parent)
    if any(None not in (value, identity.get(name)) and value != identity[name] for name, value in own.items()):
        raise DamagedCheckpoint(checkpoint, f"it is from update {identity.get(ITERATION)} of run {identity.get(RUN_ID)}")


@contextmanager
def _reader(checkpoint: Checkpoint) -> Iterator[Any]:
    """Yield TensorFlow's reader of a checkpoint, and turn its errors into DamagedCheckpoint.

    Check first that all tensors are numeric and not larger than the files.
    """
    tf_runtime.import_tensorflow()
    import tensorflow.compat.v1 as tf

    try:
        with _plain_prefix(Path(checkpoint.prefix)) as prefix:
            reader = tf.train.NewCheckpointReader(prefix)
            kinds, claimed = reader.get_variable_to_dtype_map(), 0
            for name, shape in reader.get_variable_to_shape_map().items():
                kind = kinds[name]
                if not (kind.is_floating or kind.is_integer or kind.is_bool):
                    raise DamagedCheckpoint(checkpoint, f"{short(name)} is not numeric")
                claimed += math.prod(shape) * kind.size
            there = sum(file.stat().st_size for file in _data_files(Path(checkpoint.prefix)))
            if claimed > there:
                raise DamagedCheckpoint(
                    checkpoint, f"its files have {there:,} bytes, but its index lists tensors of {claimed:,} bytes"
                )
            yield reader
    except CheckpointError:
        raise
    except Exception as error:  # TensorFlow's reader raises many types of errors for damaged files
        reason = tf_runtime.telling_line(error) if tf_runtime.is_of_tensorflow(error) else bounds.reason(error)
        raise DamagedCheckpoint(checkpoint, f"TensorFlow cannot read it: {short(reason)}") from None


@contextmanager
def _plain_prefix(prefix: Path) -> Iterator[str]:
    """Yield a prefix of the same files without [ and *, because TensorFlow's reader treats these characters as patterns."""
    if _PLAIN.fullmatch(str(prefix)):
        yield str(prefix)
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in (prefix.with_name(f"{prefix.name}.index"), *_data_files(prefix)):
            os.symlink(file.resolve(), os.path.join(folder, f"weights{file.name[len(prefix.name) :]}"))
        yield os.path.join(folder, "weights")


def _data_files(prefix: Path) -> list[Path]:
    return list(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))
