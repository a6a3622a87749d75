"""Wrong input gives one complete line on standard error, exit code 2, and changes no file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Result, run, succeed
from PIL import Image

from cnn_harness.base import plugins
from cnn_harness.harness.checkpoints import read, run_record, write
from cnn_harness.harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from cnn_harness.harness.run import recorded_arguments

ROOT = plugins.ROOT
SCRIPTS = ("train", "validation", "restore")
GENERATED = ("--dataset", "cifar-10", "--generated-data", "--model-size", "8", "--batch-size", "10")


def refused(script: str, *words: object) -> str:
    """Return the error's first line without its prefix; standard output must be empty."""
    result = run(script, *words)
    assert result.code == 2
    assert "Traceback" not in result.err
    first = result.err.splitlines()[0]
    head = f"{script}.py: error: "
    assert first.startswith(head)
    assert len(first) > len(head) + 10 and not first.endswith(":")
    assert result.err.count(": error: ") == 1
    assert result.out == ""
    return first[len(head) :]


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and modification time of every file in a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in an empty folder, in which a rejected call must leave nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATA_DIR", raising=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Result:
    """Return a run of one update."""
    folder = tmp_path_factory.mktemp("finished")
    words = ("--iterations", 1, "--no-validation", "--seed", 3, "--log-dir", folder)
    return succeed("train", *GENERATED, *words)


GIVEN = "--dataset cifar-10 --generated-data"


@pytest.mark.parametrize(
    "words, parts",
    [
        ("--config nosuch", "'nosuch'"),
        ("--config quickstart --config-path missing.yml", "missing.yml"),
        ("", "--dataset fashion-mnist"),
        ("--dataset mnist", "'mnist' fashion-mnist"),
        ("--dataset cifar-10 --data-dir nowhere", "cifar-10 --data-dir nowhere"),
        ("--dataset imagenet --data-dir .", "imagenet train-?????-of-?????"),
        ("--dataset fashion-mnist --data-dir .", "fashion-mnist --data-dir IDX"),
        (f"{GIVEN} --name-suffix ../x", "--name-suffix '../x'"),
        (f"{GIVEN} --dry-run --log-dir file/x", "file/x"),
    ],
)
def test_wrong_options_are_rejected(words, parts, tmp_path):
    (tmp_path / "file").write_text("kept")
    for script in ("train", "validation"):
        said = refused(script, *words.split())
        assert all(part in said for part in parts.split()), said
    assert list(tree(tmp_path)) == ["file"]


@pytest.mark.parametrize(
    "call, parts",
    [
        ("restore", "logs/one"),
        ("train --config-path configs.yml", "--config Available: first, second"),
        ("train --dataset imagenet --data-dir raw", "raw imagefolder Datasets.convert"),
        ("train --config quickstart --gpu 0", "--gpu --device"),
        ("train --config quickstart --amp", "--amp --precision auto"),
        ("train data=raw epochs=5", "write --data-dir raw --epochs 5"),
        ("sweep s.yml --dry-run=yes", "--dry-run takes no value, not yes"),
    ],
)
def test_hint_names_what_was_meant(call, parts, tmp_path):
    for folder, file in (("one", "ckpt-3.index"), ("validated", "arguments.json")):
        (tmp_path / "logs" / folder).mkdir(parents=True)
        (tmp_path / "logs" / folder / file).write_text("{}")
    (tmp_path / "configs.yml").write_text("first: {model: resnet}\nsecond: {model: resnet}\n")
    (tmp_path / "raw/train/n01440764").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "raw/train/n01440764/n01440764_1.JPEG")
    result = run(*call.split())
    assert result.code == 2 and all(part in result.err for part in parts.split(" ")), result.err
    assert "validated" not in result.err  # it has no weights


# Run directories


