"""A stopped and restored run ends with the bits and rows of the unbroken run, for every choice of several options."""

from __future__ import annotations

import json
import os
import random
import shutil
from functools import partial

import pytest
from commands import Row, assert_same_bits, run, succeed, timeless, variables

from cnn_harness.base.storage import locks

AXES = {
    "optimiser": ("SGD", "momentum", "RMSprop", "LARS", "LAMB", "Adam", "AdamW"),
    "precision": (
        "32.32",
        "16.16",
        "16.16 --stochastic-rounding all",
        "16.32",
        "16.16 --offload-fp32-weight-copy",
        "8.16 --stochastic-rounding all --automatic-loss-scaling --loss-scaling 1e5 --loss-scaling-period 2",
        "8.32 --master-format e5m2 --slot-format bf16 --format-scaling --loss-scaling 8",
        "bf16.32",
        "bf16.16 --stochastic-rounding all",
    ),
    "network": (
        "resnet --model-size 8 --batch-norm --BN-span 2",
        "resnet --model-size 8 --group-norm --groups 4",
        "efficientnet --depth-coefficient 0.2 --width-coefficient 0.25 --group-norm --groups 1 --proxy-norm "
        "--block-survival-prob 0.8 --dropout-rate 0.2",
        "squeezenet --image-size 64",
    ),
    "schedule": ("stepped", "cosine", "exponential --lr-decay-rate 0.9 --lr-drops 5", "polynomial_decay_lr"),
    "update": (
        "--gradient-accumulation-count 1",
        "--gradient-accumulation-count 3 --mixup-alpha 0.3 --fold 1",
        "--gradient-accumulation-count 4 --shards 2 --pipeline --pipeline-splits auto --cutmix-lambda 0.6",
        "--gradient-accumulation-count 2 --enable-recomputation --fold 2",
    ),
    "stop": ("1", "2", "3"),
    "weights": ("--weight-avg-exp 0.5", "--weight-decay 0", "--clip-grad-norm 1", "--ema 0.9"),
}
RATES = {"LARS": 0.03, "Adam": 0.0003, "AdamW": 0.001}  # rates that move weights without overflow in FP16; 0.01 for others


def grid(rows: int = 12) -> list[Row]:
    """Return rows in which every value of an axis occurs, in random company."""
    draw = random.Random(1)
    columns = [draw.sample([values[k % len(values)] for k in range(rows)], rows) for values in AXES.values()]
    return [dict(zip(AXES, row)) for row in zip(*columns)]


def words(row: Row) -> list[str]:
    """Return four updates of 4 or more samples, with a checkpoint and a log row each."""
    text = (
        f"--dataset fashion-mnist --model {row['network']} --optimiser {row['optimiser']} --precision {row['precision']} "
        f"--lr-schedule {row['schedule']} {row['update']} {row['weights']} --replicas 2 --batch-size 2 --iterations 4 --seed 3 "
        f"--abs-learning-rate {RATES.get(row['optimiser'], 0.01)} --warmup-epochs 0 --log-freq 1 --batches-per-step 1 --no-validation"
    )
    return text.split()


@pytest.mark.usefixtures("short_efficientnet")
@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(k), marks=[pytest.mark.slow] * (k > 2)) for k, row in enumerate(grid())]
)
def test_resume_is_exact(row, tmp_path):
    succeed("train", *words(row), "--logs-path", tmp_path / "whole")
    succeed("train", *words(row), "--logs-path", tmp_path / "parts", "--stop-after", row["stop"])
    succeed("restore", "--restore-path", tmp_path / "parts")
    whole = variables(tmp_path / "whole", 4)
    assert_same_bits(whole, variables(tmp_path / "parts", 4))
    assert_different(variables(tmp_path / "whole", 0), whole)
    assert timeless(tmp_path / "whole/training.csv") == timeless(tmp_path / "parts/training.csv")
    assert len(timeless(tmp_path / "whole/training.csv")) == 4


def assert_different(before, after):
    """Check that most kernels moved: a run that stands still would always resume exactly."""
    kernels = [name for name in before if name.endswith("kernel")]
    moved = [name for name in kernels if before[name].tobytes() != after[name].tobytes()]
    assert 2 * len(moved) > len(kernels)


def test_grid_covers_every_choice():
    from cnn_harness.emulator.plan.options import FASTEST, DeviceOptions
    from cnn_harness.harness.options.sections import TrainingOptions  # the choices may grow

    choices = TrainingOptions.__dataclass_fields__["optimiser"].metadata["choices"]
    assert set(AXES["optimiser"]) == set(choices)
    precisions = DeviceOptions.__dataclass_fields__["precision"].metadata["choices"]
    assert {precision.split()[0] for precision in AXES["precision"]} == {*precisions} - {FASTEST}


