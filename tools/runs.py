"""Lists the runs below a folder, and removes those that are named.

cnn runs
cnn runs logs/resnet --sort accuracy --json
cnn runs logs --remove RN8_bs8_BN_16.16_YH8
"""

from __future__ import annotations

if not __package__:  # called by its path
    import bootstrap  # noqa: F401

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from base import plugins
from base.errors import OptionError
from base.fields import escaped, short
from base.process import command_line
from base.storage import locks
from harness.commands import answers, run_list
from harness.commands.run_list import RUNNING, RunSummary

_ORDER = "time"


def main(argv: list[str]) -> int:
    """parse -> find -> print, or remove."""
    options = _parser().parse_args(argv)
    found = run_list.find_runs(Path(options.logs), lambda line: print(line, file=sys.stderr))
    runs = run_list.ordered(found, options.sort)
    if options.remove:
        return _remove(_named(runs, options.remove), options.yes)
    if options.json:
        print(json.dumps(list(map(run_list.as_json, runs)), indent=2))
    else:
        print(run_list.table(runs) if runs else f"There are no runs below {options.logs}")
    return 0


def _named(runs: Sequence[RunSummary], names: Sequence[str]) -> list[RunSummary]:
    """Return the runs of these names, or paths, each once; OptionError for a path that is none, or may not go."""
    by_name = {run.name: run for run in runs}
    by_path = {os.path.normpath(run.folder): run for run in runs}
    chosen = {}
    for name in names:
        run = by_name.get(os.path.normpath(name)) or by_path.get(os.path.normpath(name))
        if run is None:
            raise OptionError(f"--remove {short(name)}: no run of that name{plugins.did_you_mean(name, list(by_name))}")
        if run.state == RUNNING:
            raise OptionError(f"--remove {run.name}: it is running; stop it first")
        _check_folder(run)
        chosen[run.name] = run
    return list(chosen.values())


def _check_folder(run: RunSummary) -> None:
    """OptionError for a link, and for a folder with a run inside, also where the list leaves that out: under a hidden name,
    or deeper."""
    folder = Path(run.folder)
    if not run_list.is_run(folder):
        raise OptionError(f"--remove {run.name}: {run.folder} is no folder of a run; links are not followed")
    inside = run_list.run_inside(folder)
    if inside:
        raise OptionError(f"--remove {run.name}: {inside} is a run inside of it; move that elsewhere, or remove it first")


def _remove(runs: Sequence[RunSummary], confirmed: bool) -> int:
    """Remove the folders of runs, each under its lock, after naming them; 1 if the answer is no."""
    if not confirmed and not sys.stdin.isatty():
        raise OptionError("--remove asks before it removes, and there is no terminal to answer on: give --yes too")
    print(run_list.table(runs))
    if not confirmed:
        them = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
        print(f"Remove {them} with all files? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing was removed")
            return 1
    for run in runs:
        with locks.lock_folder(Path(run.folder)):
            _check_folder(run)  # again, as the answer may have taken its time
            shutil.rmtree(run.folder)
        print(f"Removed {escaped(run.folder)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(prog="cnn runs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("logs", nargs="?", default="logs", metavar="LOGS", help="the folder whose runs are listed (default: logs)")
    add("--sort", choices=run_list.ORDERS, default=_ORDER, help="last changed, best or first in the alphabet first [time]")
    add("--json", action="store_true", help="print a list of objects")
    add("--remove", nargs="+", metavar="NAME", help="remove these runs, by their names in the list, or their paths")
    add("--yes", action="store_true", help="with --remove: do not ask")
    return parser


if __name__ == "__main__":
    sys.exit(answers.run_command("runs", main, None))
