"""Compute log rows from the metrics of weight updates: averages over a host step and over several host steps, and times.

If a run is stopped during a host step and resumed, the row contains the averages over the whole host step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from cnn_harness.harness.run.length import TrainingLength

_LEAST_SECONDS = 5.0  # A share of a shorter time says little.
_DECAY = 0.99  # Every update multiplies the sums of gradient noise by this factor.


class Meter:
    """Collects the metrics of updates. `row` returns the log row of the host step that has just ended."""

    def __init__(
        self, length: TrainingLength, step_increment: int, learning_rate: Callable[[int], float], state: Mapping[str, Any]
    ) -> None:
        """`state` is the result of `state()` in the checkpoint of a resumed run, or {} for a new run."""
        self._length = length
        self._increment = step_increment
        self._learning_rate = learning_rate
        self._steps = state.get("host_steps", 0)
        self._seconds = state.get("seconds", 0.0)
        same_grid = state.get("updates_per_step") == length.updates_per_host_step
        # If the length of host steps has changed, forget the earlier host steps, because averages cannot combine the two.
        self._window = deque(state.get("window", ()) if same_grid else [], maxlen=length.window_steps)
        self._open = list(state.get("open", ())) if same_grid else []
        self._noise = np.asarray(state.get("gradient_noise", (0.0, 0.0)))  # decaying sums of S and |G|^2
        # Number of updates, their seconds, and the seconds in which they waited for data:
        self._since_report = [0, 0.0, 0.0]  # since the last row
        self._timed = [0, 0.0, 0.0]  # in this call
        self._first = [0, 0.0, 0.0]  # in the first host step of this call
        self._skip_time = True

    def state(self) -> dict[str, Any]:
        """Return the values that a checkpoint stores, so that a resumed run can continue the averages and times."""
        return {
            "host_steps": self._steps,
            "seconds": self._seconds,
            "updates_per_step": self._length.updates_per_host_step,
            "window": list(self._window),
            "open": self._open,
            "gradient_noise": self._noise.tolist(),
        }

    def add(self, loss: Sequence[float], accuracy: Sequence[float], seconds: float, waited: float = 0.0) -> None:
        """Add the updates of a host step, or of a part of one. `accuracy` contains fractions from 0 to 1. In `waited` of the
        `seconds`, the device waited for data."""
        self._open += [(float(a), float(b)) for a, b in zip(loss, accuracy)]
        self._seconds += seconds
        # Exclude the first host step of a process from the speed, because it warms up caches.
        if self._skip_time:
            self._skip_time, added = False, [self._first]
        else:
            added = [self._since_report, self._timed]
        for sums in added:
            sums[:] = map(sum, zip(sums, (len(loss), seconds, waited)))

    @property
    def images_per_second(self) -> float:
        """The number of images per second in this call. The first host step is excluded if others have followed."""
        updates, seconds, _ = self._timed if self._timed[0] else self._first
        return self._length.global_batch * updates / seconds if seconds else 0.0

    @property
    def input_share(self) -> float:
        """The share of the time of this call in which the device waited for data; 0 in the first seconds."""
        _, seconds, waited = self._timed
        return waited / seconds if seconds > _LEAST_SECONDS else 0.0

    def add_noise(self, estimates: np.ndarray) -> None:
        """Add estimates of S and |G|^2 of updates, [updates, 2]. Ignore updates whose gradients overflowed."""
        for estimate in estimates[np.isfinite(estimates).all(1)]:
            self._noise = _DECAY * self._noise + estimate

    @property
    def noise_scale(self) -> float:
        """The gradient noise scale in images, the ratio of the running averages of S and |G|^2 (arXiv 1812.06162, appendix
        A.1). Without estimates, or if the noise hides |G|^2, the value is nan."""
        noise, signal = self._noise.tolist()
        return max(noise, 0.0) / signal if signal > 0 else math.nan

    def end_host_step(self) -> None:
        """End the host step, and add its mean loss and accuracy to the window of averaged host steps."""
        self._window.append(tuple(sum(column) / len(self._open) for column in zip(*self._open)))
        self._open = []
        self._steps += 1

    def row(self, end: int) -> dict[str, Any]:
        """Return the log row of the host step that ended after `end` updates."""
        loss, accuracy = self._window[-1]
        loss_average, accuracy_average = (sum(column) / len(self._window) for column in zip(*self._window))
        updates, seconds, waited = self._since_report if self._since_report[0] else self._first
        seconds_per_update = max(seconds / max(updates, 1), 1e-9)
        self._since_report = [0, 0.0, 0.0]
        return {
            "step": self._steps * self._increment,
            "iteration": end,
            "epoch": self._length.epoch(end),
            "lr": self._learning_rate(self._length.logged_update(end)),
            "loss_batch": loss,
            "loss_avg": loss_average,
            "train_acc_batch": 100 * accuracy,
            "train_acc_avg": 100 * accuracy_average,
            "it_time": seconds_per_update,
            "img_per_sec": self._length.global_batch / seconds_per_update,
            "total_time": self._seconds,
            "input_share": waited / max(seconds, 1e-9),
            "noise_scale": self.noise_scale,
        }


class TimeLeft:
    """Predicts the time until the last update of a call, from the speed of the updates so far.

    The first update is excluded if others have followed, because it warms up caches.
    """

    def __init__(self, done: int, last: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._last, self._clock = last, clock
        self._begun = self._first = (done, clock())

    def after(self, done: int) -> str:
        """Return the remaining time after `done` updates as hours, minutes and seconds, or "" if it is unknown."""
        now = self._clock()
        if self._first == self._begun and done > self._begun[0]:
            self._first = (done, now)
        since, began = self._first if done > self._first[0] else self._begun
        if not since < done < self._last:
            return ""
        return str(timedelta(seconds=round((now - began) / (done - since) * (self._last - done))))
