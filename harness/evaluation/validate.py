"""Validate one checkpoint: accuracy, loss and speed over the whole validation set, as a row of validation.csv."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from base.errors import DataError
from base.process.signals import Signals
from harness.checkpoints import compatibility
from harness.checkpoints.checkpoint import Checkpoint
from harness.processes.team import Team
from harness.reports import build_time, profile
from harness.reports.build_time import Compilation
from harness.run.run import Run
from log import RunLog

if TYPE_CHECKING:
    import numpy as np

    from ipu_utils import InferenceProgram

RANDOM_WEIGHTS = Checkpoint("random", -1)
_PIECES = 20  # of a validation, between which the progress bar moves
_LATENCY_MICRO_BATCHES = 100  # --latency is the mean of at most this many micro-batches


def validate(
    run: Run,
    program: InferenceProgram,
    checkpoint: Checkpoint,
    values: Mapping[str, np.ndarray] | None,
    global_batch: int,
    log: RunLog,
    team: Team,
    signals: Signals,
) -> dict[str, Any]:
    """Return the row of a checkpoint with the tensors `values`, or of random weights if they are None.

    The team's instances share the images. `global_batch`: that of the training, to compute the checkpoint's epoch.
    StopRequest if one of several instances got a signal.
    """
    if values is not None:
        program.load(compatibility.model_tensors(run, values, checkpoint))
    program.rewind()
    micro_batches = local_micro_batches(run)
    most = local_micro_batches(run, 0)  # instance 0 has no fewer than the others
    totals, seconds = _accumulated_metrics(program, micro_batches, most, log, partial(team.stop_together, signals))
    totals, seconds = team.all_reduce_sum(totals), team.all_reduce_max(seconds)
    samples = totals["samples"]
    if not samples:
        raise DataError(
            f"none of the {run.data_source.spec.validation_images} validation images can be used. Repair them, or give "
            "--no-validation"
        )
    return validation_row(
        run,
        checkpoint,
        global_batch,
        accuracy=100 * totals["correct"] / samples,
        top5=100 * totals["top5"] / samples,
        loss=totals["loss"] / samples,
        seconds=seconds,
        images=int(totals["samples"]),
        throughput=totals["samples"] / seconds,
        latency=_latency(run, program, micro_batches, log) or 1000 * seconds / max(micro_batches, 1),
    )


def validation_row(
    run: Run, checkpoint: Checkpoint, global_batch: int, *, accuracy: float, top5: float, loss: float, seconds: float,
    images: int, throughput: float, latency: float,
) -> dict[str, Any]:  # fmt: skip
    """Return a row of validation.csv. `accuracy`, `top5`: per cent; -1, like `loss`, without labels. `throughput`: images
    per second. `latency`: milliseconds of a micro-batch."""
    updates = checkpoint.updates
    return {
        "name": checkpoint.name,
        "iteration": updates,
        "epoch": updates * global_batch / run.data_source.spec.train_images if updates >= 0 else -1,
        "val_acc": accuracy,
        "raw_acc": accuracy,
        "val_time": seconds,
        "val_size": images,
        "img_per_sec": throughput,
        "latency": latency,
        "top5_acc": top5,
        "loss": loss,
    }


def local_micro_batches(run: Run, instance: int | None = None) -> int:
    """Return the number of micro-batches of the validation set in an instance, by default this one."""
    total = -(-run.data_source.spec.validation_images // run.validation_batch)
    return len(range(run.cluster.instance if instance is None else instance, total, run.cluster.size))


def training_global_batch(run: Run, recorded: Mapping[str, Any]) -> int:
    """Return the global batch of a checkpoint's training: the given, recorded or planned one."""
    return run.options.training.global_batch_size or recorded.get("total_batch_size") or run.plan.global_batch


def record_profile(run: Run, program: InferenceProgram, request: profile.ProfileRequest | None, log: RunLog) -> None:
    """Profile the compilation and one micro-batch, as the options request."""
    if run.options.device.profile_compilation:
        compiled = Compilation(program.phase_ends, build_time.target(log.folder, os.environ))
        program.rewind()
        program.step(0, 1)
        compiled.over("first micro-batch")
        program.rewind()
        started = time.perf_counter()
        program.step(0, 1)
        for line in compiled.again(time.perf_counter() - started):
            log.note(line)
    if request is None:
        return
    for attempt in (program.step, program.profile):  # the first warms up caches
        program.rewind()
        operations = attempt(0, 1)
    log.note(profile.write_operations(request, f"{run.name}, one micro-batch of validation", operations))


def _accumulated_metrics(
    program: InferenceProgram, micro_batches: int, most: int, log: RunLog, between: Callable[[], None]
) -> tuple[dict[str, float], float]:
    """Return all sums, and the seconds on the device.

    `most`: the largest number of micro-batches of an instance, so that all instances use the same number of pieces.
    `between`: function to call after each piece.
    """
    piece = max(1, -(-most // _PIECES))
    totals: dict[str, float] = dict.fromkeys(program.names, 0.0)
    seconds = 0.0
    for first in range(0, most, piece):
        end = min(first + piece, micro_batches)
        started = time.perf_counter()
        for name, value in program.step(first, end).items():
            totals[name] += float(value)
        seconds += time.perf_counter() - started
        log.progress(end, micro_batches, "validation micro-batches")
        between()
    return totals, seconds


def _latency(run: Run, program: InferenceProgram, micro_batches: int, log: RunLog) -> float | None:
    """Return the mean milliseconds of a single micro-batch, with the host call; None without --latency."""
    if not run.options.checkpoint.latency or not micro_batches:
        return None
    if run.options.dataset.synthetic_data:
        log.note("--latency is ignored: synthetic data have no input from the host to wait for")
        return None
    program.rewind()
    count = min(micro_batches, _LATENCY_MICRO_BATCHES)
    started = time.perf_counter()
    for i in range(count):
        program.step(i, i + 1)
    return 1000 * (time.perf_counter() - started) / count
