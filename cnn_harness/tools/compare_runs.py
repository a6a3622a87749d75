"""Draw the training curves of several runs in one chart. Compare the fingerprints of runs with --fingerprints.

cnn compare logs/one logs/other --labels "1 replica" "16 replicas" --output compared.svg
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import escaped, opt
from cnn_harness.base.storage import fingerprints
from cnn_harness.harness.commands import answers, run_list
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import chart, output, training_chart


@dataclass(frozen=True, kw_only=True)
class CompareOptions(answers.OwnOptions):
    """The options of cnn compare."""

    labels: tuple[str, ...] = opt(
        (), "names of the runs in the chart (default: the names of their directories)", metavar="TEXT"
    )
    title: str | None = opt(None, "title of the chart")
    output: str = opt("compared.svg", "output file", metavar="FILE")


def main(call: Call) -> int:
    """Draw the runs; return the exit code."""
    places = {"RUN...": f"run directories, at most {len(training_chart.PENS)}"}
    given, words, _ = answers.own_options(CompareOptions, call, "cnn compare RUN... [options]", __doc__, places)
    if not words:
        raise OptionError("no run given; give run directories, as in cnn compare logs/<run> logs/<other>", run_list.listed())
    folders = [Path(run) for run in words]
    labels = given.labels or [folder.resolve().name for folder in folders]
    if len(labels) != len(folders):
        raise OptionError(f"--labels: give one label for each run; there are {len(labels)} labels and {len(folders)} runs")
    if len(folders) > len(training_chart.PENS):
        raise OptionError(f"{len(folders)} runs are too many: give at most {len(training_chart.PENS)}")
    for line in _fingerprints([folder for folder in folders if (folder / fingerprints.RECORD).exists()]):
        print(escaped(f"fingerprints of {line}"))
    for folder in folders:
        if not (folder / "training.csv").exists():
            began = (folder / "arguments.json").exists()
            what = "has not logged a training step yet" if began else "is not a run directory"
            raise OptionError(f"{folder} {what}: it has no training.csv")
    runs = [(label, *training_chart.tables(folder)) for label, folder in zip(labels, folders)]
    drawing = chart.figure(training_chart.comparison_panels(runs), given.title or "")
    output.write_atomically(given.output, drawing, output.SVG)
    print(given.output)
    return 0


def _fingerprints(folders: Sequence[Path]) -> Iterator[str]:
    """Yield a line for each run of several processes, and for each run but the first, which is compared with the first."""
    for folder in folders:
        processes, found = fingerprints.compare_processes(folder)
        if found:
            yield f"{folder}: processes first differ in {found}"
        elif processes > 1:
            yield f"{folder}: the weights of {processes} processes are equal"
    for folder in folders[1:]:
        count, found = fingerprints.compare_runs(folders[0], folder)
        what = f"first differ in {found}" if found else f"equal in all {count} updates that both have"
        what = what if count else "no update in common with the same tensors and processes"
        yield f"{folders[0]} and {folder}: {what}"


if __name__ == "__main__":
    sys.exit(answers.run_command("compare_runs", main, None))
