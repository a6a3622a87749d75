"""Convert the tensors that a training starts from: the run's own checkpoint, or the weights of --init-path.

Slots are tensors of optimiser state. Slots of different optimisers may have the same name: `Momentum` is a sum of gradients
for momentum, but a sum of weight changes for LARS. If an optimiser is linear in the gradient, its slots are multiplied by
the loss scale. So is the history of largest gradients (amax) that --format-scaling keeps.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY, EMA, FP32_COPY, LOSS_SCALE, STEP, CheckpointTensor
from cnn_harness.emulator.plan.number_formats import FP32
from cnn_harness.harness.checkpoints import find, read, run_record
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError, Shapes
from cnn_harness.harness.checkpoints.compatibility import (
    averaged_variables,
    check_shapes,
    check_values,
    evaluated_tensors,
    expected_model_tensors,
    expected_training_tensors,
    shapes_of_values,
)  # fmt: skip
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.options.catalogue import LARGEST, format_value
from cnn_harness.harness.options.sections import UPDATE_RULES, TrainingOptions
from cnn_harness.harness.run.recorded_arguments import LR_SCALE, OPTIMISER, is_positive, sets_length

if TYPE_CHECKING:
    from cnn_harness.harness.run.run import Run

Values = Mapping[str, np.ndarray]
MAX_FITTED = 50_000  # --fit-classifier keeps the features of this many images in memory


class SlotUnits(NamedTuple):
    """The optimiser that wrote slots, and the factor on the gradients in the slots: the loss scale, or 1."""

    optimiser: str
    lr_scale: float

    @classmethod
    def of_options(cls, training: TrainingOptions) -> SlotUnits:
        """Return the units of a training with these options."""
        return cls(training.optimiser, training.gradient_scale)

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> SlotUnits | None:
        """Return the units that a checkpoint records, or None if it has no record."""
        recorded = _recorded(checkpoint)
        return cls(recorded[OPTIMISER], recorded[LR_SCALE]) if {OPTIMISER, LR_SCALE} <= recorded.keys() else None

    def slots(self, values: Values) -> list[str]:
        """Return the names of the optimiser's slots, <variable>/<slot>."""
        rule = UPDATE_RULES.get(self.optimiser)
        names = [each.rpartition("/") for each in values]
        return ["".join(parts) for parts in names if rule and parts[2] in rule.slots and parts[0] in values]


