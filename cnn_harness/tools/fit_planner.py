"""Fit the planner's constants to published rates, and draw the remaining errors.

cnn fit-planner [--write] [--svg FILE] [--scaling FILE] [--b4 FILE]
cnn fit-planner --gpus [--write]
cnn fit-planner --memory [--write]

`ROWS` and `GPU_ROWS` list trainings whose rate and layout were published. "Left out" is the error for a row if the
constants are fitted to the rows of all other systems, or for GPUs of all other chips.
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import opt
from cnn_harness.emulator.cost_model import constants, memory_constants
from cnn_harness.emulator.cost_model.constants import BOUNDS, NAMES, PRIOR, Constants
from cnn_harness.emulator.cost_model.memory_constants import MemoryConstants
from cnn_harness.emulator.cost_model.systems import MK2, SYSTEMS
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.sections import flag
from cnn_harness.harness.reports import chart, output
from cnn_harness.harness.reports.chart import ALL, AXIS, BLUE, ORANGE, RED, Box, Dot, Rows
from cnn_harness.tools.planning import memory_facts, scaling
from cnn_harness.tools.planning.calibration import Case, fit
from cnn_harness.tools.planning.plan_options import run_of

SCALED = "mk2_resnet50_mlperf_pod128_lars"
_B4_DOTS = {"published": BLUE, "predicted": ORANGE, "predicted without this system's trainings": RED}


class Row(NamedTuple):
    """A published training. `rate` is in images/s; `options` are the options of train.py that reproduce the training.
    `sdk` is the release of the SDK that was used, or 0 on chips without this SDK."""

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
        return words if not self.sdk or words.startswith("ResNet") else f"EfficientNet {words.partition(' ')[2]}"


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
_NVIDIA = "NVIDIA's readmes of ResNet-50 v1.5, ResNeXt-101 and EfficientNet"
_TRAINED = "--dataset imagenet --eight-bit-io --optimiser momentum --batch-norm"
_MIXED, _FP32 = "mixed precision", "TF32 or FP32"
# Network: options, and micro-batches in mixed precision and in FP32. NVIDIA does not print those of EfficientNet.
_ON_GPUS = {
    "ResNet-50": ("--model resnet --model-size 50", 256, 256),
    "ResNeXt-101": ("--model resnext --model-size 101", 128, 64),
    "EfficientNet-B0": ("--model efficientnet --model-size B0", 256, 256),
    "EfficientNet-B4": ("--model efficientnet --model-size B4", 64, 64),
}
_GPU_RATES = (
    ("ResNet-50", "A100-1", 938, 2_470), ("ResNet-50", "A100-8", 7_248, 16_621),
    ("ResNet-50", "V100-1", 367, 1_200), ("ResNet-50", "V100-8", 2_855, 8_322),
    ("ResNeXt-101", "A100-40GB-1", 300.4, 908.4), ("ResNeXt-101", "A100-40GB-8", 2_380.5, 6_887.6),
    ("EfficientNet-B0", "A100-1", 1_078, 2_489), ("EfficientNet-B0", "A100-8", 8_193, 16_652),
    ("EfficientNet-B4", "A100-1", 157, 331), ("EfficientNet-B4", "A100-8", 1_223, 2_570),
    ("EfficientNet-B4", "A100-16", 2_417, 4_813),
)  # fmt: skip


def _gpu_rows() -> Iterator[Row]:
    """Yield the published trainings on GPUs."""
    for network, system, *rates in _GPU_RATES:
        options, *batches = _ON_GPUS[network]
        for words, rate, batch, precision in zip((_FP32, _MIXED), rates, reversed(batches), ("32.32", "16.32")):
            layout = f"--micro-batch-size {batch} --precision {precision} --replicas {SYSTEMS[system].devices}"
            yield Row(f"{network}, {words}", system, rate, f"{_TRAINED} {options} {layout}", _NVIDIA, 0.0)


GPU_ROWS = tuple(_gpu_rows())


@dataclass(frozen=True, kw_only=True)
class FitOptions(answers.OwnOptions):
    """The options of cnn fit-planner."""

    write: bool = opt(False, "write the constants to emulator/cost_model")
    gpus: bool = opt(False, "fit the constants of GPUs instead")
    memory: bool = opt(False, "fit the constants of memory to published facts instead")
    svg: str | None = opt(None, "draw the error of each predicted rate", metavar="FILE")
    scaling: str | None = opt(None, f"draw the scaling of the configuration {SCALED}", metavar="FILE")
    b4: str | None = opt(None, "draw the rates of EfficientNet-B4 on PODs and GPUs, published and predicted", metavar="FILE")


def main(call: Call) -> int:
    """Fit the constants and print the errors. Write the constants and the charts if requested."""
    about = "Fit the planner's constants to published rates."
    arguments, _, _ = answers.own_options(FitOptions, call, "cnn fit-planner [options]", about)
    for file in (arguments.svg, arguments.scaling, arguments.b4):
        if file:
            output.check(file, output.SVG)
    if arguments.memory:
        if other := next((name for name in ("gpus", "svg", "scaling", "b4") if getattr(arguments, name)), None):
            raise OptionError(f"--memory and {flag(other)} exclude each other; give only one of them")
        return _fit_memory(arguments.write)
    rows = GPU_ROWS if arguments.gpus else ROWS
    cases = [case_of(row) for row in rows]
    fitted = fit(cases)
    inside, left_out = [case.error(fitted) for case in cases], errors_of_systems(cases, fitted)
    print(report(rows, fitted, inside, left_out))
    if arguments.write:
        _write(fitted, "GPU" if arguments.gpus else "FITTED")
    if arguments.svg:
        output.write_atomically(arguments.svg, svg(rows, inside, left_out), output.SVG)
    if arguments.scaling:
        panels = scaling.panels(run_of(Call.of_values({"config": SCALED}, "train")).run.workload())
        output.write_atomically(arguments.scaling, chart.figure(panels, "ResNet-50 with LARS on 4 to 256 IPUs"), output.SVG)
    if arguments.b4:
        output.write_atomically(arguments.b4, b4_svg(), output.SVG)
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
    """Return the error of each case if the constants are fitted without all cases of its system. For GPUs, the cases of all
    systems with its chip are left out, because servers with one and eight GPUs have nearly the same rates per GPU."""
    systems = {_left_out_as(case) for case in cases}
    others = {name: fit([case for case in cases if _left_out_as(case) != name], start) for name in systems}
    return [case.error(others[_left_out_as(case)]) for case in cases]


def _left_out_as(case: Case) -> str:
    system = case.system
    return system.name if system.device.tiled else system.device.name


def case_of(row: Row) -> Case:
    """Return the row with its workload and system."""
    workload = run_of(Call.of_words(row.options.split(), "train")).run.workload()
    return Case(row.name, row.rate, replace(workload, sdk=row.sdk or None), SYSTEMS[row.system])


def report(rows: Sequence[Row], fitted: Constants, inside: Sequence[float], left_out: Sequence[float]) -> str:
    """Return the constants, both errors of each row, and a summary for each system and each family of networks."""
    lines = [f"{name:16s} {getattr(fitted, name):10.4g}  (prior {getattr(PRIOR, name):g}, {BOUNDS[name][0]:g} to "
             f"{BOUNDS[name][1]:g})" for name in NAMES]  # fmt: skip
    width = max(28, *(len(row.name) for row in rows))
    lines += ["", f"{'training':{width}s} {'system':11s} {'published':>9s}  {'fitted':>7s}  {'left out':>8s}"]
    for row, first, second in zip(rows, inside, left_out):
        lines.append(f"{row.name:{width}s} {row.system:11s} {row.rate:9,.0f}  {100 * first:+6.1f}%  {100 * second:+7.1f}%")
    lines += ["", f"{'size of the errors in %':30s} {'rows':>4s}  {'fitted':^24s}  {'left out':^24s}",
              f"{'':30s} {'':4s}  " + 2 * f"{'median':>8s}{'mean':>8s}{'largest':>8s}  "]  # fmt: skip
    groups = {"all": list(range(len(rows)))}
    for row in rows:
        for group in (row.system, row.family):
            groups[group] = [k for k, other in enumerate(rows) if group in (other.system, other.family)]
    for group, chosen in groups.items():
        sizes = "  ".join(_sizes([errors[k] for k in chosen]) for errors in (inside, left_out))
        lines.append(f"{group:30s} {len(chosen):4d}  {sizes}")
    return "\n".join(lines)


def _sizes(errors: Sequence[float]) -> str:
    """Return median, mean and largest of the sizes of errors, in percent."""
    sizes = [100 * abs(each) for each in errors]
    return f"{statistics.median(sizes):8.1f}{statistics.mean(sizes):8.1f}{max(sizes):8.1f}"


def svg(rows: Sequence[Row], inside: Sequence[float], left_out: Sequence[float]) -> str:
    """Draw both errors of each row: a bar for the fit to all rows, a dot for the fit to the rows of all other systems."""
    names, marks = [], [Box(0, 0, AXIS, ALL, least=1, thick=1)]
    for k, (row, first, second) in enumerate(zip(rows, inside, left_out)):
        names.append(f"{row.name}, {row.system}")
        marks.append(Box(*sorted((0.0, 100 * first)), BLUE, k, "fitted to all trainings"))
        marks.append(Dot(100 * second, RED, k, "fitted without this system's trainings"))
    most = max(25.0, *(105 * abs(error) for error in (*inside, *left_out)))
    panel = Rows("", names, marks, tick="{:+g} %".format, height=16, x_axis=(-most, most))
    return chart.figure([panel], "Error of the predicted rate (images/s)")


def b4_svg() -> str:
    """Draw the rates of EfficientNet-B4 on GPU systems and PODs: published, predicted, and predicted by a fit without the
    system's trainings. The last rows are only predicted: the recipe of 16.16 with LARS on Mk2 PODs."""
    names, marks = [], []
    for name, *rates in _b4_rates():
        dots = [(rate, label, colour) for rate, (label, colour) in zip(rates, _B4_DOTS.items()) if rate]
        marks += [Dot(math.log10(rate), colour, len(names), label, lift=7 * k - 7) for k, (rate, label, colour) in
                  enumerate(dots)]  # fmt: skip
        names.append(f"{name}: {', '.join(f'{label} {rate:,.0f}' for rate, label, _ in dots[:2])}")
    panel = Rows(
        "", names, marks, "images/s", lambda power: f"{10**power:,.0f}" if power % 1 == 0 else "", 22, (1.9, 5.1), wide=True
    )
    return chart.figure([panel], "EfficientNet-B4: rates of training on GPU systems and IPU-PODs", zoom=12 / 11)


