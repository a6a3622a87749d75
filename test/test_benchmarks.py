"""Benchmarks: their configurations run and their results are read. No time is measured."""

from __future__ import annotations

import pytest

from bench import peers
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare


@pytest.mark.parametrize("row", peers.ROWS, ids=lambda row: row.name)
def test_every_row_can_run(row):
    """Every contestant has the same network size, batch and accumulation."""
    script = "inference_embedded" if row.inference else "train"
    commands = row.commands("python")
    words = commands[peers.OURS]
    options = words[words.index(str(row.updates)) + 1 :]
    run = prepare(cli.parse(options, script, environ={}).options, {}, training=not row.inference).run
    assert run.image_size == row.side
    assert (run.validation_batch if row.inference else run.plan.micro_batch_size) == row.batch
    assert row.inference or run.plan.accumulation == row.accumulation
    for name, command in commands.items():
        if name.startswith(("Keras", "PyTorch")):
            assert command[4:7] == [str(row.side), str(row.batch), str(row.updates)]
