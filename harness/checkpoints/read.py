"""Reads checkpoints. The manifest proves the bytes, and TensorFlow's own reader reads the tensors. Checkpoints of other
programs have no manifest: TensorFlow's checksums alone protect them. Weights may also be in one .npz file."""

from __future__ import annotations

import glob
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from base import bounds
from base.fields import short
from base.process import tf_runtime
from emulator.plan.checkpoint_tensors import STEP
from harness.checkpoints import find, manifest, npz_weights, run_record
from harness.checkpoints.checkpoint import AVERAGES, NUMBERED, Checkpoint, CheckpointError, Shapes, updates_in_name
from harness.checkpoints.state_file import ITERATION
from harness.run.recorded_arguments import RUN_ID

if TYPE_CHECKING:
    import numpy as np

Tensors = dict[str, "np.ndarray"]
_PLAIN = re.compile(r"[\w /.,:;=+%@~#!()-]+", re.ASCII)  # paths that TensorFlow's reader takes for no pattern
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A checkpoint to resume from, and its tensors, where this instance has read them. Loading them into a program
    empties the dict, so that the memory is free again."""

    checkpoint: Checkpoint
    values: Tensors

    @property
    def updates(self) -> int:
        """The number of updates that are done."""
        return self.checkpoint.updates


def find_latest(folder: Path, option: str = "--restore-path") -> tuple[Checkpoint, list[str]]:
    """Return the newest whole checkpoint of a run folder, and a warning for each newer damaged one."""
    return _newest_usable(find.run_checkpoints(folder, option), f"{option} {folder}", _whole)


def load_latest(
    folder: Path, option: str = "--restore-path", verified: Checkpoint | None = None
) -> tuple[Checkpoint, Tensors, list[str]]:
    """Return the newest whole checkpoint of a run folder, its tensors, and a warning for each newer damaged one. `verified`:
    the result of `find_latest`, whose files are not compared with their manifest again."""
    return load_newest_of(find.run_checkpoints(folder, option), f"{option} {folder}", verified)


def load_newest_of(
    checkpoints: Iterable[Checkpoint], option: str, verified: Checkpoint | None = None
) -> tuple[Checkpoint, Tensors, list[str]]:
    """As `load_latest`, of these checkpoints. `option` names them in errors; the error of a single one is its own."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.updates)
    if len(ordered) == 1:
        return ordered[0], tensors(ordered[0], verify=ordered[0] != verified), []
    newest, warnings = _newest_usable(ordered, option, lambda each: (each, _tensors(each, verify=each != verified)))
    return *newest, warnings


def _newest_usable(
    checkpoints: Sequence[Checkpoint], option: str, load: Callable[[Checkpoint], _Result]
) -> tuple[_Result, list[str]]:
    """Try `load` on the checkpoints from the newest backward; return the first result, and a warning for each failure."""
    damaged: list[tuple[Checkpoint, CheckpointError]] = []
    for checkpoint in reversed(checkpoints):
        try:
            return load(checkpoint), [_damage_warning(*each) for each in damaged]
        except CheckpointError as error:
            damaged.append((checkpoint, error))
    raise _all_damaged(option, damaged)


def usable_checkpoints(
    checkpoints: Sequence[Checkpoint], limit: int | None = None, finite: bool = True
) -> tuple[list[Checkpoint], list[str]]:
    """Return the whole checkpoints, or the last `limit` of them, and a warning for each other one. `finite`: with finite
    values alone."""
    good, damaged = [], []
    for checkpoint in reversed(checkpoints):
        if len(good) == limit:
            break
        try:
            good.append(_check_finite(_whole(checkpoint)) if finite else _whole(checkpoint))
        except CheckpointError as error:
            damaged.append(_damage_warning(checkpoint, error))
    return good[::-1], damaged[::-1]


def load_init_path(path: Path) -> tuple[Checkpoint, Tensors, list[str]]:
    """Return the checkpoint of `--init-path`, its tensors, and a warning for each newer damaged one in its folder."""
    place = find.init_checkpoint(path)
    if isinstance(place, Path):
        return load_latest(place, "--init-path")
    return place, tensors(place), []


def tensors(checkpoint: Checkpoint, *, verify: bool = True) -> Tensors:
    """Return every tensor of a checkpoint by name; CheckpointError for one that is damaged, or of another update than its
    name says. `verify`: compare the files with their manifest first."""
    file = npz_weights.located(Path(checkpoint.prefix))
    if file:
        return npz_weights.arrays(file)
    with _errors_name_checkpoint(checkpoint):
        return _tensors(checkpoint, verify)


def readable_shapes(
    checkpoints: Sequence[Checkpoint], option: str, *, verify: bool = False
) -> tuple[list[tuple[Checkpoint, Shapes]], list[str]]:
    """Return the shapes of the tensors of each checkpoint that is not damaged, and a warning for each other one; `option`
    names all in errors. `verify`: compare the files of several with their manifests, which takes as long as reading them."""
    if len(checkpoints) == 1:
        return [(checkpoints[0], shapes(checkpoints[0]))], []
    good: list[tuple[Checkpoint, Shapes]] = []
    damaged: list[tuple[Checkpoint, CheckpointError]] = []
    for checkpoint in checkpoints:
        try:
            good.append((checkpoint, _shapes(checkpoint, verify)))
        except CheckpointError as error:
            damaged.append((checkpoint, error))
    if damaged and not good:
        raise _all_damaged(option, damaged)
    return good, [_damage_warning(*each) for each in damaged]


