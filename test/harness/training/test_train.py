"""Training through the real commands: the printed lines, the files, and exact resuming."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import photos
import pytest
import small_sets
import tensorflow.compat.v1 as tf
from commands import arguments, assert_same_bits, moved, rows, run, succeed, timeless, variables

from cnn_harness.base import plugins
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

ROOT = plugins.ROOT
SMALL = ("--precision", "32.32", "--dataset", "cifar-10", "--model-size", "8", "--optimiser", "momentum", "--lr-schedule", "cosine",
         "--base-learning-rate-exponent", "-7", "--warmup-epochs", "0.2", "--seed", "7")  # fmt: skip
# 1,250 images in batches of 8: 156 updates an epoch, and a quarter
UNBROKEN = (*SMALL, "--batch-size", "8", "--iterations", "240", "--log-freq", "40", "--batches-per-step", "20")
TRAINING_HEADER = (
    "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_per_sec,total_time,input_share,"
    "noise_scale"
)
VALIDATION_HEADER = "name,iteration,epoch,val_acc,raw_acc,val_time,val_size,img_per_sec,latency,top5_acc,loss"
NUMBER = r"\s*-?[\d.]+(e[-+]\d+)?"
TRAINING_LINE = re.compile(
    rf"^step:{NUMBER}, iteration:{NUMBER}, epoch:{NUMBER}, lr:{NUMBER}, loss:{NUMBER}, top-1 accuracy:{NUMBER}%, "
    rf"img/sec:{NUMBER}, time:{NUMBER}, total_time:{NUMBER}$", re.M,
)  # fmt: skip
VALIDATION_LINE = re.compile(
    rf"^Validation top-1 accuracy \[ckpt-240\] \(iteration:{NUMBER}, epoch:{NUMBER}, img/sec:{NUMBER}, time:{NUMBER}, "
    rf"latency \(ms\):{NUMBER}\):{NUMBER}%$", re.M,
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def small_cifar10(tmp_path_factory):
    """Return CIFAR-10 where it is found without --dataset and --data-dir."""
    folder = small_sets.cifar10(tmp_path_factory.mktemp("cifar"), 1250, 200)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("DATA_DIR", str(folder))
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Return a run of 240 updates, one and a half epochs."""
    folder = tmp_path_factory.mktemp("unbroken")
    return succeed("train", *UNBROKEN, "--log-dir", folder)


@pytest.mark.slow
def test_restore_is_exact(unbroken, tmp_path):
    # 173 is inside the second epoch, off the grid of host steps, log lines and checkpoints
    stopped = succeed("train", *UNBROKEN, "--log-dir", tmp_path, "--stop-after", 173)
    assert "Stopped after 173 of 240 updates." in stopped.out
    assert f"restore.py --restore-path {stopped.folder}" in stopped.out
    moved_run = tmp_path / "elsewhere"
    shutil.move(stopped.folder, moved_run)
    resumed = succeed("restore", "--restore-path", moved_run)
    assert f"Restoring training from latest checkpoint: {moved_run}/ckpt-173" in resumed.out
    whole, pieced = variables(unbroken.folder, 240), variables(moved_run, 240)
    assert_same_bits(whole, pieced)
    assert "all/b1/0/1/conv/conv2d/kernel/Momentum" in whole
    assert "all/b0/batch_norm/moving_mean" in whole
    assert moved(variables(unbroken.folder, 0), whole) > 0.05
    assert timeless(unbroken.folder / "training.csv") == timeless(moved_run / "training.csv")
    assert timeless(unbroken.folder / "validation.csv") == timeless(moved_run / "validation.csv")


def test_another_seed_changes_run(unbroken, tmp_path):
    result = succeed("train", *UNBROKEN, "--seed", 8, "--stop-after", 1, "--log-dir", tmp_path, "--no-validation")
    assert moved(variables(unbroken.folder, 0), variables(result.folder, 0)) > 0.5


