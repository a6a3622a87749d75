"""Checks that the tensors of a checkpoint fit a run: by names and shapes, before any graph, and by their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from base.fields import short
from emulator.plan import checkpoint_tensors
from emulator.plan.checkpoint_tensors import AMAX_HISTORY, LOSS_SCALE, STEP, STEP_SHAPE, CheckpointTensor
from harness.checkpoints import find, optimiser_state, read, run_record
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError, Shapes
from harness.checkpoints.optimiser_state import SlotUnits
from harness.checkpoints.read import Tensors
from harness.options.catalogue import LARGEST, format_value
from harness.options.update_rules import UPDATE_RULES

if TYPE_CHECKING:
    from harness.run.run import Run


def expected_model_tensors(run: Run) -> dict[str, CheckpointTensor]:
    """Return the tensors of a checkpoint that validation needs."""
    return checkpoint_tensors.model(run.trace.variables, run.plan.precision)


def expected_training_tensors(run: Run) -> dict[str, CheckpointTensor]:
    """Return the tensors that a training saves, and that resuming needs."""
    names = UPDATE_RULES[run.options.training.optimiser].slots
    own = checkpoint_tensors.slots(run.trace.variables, run.plan.precision, names, run.is_trained)
    scale = {LOSS_SCALE: CheckpointTensor((3,))} if run.options.training.automatic_loss_scaling else {}
    return {**expected_model_tensors(run), **own, **scale, STEP: CheckpointTensor(STEP_SHAPE)}


def shapes_of_values(values: Mapping[str, np.ndarray]) -> Shapes:
    """Return the shapes of tensors that have been read."""
    return {name: value.shape for name, value in values.items()}


def model_tensors(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint) -> Tensors:
    """Return what the network needs to answer, of the tensors that a checkpoint holds. CheckpointError for those of another
    network."""
    expected = expected_model_tensors(run)
    check_shapes(shapes_of_values(values), expected, checkpoint)
    return {name: values[name] for name in expected}


def check_model(run: Run, checkpoints: Sequence[Checkpoint]) -> list[str]:
    """Refuse checkpoints of another network for validation; return a line on each that is damaged and left out. A dry run
    warns of values, too, as the validation itself does."""
    main = run.options.main
    readable, damaged = read.readable_shapes(checkpoints, f"--restore-path {main.restore_path}", verify=main.dry_run)
    for checkpoint, shapes in readable:
        check_shapes(shapes, expected_model_tensors(run), checkpoint)
        if main.dry_run:
            damaged += value_warnings(run, read.tensors(checkpoint, verify=False), checkpoint)
    return damaged


def value_warnings(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint) -> list[str]:
    """Return at most one line, on values that are validated all the same."""
    return [f"warning: {message}" for message in invalid_tensor_messages(values, expected_model_tensors(run), checkpoint)]


def resumed_tensors(run: Run, newest: Checkpoint, values: Mapping[str, np.ndarray]) -> tuple[Tensors, list[str]]:
    """Return the tensors of a run's own checkpoint as the resumed run takes them, and lines on what was converted.
    CheckpointError for tensors of another network or optimiser, or of no use."""
    scale_notes, saved_scale = _loss_scale_notes(run, values), optimiser_state.saved_loss_scale(values, newest)
    values = {**_first_scales(run), **values}
    check_shapes(shapes_of_values(values), expected_training_tensors(run), newest)
    if run.plan.precision.scaled_kernels:
        training = run.options.training
        run_scale = float(values[LOSS_SCALE][0]) if training.automatic_loss_scaling else training.loss_scaling
        values, amax_notes = optimiser_state.convert_gradient_amax(values, saved_scale, run_scale)
        scale_notes += amax_notes
    saved_units, run_units = SlotUnits.of_checkpoint(newest), SlotUnits.of_options(run.options.training)
    other_rule_slots = optimiser_state.slots_of_another_rule(values, saved_units, run_units)
    if other_rule_slots:
        raise CheckpointError(
            f"checkpoint {newest.prefix} does not fit the optimiser asked for: {other_rule_slots[0]} is of --optimiser "
            f"{saved_units.optimiser}, and means another thing to {run_units.optimiser}; give the --optimiser that "
            "it was trained with"
        )
    tensors = optimiser_state.convert_slots(values, saved_units, run_units, newest)
    check_values(run, tensors, newest, resumed=True)
    return tensors, [*scale_notes, *optimiser_state.conversion_notes(saved_units, run_units)]


def check_initial(run: Run, path: Path) -> None:
    """Refuse weights of --init-path that a run cannot begin with."""
    place = find.init_checkpoint(path)
    in_folder = isinstance(place, Path)
    chosen = read.find_latest(place, "--init-path")[0] if in_folder else place
    initial_tensors(run, chosen, read.tensors(chosen, verify=not in_folder))


def initial_tensors(run: Run, source: Checkpoint, values: Mapping[str, np.ndarray]) -> tuple[Tensors, list[str]]:
    """Return the tensors of --init-path that a new run begins with, and lines on those that begin anew or were converted.
    CheckpointError for tensors of another network, or of no use."""
    lines: list[str] = []
    values = {**_first_scales(run), **{name: value for name, value in values.items() if name != LOSS_SCALE}}
    try:
        reinitialised = classifier_to_reinitialise(shapes_of_values(values), run, source)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_differing_options(run, source)}") from None
    if run.plan.precision.scaled_kernels and values[AMAX_HISTORY][:, 1].any():
        # another loss, of other pictures, may have gradients beyond the room for growth; activations are the weights' own
        values[AMAX_HISTORY] = np.where([True, False], values[AMAX_HISTORY], np.float32(0))
        lines.append(f"--format-scaling begins the sizes of gradients anew: those of {source.prefix} are another training's")
    saved_units, run_units = SlotUnits.of_checkpoint(source), SlotUnits.of_options(run.options.training)
    other_rule_slots, bias_corrected = (
        optimiser_state.slots_of_another_rule(values, saved_units, run_units),
        optimiser_state.bias_corrected_slots(values, run_units),
    )
    tensors = optimiser_state.convert_slots(
        drop_variables(values, [*reinitialised, *other_rule_slots, *bias_corrected]), saved_units, run_units, source
    )
    tensors = optimiser_state.add_fp32_copies(tensors, run)
    check_values(run, tensors, source)
    lines += optimiser_state.conversion_notes(saved_units, run_units)
    if reinitialised:
        why = "it has another number of classes there" if set(reinitialised) & values.keys() else "those weights have none"
        lines.append(f"{classifier(run)} begins anew: {why}")
    if other_rule_slots:
        lines.append(
            f"The optimiser's slots begin anew: those of {source.prefix} are of --optimiser {saved_units.optimiser}"
        )
    elif bias_corrected:
        lines.append(
            f"The optimiser's slots begin anew: {run_units.optimiser} corrects them by the number of updates, now 0"
        )
    return tensors, lines


def _first_scales(run: Run) -> dict[str, np.ndarray]:
    """Return the loss scale and the amax history that a run with changing ones begins with, for weights without."""
    scale, kernels = [run.options.training.loss_scaling, 0, 0], run.plan.precision.scaled_kernels
    own = {LOSS_SCALE: np.float32(scale)} if run.options.training.automatic_loss_scaling else {}
    return own | ({AMAX_HISTORY: np.zeros([len(kernels), 2], np.float32)} if kernels else {})


def _loss_scale_notes(run: Run, values: Mapping[str, np.ndarray]) -> list[str]:
    """Return a line where a resumed run does something else with the checkpoint's loss scale than its options may seem to
    ask for."""
    if np.shape(values.get(LOSS_SCALE)) != (3,):
        return []
    training, (scale, _, skipped) = run.options.training, values[LOSS_SCALE]
    if training.automatic_loss_scaling:
        given = run.options.given("loss_scaling") and training.loss_scaling != scale
        return [
            f"--loss-scaling {training.loss_scaling:g} changes nothing: --automatic-loss-scaling goes on with the "
            f"checkpoint's {scale:g}"
        ] * bool(given)
    counts = skipped and UPDATE_RULES[training.optimiser].counts_updates
    return [
        f"{training.optimiser} counts the {skipped:.0f} updates that were skipped from here on: only "
        "--automatic-loss-scaling knows of them"
    ] * bool(counts)


def _differing_options(run: Run, source: Checkpoint) -> str:
    """The end of an error: the options of the network that are not as those weights' training recorded them."""
    recorded = run_record.options(find.run_folder(Path(source.prefix)))
    own = {"model": run.options.main.model, **vars(run.options.model)}
    other = [
        f"{name} {format_value(recorded[name])}, not {format_value(value)}"
        for name, value in own.items()
        if recorded.get(name) not in (None, value)
    ]
    return f" ({short('; '.join(other))})" if other else ""


