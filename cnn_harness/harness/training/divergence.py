"""Stop a run if its loss or weights are not finite. Warn if narrow number formats lose gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from cnn_harness.emulator.plan.number_formats import FP16, FP32
from cnn_harness.harness.run.run import Run

if TYPE_CHECKING:
    from cnn_harness.harness.training.run_dir import TrainingContext

MUCH_LOST = 0.1  # A layer may lose this share of its gradients: runs that lose less train as well as in FP32.


class Diverged(FloatingPointError):
    """The loss or the weights are not finite. `suggested` are options that may help; without
    any, a lower learning rate may help."""

    def __init__(self, message: str, suggested: list[str]) -> None:
        super().__init__(message)
        self.suggested = suggested


def remedies(error: BaseException, run: Run) -> list[str]:
    """Return options that may help if the run diverged. Return [] for other errors."""
    if not isinstance(error, FloatingPointError):
        return []
    return getattr(error, "suggested", None) or _half_rate(run)


def _half_rate(run: Run) -> list[str]:
    return ["--abs-learning-rate", f"{run.peak_rate / 2:.3g}"]


class Divergence:
    """Checks losses and weights. Raises Diverged if they are not finite, unless --keep-going is given."""

    def __init__(self, context: TrainingContext, layers: Sequence[str]) -> None:
        """`layers` are the layers whose gradients are checked, in the order of the forward pass."""
        self._context, self._options = context, context.run.options.training
        formats = {layer: context.run.plan.precision.gradients_of(f"{layer}/kernel")[-1].name for layer in layers}
        self._wider_slots = _wider_slots(context.run)
        self._gradients = LostGradients(formats, self._options.loss_scaling)
        self._diverged = False
        self._scale: tuple[float, int] | None = None
        self._logged_scale = self._options.loss_scaling, 0

    def check_updates(self, first: int, loss: np.ndarray, lost: np.ndarray, scale: tuple[float, int] | None = None) -> None:
        """Check the losses [updates] of the updates from `first` on, and add up `lost`.

        `lost` [updates, layers, 2] is the share of gradients that underflow and that overflow. With automatic loss scaling,
        `scale` contains the current loss scale and the number of skipped updates.
        """
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
        """Check the weights and the optimiser's slots after update `iteration`, before they are saved. `together` is true if
        all instances (processes) do this at the same time, so that no instance waits for another one in the next update."""
        if self._options.keep_going:
            return
        from cnn_harness.harness.checkpoints import compatibility

        for fault in compatibility.invalid_tensor(values, compatibility.expected_training_tensors(self._context.run)):
            raise self._error(f"after update {iteration}, {fault}: {self._advice}", together)

    def ends_host_step(self, loss: float) -> bool:
        """Return whether a host step should end after an update with this loss."""
        return not np.isfinite(loss) and not self._options.keep_going

    def report(self) -> None:
        """Log the share of lost gradients since the last report. With automatic loss scaling, log the loss scale instead."""
        notes = self._gradients.notes()
        for note in notes if self._scale is None else self._scale_notes():
            self._context.log.note(note)

    def _scale_notes(self) -> list[str]:
        before, self._logged_scale = self._logged_scale, self._scale
        scale, skipped = self._scale
        if before == self._scale:
            return []
        return [f"loss scale: {scale:g}; {skipped} update{'s' * (skipped != 1)} skipped so far because gradients overflowed"]

    def _error(self, reason: str, together: bool = True) -> Diverged:
        """Return the error that ends the run, with suggested options. If all instances raise it, `together` is true."""
        if together:
            self._context.team.agreed_to_stop = True  # Loss and weights are the same in all instances, so all of them stop.
        suggested = ["--slot-format", FP32.name.lower()] if self._wider_slots else []
        if self._scale_is_suspected:
            scale, usual = self._options.loss_scaling, type(self._options).loss_scaling
            slower = _half_rate(self._context.run) if self._scale_is_usual else []
            suggested = ["--loss-scaling", f"{min(scale / 16, usual):.3g}", *slower]
        return Diverged(f"{reason}; to continue anyway, give --keep-going", suggested)

    @property
    def _scale_is_usual(self) -> bool:
        """True if the loss scale is at most the default. Such a small scale is rarely the only cause of an overflow."""
        return self._options.loss_scaling <= type(self._options).loss_scaling

    @property
    def _scale_is_suspected(self) -> bool:
        """True if the loss scale may be the cause. Either checked gradients overflowed, or the scale is so large that the
        gradients of weights, which are not checked, may have overflowed."""
        return self._gradients.overflown or (self._gradients.watched and not self._scale_is_usual)

    @property
    def _advice(self) -> str:
        if not self._scale_is_suspected:
            slots = self._wider_slots
            return f"{slots} or a lower learning rate may help" if slots else "a lower learning rate may help"
        scale_only = self._gradients.overflown and not self._scale_is_usual
        return f"{self._gradients.smaller_scale}{'' if scale_only else ' or a lower learning rate'} may help"


def _wider_slots(run: Run) -> str:
    """Return advice on --slot-format if the format of the optimiser's slots has a smaller range than FP16; otherwise ""."""
    if not run.options.training.rule.slots:
        return ""
    formats = (run.plan.precision.slot_format(v) for v in run.network.variables if v.trainable)
    slots = min(formats, key=lambda each: each.largest)
    return (
        "" if slots.largest >= FP16.largest else f"a --slot-format with a wider range than {slots.name} ({slots.largest:g})"
    )


