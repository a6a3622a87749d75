"""Compare published results of the paper "Making EfficientNet More Efficient" with the planner's predictions.

The table shows the published accuracy and rate, and the predicted rate, time and memory, of thirty configurations. Nine
rates were published. The constants of the planner are fitted to eighteen published trainings, including these nine.
Predictions of this fit differ from the nine rates by at most 3.9 %. If they are predicted by a fit to trainings on other
systems, the difference is at most 12.3 %.

python -m experiments.paper
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("paper")

import argparse
import math
import re
import sys
from collections.abc import Mapping, Sequence

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.systems import SYSTEMS
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.configs import ConfigFile
from cnn_harness.harness.options.sources import DEFAULT_CONFIG_PATH
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import BLUE, GREEN, GREY, ORANGE, SAND, Curves, Line
from cnn_harness.harness.reports.predicted_rate import MIB
from cnn_harness.tools import fit_planner
from cnn_harness.tools.planning.plan_options import run_of

TITLE = "Published top-1 accuracy (%) by predicted rate on POD16"
BOTTOM = 78.0  # lowest accuracy in the chart, in %
NAME = re.compile(r"(B\d)-(\w+)-(\w+)-(\w+)_16IPU_\dx\d")
# Top-1 accuracies in %, read off the paper's figures. The figures do not show the other configurations clearly enough.
ACCURACY: Mapping[str, float] = {
    "B0-G1-GN-Native": 79.10, "B2-G1-GN-Native": 81.44, "B4-G1-GN-Native": 82.90,
    "B0-G16-GN-Native": 79.08, "B2-G16-GN-Native": 81.46, "B4-G16-GN-Native": 83.21,
    "B0-G16-LN_PN-Native": 79.42, "B4-G16-LN_PN-Native": 83.39, "B2-G16-GN-Half": 80.83,
}  # fmt: skip
KINDS = {"G1-GN-Native": ORANGE, "G16-GN-Native": BLUE, "G16-LN_PN-Native": GREEN, "G16-GN-Half": SAND}


def predictions() -> dict[str, Prediction]:
    """Return the prediction of each configuration on the paper's system."""
    names = filter(NAME.fullmatch, ConfigFile(str(DEFAULT_CONFIG_PATH)).names)
    calls = {name: Call.of_values({"config": name}, "train") for name in names}
    return {name: predict(run_of(call).run.workload(), SYSTEMS["POD16"]) for name, call in calls.items()}


def table(predicted: Mapping[str, Prediction]) -> str:
    """Return a Markdown table with a row for each configuration."""
    rates = {row.options.removeprefix("--config "): row.rate for row in fit_planner.ROWS}
    lines = [
        "| configuration | published top-1 | published images/s | predicted images/s | hours | MiB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in predicted.items():
        accuracy, rate = ACCURACY.get(_short(name)), rates.get(name)
        published = f"{f'{accuracy:.2f} %' if accuracy else ''} | {f'{rate:,.0f}' if rate else ''}"
        timing = each.timing
        values = f"{timing.images_per_second:,.0f} | {timing.hours:.1f} | {each.fullest.total / MIB:,.0f}"
        lines.append(f"| `{name}` | {published} | {values} |")
    return "\n".join(lines)


def panel(predicted: Mapping[str, Prediction]) -> Curves:
    """Draw published accuracy against predicted rate. Configurations without a published accuracy are at the bottom."""
    places = {_short(name): math.log2(each.timing.images_per_second / 1000) for name, each in predicted.items()}
    low, high = chart.span(list(places.values()))
    lines = [
        Line(
            f"{kind.replace('_', '+')}: {', '.join(name[:2] for name in ACCURACY if name[3:] == kind)}",
            [(places[name], accuracy) for name, accuracy in ACCURACY.items() if name[3:] == kind],
            colour, dots=1.4, last=False,
        )
        for kind, colour in KINDS.items()
    ]  # fmt: skip
    others = [(place, BOTTOM) for name, place in places.items() if name not in ACCURACY]
    lines.append(Line(f"{len(others)} others, accuracy unknown", others, GREY, 0, dots=1, last=False))
    return Curves(TITLE, lines, (math.floor(low), math.ceil(high)), BOTTOM, "thousand images/s", lambda k: f"{2**k:g}")


def _short(name: str) -> str:
    return name.partition("_16IPU")[0]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args(argv)
    print(table(predictions()))
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("paper", main, None, (OptionError,)))