def classifier_to_reinitialise(shapes: Shapes, run: Run, checkpoint: Checkpoint) -> list[str]:
    """Return the classifier's variables where a new run has another number of classes than the checkpoint, and [] otherwise.
    CheckpointError for every other difference."""
    present = {name: each for name, each in expected_training_tensors(run).items() if name in shapes and name != STEP}
    expected = {**expected_model_tensors(run), **present}
    classifier_variables = _classifier_variables_to_drop(shapes, expected, classifier(run))
    check_shapes(
        shapes,
        {name: each for name, each in expected.items() if not name.startswith(tuple(classifier_variables or "?"))},
        checkpoint,
    )
    return classifier_variables


def drop_variables(values: Mapping[str, np.ndarray], dropped: list[str]) -> dict[str, np.ndarray]:
    """Return the tensors without the `dropped` variables and their slots."""
    return {name: value for name, value in values.items() if not name.startswith(tuple(dropped or "?"))}


def classifier(run: Run) -> str:
    """The name of the last layer with a kernel."""
    return next(v.name for v in reversed(run.trace.variables) if v.name.endswith("kernel")).rsplit("/", 1)[0]


def _classifier_variables_to_drop(shapes: Shapes, expected: Mapping[str, CheckpointTensor], layer: str) -> list[str]:
    """The variables of a layer, if the last axis of each, the classes, has one and the same other length in `shapes`, or if
    `shapes` has none of them."""
    names = [name for name in expected if name.startswith(f"{layer}/") and name.count("/") == layer.count("/") + 1]
    pairs = [(shapes[name], expected[name].shape) for name in names if name in shapes]
    if not pairs and len(shapes) > len(names):  # weights without a classifier
        return names
    last = {(there[-1:], here[-1:]) for there, here in pairs}
    alike = all(len(there) == len(here) and there[:-1] == here[:-1] for there, here in pairs)
    return names if alike and len(last) == 1 and all(there != here for there, here in last) else []


