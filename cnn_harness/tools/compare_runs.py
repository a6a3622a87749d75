"""Draw the training curves of several runs in one chart.

cnn compare logs/one logs/other --labels "1 replica" "16 replicas" --output compared.svg
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.harness.commands import run_list
from cnn_harness.harness.reports import chart, output, training_chart


def main(argv: list[str]) -> int:
    """Draw the runs; return the exit code."""
    parser = command_line.Parser(
        prog="cnn compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"run directories, at most {len(training_chart.PENS)}")
    parser.add_argument(
        "--labels",
        nargs="+",
        metavar="TEXT",
        help="names of the runs in the chart (default: the names of their directories)",
    )
    parser.add_argument("--title", default="", help="title of the chart")
    parser.add_argument("--output", metavar="FILE", default="compared.svg", help="output file (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.runs:
        raise OptionError("no run given; give run directories, as in cnn compare logs/<run> logs/<other>", run_list.listed())
    folders = [Path(run) for run in arguments.runs]
    labels = arguments.labels or [folder.resolve().name for folder in folders]
    if len(labels) != len(folders):
        parser.error(f"--labels: give one label for each run; there are {len(labels)} labels and {len(folders)} runs")
    if len(folders) > len(training_chart.PENS):
        parser.error(f"{len(folders)} runs are too many: give at most {len(training_chart.PENS)}")
    for folder in folders:
        if not (folder / "training.csv").exists():
            began = (folder / "arguments.json").exists()
            what = "has not logged a training step yet" if began else "is not a run directory"
            parser.error(f"{folder} {what}: it has no training.csv")
    runs = [(label, *training_chart.tables(folder)) for label, folder in zip(labels, folders)]
    drawing = chart.figure(training_chart.comparison_panels(runs), arguments.title)
    output.write_atomically(arguments.output, drawing, output.SVG)
    print(arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("cnn compare", main, None, (OptionError,)))
