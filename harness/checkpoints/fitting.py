"""Whether the tensors of a checkpoint fit a run: by names and shapes, before any graph, and by their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from emulator.plan import checkpoint_tensors
from emulator.plan.checkpoint_tensors import STEP, CheckpointTensor
from emulator.plan.precision import Format
from harness.checkpoints import checkpoints
from harness.checkpoints.checkpoints import Checkpoint, CheckpointError, Shapes
from harness.options import rules
from harness.options.catalogue import LARGEST

if TYPE_CHECKING:
    from harness.run.run import Run


def model(run: Run) -> dict[str, CheckpointTensor]:
    """What validation needs of a checkpoint."""
    return checkpoint_tensors.model(run.trace.variables, run.plan.precision)


def saved(run: Run) -> dict[str, CheckpointTensor]:
    """What a training keeps, and needs to go on."""
    names = rules.SLOTS[run.options.training.optimiser]
    slots = checkpoint_tensors.slots(run.trace.variables, run.plan.precision, names, run.trained)
    return {**model(run), **slots, STEP: CheckpointTensor(())}


def of_values(values: Mapping[str, np.ndarray]) -> Shapes:
    """Shapes of tensors that have been read."""
    return {name: value.shape for name, value in values.items()}


def require_model(run: Run, found: Sequence[Checkpoint]) -> list[str]:
    """Refuses checkpoints of another network that are to be validated, as far as their files tell; a line on each that is
    damaged and left out. A dry run tells of values, too, which the validation itself warns of."""
    asked = run.options.main
    told, damaged = checkpoints.shapes_of(found, f"--restore-path {asked.restore_path}", thorough=asked.dry_run)
    for checkpoint, shapes in told:
        if shapes is not None:
            fit(shapes, model(run), checkpoint)
            if asked.dry_run:
                damaged += warnings(run, checkpoints.values(checkpoint, verified=True) or {}, checkpoint)
    return damaged


def warnings(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint) -> list[str]:
    """At most one line, on values that are validated all the same."""
    return [f"warning: {fault}" for fault in faults(values, model(run), checkpoint)]


def require_saved(run: Run, newest: Checkpoint) -> None:
    """Refuses a checkpoint, which is whole, that a run cannot go on from, as far as its files tell."""
    shapes = checkpoints.shapes(newest, verified=True)
    if shapes is not None:
        fit(shapes, saved(run), newest)
        refuse_faulty(run, _values(run, newest), newest, going_on=True)


def _values(run: Run, checkpoint: Checkpoint) -> Mapping[str, np.ndarray]:
    """Of a whole checkpoint, where they decide whether a run may have them, and as far as its files tell."""
    return {} if run.options.training.keep_going else checkpoints.values(checkpoint, verified=True) or {}


def require_beginning(run: Run, path: Path) -> None:
    """Refuses weights of --init-path that a run cannot begin with, as far as their files tell."""
    found = checkpoints.beginning(path)
    among = isinstance(found, Path)  # a folder, of which the newest whole one counts
    chosen = checkpoints.latest(found, "--init-path")[0] if among else found
    shapes = checkpoints.shapes(chosen, verified=among)
    if shapes is not None:
        left = begin(shapes, run, chosen)
        refuse_faulty(run, without(_values(run, chosen), left), chosen)


def begin(found: Shapes, run: Run, checkpoint: Checkpoint) -> list[str]:
    """The names of what cannot be taken over because the number of classes differs: those of the classifier. Anything else
    that does not fit is refused."""
    slots = {name: each for name, each in saved(run).items() if name in found and name != STEP}
    wanted = {**model(run), **slots}
    left = _of_other_classes(found, wanted, classifier(run))
    fit(found, {name: each for name, each in wanted.items() if not name.startswith(tuple(left or "?"))}, checkpoint)
    return left


def without(values: Mapping[str, np.ndarray], left: list[str]) -> dict[str, np.ndarray]:
    """What is taken over: neither the names that are left out, nor their slots."""
    return {name: value for name, value in values.items() if not name.startswith(tuple(left or "?"))}


def classifier(run: Run) -> str:
    """The name of the last layer with a kernel."""
    return next(v.name for v in reversed(run.trace.variables) if v.name.endswith("kernel")).rsplit("/", 1)[0]


def _of_other_classes(found: Shapes, wanted: Mapping[str, CheckpointTensor], layer: str) -> list[str]:
    """The variables of a layer, if all of them have one and the same other number of classes, their last axis, there."""
    names = [name for name in wanted if name.startswith(f"{layer}/") and name.count("/") == layer.count("/") + 1]
    pairs = [(found[name], wanted[name].shape) for name in names if name in found]
    last = {(there[-1:], here[-1:]) for there, here in pairs}
    alike = all(len(there) == len(here) and there[:-1] == here[:-1] for there, here in pairs)
    return names if alike and len(last) == 1 and all(there != here for there, here in last) else []


def fit(found: Shapes, wanted: Mapping[str, CheckpointTensor], checkpoint: Checkpoint) -> None:
    """Refuses a checkpoint of another network or optimiser, naming the first differences."""
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [
        f"{name} has shape {list(found[name])} instead of {list(each.shape)}"
        for name, each in wanted.items()
        if name in found and found[name] != each.shape
    ]
    if problems:
        # a slot is named below its variable
        slots_only = all(problem.endswith("is missing") and problem.rsplit("/", 1)[0] in wanted for problem in problems)
        what = "--optimiser and --variable-filter" if slots_only else "model options"
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} does not fit {'the optimiser' if slots_only else 'the network'} asked for: "
            f"{problems[0]}"
            + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
            + f"; give the {what} that it was trained with"
        )


def refuse_faulty(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint, going_on: bool = False) -> None:
    """Refuses to train with values that no training can use, unless it is to go on all the same. `going_on`: they are the
    run's own."""
    faulty = faults(values, saved(run), checkpoint)
    if faulty and not run.options.training.keep_going:
        other = _to_go_back(run, checkpoint) if going_on else "give other weights"
        raise CheckpointError(f"{faulty[0]}; {other}, or --keep-going to go on with these all the same")


