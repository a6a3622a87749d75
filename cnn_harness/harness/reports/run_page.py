"""Write a report on one run, or on several runs side by side, as a self-contained HTML page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import commands
from cnn_harness.base.storage import files
from cnn_harness.harness.reports import input_share, markup, noise_scale, run_folder, training_chart, validation_sections
from cnn_harness.harness.reports.run_folder import RunFolder
from cnn_harness.harness.reports.training_chart import number

if TYPE_CHECKING:
    from cnn_harness.harness.reports.validation_sections import Evaluation

FILE = "report.html"
MAX_RUNS = 16  # maximum number of runs on one page
_AT_THE_END = "to add them, run cnn report; it needs the newest checkpoint and the data"
_RECORDED = {
    "command": "command", "started": "datetime", "host": "hostname", "processes": "instances", "seed": "seed",
    "run ID": "run_id", "data": "data_dir", "digest of the data": "records_digest",
}  # fmt: skip


@dataclass(frozen=True)
class Reported:
    """A run on a page. `evaluation` contains the predictions of a checkpoint. `missing` is the reason if there are none."""

    run: RunFolder
    evaluation: Evaluation | None = None
    missing: str = ""


def write(folder: Path) -> Path:
    """Write a report to the run directory and return its path. The report has no validation results, which need the data."""
    target = folder / FILE
    files.write_atomically(target, render([Reported(run_folder.read(folder), missing=commands.as_invoked(_AT_THE_END))]))
    return target


def render(reported: Sequence[Reported]) -> str:
    """Return the complete page as HTML."""
    return _one_run(reported[0]) if len(reported) == 1 else _several_runs(reported)


def _one_run(reported: Reported) -> str:
    run = reported.run
    title, result = _title(run), _results(run)
    parts = [
        markup.heading(1, title),
        markup.paragraph(f"{run.name}: {_state(run)}", "soft"),
        markup.facts((value, name) for name, value in result.items()),
    ]
    return markup.page(
        title, [*parts, *_sections(reported, 2, markup.charts(training_chart.run_panels(run.training, run.validation)))]
    )


def _several_runs(reported: Sequence[Reported]) -> str:
    runs = [each.run for each in reported]
    labels, results = _labels(runs), [_results(run) for run in runs]
    options = [(name, *values) for name, values in run_folder.different_options(runs)]
    names = dict.fromkeys(name for result in results for name in result)
    figures = [(name, *(("n", result.get(name, "-")) for result in results)) for name in names]
    parts = [
        markup.heading(1, f"{len(runs)} runs compared"),
        markup.heading(2, "Options that differ"),
        markup.table(("option", *labels), options) if options else markup.paragraph("All runs have the same options."),
        markup.heading(2, "Results"),
        markup.table(("", *labels), figures),
        markup.heading(2, "Training curves"),
        markup.charts(
            training_chart.comparison_panels([(label, run.training, run.validation) for label, run in zip(labels, runs)])
        ),
    ]
    for label, each in zip(labels, reported):
        parts += [markup.heading(2, label), markup.paragraph(f"{_title(each.run)}. {_state(each.run)}", "soft")]
        parts.append(markup.folded("Details of this run", "\n".join(_sections(each, 3))))
    return markup.page(f"{len(runs)} runs: {', '.join(labels)}", parts)


def _sections(reported: Reported, level: int, curves: str = "") -> list[str]:
    """Return the sections about one run. `level` is the HTML level of the headings."""
    run, scored, summary = reported.run, reported.evaluation, reported.run.arguments.get("summary_str")
    missing = f"the validation results are missing: {reported.missing or 'no checkpoint was evaluated'}"
    share = input_share.mean(run.training)
    slow = [input_share.advice(share, run.options)] * (share > input_share.MUCH)
    notes = [*run.notes, *slow, *([] if scored else [missing])]
    parts = [markup.paragraph(f"{note[:1].upper()}{note[1:]}.", "note") for note in notes]
    for title, content in (
        ("Training curves", curves),
        ("Batch size", _batch_size(run)),
        ("Averaged weights", _averages(run)),
        ("Validation results", validation_sections.section(scored) if scored else ""),
        ("Options that differ from the defaults", _options(run)),
        ("Plan", markup.text(str(summary)) if summary else ""),
        ("Environment", _environment(run)),
    ):
        parts += [markup.heading(level, title), content] if content else []
    return parts


def _title(run: RunFolder) -> str:
    """Return a title with network, data set, best accuracy and best checkpoint."""
    result = _results(run)
    if "best checkpoint" in result:
        return f"{run.network}: {result['best validation accuracy']} validation accuracy at {result['best checkpoint']}"
    trained = result.get("last training accuracy")
    return f"{run.network}: {trained} training accuracy, not validated" if trained else run.network


def _state(run: RunFolder) -> str:
    """Return a run's progress as text, such as "500 of 1,250 updates"."""
    total, epochs = run.arguments.get("total_iterations"), number(run.training[-1], "epoch") if run.training else math.nan
    if run.untrained:
        return "0 updates: in the trial, training did not help"
    state = f"{run.done:,}{f' of {total:,}' if total else ''} updates{f', {epochs:.4g} epochs' if epochs == epochs else ''}"
    if not total or not run.training or run.done >= total:
        return state
    return state + ("; ended by --patience" if run.out_of_patience else "; still running or stopped")


