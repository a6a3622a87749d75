"""A run, or several side by side, as one page that needs nothing else."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from base.process import commands, versions
from base.storage import files
from harness.report_page import answer_sections, differences, markup, run_folder
from harness.report_page.evaluation import Evaluation
from harness.report_page.run_folder import Row, RunFolder, number
from harness.reports import chart, plot
from harness.reports.chart import Curves

FILE = "report.html"
MAX_RUNS = 16  # on one page
_COMPILED = {"Compilation time:": "compilation", "Validation program ready in": "compilation for validation"}
_PLACED = "at epoch"  # a figure that the title has already
_WITHOUT = "the validation results are missing: "
_AT_THE_END = "cnn report adds them, with the newest checkpoint and the data"


@dataclass(frozen=True)
class Reported:
    """A run on a page. `evaluation`: its newest checkpoint's answers; `missing`: why there are none."""

    run: RunFolder
    evaluation: Evaluation | None = None
    missing: str = ""


def write(folder: Path) -> Path:
    """Write the page of a run, from its rows alone, beside them, whole or not at all."""
    target = folder / FILE
    files.write_atomically(target, of([Reported(run_folder.read(folder), missing=commands.spoken(_AT_THE_END))]))
    return target


def of(reported: Sequence[Reported]) -> str:
    """The whole page."""
    return _of_one(reported[0]) if len(reported) == 1 else _of_several(reported)


def _of_one(reported: Reported) -> str:
    run = reported.run
    title = _title(run)
    parts = [markup.heading(1, title), markup.paragraph(f"{run.name}: {_state(run)}", "soft"), _facts(run)]
    return markup.page(title, [*parts, *_sections(reported, 2, with_curves=True)])


def _of_several(reported: Sequence[Reported]) -> str:
    runs = [each.run for each in reported]
    labels = _labels(runs)
    title = f"{len(runs)} runs: {', '.join(labels)}"
    rows = [(name, *values) for name, values in differences.between(runs)]
    options = markup.table(("option", *labels), rows) if rows else markup.paragraph("The runs have the same options.")
    parts = [
        markup.heading(1, f"{len(runs)} runs compared"),
        markup.heading(2, "Options in which they differ"),
        options,
        markup.heading(2, "Results"),
        markup.table(("", *labels), _result_rows(runs)),
        markup.heading(2, "Curves"),
        _charts(plot.of_runs([(label, run.training, run.validation) for label, run in zip(labels, runs)])),
    ]
    for label, each in zip(labels, reported):
        parts += [markup.heading(2, label), markup.paragraph(f"{_title(each.run)}. {_state(each.run)}", "soft")]
        parts.append(markup.folded("This run alone", "\n".join(_sections(each, 3, with_curves=False))))
    return markup.page(title, parts)


def _sections(reported: Reported, level: int, with_curves: bool) -> list[str]:
    """The parts of a page on one run, each below a heading of a level."""
    run, scored = reported.run, reported.evaluation
    notes = [*run.notes, *([] if scored else [_WITHOUT + (reported.missing or "no checkpoint was evaluated")])]
    parts = [markup.listed([note[:1].upper() + note[1:] + "." for note in notes])]
    if with_curves:
        parts += [markup.heading(level, "Curves"), _charts(plot.of_run(run.training, run.validation))]
    parts += [_averages(run)]
    parts += [markup.heading(level, "Validation results"), answer_sections.section(scored)] if scored else []
    parts += [markup.heading(level, "Options that differ from the defaults"), _options(run)]
    if run.arguments.get("summary_str"):
        parts += [markup.heading(level, "Plan"), markup.text(str(run.arguments["summary_str"]))]
    parts += [markup.heading(level, "Timings"), markup.pairs(_timings(run))]
    parts += [markup.heading(level, "Environment"), markup.pairs(_environment(run))]
    return parts


def _charts(panels: Sequence[Curves]) -> str:
    return markup.charts(markup.figure(chart.figure([panel], alone=False)) for panel in panels)


def _title(run: RunFolder) -> str:
    """Network, data, best accuracy and where."""
    best = run.best
    if best:
        return f"{run.network}: {number(best, 'val_acc'):.2f} % at {_place(best)}"
    trained = run.training[-1:] and number(run.training[-1], "train_acc_avg")
    return f"{run.network}: {trained:.2f} % in training, not validated" if trained else run.network


def _place(row: Row) -> str:
    """The checkpoint of a row of validation, and its epoch."""
    name = row.get("name") or f"update {row['iteration']}"
    return f"{name} (epoch {number(row, 'epoch'):.4g})" if number(row, "iteration") >= 0 else name


def _epoch(row: Row) -> str:
    """The epoch of a row of validation; the name of averaged weights, which have none."""
    return f"{number(row, 'epoch'):.4g}" if number(row, "iteration") >= 0 else row.get("name", "")


def _state(run: RunFolder) -> str:
    """The progress of a run."""
    total, epochs = run.arguments.get("total_iterations"), _last(run.training, "epoch")
    told = f"{run.done:,} updates" + (f" of {total:,}" if total else "") + (f", {epochs} epochs" if epochs else "")
    if not total or not run.training or run.done >= total:
        return told
    return told + ("; --patience ended it" if run.out_of_patience else "; it is going on, or was stopped")