def _recorded(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the record in the state of a checkpoint, or otherwise the record of the run."""
    with suppress(CheckpointError):
        own = run_record.state(checkpoint).get(run_record.RECORDED)
        return own or run_record.arguments(find.run_folder(Path(checkpoint.prefix)))
    return {}


def resumed_tensors(run: Run, newest: Checkpoint, values: Values) -> tuple[Tensors, list[str]]:
    """Return the tensors of a run's own checkpoint, converted for the resumed run, and lines on the conversions.

    Raise CheckpointError if the tensors are from another network or optimiser, or have invalid values.
    """
    first = {**_first_scales(run), **_first_averages(run, values)}
    check_shapes(shapes_of_values({**first, **values}), expected_training_tensors(run), newest)
    scaled, lines = _convert_gradient_amax(values, newest, run)
    values = {**first, **scaled}
    saved, own = SlotUnits.of_checkpoint(newest), SlotUnits.of_options(run.options.training)
    foreign = _slots_of_another_rule(values, saved, own)
    if foreign:
        raise CheckpointError(
            f"checkpoint {newest.prefix} does not fit --optimiser {own.optimiser}, because {saved.optimiser} wrote "
            f"{foreign[0]}; give --optimiser {saved.optimiser}"
        )
    tensors, converted = convert_slots(values, saved, own, newest)
    check_values(run, tensors, newest, f"move {newest.name}.* away to resume from the checkpoint before it")
    return tensors, [*lines, *converted]


def check_initial(run: Run, path: Path) -> None:
    """Raise CheckpointError if a run cannot start from the weights of --init-path."""
    source, values, _ = read.load_init_path(path)
    initial_tensors(run, source, values)


def initial_tensors(run: Run, source: Checkpoint, values: Values) -> tuple[Tensors, list[str]]:
    """Return the tensors of --init-path for a new run, and lines on tensors that are initialised or converted.

    Raise CheckpointError if the tensors are from another network or have invalid values.
    """
    evaluated = evaluated_tensors(values)
    if evaluated.keys() != values.keys():  # FP32 copies are copies of the weights, not of the averages
        evaluated = {name: value for name, value in evaluated.items() if not name.endswith(f"/{FP32_COPY}")}
    values = {**_first_scales(run), **{name: value for name, value in evaluated.items() if name != LOSS_SCALE}}
    try:
        reinitialised = classifier_to_reinitialise(shapes_of_values(values), run, source)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_differing_options(run, source)}") from None
    lines: list[str] = []
    if run.plan.precision.scaled_kernels and values[AMAX_HISTORY][:, 1].any():
        # In another training, gradients may be far larger. Activations depend on the weights, so their sizes are kept.
        values[AMAX_HISTORY] = np.where([True, False], values[AMAX_HISTORY], np.float32(0))
        lines.append(f"--format-scaling resets the sizes of gradients, because {source.prefix} is from another training")
    saved, own = SlotUnits.of_checkpoint(source), SlotUnits.of_options(run.options.training)
    foreign = _slots_of_another_rule(values, saved, own)
    # A new run counts updates from 0. Bias correction with this count would make averages of an old run far too large.
    corrected = own.slots(values) if UPDATE_RULES[own.optimiser].counts_updates else []
    dropped = tuple([*reinitialised, *foreign, *corrected] or "?")  # the name of a slot begins with the name of its variable
    kept = {name: value for name, value in values.items() if not name.startswith(dropped)}
    tensors, converted = convert_slots(kept, saved, own, source)
    tensors = _with_fp32_copies(tensors, run)
    tensors = {**tensors, **_first_averages(run, tensors)}
    check_values(run, tensors, source, "give other weights")
    if reinitialised:
        why = "has another number of classes" if set(reinitialised) & values.keys() else "has no classifier"
        lines.append(f"The classifier {classifier(run)} is initialised, because {source.prefix} {why}")
    if foreign:
        lines.append(f"The optimiser's slots are reset, because {source.prefix} is from --optimiser {saved.optimiser}")
    elif corrected:
        lines.append(
            f"The optimiser's slots are reset, because {own.optimiser} corrects them by the number of updates, now 0"
        )
    return tensors, [*converted, *lines]


def _slots_of_another_rule(values: Values, saved_units: SlotUnits | None, run_units: SlotUnits) -> list[str]:
    """Return the slots that another optimiser wrote under names that the optimiser of the run uses too.

    Return [] if the saved optimiser is unknown.
    """
    if saved_units is None or saved_units.optimiser == run_units.optimiser:
        return []
    return [name for name in run_units.slots(values) if name in saved_units.slots(values)]


def convert_slots(
    values: Values, saved_units: SlotUnits | None, run_units: SlotUnits, checkpoint: Checkpoint
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the tensors with slots scaled to the units of the run, and at most one line on the conversion.

    Dtypes do not change. Slots of another optimiser are not converted. Raise CheckpointError if a value overflows.
    """
    new, slots = dict(values), run_units.slots(values)
    if not slots or saved_units in (None, run_units) or saved_units.optimiser != run_units.optimiser:
        return new, []
    before, now = saved_units.lr_scale, run_units.lr_scale
    for name in slots:
        with np.errstate(over="ignore"):
            new[name] = (values[name].astype(np.float64) * (now / before)).astype(values[name].dtype)
        if np.isfinite(values[name]).all() and not np.isfinite(new[name]).all():
            raise CheckpointError(
                f"--loss-scaling {now:g}: {name} of checkpoint {checkpoint.prefix}, saved with loss scale {before:g}, would "
                f"overflow {values[name].dtype}; give a smaller scale"
            )
    return new, [
        f"The optimiser's slots are multiplied by {now / before:g}, because the loss scale was {before:g} and is {now:g}"
    ]


def _convert_gradient_amax(values: Values, checkpoint: Checkpoint, run: Run) -> tuple[Values, list[str]]:
    """Return the tensors with the gradients in the amax history scaled to the loss scale of the run.

    The history has shape [kernels, 2], with gradients in column 1. Also return at most one line on the conversion. If the
    checkpoint does not record its loss scale, nothing is scaled.
    """
    training = run.options.training
    scales = (*values.get(LOSS_SCALE, np.zeros(0)).ravel()[:1].tolist(), _recorded(checkpoint).get("loss_scaling"))
    before = next((scale for scale in scales if is_positive(scale)), None)
    now = scales[0] if training.automatic_loss_scaling and LOSS_SCALE in values else training.loss_scaling
    if not run.plan.precision.scaled_kernels or AMAX_HISTORY not in values or before in (None, now):
        return values, []
    history = np.minimum(np.float64(values[AMAX_HISTORY]) * [1, now / before], LARGEST).astype(np.float32)
    line = (
        f"--format-scaling: the sizes of gradients are multiplied by {now / before:g}, because the loss scale was {before:g}"
    )
    return {**values, AMAX_HISTORY: history}, [line]


def _with_fp32_copies(values: Values, run: Run) -> dict[str, np.ndarray]:
    """Return the tensors of --init-path with FP32 copies of the weights, if the run keeps such copies.

    If the run keeps a weight in FP32 and --init-path has an FP32 copy of it, the copy becomes the weight.
    """
    precision, new = run.plan.precision, dict(values)
    for variable in run.network.variables:
        name, copy = variable.name, f"{variable.name}/{FP32_COPY}"
        if name not in values or not variable.trainable:
            continue
        if precision.has_fp32_copy(variable) and run.is_trained(name):
            new.setdefault(copy, values[name].astype(np.float32))
        elif copy in values and precision.stored_format(variable) == FP32:
            new[name] = values[copy]
    return new


def _first_averages(run: Run, values: Values) -> dict[str, np.ndarray]:
    """Return the initial exponential averages of a run, which are equal to the weights."""
    copies = {v.name: values.get(f"{v.name}/{FP32_COPY}", values.get(v.name)) for v in averaged_variables(run)}
    return {f"{name}/{EMA}": copy.astype(np.float32) for name, copy in copies.items() if copy is not None}


def _first_scales(run: Run) -> dict[str, np.ndarray]:
    """Return the initial loss scale and amax history, if the run adapts them."""
    scale, kernels = [run.options.training.loss_scaling, 0, 0], run.plan.precision.scaled_kernels
    own = {LOSS_SCALE: np.float32(scale)} if run.options.training.automatic_loss_scaling else {}
    return own | ({AMAX_HISTORY: np.zeros([len(kernels), 2], np.float32)} if kernels else {})


def _differing_options(run: Run, source: Checkpoint) -> str:
    """Return text for the end of an error message: the options of the network that differ from the record."""
    recorded = run_record.options(find.run_folder(Path(source.prefix)))
    own = {"model": run.options.main.model, **vars(run.options.model)}
    other = [
        f"{name} {format_value(recorded[name])}, not {format_value(value)}"
        for name, value in own.items()
        if recorded.get(name) not in (None, value)
    ]
    return f" ({short('; '.join(other))})" if other else ""


def classifier_to_reinitialise(shapes: Shapes, run: Run, checkpoint: Checkpoint) -> list[str]:
    """Return the variables of the classifier if the checkpoint has another number of classes or no classifier.

    Otherwise return []. Raise CheckpointError for every other difference.
    """
    present = {name: each for name, each in expected_training_tensors(run).items() if name in shapes and name != STEP}
    expected = {**expected_model_tensors(run), **present}
    variables = _other_classifier(shapes, expected, classifier(run))
    kept = {name: each for name, each in expected.items() if not name.startswith(tuple(variables or "?"))}
    check_shapes(shapes, kept, checkpoint)
    return variables


def classifier(run: Run) -> str:
    """Return the name of the last layer with a kernel."""
    return next(v.name for v in reversed(run.network.variables) if v.name.endswith("kernel")).rsplit("/", 1)[0]


def check_fitting(run: Run) -> None:
    """Raise OptionError if a run cannot use --fit-classifier."""
    if not run.options.training.fit_classifier:
        return
    images, last = run.data_source.spec.train_images, run.network.operations[-1]
    if last.op != "dense":
        raise OptionError(f"--fit-classifier needs a network that ends with a dense layer, not with {last.op}; leave it out")
    if run.options.dataset.random_data:
        raise OptionError("--fit-classifier needs real images, but the images of this run are random; leave it out")
    if images > MAX_FITTED:
        raise OptionError(f"--fit-classifier takes at most {MAX_FITTED:,} training images, not {images:,}; leave it out")
    if run.options.training.trial_epochs and not sets_length(run) and not hasattr(run.data_source, "with_held_out"):
        raise OptionError(
            f"--trial-epochs needs photos, but {run.data_source.spec.name} cannot hold out images; give --epochs N, which "
            "skips the trial"
        )
    if run.plan.instances > 1:
        raise OptionError(f"--fit-classifier works in one process, but {run.plan.instances} were started; leave it out")


def classifier_shape(run: Run) -> tuple[int, ...]:
    """Return the shape of the classifier's kernel; [features, classes] for a dense layer."""
    return next(v.shape for v in run.network.variables if v.name == f"{classifier(run)}/kernel")


def _other_classifier(shapes: Shapes, expected: Mapping[str, CheckpointTensor], layer: str) -> list[str]:
    """Return the variables of a layer if `shapes` has none of them, or other numbers of classes (the last axis).

    Otherwise return [].
    """
    names = [name for name in expected if name.startswith(f"{layer}/") and name.count("/") == layer.count("/") + 1]
    pairs = [(shapes[name], expected[name].shape) for name in names if name in shapes]
    if not pairs and len(shapes) > len(names):  # weights without a classifier
        return names
    last = {(there[-1:], here[-1:]) for there, here in pairs}
    alike = all(len(there) == len(here) and there[:-1] == here[:-1] for there, here in pairs)
    return names if alike and len(last) == 1 and all(there != here for there, here in last) else []