def _results(run: RunFolder) -> Mapping[str, str]:
    """Return the available results of a run as text, by name."""
    best, trained = run.best or {}, run.training[-1] if run.training else {}
    last = next((row for row in reversed(run.validation) if number(row, "iteration") >= 0), {})
    rates = [rate for row in run.training if math.isfinite(rate := number(row, "img_per_sec"))]
    figures = (
        ("best validation accuracy", number(best, "val_acc"), "{:.2f} %"),
        ("top-5 accuracy at the best checkpoint", number(best, "top5_acc"), "{:.2f} %"),
        ("last validation accuracy", number(last, "val_acc"), "{:.2f} %"),
        ("last validation loss", number(last, "loss"), "{:.4g}"),
        ("last training accuracy", number(trained, "train_acc_avg"), "{:.2f} %"),
        ("last training loss", number(trained, "loss_avg"), "{:.4g}"),
        ("updates", run.done, "{:,}"),
        ("parameters", run.arguments.get("parameters") or math.nan, "{:,}"),
        ("images per second (median)", statistics.median(rates or [math.nan]), "{:,.1f}"),
        ("training time", number(trained, "total_time"), "{:,.1f} s"),
        ("of it, waiting for data", 100 * input_share.mean(run.training), "{:.1f} %"),
    )
    results = {name: form.format(value) for name, value, form in figures if value >= 0}
    if best:
        name = best.get("name") or f"update {best['iteration']}"
        averaged = number(best, "iteration") < 0  # Averaged weights belong to no epoch.
        epoch = "" if averaged else f" (epoch {number(best, 'epoch'):.4g})"
        results["best checkpoint"] = f"{name}{epoch}"
    return results


def _batch_size(run: RunFolder) -> str:
    """Return what the gradient noise scale says about the batch size; "" if the run did not estimate it."""
    scale, batch = number(run.training[-1], "noise_scale") if run.training else 0, run.arguments.get("global_batch_size")
    return noise_scale.section(scale, batch) if scale > 0 and batch else ""


def _averages(run: RunFolder) -> str:
    """Return a table of the averaged weights. The charts leave them out, because they belong to no epoch."""
    rows = [
        (row.get("name") or "", ("n", f"{number(row, 'val_acc'):.2f}"), ("n", f"{number(row, 'loss'):.4g}"))
        for row in run.validation
        if number(row, "iteration") < 0
    ]
    return markup.table(("", "accuracy, %", "loss"), rows) if rows else ""


def _options(run: RunFolder) -> str:
    """Return a folded table of the options that differ from their defaults, or a reason if the options are unknown."""
    try:
        changed = run_folder.changed_options(run)
    except OptionError as error:
        return markup.paragraph(f"Unknown: {str(error).splitlines()[0]}")
    if not changed:
        return markup.paragraph("None.")
    summary = f"{len(changed)} option{'s' * (len(changed) != 1)}"
    return markup.folded(summary, markup.table(("option", "value", "default"), changed))


def _environment(run: RunFolder) -> str:
    """Return a table with the recorded command, host, time and data."""
    known = [(name, str(run.arguments[key])) for name, key in _RECORDED.items() if run.arguments.get(key) is not None]
    return markup.table(("", ""), known) if known else ""


def _labels(runs: Sequence[RunFolder]) -> list[str]:
    """Return the names of the run directories, with as many parent directories as needed to make the names unique."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{run.name} ({k})" for k, run in enumerate(runs, 1)]
