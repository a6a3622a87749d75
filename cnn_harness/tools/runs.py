"""List the runs in a folder, or remove some of them.

cnn runs
cnn runs logs/resnet --sort accuracy --json
cnn runs logs --remove RN8_bs8_BN_16.16_YH8
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import escaped, short
from cnn_harness.base.process import command_line
from cnn_harness.base.storage import locks
from cnn_harness.harness.commands import answers, run_list
from cnn_harness.harness.commands.run_list import RUNNING, RunSummary

_ORDER = "time"


def main(argv: list[str]) -> int:
    """List or remove the runs in a folder; return the exit code."""
    options = _parser().parse_args(argv)
    found = run_list.find_runs(Path(options.logs), lambda line: print(line, file=sys.stderr))
    runs = run_list.ordered(found, options.sort)
    if options.remove:
        return _remove(_named(runs, options.remove), options.yes)
    if options.json:
        print(json.dumps(list(map(run_list.as_json, runs)), indent=2))
    else:
        print(run_list.table(runs) if runs else f"No runs in {options.logs}")
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


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(prog="cnn runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("logs", nargs="?", default=run_list.LOGS, metavar="LOGS", help="folder to search for runs (default: %(default)s)")
    add(
        "--sort",
        choices=run_list.ORDERS,
        default=_ORDER,
        help="order: newest first, most accurate first, or by name (default: time)",
    )
    add("--json", action="store_true", help="print the list as JSON")
    add("--remove", nargs="+", metavar="NAME", help="remove these runs; give names or paths")
    add("--yes", action="store_true", help="let --remove delete without asking")
    return parser


if __name__ == "__main__":
    sys.exit(answers.run_command("runs", main, None))
