"""Averages of checkpoints, by train.py and weight_avg.py, agree with float64 NumPy for every variable."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import assert_same_bits, rows, run, succeed, variables

from cnn_harness.base.storage import locks
from cnn_harness.harness.checkpoints import averages, find, read, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint

KINDS = (np.float16, np.float32, np.float64, np.int32, np.int64)
BASE = (
    "--dataset fashion-mnist --model-size 8 --image-size 16 --batch-size 100 --seed 3 --precision 32.32 --optimiser momentum"
)


def draw(seed: int) -> dict[str, np.ndarray]:
    """Return variables of every type."""
    generator = np.random.default_rng(seed)
    return {f"v/{kind.__name__}": (100 * generator.normal(size=(3, 2))).astype(kind) for kind in KINDS}


def written(folder: Path, numbers: tuple[int, ...], stem: str = "ckpt") -> list[dict[str, np.ndarray]]:
    """Write checkpoints of these numbers and return their values."""
    for number in numbers:
        write.write_checkpoint(folder / f"{stem}-{number}", draw(number))
    return [draw(number) for number in numbers]


def tensors(prefix: Path) -> dict[str, np.ndarray]:
    return read.tensors(Checkpoint(str(prefix), -1))


def averaged(folder: Path, words: str) -> dict[str, np.ndarray]:
    """Return the weights that weight_avg.py computes for a folder."""
    succeed("weight_avg", "--restore-path", folder, "--filename", folder / "out" / "average", *words.split())
    return tensors(folder / "out" / "average")


def expected_mean(values: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {n: np.mean([each[n].astype(np.float64) for each in values], 0).astype(x.dtype) for n, x in values[0].items()}


def test_mean_matches_numpy(tmp_path):
    values = written(tmp_path, (5, 40, 300))  # not in alphabetical order
    assert_same_bits(averaged(tmp_path, "--mode mean"), expected_mean(values))
    assert_same_bits(averaged(tmp_path, "--mode mean -N 2 --discard-last 1"), expected_mean(values[:2]))
    (tmp_path / "ckpt-5.data-00000-of-00001").write_bytes(b"")  # not read: only the last two are averaged
    words = ("--restore-path", tmp_path, "--mode", "mean", "-N", 2, "--filename", tmp_path / "two")
    latest = run("weight_avg", *words)
    assert (latest.code, latest.err) == (0, "")
    assert_same_bits(tensors(tmp_path / "two"), expected_mean(values[1:]))
    latin = tmp_path / os.fsdecode(b"lat\xe9")  # not UTF-8
    succeed("weight_avg", *words[:-1], latin / "two")
    assert_same_bits(tensors(latin / "two"), expected_mean(values[1:]))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_exponential_average_starts_with_first_checkpoint(tmp_path, decay):
    values = written(tmp_path, (1, 2, 10))
    found = averaged(tmp_path, f"--mode exponential --decay {decay}" if decay != 0.99 else "--mode exponential")
    for name, like in values[0].items():
        expected = values[0][name].astype(np.float64)
        for each in values[1:]:
            expected = decay * expected + (1 - decay) * each[name].astype(np.float64)
        np.testing.assert_array_equal(found[name], expected.astype(like.dtype))
        assert found[name].dtype == like.dtype


def test_only_numbered_checkpoints_in_folder_count(tmp_path):
    values = written(tmp_path, (3, 4))
    written(tmp_path, (0,))  # the initial weights
    for other in ("sub/ckpt-9", "other-7", "ckpt-8x"):
        write.write_checkpoint(Path(tmp_path / other).parent.mkdir(exist_ok=True) or tmp_path / other, draw(9))
    out = succeed("weight_avg", "--restore-path", tmp_path, "--filename", tmp_path / "a", "--mode", "mean").out
    assert (
        "Found 3 checkpoints" in out
        and "Using 2: ckpt-3, ckpt-4" in out
        and f"Saved the averaged weights to {tmp_path / 'a'}" in out
    )
    assert_same_bits(tensors(tmp_path / "a"), expected_mean(values))
    assert len(averages.candidates(tmp_path)) == 3


def test_refuse_average_into_active_run(tmp_path):
    """Its folder of averages is refused too; another output path reads the checkpoints as usual."""
    (tmp_path / "run").mkdir()
    written(tmp_path / "run", (1, 2))
    words = ("weight_avg", "--restore-path", tmp_path / "run", "--mode", "mean", "--filename")
    with locks.lock_folder(tmp_path / "run"):
        for inside in ("mean", "ckpt/mean"):
            result = run(*words, tmp_path / "run" / inside)
            assert result.code == 2 and result.err.count("\n") == 1, inside
            assert f"is writing the run in {tmp_path / 'run'};" in result.err
        succeed(*words, tmp_path / "elsewhere" / "mean")
    assert not list((tmp_path / "run").rglob("mean*"))
    succeed(*words, tmp_path / "run" / "mean")


def test_only_earlier_average_is_replaced(tmp_path):
    written(tmp_path, (1, 2))
    (tmp_path / "notes.index").write_text("precious")
    for index in ("index", "data-00000-of-00001"):  # weights of other programs
        shutil.copy(tmp_path / f"ckpt-1.{index}", tmp_path / f"foreign.{index}")
    write.write_checkpoint(tmp_path / "saved", draw(3), {"iteration": 3})
    words = ("weight_avg", "--restore-path", tmp_path, "--mode", "mean", "--filename")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")}
    for name in ("notes", "foreign", "saved"):
        result = run(*words, tmp_path / name)
        assert result.code == 2 and f"{name}.index" in result.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith(".")} == before
    left = tmp_path / f"{write.STAGING_PREFIX}a1b2c3d4"  # left by a killed process
    left.mkdir()
    succeed(*words, tmp_path / "mean")
    succeed(*words, tmp_path / "mean", "-N", 1)
    assert_same_bits(tensors(tmp_path / "mean"), draw(2))
    assert not left.exists()
    (tmp_path / "mean.index").unlink()  # the state after a kill before the last file
    succeed(*words, tmp_path / "mean", "-N", 1)
    assert_same_bits(tensors(tmp_path / "mean"), draw(2))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--mode median --filename x", "--mode"),
        ("--mode mean --filename ckpt-3.index", "ckpt-3"),
        ("--mode exponential --filename x --decay 1.5", "1.5"),
        ("--mode mean --filename x --discard-last 2", "--discard-last 2"),
        ("--mode mean --filename x --restore-path no", "no"),
    ],
)
def test_wrong_input_is_one_line(tmp_path, words, named):
    written(tmp_path, (1, 2))
    before = sorted(tmp_path.iterdir())
    result = run("weight_avg", "--restore-path", tmp_path, *words.split())
    assert result.code == 2 and named in result.err and result.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


# --- of a run ---


def trained(tmp_path, words: str) -> Path:
    return succeed("train", *f"{BASE} --iterations 8 --log-dir {tmp_path} {words}".split()).folder


@pytest.mark.slow
def test_run_averages_and_validates_its_checkpoints(tmp_path):
    """The checkpoints after 2, 4, 6 and 8 updates are all within the last epoch."""
    often = "--ckpts-per-epoch 50 --log-freq 2 --batches-per-step 2"
    folder = trained(tmp_path, f"{often} --weight-avg-exp 0.97 0.5 --weight-avg-N 1")
    taken = [variables(folder, n) for n in (2, 4, 6, 8)]
    assert_same_bits(tensors(folder / "ckpt" / "weight_avg_N_1"), expected_mean(taken))
    succeed("weight_avg", "--restore-path", folder, "--mode", "exponential", "--decay", 0.97, "--filename", tmp_path / "x")
    assert_same_bits(tensors(folder / "ckpt" / "weight_avg_exp_0.97"), tensors(tmp_path / "x"))
    names = ["ckpt-2", "ckpt-4", "ckpt-6", "ckpt-8", "weight_avg_N_1", "weight_avg_exp_0.97", "weight_avg_exp_0.5"]
    assert [row["name"] for row in rows(folder / "validation.csv")] == names
    stopped = trained(tmp_path, f"{often} --weight-avg-exp 0.5 --stop-after 3 --no-validation")
    succeed("restore", "--restore-path", stopped)  # with ckpt-3 in the folder
    assert_same_bits(tensors(folder / "ckpt" / "weight_avg_exp_0.5"), tensors(stopped / "ckpt" / "weight_avg_exp_0.5"))
    longer = succeed("restore", "--restore-path", folder, "--iterations", 10)
    assert [row["name"] for row in rows(folder / "validation.csv")] == [*names[:4], "ckpt-10", *names[4:]]
    assert "Saved the average of 5 checkpoints" in longer.out
    begun = succeed("train", *f"{BASE} --iterations 1 --no-validation --log-dir {tmp_path}".split(), "--init-path", folder / "ckpt" / "weight_avg_exp_0.97")  # fmt: skip
    assert_same_bits(
        {n: v for n, v in variables(begun.folder, 0).items() if n != "global_step"},
        {n: v for n, v in tensors(folder / "ckpt" / "weight_avg_exp_0.97").items() if n != "global_step"},
    )


@pytest.mark.parametrize(
    ("there", "newest", "count", "left"),
    [
        ((16, 32, 40), 48, 3, [16, 32, 48]),  # stopped after 40 updates: the same checkpoints as without a stop
        ((0, 16, 32), 40, 3, [16, 32, 40]),
        ((0, 16, 32, 40), 48, 3, [16, 32, 48]),
        ((16, 17, 32), 48, 2, [32, 48]),
        ((3, 5), 7, 2, [5, 7]),
        ((8, 16), 24, None, [8, 16, 24]),
        ((0, 8), 16, 2, [0, 16]),
    ],
)
def test_unscheduled_checkpoints_are_deleted_first(there, newest, count, left, tmp_path):
    written(tmp_path, (*there, newest))
    write.prune(tmp_path, Checkpoint.at(tmp_path, newest), count, lambda updates: updates > 0 and updates % 16 == 0)
    assert [each.updates for each in find.numbered(tmp_path)] == left


def test_validation_and_finetuning_use_moving_average(tmp_path):
    """The average of `--ema`, not of checkpoints. Training itself resumes from the weights."""
    words = f"{BASE} --batch-norm --abs-learning-rate 0.02 --warmup-epochs 0".split()
    succeed("train", *words, "--iterations", 8, "--ema", 0.9, "--logs-path", tmp_path / "run")
    values = variables(tmp_path / "run", 8)
    used = {name: values[f"{name}/ema"] for name in values if f"{name}/ema" in values}
    succeed(
        "train", *words, "--iterations", 1, "--init-path", tmp_path / "run", "--logs-path", tmp_path / "tuned", "--ema", 0.5
    )
    start = variables(tmp_path / "tuned", 0)
    assert_same_bits(used, {name: start[name] for name in used})
    assert_same_bits(used, {name: start[f"{name}/ema"] for name in used})
    assert any("moving_" in name for name in used) and not any(np.array_equal(values[name], used[name]) for name in used)
    succeed("validation", "--restore-path", tmp_path / "tuned" / "ckpt-0", "--logs-path", tmp_path / "again")
    again, own = (rows(tmp_path / name / "validation.csv")[-1] for name in ("again", "run"))
    assert [again[name] for name in ("name", "val_acc", "loss")] == ["ckpt-0", own["val_acc"], own["loss"]]