def test_run_directory_has_its_files(unbroken):
    assert re.fullmatch(r"RN8_bs8_BN_32\.32_[A-Z0-9]{3}", unbroken.folder.name)
    names = {path.name for path in unbroken.folder.iterdir()}
    assert {"log.txt", "arguments.json", "training.csv", "validation.csv", "checkpoint", "training.svg"} <= names
    for point in (0, 160, 240):
        assert {f"ckpt-{point}.index", f"ckpt-{point}.data-00000-of-00001", f"ckpt-{point}.manifest.json"} <= names
    assert [name for name in names if name.startswith("events.out.tfevents.")]


def test_console_has_original_lines(unbroken):
    out = unbroken.out
    assert out.startswith(" Saving to ")
    assert re.search(r"^Batch Size: 8$", out, re.M)
    assert re.search(r"^Trainable Variables:", out, re.M)
    assert re.search(r"^Total Parameters:75770$", out, re.M)
    assert re.search(r"^Saved initial checkpoint to \S+/ckpt-0$", out, re.M)
    assert re.search(r"^Saved checkpoint to \S+/ckpt-240 in [\d.]+s$", out, re.M)
    text = (unbroken.folder / "log.txt").read_text()
    assert len(TRAINING_LINE.findall(text)) == len(rows(unbroken.folder / "training.csv")) > 0
    assert VALIDATION_LINE.search(out)
    path = re.escape(str(unbroken.folder))
    assert re.search(rf"^Validate again:  \S+ \S*validation\.py --restore-path {path}$", out, re.M)
    assert re.search(rf"^Train further:   \S+ \S*restore\.py --restore-path {path} --iterations 360$", out, re.M)
    assert "; precision 32.32, up to" in out


def test_log_file_has_console_lines_and_more(unbroken):
    text = (unbroken.folder / "log.txt").read_text()
    assert all(line in text for line in unbroken.out.splitlines())
    assert "all/fc1/dense/kernel" in text
    assert re.search(r"^momentum +0\.9 +default$", text, re.M)


def test_csv_headers_and_rows_are_fixed(unbroken):
    training = (unbroken.folder / "training.csv").read_text().splitlines()
    assert training[0] == TRAINING_HEADER
    # first host step, multiples of 40, the last two host steps
    assert [int(line.split(",")[1]) for line in training[1:]] == [20, 40, 80, 120, 160, 200, 220, 240]
    assert [int(line.split(",")[0]) for line in training[1:]] == [1, 2, 4, 6, 8, 10, 11, 12]
    assert (unbroken.folder / "validation.csv").read_text().splitlines()[0] == VALIDATION_HEADER
    # the host step that passes update 156 ends at 160
    assert [row["name"] for row in rows(unbroken.folder / "validation.csv")] == ["ckpt-160", "ckpt-240"]
    assert all(row["val_size"] == "200" for row in rows(unbroken.folder / "validation.csv"))
    averages = [float(row["loss_avg"]) for row in rows(unbroken.folder / "training.csv")]
    assert averages[0] == float(rows(unbroken.folder / "training.csv")[0]["loss_batch"])
    assert averages[-1] < averages[0] * 2 / 3  # the exact loss depends on the processor


def test_arguments_json_records_options(unbroken):
    text = (unbroken.folder / "arguments.json").read_text()
    found = json.loads(text)
    assert text == json.dumps(found, sort_keys=True, indent=4, separators=(",", ": ")) + "\n"
    expected = {"micro_batch_size": 8, "total_batch_size": 8, "global_batch_size": 8, "seed": 7, "seed_specified": True,
                "precision": "32.32", "lr_scale": 128.0, "grad_scale": 1.0, "model": "resnet", "model_size": 8,
                "total_replicas": 1, "image_size": 32, "validation": True, "logs_path": str(unbroken.folder)}  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_tensorboard_has_events(unbroken):
    (path,) = unbroken.folder.glob("events.out.tfevents.*")
    seen = [(value.tag, event.step) for event in tf.train.summary_iterator(str(path)) for value in event.summary.value]
    assert ("loss/train", 20) in seen
    assert ("accuracy/validation", 240) in seen
    assert {("_hparams_/session_start_info", 0), ("_hparams_/session_end_info", 0)} <= {*seen}


