"""The end of a run whose loss or weights are no longer finite; and the log's lines on gradients that FP16 loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.checkpoints import compatibility
from harness.run.run import Run
from harness.training.job import Job
from harness.training.lost_gradients import LostGradients

_ADVICE, _OR = "a lower learning rate may help", "--keep-going goes on all the same"


class Overflow(FloatingPointError):
    """A loss or weights that are not finite where gradients overflow. `gentler`: options that may help."""

    def __init__(self, message: str, gentler: list[str]) -> None:
        super().__init__(message)
        self.gentler = gentler


def remedies(error: BaseException, run: Run) -> list[str]:
    """Options with which a run that has diverged does not end at the same update again; none for any other error."""
    if not isinstance(error, FloatingPointError):
        return []
    return getattr(error, "gentler", None) or _slower(run)


def _slower(run: Run) -> list[str]:
    """Half the learning rate."""
    return ["--abs-learning-rate", f"{run.peak_rate / 2:.3g}"]


class Divergence:
    """Judges losses and weights; FloatingPointError ends the run, unless it is to keep going."""

    def __init__(self, job: Job, layers: Sequence[str]) -> None:
        """`layers`: whose gradients are watched, in the order of the forward pass."""
        self._job, self._training = job, job.run.options.training
        formats = {layer: job.run.plan.precision.gradients_of(f"{layer}/kernel")[-1].name for layer in layers}
        self._gradients = LostGradients(formats, self._training.loss_scaling)
        self._diverged = False
        self._scale: tuple[float, int] | None = None
        self._logged_scale = self._training.loss_scaling, 0

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
        if not self._training.keep_going:
            self.report()  # which may tell why
            raise self._ended(reason)
        self._job.log.note(f"warning: {reason}")

    def judge_values(self, values: Mapping[str, np.ndarray], iteration: int, together: bool) -> None:
        """The weights and slots after so many updates: no run goes on from those that are not finite, or beyond their
        format. `together`: every instance judges them now, and no other waits for this one in its next update."""
        if self._training.keep_going:
            return
        for fault in compatibility.faulty(values, compatibility.saved(self._job.run)):
            raise self._ended(f"after update {iteration}, {fault}: {self._advice}", together)

    def hopeless(self, loss: float) -> bool:
        """Return whether a host step had better end at an update of this loss."""
        return not np.isfinite(loss) and not self._training.keep_going

    def report(self) -> None:
        """The log's lines on gradients that were lost since the last ones."""
        notes = self._gradients.notes()  # whose advice is not for a run that finds its scale
        for note in notes if self._scale is None else self._scale_notes():
            self._job.log.note(note)

    def _scale_notes(self) -> list[str]:
        """A line if the loss scale is another one than in the last line."""
        before, self._logged_scale = self._logged_scale, self._scale
        scale, skipped = self._scale
        if before == self._scale:
            return []
        return [f"loss scale: {scale:g}; {skipped} update{'s' * (skipped != 1)} skipped so far, as gradients overflowed"]

    def _ended(self, reason: str, together: bool = True) -> FloatingPointError:
        if together:
            self._job.team.agreed_to_stop = True  # every instance has this loss, and these weights
        if not self._blamed_on_scale:
            return FloatingPointError(f"{reason}; {_OR}")
        scale, usual = self._training.loss_scaling, type(self._training).loss_scaling
        gentler = ["--loss-scaling", f"{min(scale / 16, usual):.3g}"]
        return Overflow(f"{reason}; {_OR}", gentler + (_slower(self._job.run) if self._scale_is_usual else []))

    @property
    def _scale_is_usual(self) -> bool:
        """True if the scale is no larger than the default: it alone is seldom to blame for an overflow then."""
        return self._training.loss_scaling <= type(self._training).loss_scaling

    @property
    def _blamed_on_scale(self) -> bool:
        """True if gradients of layers have overflown, or if a large scale may have let those of weights, which are not
        watched."""
        half = self._gradients.watched
        return self._gradients.overflown or (half and not self._scale_is_usual)

    @property
    def _advice(self) -> str:
        """The advice where a loss or weights are no longer finite."""
        if not self._blamed_on_scale:
            return _ADVICE
        of_scale = self._gradients.smaller_scale
        seen = self._gradients.overflown and not self._scale_is_usual
        return of_scale if seen else f"{of_scale}, and so may a lower learning rate"
