"""Checkpoints of a run in progress: when a safety checkpoint is due, which values are saved, which must not be."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.checkpoints import averages, find, pruning, read, saved_state, write
from harness.checkpoints.checkpoint import Checkpoint
from harness.checkpoints.optimiser_state import SlotUnits
from harness.checkpoints.read import Tensors
from harness.checkpoints.saved_state import Call
from harness.checkpoints.write import SaveError
from harness.cluster.cluster import host_of
from harness.options.sections import AUTO
from harness.processes import failures
from harness.run.arguments import ARITHMETIC, CALLS, RUN_ID, SEED
from harness.training.divergence import Divergence
from harness.training.job import Job
from harness.training.meter import Meter

if TYPE_CHECKING:
    from ipu_utils import TrainingProgram

INITIAL, SAFETY = "initial ", "safety "  # kinds of checkpoints, as the log names them


class Checkpointer:
    """Saves the program's variables, and whatever else a run goes on from, while training goes on."""

    def __init__(
        self, job: Job, program: TrainingProgram, meter: Meter, calls: list[Call], divergence: Divergence,
        best: Callable[[], Mapping[str, Any] | None],
    ) -> None:  # fmt: skip
        """`calls`: of the run up to this one; `best`: the row of the best validation so far."""
        self._job, self._program, self._meter, self._calls = job, program, meter, calls
        self._divergence, self._best = divergence, best
        self.saved = -1  # updates that the newest checkpoint of this call has
        self._unvalidated: tuple[Checkpoint, Tensors] | None = None
        self._saved_at = time.monotonic()
        self._held: float | None = None  # seconds that the last checkpoint has held training

    def begin(self, resumed: Checkpoint | None) -> None:
        """Saves the initial weights; or says where the checkpoints are that the run has already, in the lines that tell of
        new ones."""
        job = self._job
        if resumed is None:
            if job.saves:
                self.save(0, INITIAL)
                self.wait_until_finished()
            return
        self.saved = resumed.updates
        initial = Checkpoint.at(job.folder, 0)
        if initial in find.numbered(job.folder):
            job.log.note(f"Saved initial checkpoint to {initial.prefix}\n  when the run began")
        if resumed.updates:
            job.log.note(f"Saved checkpoint to {resumed.prefix}\n  before this call, which goes on from it")

    @property
    def overdue(self) -> bool:
        """True if it is time for a safety checkpoint."""
        interval = self._safety_interval()
        return bool(interval) and self._job.saves and self._job.team.first and time.monotonic() - self._saved_at > interval

    def _safety_interval(self) -> float:
        """Seconds from one checkpoint to the next one for safety; 0: never."""
        options, addresses = self._job.run.options.checkpoint, self._job.team.cluster.addresses
        return failures.safety_interval(options, len({*map(host_of, addresses)}) or 1, self._held)

    def _note_held(self, seconds: float) -> None:
        """Takes the time that a checkpoint has held training, and tells, once, of the interval that follows from it."""
        first, self._held = self._held is None, seconds
        options = self._job.run.options.checkpoint
        if first and options.safety_ckpt_minutes == AUTO and self._job.team.first:
            self._job.log.note(
                f"Safety checkpoints are {self._safety_interval() / 60:.2g} minutes apart: saving holds training for "
                f"{seconds:.2g} s, and a host fails every {options.mtbf_hours:g} hours (--mtbf-hours)"
            )

    def take(self) -> tuple[Checkpoint, Tensors]:
        """The newest checkpoint and its tensors, which are held no longer."""
        newest, self._unvalidated = self._unvalidated, None
        return newest

    def save(self, updates: int, kind: str = "") -> None:
        """Has a checkpoint written; one for safety only until the next one."""
        job, started = self._job, time.perf_counter()
        checkpoint, values = Checkpoint.at(job.folder, updates), self._program.values()
        self.saved, self._saved_at = updates, time.monotonic()
        self._unvalidated = None if kind else (checkpoint, values)
        self._divergence.judge_values(values, updates, together=kind != SAFETY)
        if not job.writes:
            return
        state = {
            **self._meter.state(),
            saved_state.ITERATION: updates,
            saved_state.ROLLING: kind == SAFETY,
            CALLS: self._calls,
            RUN_ID: job.run.run_id,
            SEED: job.run.seed,
            ARITHMETIC: job.run.arithmetic,
            **SlotUnits.of_options(job.run.options.training).as_state(),
            **job.log.kept(updates, stays=kind != SAFETY),
        }

        best = self._best() if job.run.options.checkpoint.keep_best_ckpt else None
        spared = best["name"] if best else ""
        model = {name: values[name] for name in self._program.state.model}

        def write_files() -> None:
            self._sync_rows()
            write.save(checkpoint, values, state)
            self._job.writer.newest = checkpoint.name
            seconds = "" if kind == INITIAL else f" in {time.perf_counter() - started:.2f}s"
            job.log.note(
                f"Saved {kind}checkpoint to {checkpoint.prefix}{seconds}\n"
                f"  fingerprint of the weights: {write.fingerprint(model)}"
            )
            most = job.run.options.checkpoint.max_ckpts_to_keep
            pruning.prune(job.folder, checkpoint, most, job.run.length.is_checkpoint, spared)

        self.wait_until_finished()
        self._job.writer.submit(write_files)
        self._note_held(time.perf_counter() - started)

    def wait_until_finished(self) -> None:
        """Waits until the checkpoint before is written; with --keep-going the run outlives an error of that."""
        self._outlive(self._job.writer.wait_until_finished)

    def poll(self) -> None:
        """Looks whether the checkpoint before is written, as `wait_until_finished` but without waiting."""
        self._outlive(self._job.writer.poll)

    def _outlive(self, looked: Callable[[], None]) -> None:
        try:
            looked()
        except SaveError as error:
            if not self._job.run.options.training.keep_going:
                raise
            self._job.log.note(f"warning: {error}")

    def save_last(self, done: int) -> None:
        """The checkpoint that a run which stops early goes on from, unless it is there."""
        self.wait_until_finished()
        there = [checkpoint.updates for checkpoint in find.numbered(self._job.folder)]
        if self._job.writes and (done != self.saved or done not in there):  # that file may be damaged and left out
            self.save(done)

    def averages(self, done: int) -> list[tuple[Checkpoint, Tensors]]:
        """The averages of the checkpoints of a run that has ended after `done` updates, saved, with their tensors."""
        job, pairs = self._job, []
        for name, amount in averages.requested(job.run.options.training):
            average, values = Checkpoint(str(job.folder / name), -1), None
            if job.team.first:
                finite = not job.run.options.training.keep_going
                average, count, damaged = averages.of_run(job.folder, name, amount, job.run.length, done, finite)
                for warning in damaged:
                    job.log.note(warning)
                job.log.note(f"Saved the average of {count} checkpoint{'s' * (count > 1)} to {average.prefix}")
                values = read.tensors(average)
            pairs.append((average, job.team.broadcast(values)))
        return pairs

    def _sync_rows(self) -> None:
        """The rows that a checkpoint belongs to are on the disk before it is."""
        try:
            self._job.log.sync()
        except OSError as error:
            raise SaveError(f"the rows in {self._job.folder} cannot be written: {error.strerror}") from None
