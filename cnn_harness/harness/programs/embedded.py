"""Run inference with a frozen program: a network with fixed weights that is built once and stored in a file."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base import bounds
from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import input_files
from cnn_harness.emulator.native import library
from cnn_harness.harness.checkpoints import write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.distributed.consistency import code_version
from cnn_harness.harness.run.run import Run

if TYPE_CHECKING:
    import numpy as np

    from cnn_harness.ipu_utils import FrozenProgram

SUFFIX = ".frozen.pb"
MAX_BYTES = 2**31 - 1  # A larger program file cannot be read, because protobuf reads no larger message.
MAX_BATCHES = 64  # At most this many micro-batches of images are kept in memory. Longer runs repeat these micro-batches.
# These names appear in the log, where other programs may parse them.
_SHOWN = (("", None), ("99th percentile", 99.0), ("99.9th percentile", 99.9), ("max", 100.0))


@dataclass(frozen=True)
class Batches:
    """Micro-batches in host memory: uint8 images [batch, side, side, 3] and labels [batch].

    The label is negative if an image only fills the last micro-batch.
    """

    images: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Served:
    """The results of the timed calls of all threads."""

    latencies: tuple[float, ...]  # The latency of each call in seconds.
    seconds: float  # The time from the start of the first timed call to the end of the last one.
    inferred: int  # The number of inferred images, including repetitions.
    correct: int  # The number of different images whose class was predicted correctly.
    samples: int  # The number of different images.
    micro_batches: tuple[int, ...] = ()  # The indices of the inferred micro-batches.

    def latency(self, percentile: float) -> float:
        """Return a percentile of the latencies of the calls, in milliseconds."""
        ordered = sorted(self.latencies)
        place = max(0, math.ceil(round(percentile / 100 * len(ordered), 6)) - 1)
        return 1000 * ordered[place]

    @property
    def mean(self) -> float:
        """Mean latency of a call in milliseconds."""
        return 1000 * sum(self.latencies) / len(self.latencies)

    def lines(self, words: str) -> list[str]:
        """Return log lines with the mean and some percentiles of the latency. `words` is the name of the mean, which differs
        by release."""
        values = (self.mean if percentile is None else self.latency(percentile) for _, percentile in _SHOWN)
        shown = ", ".join(f"{name or words}: {value:.3f} ms" for (name, _), value in zip(_SHOWN, values))
        return [shown, f"Median latency: {self.latency(50.0):.3f} ms"]


def check(run: Run) -> None:
    """Raise OptionError for options that a frozen program does not support."""
    device = run.options.device
    refused = {
        "--profile": device.profile, "--gc-profile": device.gc_profile not in (None, "NO_PROFILE"),
        "--profile-compilation": device.profile_compilation,
        "--distributed": run.options.training.distributed,
    }  # fmt: skip
    for flag in (flag for flag, on in refused.items() if on):
        raise OptionError(f"{flag} works only in training and validation; leave the option out")
    if run.options.dataset.synthetic_data:
        raise OptionError("--synthetic-data generates images on the device, not on the host; give --generated-data instead")


def file_name(run: Run, checkpoint: Checkpoint) -> str:
    """Return the name of the program's file, which contains the model, its size, the batch size and the checkpoint."""
    size = getattr(run.options.model, "model_size", None) or ""
    parts = (
        f"model_{run.options.main.model}{size}", f"bs_{run.validation_batch}", f"bps_{run.options.device.batches_per_step}",
        checkpoint.name.replace(os.sep, "_"), "withlabels" if labelled(run) else "nolabels",
    )  # fmt: skip
    return "_".join(parts) + SUFFIX


def identity(run: Run, values: Mapping[str, np.ndarray] | None) -> str:
    """Return everything on which the program depends, as JSON: network, images, precision, weights and code."""
    dataset = run.options.dataset
    described = {
        "model": run.options.main.model,
        **{f"model.{name}": value for name, value in vars(run.options.model).items()},
        "classes": run.data_source.spec.num_classes,
        "stable": [run.options.training.stable_norm, run.options.device.force_unstable_norm],
        "shape": shape(run),
        "side": run.image_size,
        "code": code_version(),
        "kernels": library.identity(),
        "pictures": [
            run.data_source.spec.name, run.data_source.spec.standardised, run.channels,
            dataset.normalise_input, dataset.symmetric_input, dataset.image_mean, dataset.image_std,
        ],
        "precision": repr(run.plan.precision),
        "seed": run.options.device.seed if values is None else None,  # The seed matters only for random weights.
        "weights": write.fingerprint(values or {}),
    }  # fmt: skip
    return json.dumps(described, sort_keys=True, default=str)


