"""--numerics N: an observation of the network's numbers at the end of every N-th update."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from base.storage import files

if TYPE_CHECKING:
    from emulator.numerics.observation import Observation
    from harness.training.context import TrainingContext
    from ipu_utils import ObservingProgram, TrainingProgram

PICTURE, FOLDER = "numerics.svg", "numerics"  # of the run's folder; the second has TensorBoard's events


class Observer:
    """Observes for instance 0 of a run with a folder; for the others, and without the option, it does nothing."""

    def __init__(self, context: TrainingContext, program: TrainingProgram, first: int) -> None:
        """`first`: the updates that the run has."""
        wanted = context.run.options.logging.numerics if context.team.is_first and context.log.folder else None
        self._context, self._program, self._every = context, program, wanted
        self._observing: ObservingProgram | None = None
        self._board: _Histograms | None = None
        self._missing = False
        if self._every:
            from harness.diagnostics import record

            record.truncate_after(context.folder, first)
            self._missing = record.is_missing(context.folder, first, self._every)

    @property
    def every(self) -> int | None:
        """The updates from one observation to the next; None for none at all."""
        return self._every

    def catch_up(self, done: int) -> None:
        """Observe the update that the run resumes after, if the call that saved it ended before it could."""
        if self._missing:
            self.observe(done)

    def due(self, first: int, done: int) -> bool:
        """Return whether an observation is due after the updates first..done-1."""
        return bool(self._every) and done // self._every > first // self._every

    def observe(self, done: int) -> None:
        """Observe, write and draw."""
        from harness.diagnostics import picture, record

        context = self._context
        if self._observing is None:
            from harness.programs import build  # TensorFlow comes with it

            self._observing = build.observing_program(context.run)
            self._board = _Histograms(context.folder / FOLDER)
        found = self._program.loss_scale()
        scale = found[0] if found else context.run.options.training.loss_scaling
        observation = self._observing.observe(self._program.values(), done, scale)
        record.append(context.folder, observation)
        files.write_atomically(context.folder / PICTURE, picture.draw(observation))
        self._board.add(observation)
        context.log.note(f"Numbers observed after update {done}: {context.folder / PICTURE}")

    def close(self) -> None:
        """Free the program."""
        if self._observing:
            self._observing.close()
            self._board.close()


class _Histograms:
    """Exponents as histograms, and shares of what is lost, for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        import tensorflow.compat.v1 as tf

        folder.mkdir(exist_ok=True)
        with tf.Graph().as_default():
            self._writer = tf.summary.FileWriter(str(folder), filename_suffix=f".{secrets.token_hex(4)}")

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
        """End the file."""
        self._writer.close()
