"""List the runs in a folder, or remove some of them.

cnn runs
cnn runs logs/resnet --sort accuracy --json
cnn runs logs --remove RN8_bs8_BN_16.16_YH8
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import escaped, opt, short
from cnn_harness.base.storage import locks
from cnn_harness.harness.commands import answers, run_list
from cnn_harness.harness.commands.run_list import RUNNING, RunSummary
from cnn_harness.harness.options.call import Call


@dataclass(frozen=True, kw_only=True)
class RunsOptions(answers.OwnOptions):
    """The options of cnn runs."""

    sort: str = opt("time", "order: newest first, most accurate first, or by name", choices=run_list.ORDERS)
    json: bool = opt(False, "print the list as JSON")
    remove: tuple[str, ...] = opt((), "remove these runs; give names or paths", metavar="NAME")
    yes: bool = opt(False, "let --remove delete without asking")


def main(call: Call) -> int:
    """List or remove the runs in a folder; return the exit code."""
    logs = {"LOGS": f"folder to search for runs (default: {run_list.LOGS})"}
    options, words, _ = answers.own_options(RunsOptions, call, "cnn runs [LOGS] [options]", __doc__, logs)
    folder = words[0] if words else run_list.LOGS
    found = run_list.find_runs(Path(folder), lambda line: print(line, file=sys.stderr))
    runs = run_list.ordered(found, options.sort)
    if options.remove:
        return _remove(_named(runs, options.remove), options.yes)
    if options.json:
        print(json.dumps(list(map(run_list.as_json, runs)), indent=2))
    else:
        print(run_list.table(runs) if runs else f"No runs in {folder}")
    return 0


def _named(runs: Sequence[RunSummary], names: Sequence[str]) -> list[RunSummary]:
    """Return the runs with these names or paths, without duplicates. Raise OptionError for an unknown name, and for a run
    that must not be removed."""
    by_name = {run.name: run for run in runs}
    by_path = {os.path.normpath(run.folder): run for run in runs}
    chosen = {}
    for name in names:
        run = by_name.get(os.path.normpath(name)) or by_path.get(os.path.normpath(name))
        if run is None:
            raise OptionError(f"--remove {short(name)}: there is no such run{plugins.did_you_mean(name, list(by_name))}")
        if run.state == RUNNING:
            raise OptionError(f"--remove {run.name}: the run is still running; stop it first")
        _check_folder(run)
        chosen[run.name] = run
    return list(chosen.values())


def _check_folder(run: RunSummary) -> None:
    """Raise OptionError if the directory is a link or contains another run, even a hidden or deeply nested one."""
    folder = Path(run.folder)
    if not run_list.is_run(folder):
        raise OptionError(f"--remove {run.name}: {run.folder} is not a run directory, or is a link")
    inside = run_list.run_inside(folder)
    if inside:
        raise OptionError(f"--remove {run.name}: it contains another run, {inside}; move or remove that run first")


def _remove(runs: Sequence[RunSummary], confirmed: bool) -> int:
    """List the runs, ask, and remove their directories. Lock each directory meanwhile. Return 1 if the user declines."""
    if not confirmed and not sys.stdin.isatty():
        raise OptionError("--remove asks for confirmation, but there is no terminal; give --yes to remove without asking")
    print(run_list.table(runs))
    if not confirmed:
        them = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
        print(f"Remove {them} with all files? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was removed")
            return 1
    for run in runs:
        with locks.lock_folder(Path(run.folder)):
            _check_folder(run)  # check again: the folder may have changed before the user answered
            shutil.rmtree(run.folder)
        print(f"Removed {escaped(run.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(answers.run_command("runs", main, None))
