"""Two ways of running, measured turn by turn: each in a process of its own, a round of one after a round of the other,
so that what else the machine does falls on both. Ratios are of neighbouring rounds; their median is quoted."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Measured:
    """What one way of running showed: work per second in each round, memory in MB, seconds until it was ready."""

    speeds: tuple[float, ...]
    before: float
    peak: float
    built: float


class Worker:
    """A process of its own that runs one round at a time."""

    def __init__(self, words: list[str]) -> None:
        environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__).with_name("_worker.py")), *words]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT
        )
        self.ready = self._answer()

    def round(self) -> float:
        """One round; its speed."""
        self._ask("round")
        return self._answer()["speed"]

    def end(self) -> float:
        """Its peak memory in MB; the process is gone then."""
        self._ask("end")
        peak = self._answer()["peak"]
        self._process.wait()
        return peak

    def _ask(self, what: str) -> None:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker ended; its error stands above")
        return json.loads(line)


def pair(one: list[str], other: list[str], rounds: int) -> tuple[Measured, Measured]:
    """Both ways, `rounds` rounds each after one that does not count."""
    workers = Worker(one), Worker(other)
    for worker in workers:
        worker.round()
    speeds: tuple[list[float], list[float]] = ([], [])
    for i in range(rounds):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            speeds[which].append(workers[which].round())
    return tuple(Measured(tuple(s), w.ready["memory"], w.end(), w.ready["built"]) for s, w in zip(speeds, workers))


def ratios(one: Measured, other: Measured) -> list[float]:
    """other / one, round by round."""
    return [b / a for a, b in zip(one.speeds, other.speeds)]


def spread(values: list[float]) -> str:
    """Median, and the range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def machine() -> str:
    """What the figures were measured on."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    from importlib.metadata import version

    tensorflow = next(version(name) for name in ("tensorflow-cpu", "tensorflow") if _installed(name))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{len(os.sched_getaffinity(0))} cores of {model}, {memory:.0f} GiB, Python {platform.python_version()}, "
        f"TensorFlow {tensorflow}, load before {load}"
    )


def serve(run: Callable[[], float], ready: dict[str, float]) -> None:
    """The worker's side: `run` is one round and gives the work done in it."""
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
            return
        started = time.perf_counter()
        work = run()
        print(json.dumps({"speed": work / (time.perf_counter() - started)}), flush=True)


def resident() -> float:
    """This process' memory now, in MB."""
    return next(int(line.split()[1]) / 1024 for line in _lines("/proc/self/status") if line.startswith("VmRSS"))


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def _installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
