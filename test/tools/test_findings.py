"""experiments/findings.py: its arithmetic, its chart, and its reuse of existing results."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
from figures import checked

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from experiments import findings, study
from experiments.findings import HALVED, RECIPES, TUNED
from experiments.study import Failed, Result

ROOT = plugins.ROOT
RESULTS = [
    Result(label, seed, base + seed, 2.0 + k)
    for k, (label, base) in enumerate([*zip(RECIPES, (70, 80, 81)), (HALVED, 10), (TUNED, 79)])
    for seed in (3, 1, 2)
]


def test_table_and_chart_are_correct():
    lines = findings.table(RESULTS).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:7]] == [*RECIPES, HALVED, TUNED]
    # the mean of 71, 72, 73 and its standard error, 1 / sqrt(3)
    assert "| 2.0 | 72.00 ± 0.58 % (71.00, 72.00, 73.00) |" in lines[2]
    against = {line.split(" | ")[0].strip("| "): line for line in lines[10:]}
    assert "10.00 ± 0.00 points (10.00, 10.00, 10.00) | 1.50 times |" in next(iter(against.values()))
    assert "-1.00 ± 0.00 points" in lines[-1] and "2.00 times" in lines[-1]
    texts = checked(findings.svg(RESULTS))
    assert "11.00 to 13.00, off this scale" in " ".join(texts)
    assert f"{next(iter(RECIPES))}: 72.00 ± 0.58 %, 2.0 minutes" in texts
    assert findings.table([r for r in RESULTS if r.seed == 1]).count("±") == 0  # one seed has no spread


def test_batches_are_compared_with_smallest():
    cells = [(optimiser, batch) for optimiser in findings.OPTIMISERS for batch in findings.BATCHES]
    results = [Result(findings._batch(*cell), seed, 70.0 - k + seed) for k, cell in enumerate(cells) for seed in (2, 1)]
    lines = findings.batch_table(results).splitlines()[2:]
    assert lines[0] == "| RMSProp, 32 | 71.50 ± 0.50 % (71.00, 72.00) |  |"
    assert lines[3] == "| LARS, 256 | 68.50 ± 0.50 % (68.00, 69.00) | -1.00 ± 0.00 points (-1.00, -1.00) |"
    texts = checked(findings.batch_svg(results))
    assert sum(", global batch " in text for text in texts) == len(cells) == 4


def test_changed_options_are_rejected(tmp_path):
    study.check_unchanged(tmp_path / "x", ["--epochs", "1"])
    study.check_unchanged(tmp_path / "x", ["--epochs", "1"])
    with pytest.raises(OptionError, match="'--epochs 1', not ''"):
        study.check_unchanged(tmp_path / "x", [])


def test_missing_average_is_reported(tmp_path):
    (tmp_path / "validation.csv").write_text("name,val_acc\nckpt-3,50\n")
    with pytest.raises(Failed, match="has no validation of weight_avg_exp_0.5"):
        findings._accuracy(tmp_path)


def test_finished_runs_are_reused_failures_reported(tmp_path):
    done = tmp_path / "B0-G1-GN-Native_mini-1"
    done.mkdir()
    (done / "validation.csv").write_text("name,val_acc\nckpt-3,50\nweight_avg_exp_0.5,61.5\n")
    (done / "training.csv").write_text("epoch,img_per_sec\n1,500\n2,1000\n3,1500\n")
    label = next(iter(RECIPES))
    (result,) = study.run_all(
        [partial(findings.train, label, RECIPES[label], 1, tmp_path, ())], sorted(os.sched_getaffinity(0))
    )
    assert result == Result(label, 1, 61.5, 3 * 10_000 / 1000 / 60)
    broken = partial(findings.train, label, RECIPES[label], 2, tmp_path, ("--epochs", "none"))
    with pytest.raises(Failed, match="train.py: error: command line: --epochs is 'none'"):
        study.run_all([broken], sorted(os.sched_getaffinity(0))[:1])


def test_wrong_seeds_are_rejected():
    call = [sys.executable, "-m", "experiments.findings", "--seeds", "0"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "argument --seeds: 0 " in done.stderr