@pytest.mark.parametrize("script", SCRIPTS)
def test_restore_path_without_run_is_rejected(script, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("kept")
    for path in ("nowhere", "empty", "file", "empty/ckpt-3"):
        assert f"--restore-path {path}" in refused(script, "--restore-path", path, *GENERATED)
    assert list(tree(tmp_path)) == ["file"]


@pytest.mark.parametrize(
    "content, part",
    [
        (b"{", "line 1, column 2"),
        (b'{"a": "\xe9"}', "byte 7"),
        (b"[]", "JSON object"),
        (None, "no "),
        (b'{"dataset": "cifar-10", "model": "alexnet"}', "'alexnet'"),
        (b'{"dataset": "cifar-10", "epochs": "many"}', "epochs is 'many'"),
        (b"[" * 100_000, "nested"),
    ],
    ids=range(7),
)
def test_damaged_record_without_states_is_rejected(content, part, finished, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    for file in finished.folder.glob("ckpt-*"):
        if ".json" not in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    if content is not None:
        (folder / "arguments.json").write_bytes(content)
    before, said = tree(tmp_path), refused("restore", "--restore-path", folder)
    assert part in said and "arguments.json" in said
    assert tree(tmp_path) == before


NO_RECORD = {
    "asked": (3, []), "run_id": (7,), "parameters": (-1, "9"), "instance": (-1, True), "instance_folders": (-1, [1], "ab"),
    "total_replicas": (0, -1, 1.5, True, {}, [[1]], "x", "9" * 400, 1e308), "total_batch_size": (0, 2.0, 2**31),
    "image_size": ("32",), "symmetric_input": ("no",), "instances": (-3,), "iterations_per_epoch": ("x",), "seed": (-1, "3"),
    "checkpoint_path": ([],), "sources": ([],), "init_path": (7, ["a"]), "lars_skip_list": ([[1]], {}), "validation": ("no",),
    "weight_avg_exp": (["0.9"],), "epochs": ({"a": 1}, 1e999), "model_size": (1.5,), "poly_lr_decay_power": ("2",),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_RECORD)
def test_impossible_recorded_values_are_named(name, tmp_path):
    for value in NO_RECORD[name]:
        (tmp_path / "arguments.json").write_text(json.dumps({"model": "resnet", name: value}))
        with pytest.raises(CheckpointError, match=f"arguments.json is damaged: {name} is .* but must be"):
            run_record.options(tmp_path)
        if name != "asked":
            assert f"{name} is " in recorded_arguments.invalid_option({"asked": {name: value}})


def record_again(folder: Path, **changed: object) -> dict[str, object]:
    """Save the checkpoint after one update again with another record; return the earlier one."""
    newest = Checkpoint.at(folder, 1)
    state = run_record.state(newest)
    recorded = state[run_record.RECORDED]
    write.save_numbered(newest, read.tensors(newest), {**state, run_record.RECORDED: {**recorded, **changed}})
    return recorded


def test_changed_data_gives_warning(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.folder, folder)
    restore = ("restore", "--restore-path", folder, "--iterations", 2, "--dry-run")
    assert "the data differ" not in succeed(*restore).out
    recorded = record_again(folder, train_images=8)
    assert f"(8 train images, now {recorded['train_images']:,})" in succeed(*restore).out
    succeed(*restore[:-1])
    assert f"(8 train images, now {recorded['train_images']:,})" in (folder / "log.txt").read_text()


def test_run_resumes_without_arguments_json(finished, tmp_path):
    """The options are those of the last call that saved, even if arguments.json differs or is missing."""
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    (folder / "arguments.json").write_text('{"model_size": 14, "run_id": null}')
    out = succeed("restore", "--restore-path", folder, "--iterations", 2, "--name-suffix", "other").out
    assert "--name-suffix other has no effect" in out
    for file in folder.glob("arguments*.json"):
        file.unlink()
    assert "Done: 2 of 2 updates" in succeed("restore", "--restore-path", folder, "--dry-run").out
    assert "--init-path is not possible" in refused("restore", "--restore-path", folder, "--init-path", folder)


def test_run_directory_is_not_overwritten(finished, tmp_path):
    before = tree(finished.folder)
    for script, *more in (("train",), ("train", "--dry-run"), ("validation",)):
        message = refused(script, *GENERATED, *more, "--logs-path", finished.folder)
        assert f"--logs-path {finished.folder}" in message and f"restore.py --restore-path {finished.folder}" in message
    assert tree(finished.folder) == before


# In a separate process

ASK = """
import sys
sys.path.insert(0, {root!r})
from cnn_harness.harness.commands import answers, entry
import cnn_harness.{script} as script
code = answers.run_command({script!r}, script.main, sys.argv[1:])
assert not [name for name in sys.modules if name.split(".")[0] == "tensorflow"], "TensorFlow was imported"
sys.exit(code)
"""


@pytest.mark.parametrize("script", SCRIPTS)
def test_option_queries_do_not_import_tensorflow(script, tmp_path):
    calls = [(("--help",), 0, "usage: "), (("--no-such-option",), 2, ""), (("--model", "efficientnet", "-h"), 0, "usage: ")]
    if script != "restore":
        calls += [
            ((*GENERATED, "--explain"), 0, "model "),
            ((*GENERATED, "--seed", "3", "--dry-run"), 0, "--batch-size is an older"),
        ]
        calls += [(("--dataset", "cifar-10", "--data-dir", "nowhere"), 2, "")]
        for name in ("ant", "bee"):  # a tree, whose images are inspected
            (tmp_path / "train" / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / "train" / name / "1.png")
        shutil.copytree(tmp_path / "train", tmp_path / "val")
        calls += [(("--dataset", "imagefolder", "--data-dir", str(tmp_path), "--seed", "3", "--dry-run"), 0, "")]
    for words, code, start in calls:
        result = subprocess.run([sys.executable, "-c", ASK.format(root=str(ROOT), script=script), *words],
                                capture_output=True, text=True, timeout=60)  # fmt: skip
        assert "TensorFlow was imported" not in result.stderr
        assert (result.returncode, result.stdout[: len(start)]) == (code, start), result.stderr
        assert bool(result.stderr) == (code == 2)
        if "--dry-run" in words:  # only training has a learning rate and updates
            assert all(
                (phrase in result.stdout) == (script == "train") for phrase in ("learning rate", "Updates: ", " updates per")
            )


@pytest.mark.parametrize("script", SCRIPTS)
def test_program_returns_exit_code_and_one_line(script, tmp_path):
    result = subprocess.run([sys.executable, str(ROOT / f"{script}.py"), "--restore-path", "nowhere"],
                            capture_output=True, text=True, timeout=60, cwd=tmp_path)  # fmt: skip
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(rf"{script}\.py: error: --restore-path nowhere.*\n", result.stderr)


@pytest.mark.parametrize(
    "words",
    [("train.py", "--config=quickstart"), ("poprun.py", "--help"), ("-m", "cnn_harness", "import-weights", "--help")],
)
def test_missing_packages_are_one_line(words):
    """The system's Python, as in `python train.py`, ended with a traceback."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-S", *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert re.search(r": error: Python package \w+ is not installed in .*; .*`make setup`", done.stderr)
