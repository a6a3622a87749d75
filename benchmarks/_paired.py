"""Ways of running, measured turn by turn: each in a process of its own, a round of one after a round of the other, so that
what else the machine does falls on both. Ratios are of neighbouring rounds; their median is quoted."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_SPINNING = 0.5  # seconds; OpenMP's threads wait for 0.2 before they sleep


@dataclass(frozen=True)
class Measured:
    """The measurements of one way of running."""

    speeds: tuple[float, ...]  # samples per second of each round
    peak: float  # MB of memory, at most
    built: float  # seconds until the program was ready
    alive: float = 0.0  # MB of tensors at once, at most, in one weight update; 0: not asked


def ours(words: Sequence[str], updates: int = 1, inference: bool = False) -> list[str]:
    """The command of a worker that carries out `updates` weight updates of train.py with these options in a round, or as
    many micro-batches of inference."""
    mode = ["--inference"] if inference else []
    return [sys.executable, str(Path(__file__).with_name("_worker.py")), *mode, str(updates), *words]


class Worker:
    """A process of its own that runs one round at a time."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """`environ`: what its environment has beyond this one's."""
        environ = {**os.environ, **(environ or {}), "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environ,
            cwd=ROOT,
        )
        self._command = command

    @cached_property
    def about(self) -> dict[str, Any]:
        """The worker's description of itself, sent as soon as it is ready."""
        return self._answer()

    @property
    def built(self) -> float:
        """Seconds that building the program took, as soon as it is done."""
        return self.about["built"]

    def round(self) -> float:
        """Run a round, when the threads of the worker before have left off spinning; return its samples per second."""
        time.sleep(_SPINNING)
        self.begin_round()
        return self.end_round()

    def begin_round(self) -> None:
        """Starts one, for several workers at once."""
        assert self.about
        self._ask("round")

    def end_round(self) -> float:
        """Return the round's samples per second."""
        return self._answer()["speed"]

    def alive(self) -> float:
        """MB of tensors that are alive at once, at most, in one weight update."""
        self._ask("alive")
        return self._answer()["alive"]

    def peak(self) -> float:
        """The process' peak memory in MB so far."""
        self._ask("peak")
        return self._answer()["peak"]

    def close(self) -> None:
        """No more rounds will come."""
        self._process.stdin.close()

    def end(self) -> None:
        """The process is gone then."""
        self.close()
        self._process.wait()

    def _ask(self, what: str) -> None:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"this worker ended: {' '.join(self._command)}")
        return json.loads(line)


def pair(one: Sequence[str], other: Sequence[str], rounds: int) -> tuple[Measured, Measured]:
    """Measure both ways, `rounds` rounds each after one that does not count."""
    workers = Worker(ours(one)), Worker(ours(other))
    for worker in workers:
        worker.round()
    speeds: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            speeds[which].append(workers[which].round())
    first, second = (Measured(tuple(s), w.peak(), w.built) for s, w in zip(speeds, workers))
    for worker in workers:
        worker.end()
    return first, second


def alone(words: Sequence[str], rounds: int = 2) -> Measured:
    """Measure one way by itself, for its memory."""
    worker = Worker(ours(words))
    speeds = tuple(worker.round() for _ in range(rounds))
    peak = worker.peak()  # before the recording, which takes memory too
    alive = worker.alive()
    worker.end()
    return Measured(speeds, peak, worker.built, alive)


def table(rows: Sequence[tuple[str, str, str, float | None]], words: Sequence[str], rounds: int) -> None:
    """Prints (name, one, other, least times as fast) for the rows whose name contains all the words."""
    print(machine())
    print(f"{'what':<60} {'times as fast':<22} {'img/s':>14} {'MB':>14}  at least")
    for name, one, other, least in rows:
        if not all(word in name for word in words):
            continue
        first, second = pair(one.split(), other.split(), rounds)
        speeds = f"{statistics.median(first.speeds):.1f} -> {statistics.median(second.speeds):.1f}"
        memory = f"{first.peak:.0f} -> {second.peak:.0f}"
        bound = "" if least is None else f"{least:.2f}"
        print(f"{name:<60} {spread(ratios(first, second)):<22} {speeds:>14} {memory:>14}  {bound}", flush=True)


def ratios(one: Measured, other: Measured) -> list[float]:
    """Return the speed of the second relative to the first, round by round."""
    return [b / a for a, b in zip(one.speeds, other.speeds)]


def spread(values: Sequence[float]) -> str:
    """Median, and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def machine() -> str:
    """Return a description of the machine that the figures are measured on."""
    names = [line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{len(os.sched_getaffinity(0))} cores of {names[0] if names else platform.machine()}, {memory:.0f} GiB, "
        f"Python {platform.python_version()}, TensorFlow {_tensorflow()}, load {load:.1f} before"
    )


def _tensorflow() -> str:
    for name in ("tensorflow-cpu", "tensorflow"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []
