"""Measures inference as a server would run it: one frozen program, built once and kept in a file, called from threads.

python inference_embedded.py --model efficientnet --dataset imagenet --generated-data --micro-batch-size 1 --iterations 1000
python inference_embedded.py --restore-path logs/<run>/ckpt-500 --iterations 200 --num-inference-thread 2
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import early

    early.begin("inference_embedded.py")

import os
import secrets
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import validation
from base.errors import OptionError
from base.process import quiet
from base.storage.files import write_atomically
from harness.checkpoints import find, fit, read
from harness.checkpoints.checkpoint import Checkpoint
from harness.commands import entry
from harness.programs import embedded
from harness.run.arguments import arguments
from harness.run.cluster import ALONE
from harness.run.run import Run
from log import RunLog, new_run_folder

if TYPE_CHECKING:
    from ipu_utils import FrozenProgram

SCRIPT = "inference_embedded"
NOT_TAKEN_OVER = ("iterations", "epochs", "valid_batch_size", "hostside_norm", "batches_per_step")  # from a training


def main(argv: list[str]) -> int:
    """parse -> program from its file, or built and kept there -> pictures -> threads -> latencies."""
    path = entry.restore_path(argv, SCRIPT)
    found = find.select(Path(path)) if path else [validation.RANDOM_WEIGHTS]
    if len(found) > 1:
        names = ", ".join(each.name for each in found[:8])
        raise OptionError(f"--restore-path {path} holds {len(found)} checkpoints, and one program has one; name it: {names}")
    folder = find.run_folder(Path(path)) if path else None
    recorded = entry.recorded_options(folder, argv, SCRIPT) if folder else {}
    recorded = {name: value for name, value in recorded.items() if name not in NOT_TAKEN_OVER}
    parsed = entry.parse(argv, SCRIPT, recorded, folder)
    refuse = partial(validation.refusals, found=found if path else [])
    run = entry.prepare_or_describe(parsed, training=False, refuse=refuse, recorded=recorded) if parsed else None
    if run is None:
        return 0
    calls = run.options.training.iterations
    if calls is None:
        raise OptionError("--iterations is missing: the number of micro-batches that each thread infers, such as 1000")
    embedded.refuse(run)
    run = replace(run, cluster=ALONE)  # every process of a launcher is a server of its own
    if run.options.device.compile_only:
        return _compile_only(run, found[0])
    return _serve(run, found[0], calls, validation.epoch_batch(run, recorded))


def _serve(run: Run, checkpoint: Checkpoint, calls: int, global_batch: int) -> int:
    log = _open_log(run)
    try:
        quiet.import_tensorflow()
        from harness.programs.build import byte_batches

        program = _program(run, checkpoint, log)
        batches = byte_batches(run, min(calls, embedded.MOST_BATCHES))
        for _ in range(run.options.checkpoint.repeat):
            served = embedded.serve(program, batches, calls, run.options.checkpoint.num_inference_thread)
            log.note(served.line())
            log.note(f"{served.inferred} pictures inferred, {served.samples} different ones, of which the accuracy is")
            iteration = checkpoint.iteration
            epoch = iteration * global_batch / run.source.spec.train_images if iteration >= 0 else -1.0
            known = embedded.labelled(run)
            found = embedded.scored(program, batches, served.micro_batches) if known else embedded.NOT_LABELLED
            log.validation_row(embedded.row(run, checkpoint, served, found, epoch))
        program.close()
    finally:
        log.close()
    return 0


def _compile_only(run: Run, checkpoint: Checkpoint) -> int:
    """Builds the program, or finds it in its file, and writes nothing else."""
    log = RunLog(None)
    quiet.import_tensorflow()
    _program(run, checkpoint, log).close()
    log.close()
    return 0


def _program(run: Run, checkpoint: Checkpoint, log: RunLog) -> FrozenProgram:
    """From its file in the working directory if that holds the same program, otherwise built, and kept there."""
    from harness.programs.build import frozen_program
    from ipu_utils import FrozenProgram

    options = run.options.checkpoint
    values = None
    if checkpoint is not validation.RANDOM_WEIGHTS:
        values = read.tensors(checkpoint)
        fit.require(fit.of_values(values), fit.model(run), checkpoint)
        for warning in fit.warnings(run, values, checkpoint):
            log.note(warning)
        values = {variable.name: values[variable.name] for variable in run.trace.variables}
    wanted = embedded.identity(run, values)
    if options.tmp_execs:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"{secrets.token_hex(8)}{embedded.SUFFIX}")
            log.note(f"Poplar executable: {path} (a frozen TensorFlow graph, deleted after it is loaded)")
            write_atomically(path, frozen_program(run, values, wanted))
            return FrozenProgram(path.read_bytes())
    path = Path(embedded.file_name(run, checkpoint))
    if not options.force_recompile:
        program, reason = embedded.load(path, wanted)
        if program:
            log.note(f"Poplar executable: {path} (a frozen TensorFlow graph, built earlier)")
            return program
        if reason:
            log.note(reason)
    built = frozen_program(run, values, wanted)
    try:
        write_atomically(path, built)
        log.note(f"Poplar executable: {path} (a frozen TensorFlow graph, {len(built) / 1e6:.1f} MB)")
    except OSError as error:
        log.note(f"warning: {path} cannot be written ({error.strerror}): the program is not kept; --tmp-execs does without")
    return FrozenProgram(built)


def _open_log(run: Run) -> RunLog:
    logging = run.options.logging
    folder = new_run_folder(run.name, logging.log_dir, logging.logs_path, keep=True) if logging.logs else None
    log = RunLog(folder)
    if folder:
        log.note(f" Saving to {folder}")
    command = " ".join(sys.argv)
    log.file_only(command)
    log.arguments(arguments(run, command, {"logs_path": str(folder)}), restored=False)
    for note in (*run.notes, *embedded.notes(run)):
        log.note(note)
    threads = run.options.checkpoint.num_inference_thread
    log.note(f"Inferring with {run.name}, {threads} thread{'s' * (threads > 1)} on {os.cpu_count()} processors")
    return log


if __name__ == "__main__":
    sys.exit(entry.run_command(SCRIPT, main, None))
