"""inference_embedded.py: one frozen program, reused while it is valid, and its answers."""

from __future__ import annotations

import re

import pytest
from commands import rows, run, succeed

from cnn_harness.base.storage.locks import is_locked
from cnn_harness.harness.programs import embedded
from cnn_harness.harness.programs.build import frozen_program, validation_batches_uint8
from cnn_harness.harness.programs.embedded import load
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.ipu_utils import FrozenProgram
from cnn_harness.log import RunLog

NET = "--dataset fashion-mnist --model resnet --model-size 8 --batch-size 50"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a run of two updates."""
    folder = tmp_path_factory.mktemp("embedded") / "run"
    words = f"{NET} --iterations 2 --seed 3 --ckpts-per-epoch 1000 --precision 32.32"
    succeed("train", *words.split(), "--logs-path", folder)
    return folder


def infer(folder, *words):
    return run("inference_embedded", "--logs-path", folder, *words)


def accuracy(folder) -> str:
    return rows(folder / "validation.csv")[-1]["val_acc"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["32.32", "16.16"])
def test_embedded_program_answers_like_validation(trained, tmp_path, monkeypatch, precision):
    monkeypatch.chdir(tmp_path)
    locked, write_row = [], RunLog.validation_row
    monkeypatch.setattr(RunLog, "validation_row", lambda of, row: (locked.append(is_locked(of.folder)), write_row(of, row)))
    words = ("--restore-path", trained / "ckpt-2", "--precision", precision)
    succeed("validation", *words, "--logs-path", tmp_path / "v")
    result = infer(tmp_path / "i", *words, "--iterations", 40)  # 40 micro-batches of 50 are all of the 2,000 images
    assert result.code == 0, result.err
    assert float(accuracy(tmp_path / "i")) == pytest.approx(float(accuracy(tmp_path / "v")), abs=1e-9)
    row, validated = (rows(tmp_path / name / "validation.csv")[0] for name in ("i", "v"))
    assert float(row["top5_acc"]) == pytest.approx(float(validated["top5_acc"]), abs=1e-9)
    assert float(row["loss"]) == pytest.approx(float(validated["loss"]), rel=1e-5)
    assert (row["name"], row["iteration"], row["val_size"]) == ("ckpt-2", "2", "2000")
    assert locked == [True, True] and not any(is_locked(tmp_path / name) for name in ("i", "v"))
    named = ("avg", "99th percentile", "99.9th percentile", "max")  # the original's complete line
    latencies = re.search(
        "^Latencies - " + ", ".join(rf"{name}: ([\d.]+) ms" for name in named) + "$", result.out, re.MULTILINE
    )
    assert latencies and float(latencies[1]) > 0 and float(latencies[2]) <= float(latencies[3]) <= float(latencies[4])
    assert 0 < float(re.search(r"^Median latency: ([\d.]+) ms$", result.out, re.MULTILINE)[1]) <= float(latencies[4])


@pytest.mark.slow
def test_program_is_built_once(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--restore-path", trained / "ckpt-2", "--iterations", 2)
    name = "model_resnet8_bs_50_bps_1000_ckpt-2_withlabels.frozen.pb"

    def said(folder: str, *more: object) -> str:
        result = infer(tmp_path / folder, *words, *more)
        assert result.code == 0, result.err
        return next(line for line in result.out.splitlines() if line.startswith("Poplar executable: " + name))

    assert "MB" in said("a") and (tmp_path / name).exists()
    written = (tmp_path / name).stat().st_mtime_ns
    assert "built earlier" in said("b") and (tmp_path / name).stat().st_mtime_ns == written
    assert "built earlier" not in said("c", "--force-recompile")
    # programs of another precision, size or weights have the same name: the file records its origin
    assert "built earlier" not in said("h", "--image-size", 24)
    assert "built earlier" not in said("d", "--precision", "16.16")
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:5000])
    assert "built earlier" not in said("e")
    (tmp_path / name).write_bytes(b"")
    assert "built earlier" not in said("f") and "built earlier" in said("g")
    whole = bytearray((tmp_path / name).read_bytes())
    whole[len(whole) // 2] ^= 1
    (tmp_path / name).write_bytes(whole)
    program, reason = load(tmp_path / name, "x")
    assert program is None and str(tmp_path / name) in reason


def test_temporary_program_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--dataset", "imagenet", "--generated-data", "--model-size", 10, "--image-size", 32, "--micro-batch-size", 2)
    result = infer(tmp_path / "l", *words, "--iterations", 3, "--tmp-execs")
    assert result.code == 0, result.err
    assert [path.name for path in tmp_path.iterdir()] == ["l"] and "deleted" in result.out
    assert accuracy(tmp_path / "l") == "-1.0"  # generated labels have no accuracy
    assert "" not in rows(tmp_path / "l/validation.csv")[0].values()


def test_threads_share_one_program():
    asked = prepare(cli.parse(NET.split(), "validation", environ={}).options, {}, training=False).run
    program = FrozenProgram(frozen_program(asked, 0, None, "x"))
    batches = validation_batches_uint8(asked, Execution(seed=0), 4)
    alone = [program.infer(images) for images in batches.images]
    calls = []

    class Watched:
        def infer(self, images):
            calls.append(next(k for k, known in enumerate(batches.images) if known is images))
            return program.infer(images)

    served = embedded.serve(Watched(), batches, 8, 3)
    assert len(served.latencies) == 24 and len(calls) == 27
    assert served.inferred == 24 * 50 and served.samples == 4 * 50  # each image counts once
    correct = [int((classes == labels).sum()) for (_, classes), labels in zip(alone, batches.labels)]
    assert served.correct == sum(correct)
    program.close()
