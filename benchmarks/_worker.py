"""The worker process of a benchmark: builds the training program of its options and does one host step a round.

The benchmarks start it: python benchmarks/_worker.py UPDATES OPTION... with options of train.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from base.process import command_line, tf_runtime
from harness.commands import cli
from harness.processes.team import Team
from harness.run.resolve import prepare
from harness.run.run import Run


def main(updates: int, words: list[str]) -> None:
    """`updates` is the length of a round, `words` are options of train.py. Answers each line of standard input."""
    run = prepare(cli.parse(words, "train", environ={}).options, os.environ)
    with Team(run.cluster, 600) as team:
        team.rendezvous(run)
        _answer(run, team, updates)
        team.shut_down()


def _answer(run: Run, team: Team, updates: int) -> None:
    tf_runtime.import_tensorflow()
    from harness.programs.build import training_program

    started = time.perf_counter()
    program = training_program(run, 0, recording=True, group=team.group)
    program.compile()
    _say(built=time.perf_counter() - started)
    for line in sys.stdin:
        if line.strip() == "peak":
            _say(peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        elif line.strip() == "alive":
            _say(alive=program.profile(1e-4, operations=True).most_alive / 1e6)
        else:
            started = time.perf_counter()
            program.step([1e-4] * updates)
            _say(speed=updates * run.plan.global_batch / (time.perf_counter() - started))


def _say(**values: float) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("updates", type=command_line.whole(1), help="weight updates of a round")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="options of train.py")
    asked = parser.parse_args()
    main(asked.updates, asked.words)
