"""Open the log of a call and write the first lines: command line, run directory, processes, options and notes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cnn_harness.base.process import commands
from cnn_harness.harness.distributed.folders import new_run_folder
from cnn_harness.harness.distributed.team import introduction
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.run import cli, processor
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.recorded_arguments import arguments
from cnn_harness.harness.run.run import Run
from cnn_harness.log import RunLog, write_arguments


def open_run_log(
    run: Run, execution: Execution, folder: Path | None, values: Mapping[str, Any] | None, head: Sequence[str], *,
    console: bool = True, locked: bool = False,
) -> RunLog:  # fmt: skip
    """Open a log in `folder`, or only on the console if `folder` is None, and write the first lines.

    values: the content of arguments.json; None if it is written later
    head: lines that describe the work
    locked: the same as in `RunLog`
    """
    how = vintage(run.options.main.release)
    log = RunLog(folder, console, locked, how.throughput, how.names_validations, run.options.logging.brief)
    log.file_only(f"Command line: {command_line()}")
    if folder:
        log.note(f" Saving to {folder}")
    for line in introduction(execution.cluster, run.plan.options.all_reduce_format, run.options.training.bind):
        log.note(line)
    if folder and values is not None:
        write_arguments(folder, values)
    log.file_only(f"Options:\n{cli.explain(run.options)}")
    for line in (*execution.notes, *head):
        for part in line.splitlines():
            if part.startswith("  "):
                log.detail(part)
            else:
                log.note(part, always=part.startswith(processor.TAKES))
    tolerance = getattr(run.data_source, "tolerance", None)
    if tolerance is not None:
        tolerance.follow(keep=log.file_only, warn=log.warn)
    return log


def open_own_log(run: Run, execution: Execution, head: Sequence[str]) -> RunLog:
    """Open the log of a validation or of inference in a new folder. Only the first process writes it."""
    logging = run.options.logging
    if execution.cluster.instance:
        return RunLog(None, console=logging.log_all_instances)
    folder = new_run_folder(run.name, logging.log_dir, logging.logs_path, keep=True) if logging.logs else None
    values = arguments(run, execution, command_line(), {"logs_path": str(folder)})
    return open_run_log(run, execution, folder, values, head, locked=True)


def training_head(run: Run, execution: Execution) -> list[str]:
    """Return the log lines that describe the network and the plan of a training."""
    from cnn_harness.harness.reports import predicted_rate

    names = [v.name for v in run.network.variables if v.trainable and run.is_trained(v.name)]
    return [
        run.summary(execution),
        *predicted_rate.lines(run),
        f"Trainable Variables: {len(names)}\n" + textwrap.indent(textwrap.fill(" ".join(names), 116), "  "),
        f"Total Parameters:{run.network.parameters}",
    ]


def validation_head(run: Run) -> list[str]:
    """Return the log line that announces a validation."""
    spec, mirrored = run.data_source.spec, ", each with its mirror image" if run.mirrors else ""
    return [f"Validating {run.name} on {spec.validation_images} images of {spec.name}{mirrored}"]


def command_line() -> str:
    """Return the command line as the shell passed it."""
    return " ".join([commands.prog(sys.argv[0]), *sys.argv[1:]])
