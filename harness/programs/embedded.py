"""Inference with a frozen program, which is built once and stored in a file: file name, identity, and timed calls."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from base import bounds
from base.errors import OptionError
from base.storage import input_files
from emulator.native import library
from harness.checkpoints.checkpoint import Checkpoint
from harness.processes.consistency import code_version
from harness.run.run import Run

if TYPE_CHECKING:
    import numpy as np

    from ipu_utils import FrozenProgram

SUFFIX = ".frozen.pb"
MAX_BYTES = 2**31 - 1  # of a program file: the largest message that protobuf reads
MAX_BATCHES = 64  # micro-batches of images kept in memory; longer runs repeat them
_SHOWN = (("", None), ("99th percentile", 99.0), ("99.9th percentile", 99.9), ("max", 100.0))  # other programs parse these


@dataclass(frozen=True)
class Batches:
    """Micro-batches in host memory: uint8 images [batch, side, side, 3] and labels [batch], negative for filling."""

    images: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Served:
    """The results of the timed calls of all threads."""

    latencies: tuple[float, ...]  # Seconds.
    seconds: float  # From the first timed call to the end of the last one.
    inferred: int  # Number of inferred images, including repetitions.
    correct: int  # Number of correct ones among `samples`.
    samples: int  # Number of different images inferred.
    micro_batches: tuple[int, ...] = ()  # Indices of the micro-batches with these samples.

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
        """Return log lines: the mean, labelled with a release's `words`, and some percentiles."""
        values = (self.mean if percentile is None else self.latency(percentile) for _, percentile in _SHOWN)
        shown = ", ".join(f"{name or words}: {value:.3f} ms" for (name, _), value in zip(_SHOWN, values))
        return [shown, f"Median latency: {self.latency(50.0):.3f} ms"]


def check(run: Run) -> None:
    """OptionError for options that a frozen program does not support."""
    device = run.options.device
    refused = {
        "--profile": device.profile, "--gc-profile": device.gc_profile not in (None, "NO_PROFILE"),
        "--profile-compilation": device.profile_compilation,
        "--distributed": run.options.training.distributed,
    }  # fmt: skip
    for flag in (flag for flag, on in refused.items() if on):
        raise OptionError(f"{flag} is for training and validation; leave it out")
    if run.options.dataset.synthetic_data:
        raise OptionError("--synthetic-data provides no images on the host; give --generated-data")


def file_name(run: Run, checkpoint: Checkpoint) -> str:
    """Return the program's file name, from model, size, batch, checkpoint and whether labels are available."""
    size = getattr(run.options.model, "model_size", None) or ""
    parts = (
        f"model_{run.options.main.model}{size}", f"bs_{run.validation_batch}", f"bps_{run.options.device.batches_per_step}",
        checkpoint.name.replace(os.sep, "_"), "withlabels" if labelled(run) else "nolabels",
    )  # fmt: skip
    return "_".join(parts) + SUFFIX


def identity(run: Run, values: Mapping[str, np.ndarray] | None) -> str:
    """Return everything that the program depends on, as JSON: network, images, precision, weights and code."""
    digest = hashlib.sha256()
    for name in sorted(values or {}):
        digest.update(name.encode() + values[name].tobytes())
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
        "seed": run.options.device.seed if values is None else None,  # a random seed does not identify a program
        "weights": digest.hexdigest(),
    }  # fmt: skip
    return json.dumps(described, sort_keys=True, default=str)


def shape(run: Run) -> tuple[int, int, int, int]:
    """Return the shape of a micro-batch of images as they are sent to the program."""
    side = 32 if run.data_source.spec.standardised else run.image_size
    return (run.validation_batch, side, side, 3)


def load(path: Path, identity: str) -> tuple[FrozenProgram | None, str]:
    """Return the program in a file if it has this identity. Otherwise return None and the reason, "" if there is no file."""
    from ipu_utils import FrozenProgram

    try:
        program = FrozenProgram(input_files.content(path, MAX_BYTES))
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"cannot use {path}, rebuilding it: {bounds.reason(error)}"
    if program.identity == identity:
        return program, ""
    program.close()
    return None, f"rebuilding {path}, because options, weights or code have changed"


@dataclass(frozen=True)
class _Thread:
    """The results of one thread: times, and the micro-batches in their order."""

    started: float
    ended: float
    latencies: tuple[float, ...]
    correct: Mapping[int, int]  # number of correct images by micro-batch
    order: Sequence[int]


def serve(program: FrozenProgram, batches: Batches, calls: int, threads: int) -> Served:
    """Run `calls` timed calls in each thread, after an untimed one. Each thread starts at a different micro-batch."""
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
    """Return whether the labels are real, not random."""
    return not run.options.dataset.random_data


def scores(program: FrozenProgram, batches: Batches, micro_batches: Sequence[int]) -> tuple[float, float]:
    """Return the top-5 accuracy in per cent and the mean loss over some micro-batches, filling excluded. Not timed."""
    import numpy as np

    top5, loss, samples = 0, 0.0, 0
    for k in micro_batches:
        real = batches.labels[k] >= 0
        logits, labels = program.logits(batches.images[k])[real].astype(np.float64), batches.labels[k][real]
        own = np.take_along_axis(logits, labels[:, None], axis=1)
        # if logits are equal, the first one counts as larger, as in validation
        before = (logits > own) | ((logits == own) & (np.arange(logits.shape[1]) < labels[:, None]))
        top5 += int((before.sum(axis=1) < 5).sum())
        largest = logits.max(axis=1, keepdims=True)
        loss += float((np.log(np.exp(logits - largest).sum(axis=1, keepdims=True)) + largest - own).sum())
        samples += len(labels)
    return 100 * top5 / max(samples, 1), loss / max(samples, 1)
