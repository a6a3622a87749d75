"""A run that must stop loses nothing: non-finite losses, full disks, safety checkpoints, kill -9."""

from __future__ import annotations

import itertools
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, rows, run, succeed, timeless, variables

from cnn_harness.base import plugins
from cnn_harness.harness.checkpoints import find
from cnn_harness.harness.training.checkpointer import Checkpointer
from cnn_harness.harness.training.loop import TrainingLoop

ROOT = plugins.ROOT
WORDS = (
    "--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 50, "--seed", 3, "--precision", "32.32",
    "--optimiser", "momentum", "--no-validation",
)  # fmt: skip
PERIODS = ("--iterations", 9, "--log-freq", 3, "--batches-per-step", 3, "--ckpts-per-epoch", 60)  # saved at 0, 3, 6, 9
HOPELESS = ("--abs-learning-rate", 1e25, "--warmup-epochs", 0)


def numbers(folder: Path) -> list[int]:
    return [checkpoint.updates for checkpoint in find.numbered(folder)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    succeed("train", *WORDS, *PERIODS, "--logs-path", folder)
    assert numbers(folder) == [0, 3, 6, 9]
    return folder


LONG = ("--iterations", 40, "--log-freq", 20, "--batches-per-step", 20, "--ckpts-per-epoch", 10)  # saved at 0, 20, 40


# --- Losses that are not finite --------------------------------------------------------------------------------


def test_non_finite_loss_ends_run_at_once(tmp_path):
    result = run("train", *WORDS, *HOPELESS, "--iterations", 2000, "--log-freq", 1000, "--logs-path", tmp_path / "run")
    assert result.code == 1 and result.err.count("\n") == 1
    (update,) = re.findall(r"the loss of update (\d+) is (?:nan|inf)", result.err)
    assert 1 < int(update) < 5
    assert "The newest checkpoint is ckpt-0." in result.out
    # the same command would end at the same update again
    assert re.search(r"^Resume: .*restore\.py --restore-path \S+ --abs-learning-rate [\d.e+]+$", result.out, re.M)
    assert numbers(tmp_path / "run") == [0]


def test_non_finite_weights_are_not_saved(tmp_path):
    """The update after the last check of the loss produced them."""
    words = (*WORDS, *HOPELESS, "--iterations", 9, "--log-freq", 1, "--batches-per-step", 1, "--ckpts-per-epoch", 1000)
    result = run("train", *words, "--logs-path", tmp_path / "run")
    assert (result.code == 1 and "not finite" in result.err) or "the loss of update" in result.err
    for iteration in numbers(tmp_path / "run"):
        values = variables(tmp_path / "run", iteration)
        assert all((abs(value.astype("float64")) < float("inf")).all() for value in values.values())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["poll", "_safety_due"])
def test_signal_between_host_steps_loses_nothing(moment, unbroken, tmp_path, monkeypatch):
    """Before the next step begins, or after the events of the last one."""
    owner, calls = (Checkpointer if moment == "poll" else TrainingLoop), itertools.count()
    whole = getattr(owner, moment)

    def signalled(self, *words):
        result = whole(self, *words)
        if next(calls) == 1:
            signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(owner, moment, signalled)
    folder, seldom = tmp_path / "run", (*PERIODS[:-2], "--ckpts-per-epoch", 1)
    stopped = run("train", *WORDS, *seldom, "--logs-path", folder)
    done = 3 if moment == "poll" else 6
    assert stopped.code == 128 + signal.SIGTERM and numbers(folder) == [0, done]
    assert f"The newest checkpoint is ckpt-{done}." in stopped.out
    monkeypatch.undo()
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 9), variables(folder, 9))


# --- Safety checkpoints ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_safety_checkpoints_change_nothing(tmp_path):
    """Saved as often as possible, inside host steps; each replaces the last."""
    result = succeed("train", *WORDS, *LONG, "--safety-ckpt-minutes", 1e-9, "--logs-path", tmp_path / "often")
    assert len(re.findall("Saved safety checkpoint to", result.out)) >= 3
    without = succeed("train", *WORDS, *LONG, "--safety-ckpt-minutes", 0, "--logs-path", tmp_path / "never")
    assert "Saved safety" not in without.out
    assert numbers(tmp_path / "often") == numbers(tmp_path / "never") == [0, 20, 40]
    for iteration in (20, 40):
        assert_same_bits(variables(tmp_path / "often", iteration), variables(tmp_path / "never", iteration))
    assert timeless(tmp_path / "often" / "training.csv") == timeless(tmp_path / "never" / "training.csv")


# --- Full disks and unwritable folders --------------------------------------------------------------------------


def limited(most: int, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a process with a limit on file size in bytes."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-u", *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env=environment, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
    )  # fmt: skip


