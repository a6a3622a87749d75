"""Run directories, CSV files, the meter and the choice of checkpoints, without TensorFlow."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import succeed

from cnn_harness import log
from cnn_harness.base import plugins
from cnn_harness.base.storage import locks, tables
from cnn_harness.harness.checkpoints import find, manifest, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.distributed import folders
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.run.length import TrainingLength
from cnn_harness.harness.training.meter import Meter

ROOT = plugins.ROOT
LENGTH = TrainingLength.of(images=100, global_batch=10, iterations=40, log_freq=5, batches_per_step=5)


def collect(pieces: list[tuple[int, int]], interrupt_after: int | None = None) -> list[dict[str, float]]:
    """Return the rows of a run in these pieces, with a save and a reload after one of them."""
    meter = Meter(LENGTH, 1, float, {})
    rows = []
    for number, (first, end) in enumerate(pieces):
        meter.add([1.0 / (i + 1) for i in range(first, end)], [0.1] * (end - first), seconds=0.5)
        meter.add_noise(np.asarray([[i, 5.0] for i in range(first, end)]))
        if end == LENGTH.host_step_end(first):
            meter.end_host_step()
            rows.append(meter.row(end))
        if number == interrupt_after:
            meter = Meter(LENGTH, 1, float, json.loads(json.dumps(meter.state())))
    return rows


def test_rows_are_independent_of_stops():
    whole = collect([(0, 5), (5, 10), (10, 15), (15, 20)])
    pieced = collect([(0, 5), (5, 7), (7, 10), (10, 15), (15, 20)], interrupt_after=1)
    keys = ("step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg",
            "noise_scale")  # fmt: skip
    assert [[row[key] for key in keys] for row in whole] == [[row[key] for key in keys] for row in pieced]
    # ten updates an epoch in host steps of five: the window is two steps
    assert whole[2]["loss_avg"] == pytest.approx(sum(1 / i for i in range(6, 16)) / 10)
    assert whole[2]["loss_batch"] == pytest.approx(sum(1 / i for i in range(11, 16)) / 5)
    assert whole[0]["noise_scale"] == pytest.approx(2 / 5, rel=0.02)
    assert whole[2]["train_acc_batch"] == pytest.approx(10)
    assert whole[2]["lr"] == 14  # of the last update
    early = replace(LENGTH, logs_first_rate=True)  # as in the first releases
    assert [early.logged_update(end) for end in (5, 7, 15)] == [0, 5, 10]
    assert pieced[-1]["total_time"] == 2.5


def test_speed_ignores_first_call_of_process():
    meter = Meter(LENGTH, 1, float, {})
    meter.add([1.0] * 5, [0.0] * 5, seconds=100.0)
    meter.end_host_step()
    assert meter.row(5)["it_time"] == 20
    meter.add([1.0] * 5, [0.0] * 5, seconds=1.0)
    meter.end_host_step()
    row = meter.row(10)
    assert row["it_time"] == pytest.approx(0.2)
    assert row["img_per_sec"] == pytest.approx(50)
    assert row["total_time"] == 101


def test_table_gets_new_columns_when_run_resumes(tmp_path):
    """Versions before this one wrote no input_share."""
    table, older = tables.run_table(tmp_path, "training.csv"), tables.TRAINING_COLUMNS[:11]
    assert older[-1] == "total_time"
    table.path.write_text(",".join(older) + "\n" + "".join(f"1,{k}" + ",0.5" * 9 + "\n" for k in (1, 2, 3)) + "1,4")
    assert [(each["iteration"], each["total_time"], each["input_share"]) for each in table.read()] == [
        (k, "0.5", "nan") for k in "123"
    ]
    table.rewind(2)
    table.append(row(3))
    assert [each["iteration"] for each in table.read()] == ["1", "2", "3"]
    assert float(table.read()[-1]["input_share"]) == 3 / 7


def row(iteration: int) -> dict[str, object]:
    return {**dict.fromkeys(tables.TRAINING_COLUMNS, iteration / 7), "step": iteration // 10, "iteration": iteration}


@pytest.mark.parametrize("killed", ["", "7,50,", "x,y\n"])
def test_later_rows_are_dropped_on_resume(killed, tmp_path):
    """So is the partial row of a killed process."""
    run_log, path = log.RunLog(tmp_path), tmp_path / "training.csv"
    for iteration in (10, 20, 30, 40):
        run_log.training_row(row(iteration))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, killed]))
    run_log.resume_after(20)
    assert path.read_text() == "".join(lines[:3])
    run_log.training_row(row(30))
    assert path.read_text() == "".join(lines[:4])


def test_quoted_values_cannot_control_terminal(tmp_path, capsys):
    log.RunLog(tmp_path).note("warning: a\x1b[2J\x9bb\tc\nof 2\u3000x")
    line = "warning: a\\x1b[2J\\x9bb\tc\nof 2\u3000x\n"
    assert capsys.readouterr().out == (tmp_path / "log.txt").read_text() == line


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def test_checkpoints_of_folder_are_found(tmp_path):
    touch(tmp_path, "ckpt-5.index", "ckpt-40.index", "ckpt-100.index", "ckpt-100.data-00000-of-00001", "ckpt-x.index",
          "ckpt/weight_avg_exp_0.97.index")  # fmt: skip
    assert [found.updates for found in find.select(tmp_path)] == [5, 40, 100, -1]
    assert [found.name for found in find.select(tmp_path)][-1] == "weight_avg_exp_0.97"
    assert find.numbered(tmp_path)[-1].updates == 100
    assert [found.updates for found in find.select(tmp_path / "ckpt-40")] == [40]
    assert [found.updates for found in find.select(tmp_path / "ckpt-40.index")] == [40]
    assert [found.updates for found in find.select(tmp_path / "ckpt-")] == [-1, 5, 40, 100]
    assert find.select(tmp_path / "ckpt" / "weight_avg_exp_0.97")[0].updates == -1
    assert find.run_folder(tmp_path / "ckpt" / "weight_avg_exp_0.97") == tmp_path
    assert find.run_folder(tmp_path / "ckpt-40") == tmp_path
    assert find.select(tmp_path / "ckpt") == find.select(tmp_path)  # the run's checkpoint_path, which also has the averages
    assert find.run_folder(tmp_path / "ckpt") == tmp_path
    touch(tmp_path / "ckpt", "ckpt-7.index")  # a run directory may have this name
    assert [found.updates for found in find.select(tmp_path / "ckpt")] == [7]
    assert find.run_folder(tmp_path / "ckpt") == tmp_path / "ckpt"


def test_newest_checkpoints_are_kept(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.{end}" for n in (1, 2, 30, 4) for end in ("index", "meta", "state.json")))
    write.prune(tmp_path, Checkpoint.at(tmp_path, 30), 2, lambda iteration: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"ckpt-{n}.{end}" for n in (30, 4) for end in ("index", "meta", "state.json")
    )


def test_next_checkpoint_replaces_safety_checkpoints_only(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.index" for n in (0, 3, 10, 13, 17, 20)))
    for n, rolling in ((3, True), (10, True), (13, False), (17, True), (20, False)):  # 10 would have been saved anyway
        (tmp_path / f"ckpt-{n}.state.json").write_text(json.dumps({"rolling": rolling}))
        if n != 17:  # its state is unverified
            manifest.write(tmp_path / f"ckpt-{n}")
    write.prune(tmp_path, Checkpoint.at(tmp_path, 20), None, lambda iteration: iteration % 10 == 0)
    assert [checkpoint.updates for checkpoint in find.numbered(tmp_path)] == [0, 10, 13, 17, 20]
    assert not (tmp_path / "ckpt-3.state.json").exists()


def test_mlperf_checker_accepts_log(tmp_path):
    """Rules of the open division, for the network that has rules."""
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance", reason="pip install mlperf-logging")
    words = "--dataset fashion-mnist --model-size 8 --precision 32.32 --iterations 6 --batch-size 8 --seed 3 --mlperf-logging --weight-avg-exp 0.5"
    out = succeed("train", *words.split(), "--logs-path", tmp_path / "run").out
    (tmp_path / "lines").write_text(out)
    lines = [line for line in out.splitlines() if line.startswith(":::MLLOG ")]
    assert (tmp_path / "run/result_3.txt").read_text().splitlines() == lines
    for file in ("lines", "run/result_3.txt"):
        found = checker.make_checker("training", "3.1.0", quiet=True, werror=True)
        assert checker.main(str(tmp_path / file), "training_3.1.0/common.yaml", found)[0]
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    values = {event["key"]: event["value"] for event in events}
    assert (values["seed"], values["global_batch_size"], values["train_samples"], values["opt_name"]) == (
        3,
        8,
        10_000,
        "sgd",
    )
    assert [e["key"] for e in events][-4:] == ["eval_start", "eval_accuracy", "eval_stop", "run_stop"]
    assert ":::MLLOG" not in succeed("train", *words.replace("--mlperf-logging", "--no-logs").split()).out


@pytest.mark.parametrize(
    ("column", "cell", "sound"),
    [
        ("val_acc", "", False),
        ("val_size", "", False),
        ("val_size", "1e3", False),
        ("val_acc", "x", False),
        ("loss", "", False),
        ("loss", "nan", True),
    ],
)
def test_incomplete_validation_row_is_damage(tmp_path, column, cell, sound):
    row = dict.fromkeys(tables.VALIDATION_COLUMNS, "1") | {column: cell}
    (tmp_path / "validation.csv").write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    found = tables.Table(tmp_path / "validation.csv", tables.VALIDATION_COLUMNS).read()
    assert found == ([row] if sound else [])


def test_repeated_call_replaces_run_without_checkpoints(tmp_path):
    """With --autoresume. A run that is being written, or that has lost its checkpoints, stays."""
    files = {"log.txt": "old", "training.csv": "epoch,iteration\n0.1,1\n", "report.html": "old", "mine.txt": "kept"}

    def written(name: str, record: str, **more: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {**files, "arguments.json": record, **more}.items():
            (folder / file).write_text(text)
        return folder

    ours = written("ours", '{"run_id": "x"}')
    with pytest.raises(folders.FolderError, match="contains a run already"):
        folders.new_run_folder("run", "", str(ours), True)
    with locks.lock_folder(ours), pytest.raises(folders.FolderError, match="wait until the run ends"):
        folders.new_run_folder("run", "", str(ours), True, restart=True)
    folders.check_no_run(ours, restart=True)
    assert {file.name for file in ours.iterdir()} == {*files, "arguments.json", locks.FILE}  # a query changes nothing
    folders.new_run_folder("run", "", str(ours), True, restart=True)
    assert {file.name for file in ours.iterdir()} == {"mine.txt", locks.FILE}
    lost = written("lost", '{"run_id": "x"}', checkpoint="")
    for folder, said in (
        (written("other", '{"lr": 0.1}'), "contains a run already"),
        (lost, "checkpoints are missing"),
    ):
        before = {file.name: file.read_text() for file in folder.iterdir()}
        with pytest.raises(folders.FolderError, match=said):
            folders.new_run_folder("run", "", str(folder), True, restart=True)
        assert {file.name: file.read_text() for file in folder.iterdir()} == before


def test_failing_tracker_is_reported_once(tmp_path, capsys):
    class Follower:
        def __init__(self, fails):
            self.fails, self.seen = fails, []

        def log(self, values, step):
            if self.fails:
                raise RuntimeError("no such host")
            self.seen.append((step, values["loss/train"]))

        def close(self, complete):
            self.seen.append(complete)

    row = {**dict.fromkeys(tables.TRAINING_COLUMNS, 1), "loss_avg": 0.5}
    for early in (False, True):
        lost, kept = Follower(True), Follower(False)
        run_log = log.RunLog(tmp_path)
        run_log.follow("--wandb", lambda lost=lost: lost)
        run_log.follow("--mlflow", lambda kept=kept: kept)
        for _ in range(2):
            run_log.training_row(row)
        if early:
            run_log.ending()
        run_log.close()
        assert kept.seen == [(1, 0.5), (1, 0.5), not early] and not lost.seen
        assert (
            capsys.readouterr().out.count("--wandb is disabled for the rest of this run: RuntimeError: no such host\n") == 1
        )


def test_table_without_names_uses_iterations(tmp_path):
    """As scripts of the first releases read it. Later calls see in the file that it has no names."""
    names = tables.VALIDATION_COLUMNS[1:]
    rows = [{**dict.fromkeys(names, 1.5), "name": name, "iteration": i, "val_size": 2}
            for name, i in (("ckpt-4", 4), ("ckpt-8", 8), ("average", -1))]  # fmt: skip
    first = tables.run_table(tmp_path, "validation.csv", named=False)
    for row in rows:
        first.append(row)
    path = tmp_path / "validation.csv"
    before = path.read_text()
    assert before.splitlines()[:2] == [
        ",".join(names),
        ",".join("4" if n == "iteration" else "2" if n == "val_size" else "1.5" for n in names),
    ]
    later = tables.run_table(tmp_path, "validation.csv")
    assert [row["name"] for row in later.read()] == ["ckpt-4", "ckpt-8", ""]
    path.write_text(before[:-3])
    later.rewind(9)
    assert path.read_text().splitlines() == before.splitlines()[:3]
    later.append(rows[0])
    assert path.read_text().splitlines()[-1].startswith("4,")


def test_release_selects_its_wording(tmp_path, capsys):
    log.RunLog(tmp_path, throughput=vintage("3.0").throughput).training_row(
        {**dict.fromkeys(tables.TRAINING_COLUMNS, 0.0), "step": 1, "iteration": 1, "img_per_sec": 12.0}
    )
    assert "top-1 accuracy:  0.000 %, throughput:  12.00 samples/sec, time:" in capsys.readouterr().out


@pytest.mark.parametrize("terminal", [True, False])
def test_console_shows_remaining_time(terminal, tmp_path, capsys, monkeypatch):
    values = {
        **dict.fromkeys(tables.TRAINING_COLUMNS, 0.0),
        "step": 3,
        "iteration": 1234,
        "epoch": 312.5,
        "img_per_sec": 12345.6,
    }
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    log.RunLog(tmp_path).training_row(values, left="11:22:33")
    shown, written = capsys.readouterr().out, (tmp_path / "log.txt").read_text()
    assert "ETA" in shown
    assert "11:22:33" in shown
    assert written.startswith("step:      3, iteration:   1234, epoch: 312.50,")
    assert max(map(len, shown.splitlines())) <= 80 if terminal else shown == written
