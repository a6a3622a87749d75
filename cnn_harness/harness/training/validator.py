"""Validate the checkpoints of a running training, with a separate program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.programs import build_or_load
from cnn_harness.harness.run import validations
from cnn_harness.harness.run.recorded_arguments import ends_untrained
from cnn_harness.harness.run.run import Run
from cnn_harness.harness.training.run_dir import TrainingContext

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import InferenceProgram


# If initial values make up more than this share of batch norm's moving statistics, log why the validation loss is high.
_NOTED = 0.1


class Validator:
    """Validates each checkpoint once."""

    def __init__(self, context: TrainingContext, validated: Mapping[str, Mapping[str, Any]]) -> None:
        """`validated` contains the rows of validation.csv so far, by checkpoint name."""
        self._context = context
        self.rows = dict(validated)
        self._built = ExitStack()

    def __enter__(self) -> Validator:
        return self

    def __exit__(self, *_: object) -> None:
        self._built.close()

    @cached_property
    def _program(self) -> InferenceProgram:
        """The validation program, which is built when the first checkpoint is validated."""
        context = self._context
        return self._built.enter_context(build_or_load.validation_program(context.run, context.execution, context.log))

    def validate(self, checkpoint: Checkpoint, values: Tensors) -> None:
        """Validate a checkpoint. Do nothing if validation.csv contains the checkpoint or validation is off."""
        run, log = self._context.run, self._context.log
        if not run.options.checkpoint.validation or not run.data_source.spec.validation_images:
            return
        if checkpoint.name in self.rows:
            log.note(f"Skipped the validation of {checkpoint.name}: validation.csv contains its accuracy already")
            return
        from cnn_harness.harness.evaluation.validate import validate

        self.rows[checkpoint.name] = self._context.mlperf.evaluated(
            checkpoint.updates,
            lambda: validate(
                run, self._program, checkpoint, values, run.plan.global_batch, log, self._context.team, self._context.signals
            ),
        )
        log.validation_row(self.rows[checkpoint.name])
        share = _initial_share(run, checkpoint.updates)
        if share > _NOTED:
            log.note(
                f"  the loss is too high after so few updates: initial values still make up {100 * share:.0f} % of batch "
                "norm's moving statistics"
            )
        self._context.listener.on_validation(self.rows[checkpoint.name])

    def stop(self) -> None:
        """Stop a running validation at its next micro-batch."""
        if "_program" in self.__dict__:
            self._program.stop()

    @property
    def _ordered(self) -> list[Mapping[str, Any]]:
        """The validation rows of checkpoints, ordered by update. Averaged checkpoints are left out."""
        return validations.by_update(self.rows.values())

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The validation row of the best checkpoint. Averaged checkpoints are left out."""
        by = self._context.run.options.checkpoint.best_by
        return next(iter(validations.ranked(self._ordered, by)), None)

    @property
    def unbeaten(self) -> Mapping[str, Any] | None:
        """The validation row from which --patience counts: the first row with the best accuracy, regardless of the loss."""
        return validations.best(self._ordered)

    @property
    def without_gain(self) -> int:
        """The number of validations since the best accuracy was first reached."""
        return validations.without_gain(self._ordered)

    @property
    def reason_to_end(self) -> str | None:
        """The reason why the run ends before its last update; None if it does not."""
        patience = self._context.run.options.checkpoint.patience
        if ends_untrained(self._context.run, self._context.recorded):
            return "the trial found that training does not help (--epochs N trains nevertheless)"
        if not validations.patience_is_over(self._ordered, patience):
            return None
        unbeaten, times = self.unbeaten, f"{patience} validation{'s' * (patience > 1)}"
        return (
            f"{times} did not improve on the accuracy of {unbeaten['name']}, {float(unbeaten['val_acc']):.2f}% (--patience)"
        )

    @property
    def newest(self) -> Mapping[str, Any] | None:
        """The validation row of the newest validated checkpoint. Averaged checkpoints are left out."""
        return next(reversed(self._ordered), None)


def _initial_share(run: Run, updates: int) -> float:
    """Return the share of initial values in batch norm's moving statistics, from 0 to 1, after `updates` updates.

    The share is 0 for a run that starts from --init-path, and for averaged checkpoints, whose `updates` is negative.
    """
    decays = [v.decay for v in run.network.variables if v.decay is not None and run.is_trained(v.name)]
    begun = updates > 0 and not run.options.training.init_path
    return max(decays, default=0.0) ** updates if begun else 0.0
