"""Measure inference speed as on a server: threads call a frozen program, which is built once and saved in a file.

python inference_embedded.py --model efficientnet --dataset imagenet --generated-data --micro-batch-size 1 --iterations 1000
python inference_embedded.py --restore-path logs/<run>/ckpt-500 --iterations 200 --num-inference-thread 2
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("inference_embedded.py")
    from cnn_harness.harness.commands import answers

    call = answers.answer_early("inference_embedded")

import secrets
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import tf_runtime
from cnn_harness.base.storage.files import write_atomically
from cnn_harness.emulator.plan import machine
from cnn_harness.harness.checkpoints import compatibility, find, read
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.commands import answers, entry, run_log
from cnn_harness.harness.evaluation.saved_weights import SavedWeights
from cnn_harness.harness.evaluation.validate import RANDOM_WEIGHTS, training_global_batch, validation_row
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.options.sections import RunOptions
from cnn_harness.harness.programs import embedded
from cnn_harness.harness.run.cluster import Cluster, Execution
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    from cnn_harness.harness.commands.preview import Preview
    from cnn_harness.harness.programs.embedded import Batches
    from cnn_harness.ipu_utils import FrozenProgram

NOT_TAKEN_OVER = (
    "iterations",
    "epochs",
    "valid_batch_size",
    "hostside_norm",
    "batches_per_step",
)  # recorded, but ignored here


def main(call: Call) -> int:
    """Measure inference: load or build the program, prepare images, infer in threads, and report latencies."""
    path = call.argument("restore_path")
    selected = find.select(Path(path), by_prefix=False) if path else []
    if len(selected) > 1:
        names = ", ".join(each.name for each in selected[:8])
        raise OptionError(
            f"--restore-path {path} has {len(selected)} checkpoints, but a program needs one; give one of: {names}"
        )
    checkpoint = selected[0] if selected else RANDOM_WEIGHTS
    folder = find.run_folder(Path(path)) if path else None
    recorded = entry.recorded_options(folder, call) if folder else {}
    recorded = {name: value for name, value in recorded.items() if name not in NOT_TAKEN_OVER}
    origin = ServedWeights(selected, folder, recorded)
    run, _, notes = entry.checked_run(call, origin, training=False, compiled=partial(_compile_only, checkpoint=checkpoint))
    execution = Execution.of(run.options, notes=notes)  # each process of a launcher is a separate server
    return _serve(run, execution, checkpoint, training_global_batch(run, recorded))


class ServedWeights(SavedWeights):
    """The saved weights from which the frozen program is built."""

    def check_source(self, options: RunOptions) -> list[str]:
        """Return no log lines, because --iterations sets the number of micro-batches."""
        return []

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        """Run the common checks; raise OptionError for options that a frozen program does not support."""
        lines = super().check_run(run, cluster)
        if run.options.training.iterations is None:
            raise OptionError("--iterations is missing; give the number of micro-batches for each thread, for example 1000")
        embedded.check(run)
        return lines


def _serve(run: Run, execution: Execution, checkpoint: Checkpoint, trained_batch: int) -> int:
    calls, threads = run.options.training.iterations, run.options.checkpoint.num_inference_thread
    cores = machine.cores()
    used = f"{threads} thread{'s' * (threads > 1)} on {cores} processor{'s' * (cores > 1)}"
    inferring = f"Inferring with {run.name}, {used}"
    log = run_log.open_own_log(run, execution, [inferring])
    try:
        tf_runtime.import_tensorflow()
        from cnn_harness.harness.programs.build import validation_batches_uint8

        program = _program(run, execution, checkpoint, log)
        batches = validation_batches_uint8(run, execution, min(calls, embedded.MAX_BATCHES))
        for _ in range(run.options.checkpoint.repeat):
            served = embedded.serve(program, batches, calls, threads)
            for line in served.lines(vintage(run.options.main.release).latency):
                log.note(line)
            log.note(f"{served.inferred} images inferred; accuracy over {served.samples} different images:")
            log.validation_row(_row(run, program, batches, checkpoint, trained_batch, served))
        program.close()
    finally:
        log.close()
    return 0


def _row(
    run: Run, program: FrozenProgram, batches: Batches, checkpoint: Checkpoint, trained_batch: int, served: embedded.Served
) -> dict[str, Any]:
    """Return a row with the columns of validation.csv. If the data have no true labels, accuracy and loss are -1."""
    accuracy = top5 = loss = -1.0
    if embedded.labelled(run):
        accuracy = 100 * served.correct / max(served.samples, 1)
        top5, loss = embedded.scores(program, batches, served.micro_batches)
    return validation_row(
        run, checkpoint, trained_batch, accuracy=accuracy, top5=top5, loss=loss, seconds=served.seconds,
        images=served.samples, throughput=served.inferred / served.seconds, latency=served.mean,
    )  # fmt: skip


def _compile_only(asked: Preview, checkpoint: Checkpoint) -> None:
    """Build the program, or load it from its file, without a log."""
    log = RunLog(None)
    tf_runtime.import_tensorflow()
    _program(asked.run, asked.execution, checkpoint, log).close()
    log.close()


def _program(run: Run, execution: Execution, checkpoint: Checkpoint, log: RunLog) -> FrozenProgram:
    """Load the program from its file in the working directory, or build it.

    A program is built if the file is missing or was built from other weights or options.
    """
    from cnn_harness.harness.programs.build import frozen_program
    from cnn_harness.ipu_utils import FrozenProgram

    options = run.options.checkpoint
    values = None
    if checkpoint is not RANDOM_WEIGHTS:
        values = compatibility.model_tensors(run, read.tensors(checkpoint), checkpoint)
        for warning in compatibility.value_warnings(run, values, checkpoint):
            log.note(warning)
    wanted = embedded.identity(run, values)
    if options.tmp_execs:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{secrets.token_hex(8)}{embedded.SUFFIX}")
            log.note(f"Poplar executable: {path} (a frozen TensorFlow graph, deleted after it is loaded)")
            write_atomically(path, frozen_program(run, execution.seed, values, wanted))
            return FrozenProgram(path.read_bytes())
    path = Path(embedded.file_name(run, checkpoint))
    if not options.force_recompile:
        program, reason = embedded.load(path, wanted)
        if program:
            log.note(f"Poplar executable: {path} (a frozen TensorFlow graph, built earlier)")
            return program
        if reason:
            log.note(reason)
    built = frozen_program(run, execution.seed, values, wanted)
    try:
        write_atomically(path, built)
        log.note(f"Poplar executable: {path} (a frozen TensorFlow graph, {len(built) / 1e6:.1f} MB)")
    except OSError as error:
        log.note(f"warning: {path} cannot be written ({error.strerror}), so the program is not saved; give --tmp-execs")
    return FrozenProgram(built)


if __name__ == "__main__":
    sys.exit(answers.run_command("inference_embedded", main, call))
