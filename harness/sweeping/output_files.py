"""The files beside a sweep's trials: its table, the page that compares them, and the best as a block for configs.yml."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from base import bounds
from base.errors import OptionError
from base.fields import ONE_CALL, brief
from base.process import command_line, commands
from base.storage import files, locks
from harness.checkpoints.checkpoint import CheckpointError
from harness.commands import cli, hints
from harness.options.exclusive import alone_in_their_groups
from harness.options.sections import COMMAND_LINE, CONFIGURATION, RunOptions, with_trait
from harness.report_page import page, run_folder
from harness.report_page.page import MAX_RUNS, Reported
from harness.sweeping import results
from harness.sweeping.board import Board
from harness.sweeping.results import Metric, Result
from harness.sweeping.trial_runs import Planned

TABLE, PAGE, BEST = "sweep.csv", "sweep.html", "best.yml"
_OF_A_FOLDER = ("log_dir", "name_suffix")
_NOT_HERE = "python report.py adds them, for a run"


def check_place(top: Path, trials: Sequence[Planned]) -> None:
    """OptionError for a folder that no sweep has locked and that has none of the trials, with another program's file in the
    place of one of a sweep's."""
    foreign = [name for name in (TABLE, PAGE, BEST) if os.path.lexists(top / name)]
    if foreign and not any(os.path.lexists(own) for own in (top / locks.FILE, *(each.folder for each in trials))):
        raise OptionError(
            f"{top} holds {foreign[0]}, which is of no sweep and would be replaced; give --logs-path another folder, or "
            "move the file away"
        )


def table(top: Path, board: Board) -> Path:
    """Write the table of all trials."""
    files.write_atomically(top / TABLE, results.as_csv(board.ordered(), board.sweep.axes))
    return top / TABLE


def comparison(top: Path, ordered: Sequence[Result]) -> str:
    """Write the page of the best trials side by side; return the line on it."""
    reported, target = [], top / PAGE
    for result in ordered:
        try:
            reported.append(Reported(run_folder.read(result.folder), missing=commands.spoken(_NOT_HERE)))
        except (OptionError, CheckpointError):  # a trial without rows
            continue
    shown = reported[:MAX_RUNS]
    if not shown:
        return f"warning: {target} is not written: no trial has rows"
    try:
        files.write_atomically(target, page.of(shown))
    except Exception as error:  # the trials are done, whatever is wrong with their page
        return f"warning: {target} is not written: {bounds.reason(error)}"
    left_out = f", the first {len(shown)} of {len(reported)}" * (len(shown) < len(reported))
    return f"Side by side:    {target}{left_out}"


def best(top: Path, board: Board, metric: Metric) -> list[str]:
    """Write the best trial, which there must be, as a block; return the lines on it."""
    planned, result = board.best
    name, target = f"{board.sweep.name}_best", top / BEST
    again = ("--config-path", command_line.as_value(target), "--config", name)
    head = (
        f"# The best of {board.count} of {board.sweep.name}: {planned.trial.name}",
        f"# {metric.text(result.value)}, in {brief(result.folder)}",
    )
    files.write_atomically(target, "\n".join((*head, block(name, planned.run.options))))
    return [f"As a block:      {target}", f"Train it again:  {hints.command('train', *again)}", *_doubts(planned, again)]


def block(name: str, options: RunOptions) -> str:
    """Every option that a configuration or the command line gave, as a configuration of its own."""
    left_out = with_trait(ONE_CALL) | {*_OF_A_FOLDER}
    values = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in options.values().items()
        if key not in left_out
        and value is not None
        and options.sources.get(key, "").startswith((COMMAND_LINE, CONFIGURATION))
    }
    lines = (f"  {key}: {_plain(value)}" for key, value in alone_in_their_groups(values).items())
    return "\n".join((f"{name}:", *lines, ""))


def _plain(value: Any) -> str:
    """A value of YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


def _doubts(planned: Planned, again: Sequence[str]) -> list[str]:
    """A warning where the block, read again, does not have the trial's options."""
    own = planned.run.options.values().keys() - with_trait(ONE_CALL) - {*_OF_A_FOLDER}
    try:
        read = cli.parse(list(again), "train").options.values()
        asked = cli.parse(list(planned.words), "train").options.values()
        other = sorted(name for name in own if read.get(name) != asked.get(name))
    except OptionError as error:
        return [f"warning: {commands.spoken('train.py')} does not take the block: {error}"]
    return [f"warning: the block has other values than the trial: {', '.join(other)}"] if other else []
