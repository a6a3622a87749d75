"""Measure this computer as a system for the planner: its rates, and how fast it trains six networks.

The computer counts as one chip, with all its cores. Other programs make it slower, so the fastest round of each measurement
counts.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from cnn_harness.base import host_limits
from cnn_harness.base.process import tf_runtime
from cnn_harness.emulator.cost_model import systems
from cnn_harness.emulator.cost_model.constants import PRIOR
from cnn_harness.harness.options.call import Call
from cnn_harness.tools.planning import calibration
from cnn_harness.tools.planning.plan_options import run_of

NAME = "this-computer"
SECONDS, ROUNDS = 4.0, 10  # a measurement takes at least this time, and this number of rounds.
SHARED = "--precision 32.32 --generated-data"
TRAININGS = (
    "--dataset fashion-mnist --model-size 14 --batch-size 64",
    "--dataset cifar-10 --model-size 20 --micro-batch-size 8",
    "--dataset imagenet --image-size 64 --model-size 18 --micro-batch-size 16",
    "--dataset imagenet --image-size 64 --model-size 50 --micro-batch-size 8",
    "--dataset imagenet --image-size 64 --model efficientnet --model-size B0 --micro-batch-size 8",
    "--dataset imagenet --image-size 96 --model squeezenet --micro-batch-size 16",
)
_SIDE, _COPIED = 512, 2**26  # the side of a matrix that caches hold, and the bytes of a copy that they do not hold


def measure() -> tuple[str, str]:
    """Return the errors of the fit to this computer's rates, and a file with the computer as a system."""
    matrix, source = np.ones((_SIDE, _SIDE), np.float32), np.ones(_COPIED, np.uint8)
    target, result = np.empty_like(source), np.empty_like(matrix)
    arithmetic = 2 * _SIDE**3 / _fastest(lambda: np.matmul(matrix, matrix, out=result))
    copied = 2 * _COPIED / _fastest(lambda: np.copyto(target, source))
    facts = {"memory": host_limits.hard_bytes() or 0, "fp16_rate": arithmetic, "fp32_rate": arithmetic, "bandwidth": copied}
    facts = {name: float(f"{value:.4g}") for name, value in facts.items()}  # as in the file
    system = systems.read(NAME, {"kind": "CPU", "devices": 1, **facts, **asdict(PRIOR)})
    cases = [_case(words, system) for words in TRAININGS]
    errors, fitted = calibration.compared(cases, system)
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > cores + 1:  # this measurement alone is a load of `cores`
        errors.append(
            f"warning: the load was {load:.1f} on {cores} cores; other programs ran, so measure again without them"
        )
    rows = {"kind": "CPU", "devices": "1"}
    rows |= {name: f"{value / 1e9:.4g} G{systems.KEYS[name]}" for name, value in facts.items()}
    rows |= {name: f"{value:g}" for name, value in asdict(fitted).items()}
    return "\n".join(errors), "".join([f"{NAME}:\n", *(f"  {name}: {value}\n" for name, value in rows.items())])


def _case(words: str, system: systems.System) -> calibration.Case:
    """Return a training with its measured rate."""
    tf_runtime.import_tensorflow()
    from cnn_harness.harness.programs.build import training_program

    run = run_of(Call.of_words(shlex.split(f"{SHARED} {words}"), "train")).run
    with training_program(run, 1, 0) as program:
        program.compile()
        seconds = _fastest(lambda: program.step([1e-4]))
    return calibration.Case(words, run.plan.global_batch / seconds, run.workload(), system)


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of several calls, without the first."""
    work()
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < ROUNDS or time.perf_counter() < end:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)
