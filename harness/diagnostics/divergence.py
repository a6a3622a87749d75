"""The end of a run whose loss or weights are no longer finite; and the log's lines on gradients that FP16 loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from emulator.plan.number_formats import FP16, FP32
from harness.diagnostics.lost_gradients import LostGradients
from harness.options.update_rules import UPDATE_RULES
from harness.run.run import Run

if TYPE_CHECKING:
    from harness.training.context import TrainingContext

_ADVICE, _KEEP_GOING = "a lower learning rate may help", "--keep-going goes on all the same"


class Diverged(FloatingPointError):
    """A loss or weights that are not finite. `suggested`: options that may help; none where only a lower rate may."""

    def __init__(self, message: str, suggested: list[str]) -> None:
        super().__init__(message)
        self.suggested = suggested


def remedies(error: BaseException, run: Run) -> list[str]:
    """Options with which a run that has diverged does not end at the same update again; none for any other error."""
    if not isinstance(error, FloatingPointError):
        return []
    return getattr(error, "suggested", None) or _slower(run)


def _slower(run: Run) -> list[str]:
    """Return the option for half the learning rate."""
    return ["--abs-learning-rate", f"{run.peak_rate / 2:.3g}"]


def _narrow_slots(run: Run) -> str:
    """Advice on the optimiser's slots, if their format ends before FP16 does; "" otherwise."""
    if not UPDATE_RULES[run.options.training.optimiser].slots:
        return ""
    formats = (run.plan.precision.slot_format(v) for v in run.trace.variables if v.trainable)
    slots = min(formats, key=lambda each: each.largest)
    return "" if slots.largest >= FP16.largest else f"a wider --slot-format than {slots.name}'s {slots.largest:g}"


class Divergence:
    """Judges losses and weights; FloatingPointError ends the run, unless it is to keep going."""

    def __init__(self, context: TrainingContext, layers: Sequence[str]) -> None:
        """`layers`: whose gradients are watched, in the order of the forward pass."""
        self._context, self._options = context, context.run.options.training
        formats = {layer: context.run.plan.precision.gradients_of(f"{layer}/kernel")[-1].name for layer in layers}
        self._slots = _narrow_slots(context.run)
        self._gradients = LostGradients(formats, self._options.loss_scaling)
        self._diverged = False
        self._scale: tuple[float, int] | None = None
        self._logged_scale = self._options.loss_scaling, 0

    def judge_updates(self, first: int, loss: np.ndarray, lost: np.ndarray, scale: tuple[float, int] | None = None) -> None:
        """The losses [updates] from update `first` on, and the shares of gradients [updates, layers, 2] that were lost.
        `scale`: the loss scale that the run has found by now, and the updates that it skipped on its way there."""
        self._gradients.add(first, lost)
        self._scale = scale
        bad = np.flatnonzero(~np.isfinite(loss))
        if not bad.size or self._diverged:
            return
        self._diverged = True
        reason = f"the loss of update {first + bad[0] + 1} is {loss[bad[0]]:g}: {self._advice}"
        if not self._options.keep_going:
            self.report()  # which may tell why
            raise self._error(reason)
        self._context.log.note(f"warning: {reason}")

    def judge_values(self, values: Mapping[str, np.ndarray], iteration: int, together: bool) -> None:
        """The weights and slots after update `iteration`: no run resumes from those that are not finite, or beyond their
        format. `together`: every instance judges them now, and no other waits for this one in its next update."""
        if self._options.keep_going:
            return
        from harness.checkpoints import compatibility

        for fault in compatibility.invalid_tensor(values, compatibility.expected_training_tensors(self._context.run)):
            raise self._error(f"after update {iteration}, {fault}: {self._advice}", together)

    def ends_host_step(self, loss: float) -> bool:
        """Return whether a host step had better end at an update of this loss."""
        return not np.isfinite(loss) and not self._options.keep_going

    def report(self) -> None:
        """The log's lines on gradients that were lost since the last ones."""
        notes = self._gradients.notes()  # whose advice is not for a run that finds its scale
        for note in notes if self._scale is None else self._scale_notes():
            self._context.log.note(note)

    def _scale_notes(self) -> list[str]:
        """A line if the loss scale is another one than in the last line."""
        before, self._logged_scale = self._logged_scale, self._scale
        scale, skipped = self._scale
        if before == self._scale:
            return []
        return [f"loss scale: {scale:g}; {skipped} update{'s' * (skipped != 1)} skipped so far, as gradients overflowed"]

    def _error(self, reason: str, together: bool = True) -> Diverged:
        """Return the error that ends the run, with options to suggest. `together`: in every instance."""
        if together:
            self._context.team.agreed_to_stop = True  # every instance has this loss, and these weights
        if not self._scale_is_suspected:
            wider = ["--slot-format", FP32.name.lower()] if self._slots else []
            return Diverged(f"{reason}; {_KEEP_GOING}", wider)
        scale, usual = self._options.loss_scaling, type(self._options).loss_scaling
        suggested = ["--loss-scaling", f"{min(scale / 16, usual):.3g}"]
        return Diverged(f"{reason}; {_KEEP_GOING}", suggested + (_slower(self._context.run) if self._scale_is_usual else []))

    @property
    def _scale_is_usual(self) -> bool:
        """True if the scale is no larger than the default: it alone is seldom to blame for an overflow then."""
        return self._options.loss_scaling <= type(self._options).loss_scaling

    @property
    def _scale_is_suspected(self) -> bool:
        """True if gradients of layers have overflown, or if a large scale may have let those of weights, which are not
        watched."""
        watched = self._gradients.watched
        return self._gradients.overflown or (watched and not self._scale_is_usual)

    @property
    def _advice(self) -> str:
        """The advice where a loss or weights are no longer finite."""
        if not self._scale_is_suspected:
            return f"{self._slots} may help, and so may a lower learning rate" if self._slots else _ADVICE
        of_scale = self._gradients.smaller_scale
        seen = self._gradients.overflown and not self._scale_is_usual
        return of_scale if seen else f"{of_scale}, and so may a lower learning rate"