def _facts(run: RunFolder) -> str:
    return markup.facts((value, name) for name, value in _results(run).items() if value and name != _PLACED)


def _result_rows(runs: Sequence[RunFolder]) -> list[tuple[markup.Cell, ...]]:
    """The results of several runs, a column for each; without rows that no run has."""
    results = [_results(run) for run in runs]
    rows = [(name, *(("n", each[name] or "-") for each in results)) for name in results[0]]
    return [row for row in rows if any(cell != ("n", "-") for cell in row[1:])]


def _results(run: RunFolder) -> Mapping[str, str]:
    """The figures of a run by their names; an empty text for a missing one."""
    best, validated = run.best, [row for row in run.validation if number(row, "iteration") >= 0]
    last, parameters = validated[-1:], run.arguments.get("parameters")
    return {
        "best validation accuracy": f"{number(best, 'val_acc'):.2f} %" if best else "",
        _PLACED: _epoch(best) if best else "",
        "top-5 accuracy there": f"{number(best, 'top5_acc'):.2f} %" if best and number(best, "top5_acc") >= 0 else "",
        "last validation accuracy": f"{number(last[0], 'val_acc'):.2f} %" if last else "",
        "last validation loss": f"{number(last[0], 'loss'):.4g}" if last and number(last[0], "loss") >= 0 else "",
        "last training accuracy": _last(run.training, "train_acc_avg", " %", ".2f"),
        "last training loss": _last(run.training, "loss_avg"),
        "updates": f"{run.done:,}",
        "parameters": f"{parameters:,}" if parameters else "",
        "training time": _duration(_last_number(run.training, "total_time")),
    }


def _averages(run: RunFolder) -> str:
    """The rows of averaged weights, which have no place on the axis of epochs."""
    rows = [
        (row.get("name") or "", ("n", f"{number(row, 'val_acc'):.2f}"), ("n", f"{number(row, 'loss'):.4g}"))
        for row in run.validation
        if number(row, "iteration") < 0
    ]
    return markup.table(("averaged weights", "accuracy, %", "loss"), rows) if rows else ""


def _options(run: RunFolder) -> str:
    changed, unknown = differences.listed(run)
    if unknown:
        return markup.paragraph(f"They are not known: {unknown}")
    if not changed:
        return markup.paragraph("None.")
    return f'<div class="options">{markup.table(("option", "value", "default of its kind"), changed)}</div>'


def _timings(run: RunFolder) -> list[tuple[str, str]]:
    """The times of a run, as far as the rows tell."""
    rates, speed = _finite(run.training, "img_per_sec"), _finite(run.validation, "img_per_sec")
    updates, validated = _finite(run.training, "it_time"), _finite(run.validation, "val_time")
    compiled = ((_COMPILED.get(line, line), f"{seconds:.1f} s") for line, seconds in run.compiled.items())
    pairs = (
        *compiled,
        ("host steps", _duration(_last_number(run.training, "total_time"))),
        ("an update (median)", f"{1000 * statistics.median(updates):.4g} ms" if updates else ""),
        ("images a second (median)", f"{statistics.median(rates):,.1f}" if rates else ""),
        ("validations", f"{len(run.validation)}, {_duration(sum(validated))} together" if validated else ""),
        ("images a second in validation (median)", f"{statistics.median(speed):,.1f}" if speed else ""),
    )
    return [(name, value) for name, value in pairs if value]


def _finite(rows: Sequence[Row], column: str) -> list[float]:
    """The numbers of a column, without those that are missing or none."""
    return [value for value in (number(row, column) for row in rows) if math.isfinite(value)]


def _environment(run: RunFolder) -> list[tuple[str, str]]:
    """The place and the time of a run, as it recorded them, and the software that wrote this page."""
    recorded = run.arguments
    seed = recorded.get("seed")
    drawn = "" if recorded.get("seed_specified") else " (drawn)"
    page = f"Python {platform.python_version()}, TensorFlow {versions.installed('tensorflow')}, {platform.platform()}"
    pairs = (
        ("command", recorded.get("command")),
        ("begun", recorded.get("datetime")),
        ("host", recorded.get("hostname")),
        ("processes", recorded.get("instances")),
        ("seed", None if seed is None else f"{seed}{drawn}"),
        ("run", recorded.get("run_id")),
        ("data", recorded.get("data_dir")),
        ("digest of the data", recorded.get("records_digest")),
        ("this page is by", page),
    )
    return [(name, str(value)) for name, value in pairs if value is not None]


def _labels(runs: Sequence[RunFolder]) -> list[str]:
    """The folders' names, with as many of the folders around them as tell them apart."""
    paths = [run.path.resolve() for run in runs]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(labels)) == len(labels):
            return labels
    return [f"{run.name} ({k})" for k, run in enumerate(runs, 1)]


def _last_number(rows: Sequence[Row], column: str) -> float:
    return number(rows[-1], column) if rows else float("nan")


def _last(rows: Sequence[Row], column: str, unit: str = "", form: str = ".4g") -> str:
    value = _last_number(rows, column)
    return f"{value:{form}}{unit}" if value == value else ""


def _duration(seconds: float) -> str:
    """Seconds as people say them; an empty text for nan."""
    if seconds != seconds:
        return ""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