def test_tensorboard_shows_images_of_stream(unbroken, tmp_path):
    """The images of the first pass come from the training stream, flipped and cropped. Showing them changes no bit."""
    words = [*UNBROKEN, "--stop-after", "20", "--no-validation"]
    result = succeed("train", *words, "--log-dir", tmp_path, "--tensorboard-images", 5)
    assert timeless(result.folder / "training.csv") == timeless(unbroken.folder / "training.csv")[:1]
    (path,) = result.folder.glob("events.out.tfevents.*")
    events = [event for event in tf.train.summary_iterator(str(path)) if event.HasField("summary")]
    shown = {v.tag: v.image for event in events for v in event.summary.value if v.HasField("image")}
    assert len(shown) == 5 and all(re.fullmatch(r"first images/\d{3} \w+", tag) for tag in shown)
    run = prepare(cli.parse([*map(str, UNBROKEN)], "train", environ=os.environ).options, os.environ).run
    with tf.Graph().as_default(), tf.Session() as session:
        files = [image.encoded_image_string for _, image in sorted(shown.items())]
        drawn = session.run([tf.io.decode_png(file) for file in files])
        element = tf.data.make_one_shot_iterator(run.data_source.train(run.training_request(0, 7))).get_next()
        seen = session.run(run.data_source.on_device(element["image"], run.training_request(0, 7), element.get("moments")))
    for network_input, image in zip(seen, drawn):
        stretched = 255 * (network_input - network_input.min()) / (network_input.max() - network_input.min())
        assert image.shape == (32, 32, 3) and np.abs(image - stretched).max() <= 1


def test_validation_script_agrees_with_training(unbroken, tmp_path):
    trained = {row["name"]: row for row in rows(unbroken.folder / "validation.csv")}
    result = succeed("validation", "--restore-path", unbroken.folder, "--valid-batch-size", 37, "--log-dir", tmp_path)
    found = rows(result.folder / "validation.csv")
    assert [row["name"] for row in found] == ["ckpt-0", "ckpt-160", "ckpt-240"]
    for row in found[1:]:
        # every image exactly once for any batch: 200 is no multiple of 37
        assert row["val_acc"] == trained[row["name"]]["val_acc"]
        assert row["top5_acc"] == trained[row["name"]]["top5_acc"]
        assert float(row["loss"]) == pytest.approx(float(trained[row["name"]]["loss"]), rel=1e-5)
        assert float(row["epoch"]) == pytest.approx(int(row["iteration"]) * 8 / 1250)


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--repeat", "3", "--iterations", "5"], 3),
        (["--inference"], 1),
        (["--latency"], 1),
        (["--config", "quickstart", "--model-size", "8", "--dataset", "cifar-10"], 1),
    ],
)
def test_one_checkpoint_is_validated(unbroken, tmp_path, words, lines):
    result = succeed("validation", "--restore-path", unbroken.folder / "ckpt-240", *words, "--log-dir", tmp_path)
    found = rows(result.folder / "validation.csv")
    assert len(found) == lines
    assert ("--iterations 5 has no effect" in result.out) == ("--iterations" in words)
    trained = rows(unbroken.folder / "validation.csv")[-1]
    assert {row["val_acc"] for row in found} == {trained["val_acc"]}
    assert found[0]["top5_acc"] == trained["top5_acc"]
    assert float(found[0]["loss"]) == pytest.approx(float(trained["loss"]), rel=1e-6)


