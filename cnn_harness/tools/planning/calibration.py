"""Fit the constants of the planner to measured rates, and read a user's own rates for `cnn plan --calibrate`.

The fit finds the most probable constants by bounded Gauss-Newton steps on logarithms. Rates are assumed to be known to
5 %, and constants to the factors of `constants.py`.

first: {rate: 2470, options: --model resnet --model-size 50 --dataset imagenet --micro-batch-size 256}
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

import numpy as np

from cnn_harness.base.errors import OptionError, WrongInput, parts
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.emulator.cost_model.constants import BOUNDS, FACTORS, NAMES, PRIOR, Constants
from cnn_harness.emulator.cost_model.kernels import SegmentCosts
from cnn_harness.emulator.cost_model.prediction import check_tiles, predict
from cnn_harness.emulator.cost_model.systems import SYSTEMS, System, smallest_holding
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.configs import ConfigFile
from cnn_harness.tools.planning.plan_options import check_plans, run_of
from cnn_harness.tools.planning.system_file import quantity, text

RATE_ERROR = 0.05
STEPS = 30
LEAST_ROWS = 3
RATES = (1e-3, 1e12)  # images/s
_KEYS = ("rate", "options")


class Case:
    """A measured rate in images/s, with its workload and system. The work of its operations is counted once, for all
    constants."""

    def __init__(self, name: str, rate: float, workload: Workload, system: System) -> None:
        self.name, self.rate, self.workload, self.system = name, rate, workload, system
        self._costs = SegmentCosts(workload, system.device, PRIOR)

    def error(self, values: Constants) -> float:
        """Return the predicted rate divided by the measured rate, minus 1."""
        costs = self._costs.with_constants(values)
        return predict(self.workload, self.system, values, costs).timing.images_per_second / self.rate - 1


def fit(cases: Sequence[Case], start: Constants = PRIOR, prior: Constants = PRIOR) -> Constants:
    """Return the most probable constants for these cases."""
    x = np.log([getattr(start, name) for name in NAMES])
    expected = np.log([getattr(prior, name) for name in NAMES])
    widths = np.log([FACTORS[name] for name in NAMES])
    low, high = np.log(np.array([BOUNDS[name] for name in NAMES]).T)

    def residuals(x: np.ndarray) -> np.ndarray:
        values = Constants(**dict(zip(NAMES, np.exp(x))))
        rates = [math.log1p(case.error(values)) / RATE_ERROR for case in cases]
        return np.array([*rates, *(x - expected) / widths])

    damping, now = 1e-2, residuals(x)
    for _ in range(STEPS):
        slopes = np.stack([(residuals(x + 1e-4 * unit) - now) / 1e-4 for unit in np.eye(len(x))], axis=1)
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(x)), -slopes.T @ now)
        moved = np.clip(x + step, low, high)
        then = residuals(moved)
        if then @ then < now @ now:
            done = now @ now - then @ then < 1e-6
            x, now, damping = moved, then, damping / 3
            if done:
                break
        else:
            damping *= 10
    return Constants(**{name: float(f"{value:.4g}") for name, value in zip(NAMES, np.exp(x))})


def read(path: str, system: System) -> list[Case]:
    """Return the measured rates of a file. Raise OptionError with file and line for wrong values."""
    file, cases = ConfigFile(path), []
    for name in file.names:
        entries = file.block(name)
        for key, entry in entries.items():
            if key not in _KEYS:
                raise OptionError(
                    f"{entry.where}: unknown key '{short(key)}'{did_you_mean(key, _KEYS)}; give rate and options"
                )
        if missing := [key for key in _KEYS if key not in entries]:
            where = next((entry.where for entry in entries.values()), path)
            raise OptionError(
                f"{where}: '{short(name)}' has no {missing[0]}; give a rate in images/s and options of train.py"
            )
        rate, options = (text(key, entries[key]) for key in _KEYS)
        number, where = quantity(rate, ""), entries["options"].where
        if number is None or not RATES[0] <= number <= RATES[1]:
            low, high = RATES
            raise OptionError(
                f"{entries['rate'].where}: rate is '{short(rate)}' but must be a number of images/s from {low:g} to {high:g}"
            )
        try:
            call = Call.of_words(shlex.split(options), "train")
            check_plans(call)
            work = run_of(call).run.workload()
            check_tiles(work, smallest_holding(system, work.plan.ipus))
        except (WrongInput, ValueError) as error:
            raise OptionError(*parts(error, f"{where}: ")) from None
        cases.append(Case(name, number, work, system))
    if len(cases) < LEAST_ROWS:
        count = f"{len(cases)} measured rate{'s' * (len(cases) != 1)}"
        raise OptionError(f"{path}: {count}; give {LEAST_ROWS} or more, from different trainings")
    return cases


def report(path: str, system: System) -> str:
    """Fit a system's constants to the rates of a file, and return the errors and a block for the system's file."""
    lines, fitted = compared(read(path, system), system)
    shipped = SYSTEMS.get(system.name) == system
    lines += ["", "# for a file that you give as --system", f"{system.name}-calibrated:", f"  like: {system.name}"] * shipped
    lines += ["", f"# add these lines to {system.name} in {system.source}"] * (not shipped)
    changed = [name for name in NAMES if getattr(fitted, name) != getattr(system.constants, name)]
    return "\n".join([*lines, *(f"  {name}: {getattr(fitted, name):g}" for name in changed)])


def compared(cases: Sequence[Case], system: System) -> tuple[list[str], Constants]:
    """Fit a system's constants to measured rates. Return lines with the errors, and the constants."""
    fitted = fit(cases, system.constants, system.constants)
    others = [[other for other in cases if other is not case] for case in cases]
    left_out = [case.error(fit(rest, system.constants, system.constants)) for case, rest in zip(cases, others)]
    width = max(27, *(len(case.name) for case in cases))
    lines = [f"{'error of the predicted rate':{width}s} {'images/s':>9s} {'before':>8s} {'fitted':>8s} {'left out':>8s}"]
    for case, left in zip(cases, left_out):
        errors = " ".join(f"{100 * error:+7.1f}%" for error in (case.error(system.constants), case.error(fitted), left))
        lines.append(f"{case.name:{width}s} {case.rate:9,.0f} {errors}")
    worst, usual = max(map(abs, left_out)), sorted(map(abs, left_out))[len(left_out) // 2]
    lines.append(
        f"A training that is left out of the fit is predicted with an error of {100 * usual:.1f} % in the median and "
        f"{100 * worst:.1f} % at most. Expect this for other trainings like these."
    )
    return lines, fitted