def check_shapes(shapes: Shapes, expected: Mapping[str, CheckpointTensor], checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint of another network or optimiser, naming the first difference."""
    problems = [f"{name} is missing" for name in expected if name not in shapes]
    problems += [
        f"{name} has shape {list(shapes[name])} instead of {list(each.shape)}"
        for name, each in expected.items()
        if name in shapes and shapes[name] != each.shape
    ]
    if problems:
        # a slot is named below its variable
        slots_only = all(problem.endswith("is missing") and problem.rsplit("/", 1)[0] in expected for problem in problems)
        asked, options = "network", "model options"
        if slots_only:
            asked, options = "optimiser", "--optimiser and --variable-filter"
        elif all(problem.startswith(f"{AMAX_HISTORY} ") for problem in problems):
            asked, options = "number formats", "--format-scaling and number formats"
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise CheckpointError(
            f"checkpoint {checkpoint.prefix} does not fit the {asked} asked for: {problems[0]}{more}; give the {options} "
            "that it was trained with"
        )


def check_values(run: Run, values: Mapping[str, np.ndarray], checkpoint: Checkpoint, resumed: bool = False) -> None:
    """Refuse to train with values that are not finite or out of range, unless --keep-going is given. `resumed`: the values
    are the run's own."""
    if run.options.training.keep_going:
        return
    messages = invalid_tensor_messages(values, expected_training_tensors(run), checkpoint)
    if messages:
        remedy = _recovery_advice(run, checkpoint) if resumed else "give other weights"
        raise CheckpointError(f"{messages[0]}; {remedy}, or --keep-going to go on with these all the same")


def _recovery_advice(run: Run, newest: Checkpoint) -> str:
    """Return the advice for resuming from sound weights."""
    for older in reversed(find.numbered(Path(newest.prefix).parent)):
        if older.updates < newest.updates and _has_valid_values(run, older):
            return f"move the checkpoints after {older.name} elsewhere to go back to that one"
    return "begin a new run, as no older checkpoint is sound"


def _has_valid_values(run: Run, checkpoint: Checkpoint) -> bool:
    """Return whether a run can resume from a checkpoint."""
    with suppress(CheckpointError):
        return not invalid_tensor_messages(read.tensors(checkpoint), expected_training_tensors(run), checkpoint)
    return False


def invalid_tensor_messages(
    values: Mapping[str, np.ndarray], expected: Mapping[str, CheckpointTensor], checkpoint: Checkpoint
) -> list[str]:
    """Return at most one line: the first tensor with values that cannot be computed with, and the number of others."""
    return [f"weights {checkpoint.prefix}: {reason}" for reason in invalid_tensor(values, expected)]


def invalid_tensor(values: Mapping[str, np.ndarray], expected: Mapping[str, CheckpointTensor]) -> list[str]:
    """Return at most one line, as `invalid_tensor_messages` without the checkpoint's name."""
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
    least, most = float(value.min()), float(value.max())  # NaN if one of the values is
    largest = max(abs(least), abs(most))
    if not np.isfinite(largest):
        return "values that are not finite"
    if largest >= expected.format.overflow:
        return f"values beyond {expected.format.name}'s {expected.format.largest:g} (see {expected.option})"
    if largest > LARGEST:
        return f"values beyond FP32's {LARGEST:.4g}"
    return "negative values" if name.endswith("moving_variance") and least < 0 else ""