def test_finished_run_can_be_extended(unbroken, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(unbroken.folder, folder)
    words = ("restore", "--restore-path", folder, "--iterations", 260)
    planned, result = succeed(*words, "--dry-run"), succeed(*words)
    for out in (result.out, planned.out):
        assert [line for line in out.splitlines() if line.startswith("overridden")] == ["overridden: iterations = 260"]
    assert int(rows(folder / "training.csv")[-1]["iteration"]) == 260
    assert variables(folder, 260)["global_step"] == 260
    assert json.loads((folder / "arguments_restore.json").read_text())["iterations"] == 260
    assert arguments(folder)["iterations"] == 240
    again = succeed("restore", "--restore-path", folder)  # the later record counts, and nothing is left to do
    assert "Restoring training from latest checkpoint" in again.out
    for what in ("initial checkpoint to {}/ckpt-0", "checkpoint to {}/ckpt-260"):  # scripts wait for these lines
        assert re.search(rf"^Saved {what.format(re.escape(str(folder)))}$", again.out, re.M)
    assert "\nSkipped the validation of ckpt-260" in again.out
    assert int(rows(folder / "training.csv")[-1]["iteration"]) == 260
    late = run("restore", "--restore-path", folder, "--iterations", 300, "--stop-after", 250)
    assert late.code == 2
    assert "--stop-after 250 is too small: the run has finished 260 updates already" in late.err
    message = succeed("restore", "--restore-path", folder, "--iterations", 300, "--dry-run").out
    assert "Done: 260 of 300 updates, 40 left" in message


def test_restore_drops_later_rows_and_validates_gaps(unbroken, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(unbroken.folder, folder)
    for file in (*folder.glob("ckpt-240.*"), folder / "validation.csv"):
        file.unlink()
    succeed("restore", "--restore-path", folder)
    for table in ("training.csv", "validation.csv"):
        assert timeless(folder / table) == timeless(unbroken.folder / table)
    assert_same_bits(variables(folder, 240), variables(unbroken.folder, 240))


@pytest.mark.parametrize(
    ("kind", "dataset"), [("--generated-data", "cifar-10"), ("--synthetic-data", "imagenet --model-size 10 --image-size 32")]
)
def test_generated_and_synthetic_data_are_learnt(kind, dataset, tmp_path):
    result = succeed("train", "--model-size", 8, "--dataset", *dataset.split(), kind, "--precision", "32.32", "--batch-size", 4, "--iterations", 30, "--log-freq", 10,
                     "--abs-learning-rate", 0.05, "--warmup-epochs", 0, "--no-validation", "--seed", 1, "--log-dir", tmp_path)  # fmt: skip
    last = rows(result.folder / "training.csv")[-1]
    assert float(last["train_acc_batch"]) > 95
    assert 0 <= float(last["loss_batch"]) < 0.2
    assert float(rows(result.folder / "training.csv")[0]["lr"]) == pytest.approx(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "checkpoints", "validated"), [
    (("--ckpts-per-epoch", 0), [], ["final"]),
    (("--max-ckpts-to-keep", 1, "--ckpts-per-epoch", 2), [20], ["ckpt-5", "ckpt-10", "ckpt-15", "ckpt-20"]),
])  # fmt: skip
def test_checkpoints_and_validations_are_due_as_listed(tmp_path, words, checkpoints, validated):
    # 10 updates of 125 images an epoch
    result = succeed(
        "train", *SMALL, "--batch-size", 125, "--epochs", 2, "--logs-per-epoch", 2, "--log-dir", tmp_path, *words
    )
    found = sorted(int(path.stem[5:]) for path in result.folder.glob("ckpt-*.index"))
    assert found == checkpoints
    path = result.folder / "validation.csv"
    assert ([row["name"] for row in rows(path)] if path.exists() else []) == validated


@pytest.mark.slow
def test_patience_ends_run_and_keeps_best(tmp_path):
    """The rate changes losses but no answer: patience counts from the first validation, and the lowest loss is kept."""
    words = ("--precision", "32.32", "--dataset", "cifar-10", "--model-size", 8, "--group-norm", "--batch-size", 125,
             "--epochs", 9, "--seed", 7, "--abs-learning-rate", 1e-6, "--weight-decay", 0)  # fmt: skip
    ending = ("--patience", 2, "--keep-best-ckpt", "--max-ckpts-to-keep", 1, "--weight-avg-N", 1)
    result = succeed("train", *words, *ending, "--log-dir", tmp_path)
    folder, said = result.folder, "Ended after 30 of 90 updates: 2 validations"
    assert re.search(f"^{said} .* ckpt-10, [0-9.]+%", result.out, re.MULTILINE)  # of equal accuracies, the first counts
    assert f"restore.py --restore-path {folder} --patience 4" in result.out
    assert sorted(path.stem for path in folder.glob("ckpt-*.index")) == ["ckpt-20", "ckpt-30"]
    names = ["ckpt-10", "ckpt-20", "ckpt-30", "weight_avg_N_1"]
    assert [row["name"] for row in rows(folder / "validation.csv")] == names
    for file in (*folder.glob("ckpt-30.*"), *folder.glob("ckpt/*")):  # killed between a validation and its checkpoint
        file.unlink()
    again = succeed("train", *words, *ending, "--logs-path", folder, "--autoresume")
    assert said in again.out and (folder / "ckpt-30.index").exists() and list(folder.glob("ckpt/*"))
    again = succeed("restore", "--restore-path", folder)
    assert said in again.out and [row["name"] for row in rows(folder / "validation.csv")] == names
    further = succeed("restore", "--restore-path", folder, "--patience", 3)
    assert "Ended after 40 of 90 updates: 3 validations" in further.out
    assert sorted(path.stem for path in folder.glob("ckpt-*.index")) == ["ckpt-30", "ckpt-40"]


def test_iterations_are_exact_for_oversized_batch(tmp_path):
    result = succeed("train", "--dataset", "cifar-10", "--generated-data", "--model-size", 8, "--batch-size", 2, "--iterations", 10,
                     "--batches-per-step", 4, "--log-dir", tmp_path, "--no-validation")  # fmt: skip
    assert variables(result.folder, 10)["global_step"] == 10
    assert [int(row["iteration"]) for row in rows(result.folder / "training.csv")] == [4, 8, 10]
    wide = succeed("train", *SMALL, "--batch-size", 1300, "--iterations", 1, "--dry-run")
    assert re.search("1300 samples.* 1250 images", wide.out)


def test_no_logs_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    result = succeed("train", *SMALL, "--batch-size", 8, "--iterations", 2, "--no-logs", "--no-validation")
    assert [path.name for path in tmp_path.iterdir()] == ["temporary"]
    assert " Saving to " not in result.out
    assert len(list((tmp_path / "temporary").glob("RN8_*/ckpt-2.index"))) == 1


@pytest.fixture(scope="module")
def photo_set(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records") / "imagenet-data"
    photos.write_imagenet(folder, train=24, validation=10, shards=2)
    return folder


@pytest.mark.slow
def test_imagenet_trains_from_photos(photo_set, tmp_path):
    words = ("--precision", "32.32", "--dataset", "imagenet", "--data-dir", photo_set, "--model-size", 18, "--image-size", 64,
             "--batch-size", 8, "--iterations", 3, "--batches-per-step", 1, "--abs-learning-rate", 0.01, "--log-dir", tmp_path, "--seed", 1)  # fmt: skip
    result = succeed("train", *words)
    found = rows(result.folder / "training.csv")
    assert [int(row["iteration"]) for row in found] == [1, 2, 3]
    assert all(0 < float(row["loss_batch"]) < 20 for row in found)
    assert rows(result.folder / "validation.csv")[-1]["val_size"] == "10"
    inferred = succeed(
        "train", *[word for word in words if word not in ("--dataset", "imagenet")], "--stop-after", 1, "--no-validation"
    )
    assert "Data set: imagenet, 24 training and 10 validation images" in inferred.out


def test_program_prints_plain_lines(tmp_path):
    """The real process: no carriage returns without a terminal, exit code 0."""
    words = [sys.executable, "train.py", *SMALL, "--batch-size", "8", "--iterations", "3", "--log-dir", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert "Final validation top-1 accuracy:" in done.stdout


def test_rejected_restore_changes_nothing(unbroken, tmp_path):
    """A rejected option used to be recorded, so every later restore failed too."""
    folder = tmp_path / "run"
    shutil.copytree(unbroken.folder, folder)
    assert run("restore", "--restore-path", folder, "--group-norm").code == 2
    for words in (["--no-logs"], ["--batch-size", 16], ["--iterations", 200], ["--epochs", 1], ["--stop-after", 200]):
        refused = [run("restore", "--restore-path", folder, *words, *more) for more in ([], ["--dry-run"])]
        assert [(each.code, each.out, each.err.count("\n")) for each in refused] == [(2, "", 1)] * 2, words
    assert not (folder / "arguments_restore.json").exists()
    succeed("restore", "--restore-path", folder)
