"""Record the range of the network's numbers after every N-th update (--numerics N).

Each observation becomes a line in numerics.jsonl, histograms in TensorBoard, and the chart numerics.svg, which shows the
newest observation.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.storage import files
from cnn_harness.harness.reports import numerics_record, trackers

if TYPE_CHECKING:
    from cnn_harness.emulator.numerics.observation import Observation
    from cnn_harness.harness.training.run_dir import TrainingContext
    from cnn_harness.ipu_utils import ObservingProgram, TrainingProgram

CHART, FOLDER = "numerics.svg", "numerics"  # in the run directory; FOLDER contains the files for TensorBoard


class Observer:
    """Makes the observations of a run in instance (process) 0. Does nothing in other instances or without --numerics."""

    def __init__(self, context: TrainingContext, program: TrainingProgram, first: int) -> None:
        """`first` is the number of completed updates."""
        wanted = context.run.options.logging.numerics if context.team.is_first and context.log.folder else None
        self._context, self._program, self._every = context, program, wanted
        self._observing: ObservingProgram | None = None
        self._board: _Histograms | None = None
        self._missing = False
        if self._every:
            numerics_record.truncate_after(context.folder, first)
            self._missing = numerics_record.is_missing(context.folder, first, self._every)

    @property
    def every(self) -> int | None:
        """The number of updates between observations; None without --numerics."""
        return self._every

    def catch_up(self, done: int) -> None:
        """Make the observation at the checkpoint of a resumed run, if the earlier process was killed before it."""
        if self._missing:
            self.observe(done)

    def due(self, first: int, done: int) -> bool:
        """Return whether an observation is due after the updates `first` to `done` - 1."""
        return bool(self._every) and done // self._every > first // self._every

    def observe(self, done: int) -> None:
        """Observe the network after `done` updates, write the observation and draw the chart."""
        from cnn_harness.harness.reports import numerics_chart

        context = self._context
        if self._observing is None:
            from cnn_harness.harness.programs import build

            self._observing = build.observing_program(context.run, context.execution.seed)
            self._board = _Histograms(context.folder / FOLDER)
        found = self._program.loss_scale()
        scale = found[0] if found else context.run.options.training.loss_scaling
        observation = self._observing.observe(self._program.values(), done, scale)
        numerics_record.append(context.folder, observation)
        files.write_atomically(context.folder / CHART, numerics_chart.draw(observation))
        self._board.add(observation)
        context.log.note(f"Numbers observed after update {done}: {context.folder / CHART}")

    def close(self) -> None:
        """Free the program and close TensorBoard's file."""
        if self._observing:
            self._observing.close()
            self._board.close()


class _Histograms:
    """Writes TensorBoard events: histograms of exponents, and shares of numbers that overflow, underflow or are 0."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._writer = trackers.event_writer(folder)

    def add(self, observation: Observation) -> None:
        """Write the events of an observation."""
        import tensorflow.compat.v1 as tf

        values = []
        for tensor in observation.tensors:
            counts = sorted(tensor.exponents.items())
            total, weighted = sum(count for _, count in counts), sum(e * count for e, count in counts)
            histogram = tf.HistogramProto(
                min=counts[0][0] if counts else 0, max=counts[-1][0] if counts else 0, num=total, sum=weighted,
                sum_squares=sum(e * e * count for e, count in counts),
                bucket_limit=[e + 1 for e, _ in counts] or [0], bucket=[count for _, count in counts] or [0],
            )  # fmt: skip
            values.append(tf.Summary.Value(tag=f"exponents of {tensor.kind}/{tensor.layer}", histo=histogram))
            for name in ("under", "over", "zero"):
                share = getattr(tensor.losses, name)
                values.append(tf.Summary.Value(tag=f"{tensor.kind} {name}/{tensor.layer}", simple_value=share))
        self._writer.add_summary(tf.Summary(value=values), observation.updates)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
