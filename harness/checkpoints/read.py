"""Reads checkpoints without TensorFlow: their tensors, or the names and shapes of these. The manifest, the update of the
name, the state and the tensors, and the run of the state must agree; weights in one .npz file have none of these."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from base.fields import brief
from base.storage import input_files, tensor_bundle
from emulator.plan.checkpoint_tensors import STEP
from harness.checkpoints import find, manifest, npz_weights, run_record, state_file
from harness.checkpoints.checkpoint import NUMBERED, Checkpoint, CheckpointError, Shapes, updates_in_name
from harness.checkpoints.state_file import ITERATION
from harness.run.recorded_arguments import RUN_ID

if TYPE_CHECKING:
    import numpy as np

Tensors = dict[str, "np.ndarray"]
_AVERAGE_OF_RUN = re.compile(r"weight_avg_(N|exp)_.*")  # the names that a run gives
_OF_ANOTHER_RUN = "it is another run's, copied into this folder; --init-path begins a new run with weights of any run"
_Result = TypeVar("_Result")


class NotPermitted(CheckpointError):
    """A file of a checkpoint may not be read, so nothing is known of the checkpoint."""


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
    """The newest checkpoint of a run folder that is whole, and a warning for each newer damaged one. The tensors are not
    read where a manifest proves it whole, which is nearly always."""
    return _newest_usable(find.run_checkpoints(folder, option), f"{option} {folder}", _check_whole)


def load_latest(
    folder: Path, option: str = "--restore-path", verified: Checkpoint | None = None
) -> tuple[Checkpoint, Tensors, list[str]]:
    """The newest checkpoint of a run folder that can be read and holds the weights of its number, its tensors, and a
    warning for each newer damaged one. `verified`: the result of `find_latest`, whose files are not compared with their
    manifest again."""
    return load_newest_of(find.run_checkpoints(folder, option), f"{option} {folder}", verified)


def load_newest_of(
    checkpoints: Iterable[Checkpoint], option: str, verified: Checkpoint | None = None
) -> tuple[Checkpoint, Tensors, list[str]]:
    """As `load_latest`, of these checkpoints. `option` names them in errors; the error of a single one is its own."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.updates)
    if len(ordered) == 1:
        return ordered[0], tensors(ordered[0], verify=ordered[0] != verified), []
    newest, warnings = _newest_usable(ordered, option, lambda each: (each, _read_tensors(each, verify=each != verified)))
    return *newest, warnings


def _newest_usable(
    checkpoints: Sequence[Checkpoint], option: str, load: Callable[[Checkpoint], _Result]
) -> tuple[_Result, list[str]]:
    """Try `load` on the checkpoints from the newest backward; return the first result, and a warning for each checkpoint
    that failed. CheckpointError for one that may not be read: a run that resumed from an earlier one would write over it."""
    damaged: list[tuple[str, CheckpointError]] = []
    for checkpoint in reversed(checkpoints):
        try:
            return load(checkpoint), [_damage_warning(name, why) for name, why in damaged]
        except CheckpointError as error:
            _check_permitted(checkpoint)
            damaged.append((checkpoint.name, error))
    raise _all_damaged(option, damaged)


def _check_permitted(checkpoint: Checkpoint) -> None:
    prefix = Path(checkpoint.prefix)
    for file in sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*")):
        try:
            input_files.open_regular_file(file).close()
        except PermissionError as error:
            raise NotPermitted(
                f"{file} cannot be read: {error.strerror}; make it readable, or move {prefix.name} away to do without it"
            ) from None
        except OSError:
            pass  # damage of another kind


def _permission_error_or(checkpoint: Checkpoint, error: CheckpointError) -> CheckpointError:
    """Why a checkpoint cannot be used: a file that may not be read is no damage."""
    try:
        _check_permitted(checkpoint)
    except NotPermitted as denied:
        return denied
    return error


