"""The units of an optimiser's slots, and of gradients' sizes, in a checkpoint, and their conversion for a run that goes on
with them. No TensorFlow.

Slots of one name differ between update rules: `Momentum` sums gradients for momentum, and steps of the weight for LARS. The
slots of rules that are linear in the gradient sum gradients that the loss scale has multiplied, and the amax history has the
sizes of such gradients whatever the rule.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from emulator.plan.checkpoint_tensors import AMAX_HISTORY, FP32_COPY, LOSS_SCALE
from emulator.plan.number_formats import FP32
from harness.checkpoints import find, run_record, state_file
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.options.catalogue import LARGEST
from harness.options.sections import TrainingOptions
from harness.options.update_rules import UPDATE_RULES, lr_scale
from harness.run.recorded_arguments import LR_SCALE, OPTIMISER, POSITIVE

if TYPE_CHECKING:
    import numpy as np

    from harness.run.run import Run

Values = Mapping[str, "np.ndarray"]


class SlotUnits(NamedTuple):
    """The update rule that slots belong to, and the factor on the gradients in them: the loss scale, or 1."""

    optimiser: str
    lr_scale: float

    @classmethod
    def of_options(cls, training: TrainingOptions) -> SlotUnits:
        """Return the units of a training with these options."""
        return cls(training.optimiser, lr_scale(training))

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> SlotUnits | None:
        """Return the units in the record of a checkpoint; None without one."""
        records = _records(checkpoint)
        return next((cls(each[OPTIMISER], each[LR_SCALE]) for each in records if {OPTIMISER, LR_SCALE} <= each.keys()), None)

    @property
    def names(self) -> tuple[str, ...]:
        """The slots of the rule, as they are called below each variable."""
        return tuple(UPDATE_RULES[self.optimiser].slots) if self.optimiser in UPDATE_RULES else ()


def _records(checkpoint: Checkpoint) -> tuple[Mapping[str, Any], ...]:
    """Return the record in a checkpoint's own state, and that of its run."""
    with suppress(CheckpointError):
        own = state_file.read(checkpoint).get(state_file.RECORDED, {})
        return own, run_record.arguments(find.run_folder(Path(checkpoint.prefix)))
    return ()


def saved_loss_scale(values: Values, checkpoint: Checkpoint) -> float | None:
    """Return the loss scale at which a checkpoint's next update would have been made; None if nothing tells."""
    found = values[LOSS_SCALE].ravel()[:1].tolist() if LOSS_SCALE in values else []
    scales = (*found, *(each.get("loss_scaling") for each in _records(checkpoint)))
    return next((scale for scale in scales if POSITIVE[0](scale)), None)


def convert_gradient_amax(values: Values, saved_scale: float | None, run_scale: float) -> tuple[Values, list[str]]:
    """Return the tensors with the gradients' column of the amax history [kernels, 2] at another loss scale, and a line on
    that. An unknown scale counts as the run's."""
    import numpy as np

    if AMAX_HISTORY not in values or saved_scale in (None, run_scale):
        return values, []
    ratio = run_scale / saved_scale
    history = np.minimum(np.float64(values[AMAX_HISTORY]) * [1, ratio], LARGEST).astype(np.float32)
    line = (
        f"--format-scaling goes by the sizes of gradients times the loss scale, which was {saved_scale:g}: multiplied by "
        f"{ratio:g} for {run_scale:g}"
    )
    return {**values, AMAX_HISTORY: history}, [line]


def slots_of_another_rule(values: Values, saved_units: SlotUnits | None, run_units: SlotUnits) -> list[str]:
    """Return the slots whose name the run's update rule uses too, but which another rule wrote. If the saved units are
    unknown, none."""
    if saved_units is None or saved_units.optimiser == run_units.optimiser:
        return []
    shared = {*saved_units.names} & {*run_units.names}
    return [name for name in values if name.rpartition("/")[2] in shared and name.rpartition("/")[0] in values]


def bias_corrected_slots(values: Values, run_units: SlotUnits) -> list[str]:
    """Return the slots of a rule with bias correction (Adam, LAMB). A new run counts its updates from 0, so their averages
    would be over-corrected."""
    if not UPDATE_RULES[run_units.optimiser].counts_updates:
        return []
    return [name for name in values if name.rpartition("/")[2] in run_units.names and name.rpartition("/")[0] in values]


def convert_slots(
    values: Values, saved_units: SlotUnits | None, run_units: SlotUnits, checkpoint: Checkpoint
) -> dict[str, np.ndarray]:
    """Return the tensors with the slots of one and the same rule in other units, rounded to their own dtypes.
    CheckpointError for sums that their dtype cannot hold."""
    import numpy as np

    new = dict(values)
    if saved_units is None or saved_units == run_units or saved_units.optimiser != run_units.optimiser:
        return new
    for name in (name for name in values if name.rpartition("/")[2] in run_units.names):
        with np.errstate(over="ignore"):
            new[name] = (values[name].astype(np.float64) * (run_units.lr_scale / saved_units.lr_scale)).astype(
                values[name].dtype
            )
        if np.isfinite(values[name]).all() and not np.isfinite(new[name]).all():
            raise CheckpointError(
                f"--loss-scaling {run_units.lr_scale:g}: {name} of checkpoint {checkpoint.prefix}, which sums gradients "
                f"times the loss scale {saved_units.lr_scale:g}, would be beyond {values[name].dtype}; give a smaller scale"
            )
    return new


def conversion_notes(saved_units: SlotUnits | None, run_units: SlotUnits) -> list[str]:
    """Return a line on slots that `convert_slots` changes."""
    if (
        saved_units is None
        or saved_units == run_units
        or saved_units.optimiser != run_units.optimiser
        or not run_units.names
    ):
        return []
    return [
        f"The optimiser's slots sum gradients times the loss scale, which was {saved_units.lr_scale:g}: multiplied by "
        f"{run_units.lr_scale / saved_units.lr_scale:g} for {run_units.lr_scale:g}"
    ]


def add_fp32_copies(values: Values, run: Run) -> dict[str, np.ndarray]:
    """Return the tensors of --init-path with an FP32 copy of each weight that the run keeps one of; and with the copy as the
    weight where the run keeps that in FP32 itself."""
    import numpy as np

    precision, new = run.plan.precision, dict(values)
    for variable in run.trace.variables:
        name, copy = variable.name, f"{variable.name}/{FP32_COPY}"
        if name not in values or not variable.trainable:
            continue
        if precision.has_fp32_copy(variable) and run.is_trained(name):
            new.setdefault(copy, values[name].astype(np.float32))
        elif copy in values and precision.stored_format(variable) == FP32:
            new[name] = values[copy]
    return new