@pytest.mark.slow
def test_full_disk_costs_newest_checkpoint_only(unbroken, tmp_path):
    folder = tmp_path / "run"
    succeed("train", *WORDS, *PERIODS, "--stop-after", 3, "--logs-path", folder)
    size = (folder / "ckpt-3.data-00000-of-00001").stat().st_size
    result = limited(size - 1000, "restore.py", "--restore-path", folder)
    assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
    assert f"restore.py: error: checkpoint {folder}/ckpt-6 cannot be written: " in result.stderr
    assert "File too large" in result.stderr and "MB)" in result.stderr
    assert "The newest checkpoint is ckpt-3." in result.stdout and "Resume: " in result.stdout
    assert numbers(folder) == [0, 3] and not list(folder.glob(".saving*"))
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 9), variables(folder, 9))
    assert timeless(unbroken / "training.csv") == timeless(folder / "training.csv")


@pytest.mark.slow
def test_keep_going_survives_full_disk(unbroken, tmp_path):
    folder = tmp_path / "run"
    succeed("train", *WORDS, *PERIODS, "--stop-after", 3, "--logs-path", folder)
    size = (folder / "ckpt-3.data-00000-of-00001").stat().st_size
    result = limited(size - 1000, "restore.py", "--restore-path", folder, "--keep-going")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("cannot be written") == 2 and numbers(folder) == [0, 3]
    assert [row["iteration"] for row in rows(folder / "training.csv")] == ["3", "6", "9"]


# --- kill -9 ---------------------------------------------------------------------------------------------------

KILLED = (
    "--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 50, "--seed", 3, "--precision", "16.16", "--mixup-alpha",
    0.2, "--optimiser", "RMSprop", "--iterations", 12, "--log-freq", 2, "--batches-per-step", 4, "--ckpts-per-epoch", 50,
    "--base-learning-rate-exponent", -12, "--valid-batch-size", 100, "--weight-avg-N", 1, "--weight-avg-exp", 0.9,
)  # fmt: skip
MOMENTS = {  # the line after which the process is killed, and the longest delay in seconds
    "before the first checkpoint": ("Total Parameters", 3.0),
    "inside an update": ("Saved ", 1.5),
    "while saving": ("step: ", 0.15),
    "while validating": ("Validation program ready", 1.0),
    "while averaging": ("Validation top-1 accuracy [ckpt-12]", 0.8),
}


def killed(words: tuple[object, ...], line: str, seconds: float) -> bool:
    """Return whether the process was still alive when it was killed, `seconds` after the line."""
    process = subprocess.Popen(
        [sys.executable, "-u", *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    for written in process.stdout:
        if written.startswith(line):
            break
    time.sleep(seconds)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    succeed("train", *KILLED, "--logs-path", folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_loses_nothing(whole, tmp_path):
    """A run killed at ten random moments resumes and ends with the unbroken run's bits."""
    chance, counts = random.Random(7), Counter()
    kills = [moment for moment in MOMENTS for _ in range(2)]
    chance.shuffle(kills)
    folder = tmp_path / "run0"
    for k, moment in enumerate(kills):
        line, most = MOMENTS[moment]
        begun = bool(numbers(folder)) if folder.exists() else False
        words = ("restore.py", "--restore-path", folder) if begun else ("train.py", *KILLED, "--logs-path", folder)
        if not begun and folder.exists():  # nothing was saved
            folder = tmp_path / f"run{k}"
            words = ("train.py", *KILLED, "--logs-path", folder)
        if moment == "before the first checkpoint" or (numbers_done(folder) == 12 and moment != "while averaging"):
            folder = tmp_path / f"run{k}"
            words = ("train.py", *KILLED, "--logs-path", folder)
        counts[moment] += killed(words, line, chance.uniform(0, most))
        if not numbers_done(folder):
            continue
        if k % 4 == 3:
            ended(whole, folder)
            folder = tmp_path / f"run{k}b"
    assert sum(counts.values()) >= 7 and all(counts[moment] for moment in MOMENTS), counts


def numbers_done(folder: Path) -> int:
    """Return the updates of the newest checkpoint."""
    return max(numbers(folder), default=0) if folder.exists() else 0


def ended(whole: Path, folder: Path) -> None:
    """Finish the run and compare everything left with the unbroken run."""
    succeed("restore", "--restore-path", folder)
    assert numbers(folder) == numbers(whole)
    for iteration in numbers(whole):
        assert_same_bits(variables(whole, iteration), variables(folder, iteration))
    for name in ("training.csv", "validation.csv"):
        assert timeless(whole / name) == timeless(folder / name)
    for average in (whole / "ckpt").glob("*.index"):
        one, other = (tf.train.NewCheckpointReader(str(f / "ckpt" / average.stem)) for f in (whole, folder))
        for name in one.get_variable_to_shape_map():
            assert one.get_tensor(name).tobytes() == other.get_tensor(name).tobytes()