def usable_checkpoints(
    checkpoints: Sequence[Checkpoint], limit: int | None = None, finite: bool = True
) -> tuple[list[Checkpoint], list[str]]:
    """The checkpoints that can be read and hold the weights of their numbers, or the last `limit` of them, and a warning
    for each other one. `finite`: with finite values alone."""
    good, damaged = [], []
    for checkpoint in reversed(checkpoints):
        if len(good) == limit:
            break
        try:
            good.append(_check_finite(_check_whole(checkpoint)) if finite else _check_whole(checkpoint))
        except CheckpointError as error:
            damaged.append(_damage_warning(checkpoint.name, _permission_error_or(checkpoint, error)))
    return good[::-1], damaged[::-1]


def load_init_path(path: Path) -> tuple[Checkpoint, Tensors, list[str]]:
    """The checkpoint of `--init-path`, its tensors, and a warning for each newer damaged one in its folder."""
    place = find.init_checkpoint(path)
    if isinstance(place, Path):
        return load_latest(place, "--init-path")
    return place, tensors(place), []


def tensors(checkpoint: Checkpoint, *, verify: bool = True) -> Tensors:
    """Every tensor of a checkpoint by name; CheckpointError for one that is damaged, or holds another update's weights
    than its name says. `verify`: compare the files with their manifest first."""
    file = npz_weights.located(Path(checkpoint.prefix))
    if file:
        return npz_weights.arrays(file)
    with _errors_name_checkpoint(checkpoint):
        return _read_tensors(checkpoint, verify)


def shapes(checkpoint: Checkpoint, *, verify: bool = True) -> Shapes:
    """The shapes of the tensors by name, or the error of `tensors`."""
    if npz_weights.located(Path(checkpoint.prefix)):
        return {name: value.shape for name, value in tensors(checkpoint).items()}
    with _errors_name_checkpoint(checkpoint):
        return _read_shapes(checkpoint, verify)


def readable_shapes(
    checkpoints: Sequence[Checkpoint], option: str, *, verify: bool = False
) -> tuple[list[tuple[Checkpoint, Shapes]], list[str]]:
    """The shapes of each checkpoint that is not damaged, and a warning for each other one; `option` names all in errors.
    Several are compared with their manifests only to `verify` them: that takes as long as reading them, which follows
    anyway."""
    if len(checkpoints) == 1:
        return [(checkpoints[0], shapes(checkpoints[0]))], []
    good: list[tuple[Checkpoint, Shapes]] = []
    damaged: list[tuple[str, CheckpointError]] = []
    for checkpoint in checkpoints:
        try:
            good.append((checkpoint, _read_shapes(checkpoint, verify)))
        except CheckpointError as error:
            damaged.append((checkpoint.name, _permission_error_or(checkpoint, error)))
    if damaged and not good:
        raise _all_damaged(option, damaged)
    return good, [_damage_warning(name, why) for name, why in damaged]


def _all_damaged(option: str, damaged: Sequence[tuple[str, CheckpointError]]) -> CheckpointError:
    kinds = "damaged or unreadable" if any(isinstance(why, NotPermitted) for _, why in damaged) else "damaged"
    return CheckpointError(f"{option}: all {len(damaged)} checkpoints are {kinds}; of {damaged[0][0]}, {damaged[0][1]}")


def _damage_warning(name: str, why: CheckpointError) -> str:
    if isinstance(why, NotPermitted):
        return f"warning: checkpoint {name} is left out: {why}"
    return f"warning: checkpoint {name} is damaged and left out: {why}"


@contextmanager
def _errors_name_checkpoint(checkpoint: Checkpoint) -> Iterator[None]:
    """Prefix errors of `tensors` and `shapes` with the checkpoint's name."""
    try:
        yield
    except CheckpointError as error:
        _check_permitted(checkpoint)
        raise CheckpointError(f"checkpoint {checkpoint.prefix} is damaged: {error}") from None