def _to_go_back(run: Run, newest: Checkpoint) -> str:
    """How a run goes on from weights that are sound."""
    for older in reversed(checkpoints.numbered(Path(newest.prefix).parent)):
        if older.iteration < newest.iteration and _is_sound(run, older):
            return f"move the checkpoints after {older.name} elsewhere to go back to that one"
    return "begin a new run, as no older checkpoint is sound"


def _is_sound(run: Run, checkpoint: Checkpoint) -> bool:
    """As far as the files of a checkpoint tell."""
    with suppress(CheckpointError):
        found = checkpoints.values(checkpoint)
        return found is not None and not faults(found, saved(run), checkpoint)
    return False


def faults(values: Mapping[str, np.ndarray], wanted: Mapping[str, CheckpointTensor], checkpoint: Checkpoint) -> list[str]:
    """At most one line: the first tensor with values that cannot be computed with, and how many more there are."""
    wrong = {
        name: said for name, each in wanted.items() if name in values and (said := _fault(name, values[name], each.format))
    }
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return [f"weights {checkpoint.prefix}: {name} holds {said}{more}" for name, said in list(wrong.items())[:1]]


def _fault(name: str, value: np.ndarray, number_format: Format) -> str:
    if not np.isfinite(value).all():
        return "values that are not finite"
    largest = np.abs(value.astype(np.float64)).max(initial=0)
    if largest >= number_format.overflow:
        return f"values beyond {number_format.name}'s {number_format.largest:g} (see --precision)"
    if largest > LARGEST:
        return f"values beyond FP32's {LARGEST:.4g}"
    return "negative values" if name.endswith("moving_variance") and (value < 0).any() else ""