# --- The same call again ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_same_call_starts_resumes_and_finishes(tmp_path):
    """As a scheduler repeats it: after a kill before the first checkpoint, after a stop, and after the end."""
    words = ("--precision", "32.32", "--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 50, "--seed", 3,
             "--iterations", 9, "--log-freq", 3, "--batches-per-step", 3, "--weight-avg-exp", 0.5)  # fmt: skip
    whole, folder = tmp_path / "whole", tmp_path / "run"
    succeed("train", *words, "--logs-path", whole)
    folder.mkdir()
    for name in ("arguments.json", "log.txt", "training.csv"):  # left by a process killed before its first checkpoint
        shutil.copy(whole / name, folder / name)
    call = ("train", *words, "--logs-path", folder, "--autoresume")
    restarting = f"restarting the run in {folder}"
    for question in ("--explain", "--summary", "--dry-run"):
        assert restarting in succeed(*call, question).out or question != "--dry-run"
    assert (folder / "log.txt").read_text() == (whole / "log.txt").read_text()
    begun = succeed(*call, "--stop-after", 4).out
    assert "Stopped after 4 of 9 updates" in begun and restarting in begun
    for stop_after in (4, 3):
        stopped = succeed(*call, "--stop-after", stop_after).out
        assert f"The run in {folder} is complete (4 updates). To extend it, give a larger --stop-after." in stopped
    gone_on = succeed(*call, "--init-path", "nowhere").out
    assert "Restoring training from latest checkpoint" in gone_on and "overridden" not in gone_on
    assert "--init-path nowhere has no effect" in gone_on
    assert json.loads((folder / "arguments_restore.json").read_text())["init_path"] is None
    assert_same_bits(variables(whole, 9), variables(folder, 9))
    assert timeless(whole / "validation.csv") == timeless(folder / "validation.csv")
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    done = f"The run in {folder} is complete (9 updates). To extend it, give a larger --iterations.\n"
    assert succeed(*call).out == done
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    differing = succeed(*call, "--label-smoothing", 0.3).out.splitlines()
    assert differing[0] == "overridden: label_smoothing = 0.3" and " The options above have no effect. " in differing[-1]
    refused = run(*call, "--dataset", "cifar-10", "--generated-data")
    assert refused.code == 2 and "airplane for T-shirt/top" in refused.err, refused.err
    average, table = folder / "ckpt" / "weight_avg_exp_0.5.index", folder / "validation.csv"
    rows, mean = table.read_text(), average.read_bytes()
    for spoil in (
        average.unlink,  # the state after a kill before the average
        lambda: os.utime(average, ns=(0, 0)),  # the state of a longer run killed before its own average
        average.with_name("weight_avg_exp_0.5.data-00000-of-00001").unlink,
        partial(table.write_text, rows + rows.splitlines()[-1].replace("exp_0.5", "N_7") + "\n"),  # of a missing file
    ):
        spoil()
        assert "is complete" not in succeed(*call).out
        assert average.read_bytes() == mean and timeless(table) == timeless(whole / "validation.csv")
        assert "is complete" in succeed(*call).out
    assert "overridden: iterations = 12" in succeed(*call, "--iterations", 12).out
    shutil.copytree(folder, tmp_path / "emptied", ignore=lambda _, names: [n for n in names if n.startswith("ckpt-")])
    refused = run(*call[:-2], tmp_path / "emptied", "--autoresume")
    assert refused.code == 2 and "checkpoints are missing" in refused.err
    refused = run("train", *words, "--autoresume")
    assert refused.code == 2 and "--autoresume needs --logs-path" in refused.err
    refused = run(*call[:-2], tmp_path / "none", "--autoresume", "--no-logs")
    assert refused.code == 2 and "--autoresume needs logs" in refused.err
    with locks.lock_folder(folder):
        assert "is writing the run in" in run(*call, "--iterations", 15).err


def test_same_call_completes_run_without_checkpoints(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    call = ("train", "--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 50, "--log-freq", 3, "--batches-per-step",
            3, "--ckpts-per-epoch", 0, "--logs-path", folder, "--autoresume", "--iterations")  # fmt: skip
    assert "restarting" not in succeed(*call, 3).out
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
    said = f"The run in {folder} is complete (3 updates, no checkpoint). To train longer, give another --logs-path.\n"
    assert succeed(*call, 3).out == said
    longer = run(*call, 6)
    assert longer.code == 2 and "contains a complete run of 3 updates" in longer.err
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    # no wait for the other instance
    assert "is complete (3 updates, no checkpoint)" in succeed(*call, 3, "--distributed").out
    assert before == {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}
