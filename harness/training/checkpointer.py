"""Saves checkpoints of a run in progress, and knows when a safety checkpoint is due."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from harness.checkpoints import find, read, run_record, write
from harness.checkpoints.checkpoint import Checkpoint
from harness.checkpoints.read import Tensors
from harness.checkpoints.write import SaveError
from harness.cluster.cluster import host_of
from harness.diagnostics.divergence import Divergence
from harness.options.sections import AUTO
from harness.processes import checkpoint_interval
from harness.training.meter import Meter
from harness.training.run_dir import TrainingContext

if TYPE_CHECKING:
    from ipu_utils import TrainingProgram


class CheckpointKind(Enum):
    """The reason for a checkpoint. The next one replaces one for safety; only a scheduled one is validated."""

    SCHEDULED = "checkpoint"
    INITIAL = "initial checkpoint"
    SAFETY = "safety checkpoint"


class Checkpointer:
    """Saves the program's variables and the rest of a run's state while training continues."""

    def __init__(
        self, context: TrainingContext, program: TrainingProgram, meter: Meter, divergence: Divergence,
        best: Callable[[], Mapping[str, Any] | None],
    ) -> None:  # fmt: skip
        """`best`: returns the row of the best validation so far."""
        self._context, self._program, self._meter = context, program, meter
        self._divergence, self._best = divergence, best
        self.saved = -1  # updates that the newest checkpoint of this call has
        self._unvalidated: tuple[Checkpoint, Tensors] | None = None
        self._saved_at = time.monotonic()
        self._blocked_seconds: float | None = None  # seconds that the last checkpoint has held training

    def begin(self, resumed: Checkpoint | None) -> None:
        """Save the initial weights of a new run; log the earlier checkpoints of a resumed one, for scripts that wait."""
        context = self._context
        if resumed is None:
            if context.saves:
                self.save(0, CheckpointKind.INITIAL)
                self.wait_until_finished()
            return
        self.saved = resumed.updates
        initial = Checkpoint.at(context.folder, 0)
        if initial in find.numbered(context.folder):
            context.log.note(f"Saved initial checkpoint to {initial.prefix}")
            context.log.detail("  when the run began")
        if resumed.updates:
            context.log.note(f"Saved checkpoint to {resumed.prefix}")
            context.log.detail("  before this call")

    @property
    def overdue(self) -> bool:
        """True if it is time for a safety checkpoint."""
        interval, context = self._safety_interval(), self._context
        return bool(interval and context.saves and context.team.is_first) and time.monotonic() - self._saved_at > interval

    def _safety_interval(self) -> float:
        """Return the seconds between safety checkpoints; 0: never."""
        options, addresses = self._context.run.options.checkpoint, self._context.team.cluster.addresses
        return checkpoint_interval.safety_interval(options, len({*map(host_of, addresses)}) or 1, self._blocked_seconds)

    def _note_blocked(self, seconds: float) -> None:
        """Note how long a checkpoint has held training; log, once, the interval that follows from it."""
        first, self._blocked_seconds = self._blocked_seconds is None, seconds
        options = self._context.run.options.checkpoint
        if first and options.safety_ckpt_minutes == AUTO and self._context.team.is_first:
            self._context.log.note(
                f"Safety checkpoints are {self._safety_interval() / 60:.2g} minutes apart: saving holds training for "
                f"{seconds:.2g} s, and a host fails every {options.mtbf_hours:g} hours (--mtbf-hours)"
            )

    def pop_unvalidated(self) -> tuple[Checkpoint, Tensors]:
        """Return the newest checkpoint and its tensors, and free them here."""
        newest, self._unvalidated = self._unvalidated, None
        return newest

    def save(self, updates: int, kind: CheckpointKind = CheckpointKind.SCHEDULED) -> None:
        """Begin to write a checkpoint in another thread."""
        context, started = self._context, time.perf_counter()
        checkpoint, values = Checkpoint.at(context.folder, updates), self._program.values()
        is_safety = kind is CheckpointKind.SAFETY
        self.saved, self._saved_at = updates, time.monotonic()
        self._unvalidated = (checkpoint, values) if kind is CheckpointKind.SCHEDULED else None
        self._divergence.check_values(values, updates, together=not is_safety)
        if not context.writes:
            return
        state = {**self._meter.state(), run_record.SAFETY: is_safety, run_record.RECORDED: context.recorded}
        best = self._best() if context.run.options.checkpoint.keep_best_ckpt else None
        best_name = best["name"] if best else ""
        model = {name: values[name] for name in self._program.state.model}

        def write_files() -> None:
            self._sync_rows()
            write.save_numbered(checkpoint, values, state)
            self._context.writer.latest = checkpoint.name
            seconds = "" if kind is CheckpointKind.INITIAL else f" in {time.perf_counter() - started:.2f}s"
            log, last = context.log, context.run.length.iterations
            log.note(f"Saved {kind.value} to {checkpoint.prefix}{seconds}", routine=updates < last)
            log.detail(f"  fingerprint of the weights: {write.fingerprint(model)}")
            most = context.run.options.checkpoint.max_ckpts_to_keep
            write.prune(context.folder, checkpoint, most, context.run.length.is_checkpoint, best_name)

        self.wait_until_finished()
        self._context.writer.submit(write_files)
        self._note_blocked(time.perf_counter() - started)

    def wait_until_finished(self) -> None:
        """Wait until the previous checkpoint is written; with --keep-going an error is only a warning."""
        self._tolerate_save_error(self._context.writer.wait_until_finished)

    def poll(self) -> None:
        """Raise the error of the previous checkpoint, as `wait_until_finished` does, without waiting."""
        self._tolerate_save_error(self._context.writer.poll)

    def _tolerate_save_error(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except SaveError as error:
            if not self._context.run.options.training.keep_going:
                raise
            self._context.log.note(f"warning: {error}")

    def save_last(self, done: int) -> None:
        """Save the checkpoint that a run which stops early resumes from, unless it is there."""
        self.wait_until_finished()
        there = [checkpoint.updates for checkpoint in find.numbered(self._context.folder)]
        if self._context.writes and (done != self.saved or done not in there):  # that file may be damaged and left out
            self.save(done)

    def averages(self, done: int) -> list[tuple[Checkpoint, Tensors]]:
        """Save the averages of a run that has ended after `done` updates; return them and their tensors."""
        from harness.checkpoints import averages

        context, pairs = self._context, []
        for name, count in averages.requested_averages(context.run.options.training):
            average, values = Checkpoint(str(context.folder / name), -1), None
            if context.team.is_first:
                finite = not context.run.options.training.keep_going
                average, used, damaged = averages.write_average(
                    context.folder, name, count, context.run.length, done, finite
                )
                for warning in damaged:
                    context.log.note(warning)
                first = count ** (used - 1) if name.startswith("weight_avg_exp") else 0.0  # its share
                mostly = f"; {100 * first:.0f} % of it is the first of them" if used > 1 and first > 0.1 else ""
                context.log.note(f"Saved the average of {used} checkpoint{'s' * (used > 1)} to {average.prefix}{mostly}")
                values = read.tensors(average)
            pairs.append((average, context.team.broadcast(values)))
        return pairs

    def _sync_rows(self) -> None:
        """Flush the rows of a checkpoint to the disk before it is written."""
        try:
            self._context.log.sync()
        except OSError as error:
            raise SaveError(f"the rows in {self._context.folder} cannot be written: {error.strerror}") from None
