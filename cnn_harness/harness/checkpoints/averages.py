"""Average the checkpoints of a run. All tensors are averaged in float64 and then cast back to their dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.fields import short
from cnn_harness.harness.checkpoints import conversion, find, manifest, read, write
from cnn_harness.harness.checkpoints.checkpoint import AVERAGES, Checkpoint, CheckpointError, updates_in_name
from cnn_harness.harness.checkpoints.conversion import SlotUnits
from cnn_harness.harness.checkpoints.manifest import ITERATION
from cnn_harness.harness.options.sections import TrainingOptions
from cnn_harness.harness.run.length import TrainingLength

if TYPE_CHECKING:
    import numpy as np

MEAN, EXPONENTIAL = "mean", "exponential"
Values = dict[str, "np.ndarray"]


def candidates(folder: Path) -> list[Checkpoint]:
    """Return the checkpoints *ckpt-<n> directly in a folder, in order of n."""
    find.check_run_folder(folder)
    found = find.in_order(index for index in find.indices(folder) if updates_in_name(index.stem) is not None)
    if not found:
        raise find.nothing_in(folder, "*ckpt-<number>.index")
    return found


def requested_averages(options: TrainingOptions, updates: int) -> list[tuple[str, float]]:
    """Return (name in ckpt/, N or decay) for each average that --weight-avg-N and --weight-avg-exp request.

    A run that ends after 0 `updates` has no averages, because they leave out its initial weights.
    """
    if not updates:
        return []
    of_epochs = [(f"weight_avg_N_{n}", float(n)) for n in options.weight_avg_N]
    return list(dict.fromkeys([*of_epochs, *((f"weight_avg_exp_{_decay_text(d)}", d) for d in options.weight_avg_exp)]))


def _decay_text(decay: float) -> str:
    """Return a decay as text with six digits, or with more digits if six are not exact."""
    return f"{decay:g}" if float(f"{decay:g}") == decay else repr(decay)


def write_average(
    folder: Path, name: str, amount: float, length: TrainingLength, done: int, finite: bool = True
) -> tuple[Checkpoint, int, list[str]]:
    """Write one of `requested_averages` for a run that ended after `done` updates.

    Return the average, the number of averaged checkpoints, and notes on skipped checkpoints. A checkpoint is skipped if it
    is damaged or outside of the schedule of this call, or with `finite`, if it has values that are not finite.
    """
    trained = [checkpoint for checkpoint in find.numbered(folder) if checkpoint.updates]
    if name.startswith("weight_avg_N"):
        epochs = length.epochs if done == length.iterations else length.epoch(done)
        first = round(round(epochs, 1) - amount, 1)  # rounded, so that the last checkpoint is always included
        trained = [checkpoint for checkpoint in trained if round(length.epoch(checkpoint.updates), 1) >= first]
    # An uninterrupted run does not save these checkpoints.
    unscheduled = [checkpoint.name for checkpoint in trained if not length.is_checkpoint(checkpoint.updates)]
    averaged, notes = read.usable_checkpoints([each for each in trained if each.name not in unscheduled], finite=finite)
    if not averaged:
        raise CheckpointError(f"{name}: {folder} has no usable checkpoint of the requested epochs")
    if unscheduled:
        notes.append(f"{name} skips checkpoints outside of this call's schedule: {short(', '.join(unscheduled))}")
    values = mean(averaged) if name.startswith("weight_avg_N") else exponential(averaged, amount)
    (folder / AVERAGES).mkdir(exist_ok=True)
    average = write.write_checkpoint(folder / AVERAGES / name, values, identity={ITERATION: averaged[-1].updates})
    return average, len(averaged), notes


def is_up_to_date(folder: Path, name: str, updates: int) -> bool:
    """Return whether one of `requested_averages` exists, is intact, and includes the last checkpoint, after `updates`.

    An average that does not record its update may be from weight_avg.py, and does not count.
    """
    prefix = folder / AVERAGES / name
    if manifest.identity(prefix).get(ITERATION) != updates or manifest.find_damage(prefix, digests=False):
        return False
    own, newest = (Path(f"{each}.index").stat().st_mtime_ns for each in (prefix, Checkpoint.at(folder, updates).prefix))
    return own >= newest


def mean(checkpoints: Sequence[Checkpoint]) -> Values:
    """Return the arithmetic mean of checkpoints."""
    total: Values = {}
    for values in _read(checkpoints):
        total = {name: total.get(name, 0.0) + value.astype("float64") for name, value in values.items()}
    return _cast_like(values, {name: value / len(checkpoints) for name, value in total.items()})


def exponential(checkpoints: Sequence[Checkpoint], decay: float) -> Values:
    """Return the exponential average: the first checkpoint, then decay * average + (1 - decay) * next."""
    average: Values = {}
    for values in _read(checkpoints):
        exact = {name: value.astype("float64") for name, value in values.items()}
        average = {name: decay * average[name] + (1 - decay) * x for name, x in exact.items()} if average else exact
    return _cast_like(values, average)


def _read(checkpoints: Sequence[Checkpoint]) -> Iterator[Values]:
    """Yield the tensors of each checkpoint. Scale the optimiser's state to the loss scale of the last checkpoint.

    Raise CheckpointError if the names or shapes differ.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    last = SlotUnits.of_checkpoint(checkpoints[-1])
    for checkpoint in checkpoints:
        values, before = read.tensors(checkpoint, verify=False), SlotUnits.of_checkpoint(checkpoint)
        if last:
            values, _ = conversion.convert_slots(values, before, last, checkpoint)
        own = {name: value.shape for name, value in values.items()}
        shapes = shapes or own
        differing = sorted(name for name in shapes.keys() | own.keys() if shapes.get(name) != own.get(name))
        if differing:
            raise CheckpointError(
                f"checkpoint {checkpoint.prefix} cannot be averaged with {checkpoints[0].prefix}: {short(differing[0])} "
                f"differs (and {len(differing) - 1} more); average checkpoints of one network and optimiser"
            )
        yield values


def _cast_like(reference: Values, average: Values) -> Values:
    """Return the average in the dtypes of `reference`."""
    return {name: average[name].astype(value.dtype) for name, value in reference.items()}
