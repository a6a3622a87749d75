"""Benchmarks: their configurations run and their results are read. No time is measured."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import date
from functools import partial

import pytest
import tensorflow.compat.v1 as tf

from bench import _tables, norms, peers
from cnn_harness.emulator.native import library
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

ROW = peers.ROWS[0]


@pytest.mark.parametrize("row", peers.ROWS, ids=lambda row: row.name)
def test_every_row_can_run(row):
    """Every contestant has the same network size, batch and accumulation."""
    script = "inference_embedded" if row.inference else "train"
    commands = row.commands("python")
    words = commands[peers.OURS]
    options = words[words.index(str(row.updates)) + 1 :]
    run = prepare(cli.parse(options, script, environ={}).options, {}, training=not row.inference)
    assert run.image_size == row.side
    assert (run.validation_batch if row.inference else run.plan.micro_batch_size) == row.batch
    assert row.inference or run.plan.accumulation == row.accumulation
    for name, command in commands.items():
        if name.startswith(("Keras", "PyTorch")):
            assert command[4:7] == [str(row.side), str(row.batch), str(row.updates)]


@pytest.mark.parametrize("units", [False, True])
def test_pytorch_multiplies_in_bf16_where_that_is_fast(units, monkeypatch):
    monkeypatch.setattr(library, "has_bf16", lambda: units)
    for row in peers.ROWS:
        autocast = [command for command in row.commands("python").values() if "--autocast" in command]
        assert [("--compile" in command) for command in autocast] == [False, True] * (units and "bf16" in row.name)


def test_measured_norms_have_gradients():
    with tf.Graph().as_default():
        for network in (norms.batch_norm, norms.group_norm, norms.proxy_norm, norms.scaled_proxy_norm):
            assert norms.step(network, (2, 4, 4, 8))[0].shape == (2, 4, 4, 8)


def test_ratio_uses_fastest_way_of_library():
    speeds = {"ours": [10.0, 12.0, 11.0], "PyTorch": [5.0, 5.0, 5.0], "PyTorch, compiled": [8.0, 10.0, 11.0]}
    assert _tables.against({"speeds": speeds}, "PyTorch") == (1.2, 1.0, 1.25, "PyTorch, compiled")
    assert _tables.against({"speeds": speeds}, "Keras") is None
    speeds["ours, not folded"] = [5.0, 6.0, 5.5]
    assert _tables.against({"speeds": speeds}, "PyTorch", "ours, not folded") == (0.6, 0.5, 0.625, "PyTorch, compiled")


def test_table_and_chart_follow_results(tmp_path, monkeypatch):
    (tmp_path / "measured.md").write_text(f"before\n{_tables.BEGIN}\nstale\n{_tables.END}\nafter\n")
    monkeypatch.setattr(_tables, "DOCS", tmp_path)
    peaks = {"ours": 2000, "ours, not folded": 1000, "PyTorch": 4000, "PyTorch, compiled": 3000}
    result = {"name": ROW.name, "multiply_adds": 10**9, "matrix_flops": 3e11, "speeds": {"ours": [25.0], "PyTorch": [20.0]}}
    result["peak_MB"] = peaks
    machine, named = (
        "2 cores of a Machine, 24 GiB",
        partial(peers.results_file, day=date(2026, 11, 5), folder=tmp_path / "results"),
    )
    file = named(machine, whole=False)
    assert file == named(machine, whole=True)
    peers.keep(file, machine, [result])
    peers.keep(named(machine, whole=False), machine, [{**result, "speeds": {"ours": [30.0], "PyTorch": [20.0]}}])
    assert [row["speeds"]["ours"] for row in json.loads(file.read_text())["rows"]] == [[30.0]]  # measured again
    again = named(machine, whole=True)
    assert again.stem == f"{file.stem}-2"
    peers.keep(again, machine, [result])
    assert named(machine, whole=False) == again and named(machine, whole=True).stem == f"{file.stem}-3"
    folded = next(row for row in peers.ROWS if row.also == peers.OTHER_FOLDS)
    unfolded = {"ours": [40.0], "ours, not folded": [30.0], "PyTorch": [20.0]}
    peers.keep(file, machine, [{**result, "name": folded.name, "speeds": unfolded}])
    _tables.write([file], peers.ROWS)
    text = (tmp_path / "measured.md").read_text()
    assert text.startswith("before") and text.endswith("after\n") and "stale" not in text
    assert f"| {ROW.title} | 30.0 | 2.1 | – | – | 1.50 (1.50 to 1.50) | 3.1 | 60 % |" in text
    assert "| the same, --fold 1 | 30.0 | 1.0 | – | – | 1.50 (1.50 to 1.50) | 3.1 | 60 % |" in text
    assert "the same, --fold auto" not in text  # not measured
    assert "2 cores of a Machine, 24 GiB, 2026-11-05:" in text
    newer = f"{machine}, TensorFlow 9"  # the same kind of machine
    peers.keep(again, newer, [{**result, "speeds": {"ours": [50.0], "PyTorch": [20.0]}}])
    _tables.write([file, again], peers.ROWS)
    text = (tmp_path / "measured.md").read_text()
    assert f"| {ROW.title} | 50.0 | 2.1 | – | – | 2.50" in text and f"| {ROW.title} | 30.0 |" not in text  # only the newest
    assert text.count("2 cores of a Machine") == 1
    drawn = " ".join(ET.parse(tmp_path / "peers.svg").getroot().itertext())
    assert ROW.title in " ".join(drawn.split())  # long titles are wrapped
