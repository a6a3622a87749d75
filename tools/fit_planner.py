"""Fit the planner's constants to published rates, and draw the remaining errors.

python tools/fit_planner.py [--write] [--svg FILE]

`ROWS` lists trainings whose rate and layout were published. The fit finds the most probable constants by bounded
Gauss-Newton steps on logarithms. The fit assumes that rates are known to 5 %, and prior values to a factor of two. "Left
out" is the error for a row if the constants are fitted to all other rows.
"""

from __future__ import annotations

if not __package__:  # the file was started by its path, as a script
    import bootstrap  # noqa: F401

import math
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from base import plugins
from base.errors import OptionError
from base.process import command_line
from emulator.cost_model import constants
from emulator.cost_model.constants import BOUNDS, NAMES, PRIOR, Constants
from emulator.cost_model.prediction import predict
from emulator.cost_model.systems import SYSTEMS
from emulator.cost_model.workload import Workload
from harness.planning.plan_options import run_of
from harness.reports import chart, output
from harness.reports.chart import ALL, AXIS, BLUE, RED, Box, Dot, Rows

RATE_ERROR, PRIOR_FACTOR = 0.05, 2.0
STEPS = 30


class Row(NamedTuple):
    """A published training. `rate` is in images/s; `options` are the options of train.py that reproduce the training."""

    name: str
    system: str
    rate: float
    options: str
    source: str


