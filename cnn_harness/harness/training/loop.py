"""Run the training loop: host steps (several weight updates in one call of the device), and the events between host steps,
such as log rows, checkpoints and validation."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cnn_harness.base.process import tf_runtime
from cnn_harness.base.process.signals import StopRequest
from cnn_harness.base.storage import fingerprints
from cnn_harness.harness.checkpoints import write
from cnn_harness.harness.checkpoints.checkpoint import UNSAVED, Checkpoint
from cnn_harness.harness.reports import input_share
from cnn_harness.harness.training.checkpointer import Checkpointer, CheckpointKind
from cnn_harness.harness.training.divergence import Divergence
from cnn_harness.harness.training.initial_state import InitialState
from cnn_harness.harness.training.meter import TimeLeft
from cnn_harness.harness.training.numerics import Observer
from cnn_harness.harness.training.profiler import Progress, UpdateProfiler
from cnn_harness.harness.training.run_dir import TrainingContext
from cnn_harness.harness.training.stragglers import Stragglers
from cnn_harness.harness.training.validator import Validator

if TYPE_CHECKING:
    from cnn_harness.harness.reports.trackers import Board
    from cnn_harness.ipu_utils import TrainingProgram


@dataclass(frozen=True)
class Event:
    """An action after a host step.

    `due(first, done)` returns whether the action is due after a host step of the updates first..done-1. `act(done)` performs
    the action; `done` is the number of finished updates.
    """

    due: Callable[[int, int], bool]
    act: Callable[[int], None]


class TrainingLoop:
    """The training loop of one instance (process)."""

    def __init__(
        self,
        context: TrainingContext,
        program: TrainingProgram,
        initial: InitialState,
        validator: Validator,
        profiler: UpdateProfiler,
    ) -> None:
        self._context, self._program, self._initial = context, program, initial
        self._validator, self._profiler = validator, profiler
        self._signals, self._mlperf, self._meter = context.signals, context.mlperf, initial.meter
        self._done = initial.updates  # The number of finished updates of the run.
        self._updates: list[tuple[int, float, float]] = []  # Number, loss and accuracy of the last host step's updates.
        self._divergence = Divergence(context, program.watched)
        self._stragglers = Stragglers(context.team.cluster)
        self._advised = False  # Whether the log has advice about a slow input.
        self._checkpointer = Checkpointer(context, program, initial.meter, self._divergence, lambda: validator.best)
        self._observer = Observer(context, program, initial.updates)
        if context.team.is_first:
            fingerprints.truncate_after(context.folder, initial.updates)
        length = context.run.length
        # Events run in this order. If a signal arrives, the run ends after the first group and before the second one.
        self._events_before_stop = (
            Event(length.log_due, self._log_row),
            Event(length.checkpoint_due, self._save),
            Event(self._safety_due, self._save_for_safety),
            Event(lambda first, done: done > first, self._call_listener),
        )
        self._events_after_stop = (
            Event(length.checkpoint_due, self._validate),
            Event(self._broadcast_due, self._broadcast),
            Event(self._observer.due, self._observer.observe),
        )
        if context.team.group:
            context.signals.defer_until_agreed(self._stop)

    def run(self, last: int) -> int:
        """Train up to update `last`, or until --patience ends the run. Return the number of finished updates."""
        self._begin()
        self._mlperf.log_init_stop(self._initial.updates)
        self._left = TimeLeft(self._done, last)
        try:
            self._advance_to(last)
        except StopRequest:  # This is raised between two host steps or after the first group of events.
            self._save_unsaved()
            raise
        except Exception as error:
            # These errors arise before an update changes a weight, so the weights can be saved.
            if self._context.team.is_peer_failure(error) or tf_runtime.data_error(error) is not None:
                self._save_unsaved()
            raise
        finally:
            self._observer.close()
        self._finish(self._done)
        return self._done

    def _save_unsaved(self) -> None:
        """Save a checkpoint if there are updates since the newest one. Save nothing if a host step failed after some of its
        updates, because the log lacks these updates."""
        if self._context.saves and self._done > self._checkpointer.saved and self._done == self._program.updates():
            self._checkpointer.save(self._done, CheckpointKind.SAFETY)

    def _advance_to(self, last: int) -> None:
        """Run host steps up to update `last`, or until --patience ends the run."""
        steps = self._context.run.length.host_steps(self._done, last)
        for first, end in _split(steps, self._profiler.isolated_updates, self._observer.every):
            while first < end:
                if self._validator.reason_to_end:
                    return
                first = self._advance(first, end)

    def _begin(self) -> None:
        """Save the initial checkpoint of a new run. For a resumed run, validate and observe the checkpoint if the earlier
        process was killed before it did so."""
        resumed = self._initial.checkpoint
        with self._signals.deferred():
            self._checkpointer.begin(resumed)
        if self._context.log.folder:
            self._context.log.follow("TensorBoard", self._tensorboard)
        if resumed and self._context.run.length.is_checkpoint(resumed.updates):
            self._validator.validate(resumed, self._initial.values)
        if not self._done and self._context.saves and self._context.run.options.training.fit_classifier:
            self._validator.validate(Checkpoint.at(self._context.folder, 0), self._program.values())
        self._observer.catch_up(self._done)

    def _tensorboard(self) -> Board:
        """Return the writer of TensorBoard's events in the run directory."""
        from cnn_harness.harness.programs.build import first_training_images
        from cnn_harness.harness.reports import trackers

        run, seed, start = self._context.run, self._context.execution.seed, self._initial.updates
        most = run.options.logging.tensorboard_images
        images = first_training_images(run, seed, start, most) if most and start < run.length.iterations else {}
        return trackers.Board(self._context.log.folder, start, trackers.hyperparameters(run), images)

    def _advance(self, first: int, end: int) -> int:
        """Run a host step and then the events that are due. Return the number of finished updates.

        The host step contains the updates first..end-1. A signal or a safety checkpoint ends the host step earlier.
        """
        self._checkpointer.poll()
        with self._signals.deferred(self._stop):
            done = self._done = self._step(first, end)
            for event in self._events_before_stop:
                if event.due(first, done):
                    event.act(done)
            if self._signals.received is None:  # After a signal, the next host step informs the other instances.
                self._program.resume()
        for event in self._events_after_stop:
            if event.due(first, done):
                event.act(done)
        return done

    def _step(self, first: int, end: int) -> int:
        """Run the updates first..end-1, or fewer if the host step is ended early. Return the number of finished updates."""
        rates = [self._context.run.learning_rate(update) for update in range(first, end)]
        rows: list[tuple[float, float]] = []
        report, profiler = self._update_callback(first, rows), self._profiler
        profiler.before_update(first)
        started = time.perf_counter()
        try:
            metrics = (
                profiler.record(first, rates[0], report) if profiler.records(first) else self._program.step(rates, report)
            )
        except Exception:
            self._done = first + len(rows)
            self._meter.add([loss for loss, _ in rows], [accuracy for _, accuracy in rows], time.perf_counter() - started)
            raise
        seconds = time.perf_counter() - started
        profiler.after_update(first)
        if metrics.stopping_instances:
            self._context.team.agree_to_stop(self._signals, metrics.stopping_instances[0])
        done = first + len(metrics.loss)
        self._meter.add(metrics.loss, metrics.accuracy, seconds, float(metrics.waited.sum()))
        self._meter.add_noise(metrics.gradient_noise)
        if metrics.fingerprints and self._context.team.is_first:
            fingerprints.append(self._context.folder, first, self._program.trained, metrics.fingerprints)
        self._updates = list(zip(range(first + 1, done + 1), metrics.loss, metrics.accuracy))
        self._stragglers.add(metrics.instance_seconds)
        self._divergence.check_updates(first, metrics.loss, metrics.lost, self._program.loss_scale())
        if done == self._context.run.length.host_step_end(first):
            self._meter.end_host_step()
        return done

    def _stop(self) -> None:
        """Stop the running training or validation at its next micro-batch, without finishing the current update."""
        self._program.stop(drop_update=True)
        self._validator.stop()

    def _update_callback(self, first: int, rows: list[tuple[float, float]]) -> Progress:
        """Return a function that the program calls after each update.

        This function shows the progress, ends the host step early if necessary, and appends loss and accuracy to `rows`.
        """
        counter = itertools.count(first + 1)

        def report(loss: float, accuracy: float) -> None:
            rows.append((loss, accuracy))
            done = next(counter)
            if done == self._initial.updates + 1:
                self._context.log.detail(f"  first update: loss {loss:.4f}, top-1 accuracy {100 * accuracy:.3f}%")
            left = self._left.after(done)
            self._context.log.progress(
                done, self._context.run.length.iterations, f"loss {loss:.3f}{left and f', ETA {left}'}"
            )
            if self._divergence.ends_host_step(loss) or self._checkpointer.overdue:
                self._program.stop(drop_update=False)

        return report

    def _log_row(self, done: int) -> None:
        self._context.log.training_row(self._meter.row(done), self._left.after(done))
        self._divergence.report()
        for note in self._stragglers.notes():
            self._context.log.note(note)
        if not self._advised and self._meter.input_share > input_share.MUCH:
            self._advised = True
            self._context.log.note(input_share.advice(self._meter.input_share, self._context.run.options.values()))

    def _save(self, done: int) -> None:
        self._mlperf.block_over()
        self._checkpointer.save(done)

    def _call_listener(self, _: int) -> None:
        run = self._context.run
        try:
            for update, loss, accuracy in self._updates:
                self._context.listener.on_step({
                    "iteration": update, "epoch": run.length.epoch(update), "lr": run.learning_rate(update - 1),
                    "loss": float(loss), "accuracy": 100 * float(accuracy),
                })  # fmt: skip
        except Exception:
            self._save_unsaved()
            raise

    def _safety_due(self, first: int, done: int) -> bool:
        return done > self._checkpointer.saved and (self._signals.received is not None or self._checkpointer.overdue)

    def _save_for_safety(self, done: int) -> None:
        self._checkpointer.save(done, CheckpointKind.SAFETY)

    def _validate(self, done: int) -> None:
        self._validator.validate(*self._checkpointer.pop_unvalidated())
        if done < self._context.run.length.iterations:
            self._mlperf.block_begins(done)

    def _broadcast_due(self, first: int, done: int) -> bool:
        """Return whether a broadcast of the weights is due, by --syncs-per-epoch or --epochs-per-sync."""
        training, per_epoch = self._context.run.options.training, self._context.run.length.iterations_per_epoch
        period = 0
        if training.syncs_per_epoch:
            period = max(1, per_epoch // training.syncs_per_epoch)
        elif training.epochs_per_sync:
            period = max(1, round(per_epoch * training.epochs_per_sync))
        return bool(self._context.team.group and period and done // period > first // period)

    def _broadcast(self, done: int) -> None:
        """Copy the weights of instance 0 to all instances. Warn if the weights of this instance were different."""
        own = self._program.values()
        received = self._context.team.broadcast(own)
        if write.fingerprint(own) != write.fingerprint(received):
            instance = self._context.team.instance
            self._context.log.warn(
                f"warning: the weights of instance {instance} were replaced by those of instance 0, because the two differed"
            )
        self._program.load(received)

    def _finish(self, done: int) -> None:
        """Save and validate the last checkpoint and the averages. If one instance receives a signal, all instances stop."""
        context, total = self._context, self._context.run.length.iterations
        ended = self._validator.reason_to_end
        complete = done == total or ended is not None
        self._profiler.finish()
        if done < total and complete:
            context.log.note(f"Ended after {done} of {total} updates: {ended}")
        elif done < total:
            self._mlperf.log_run_stop("aborted")
            context.log.note(f"Stopped after {done} of {total} updates.")
            self._checkpointer.save_last(done)
        elif not context.saves:  # Validate the last weights. If they were saved, an event has validated them already.
            self._mlperf.block_over()
            self._validator.validate(Checkpoint(UNSAVED, done), self._program.values())
        self._checkpointer.wait_until_finished()
        context.team.stop_together(self._signals)
        if complete:
            self._mlperf.log_run_stop("success")
        if complete and context.saves:
            for average, values in self._checkpointer.averages(done):
                self._validator.validate(average, values)


def _split(steps: Iterable[tuple[int, int]], isolated: set[int], every: int | None) -> Iterator[tuple[int, int]]:
    """Yield the host steps (first, end), split at every multiple of `every` updates and around each of the updates
    `isolated`."""
    for first, end in steps:
        inside = [k for k in range(first + 1, end) if {k - 1, k} & isolated or (every and k % every == 0)]
        yield from itertools.pairwise([first, *inside, end])
