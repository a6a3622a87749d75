"""The end of a run whose loss or weights are no longer finite, and log lines on gradients that narrow formats lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from emulator.plan.number_formats import FP16, FP32
from harness.options.update_rules import UPDATE_RULES
from harness.run.run import Run

if TYPE_CHECKING:
    from harness.training.run_dir import TrainingContext

MUCH_LOST = 0.1  # of a layer's gradients: runs that lose less learn as well as in FP32


class Diverged(FloatingPointError):
    """A loss or weights that are not finite. `suggested`: options that may help; none if only a lower rate may."""

    def __init__(self, message: str, suggested: list[str]) -> None:
        super().__init__(message)
        self.suggested = suggested


def remedies(error: BaseException, run: Run) -> list[str]:
    """Return options with which a diverged run does not end at the same update again; none for any other error."""
    if not isinstance(error, FloatingPointError):
        return []
    return getattr(error, "suggested", None) or _half_rate(run)


def _half_rate(run: Run) -> list[str]:
    return ["--abs-learning-rate", f"{run.peak_rate / 2:.3g}"]


class Divergence:
    """Checks losses and weights; FloatingPointError ends the run, unless it has --keep-going."""

    def __init__(self, context: TrainingContext, layers: Sequence[str]) -> None:
        """`layers`: whose gradients are watched, in the order of the forward pass."""
        self._context, self._options = context, context.run.options.training
        formats = {layer: context.run.plan.precision.gradients_of(f"{layer}/kernel")[-1].name for layer in layers}
        self._wider_slots = _wider_slots(context.run)
        self._gradients = LostGradients(formats, self._options.loss_scaling)
        self._diverged = False
        self._scale: tuple[float, int] | None = None
        self._logged_scale = self._options.loss_scaling, 0

    def check_updates(self, first: int, loss: np.ndarray, lost: np.ndarray, scale: tuple[float, int] | None = None) -> None:
        """Check the losses [updates] from update `first` on; count the lost shares of gradients [updates, layers, 2].
        `scale`: the loss scale that the run has found by now, and the updates that it skipped on its way there."""
        self._gradients.add(first, lost)
        self._scale = scale
        bad = np.flatnonzero(~np.isfinite(loss))
        if not bad.size or self._diverged:
            return
        self._diverged = True
        reason = f"the loss of update {first + bad[0] + 1} is {loss[bad[0]]:g}: {self._advice}"
        if not self._options.keep_going:
            self.report()
            raise self._error(reason)
        self._context.log.note(f"warning: {reason}")

    def check_values(self, values: Mapping[str, np.ndarray], iteration: int, together: bool) -> None:
        """Check the weights and slots after update `iteration`, before they are saved. `together`: every instance does now,
        and no other waits for this one in its next update."""
        if self._options.keep_going:
            return
        from harness.checkpoints import compatibility

        for fault in compatibility.invalid_tensor(values, compatibility.expected_training_tensors(self._context.run)):
            raise self._error(f"after update {iteration}, {fault}: {self._advice}", together)

    def ends_host_step(self, loss: float) -> bool:
        """Return whether a host step should end at an update of this loss."""
        return not np.isfinite(loss) and not self._options.keep_going

    def report(self) -> None:
        """Log the gradients that were lost since the last report, or the loss scale if the run finds its own."""
        notes = self._gradients.notes()
        for note in notes if self._scale is None else self._scale_notes():
            self._context.log.note(note)

    def _scale_notes(self) -> list[str]:
        before, self._logged_scale = self._logged_scale, self._scale
        scale, skipped = self._scale
        if before == self._scale:
            return []
        return [f"loss scale: {scale:g}; {skipped} update{'s' * (skipped != 1)} skipped so far, as gradients overflowed"]

    def _error(self, reason: str, together: bool = True) -> Diverged:
        """Return the error that ends the run, with options to suggest. `together`: in every instance."""
        if together:
            self._context.team.agreed_to_stop = True  # every instance has this loss, and these weights
        suggested = ["--slot-format", FP32.name.lower()] if self._wider_slots else []
        if self._scale_is_suspected:
            scale, usual = self._options.loss_scaling, type(self._options).loss_scaling
            slower = _half_rate(self._context.run) if self._scale_is_usual else []
            suggested = ["--loss-scaling", f"{min(scale / 16, usual):.3g}", *slower]
        return Diverged(f"{reason}; --keep-going goes on all the same", suggested)

    @property
    def _scale_is_usual(self) -> bool:
        """True if the scale is no larger than the default; it alone is seldom the cause of an overflow then."""
        return self._options.loss_scaling <= type(self._options).loss_scaling

    @property
    def _scale_is_suspected(self) -> bool:
        """True if gradients of layers overflowed, or a large scale may have made those of weights overflow, which are not
        watched."""
        return self._gradients.overflown or (self._gradients.watched and not self._scale_is_usual)

    @property
    def _advice(self) -> str:
        if not self._scale_is_suspected:
            slots = self._wider_slots
            return f"{slots} may help, and so may a lower learning rate" if slots else "a lower learning rate may help"
        scale_alone = self._gradients.overflown and not self._scale_is_usual
        return self._gradients.smaller_scale + ("" if scale_alone else ", and so may a lower learning rate")


def _wider_slots(run: Run) -> str:
    """Return advice on the optimiser's slots if their format has a smaller range than FP16; "" otherwise."""
    if not UPDATE_RULES[run.options.training.optimiser].slots:
        return ""
    formats = (run.plan.precision.slot_format(v) for v in run.trace.variables if v.trainable)
    slots = min(formats, key=lambda each: each.largest)
    return "" if slots.largest >= FP16.largest else f"a wider --slot-format than {slots.name}'s {slots.largest:g}"


