"""Save the checkpoints of a running training, and decide when to save a safety checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from cnn_harness.base.storage import fingerprints
from cnn_harness.harness.checkpoints import find, read, run_record, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.checkpoints.read import Tensors
from cnn_harness.harness.checkpoints.write import SaveError
from cnn_harness.harness.distributed import checkpoint_interval
from cnn_harness.harness.options.sections import AUTO
from cnn_harness.harness.run.cluster import host_of
from cnn_harness.harness.training.divergence import Divergence
from cnn_harness.harness.training.meter import Meter
from cnn_harness.harness.training.run_dir import TrainingContext

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import TrainingProgram


class CheckpointKind(Enum):
    """The reason to save a checkpoint.

    Safety checkpoints limit the work lost in a failure; the next checkpoint replaces them. Only scheduled checkpoints are
    validated. The values appear in the log.
    """

    SCHEDULED = "checkpoint"
    INITIAL = "initial checkpoint"
    SAFETY = "safety checkpoint"


class Checkpointer:
    """Saves the program's variables and the run's state. A thread writes the files while training continues."""

    def __init__(
        self, context: TrainingContext, program: TrainingProgram, meter: Meter, divergence: Divergence,
        best: Callable[[], Mapping[str, Any] | None],
    ) -> None:  # fmt: skip
        """The function `best` returns the row of the best validation so far, or None."""
        self._context, self._program, self._meter = context, program, meter
        self._divergence, self._best = divergence, best
        self.saved = -1  # The number of updates before the newest checkpoint of this call.
        self._unvalidated: tuple[Checkpoint, Tensors] | None = None
        self._saved_at = time.monotonic()
        self._blocked_seconds: float | None = None  # The time in seconds for which the last checkpoint blocked training.

    def begin(self, resumed: Checkpoint | None) -> None:
        """Save the initial weights of a new run.

        For a resumed run, log the lines about the existing checkpoints again, because scripts may wait for these lines.
        """
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
            context.log.detail("  (at the start of the run)")
        if resumed.updates:
            context.log.note(f"Saved checkpoint to {resumed.prefix}")
            context.log.detail("  (in an earlier call)")

    @property
    def overdue(self) -> bool:
        """True if a safety checkpoint is due."""
        interval, context = self._safety_interval(), self._context
        return bool(interval and context.saves and context.team.is_first) and time.monotonic() - self._saved_at > interval

    def _safety_interval(self) -> float:
        """Return the number of seconds between safety checkpoints, or 0 if none are saved."""
        options, addresses = self._context.run.options.checkpoint, self._context.team.cluster.addresses
        return checkpoint_interval.safety_interval(options, len({*map(host_of, addresses)}) or 1, self._blocked_seconds)

    def _note_blocked(self, seconds: float) -> None:
        """Store for how many seconds a checkpoint blocked training. The first call also logs the time between safety
        checkpoints, which depends on these seconds."""
        first, self._blocked_seconds = self._blocked_seconds is None, seconds
        options = self._context.run.options.checkpoint
        if first and options.safety_ckpt_minutes == AUTO and self._context.team.is_first:
            self._context.log.note(
                f"Saving a safety checkpoint every {self._safety_interval() / 60:.2g} minutes: saving blocks training for "
                f"{seconds:.2g} s; a host is assumed to fail every {options.mtbf_hours:g} hours (--mtbf-hours)"
            )

    def pop_unvalidated(self) -> tuple[Checkpoint, Tensors]:
        """Return the newest checkpoint and its tensors, and forget the tensors to free their memory."""
        newest, self._unvalidated = self._unvalidated, None
        return newest

    def save(self, updates: int, kind: CheckpointKind = CheckpointKind.SCHEDULED) -> None:
        """Start to write a checkpoint after `updates` updates, in another thread."""
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
        """Wait until the previous checkpoint is written. On failure, raise an error, or log a warning with --keep-going."""
        self._tolerate_save_error(self._context.writer.wait_until_finished)

    def poll(self) -> None:
        """Raise an error if writing the previous checkpoint has failed, or log a warning with --keep-going. Do not wait."""
        self._tolerate_save_error(self._context.writer.poll)

    def _tolerate_save_error(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except SaveError as error:
            if not self._context.run.options.training.keep_going:
                raise
            self._context.log.note(f"warning: {error}")

    def save_last(self, done: int) -> None:
        """Save a checkpoint after `done` updates if a run stops early, unless this checkpoint exists."""
        self.wait_until_finished()
        existing = [checkpoint.updates for checkpoint in find.numbered(self._context.folder)]
        # The run may have resumed from an older checkpoint because this one was damaged. Then save it again.
        if self._context.writes and (done != self.saved or done not in existing):
            self.save(done)

    def averages(self, done: int) -> list[tuple[Checkpoint, Tensors]]:
        """Save the averages of checkpoints that the options request, after `done` updates. Return each average and its
        tensors."""
        from cnn_harness.harness.checkpoints import averages

        context, pairs = self._context, []
        for name, count in averages.requested_averages(context.run.options.training, done):
            average, values = Checkpoint(str(context.folder / name), -1), None
            if context.team.is_first:
                finite = not context.run.options.training.keep_going
                average, used, damaged = averages.write_average(
                    context.folder, name, count, context.run.length, done, finite
                )
                for warning in damaged:
                    context.log.note(warning)
                # `first` is the weight of the oldest checkpoint in an exponential average.
                first = count ** (used - 1) if name.startswith("weight_avg_exp") else 0.0
                mostly = f"; the oldest has a weight of {100 * first:.0f} %" if used > 1 and first > 0.1 else ""
                context.log.note(f"Saved the average of {used} checkpoint{'s' * (used > 1)} to {average.prefix}{mostly}")
                values = read.tensors(average)
            pairs.append((average, context.team.broadcast(values)))
        return pairs

    def _sync_rows(self) -> None:
        """Flush the CSV files to the disk, so that their rows are never older than the checkpoint."""
        try:
            self._context.log.sync()
            fingerprints.sync(self._context.folder)
        except OSError as error:
            raise SaveError(f"cannot write the CSV files in {self._context.folder}: {error.strerror}") from None
