"""A run in progress: host steps, and what is due between them: log rows, checkpoints, validation, averages, stops."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from base.process.signals import Signals
from harness.checkpoints import averages, find, read, saved_state, write
from harness.checkpoints.checkpoint import Checkpoint
from harness.checkpoints.write import SaveError, Writer
from harness.commands import entry
from harness.processes.team import Team
from harness.reports import mlperf, plot, profile
from harness.reports.compilation import FirstUpdates
from harness.run.arguments import CALLS, RUN_ID, SEED
from harness.run.run import Run
from harness.training.gradients import LostGradients
from harness.training.meter import Meter
from log import RunLog

if TYPE_CHECKING:
    from ipu_utils import Metrics, TrainingProgram

Values = dict[str, np.ndarray]
_ADVICE, _OR = "a lower learning rate may help", "--keep-going goes on all the same"


class Overflow(FloatingPointError):
    """A loss or weights that are not finite where gradients overflow. `gentler`: options that may help."""

    def __init__(self, told: str, gentler: list[str]) -> None:
        super().__init__(told)
        self.gentler = gentler


@dataclass(frozen=True)
class Start:
    """What a training loop begins with. `calls`: of the run, that led here, the present one last. Of a run that goes on
    also the checkpoint, its tensors, and the rows of validation.csv by name."""

    meter: Meter
    calls: list[saved_state.Call]
    newest: Checkpoint | None = None
    values: Values = field(default_factory=dict)
    validated: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class TrainingLoop:
    """A run in progress, in this instance of its team."""

    def __init__(
        self,
        run: Run,
        team: Team,
        folder: Path,
        log: RunLog,
        program: TrainingProgram,
        signals: Signals,
        writer: Writer,
        score: Callable[[Checkpoint, Values], Mapping[str, Any]],
        events: mlperf.Events,
        start: Start,
        wanted: profile.Request | None = None,
        profiled: int = -1,
        timed: FirstUpdates | None = None,
    ) -> None:
        """`score`: validates a checkpoint with these values; a row of validation.csv. `profiled`: the update that is, as
        `wanted`. `timed`: the first updates, for the profile of the compilation."""
        self.run, self.team, self.folder, self.log, self.program = run, team, folder, log, program
        self.signals, self.writer, self.score, self.mlperf = signals, writer, score, events
        self.meter, self.calls, self.validated = start.meter, start.calls, dict(start.validated)
        self.profile, self.profiled, self.compilation = wanted, profiled, timed
        self.diverged = False
        self.lost = LostGradients(program.watched, run.options.training.loss_scaling)
        if team.group:
            signals.share(partial(program.stop, drop_update=True))
        self.saved = -1  # updates that the newest checkpoint of this call has
        self.saved_at = time.monotonic()

    def begin(self, start: Start) -> None:
        """Saves the initial weights; or says where the checkpoints are that the run has, and validates the newest if the run
        ended between saving and validating it."""
        newest = start.newest
        if newest is None and self.saves:
            with self.signals.asking():
                self.save(0, initial=True)
                self.writer.settle()
        self.log.open_board(newest.iteration if newest else 0)
        if newest:
            self._resumes(newest)
        if newest and self.run.length.is_checkpoint(newest.iteration):
            self.validate(newest, start.values)

    @property
    def isolated_updates(self) -> set[int]:
        """The updates that get host steps of their own, because they are recorded or timed."""
        return {self.profiled, *(self.compilation.apart if self.compilation else ())}

    @property
    def saves(self) -> bool:
        """Whether the run has checkpoints."""
        return self.run.length.iterations_per_ckpt > 0

    @property
    def writes(self) -> bool:
        """Whether this instance writes them."""
        return self.team.first or self.run.options.checkpoint.ckpt_all_instances

    def advance(self, first: int, end: int) -> None:
        """One host step, or a piece of one, and what is due after it."""
        while first < end:
            done = self._piece(first, end)
            if self._sync_period and done // self._sync_period > first // self._sync_period:
                self._sync()
            first = done

    @property
    def _sync_period(self) -> int:
        """Weight updates between broadcasts of the weights; 0 for none."""
        asked, per_epoch = self.run.options.training, self.run.length.iterations_per_epoch
        if asked.syncs_per_epoch:
            return max(1, per_epoch // asked.syncs_per_epoch)
        return max(1, round(per_epoch * asked.epochs_per_sync)) if asked.epochs_per_sync else 0

    def _sync(self) -> None:
        """Instance 0's weights for all; they are the same here unless an instance computes wrongly, which is told."""
        if not self.team.group:
            return
        own = self.program.values()
        received = self.team.broadcast(own)
        if write.fingerprint(own) != write.fingerprint(received):
            print(f"warning: instance {self.team.instance} had other weights than instance 0", file=sys.stderr, flush=True)
        self.program.load(received)

    def _piece(self, first: int, end: int) -> int:
        """Updates first..end-1, or fewer: up to a signal, or to a safety checkpoint. How many the run has done then."""
        saved = None
        self._settle(wait=False)
        with self.signals.asking(partial(self.program.stop, drop_update=True)):
            done = self._updates(first, end)
            if self.run.length.logs(first, done):
                self._row(done)
            if self.run.length.checkpoints(first, done):
                self.mlperf.block_over()
                saved = self.save(done)
            elif done > self.saved and (self.signals.received is not None or self._overdue):
                self.save(done, rolling=True)
            if self.signals.received is None:  # otherwise the next host step tells the other instances
                self.program.resume()
        if saved:
            self.validate(*saved)
            if done < self.run.length.iterations:
                self.mlperf.block_begins(done)
        return done

    @property
    def _overdue(self) -> bool:
        """Whether it is time for a safety checkpoint."""
        minutes = self.run.options.checkpoint.safety_ckpt_minutes
        return bool(minutes) and self.saves and self.team.first and time.monotonic() - self.saved_at > 60 * minutes

    def _updates(self, first: int, end: int) -> int:
        """Weight updates first..end-1, or fewer if a signal comes; how many the run has done then."""
        run = self.run
        if self.compilation:
            self.compilation.begins(first)
        started = time.perf_counter()
        if first == self.profiled and self.profile:
            metrics = self._profiled_step(first)
        else:
            metrics = self.program.step([run.rate(i) for i in range(first, end)], self._progress(first))
        if metrics.leaving:
            self.team.agreed_to_stop = True
            self.signals.follow(metrics.leaving[0])
        done = first + len(metrics.loss)
        for line in self.compilation.ended(first) if self.compilation else ():
            self.log.note(line)
        self.meter.add(metrics.loss, metrics.accuracy, time.perf_counter() - started)
        self.lost.add(first, metrics.lost)
        self._judge(first, metrics.loss)
        if done == run.length.grid_end(first):
            self.meter.end_host_step()
        return done

    def _judge(self, first: int, loss: np.ndarray) -> None:
        """A loss that is not finite ends the run, or is told of once."""
        bad = np.flatnonzero(~np.isfinite(loss))
        if not bad.size or self.diverged:
            return
        self.diverged = True
        told = f"the loss of update {first + bad[0] + 1} is {loss[bad[0]]:g}: {self.lost.advice or _ADVICE}"
        if not self.run.options.training.keep_going:
            self.team.agreed_to_stop = True  # every instance has this loss
            for note in self.lost.notes():  # which may tell why
                self.log.note(note)
            raise self._ended(told)
        self.log.note(f"warning: {told}")

    def _row(self, done: int) -> None:
        """A line and a row of the log, and what there is to say of gradients."""
        self.log.training_row(self.meter.row(done))
        for note in self.lost.notes():
            self.log.note(note)

    def _profiled_step(self, update: int) -> Metrics:
        """One update, recorded."""
        found = self.program.profile(self.run.rate(update), self.profile.operations, self._progress(update))
        title = f"{self.run.name}, update {update + 1}"
        for line in profile.write(self.profile, self.run.plan, title, found.cells, found.operations, found.most_alive):
            self.log.note(line)
        return found.metrics

    def _progress(self, first: int) -> Callable[[float, float], None]:
        """Moves the bar while the host step runs, and ends it early where there is a reason to."""
        counter = itertools.count(first + 1)

        def report(loss: float, accuracy: float) -> None:
            self.log.progress(next(counter), self.run.length.iterations, f"loss {loss:.3f}")
            hopeless = not np.isfinite(loss) and not self.run.options.training.keep_going
            if hopeless or self._overdue:
                self.program.stop(drop_update=False)

        return report

    def _resumes(self, newest: Checkpoint) -> None:
        """Says where the checkpoints are that the run has already, in the lines that tell of new ones."""
        self.saved = newest.iteration
        if Checkpoint.at(self.folder, 0) in find.numbered(self.folder):
            self.log.note(f"Saved initial checkpoint to {Checkpoint.at(self.folder, 0).prefix}\n  when the run began")
        if newest.iteration:
            self.log.note(f"Saved checkpoint to {newest.prefix}\n  before this call, which goes on from it")

    def save(self, iteration: int, initial: bool = False, rolling: bool = False) -> tuple[Checkpoint, Values]:
        """Has a checkpoint written while training goes on; `rolling`: until the next one. It, and what is in it."""
        started = time.perf_counter()
        saved, values = Checkpoint.at(self.folder, iteration), self.program.values()
        self.saved, self.saved_at = iteration, time.monotonic()
        self._refuse_faulty(values, iteration)
        if not self.writes:
            return saved, values
        state = {
            **self.meter.state(),
            saved_state.ITERATION: iteration,
            saved_state.ROLLING: rolling,
            CALLS: self.calls,
            RUN_ID: self.run.run_id,
            SEED: self.run.seed,
            **self.log.kept(iteration, stays=not rolling),
        }
        what = "initial " if initial else "safety " if rolling else ""
        model = {name: values[name] for name in self.program.weights.model}

        def write_files() -> None:
            self._sync_rows()
            write.save(saved, values, state)
            self.writer.newest = saved.name
            seconds = "" if initial else f" in {time.perf_counter() - started:.2f}s"
            print_of_weights = write.fingerprint(model)
            self.log.note(
                f"Saved {what}checkpoint to {saved.prefix}{seconds}\n  fingerprint of the weights: {print_of_weights}"
            )
            most = self.run.options.checkpoint.max_ckpts_to_keep
            write.tidy(self.folder, saved, most, self.run.length.is_checkpoint)

        self._settle()
        self.writer.begin(write_files)
        return saved, values

    def _sync_rows(self) -> None:
        """The rows that a checkpoint belongs to are on the disk before it is."""
        try:
            self.log.sync()
        except OSError as error:
            raise SaveError(f"the rows in {self.folder} cannot be written: {error.strerror}") from None

    def _refuse_faulty(self, values: Values, iteration: int) -> None:
        """Weights that are not finite are no use to anyone, unless the run is to go on all the same."""
        bad = [name for name in self.program.weights.model if not np.isfinite(values[name]).all()]
        if bad and not self.run.options.training.keep_going:
            self.team.agreed_to_stop = True  # and these weights
            raise self._ended(f"{bad[0]} is not finite after update {iteration}: {self.lost.advice or _ADVICE}")

    def _ended(self, told: str) -> FloatingPointError:
        """The error of a run that has diverged."""
        if not self.lost.advice:
            return FloatingPointError(f"{told}; {_OR}")
        smaller = min(self.run.options.training.loss_scaling / 16, type(self.run.options.training).loss_scaling)
        return Overflow(f"{told}; {_OR}", ["--loss-scaling", f"{smaller:.3g}"])

    def _settle(self, wait: bool = True) -> None:
        """Ends the writing of the checkpoint before; with --keep-going the run outlives what goes wrong there."""
        try:
            self.writer.settle(wait)
        except SaveError as error:
            if not self.run.options.training.keep_going:
                raise
            self.log.note(f"warning: {error}")

    def validate(self, saved: Checkpoint, values: Values) -> None:
        """One checkpoint's accuracy on the validation set, unless it is known or not wanted."""
        run = self.run
        if not run.options.checkpoint.validation or saved.name in self.validated:
            return
        if not run.source.spec.validation_images:  # of which the log's head tells
            return
        row = self.mlperf.evaluated(saved.iteration, lambda: self.score(saved, values))
        self.validated[saved.name] = row
        self.log.validation_row(row)

    def finish(self, done: int) -> None:
        """What is left after the last update of this call."""
        for line in self.compilation.settled() if self.compilation else ():
            self.log.note(line)
        if done < self.run.length.iterations:
            self.mlperf.ended("aborted")
            self.log.note(f"Stopped after {done} of {self.run.length.iterations} updates.")
            self._settle()
            there = [checkpoint.iteration for checkpoint in find.numbered(self.folder)]
            if self.writes and (done != self.saved or done not in there):  # what is there may be damaged and left out
                self.save(done)
        elif not self.saves:  # those that were saved have been validated
            self.mlperf.block_over()
            self.validate(Checkpoint("final", done), self.program.values())
        self._settle()
        if done == self.run.length.iterations:
            self.mlperf.ended("success")
        if done == self.run.length.iterations and self.saves:
            self._average()
        self._report(done)

    def _average(self) -> None:
        """The averages of the finished run's checkpoints, validated like those."""
        for name, amount in averages.requested(self.run.options.training):
            averaged, values = Checkpoint(str(self.folder / name), -1), None
            if self.team.first:
                finite = not self.run.options.training.keep_going
                averaged, count, damaged = averages.of_run(self.folder, name, amount, self.run.length, finite)
                for warning in damaged:
                    self.log.note(warning)
                self.log.note(f"Saved the average of {count} checkpoint{'s' * (count > 1)} to {averaged.prefix}")
                values = read.tensors(averaged)
            self.validate(averaged, self.team.broadcast(values))

    def _report(self, done: int) -> None:
        """The last lines: accuracy, where the run lies, how to go on."""
        note = self.log.note
        if self.log.folder is None and not self.team.first:
            return
        last = [row for row in self.validated.values() if int(row["iteration"]) >= 0][-1:]
        if last:
            note(f"Final validation top-1 accuracy: {float(last[0]['val_acc']):.2f}%")
        if not self.run.options.logging.logs:
            note(f"No logs were kept; checkpoints, if any, are in {self.folder}")
            return
        note(f"The run is in {self.folder}; its picture: {plot.write_run_svg(self.folder)}")
        if not self.team.first:  # instance 0's folder is the one to go on with
            return
        length = self.run.length
        if done < length.iterations:
            note(f"Go on:           {entry.command('restore', *entry.resuming(self.run, self.folder))}")
            return
        if not self.saves:
            return
        if self.run.source.spec.validation_images:
            note(f"Validate again:  {entry.command('validation', *entry.restoring(self.folder))}")
        longer = length.longer(self.run.options.training.iterations is not None)
        if longer:
            note(f"Train further:   {entry.command('restore', *entry.resuming(self.run, self.folder), *longer)}")
