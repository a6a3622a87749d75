"""Compare the speeds of several ways to train. The ways take turns, so that other load on the machine affects all alike.

Each way has its own process, and the processes run their rounds one after another. Quote the median of the speed ratios of
neighbouring rounds."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cnn_harness.base.process import command_line
from cnn_harness.emulator.native import library

ROOT = Path(__file__).resolve().parent.parent
_SPINNING = 0.5  # pause between rounds in seconds, because OpenMP threads spin for 0.2 s before they sleep


def ours(words: Sequence[str], updates: int = 1, inference: bool = False) -> list[str]:
    """Return the command of a worker that runs this harness with these options of train.py. Each round has `updates` weight
    updates, or `updates` micro-batches of inference."""
    mode = ["--inference"] if inference else []
    return [sys.executable, "-m", "bench._worker", *mode, str(updates), *words]


class Worker:
    """A process that runs one round at a time."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
        """Start the process with these additional environment variables."""
        environ = {**os.environ, **(environ or {}), "TF_CPP_MIN_LOG_LEVEL": "3"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, env=environ, cwd=ROOT, **pipes)
        self._command = command

    @cached_property
    def about(self) -> dict[str, Any]:
        """Wait until the worker is ready, and return the values that it then sends, such as its version."""
        return self._answer()

    def round(self) -> float:
        """Wait until the threads of the previous worker sleep, run a round, and return its images per second."""
        time.sleep(_SPINNING)
        self.begin_round()
        return self.end_round()

    def begin_round(self) -> None:
        """Start a round without waiting for its end, so that several workers can run at once."""
        assert self.about
        self._ask("round")

    def end_round(self) -> float:
        """Wait for the end of the round, and return its images per second."""
        return self._answer()["speed"]

    def alive(self) -> float:
        """Return the peak MB of live tensors in one weight update."""
        self._ask("alive")
        return self._answer()["alive"]

    def peak(self) -> float:
        """Return the peak memory of the process so far, in MB."""
        self._ask("peak")
        return self._answer()["peak"]

    def close(self) -> None:
        """Close the worker's standard input, so that the worker ends."""
        self._process.stdin.close()

    def end(self) -> None:
        """End the process and wait for it."""
        self.close()
        self._process.wait()

    def _ask(self, what: str) -> None:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"A worker process ended unexpectedly. Run it to see its error: {' '.join(self._command)}")
        return json.loads(line)


class Instances:
    """Workers that train one network together, one worker for each address."""

    def __init__(self, words: Sequence[str], updates: int, addresses: Sequence[str], prefixes: Sequence[Sequence[str]] = ()):
        """Start one worker for each address. `prefixes`, one for each worker, are put before the commands, such as
        `taskset`."""
        command = ours([*words, "--distributed"], updates)
        self._workers = [
            Worker(
                [*(prefixes[k] if prefixes else ()), *command],
                {"TF_CONFIG": json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": k}})},
            )
            for k in range(len(addresses))
        ]

    def round(self) -> float:
        """Run a round of all workers at once. Return the images per second of the slowest worker."""
        for worker in self._workers:
            worker.begin_round()
        return min(worker.end_round() for worker in self._workers)

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            worker.end()


def turns(ways: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Call each way once in each of `rounds` rounds, and return the results of each way. The order alternates between
    rounds."""
    found: list[list[float]] = [[] for _ in ways]
    for i in range(rounds):
        for which in range(len(ways))[:: 1 if i % 2 == 0 else -1]:
            found[which].append(ways[which]())
    return found


def spread(values: Sequence[float]) -> str:
    """Return the median and the range as text."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def arguments(description: str, words: bool = False, **counts: int) -> argparse.Namespace:
    """Read the command line of a benchmark and print the machine. `counts` are numeric options with their defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if words:
        parser.add_argument("words", nargs="*", help="measure only rows whose name contains all these words")
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=command_line.int_between(1), default=default)
    asked = parser.parse_args()
    print(machine(), flush=True)
    return asked


def machine() -> str:
    """Return a description of this machine and of its software."""
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in _lines("/proc/cpuinfo"))}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = os.getloadavg()[0]
    return (
        f"{len(os.sched_getaffinity(0))} cores of {facts.get('model name', platform.machine())}{_zen(facts)}{_vectors()}, "
        f"{memory:.0f} GiB, "
        f"Python {platform.python_version()}, TensorFlow {_tensorflow()}, load {load:.1f} before"
    )


def _zen(facts: Mapping[str, str]) -> str:
    """Return the generation of an AMD processor. Zen 4 and 5 have AVX-512, but only Zen 5 has twice the rate of AVX2."""
    family, model = int(facts.get("cpu family", "0")), int(facts.get("model", "0"))
    is_zen_4 = model >> 4 in (1, 6, 7, 10)
    return {25: f" (Zen {3 + is_zen_4})", 26: " (Zen 5)"}.get(family, "") if "AMD" in facts.get("model name", "") else ""


def _vectors() -> str:
    known = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
    return next((f" with {name}" for feature, name in known.items() if feature in library.features().split()), "")


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
