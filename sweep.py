"""Trains one network with many values of its options: every combination of a grid, or random draws, and compares them.

python sweep.py sweep.yml                         the only sweep of the file, into logs/sweep/<its name>
python sweep.py sweep.yml rates --dry-run         check and list its trials
python sweep.py sweep.yml rates --jobs 2 --epochs 3 --metric loss

rates:                          # in sweep.yml: a sweep, with options that all trials share
  config: quickstart
  epochs: 2
  grid:                         # every combination
    momentum: [0.8, 0.9]
    base-learning-rate-exponent: [-9, -10]
  # random:                     # or draws
  #   trials: 8
  #   abs-learning-rate: {low: 0.01, high: 1, scale: log}
  #   momentum: [0.8, 0.9, 0.95]

A call made again resumes a sweep that was stopped or killed; more values or trials are added the same way.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import startup

    startup.begin("sweep.py")

import os
import sys
from pathlib import Path

from base.errors import OptionError
from base.process.signals import StopRequest
from base.storage import files, locks
from harness.cluster import membership
from harness.commands import entry, hints
from harness.sweeping import block, output_files, sweep_options, trial_runs, trials, workers
from harness.sweeping.board import Board
from harness.sweeping.sweep_options import SweepRequest
from harness.sweeping.trial_runs import Planned


def main(argv: list[str]) -> int:
    """read -> check every trial -> train those that are not complete -> compare. 1 if a trial has failed."""
    request = sweep_options.parse(argv, __doc__)
    if membership.under_poprun(os.environ):
        raise OptionError("sweep.py starts a process for each trial: start it without poprun")
    sweep = block.read(request.file, request.name)
    top = request.logs_path / sweep.name
    ready = trial_runs.of(sweep, trials.of(sweep), request, top)
    output_files.check_place(top, ready)
    board, shares = Board(sweep, ready, request.metric), workers.shares(request.jobs, workers.cores())
    print(*board.head(top, shares), *trial_runs.notes(ready), sep="\n", flush=True)
    if request.dry_run:
        print(*board.plan(), sep="\n")
        return 0
    top.mkdir(parents=True, exist_ok=True)
    with locks.lock_folder(top, "the sweep"):
        try:
            _train(ready, board, top, shares)
        except StopRequest:
            print(f"{board.progress()}; so far: {output_files.table(top, board)}")
            print(f"Go on:           {hints.command('sweep', *argv)}")
            raise
        return _compare(request, board, top)


def _train(ready: list[Planned], board: Board, top: Path, shares: list[tuple[int, ...]]) -> None:
    """Train every trial that is not complete; the table is written after each."""
    outputs = files.own_folder(top / "output")
    left = [one for one in ready if not board.completed(one)]
    works = [workers.Work(one.trial.name, one.folder, one.words, outputs / f"{one.trial.name}.txt") for one in left]

    def ended(work: workers.Work, code: int, stopping: bool) -> None:
        board.ended(work, code, stopping)
        output_files.table(top, board)

    workers.Workers(shares, board.say).run(works, board.started, ended)


def _compare(request: SweepRequest, board: Board, top: Path) -> int:
    """Print the table and where the comparison is; 1 if a trial has failed."""
    print(f"\n{board.table()}\n\nAs a table:      {output_files.table(top, board)}")
    print(output_files.comparison(top, board.ordered()))
    if board.best:
        print(*output_files.best(top, board, request.metric), sep="\n")
    else:
        print(f"No trial is ranked: {board.why_unranked}")
    if board.failed:
        print(f"sweep.py: error: {board.failed} of {board.count} failed, as the table says", file=sys.stderr)
    return 1 if board.failed else 0


if __name__ == "__main__":
    sys.exit(entry.run_command("sweep", main, None))
