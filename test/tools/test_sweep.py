"""Sweeps: their trials, errors and ranking; a killed sweep resumes with the same call."""

from __future__ import annotations

import csv
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import Result, assert_same_bits, run, succeed, timeless, variables

from cnn_harness.base import plugins
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.configs import ConfigFile
from cnn_harness.harness.run import cli
from cnn_harness.tools import sweep

HEAD = "s:\n  config: quickstart\n"
GRID = HEAD + "  grid:\n    momentum: [0.8, 0.90]\n    base_learning_rate_exponent: [-6, -7, -8]\n"


def listed(folder: Path, text: str, *words: object) -> Result:
    (folder / "s.yml").write_text(text)
    return run("sweep", folder / "s.yml", *words, "--logs-path", folder / "logs", "--dry-run")


def values(folder: Path, text: str) -> list[dict[str, object]]:
    (folder / "s.yml").write_text(text)
    return sweep._value_sets("s", ConfigFile(str(folder / "s.yml")).block("s", 2))


def test_grid_has_every_combination_with_stable_names(tmp_path):
    made = listed(tmp_path, GRID).out.splitlines()
    assert made[0].startswith("s: 6 trials") and not (tmp_path / "logs").exists()
    names = {
        f"base-learning-rate-exponent={rate},momentum={momentum}" for momentum in ("0.8", "0.9") for rate in (-6, -7, -8)
    }
    assert set(made[1:]) == names
    more = HEAD + "  grid:\n    base-learning-rate-exponent: [-9, -8.0, -7, -6]\n    momentum: [0.7, 9e-1, 0.80]\n"
    assert names < set(listed(tmp_path, more).out.splitlines())


def test_random_values_survive_added_trials_and_options(tmp_path):
    spans = "    momentum: [0.8, 0.9]\n    abs-learning-rate: {low: 0.01, high: 1, scale: log}\n    batch-size: {low: 3, high: 6}\n"
    spans = spans.replace("high: 1,", "high: 1.0,")
    few, many, other = (
        values(tmp_path, f"{HEAD}  random:\n    trials: {n}\n    seed: {seed}\n{spans}")
        for n, seed in ((5, 3), (80, 3), (5, 4))
    )
    assert many[:5] == few != other
    assert {one["momentum"] for one in many} == {"0.8", "0.9"} and {one["batch-size"] for one in many} == {3, 4, 5, 6}
    rates = [one["abs-learning-rate"] for one in many]
    assert min(rates) >= 0.01 and max(rates) <= 1 and 20 < sum(rate < 0.1 for rate in rates) < 60


@pytest.mark.parametrize(
    ("text", "words", "named"),
    [
        ("  epochs: 1\n", (), "grid: or random:"),
        ("  grid: {momentum: [1]}\n  random: {trials: 1}\n", (), "grid: or random:"),
        ("  grid:\n    momentum: [null]\n", (), "s.yml:4: momentum"),
        ("  grid:\n    seed: [" + ",".join(map(str, range(1001))) + "]\n", (), "1,001 trials"),
        ("  random:\n    momentum: [1]\n", (), "s.yml:3: random: needs trials"),
        ("  random:\n    trials: 2\n    momentum: {low: 1, high: 0.5}\n", (), "s.yml:5: momentum"),
        ("  grid:\n    momentum: [0.8, fast]\n", (), "trial momentum=fast: "),
        ("  grid:\n    validation: [false]\n", (), "--metric training-loss"),
        ("  log-dir: x\n  grid: {momentum: [1]}\n", (), "the sweep sets --log-dir for each trial"),
        ("  grid: {momentum: [1]}\n", ("--restore-path", "x"), "the sweep sets --restore-path for each trial"),
    ],
)  # fmt: skip
def test_wrong_sweeps_are_rejected(text, words, named, tmp_path):
    refused = listed(tmp_path, HEAD + text, *words)
    assert refused.code == 2 and named in refused.err and not (tmp_path / "logs").exists()


def test_file_as_folder_is_rejected(tmp_path):
    (tmp_path / "logs").write_text("kept")
    refused = listed(tmp_path, GRID)
    assert refused.code == 2 and f"{tmp_path / 'logs'} is not a folder" in refused.err


def test_stopped_sweep_keeps_output(tmp_path):
    """Trials that do not start emptied the output of their last run."""
    output = tmp_path / "output" / "0.txt"
    output.parent.mkdir()
    output.write_text("error: out of memory")
    trial = sweep.Trial(name="0", values={}, call=Call.of_values({}, "train"), folder=tmp_path / "0", output=output)
    stopped = sweep.Sweep([trial], "validation-accuracy", tmp_path / "sweep.csv")
    stopped._children.stop()
    stopped._train(trial, [0])
    assert output.read_text() == "error: out of memory" and stopped.results["0"].state == "waiting"


