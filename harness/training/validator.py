"""Validate a run's checkpoints between host steps, with a separate program."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any

from harness.checkpoints.checkpoint import Checkpoint
from harness.checkpoints.read import Tensors
from harness.programs import build_or_load
from harness.run import validations
from harness.run.run import Run
from harness.training.run_dir import TrainingContext

if TYPE_CHECKING:
    from ipu_utils import InferenceProgram


_NOTED = 0.1  # if initial values make up more of the moving statistics, the loss looks wrong; explain it


class Validator:
    """Validates each checkpoint once."""

    def __init__(self, context: TrainingContext, validated: Mapping[str, Mapping[str, Any]]) -> None:
        """`validated`: the rows of validation.csv so far, by checkpoint name."""
        self._context = context
        self.rows = dict(validated)
        self._built = ExitStack()

    def __enter__(self) -> Validator:
        return self

    def __exit__(self, *_: object) -> None:
        self._built.close()

    @cached_property
    def _program(self) -> InferenceProgram:
        """The validation program, built for the first checkpoint."""
        return self._built.enter_context(build_or_load.validation_program(self._context.run, self._context.log))

    def validate(self, checkpoint: Checkpoint, values: Tensors) -> None:
        """Validate a checkpoint, unless validation.csv has it or validation is off."""
        run, log = self._context.run, self._context.log
        if not run.options.checkpoint.validation or not run.data_source.spec.validation_images:
            return
        if checkpoint.name in self.rows:
            log.note(f"Skipped the validation of {checkpoint.name}: validation.csv has it already")
            return
        from harness.evaluation.validate import validate

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
                f"  the loss is too high, because batch norm's moving statistics still contain {100 * share:.0f} % of "
                "their initial values"
            )
        self._context.listener.on_validation(self.rows[checkpoint.name])

    def stop(self) -> None:
        """Stop a running validation at its next micro-batch."""
        if "_program" in self.__dict__:
            self._program.stop()

    @property
    def _ordered(self) -> list[Mapping[str, Any]]:
        """The rows of checkpoints, without averages, in order of their updates."""
        return validations.by_update(self.rows.values())

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The row of the best checkpoint, without averages."""
        by = self._context.run.options.checkpoint.best_by
        return next(iter(validations.ranked(self._ordered, by)), None)

    @property
    def unbeaten(self) -> Mapping[str, Any] | None:
        """The row from which --patience counts: the first one with the best accuracy, regardless of its loss."""
        return validations.best(self._ordered)

    @property
    def without_gain(self) -> int:
        """Number of validations since the `unbeaten` one."""
        return validations.without_gain(self._ordered)

    @property
    def ends_run(self) -> bool:
        """True if the accuracy has not improved for --patience validations."""
        return validations.patience_is_over(self._ordered, self._context.run.options.checkpoint.patience)

    @property
    def newest(self) -> Mapping[str, Any] | None:
        """The row of the newest validated checkpoint, without averages."""
        return next(reversed(self._ordered), None)


def _initial_share(run: Run, updates: int) -> float:
    """Return the share of the initial values in the moving statistics after `updates`: 0 for a run from --init-path,
    and for averages, whose `updates` is negative."""
    decays = [v.decay for v in run.trace.variables if v.decay is not None and run.is_trained(v.name)]
    begun = updates > 0 and not run.options.training.init_path
    return max(decays, default=0.0) ** updates if begun else 0.0