def shapes(checkpoint: Checkpoint) -> Shapes:
    """Return the shapes of the tensors by name, or raise the error of `tensors`."""
    if npz_weights.located(Path(checkpoint.prefix)):
        return {name: value.shape for name, value in tensors(checkpoint).items()}
    with _errors_name_checkpoint(checkpoint):
        return _shapes(checkpoint, verify=True)


def _all_damaged(option: str, damaged: Sequence[tuple[Checkpoint, CheckpointError]]) -> CheckpointError:
    newest, why = damaged[0]
    return CheckpointError(f"{option}: all {len(damaged)} checkpoints are damaged; of {newest.name}, {why}")


def _damage_warning(checkpoint: Checkpoint, why: CheckpointError) -> str:
    return f"warning: checkpoint {checkpoint.name} is damaged and left out: {why}"


@contextmanager
def _errors_name_checkpoint(checkpoint: Checkpoint) -> Iterator[None]:
    """Prefix errors of `tensors` and `shapes` with the checkpoint's name."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {checkpoint.prefix} is damaged: {error}") from None


def _whole(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint; CheckpointError if it is damaged. Where a manifest proves the files, no tensor is read."""
    _check_files(checkpoint)
    if not manifest.exists(Path(checkpoint.prefix)):
        _tensors(checkpoint, verify=False)
    return checkpoint


def _check_files(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose files differ from its manifest, or whose run or update is another than its name says."""
    prefix = Path(checkpoint.prefix)
    damage = manifest.find_damage(prefix)
    if damage:
        raise CheckpointError(damage)
    identity, updates = manifest.identity(prefix), updates_in_name(checkpoint.name)
    of_run = NUMBERED.fullmatch(checkpoint.name) or prefix.parent.name == AVERAGES  # others may be anybody's
    own = {ITERATION: updates, RUN_ID: run_record.run_id(find.run_folder(prefix)) if of_run else None}
    if any(None not in (own[name], identity.get(name)) and own[name] != identity[name] for name in own):
        raise CheckpointError(
            f"it is of update {identity.get(ITERATION)} of run {identity.get(RUN_ID)}: it was copied or renamed"
        )


def _check_finite(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint, which is whole; CheckpointError if a value is not finite."""
    import numpy as np

    for name, value in _tensors(checkpoint, verify=False).items():
        if not np.isfinite(value).all():
            raise CheckpointError(f"{short(name)} holds values that are not finite")
    return checkpoint


def _shapes(checkpoint: Checkpoint, verify: bool) -> Shapes:
    if verify:
        _whole(checkpoint)
    cut = manifest.find_truncation(Path(checkpoint.prefix))
    if cut:
        raise CheckpointError(cut)
    with _reader(checkpoint) as reader:
        return {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}


def _tensors(checkpoint: Checkpoint, verify: bool) -> Tensors:
    if verify:
        _check_files(checkpoint)
    with _reader(checkpoint) as reader:
        values = {name: reader.get_tensor(name) for name in sorted(reader.get_variable_to_shape_map())}
    done, number = values.get(STEP), updates_in_name(checkpoint.name)
    if number is not None and done is not None and done.tolist() != [number]:
        raise CheckpointError(f"it holds the weights of update {short(str(done).strip('[]'))}: it was copied or renamed")
    return values


@contextmanager
def _reader(checkpoint: Checkpoint) -> Iterator[Any]:
    """Yield TensorFlow's reader of a checkpoint of numbers, which claim no more bytes than its files have; its errors become
    CheckpointError."""
    tf_runtime.import_tensorflow()
    import tensorflow.compat.v1 as tf

    try:
        with _plain_prefix(Path(checkpoint.prefix)) as prefix:
            reader = tf.train.NewCheckpointReader(prefix)
            kinds, claimed = reader.get_variable_to_dtype_map(), 0
            for name, shape in reader.get_variable_to_shape_map().items():
                kind = kinds[name]
                if not (kind.is_floating or kind.is_integer or kind.is_bool):
                    raise CheckpointError(f"{short(name)} holds no numbers")
                claimed += math.prod(shape) * kind.size
            there = sum(file.stat().st_size for file in _data_files(Path(checkpoint.prefix)))
            if claimed > there:
                raise CheckpointError(f"its files have {there:,} bytes, and its index claims tensors of {claimed:,}")
            yield reader
    except CheckpointError:
        raise
    except Exception as error:  # TensorFlow's reader raises nearly every kind for damaged bytes
        reason = tf_runtime.telling_line(error) if tf_runtime.is_of_tensorflow(error) else bounds.reason(error)
        raise CheckpointError(f"TensorFlow cannot read it: {short(reason)}") from None


@contextmanager
def _plain_prefix(prefix: Path) -> Iterator[str]:
    """Yield a prefix of the same files that holds no characters of a pattern, such as [ and *, as TensorFlow's reader looks
    for files by patterns."""
    if _PLAIN.fullmatch(str(prefix)):
        yield str(prefix)
        return
    with tempfile.TemporaryDirectory() as folder:
        for file in (prefix.with_name(f"{prefix.name}.index"), *_data_files(prefix)):
            os.symlink(file.resolve(), os.path.join(folder, f"weights{file.name[len(prefix.name) :]}"))
        yield os.path.join(folder, "weights")


def _data_files(prefix: Path) -> list[Path]:
    return list(prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"))
