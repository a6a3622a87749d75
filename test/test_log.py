"""Run folders, CSV files, the meter and the choice of checkpoints, without TensorFlow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from runs import succeed

import log
from harness import checkpoints
from harness.checkpoints import CheckpointError
from harness.horizon import Horizon
from harness.meter import Meter

ROOT = Path(__file__).resolve().parent.parent
HORIZON = Horizon.of(images=100, global_batch=10, iterations=40, log_freq=5, batches_per_step=5)


def collect(pieces: list[tuple[int, int]], interrupt_after: int | None = None) -> list[dict[str, float]]:
    """The rows of a run done in these pieces, with a save and a reload after one of them."""
    meter = Meter(HORIZON, 1, float, {})
    rows = []
    for number, (first, end) in enumerate(pieces):
        meter.add([1.0 / (i + 1) for i in range(first, end)], [0.1] * (end - first), seconds=0.5)
        if end == HORIZON.grid_end(first):
            meter.end_host_step()
            rows.append(meter.row(end))
        if number == interrupt_after:
            meter = Meter(HORIZON, 1, float, json.loads(json.dumps(meter.state())))
    return rows


def test_rows_do_not_depend_on_where_a_run_was_stopped():
    whole = collect([(0, 5), (5, 10), (10, 15), (15, 20)])
    pieced = collect([(0, 5), (5, 7), (7, 10), (10, 15), (15, 20)], interrupt_after=1)
    keys = ("step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg")
    assert [[row[key] for key in keys] for row in whole] == [[row[key] for key in keys] for row in pieced]
    # ten updates an epoch in host steps of five: the window is two steps
    assert whole[2]["loss_avg"] == pytest.approx(sum(1 / i for i in range(6, 16)) / 10)
    assert whole[2]["loss_batch"] == pytest.approx(sum(1 / i for i in range(11, 16)) / 5)
    assert whole[2]["train_acc_batch"] == pytest.approx(10)
    assert whole[2]["lr"] == 14  # of the last update
    assert [replace(HORIZON, tells_first=True).told(end) for end in (5, 7, 15)] == [0, 5, 10]  # as the first releases had it
    assert pieced[-1]["total_time"] == 2.5


def test_speed_leaves_the_first_call_of_a_process_out():
    meter = Meter(HORIZON, 1, float, {})
    meter.add([1.0] * 5, [0.0] * 5, seconds=100.0)
    meter.end_host_step()
    assert meter.row(5)["it_time"] == 20
    meter.add([1.0] * 5, [0.0] * 5, seconds=1.0)
    meter.end_host_step()
    row = meter.row(10)
    assert row["it_time"] == pytest.approx(0.2)
    assert row["img_per_sec"] == pytest.approx(50)
    assert row["total_time"] == 101


def test_run_folders_are_never_shared(tmp_path):
    names = {log.new_run_folder("RN8", str(tmp_path), None, True).name for _ in range(20)}
    assert len(names) == 20
    assert all(len(name) == len("RN8_") + 3 for name in names)


def test_a_run_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(log.LogError, match="cannot make a run folder"):
        log.new_run_folder("RN8", str(tmp_path / "file"), None, True)


def test_a_row_that_was_cut_short_is_not_read(tmp_path):
    path = tmp_path / "training.csv"
    path.write_text("iteration,loss\n1,2.5\n2,3.5\n3")
    assert log.read_rows(path) == [{"iteration": "1", "loss": "2.5"}, {"iteration": "2", "loss": "3.5"}]


def test_forgetting_rows_that_will_come_again(tmp_path):
    run_log = log.RunLog(tmp_path)
    row = dict.fromkeys(log.TRAINING_COLUMNS, 0)
    for iteration in (10, 20, 30):
        run_log.training_row({**row, "iteration": iteration})
    run_log.forget_after(20)
    assert [row["iteration"] for row in log.read_rows(tmp_path / "training.csv")] == ["10", "20"]
    run_log.training_row({**row, "iteration": 30})
    run_log.close()
    assert (tmp_path / "training.csv").read_text().count("iteration") == 1


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")


def test_checkpoints_of_a_folder(tmp_path):
    touch(tmp_path, "ckpt-5.index", "ckpt-40.index", "ckpt-100.index", "ckpt-100.data-00000-of-00001", "ckpt-x.index",
          "ckpt/weight_avg_exp_0.97.index")  # fmt: skip
    assert [found.iteration for found in checkpoints.select(tmp_path)] == [5, 40, 100, -1]
    assert [found.name for found in checkpoints.select(tmp_path)][-1] == "weight_avg_exp_0.97"
    assert checkpoints.latest(tmp_path)[0].iteration == 100
    assert [found.iteration for found in checkpoints.select(tmp_path / "ckpt-40")] == [40]
    assert [found.iteration for found in checkpoints.select(tmp_path / "ckpt-40.index")] == [40]
    assert [found.iteration for found in checkpoints.select(tmp_path / "ckpt-")] == [-1, 5, 40, 100]
    assert checkpoints.select(tmp_path / "ckpt" / "weight_avg_exp_0.97")[0].iteration == -1
    assert checkpoints.run_folder(tmp_path / "ckpt" / "weight_avg_exp_0.97") == tmp_path
    assert checkpoints.run_folder(tmp_path / "ckpt-40") == tmp_path


def test_keeping_the_newest(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.{end}" for n in (1, 2, 30, 4) for end in ("index", "meta", "state.json")))
    checkpoints.tidy(tmp_path, checkpoints.at(tmp_path, 30), 2, lambda iteration: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"ckpt-{n}.{end}" for n in (30, 4) for end in ("index", "meta", "state.json")
    )


def test_the_next_checkpoint_replaces_safety_checkpoints_only(tmp_path):
    touch(tmp_path, *(f"ckpt-{n}.index" for n in (0, 3, 10, 13, 17, 20)))
    for n, rolling in ((3, True), (10, True), (13, False), (17, True), (20, False)):  # 10 would have been saved anyway
        (tmp_path / f"ckpt-{n}.state.json").write_text(json.dumps({"rolling": rolling}))
    (tmp_path / "ckpt-17.state.json").write_text("{")
    checkpoints.tidy(tmp_path, checkpoints.at(tmp_path, 20), None, lambda iteration: iteration % 10 == 0)
    assert [checkpoint.iteration for checkpoint in checkpoints.numbered(tmp_path)] == [0, 10, 13, 17, 20]
    assert not (tmp_path / "ckpt-3.state.json").exists()


@pytest.mark.parametrize("name", ["", "ckpt-7", "nowhere/ckpt"])
def test_no_checkpoint_says_what_was_looked_for(tmp_path, name):
    with pytest.raises(CheckpointError, match="--restore-path .* (no checkpoint|no such folder)"):
        checkpoints.select(tmp_path / name if name else tmp_path)


def test_standard_error_stays_empty_while_tensorflow_starts():
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    code = "from harness import quiet; quiet.import_tensorflow(); import sys; assert 'tensorflow' in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_mlperf_s_checker_is_content(tmp_path):
    """Rules of the open division, for the network whose rules there are."""
    checker = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance", reason="pip install mlperf-logging")
    words = (
        "--dataset fashion-mnist --model-size 8 --iterations 6 --batch-size 8 --seed 3 --mlperf-logging --weight-avg-exp 0.5"
    )
    out = succeed("train", *words.split(), "--logs-path", tmp_path / "run").out
    (tmp_path / "lines").write_text(out)
    found = checker.make_checker("training", "3.1.0", quiet=True, werror=True)
    assert checker.main(str(tmp_path / "lines"), "training_3.1.0/common.yaml", found)[0]
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in out.splitlines() if line.startswith(":::MLLOG ")]
    told = {event["key"]: event["value"] for event in events}
    assert (told["seed"], told["global_batch_size"], told["train_samples"], told["opt_name"]) == (3, 8, 10_000, "sgd")
    assert [e["key"] for e in events][-4:] == ["eval_start", "eval_accuracy", "eval_stop", "run_stop"]
    assert ":::MLLOG" not in succeed("train", *words.replace("--mlperf-logging", "--no-logs").split()).out
