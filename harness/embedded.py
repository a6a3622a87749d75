"""Inference with a program that is built once and kept in a file: its name, what it was made from, and its latencies."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import plugins
from harness.checkpoints import Checkpoint
from harness.options import OptionError
from harness.run import Run

if TYPE_CHECKING:
    import numpy as np

    from ipu_utils import Frozen

SUFFIX = ".frozen.pb"
MOST_BATCHES = 64  # micro-batches of pictures that are kept ready; longer runs go through them again
_TOLD = (("avg", None), ("50th percentile", 50.0), ("99th percentile", 99.0), ("99.9th percentile", 99.9), ("max", 100.0))


@dataclass(frozen=True)
class Batches:
    """Micro-batches in host memory: uint8 pictures [batch, side, side, 3], labels [batch], below 0 for filling."""

    pictures: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]

    @property
    def samples(self) -> int:
        """Real pictures of one pass."""
        return sum(int((labels >= 0).sum()) for labels in self.labels)


@dataclass(frozen=True)
class Served:
    """What the timed calls of all threads gave."""

    latencies: tuple[float, ...]  # seconds
    seconds: float  # from the first timed call to the end of the last one
    hits: int
    samples: int

    def latency(self, percentile: float) -> float:
        """Milliseconds within which so many per cent of the calls ended."""
        ordered = sorted(self.latencies)
        place = max(0, math.ceil(round(percentile / 100 * len(ordered), 6)) - 1)
        return 1000 * ordered[place]

    @property
    def mean(self) -> float:
        """Milliseconds of a call."""
        return 1000 * sum(self.latencies) / len(self.latencies)

    def told(self) -> str:
        """One line."""
        values = (self.mean if percentile is None else self.latency(percentile) for _, percentile in _TOLD)
        return "Latencies - " + ", ".join(f"{name}: {value:.3f} ms" for (name, _), value in zip(_TOLD, values))


def refuse(run: Run) -> None:
    """OptionError for what this program cannot be."""
    if run.options.dataset.synthetic_data:
        raise OptionError("--synthetic-data has no pictures on the host to be inferred; give --generated-data")
    if run.options.dataset.hostside_norm and not run.options.dataset.eight_bit_io:
        raise OptionError("--hostside-norm: the program takes bytes and normalises them itself; leave the option out")


def file_name(run: Run, checkpoint: Checkpoint) -> str:
    """After model, size, batch, checkpoint, and whether labels are at hand."""
    made = run.options.dataset.generated_data or run.options.dataset.synthetic_data
    size = getattr(run.options.model, "model_size", None) or ""
    parts = (
        f"model_{run.options.main.model}{size}", f"bs_{run.plan.micro_batch}", f"bps_{run.options.device.batches_per_step}",
        checkpoint.name.replace(os.sep, "_"), "nolabels" if made else "withlabels",
    )  # fmt: skip
    return "_".join(parts) + SUFFIX


def identity(run: Run, values: Mapping[str, np.ndarray] | None) -> str:
    """What the program is made from: network, pictures, precision, weights and the code that builds it."""
    digest = hashlib.sha256()
    for name in sorted(values or {}):
        digest.update(name.encode() + values[name].tobytes())
    for folder in ("Models", "emulator", "Datasets"):
        for source in sorted((plugins.ROOT / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    dataset = run.options.dataset
    described = {
        "model": run.options.main.model,
        **{f"model.{name}": value for name, value in vars(run.options.model).items()},
        "classes": run.source.spec.num_classes,
        "stable": [run.options.training.stable_norm, run.options.device.force_unstable_norm],
        "shape": shape(run),
        "pictures": [
            run.source.spec.name, run.source.spec.standardised, run.channels,
            dataset.normalise_input, dataset.symmetric_input,
        ],
        "precision": str(run.plan.precision),
        "seed": run.options.device.seed if values is None else None,  # a drawn one is as good as another
        "digest": digest.hexdigest(),
    }  # fmt: skip
    return json.dumps(described, sort_keys=True, default=str)


def shape(run: Run) -> tuple[int, int, int, int]:
    """Of one micro-batch of pictures as they are sent."""
    side = 32 if run.source.spec.standardised else run.image_size
    return (run.plan.micro_batch, side, side, 3)


def kept(path: Path, wanted: str) -> tuple[Frozen | None, str]:
    """The program in a file if it is the wanted one; otherwise why it is not used, or nothing if there is no file."""
    from ipu_utils import Frozen

    try:
        found = Frozen(path.read_bytes())
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"{path} cannot be used ({error}) and is built anew"
    if found.identity == wanted:
        return found, ""
    found.close()
    return None, f"{path} was built from other options, weights or code and is built anew"


def serve(program: Frozen, batches: Batches, calls: int, threads: int) -> Served:
    """`calls` timed calls of each thread, and an untimed one before them; each thread begins at another micro-batch."""
    ready = threading.Barrier(threads + 1)
    results: list[tuple[list[float], int, int]] = []
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            count = len(batches.pictures)
            first = thread * count // threads
            program.infer(batches.pictures[first])
            ready.wait()
            results.append(_timed(program, batches, [(first + k) % count for k in range(calls)]))
        except BaseException as error:
            failures.append(error)
            ready.abort()

    workers = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(threads)]
    for worker in workers:
        worker.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    if failures:
        raise next((error for error in failures if not isinstance(error, threading.BrokenBarrierError)), failures[0])
    latencies = tuple(itertools.chain.from_iterable(found for found, _, _ in results))
    return Served(latencies, seconds, sum(hits for _, hits, _ in results), sum(samples for _, _, samples in results))


def _timed(program: Frozen, batches: Batches, order: Sequence[int]) -> tuple[list[float], int, int]:
    latencies, hits, samples = [], 0, 0
    for k in order:
        started = time.perf_counter()
        _, classes = program.infer(batches.pictures[k])
        latencies.append(time.perf_counter() - started)
        real = batches.labels[k] >= 0
        hits += int((classes == batches.labels[k])[real].sum())
        samples += int(real.sum())
    return latencies, hits, samples


def row(run: Run, checkpoint: Checkpoint, served: Served, epoch: float) -> dict[str, Any]:
    """As a row of validation.csv; pictures without true labels have accuracy -1."""
    made = run.options.dataset.generated_data or run.options.dataset.synthetic_data
    accuracy = -1.0 if made else 100 * served.hits / max(served.samples, 1)
    return {
        "name": checkpoint.name,
        "iteration": checkpoint.iteration,
        "epoch": epoch,
        "val_acc": accuracy,
        "raw_acc": accuracy,
        "val_time": served.seconds,
        "val_size": served.samples,
        "img_per_sec": served.samples / served.seconds,
        "latency": served.mean,
        "top5_acc": "",
        "loss": "",
    }
