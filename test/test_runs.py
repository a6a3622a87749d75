"""cnn runs: list the runs in a folder, and remove them."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from commands import Result, run

from cnn_harness.base.storage import locks
from cnn_harness.base.storage.tables import VALIDATION_COLUMNS, Table
from cnn_harness.harness.checkpoints import manifest

RECORD = {"model": "resnet", "model_size": 8, "dataset": "cifar-10", "total_iterations": 6, "run_id": "ab"}


def called(*words: object) -> Result:
    return run("runs", *words)


def listed(top: Path, *words: object) -> dict[str, dict]:
    """Return the runs by name, in their order."""
    return {each["name"]: each for each in json.loads(called(top, "--json", *words).out)}


def made(folder: Path, updates: int | None, accuracies: tuple[float, ...] = (), age: int = 0, **record: object) -> Path:
    """Return a folder as a run leaves it, with an empty checkpoint."""
    folder.mkdir(parents=True)
    (folder / "arguments.json").write_text(json.dumps({**RECORD, **record}))
    if updates is not None:
        for end in ("index", "data-00000-of-00001"):
            (folder / f"ckpt-{updates}.{end}").write_text("tensors")
        manifest.write(folder / f"ckpt-{updates}")
    table = Table(folder / "validation.csv", VALIDATION_COLUMNS)
    for k, accuracy in enumerate(accuracies):
        row = dict.fromkeys(VALIDATION_COLUMNS, 1.0)
        table.append({**row, "name": f"ckpt-{k}", "iteration": k, "epoch": k / 2, "val_acc": accuracy, "val_size": 100})
    for path in (*folder.iterdir(), folder):
        os.utime(path, (10**9 - age, 10**9 - age))
    return folder


@pytest.fixture
def logs(tmp_path) -> Path:
    made(tmp_path / "logs/done", 6, (10.0, 60.5, 60.5), age=3)
    made(tmp_path / "logs/deep/half", 3, (70.0,), age=1)
    made(tmp_path / "logs/fresh", None, age=2)
    (tmp_path / "logs/no_run").mkdir()
    (tmp_path / "logs/link").symlink_to(made(tmp_path / "elsewhere", 6))
    return tmp_path / "logs"


def test_runs_are_listed_with_results(logs):
    runs = listed(logs)
    assert list(runs) == ["deep/half", "fresh", "done"]  # newest first, and none through a link
    assert [(each["updates"], each["total_updates"], each["state"]) for each in runs.values()] == [
        (3, 6, "stopped"), (0, 6, "stopped"), (6, 6, "complete"),
    ]  # fmt: skip
    done = runs["done"]
    assert (done["network"], done["dataset"], done["changed"]) == ("resnet 8", "cifar-10", "2001-09-09T01:46:37+00:00")
    assert (done["accuracy"], done["accuracy_epoch"], done["checkpoint"]) == (60.5, 0.5, "ckpt-1")
    assert list(listed(logs, "--sort", "accuracy")) == ["deep/half", "done", "fresh"]
    assert list(listed(logs, "--sort", "name")) == ["deep/half", "done", "fresh"]
    assert list(listed(logs / "done")) == ["."]
    head, first, *_ = called(logs).out.splitlines()
    assert head.split("  ")[0] == "run" and re.search(r"deep/half .* 3 of 6 .* 70\.00 % at epoch 0 .* stopped$", first)


def test_validation_folder_is_no_run(logs):
    made(logs / "v", None, (50.0,), run_id=None)
    assert (listed(logs)["v"]["state"], listed(logs)["v"]["total_updates"]) == ("validation", None)
    with locks.lock_folder(logs / "v"):
        assert (listed(logs)["v"]["state"], listed(logs)["v"]["total_updates"]) == ("running", None)


def _cut_earlier(folder: Path) -> None:
    for end in ("index", "data-00000-of-00001"):
        (folder / f"ckpt-1.{end}").write_text("tensors")
    manifest.write(folder / "ckpt-1")
    (folder / "ckpt-1.index").write_text("")


DAMAGES = {
    "no record": (lambda folder: (folder / "arguments.json").unlink(), "arguments.json"),
    "record": (lambda folder: (folder / "arguments.json").write_text("{"), "arguments.json"),
    "tensors cut": (lambda folder: (folder / "ckpt-3.data-00000-of-00001").write_text(""), "ckpt-3.data-00000-of-00001"),
    "tensors gone": (lambda folder: (folder / "ckpt-3.data-00000-of-00001").unlink(), "ckpt-3.data-00000-of-00001"),
    "an earlier one cut": (_cut_earlier, "ckpt-1.index"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_run_is_listed_with_file(case, logs):
    damage, file = DAMAGES[case]
    damage(logs / "deep/half")
    run = listed(logs)["deep/half"]
    assert run["state"] == "damaged" and file in run["damage"]
    assert listed(logs)["done"]["state"] == "complete"


def test_locked_run_is_recognised_and_kept(logs):
    with locks.lock_folder(logs / "done"):
        assert listed(logs)["done"]["state"] == "running"
        result = called(logs, "--remove", "deep/half", "done", "--yes")
        assert (result.code, result.out) == (2, "") and "--remove done: the run is still running" in result.err
    assert (logs / "deep/half").exists() and listed(logs)["done"]["state"] == "complete"


@pytest.mark.parametrize("place", ["inner", ".hidden/run", "1/2/3/4/5/6/7/8/9/run"])
def test_nested_run_keeps_outer_run(logs, place):
    inside = made(logs / "done" / place, 1)
    result = called(logs, "--remove", "done", "--yes")
    assert (result.code, result.out) == (2, "") and f"contains another run, {inside}" in result.err
    assert (inside / "ckpt-1.index").exists() and (logs / "done/ckpt-6.index").exists()


def test_only_requested_runs_are_removed(logs):
    (logs / "done/further").symlink_to(logs.parent / "elsewhere")
    result = called(logs, "--remove", "done", logs / "fresh", "--yes")
    assert result.code == 0 and all(f"Removed {logs / name}\n" in result.out for name in ("done", "fresh"))
    assert sorted(os.listdir(logs)) == ["deep", "link", "no_run"] and (logs.parent / "elsewhere/ckpt-6.index").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--remove", "dnoe", "--yes"), "no such run; did you mean done?"),
        (("--remove", "link", "--yes"), "no such run"),
        (("--remove", "no_run", "--yes"), "no such run"),
        (("--remove", "../elsewhere", "--yes"), "no such run"),
        (("--remove", "done"), "give --yes"),
    ],
)
def test_other_folders_and_unconfirmed_runs_stay(words, reason, logs, monkeypatch):
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        result = called(logs, *words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1) and reason in result.err
    assert len(listed(logs)) == 3 and (logs.parent / "elsewhere").exists()
