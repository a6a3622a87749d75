"""Fit the planner's constants to published rates, and draw the remaining errors.

cnn fit-planner [--write] [--svg FILE] [--scaling FILE]
cnn fit-planner --memory [--write]

`ROWS` lists trainings whose rate and layout were published. The fit finds the most probable constants by bounded
Gauss-Newton steps on logarithms. The fit assumes that rates are known to 5 %, and constants as well as `constants.py` says.
"Left out" is the error for a row if the constants are fitted to the rows of all other systems.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cnn_harness.base.fields import opt
from cnn_harness.emulator.cost_model import constants, memory_constants
from cnn_harness.emulator.cost_model.constants import BOUNDS, FACTORS, NAMES, PRIOR, Constants
from cnn_harness.emulator.cost_model.kernels import SegmentCosts
from cnn_harness.emulator.cost_model.memory_constants import MemoryConstants
from cnn_harness.emulator.cost_model.prediction import predict
from cnn_harness.emulator.cost_model.systems import SYSTEMS
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import chart, output
from cnn_harness.harness.reports.chart import ALL, AXIS, BLUE, RED, Box, Dot, Rows
from cnn_harness.tools.planning import memory_facts, scaling
from cnn_harness.tools.planning.plan_options import run_of

RATE_ERROR = 0.05
STEPS = 30
SCALED = "mk2_resnet50_mlperf_pod128_lars"


class Row(NamedTuple):
    """A published training. `rate` is in images/s; `options` are the options of train.py that reproduce the training.
    `sdk` is the release of the SDK that was used."""

    name: str
    system: str
    rate: float
    options: str
    source: str
    sdk: float

    @property
    def family(self) -> str:
        """The kind of network: ResNet-50, or the convolutions and norms of an EfficientNet."""
        words = self.name.partition(",")[0]
        return words if words.startswith("ResNet") else f"EfficientNet {words.partition(' ')[2]}"


_MLPERF = "MLPerf Training, logs of the closed division"
_TABLE = "the vendor's performance tables, SDK 2.5"
_FIGURE = "Masters et al. 2021, figure of throughputs (read off, 1 to 2 %)"
_R50 = "--config mk2_resnet50_mlperf_pod16_bs20"
_LARS = f"{_R50} --optimiser LARS"
_B4 = "--config mk2_efficientnet_b4_g16_16ipus --num-io-tiles 32 --prefetch-depth 3"
ROWS = (
    Row("ResNet-50, momentum", "POD16", 27_636, _R50, f"{_MLPERF} 1.0", 2.1),
    Row("ResNet-50, LARS", "POD16", 29_646, f"{_LARS} --gradient-accumulation-count 10", f"{_MLPERF} 1.1", 2.3),
    Row("ResNet-50, LARS", "POD128", 185_488, f"{_LARS} --replicas 128 --gradient-accumulation-count 2",
        f"{_MLPERF} 1.1", 2.3),
    Row("ResNet-50, LARS", "BOW-POD16", 43_274, f"{_LARS} --micro-batch-size 22 --gradient-accumulation-count 10",
        f"{_MLPERF} 2.0", 2.5),
    Row("ResNet-50, momentum", "BOW-POD16", 42_029, _R50, _TABLE, 2.5),
    Row("ResNet-50, momentum", "BOW-POD64", 145_287, f"{_R50} --replicas 64 --gradient-accumulation-count 2", _TABLE, 2.5),
    Row("ResNet-50, LARS", "BOW-POD64", 148_232, f"{_LARS} --replicas 64 --gradient-accumulation-count 4",
        f"{_MLPERF} 2.0", 2.5),
    Row("B4 G16 GN, LARS", "BOW-POD16", 8_936, _B4, _TABLE, 2.5),
    Row("B4 G16 GN, LARS", "BOW-POD64", 34_943, f"{_B4} --replicas 32 --gradient-accumulation-count 64", _TABLE, 2.5),
    Row("B0 G1 GN", "POD16", 26_500, "--config B0-G1-GN-Native_16IPU_2x8", _FIGURE, 2.0),
    Row("B2 G1 GN", "POD16", 12_650, "--config B2-G1-GN-Native_16IPU_4x4", _FIGURE, 2.0),
    Row("B4 G1 GN", "POD16", 2_746, "--config B4-G1-GN-Native_16IPU_4x4", _FIGURE, 2.0),
    Row("B0 G16 GN", "POD16", 29_700, "--config B0-G16-GN-Native_16IPU_2x8", _FIGURE, 2.0),
    Row("B2 G16 GN", "POD16", 15_320, "--config B2-G16-GN-Native_16IPU_4x4", _FIGURE, 2.0),
    Row("B4 G16 GN", "POD16", 4_697, "--config B4-G16-GN-Native_16IPU_4x4", _FIGURE, 2.0),
    Row("B2 G16 GN, half resolution", "POD16", 23_910, "--config B2-G16-GN-Half_16IPU_4x4", _FIGURE, 2.0),
    Row("B0 G16 LN+PN", "POD16", 24_920, "--config B0-G16-LN_PN-Native_16IPU_2x8", _FIGURE, 2.0),
    Row("B4 G16 LN+PN", "POD16", 4_179, "--config B4-G16-LN_PN-Native_16IPU_4x4", _FIGURE, 2.0),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FitOptions(answers.OwnOptions):
    """The options of cnn fit-planner."""

    write: bool = opt(False, "write the constants to emulator/cost_model")
    memory: bool = opt(False, "fit the constants of memory to published facts instead")
    svg: str | None = opt(None, "draw the error of each predicted rate", metavar="FILE")
    scaling: str | None = opt(None, f"draw the scaling of the configuration {SCALED}", metavar="FILE")


def main(call: Call) -> int:
    """Fit the constants and print the errors. Write the constants and the charts if requested."""
    about = "Fit the planner's constants to published rates."
    arguments, _, _ = answers.own_options(FitOptions, call, "cnn fit-planner [options]", about)
    for file in (arguments.svg, arguments.scaling):
        if file:
            output.check(file, output.SVG)
    if arguments.memory:
        return _fit_memory(arguments.write)
    cases = [Case(row) for row in ROWS]
    fitted = fit(cases)
    inside, left_out = [case.error(fitted) for case in cases], errors_of_systems(cases, fitted)
    print(report(fitted, inside, left_out))
    if arguments.write:
        _write(fitted)
    if arguments.svg:
        output.write_atomically(arguments.svg, svg(inside, left_out), output.SVG)
    if arguments.scaling:
        panels = scaling.panels(run_of(Call.of_values({"config": SCALED}, "train")).run.workload())
        output.write_atomically(arguments.scaling, chart.figure(panels, "ResNet-50 with LARS on 4 to 256 IPUs"), output.SVG)
    return 0


def _fit_memory(write: bool) -> int:
    """Fit the constants of memory and print them with the facts. Return 1 if no constants agree with all facts."""
    known = memory_facts.held(memory_facts.facts())
    fitted, agreeing, margin = memory_facts.fit(known)
    print(memory_facts.report(known, fitted, agreeing))
    print(f"\nsmallest margin: {100 * margin:.1f} % of an IPU's memory")
    if write:
        rows = "".join(f"    {_call(each)},\n" for each in agreeing)
        _replace(memory_constants.__file__, r"(?<=\nMEMORY = )[^\n]*", _call(fitted))
        _replace(memory_constants.__file__, r"(?<=\.\.\.\] = ).*", f"(\n{rows})\n")
    return 0 if margin >= 0 else 1


def errors_of_systems(cases: Sequence[Case], start: Constants) -> list[float]:
    """Return the error of each case if the constants are fitted without all cases of its system."""
    systems = {case.row.system for case in cases}
    others = {name: fit([case for case in cases if case.row.system != name], start) for name in systems}
    return [case.error(others[case.row.system]) for case in cases]


class Case:
    """A row with its workload. The work of its operations is counted once, for all constants."""

    def __init__(self, row: Row) -> None:
        self.row, self.system = row, SYSTEMS[row.system]
        self.workload = replace(run_of(Call.of_words(row.options.split(), "train")).run.workload(), sdk=row.sdk)
        self._costs = SegmentCosts(self.workload, self.system.ipu, PRIOR)

    def error(self, values: Constants) -> float:
        """Return the predicted rate divided by the published rate, minus 1."""
        costs = self._costs.with_constants(values)
        return predict(self.workload, self.system, values, costs).timing.images_per_second / self.row.rate - 1


def fit(cases: Sequence[Case], start: Constants = PRIOR) -> Constants:
    """Return the most probable constants for these cases."""
    x = np.log([getattr(start, name) for name in NAMES])
    prior = np.log([getattr(PRIOR, name) for name in NAMES])
    widths = np.log([FACTORS[name] for name in NAMES])
    low, high = np.log(np.array([BOUNDS[name] for name in NAMES]).T)

    def residuals(x: np.ndarray) -> np.ndarray:
        values = Constants(**dict(zip(NAMES, np.exp(x))))
        rates = [math.log1p(case.error(values)) / RATE_ERROR for case in cases]
        return np.array([*rates, *(x - prior) / widths])

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


def report(fitted: Constants, inside: Sequence[float], left_out: Sequence[float]) -> str:
    """Return the constants, both errors of each row, and a summary for each system and each family of networks."""
    lines = [f"{name:16s} {getattr(fitted, name):10.4g}  (prior {getattr(PRIOR, name):g}, {BOUNDS[name][0]:g} to "
             f"{BOUNDS[name][1]:g})" for name in NAMES]  # fmt: skip
    lines += ["", f"{'training':28s} {'system':10s} {'published':>9s}  {'fitted':>7s}  {'left out':>8s}"]
    for row, first, second in zip(ROWS, inside, left_out):
        lines.append(f"{row.name:28s} {row.system:10s} {row.rate:9,.0f}  {100 * first:+6.1f}%  {100 * second:+7.1f}%")
    lines += ["", f"{'size of the errors in %':30s} {'rows':>4s}  {'fitted':^24s}  {'left out':^24s}",
              f"{'':30s} {'':4s}  " + 2 * f"{'median':>8s}{'mean':>8s}{'largest':>8s}  "]  # fmt: skip
    groups = {"all": ROWS}
    for row in ROWS:
        for group in (row.system, row.family):
            groups[group] = tuple(other for other in ROWS if group in (other.system, other.family))
    for group, rows in groups.items():
        chosen = [k for k, row in enumerate(ROWS) if row in rows]
        sizes = "  ".join(_sizes([errors[k] for k in chosen]) for errors in (inside, left_out))
        lines.append(f"{group:30s} {len(chosen):4d}  {sizes}")
    return "\n".join(lines)


def _sizes(errors: Sequence[float]) -> str:
    """Return median, mean and largest of the sizes of errors, in percent."""
    sizes = [100 * abs(each) for each in errors]
    return f"{statistics.median(sizes):8.1f}{statistics.mean(sizes):8.1f}{max(sizes):8.1f}"


def svg(inside: Sequence[float], left_out: Sequence[float]) -> str:
    """Draw both errors of each row: a bar for the fit to all rows, a dot for the fit to the rows of all other systems."""
    names, marks = [], [Box(0, 0, AXIS, ALL, least=1, thick=1)]
    for k, (row, first, second) in enumerate(zip(ROWS, inside, left_out)):
        names.append(f"{row.name}, {row.system}")
        marks.append(Box(*sorted((0.0, 100 * first)), BLUE, k, "fitted to all trainings"))
        marks.append(Dot(100 * second, RED, k, "fitted without this system's trainings"))
    panel = Rows("", names, marks, tick="{:+g} %", height=16, x_axis=(-25, 25))
    return chart.figure([panel], "Error of the predicted rate (images/s)")


def _write(fitted: Constants) -> None:
    values = "".join(f"    {name}={getattr(fitted, name):g},\n" for name in NAMES)
    _replace(constants.__file__, r"FITTED = .*", f"FITTED = Constants(\n{values})\n")
    constants.FITTED = replace(fitted)


def _call(each: MemoryConstants) -> str:
    return f"MemoryConstants({', '.join(f'{name}={value:g}' for name, value in asdict(each).items())})"


def _replace(file: str, pattern: str, text: str) -> None:
    """Replace the text from a pattern's match in a module of the package."""
    path = Path(file)
    path.write_text(re.sub(pattern, lambda _: text, path.read_text(encoding="utf-8"), flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(answers.run_command("fit_planner", main, None))
