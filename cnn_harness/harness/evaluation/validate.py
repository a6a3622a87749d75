"""Validate a checkpoint: measure accuracy, loss and speed on the whole validation set for a row of validation.csv."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import DataError
from cnn_harness.base.process.signals import Signals
from cnn_harness.harness.checkpoints import compatibility
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.reports import build_time, profile
from cnn_harness.harness.reports.build_time import Compilation
from cnn_harness.harness.run.length import epoch_images
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog

if TYPE_CHECKING:
    import numpy as np

    from cnn_harness.ipu_utils import InferenceProgram

RANDOM_WEIGHTS = Checkpoint("random", -1)
_PIECES = 20  # The progress bar moves this number of times in a validation.
_LATENCY_MICRO_BATCHES = 100  # --latency averages over at most this number of micro-batches.


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
    """Return the row of validation.csv for a checkpoint. If `values` is None, the weights are random.

    The instances (processes) of `team` divide the images among them. The epoch of the checkpoint is computed from
    `global_batch`, the global batch of the training. Raise StopRequest if one of several instances received a signal.
    """
    if values is not None:
        program.load(compatibility.model_tensors(run, values, checkpoint))
    program.rewind()
    micro_batches = local_micro_batches(run, team.instance, team.size)
    most = local_micro_batches(run, 0, team.size)  # Instance 0 has the largest number.
    totals, seconds = _accumulated_metrics(program, micro_batches, most, log, partial(team.stop_together, signals))
    totals, seconds = team.all_reduce_sum(totals), team.all_reduce_max(seconds)
    samples = totals["samples"]
    if not samples:
        raise DataError(
            f"none of the {run.data_source.spec.validation_images} validation images can be read. Replace them, or give "
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
    """Return a row of validation.csv. `accuracy` and `top5` are in per cent, `throughput` is in images per second, and
    `latency` is in milliseconds per micro-batch. Without labels, accuracy, top-5 accuracy and loss are -1."""
    updates, trained = checkpoint.updates, run.data_source.spec.train_images
    epoch = epoch_images(trained, global_batch, run.options.training.whole_epochs)
    return {
        "name": checkpoint.name,
        "iteration": updates,
        "epoch": updates * global_batch / epoch if updates >= 0 else -1,
        "val_acc": accuracy,
        "raw_acc": accuracy,
        "val_time": seconds,
        "val_size": images,
        "img_per_sec": throughput,
        "latency": latency,
        "top5_acc": top5,
        "loss": loss,
    }


def local_micro_batches(run: Run, instance: int = 0, instances: int = 1) -> int:
    """Return the number of validation micro-batches that one of several instances processes."""
    total = -(-run.data_source.spec.validation_images // run.validation_batch)
    return len(range(instance, total, instances))


def training_global_batch(run: Run, recorded: Mapping[str, Any]) -> int:
    """Return the global batch of the training: the value of --global-batch-size, otherwise the recorded value, otherwise the
    planned value."""
    return run.options.training.global_batch_size or recorded.get("total_batch_size") or run.plan.global_batch


def record_profile(run: Run, program: InferenceProgram, request: profile.ProfileRequest | None, log: RunLog) -> None:
    """Profile the compilation and one micro-batch, if the options request it."""
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
    for attempt in (program.step, program.profile):  # The first micro-batch warms up caches.
        program.rewind()
        operations = attempt(0, 1)
    log.note(profile.write_operations(request, f"{run.name}, one micro-batch of validation", operations))


def _accumulated_metrics(
    program: InferenceProgram, micro_batches: int, most: int, log: RunLog, between: Callable[[], None]
) -> tuple[dict[str, float], float]:
    """Return the sum of each metric over the micro-batches of this instance, and the seconds on the device.

    The micro-batches are divided into pieces, and `between` is called after each piece. `most` is the largest number of
    micro-batches of any instance, so that all instances call `between` the same number of times.
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
    """Return the mean time of a micro-batch in milliseconds, including the call from the host. None without --latency."""
    if not run.options.checkpoint.latency or not micro_batches:
        return None
    if run.options.dataset.synthetic_data:
        log.note("--latency is ignored, because synthetic data need no input from the host")
        return None
    program.rewind()
    count = min(micro_batches, _LATENCY_MICRO_BATCHES)
    started = time.perf_counter()
    for i in range(count):
        program.step(i, i + 1)
    return 1000 * (time.perf_counter() - started) / count