def test_budget_leaves_trials_out(tmp_path):
    """In the order of the grid, a trial runs if its cost and those of all chosen before it are within the budget."""
    grid, system = HEAD + "  grid:\n    epochs: [4, 8, 1]\n", ("--system", "POD4")
    price = (*system, "--price", 1e9)
    money = re.search(r"costs: ([\d.,]+) with 1e", listed(tmp_path, grid, *price).out)
    budget = float(money[1].replace(",", "")) * 6 / 13  # 4 + 1 of 13 epochs, and a margin of one
    chosen = listed(tmp_path, grid, *price, "--budget", budget).out
    assert "left out, over the budget: epochs=8\n" in chosen and chosen.count("left out") == 1
    assert "give --price" in listed(tmp_path, grid, *system, "--budget", 5).err
    assert "give --system" in listed(tmp_path, grid, "--budget", 5).err
    nothing = succeed("sweep", tmp_path / "s.yml", *system, "--budget", "1e-9 h", "--logs-path", tmp_path / "logs").out
    assert nothing.count("left out\n") == 3 and not [*(tmp_path / "logs").rglob("training.csv")]
    table = next((tmp_path / "logs").rglob("sweep.csv"))
    assert table.read_text().count("left out") == 3
    (table.parent / "epochs=8").mkdir()  # a trial that has begun is kept
    words = ("--budget", "1e-9 h", "--logs-path", tmp_path / "logs", "--dry-run")
    assert succeed("sweep", tmp_path / "s.yml", *system, *words).out.count("left out") == 2


@pytest.mark.parametrize(("config", "released"), [("quickstart", set()), ("mk2_resnet50_base", {"release"})])
def test_best_trial_is_marked_and_written(config, released, tmp_path):
    """Options have short names, unless two end alike. A failed trial is never the best, whatever its value."""
    shared = {"config": config, "weight-decay": 0.5}
    axes = [{"base-learning-rate-exponent": -9 - k, "momentum": 0.8} for k in range(3)]
    trials = [
        sweep.Trial(
            name=str(k), values=values, call=Call.of_values({**shared, **values}, "train"),
            folder=tmp_path / str(k), output=tmp_path / f"{k}.txt",
        )
        for k, values in enumerate(axes)
    ]  # fmt: skip
    ranked = sweep.Sweep(trials, "validation-accuracy", tmp_path / "sweep.csv")
    ranked.results = {
        "0": sweep.Result("complete", value=70.0),
        "1": sweep.Result("complete", value=80.0),
        "2": sweep.Result("failed", "broken", value=90.0),
    }
    head, *rows = [line.split() for line in ranked.table().splitlines()]
    assert head == ["validation", "accuracy", "rate-exponent", "momentum", "state"]
    assert [row[0] for row in rows] == ["best", "70.00", "90.00"] and rows[0][-3:] == ["-10", "0.8", "complete"]
    assert sweep._short_names(["ckpt_all_instances", "log-all-instances", "epochs"]) == [
        "ckpt_all_instances", "log-all-instances", "epochs"
    ]  # fmt: skip
    written = ranked.write_best("s")
    options = cli.parse(["--config-path", str(written), "--config", "s_best"], "train", None, {}).options
    asked = cli.parse([*trials[1].call.words, "--seed", "1"], "train", None, {}).options
    assert options.values_release == asked.values_release
    same = {name for name, value in asked.values().items() if options.values()[name] == value}
    assert asked.values().keys() - same == {"config", "config_path"} | released and options.values()["seed"] == 1
    assert len(written.read_text().splitlines()) > 10  # a line for each option


def test_killed_sweep_resume_is_exact(tmp_path):
    """A failed trial becomes a row with its reason and affects no other. Other options in the same folders are rejected."""
    data = "--dataset fashion-mnist --model-size 8 --batch-size 50 --warmup-epochs 0 --iterations 60 --ckpts-per-epoch 100"
    text = "s:\n  seed: 3\n  grid:\n    abs-learning-rate: [0.01, 1e30]\n"
    (tmp_path / "s.yml").write_text(text)
    words = [str(tmp_path / "s.yml"), *data.split(), "--precision", "32.32", "--logs-path", str(tmp_path / "logs")]
    call = [sys.executable, "-m", "cnn_harness.tools.sweep", *words]
    process = subprocess.Popen(call, cwd=plugins.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    good = tmp_path / "logs/s/abs-learning-rate=0.01"
    until = time.monotonic() + 120
    while not list(good.glob("ckpt-[1-9]*.index")) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(call, cwd=plugins.ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stdout + done.stderr
    with open(tmp_path / "logs/s/sweep.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["complete", "failed"] and " is nan: " in rows[1]["reason"]
    words_of_one = f"{data} --precision 32.32 --seed 3 --abs-learning-rate 0.01".split()
    succeed("train", *words_of_one, "--logs-path", tmp_path / "unbroken")
    assert_same_bits(variables(good, 60), variables(tmp_path / "unbroken", 60))
    assert timeless(good / "training.csv") == timeless(tmp_path / "unbroken/training.csv")
    refused = run("sweep", *words, "--weight-decay", 0.5)
    assert refused.code == 2 and "with other options" in refused.err