def shape(run: Run) -> tuple[int, int, int, int]:
    """Return the shape of a micro-batch of images that is sent to the program."""
    side = 32 if run.data_source.spec.standardised else run.image_size
    return (run.validation_batch, side, side, 3)


def load(path: Path, identity: str) -> tuple[FrozenProgram | None, str]:
    """Return the program in a file, and "".

    If the program has another identity or cannot be read, return None and the reason to rebuild it. If the file does not
    exist, return None and "".
    """
    from cnn_harness.ipu_utils import FrozenProgram

    try:
        program = FrozenProgram(input_files.content(path, MAX_BYTES))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"rebuilding {path}, because it cannot be read: {bounds.reason(error)}"
    if program.identity == identity:
        return program, ""
    program.close()
    return None, f"rebuilding {path}, because options, weights or code have changed"


@dataclass(frozen=True)
class _Thread:
    """The results of one thread."""

    started: float
    ended: float
    latencies: tuple[float, ...]
    correct: Mapping[int, int]  # The number of correctly predicted images by micro-batch.
    order: Sequence[int]  # The micro-batches in the order of the calls.


def serve(program: FrozenProgram, batches: Batches, calls: int, threads: int) -> Served:
    """Make one untimed and then `calls` timed calls in each thread. Return the results of the timed calls.

    The threads start at different micro-batches.
    """
    ready = threading.Barrier(threads)
    results: list[_Thread] = []
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            count = len(batches.images)
            first = thread * count // threads
            program.infer(batches.images[first])
            ready.wait()
            results.append(_timed(program, batches, [(first + k) % count for k in range(calls)]))
        except BaseException as error:
            failures.append(error)
            ready.abort()

    workers = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise next((error for error in failures if not isinstance(error, threading.BrokenBarrierError)), failures[0])
    real = [int((labels >= 0).sum()) for labels in batches.labels]
    correct = {k: count for result in results for k, count in result.correct.items()}
    return Served(
        latencies=tuple(latency for result in results for latency in result.latencies),
        seconds=max(result.ended for result in results) - min(result.started for result in results),
        inferred=sum(real[k] for result in results for k in result.order),
        correct=sum(correct.values()),
        samples=sum(real[k] for k in correct),
        micro_batches=tuple(sorted(correct)),
    )


def _timed(program: FrozenProgram, batches: Batches, order: Sequence[int]) -> _Thread:
    latencies, correct = [], {}
    start = time.perf_counter()
    for k in order:
        started = time.perf_counter()
        _, classes = program.infer(batches.images[k])
        latencies.append(time.perf_counter() - started)
        if k not in correct:
            correct[k] = int(((classes == batches.labels[k]) & (batches.labels[k] >= 0)).sum())
    return _Thread(start, time.perf_counter(), tuple(latencies), correct, order)


def labelled(run: Run) -> bool:
    """Return whether the data have real labels. Random data have none."""
    return not run.options.dataset.random_data


def scores(program: FrozenProgram, batches: Batches, micro_batches: Sequence[int]) -> tuple[float, float]:
    """Return the top-5 accuracy in per cent and the mean loss over some micro-batches. Images that only fill the last
    micro-batch are excluded."""
    import numpy as np

    top5, loss, samples = 0, 0.0, 0
    for k in micro_batches:
        real = batches.labels[k] >= 0
        logits, labels = program.logits(batches.images[k])[real].astype(np.float64), batches.labels[k][real]
        own = np.take_along_axis(logits, labels[:, None], axis=1)
        # If two logits are equal, the one with the lower index counts as larger, as in validation.
        before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < labels[:, None]))
        top5 += int((before.sum(axis=1) < 5).sum())
        largest = logits.max(axis=1, keepdims=True)
        loss += float((np.log(np.exp(logits - largest).sum(axis=1, keepdims=True)) + largest - own).sum())
        samples += len(labels)
    return 100 * top5 / max(samples, 1), loss / max(samples, 1)
