"""The worker process of a benchmark: builds the training program of its options and does one host step a round."""

from __future__ import annotations

import os
import sys
import time

from benchmarks import _paired
from harness import cli, quiet
from harness.run import prepare


def main(argv: list[str]) -> None:
    """`--updates N` of `argv` is the length of a round, everything else an option of train.py."""
    updates, words = int(argv[1]), argv[2:]
    run = prepare(cli.parse(words, "train", environ={}).options, os.environ)
    quiet.import_tensorflow()
    from harness.build import training_program

    before = _paired.resident()
    started = time.perf_counter()
    program = training_program(run, 0)
    program.compile()
    built = time.perf_counter() - started

    def work() -> float:
        program.step([1e-4] * updates)
        return updates * run.plan.global_batch

    _paired.serve(work, {"memory": before, "built": built})


if __name__ == "__main__":
    main(sys.argv[1:])