_MLPERF = "MLPerf Training, logs of the closed division"
_TABLE = "the vendor's performance tables, SDK 2.5"
_FIGURE = "Masters et al. 2021, figure of throughputs (read off, 1 to 2 %)"
_R50 = "--config mk2_resnet50_mlperf_pod16_bs20"
_LARS = f"{_R50} --optimiser LARS"
_B4 = "--config mk2_efficientnet_b4_g16_16ipus --num-io-tiles 32 --prefetch-depth 3"
ROWS = (
    Row("ResNet-50, momentum", "POD16", 27_636, _R50, f"{_MLPERF} 1.0"),
    Row("ResNet-50, LARS", "POD16", 29_646, f"{_LARS} --gradient-accumulation-count 10", f"{_MLPERF} 1.1"),
    Row("ResNet-50, LARS", "POD128", 185_488, f"{_LARS} --replicas 128 --gradient-accumulation-count 2", f"{_MLPERF} 1.1"),
    Row("ResNet-50, LARS", "BOW-POD16", 43_274, f"{_LARS} --micro-batch-size 22 --gradient-accumulation-count 10",
        f"{_MLPERF} 2.0"),
    Row("ResNet-50, momentum", "BOW-POD16", 42_029, _R50, _TABLE),
    Row("ResNet-50, momentum", "BOW-POD64", 145_287, f"{_R50} --replicas 64 --gradient-accumulation-count 2", _TABLE),
    Row("B4 G16 GN, LARS", "BOW-POD16", 8_936, _B4, _TABLE),
    Row("B4 G16 GN, LARS", "BOW-POD64", 34_943, f"{_B4} --replicas 32 --gradient-accumulation-count 64", _TABLE),
    Row("B0 G1 GN", "POD16", 26_500, "--config B0-G1-GN-Native_16IPU_2x8", _FIGURE),
    Row("B2 G1 GN", "POD16", 12_650, "--config B2-G1-GN-Native_16IPU_4x4", _FIGURE),
    Row("B4 G1 GN", "POD16", 2_746, "--config B4-G1-GN-Native_16IPU_4x4", _FIGURE),
    Row("B0 G16 GN", "POD16", 29_700, "--config B0-G16-GN-Native_16IPU_2x8", _FIGURE),
    Row("B2 G16 GN", "POD16", 15_320, "--config B2-G16-GN-Native_16IPU_4x4", _FIGURE),
    Row("B4 G16 GN", "POD16", 4_697, "--config B4-G16-GN-Native_16IPU_4x4", _FIGURE),
    Row("B2 G16 GN, half resolution", "POD16", 23_910, "--config B2-G16-GN-Half_16IPU_4x4", _FIGURE),
    Row("B0 G16 LN+PN", "POD16", 24_920, "--config B0-G16-LN_PN-Native_16IPU_2x8", _FIGURE),
    Row("B4 G16 LN+PN", "POD16", 4_179, "--config B4-G16-LN_PN-Native_16IPU_4x4", _FIGURE),
)  # fmt: skip
# These trainings were run on real IPUs, so the planner must predict that they fit into memory.
RUNS = (
    "--config mk2_resnet50_mlperf_pod16",
    "--config mk2_resnet50_mlperf_pod16_bs20",
    "--config mk2_resnet50_bn_16ipus",
    "--config mk2_resnext101_16ipus",
    "--config mk2_efficientnet_b4_g1_16ipus",
    "--config mk2_efficientnet_b4_g16_16ipus --num-io-tiles 32 --prefetch-depth 3",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the constants and print the errors. Write the constants and the chart if requested."""
    parser = command_line.Parser(description="Fit the planner's constants to published rates.")
    parser.add_argument("--write", action="store_true", help="write the constants to emulator/cost_model/constants.py")
    parser.add_argument("--svg", metavar="FILE", help="draw the error of each predicted rate")
    arguments = parser.parse_args(argv)
    if arguments.svg:
        output.check(arguments.svg, output.SVG)
    workloads = [run_of(row.options.split()).workload() for row in ROWS]
    fitted = fit(workloads, range(len(ROWS)))
    left_out = []
    for k in range(len(ROWS)):
        others = [i for i in range(len(ROWS)) if i != k]
        left_out.append(error(ROWS[k], workloads[k], fit(workloads, others, fitted)))
    inside = [error(row, each, fitted) for row, each in zip(ROWS, workloads)]
    print(report(fitted, inside, left_out))
    if arguments.write:
        _write(fitted)
    if arguments.svg:
        output.write_atomically(arguments.svg, svg(workloads, fitted, left_out), output.SVG)
    return 0


def error(row: Row, work: Workload, values: Constants) -> float:
    """Return the predicted rate divided by the published rate, minus 1."""
    return predict(work, SYSTEMS[row.system], values).timing.images_per_second / row.rate - 1


def fit(workloads: Sequence[Workload], rows: Sequence[int], start: Constants = PRIOR) -> Constants:
    """Return the most probable constants for these rows. `rows` are indices of ROWS."""
    x = np.log([getattr(start, name) for name in NAMES])
    prior = np.log([getattr(PRIOR, name) for name in NAMES])
    low, high = np.log(np.array([BOUNDS[name] for name in NAMES]).T)

    def residuals(x: np.ndarray) -> np.ndarray:
        values = Constants(**dict(zip(NAMES, np.exp(x))))
        rates = [math.log1p(error(ROWS[k], workloads[k], values)) / RATE_ERROR for k in rows]
        return np.array([*rates, *(x - prior) / math.log(PRIOR_FACTOR)])

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
    """Return the constants, and both errors of each row, as text."""
    lines = [f"{name:16s} {getattr(fitted, name):10.4g}  (prior {getattr(PRIOR, name):g}, {BOUNDS[name][0]:g} to "
             f"{BOUNDS[name][1]:g})" for name in NAMES]  # fmt: skip
    lines += ["", f"{'training':28s} {'system':10s} {'published':>9s}  {'fitted':>7s}  {'left out':>8s}"]
    for row, first, second in zip(ROWS, inside, left_out):
        lines.append(f"{row.name:28s} {row.system:10s} {row.rate:9,.0f}  {100 * first:+6.1f}%  {100 * second:+7.1f}%")
    for name, errors in (("fitted", inside), ("left out", left_out)):
        sizes = [abs(each) for each in errors]
        lines.append(
            f"{name}: median {100 * statistics.median(sizes):.1f} %, mean {100 * statistics.mean(sizes):.1f} %, largest "
            f"{100 * max(sizes):.1f} %"
        )
    return "\n".join(lines)


def svg(workloads: Sequence[Workload], fitted: Constants, left_out: Sequence[float]) -> str:
    """Draw both errors of each row: a bar for the fit to all rows, a dot for the fit to all other rows."""
    names, marks = [], [Box(0, 0, AXIS, ALL, least=1, thick=1)]
    for k, (row, work, outside) in enumerate(zip(ROWS, workloads, left_out)):
        names.append(f"{row.name}, {row.system}")
        marks.append(Box(*sorted((0.0, 100 * error(row, work, fitted))), BLUE, k, "training included in the fit"))
        marks.append(Dot(100 * outside, RED, k, "training left out of the fit"))
    panel = Rows("", names, marks, tick="{:+g} %", height=16, x_axis=(-25, 25))
    return chart.figure([panel], "Error of the predicted rate (images/s)")


def _write(fitted: Constants) -> None:
    path = plugins.ROOT / "emulator/cost_model/constants.py"
    values = "".join(f"    {name}={getattr(fitted, name):g},\n" for name in NAMES)
    text = re.sub(r"FITTED = .*", f"FITTED = Constants(\n{values})\n", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    path.write_text(text, encoding="utf-8")
    constants.FITTED = replace(fitted)


if __name__ == "__main__":
    sys.exit(command_line.run("fit_planner.py", main, None, (OptionError,)))
