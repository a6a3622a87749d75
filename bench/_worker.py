"""Worker process of the benchmarks that runs this harness.

Call: python -m bench._worker [--inference] UPDATES OPTION... with options of train.py. In each round, the worker trains
for UPDATES weight updates. With --inference, it runs UPDATES micro-batches in a frozen program.
"""

from __future__ import annotations

import argparse
import os
import time

from bench import _rounds
from cnn_harness.base import version as versions
from cnn_harness.base.process import command_line, tf_runtime
from cnn_harness.harness.distributed.team import Team
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run


def main(updates: int, words: list[str]) -> None:
    """Run the requested rounds of `updates` weight updates. `words` are options of train.py."""
    run, cluster, _ = prepare(cli.parse(words, "train", environ={}).options, os.environ, here=True)
    with Team(cluster, 600) as team:
        _answer(run, team.rendezvous(run), team, updates)
        team.shut_down()


def _answer(run: Run, seed: int, team: Team, updates: int) -> None:
    tf_runtime.import_tensorflow()
    from cnn_harness.harness.programs.build import training_program

    started = time.perf_counter()
    program = training_program(run, seed, 0, recording=True, group=team.group)
    program.compile()
    _rounds.serve(
        lambda: program.step([1e-4] * updates),
        updates * run.plan.global_batch,
        {"alive": lambda: program.profile(1e-4, operations=True).most_alive / 1e6},
        built=time.perf_counter() - started,
        version=version(),
        multiply_adds=run.network.multiply_adds,
    )


def infer(batches: int, words: list[str]) -> None:
    """Run the requested rounds of `batches` micro-batches of inference, one after another."""
    options = cli.parse(words, "inference_embedded", environ={}).options
    run = prepare(options, os.environ, training=False, here=True).run
    execution = Execution.of(options)
    tf_runtime.import_tensorflow()
    from cnn_harness.harness.programs.build import frozen_program, validation_batches_uint8
    from cnn_harness.ipu_utils import FrozenProgram

    program = FrozenProgram(frozen_program(run, execution.seed, None, ""))
    images = validation_batches_uint8(run, execution, 1).images[0]

    def work() -> None:
        for _ in range(batches):
            program.infer(images)

    work()
    _rounds.serve(work, batches * len(images), version=version())


def version() -> str:
    """Return the names and versions of this harness and TensorFlow."""
    return f"this harness, TensorFlow {versions.installed('tensorflow')}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inference", action="store_true", help="run micro-batches of inference instead of weight updates")
    parser.add_argument("updates", type=command_line.int_between(1), help="number of weight updates in a round")
    parser.add_argument("words", nargs=argparse.REMAINDER, help="options of train.py")
    asked = parser.parse_args()
    infer(asked.updates, asked.words) if asked.inference else main(asked.updates, asked.words)
