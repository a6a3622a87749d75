"""Slots that a run takes over from another optimiser, loss scale or precision."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import assert_same_bits, run, succeed, variables

from cnn_harness.harness.checkpoints import averages, run_record, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.training.divergence import Divergence, remedies

KERNEL = "all/fc1/dense/kernel"
BASE = [
    "--dataset",
    "fashion-mnist",
    "--model-size",
    "8",
    "--batch-size",
    "8",
    "--seed",
    "3",
    "--no-validation",
    "--abs-learning-rate",
    "0.05",
]
MOMENTUM = [*BASE, "--precision", "32.32", "--optimiser", "momentum"]
SMALL = 16  # ratio of the loss scales, a power of two: FP32 rounds alike at both


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """Return a run of 8 updates, stopped after 4."""
    folder = tmp_path_factory.mktemp("slots") / "run"
    succeed("train", *MOMENTUM, "--iterations", 8, "--stop-after", 4, "--logs-path", folder)
    return folder


@pytest.fixture(scope="module")
def whole(stopped) -> Path:
    """Return the same run, complete."""
    folder = shutil.copytree(stopped, stopped.parent / "whole")
    succeed("restore", "--restore-path", folder)
    return folder


def in_small_scale(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value / np.float32(SMALL) if name.endswith("/Momentum") else value for name, value in values.items()}


@pytest.mark.slow
def test_loss_scale_changes_no_weight(stopped, whole, tmp_path):
    """The run is resumed, averaged, and resumed again from the checkpoint of the first scale."""
    folder = shutil.copytree(stopped, tmp_path / "run")
    out = succeed("restore", "--restore-path", folder, "--loss-scaling", 128 / SMALL).out
    assert f"slots are multiplied by {1 / SMALL:g}" in out
    assert_same_bits(variables(folder, 8), in_small_scale(variables(whole, 8)))
    exact = [averages.mean([Checkpoint.at(each, k) for k in (4, 8)]) for each in (folder, whole)]
    assert_same_bits(exact[0], in_small_scale(exact[1]))


@pytest.mark.slow
def test_slots_of_another_optimiser_are_not_reused(stopped, tmp_path):
    lars = ("--optimiser", "LARS")
    refused = run("restore", "--restore-path", stopped, *lars)
    said = "because momentum wrote"
    assert refused.code == 2 and said in refused.err
    folder = tmp_path / "run"
    out = succeed("train", *BASE, "--precision", "32.32", *lars, "--iterations", 1, "--init-path", stopped,
                  "--logs-path", folder).out  # fmt: skip
    assert f"The optimiser's slots are reset, because {stopped / 'ckpt-4'} is from --optimiser momentum" in out
    source, start = variables(stopped, 4), variables(folder, 0)
    assert not any(value.any() for name, value in start.items() if name.endswith("/Momentum"))
    assert start[KERNEL].tobytes() == source[KERNEL].tobytes()


def test_momenta_beyond_half_precision_are_rejected(tmp_path):
    folder, half = tmp_path / "run", [*BASE, "--precision", "16.16", "--optimiser", "momentum"]
    succeed("train", *half, "--iterations", 1, "--logs-path", folder)
    newest, values = Checkpoint.at(folder, 1), variables(folder, 1)
    values[f"{KERNEL}/Momentum"][3, 4] = 6e4
    write.save_numbered(newest, values, run_record.state(newest))
    words = ("restore", "--restore-path", folder, "--iterations", 4, "--dry-run", "--loss-scaling")
    refused = run(*words, 256)
    assert refused.code == 2 and f"--loss-scaling 256: {KERNEL}/Momentum of checkpoint" in refused.err
    assert run(*words, 64).code == 0


def test_fp32_copies_follow_initial_weights(stopped, tmp_path):
    """Updates change the copies. With copies of other weights, the first update would discard the initial weights."""
    copied, back = tmp_path / "copied", tmp_path / "back"
    half = ("--precision", "16.16", "--offload-fp32-weight-copy", "--optimiser", "momentum")
    source = variables(stopped, 4)
    succeed("train", *BASE, *half, "--iterations", 1, "--init-path", stopped, "--logs-path", copied)
    start, after = variables(copied, 0), variables(copied, 1)
    assert start[f"{KERNEL}/fp32"].tobytes() == source[KERNEL].tobytes()
    assert start[KERNEL].tobytes() == source[KERNEL].astype(np.float16).tobytes()
    assert np.abs(after[KERNEL] - source[KERNEL]).max() < 0.1 * np.abs(source[KERNEL]).max()
    succeed("train", *MOMENTUM, "--iterations", 1, "--init-path", copied, "--logs-path", back)
    assert variables(back, 0)[KERNEL].tobytes() == after[f"{KERNEL}/fp32"].tobytes()


@pytest.mark.parametrize(
    ("words", "gentler"),
    [
        ("", "--abs-learning-rate 0.025"),
        ("--precision 16.16 --loss-scaling 4096", "--loss-scaling 128"),
        ("--precision 8.16 --slot-format e4m3", "--slot-format fp32"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_non_finite_slots_stop_before_saving(words, gentler, together):
    """A saved checkpoint with such slots would be the newest, and no run could resume from it."""
    asked = prepare(cli.parse([*MOMENTUM, *words.split(), "--iterations", "4"], "train", environ={}).options, {}).run
    team = SimpleNamespace(agreed_to_stop=False)
    judge = Divergence(SimpleNamespace(run=asked, team=team), ["first"])
    values = {KERNEL: np.ones([64, 10], np.float32), f"{KERNEL}/Momentum": np.full([64, 10], np.inf, np.float32)}
    with pytest.raises(
        FloatingPointError, match=f"after update 3, {KERNEL}/Momentum holds values that are not finite"
    ) as end:
        judge.check_values(values, 3, together)
    assert remedies(end.value, asked) == gentler.split()
    assert ("a --slot-format with a wider range than e4m3 (240) or a lower learning rate may help" in str(end.value)) == (
        "slot" in gentler
    )
    # a safety checkpoint belongs to instance 0 alone: it would wait for the others, and they for its next update
    assert team.agreed_to_stop == together
