"""A run in progress: host steps, and the events that are due between them: log rows, checkpoints, validation, broadcasts."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from base.process.signals import StopRequest
from harness.checkpoints import write
from harness.checkpoints.checkpoint import Checkpoint
from harness.numerics.observer import Observer
from harness.reports import trackers
from harness.training.checkpointing import SAFETY, Checkpointer
from harness.training.divergence import Divergence
from harness.training.initial_state import InitialState
from harness.training.job import Job
from harness.training.meter import TimeLeft
from harness.training.profiling import Progress, UpdateProfiler
from harness.training.validating import Validator

if TYPE_CHECKING:
    from ipu_utils import TrainingProgram


@dataclass(frozen=True)
class Event:
    """Something that happens after a host step. `due`: of the updates first..done-1 that the host step did; `act`: with
    the updates that the run has done then."""

    due: Callable[[int, int], bool]
    act: Callable[[int], None]


class TrainingLoop:
    """A run in progress, in this instance of its team."""

    def __init__(
        self, job: Job, program: TrainingProgram, start: InitialState, validator: Validator, profiler: UpdateProfiler
    ) -> None:
        self._job, self._program, self._start, self._validator, self._profiler = job, program, start, validator, profiler
        self._signals, self._mlperf, self._meter = job.signals, job.mlperf, start.meter
        self._done = start.updates  # of the run
        self._divergence = Divergence(job, program.watched)
        self._checkpointer = Checkpointer(job, program, start.meter, start.calls, self._divergence, lambda: validator.best)
        self._observer = Observer(job, program, start.updates)
        length = job.run.length
        # in this order; a signal waits for those at once, and leaves before the later ones
        self._at_once = (
            Event(length.logs, self._log_row),
            Event(length.checkpoints, self._save),
            Event(self._safety_due, self._save_for_safety),
        )
        self._later = (
            Event(length.checkpoints, self._validate),
            Event(self._broadcast_due, self._broadcast),
            Event(self._observer.due, self._observer.observe),
        )
        if job.team.group:
            job.signals.defer_until_agreed(self._stop)

    def run(self, last: int) -> int:
        """Everything from the initial checkpoint to the end of update `last`, in host steps, or to the end of --patience.
        Return the number of updates that the run has done."""
        self._begin()
        self._mlperf.built(self._start.updates)
        self._left = TimeLeft(self._done, last)
        try:
            self._advance_to(last)
        except StopRequest:  # between two host steps, or after the events looked for one
            if self._job.saves and self._done > self._checkpointer.saved:
                self._checkpointer.save(self._done, SAFETY)
            raise
        except Exception as error:
            if self._job.team.lost_others(error):
                self._save_finished()
            raise
        finally:
            self._observer.close()
        self._finish(self._done)
        return self._done

    def _save_finished(self) -> None:
        """Save the updates that were done before the instances could go on together no longer."""
        if self._job.saves and self._done > self._checkpointer.saved and self._done == self._program.updates():
            self._checkpointer.save(self._done, SAFETY)

    def _advance_to(self, last: int) -> None:
        """Host steps up to the end of update `last`, or of --patience."""
        steps = _isolate(self._job.run.length.steps(self._done, last), self._profiler.isolated_updates)
        for first, end in _cut(steps, self._observer.every):
            while first < end:
                if self._validator.ends_run:
                    return
                first = self._advance(first, end)

    def _begin(self) -> None:
        """Save the initial checkpoint of a new run. If a run that goes on ended between saving and validating its newest
        checkpoint, that one is validated."""
        resumed = self._start.checkpoint
        with self._signals.deferred():
            self._checkpointer.begin(resumed)
        if self._job.log.folder:
            self._job.log.follow("TensorBoard", self._board)
        if resumed and self._job.run.length.is_checkpoint(resumed.updates):
            self._validator.validate(resumed, self._start.values)

    def _board(self) -> trackers.Board:
        """TensorBoard's events in the run's folder."""
        from harness.programs.build import first_pictures  # TensorFlow comes with it

        run, start = self._job.run, self._start.updates
        most = run.options.logging.tensorboard_images
        pictures = first_pictures(run, start, most) if most and start < run.length.iterations else {}
        return trackers.Board(self._job.log.folder, start, trackers.hyperparameters(run), pictures)

    def _advance(self, first: int, end: int) -> int:
        """Updates first..end-1, or fewer: up to a signal, or to a safety checkpoint; and the events that are due then.
        Return the number of updates that the run has done."""
        self._checkpointer.poll()
        with self._signals.deferred(self._stop):
            done = self._done = self._step(first, end)
            for event in self._at_once:
                if event.due(first, done):
                    event.act(done)
            if self._signals.received is None:  # otherwise the next host step tells the other instances
                self._program.resume()
        for event in self._later:
            if event.due(first, done):
                event.act(done)
        return done

    def _step(self, first: int, end: int) -> int:
        """Weight updates first..end-1, or fewer if a signal comes; how many the run has done then."""
        rates = [self._job.run.learning_rate(update) for update in range(first, end)]
        rows: list[tuple[float, float]] = []
        report, profiler = self._progress(first, rows), self._profiler
        profiler.begins(first)
        started = time.perf_counter()
        try:
            metrics = (
                profiler.record(first, rates[0], report) if profiler.records(first) else self._program.step(rates, report)
            )
        except Exception:
            self._done = first + len(rows)
            self._meter.add([loss for loss, _ in rows], [right for _, right in rows], time.perf_counter() - started)
            raise
        seconds = time.perf_counter() - started
        profiler.ended(first)
        if metrics.leaving:
            self._job.team.agree_to_stop(self._signals, metrics.leaving[0])
        done = first + len(metrics.loss)
        self._meter.add(metrics.loss, metrics.accuracy, seconds)
        self._divergence.judge_updates(first, metrics.loss, metrics.lost, self._program.loss_scale())
        if done == self._job.run.length.grid_end(first):
            self._meter.end_host_step()
        return done

    def _stop(self) -> None:
        """Ends the devices' work at its next pass."""
        self._program.stop(drop_update=True)
        self._validator.stop()

    def _progress(self, first: int, rows: list[tuple[float, float]]) -> Progress:
        """Moves the bar while the host step runs, and ends it early where there is a reason to. `rows`: takes the loss and
        the accuracy of each update."""
        counter = itertools.count(first + 1)

        def report(loss: float, accuracy: float) -> None:
            rows.append((loss, accuracy))
            done = next(counter)
            if done == self._start.updates + 1:
                self._job.log.note(f"First update: loss {loss:.4f}, top-1 accuracy {100 * accuracy:.3f}%")
            left = self._left.after(done)
            self._job.log.progress(done, self._job.run.length.iterations, f"loss {loss:.3f}{left and f', ETA {left}'}")
            if self._divergence.hopeless(loss) or self._checkpointer.overdue:
                self._program.stop(drop_update=False)

        return report

    def _log_row(self, done: int) -> None:
        self._job.log.training_row(self._meter.row(done), self._left.after(done))
        self._divergence.report()

    def _save(self, done: int) -> None:
        self._mlperf.block_over()
        self._checkpointer.save(done)

    def _safety_due(self, first: int, done: int) -> bool:
        return done > self._checkpointer.saved and (self._signals.received is not None or self._checkpointer.overdue)

    def _save_for_safety(self, done: int) -> None:
        self._checkpointer.save(done, SAFETY)

    def _validate(self, done: int) -> None:
        self._validator.validate(*self._checkpointer.take())
        if done < self._job.run.length.iterations:
            self._mlperf.block_begins(done)

    def _broadcast_due(self, first: int, done: int) -> bool:
        """--syncs-per-epoch, --epochs-per-sync."""
        training, per_epoch = self._job.run.options.training, self._job.run.length.iterations_per_epoch
        period = 0
        if training.syncs_per_epoch:
            period = max(1, per_epoch // training.syncs_per_epoch)
        elif training.epochs_per_sync:
            period = max(1, round(per_epoch * training.epochs_per_sync))
        return bool(self._job.team.group and period and done // period > first // period)

    def _broadcast(self, done: int) -> None:
        """Instance 0's weights for all; they are the same here unless an instance computes wrongly, which is told."""
        own = self._program.values()
        received = self._job.team.broadcast(own)
        if write.fingerprint(own) != write.fingerprint(received):
            instance = self._job.team.instance
            print(f"warning: instance {instance} had other weights than instance 0", file=sys.stderr, flush=True)
        self._program.load(received)

    def _finish(self, done: int) -> None:
        """The last checkpoint, validation and averages, after the last update of this call. Several instances leave
        together, where one was told to stop after the update."""
        job, total = self._job, self._job.run.length.iterations
        complete = done == total or self._validator.ends_run
        self._profiler.finish()
        if done < total and complete:
            best, patience = self._validator.best, job.run.options.checkpoint.patience
            job.log.note(
                f"Ended after {done} of {total} updates: {patience} validation{'s' * (patience > 1)} brought no better "
                f"accuracy than the {float(best['val_acc']):.2f}% of {best['name']}"
            )
        elif done < total:
            self._mlperf.ended("aborted")
            job.log.note(f"Stopped after {done} of {total} updates.")
            self._checkpointer.save_last(done)
        elif not job.saves:  # those that were saved have been validated
            self._mlperf.block_over()
            self._validator.validate(Checkpoint("final", done), self._program.values())
        self._checkpointer.wait_until_finished()
        job.team.stop_together(self._signals)
        if complete:
            self._mlperf.ended("success")
        if complete and job.saves:
            for average, values in self._checkpointer.averages(done):
                self._validator.validate(average, values)


def _cut(steps: Iterable[tuple[int, int]], every: int | None) -> Iterator[tuple[int, int]]:
    """The host steps, which end after every so many updates too."""
    for first, end in steps:
        inside = range(first - first % every + every, end, every) if every else ()
        yield from itertools.pairwise([first, *inside, end])


def _isolate(steps: Iterable[tuple[int, int]], updates: set[int]) -> Iterator[tuple[int, int]]:
    """The host steps, with some updates in host steps of their own."""
    cuts = sorted({cut for update in updates for cut in (update, update + 1)})
    for first, end in steps:
        inside = [cut for cut in cuts if first < cut < end]
        yield from itertools.pairwise([first, *inside, end])