class LostGradients:
    """Collects the shares of gradients that each update lost; reports the first loss, and again when it has doubled."""

    def __init__(self, layers: Mapping[str, str], loss_scaling: float) -> None:
        """`layers`: the gradients' format by layer, in the order of the forward pass."""
        self._layers, self._formats, self._scale = list(layers), list(layers.values()), loss_scaling
        self._sum, self._updates = np.zeros([len(layers), 2]), 0
        self._reported = {"underflow": MUCH_LOST / 2, "overflow": 0.0}
        self.overflown = False  # whether gradients have

    def add(self, first: int, lost: np.ndarray) -> None:
        """Count shares [updates, layers, 2] of the updates from `first` on, but for the run's very first: if a norm's scale
        begins at zero, all gradients below it are 0 then."""
        counted = lost[1:] if first == 0 else lost
        self._sum += counted.sum(0, dtype=np.float64)
        self._updates += len(counted)
        self.overflown |= bool(lost[..., 1].any())

    @property
    def watched(self) -> bool:
        """True if any gradient comes into a narrow format."""
        return bool(self._layers)

    @property
    def smaller_scale(self) -> str:
        """The advice for gradients that overflow."""
        return f"a smaller --loss-scaling than {self._scale:g} may help"

    def notes(self) -> list[str]:
        """Return log lines on the updates since the last call."""
        if not self._updates or not self._layers:
            return []
        under, over = (self._sum / self._updates).T
        self._sum[:], self._updates = 0, 0
        lines = []
        if under.max() >= 2 * self._reported["underflow"]:
            self._reported["underflow"] = under.max()
            larger = f"a larger --loss-scaling than {self._scale:g} may help"
            lines.append(self._note("underflow", "0 in", int(under.argmax()), under, MUCH_LOST, larger))
        if over.max() > 2 * self._reported["overflow"]:
            self._reported["overflow"] = over.max()
            last = int(np.flatnonzero(over)[-1])  # the backward pass begins at the end
            lines.append(self._note("overflow", "beyond", last, over, 0.0, self.smaller_scale))
        return lines

    def _note(self, what: str, becomes: str, layer: int, shares: np.ndarray, above: float, advice: str) -> str:
        others = int((shares > above).sum()) - 1
        also = f", and at {others} other layer{'s' * (others > 1)}" if others > 0 else ""
        return (
            f"gradients {what}: {100 * shares[layer]:.3g} % of those that arrive at {self._layers[layer]} are {becomes} "
            f"{self._formats[layer]}{also}; {advice}"
        )
