"""Compute the length of a training, and the updates after which it logs and saves checkpoints.

A host step is a group of updates between two returns to the host. Host steps depend only on the number of the update, so a
resumed run has the same host steps as an uninterrupted run. `first` and `end` mean the updates from `first` to `end` - 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from cnn_harness.base.fields import exact
from cnn_harness.harness.options.releases import vintage
from cnn_harness.LR_Schedules._schedule import ScheduledRun

MAX_ITERATIONS = 2**31 - 1
LOG_FREQ, LOGS_PER_EPOCH = 500, 16  # the defaults with --iterations, and with --epochs


@dataclass(frozen=True, kw_only=True)
class TrainingLength:
    """The length and periods of a run, in weight updates unless the name says otherwise."""

    images: int
    global_batch: int
    iterations: int
    epochs: float
    log_interval: int  # 0: log only the first and the last host step
    updates_per_host_step: int
    iterations_per_ckpt: int  # 0: never
    ckpt_epochs_offset: float = 0
    logs_first_rate: bool = False  # log the learning rate of the first update of a host step, not the last
    saves_first_step: bool = False  # also save after the first and the last two host steps

    @classmethod
    def of(
        cls, *, images: int, global_batch: int, epochs: float | None = None, iterations: int | None = None,
        logs_per_epoch: int | None = None, log_freq: int | None = None, batches_per_step: int = 1000,
        ckpts_per_epoch: int = 1, epochs_per_ckpt: int = 0, ckpt_epochs_offset: float = 0, logs_first_rate: bool = False,
        whole_epochs: bool = False, release: str | None = None,
    ) -> TrainingLength:  # fmt: skip
        """Return the length for these options. Raise ValueError if no length is given or it is too large.

        `iterations`, `log_freq` and `epochs_per_ckpt` override `epochs`, `logs_per_epoch` and `ckpts_per_epoch`.
        With `whole_epochs`, an epoch is rounded up to whole batches.
        """
        _check(images=images, global_batch=global_batch, batches_per_step=batches_per_step, epochs=epochs,
               iterations=iterations, log_freq=log_freq)  # fmt: skip
        if epochs is None and iterations is None:
            raise ValueError("no length given; give epochs or iterations")
        images = epoch_images(images, global_batch, whole_epochs)
        per_epoch = max(1, images // global_batch)
        if iterations is None and images * epochs / global_batch > MAX_ITERATIONS:
            raise ValueError(f"{epochs:g} epochs are more than {MAX_ITERATIONS:,} weight updates; give fewer")
        if log_freq is None and logs_per_epoch is None:
            log_freq, logs_per_epoch = (None, LOGS_PER_EPOCH) if iterations is None else (LOG_FREQ, None)
        interval = log_freq or (max(1, per_epoch // logs_per_epoch) if logs_per_epoch else 0)
        ckpt = per_epoch * epochs_per_ckpt or (max(1, per_epoch // ckpts_per_epoch) if ckpts_per_epoch else 0)
        return cls(
            images=images, global_batch=global_batch, iterations_per_ckpt=ckpt, ckpt_epochs_offset=ckpt_epochs_offset,
            logs_first_rate=logs_first_rate, saves_first_step=vintage(release).saves_first_step,
            iterations=iterations or max(1, int(images * exact(epochs) // global_batch)),
            epochs=epochs if iterations is None else iterations * global_batch / images,
            log_interval=interval,
            # Without a log interval, use an epoch, so that host steps do not depend on the length of the run.
            updates_per_host_step=_host_step(interval or per_epoch, batches_per_step, whole_epochs),
        )  # fmt: skip

    @property
    def iterations_per_epoch(self) -> int:
        return max(1, self.images // self.global_batch)

    @property
    def epochs_per_update(self) -> Fraction:
        return Fraction(self.global_batch, self.images)

    @property
    def exact_epochs(self) -> Fraction:
        """The length in epochs without rounding error."""
        counted = self.iterations * self.epochs_per_update
        return counted if float(counted) == self.epochs else exact(self.epochs)

    @property
    def window_steps(self) -> int:
        """The number of host steps over which the log averages loss and accuracy: about one epoch."""
        return max(1, self.iterations_per_epoch // self.updates_per_host_step)

    def epoch(self, i: int) -> float:
        return i * self.global_batch / self.images

    def scheduled(self, peak: float) -> ScheduledRun:
        """Return the values that a learning-rate schedule needs."""
        return ScheduledRun(
            peak=peak,
            iterations=self.iterations,
            epochs=self.exact_epochs,
            iterations_per_epoch=self.iterations_per_epoch,
            epochs_per_update=self.epochs_per_update,
        )

    def extension_flags(self, in_iterations: bool) -> list[str]:
        """Return the option that makes the run 1.5 times as long; [] if that is too long for a run."""
        if in_iterations:
            more = min(self.iterations + (self.iterations + 1) // 2, MAX_ITERATIONS)
            return ["--iterations", str(more)] if more > self.iterations else []
        # The run must have at least one more update, which may take several epochs.
        least = -(-(self.iterations + 1) * self.global_batch // self.images)
        epochs = max(math.ceil(1.5 * self.epochs), least)
        return ["--epochs", str(epochs)] if self.images * epochs / self.global_batch <= MAX_ITERATIONS else []

    def logged_update(self, end: int) -> int:
        """Return the update whose learning rate the log row after `end` updates shows."""
        return self.host_step_start(end - 1) if self.logs_first_rate else end - 1

    def host_step_start(self, first: int) -> int:
        """Return the first update of the host step that contains update `first`."""
        return first - first % self.updates_per_host_step

    def host_step_end(self, first: int) -> int:
        return min(self.host_step_start(first) + self.updates_per_host_step, self.iterations)

    def host_steps(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of the host steps from `start` to `stop`; the first and the last one may be cut short."""
        stop = self.iterations if stop is None else min(stop, self.iterations)
        while start < stop:
            end = min(self.host_step_end(start), stop)
            yield start, end
            start = end

    def log_due(self, first: int, end: int) -> bool:
        """Return whether these updates complete a host step that is logged.

        A log row covers a whole host step, so part of a step is not logged.
        """
        start = self.host_step_start(first)
        if end != self.host_step_end(first) or not self.log_interval:
            return end == self.host_step_end(first) and (start == 0 or end == self.iterations)
        return self._is_outer(start) or _crosses(self.log_interval, start, end)

    def _is_outer(self, start: int) -> bool:
        """Return whether a host step is the first or one of the last two."""
        return start == 0 or start >= self.host_step_start(self.iterations - 1) - self.updates_per_host_step

    def checkpoint_due(self, first: int, end: int) -> bool:
        """Return whether these updates complete a host step after which the weights are saved and validated.

        They are saved after each host step in which a checkpoint interval ends, and after the last host step.
        """
        period = self.iterations_per_ckpt
        if not period or end != self.host_step_end(first):
            return False
        start = self.host_step_start(first)
        due = _crosses(period, start, end) or (self.saves_first_step and self._is_outer(start))
        return end == self.iterations or (due and end * self.epochs_per_update >= exact(self.ckpt_epochs_offset))

    def is_checkpoint(self, iteration: int) -> bool:
        """Return whether an uninterrupted run saves after `iteration` updates."""
        first = self.host_step_start(iteration - 1) if iteration > 0 else 0
        return iteration > 0 and self.host_step_end(first) == iteration and self.checkpoint_due(first, iteration)

    def checkpoint_points(self) -> list[int]:
        return [end for first, end in self.host_steps() if self.checkpoint_due(first, end)]


def epoch_images(images: int, global_batch: int, whole_epochs: bool) -> int:
    """Return the number of images that count as an epoch: all of them, rounded up to whole batches with `whole_epochs`."""
    return -(-images // global_batch) * global_batch if whole_epochs else images


def _host_step(interval: int, batches_per_step: int, whole_epochs: bool) -> int:
    """Return the number of updates per host step: about `batches_per_step`, but not more than the log interval.

    With `whole_epochs`, the host steps of an interval reach its end.
    """
    parts = 1 if interval < batches_per_step else round(interval / batches_per_step)
    return -(-interval // parts) if whole_epochs else interval // parts


def _crosses(period: int, first: int, end: int) -> bool:
    """Return whether a multiple of `period` is in (first, end]."""
    return end // period > first // period


def _check(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value} but must be greater than 0")