class LostGradients:
    """Collects the share of lost gradients. Warns when gradients are lost for the first time, and when the share has
    doubled."""

    def __init__(self, layers: Mapping[str, str], loss_scaling: float) -> None:
        """`layers` maps each layer to the number format of its gradients, in the order of the forward pass."""
        self._layers, self._formats, self._scale = list(layers), list(layers.values()), loss_scaling
        self._sum, self._updates = np.zeros([len(layers), 2]), 0
        self._reported = {"underflow": MUCH_LOST / 2, "overflow": 0.0}
        self.overflown = False

    def add(self, first: int, lost: np.ndarray) -> None:
        """Add the shares [updates, layers, 2] of the updates from `first` on.

        The shares of update 0 are ignored: if the scale of a norm starts at zero, the layers before the norm have only
        zero gradients in this update.
        """
        counted = lost[1:] if first == 0 else lost
        self._sum += counted.sum(0, dtype=np.float64)
        self._updates += len(counted)
        self.overflown |= bool(lost[..., 1].any())

    @property
    def watched(self) -> bool:
        """True if there are layers to check, because their gradients have a narrow format."""
        return bool(self._layers)

    @property
    def smaller_scale(self) -> str:
        """The advice for gradients that overflow."""
        return f"a smaller --loss-scaling than {self._scale:g}"

    def notes(self) -> list[str]:
        """Return warnings about the updates since the last call."""
        if not self._updates or not self._layers:
            return []
        under, over = (self._sum / self._updates).T
        self._sum[:], self._updates = 0, 0
        lines = []
        if under.max() >= 2 * self._reported["underflow"]:
            self._reported["underflow"] = under.max()
            larger = f"a larger --loss-scaling than {self._scale:g}"
            lines.append(self._note("underflow", "0 in", int(under.argmax()), under, MUCH_LOST, larger))
        if over.max() > 2 * self._reported["overflow"]:
            self._reported["overflow"] = over.max()
            last = int(np.flatnonzero(over)[-1])  # Of the layers with overflow, the backward pass reaches this one first.
            lines.append(self._note("overflow", "beyond", last, over, 0.0, self.smaller_scale))
        return lines

    def _note(self, what: str, becomes: str, layer: int, shares: np.ndarray, above: float, remedy: str) -> str:
        others = int((shares > above).sum()) - 1
        also = f" (and in {others} other layer{'s' * (others > 1)})" if others > 0 else ""
        return (
            f"gradients {what}: {100 * shares[layer]:.3g} % of the gradients at {self._layers[layer]}{also} are {becomes} "
            f"{self._formats[layer]}; {remedy} may help"
        )
