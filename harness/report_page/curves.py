"""The curves of one run, or of several in the same charts."""

from __future__ import annotations

from collections.abc import Sequence

from harness.report_page import chart, markup
from harness.report_page.chart import Curve
from harness.report_page.run_folder import RunFolder
from harness.reports import plot


def of_run(run: RunFolder) -> str:
    """Accuracy, loss and learning rate, training and validation in one chart each."""
    training, validation = run.training, run.validation
    accuracy = [
        Curve("training", plot.points(training, "train_acc_avg"), 0),
        Curve("validation", plot.of_epochs(validation), 1, dots=True),
    ]
    average = plot.points(training, "loss_avg")
    loss = [
        Curve("each host step", plot.points(training, "loss_batch"), -1, 1.2, outliers=True),
        Curve("training", average, 0),
        Curve("validation", plot.of_epochs(validation, "loss"), 1, dots=True, ceiling=plot.loss_ceiling(average)),
    ]
    rate = [Curve("learning rate", plot.points(training, "lr"), 2)]
    return _charts(accuracy, loss, rate)


def of_runs(runs: Sequence[tuple[str, RunFolder]]) -> str:
    """Measures of several runs in one chart, each in its own colour: training dashed, validation with dots."""
    accuracy, loss, rate = [], [], []
    for k, (label, run) in enumerate(runs):
        accuracy += [
            Curve(f"{label}, training", plot.points(run.training, "train_acc_avg"), k, 1.4, dashed=True),
            Curve(f"{label}, validation", plot.of_epochs(run.validation), k, dots=True),
        ]
        average = plot.points(run.training, "loss_avg")
        validated = plot.of_epochs(run.validation, "loss")
        loss += [
            Curve(f"{label}, training", average, k, 1.4, dashed=True),
            Curve(f"{label}, validation", validated, k, dots=True, ceiling=plot.loss_ceiling(average)),
        ]
        rate.append(Curve(label, plot.points(run.training, "lr"), k))
    return _charts(accuracy, loss, rate)


def _charts(accuracy: list[Curve], loss: list[Curve], rate: list[Curve]) -> str:
    """The charts that have a curve, on one axis of epochs."""
    epochs = chart.epochs([*accuracy, *loss, *rate])
    figures = (
        chart.of("Top-1 accuracy, %", accuracy, epochs, floor=0, unit=" %"),
        chart.of("Loss", loss, epochs),
        chart.of("Learning rate", rate, epochs, floor=0),
    )
    return markup.charts(filter(None, figures))