def _b4_rates() -> Iterator[tuple[str, float, float, float]]:
    """Yield the name of each training of EfficientNet-B4, and its rates in the order of `_B4_DOTS`; 0 is unknown."""
    for rows in (GPU_ROWS, ROWS):
        cases = [case_of(row) for row in rows]
        for row, case, error in zip(rows, cases, errors_of_systems(cases, cases[0].system.constants)):
            if "B4" in row.name:
                predicted = case.rate * (1 + case.error(case.system.constants))
                yield f"{row.system}, {row.name.partition('B4')[2].strip(', ')}", row.rate, predicted, row.rate * (1 + error)
    for each in scaling.predictions(run_of(Call.of_words(_B4.split(), "train")).run.workload(), MK2):
        if each.system.devices >= 16:
            yield f"{each.system.name}, G16 GN, LARS", 0.0, each.timing.images_per_second, 0.0


def _write(fitted: Constants, name: str) -> None:
    values = "".join(f"    {each}={getattr(fitted, each):g},\n" for each in NAMES)
    _replace(constants.__file__, rf"(?<=\n{name} = )Constants\(.*?\n\)", f"Constants(\n{values})")
    setattr(constants, name, replace(fitted))


def _call(each: MemoryConstants) -> str:
    return f"MemoryConstants({', '.join(f'{name}={value:g}' for name, value in asdict(each).items())})"


def _replace(file: str, pattern: str, text: str) -> None:
    """Replace the text from a pattern's match in a module of the package."""
    path = Path(file)
    path.write_text(re.sub(pattern, lambda _: text, path.read_text(encoding="utf-8"), flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(answers.run_command("fit_planner", main, None))