def _check_whole(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint; CheckpointError if it cannot be read or holds other weights than those of its number. Where a manifest
    proves the files, no more than the tensors' list and their own count of updates is read."""
    _check_files_and_state(checkpoint)
    proved = manifest.exists(Path(checkpoint.prefix))
    _read_bundle(checkpoint, verify=not proved, only=(STEP,) if proved else None)
    return checkpoint


def _check_files_and_state(checkpoint: Checkpoint) -> None:
    """CheckpointError if the files are not those of the manifest, or the state is another checkpoint's."""
    damage = manifest.find_damage(Path(checkpoint.prefix))
    if damage:
        raise CheckpointError(damage)
    state = state_file.read(checkpoint)
    done, number = state.get(ITERATION), updates_in_name(checkpoint.name)
    if number is not None and done is not None and done != number:
        raise CheckpointError(f"{checkpoint.state_path.name} is of update {done}: the checkpoint was copied or renamed")
    if _is_of_another_run(checkpoint, state):
        raise CheckpointError(_OF_ANOTHER_RUN)
    wrong = wrong_average_reason(Path(checkpoint.prefix))
    if wrong:
        raise CheckpointError(wrong)


def wrong_average_reason(prefix: Path) -> str | None:
    """Return why an average of a run's end is not the one that its name and its place promise; None if it is. One with a
    name of its own, and any other checkpoint, may be anybody's."""
    of = manifest.average(prefix)
    if not of or not _AVERAGE_OF_RUN.fullmatch(prefix.name):
        return None
    if of.get("name") != prefix.name:
        return f"it is {brief(of.get('name'))}, copied or renamed"
    with suppress(CheckpointError):  # unreadable options name no run
        own = run_record.run_id(find.run_folder(prefix))
        if None not in (own, of.get(RUN_ID)) and own != of[RUN_ID]:
            return _OF_ANOTHER_RUN
    return None


def _is_of_another_run(checkpoint: Checkpoint, state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint's training state names another run than the options beside it. A checkpoint with a name of
    its own may be anybody's."""
    if not NUMBERED.fullmatch(checkpoint.name):
        return False
    with suppress(CheckpointError):  # unreadable options name no run
        folder = Path(checkpoint.prefix).parent
        return bool(state.get(RUN_ID)) and run_record.run_id(folder) not in (None, state[RUN_ID])
    return False


def _check_finite(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, which is whole; CheckpointError if a value is not finite."""
    import numpy as np

    for name, value in _read_bundle(checkpoint, verify=False).items():
        if not np.isfinite(value).all():
            raise CheckpointError(f"{brief(name)} holds values that are not finite")
    return checkpoint


def _read_shapes(checkpoint: Checkpoint, verify: bool) -> Shapes:
    if verify:
        _check_whole(checkpoint)
    try:
        return tensor_bundle.shapes(Path(f"{checkpoint.prefix}.index"))
    except tensor_bundle.Damaged as error:
        raise CheckpointError(str(error)) from None


def _read_tensors(checkpoint: Checkpoint, verify: bool) -> Tensors:
    if verify:
        _check_files_and_state(checkpoint)
    return _read_bundle(checkpoint, verify)


def _read_bundle(checkpoint: Checkpoint, verify: bool, only: Collection[str] | None = None) -> Tensors:
    """The tensors, or those of the names in `only`; CheckpointError if they are of another update than the checkpoint's name
    says. `verify`: compare them with the checksums in the index."""
    try:
        values = tensor_bundle.tensors(Path(f"{checkpoint.prefix}.index"), verify, only)
    except tensor_bundle.Damaged as error:
        raise CheckpointError(str(error)) from None
    done, number = values.get(STEP), updates_in_name(checkpoint.name)
    if number is not None and done is not None and done.tolist() != [number]:
        raise CheckpointError(f"it holds the weights of update {brief(str(done).strip('[]'))}: it was copied or renamed")
    return values
