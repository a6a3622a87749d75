"""Validates checkpoints: accuracy, loss and speed over the whole validation set.

python validation.py --restore-path logs/<run>          every checkpoint of a run
python validation.py --restore-path logs/<run>/ckpt-500 one of them
python validation.py --restore-path efficientnet-lite0 --predict PHOTO...   what photographs show
python validation.py --model efficientnet --dataset imagenet --generated-data --repeat 10   speed alone
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import early

    early.begin("validation.py")

import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base.errors import OptionError
from base.process import quiet
from base.process.signals import StopRequest
from Datasets import _photo_bytes
from emulator.plan.record import PhaseEnd
from harness.checkpoints import find, fit, read
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.commands import entry
from harness.evaluation import predictions
from harness.processes import folders
from harness.processes.team import Team, introduction
from harness.programs import executables
from harness.reports import compilation, profile
from harness.reports.compilation import Compilation
from harness.run import cluster as clusters
from harness.run.arguments import arguments
from harness.run.run import Run
from log import RunLog, new_run_folder

if TYPE_CHECKING:
    import numpy as np

    from ipu_utils import InferenceProgram

RANDOM_WEIGHTS = Checkpoint("random", -1)


def main(argv: list[str]) -> int:
    """parse -> report -> build -> validate every checkpoint."""
    path = entry.restore_path(argv, "validation")
    if not path and entry.value_of(argv, "predict", "validation"):
        raise OptionError("--predict needs --restore-path: a run folder, a checkpoint, a .npz file or efficientnet-lite0")
    folder = find.run_folder(Path(path)) if path else None
    found = find.select(Path(path)) if path and not clusters.follows(os.environ) else []
    recorded = entry.recorded_options(folder, argv, "validation") if folder else {}
    if entry.value_of(argv, "micro_batch_size", "validation"):
        recorded.pop("valid_batch_size", None)  # what is given now goes before what was recorded
    parsed = entry.parse(argv, "validation", recorded, folder)
    refuse = partial(refusals, found=found)
    run = entry.prepare_or_describe(parsed, training=False, refuse=refuse, recorded=recorded) if parsed else None
    if run is None:
        return 0
    if run.options.device.compile_only:
        return _compile_only(run)
    if run.options.checkpoint.predict:
        return _predict(run, found)
    profile.refuse_bad_target(run.options.device, os.environ)
    with Team(run.cluster, run.options.training.worker_timeout, "validation.py") as team:
        team.meet(run)
        listed = json.loads(team.broadcast_text(json.dumps([[each.prefix, each.iteration] for each in found])))
        return _all(run, team, [Checkpoint(*each) for each in listed], epoch_batch(run, recorded))


def refusals(run: Run, found: list[Checkpoint]) -> list[str]:
    """Refuses checkpoints of another network, photographs that are none, and a folder that cannot be made; a line on each
    checkpoint that is left out."""
    if run.options.checkpoint.predict:
        for path in run.options.checkpoint.predict:
            _photo_bytes.photograph(path)
    else:
        folders.refuse(run)
    return fit.require_model(run, found)


def _all(run: Run, team: Team, found: list[Checkpoint], batch: int) -> int:
    """Validates the checkpoints, or random weights if there are none; the exit code."""
    log = _open_log(run, team)
    if not found:
        log.note("no --restore-path: random weights, for speed only")
        if run.options.training.init_path:
            log.note("--init-path is not read: it says where a training begins; --restore-path says what is validated")
    unreadable, done = [], []
    wanted = profile.requested(run.options.device, log.folder or Path(), os.environ) if team.first else None
    printed = ExitStack()
    printed.enter_context(profile.copied_output(wanted))
    try:
        program = build(run, log)
        if team.first:
            _profile(run, program, wanted, log)
        for checkpoint in found or [RANDOM_WEIGHTS]:
            values = _values(checkpoint, found, team, log) if found else None
            if found and values is None:
                unreadable.append(checkpoint.name)
                continue
            for warning in fit.warnings(run, values or {}, checkpoint):
                log.note(warning)
            for _ in range(run.options.checkpoint.repeat):
                log.validation_row(validate(run, program, checkpoint, values, batch, log, team))
            done.append(checkpoint.name)
        team.part()
    except StopRequest as asked:
        log.note(f"Stopped: {asked}; validated: {', '.join(done) or 'none'} of {len(found)}")
        raise
    finally:
        log.close()
        printed.close()
    if unreadable and team.first:
        print(f"validation.py: error: {len(unreadable)} of {len(found)} checkpoints cannot be read: {', '.join(unreadable)}",
              file=sys.stderr)  # fmt: skip
    return 1 if unreadable else 0


def _values(checkpoint: Checkpoint, among: list[Checkpoint], team: Team, log: RunLog) -> Mapping[str, np.ndarray] | None:
    """What instance 0 reads; None if that cannot be read, which is an error of one that is alone."""
    values = None
    if team.first:
        try:
            values = read.tensors(checkpoint)
        except CheckpointError as error:
            if len(among) == 1:
                raise
            log.note(f"left out: {error}")
    return team.broadcast(values) if team.broadcast_text("" if values is None else "read") else None


def _compile_only(run: Run) -> int:
    """Builds the program, says what it is, and stops; writes nothing."""
    log = RunLog(None)
    log.note(_what(run))
    program = build(run, log)
    if run.options.device.profile_compilation:
        for line in Compilation(program.phase_ends, compilation.target(None, os.environ)).report():
            log.note(line)
    report_compiled(program, log)
    log.close()
    return 0


def _predict(run: Run, found: list[Checkpoint]) -> int:
    """Says what the photographs of --predict show; writes nothing."""
    quiet.import_tensorflow()
    log = RunLog(None)
    for note in run.notes:
        log.note(note)
    if run.options.device.profile_compilation or profile.requested(run.options.device, Path(), os.environ):
        log.note("--predict records no profile; leave it out to have one of validation")
    checkpoint, values, damaged = read.newest_of(found, f"--restore-path {run.options.main.restore_path}")
    damaged += [f"warning: {fault}" for fault in fit.faults(values, fit.model(run), checkpoint)]
    for warning in damaged:
        log.note(warning)
    predictions.show(run, checkpoint, values, log)
    log.close()
    return 0


def report_compiled(program: InferenceProgram, log: RunLog) -> None:
    """For --compile-only."""
    log.note(f"The validation graph was successfully compiled: {len(program.graph.get_operations()):,} operations.")


def build(run: Run, log: RunLog) -> InferenceProgram:
    """The compiled validation program."""
    prepared = PhaseEnd(compilation.PREPARED, time.perf_counter())
    executables.import_tensorflow(run)
    from harness.programs.build import validation_program

    started = time.perf_counter()
    store = executables.store(run, "validation")
    program = validation_program(run, store)
    program.compile()
    program.phase_ends[:0] = [prepared, PhaseEnd(compilation.IMPORTED, started)]
    log.note(f"Validation program ready in {time.perf_counter() - started:.1f}s.")
    for line in store.told() if store else ():
        log.note(line)
    return program


def _profile(run: Run, program: InferenceProgram, wanted: profile.Request | None, log: RunLog) -> None:
    """Records the compilation and one micro-batch, if that is asked for."""
    if run.options.device.profile_compilation:
        found = Compilation(program.phase_ends, compilation.target(log.folder, os.environ))
        program.rewind()
        program.step(0, 1)
        found.over("first micro-batch")
        program.rewind()
        started = time.perf_counter()
        program.step(0, 1)
        for line in found.again(time.perf_counter() - started):
            log.note(line)
    if wanted is None:
        return
    for attempt in (program.step, program.profile):  # the first warms caches up
        program.rewind()
        operations = attempt(0, 1)
    log.note(profile.write_operations(wanted, f"{run.name}, one micro-batch of validation", operations))


def validate(
    run: Run,
    program: InferenceProgram,
    checkpoint: Checkpoint,
    values: Mapping[str, np.ndarray] | None,
    global_batch: int,
    log: RunLog,
    team: Team,
) -> dict[str, Any]:
    """One checkpoint over the whole validation set, which the team's instances share, as a row of validation.csv."""
    if values is not None:
        fit.require(fit.of_values(values), fit.model(run), checkpoint)
        program.load(values)
    program.rewind()
    micro_batches = own_micro_batches(run)
    totals, seconds = _sums(run, program, micro_batches, log)
    totals, seconds = team.totals(totals), team.largest(seconds)
    iteration = checkpoint.iteration
    samples = max(totals["samples"], 1)
    accuracy = 100 * totals["hits"] / samples
    return {
        "name": checkpoint.name,
        "iteration": iteration,
        "epoch": iteration * global_batch / run.source.spec.train_images if iteration >= 0 else -1,
        "val_acc": accuracy,
        "raw_acc": accuracy,
        "val_time": seconds,
        "val_size": int(totals["samples"]),
        "img_per_sec": totals["samples"] / seconds,
        "latency": _latency(run, program, micro_batches, log) or 1000 * seconds / max(micro_batches, 1),
        "top5_acc": 100 * totals["top5"] / samples,
        "loss": totals["loss"] / samples,
    }


