"""Check that the names, shapes and values of the tensors in a checkpoint fit a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cnn_harness.emulator.plan import checkpoint_tensors
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY, EMA, LOSS_SCALE, STEP, STEP_SHAPE, CheckpointTensor
from cnn_harness.harness.checkpoints import read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError, Shapes
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.options.catalogue import LARGEST
from cnn_harness.Models._layers import Variable

if TYPE_CHECKING:
    from cnn_harness.harness.run.run import Run


def expected_model_tensors(run: Run) -> dict[str, CheckpointTensor]:
    """Return the tensors that validation needs."""
    return checkpoint_tensors.model(run.network.variables, run.plan.precision)


def expected_training_tensors(run: Run) -> dict[str, CheckpointTensor]:
    """Return the tensors that a training saves and needs to resume."""
    names = run.options.training.rule.slots
    own = checkpoint_tensors.slots(run.network.variables, run.plan.precision, names, run.is_trained)
    scale = {LOSS_SCALE: CheckpointTensor((3,))} if run.options.training.automatic_loss_scaling else {}
    averages = {f"{v.name}/{EMA}": CheckpointTensor(v.shape) for v in averaged_variables(run)}
    return {**expected_model_tensors(run), **own, **averages, **scale, STEP: CheckpointTensor(STEP_SHAPE)}


def averaged_variables(run: Run) -> list[Variable]:
    """Return the variables whose exponential averages (--ema) a training keeps."""
    return [v for v in run.network.variables if run.options.training.ema and run.is_trained(v.name)]


def evaluated_tensors(values: Mapping[str, np.ndarray]) -> Tensors:
    """Return the tensors of a checkpoint. Weights with an exponential average (--ema) are replaced by the average."""
    averages = {name[: -len(EMA) - 1]: value for name, value in values.items() if name.endswith(f"/{EMA}")}
    kept = {name: value for name, value in values.items() if not name.endswith(f"/{EMA}")}
    return kept | {name: value.astype(values[name].dtype) for name, value in averages.items() if name in values}


def shapes_of_values(values: Mapping[str, np.ndarray]) -> Shapes:
    """Return the shapes of tensors by name."""
    return {name: value.shape for name, value in values.items()}


def model_tensors(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint) -> Tensors:
    """Return the tensors of a checkpoint that inference needs. Exponential averages (--ema) replace the weights.

    Raise CheckpointError if the tensors are from another network.
    """
    expected = expected_model_tensors(run)
    evaluated = evaluated_tensors(values)
    check_shapes(shapes_of_values(evaluated), expected, checkpoint)
    return {name: evaluated[name] for name in expected}


def check_model(run: Run, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Raise CheckpointError for a checkpoint of another network. Return a warning for each damaged checkpoint.

    In a dry run, also return warnings about invalid values, because no validation follows.
    """
    main = run.options.main

    def check(checkpoint: Checkpoint) -> list[str]:
        values = read.tensors(checkpoint) if main.dry_run else {}
        shapes = shapes_of_values(values) if main.dry_run else read.shapes(checkpoint)
        check_shapes(shapes, expected_model_tensors(run), checkpoint)
        return value_warnings(run, values, checkpoint)

    warnings, damaged = read.load_each(checkpoints, f"--restore-path {main.restore_path}", check)
    return [*damaged, *(line for each in warnings for line in each)]


def check_shapes(shapes: Shapes, expected: Mapping[str, CheckpointTensor], checkpoint: Checkpoint) -> None:
    """Raise CheckpointError if a checkpoint is from another network or optimiser. The message has the first difference."""
    problems = {name: "is missing" for name in expected if name not in shapes} | {
        name: f"has shape {list(shapes[name])} instead of {list(each.shape)}"
        for name, each in expected.items()
        if name in shapes and shapes[name] != each.shape
    }
    if not problems:
        return
    misfit, options = "network", "model options"
    if problems.keys() == {AMAX_HISTORY}:
        misfit, options = "number formats", "--format-scaling and number formats"
    elif all(name not in shapes and name.rpartition("/")[0] in expected for name in problems):  # optimiser state
        misfit, options = "optimiser", "--optimiser and --variable-filter"
    name, problem = next(iter(problems.items()))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    raise CheckpointError(
        f"checkpoint {checkpoint.prefix} does not fit the {misfit} of this call: {name} {problem}{more}; give the same "
        f"{options} as in its training"
    )


def value_warnings(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint) -> list[str]:
    """Return at most one warning about invalid values. Validation continues with them."""
    faults = invalid_tensor(values, expected_model_tensors(run))
    return [f"warning: weights {checkpoint.prefix}: {fault}" for fault in faults]


def check_values(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint, remedy: str) -> None:
    """Raise CheckpointError if values are not finite or out of range, unless --keep-going is given."""
    faults = [] if run.options.training.keep_going else invalid_tensor(values, expected_training_tensors(run))
    if faults:
        raise CheckpointError(
            f"weights {checkpoint.prefix}: {faults[0]}; {remedy}, or train with these values with --keep-going"
        )


def invalid_tensor(values: Mapping[str, np.ndarray], expected: Mapping[str, CheckpointTensor]) -> list[str]:
    """Return a line about the first tensor with invalid values and the number of other such tensors, or []."""
    reasons = {
        name: reason
        for name, each in expected.items()
        if name in values and (reason := _invalid_reason(name, values[name], each))
    }
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return [f"{name} holds {reason}{more}" for name, reason in list(reasons.items())[:1]]


def _invalid_reason(name: str, value: np.ndarray, expected: CheckpointTensor) -> str:
    if not value.size:
        return ""
    least, most = float(value.min()), float(value.max())  # NaN if any value is NaN
    largest = max(abs(least), abs(most))
    if not np.isfinite(largest):
        return "values that are not finite"
    if largest >= expected.format.overflow:
        return f"values beyond {expected.format.name}'s {expected.format.largest:g} (see {expected.option})"
    if largest > LARGEST:
        return f"values beyond FP32's {LARGEST:.4g}"
    return "negative values" if name.endswith("moving_variance") and least < 0 else ""