def own_micro_batches(run: Run) -> int:
    """Of the validation set, in this instance."""
    whole = -(-run.source.spec.validation_images // run.validation_batch)
    return len(range(run.cluster.instance, whole, run.cluster.size))


def epoch_batch(run: Run, recorded: Mapping[str, Any]) -> int:
    """The training's global batch, for the epoch column."""
    return run.options.training.global_batch_size or recorded.get("total_batch_size") or run.plan.global_batch


def _sums(run: Run, program: InferenceProgram, micro_batches: int, log: RunLog) -> tuple[dict[str, float], float]:
    """All sums and the seconds on the device, in about twenty calls so that progress shows."""
    chunk = max(1, -(-micro_batches // 20))
    totals: dict[str, float] = dict.fromkeys(program.names, 0.0)
    seconds = 0.0
    for first in range(0, micro_batches, chunk):
        end = min(first + chunk, micro_batches)
        started = time.perf_counter()
        for name, value in program.step(first, end).items():
            totals[name] += float(value)
        seconds += time.perf_counter() - started
        log.progress(end, micro_batches, "validation micro-batches")
    return totals, seconds


def _latency(run: Run, program: InferenceProgram, micro_batches: int, log: RunLog) -> float | None:
    """Mean milliseconds of one micro-batch at a time, host call included; None if not asked for."""
    if not run.options.checkpoint.latency or not micro_batches:
        return None
    if run.options.dataset.synthetic_data:
        log.note("--latency is off: synthetic data has no host input to wait for")
        return None
    program.rewind()
    calls = min(micro_batches, 100)
    started = time.perf_counter()
    for i in range(calls):
        program.step(i, i + 1)
    return 1000 * (time.perf_counter() - started) / calls


def _open_log(run: Run, team: Team) -> RunLog:
    """Validation has a run folder of its own; of several instances, the first one writes it."""
    logging = run.options.logging
    if not team.first:
        return RunLog(None, console=logging.log_all_instances)
    folder = new_run_folder(run.name, logging.log_dir, logging.logs_path, keep=True) if logging.logs else None
    log = RunLog(folder)
    if folder:
        log.note(f" Saving to {folder}")
    log.file_only(" ".join(sys.argv))
    log.arguments(arguments(run, " ".join(sys.argv), {"logs_path": str(folder)}), restored=False)
    for note in (*introduction(run.cluster), *run.notes):
        log.note(note)
    log.note(_what(run))
    return log


def _what(run: Run) -> str:
    return f"Validating {run.name} on {run.source.spec.validation_images} images of {run.source.spec.name}"


if __name__ == "__main__":
    sys.exit(entry.run_command("validation", main, None))
