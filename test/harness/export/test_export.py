"""A trained network leaves the project: as files that answer as its checkpoint does, or not at all."""

from __future__ import annotations

import errno
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from aborting import abort
from commands import Result, run, succeed
from PIL import Image
from tensorflow.lite.tools import flatbuffer_utils

import export
from base import plugins
from base.process.signals import StopRequest
from base.storage import files
from harness.export import agreement, digests, export_folder, export_options, file_formats, predicting
from harness.export.agreement import FP16, FP32, INT8
from harness.export.file_formats import FORMATS

OWN = "savedmodel,frozen,tflite"  # formats that TensorFlow has itself
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in FORMATS["onnx"].packages), reason="the extra `export` is missing"
)


def exported(*words: object) -> Result:
    """The result of a call of export.py."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = export.script([str(word) for word in words])
    return Result(code, out.getvalue(), err.getvalue())


def refused(*words: object) -> str:
    """The one line of a call with wrong input."""
    result = exported(*words)
    assert result.code == 2 and len(result.err.splitlines()) == 1, result
    return result.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of a ResNet-8, its own export in it."""
    folder = tmp_path_factory.mktemp("export") / "run"
    words = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 32 --seed 3 --no-validation"
    rest = "--iterations 60 --ckpts-per-epoch 20 --abs-learning-rate 0.1"
    succeed("train", *words.split(), *rest.split(), "--logs-path", folder)
    result = exported(folder, "--to", OWN)
    assert result.code == 0, result.err
    (folder / "told").write_text(result.out)
    return folder


@pytest.fixture(scope="module")
def photograph(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    coarse = np.random.default_rng(4).integers(0, 256, (5, 4, 3), np.uint8)
    Image.fromarray(coarse).resize((90, 70), Image.Resampling.BICUBIC).save(path)
    return path


def test_every_format_is_held_against_the_checkpoint(trained):
    said = (trained / "told").read_text()
    assert "on 64 pictures of the validation set" in said
    rows = re.findall(r"^  (\S+), [\d.]+ MB: probabilities differ by at most (\S+), .* equal on 64 of 64$", said, re.M)
    assert [name for name, _ in rows] == ["saved_model", "frozen.pb", "model.tflite"]
    assert all(0 < float(largest) < 1e-5 for _, largest in rows)
    names = {path.name for path in (trained / "export").iterdir()}
    assert names == {"saved_model", "frozen.pb", "model.tflite", "labels.txt", "preprocessing.json", "SHA256SUMS"}
    subprocess.run(["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"], cwd=trained / "export", check=True)
    assert not [path for path in trained.iterdir() if path.name.startswith(".export")]


def test_the_graph_has_plain_operations_and_the_promised_names(trained):
    graph = tf.GraphDef.FromString((trained / "export" / "frozen.pb").read_bytes())
    kinds = {node.op for node in graph.node}
    assert not [kind for kind in kinds if "Call" in kind or "Emulator" in kind or kind == "IdentityN" or "Variable" in kind]
    nodes = {node.name: node for node in graph.node}
    assert nodes["image"].attr["dtype"].type == tf.uint8.as_datatype_enum
    assert [size.size for size in nodes["image"].attr["shape"].shape.dim] == [-1, 32, 32, 3]
    assert nodes["probabilities"].op == "Softmax"
    assert not graph.library.function


def test_labels_and_preprocessing_are_beside_and_inside(trained):
    folder = trained / "export"
    texts = {name: (folder / name).read_text() for name in ("labels.txt", "preprocessing.json")}
    assert texts["labels.txt"].splitlines()[:2] == ["T-shirt/top", "Trouser"]
    about = json.loads(texts["preprocessing.json"])
    assert about["checkpoint"] == "ckpt-60" and about["input"]["shape"] == [None, 32, 32, 3]
    assert about["done_inside"]["normalisation"]["kind"] == "of each picture"
    assert {name: (folder / "saved_model/assets.extra" / name).read_text() for name in texts} == texts
    with zipfile.ZipFile(folder / "model.tflite") as archive:
        assert {name: archive.read(name).decode() for name in texts} == texts


@pytest.mark.parametrize("name", ["savedmodel", "frozen", "tflite", pytest.param("onnx", marks=needs_onnx)])
def test_the_pages_programs_answer_as_predict_does(trained, photograph, tmp_path, name):
    """In a process, and a folder, that have nothing of this project."""
    page = (plugins.ROOT / "docs" / "export.md").read_text()
    programs = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.S))
    assert len(programs) == 1 + len(FORMATS)
    folder = shutil.copytree(trained / "export", tmp_path / "elsewhere")
    if name == "onnx":
        assert exported(trained, "--to", "onnx", "--output", folder).code == 0
    for file in ("prepare.py", f"use_{name}.py"):
        assert len(programs[file].splitlines()) <= 33
        (folder / file).write_text(programs[file])
    if name == "tflite":  # 16 bits of grey, too
        photograph = tmp_path / "grey.png"
        Image.fromarray(np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))).save(photograph)
    call = [sys.executable, f"use_{name}.py", photograph]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    table = re.compile(r"([\d.]+) % +(.+)")
    shown = succeed("validation", "--restore-path", trained, "--predict", photograph).out
    own, given = ({label: float(share) for share, label in table.findall(text)} for text in (shown, done.stdout))
    assert len(own) == len(given) == 5 and list(own)[:3] == list(given)[:3]
    assert all(abs(own[label] - given[label]) <= 1.0 for label in own.keys() & given.keys())


@pytest.mark.parametrize("file", ["saved_model", "frozen.pb", "model.tflite"])
def test_predict_takes_an_exported_file(trained, photograph, file):
    table = re.compile(r"([\d.]+) %  (.+)")
    shown = [
        table.findall(succeed("validation", "--restore-path", path, "--predict", photograph).out)
        for path in (trained, trained / "export" / file)
    ]
    assert shown[0] == shown[1] and len(shown[0]) == 5


def test_a_network_with_more_outputs_than_classes_names_all(photograph, tmp_path):
    """SqueezeNet has twice as many."""
    words = "--model squeezenet --precision 32.32 --dataset cifar-10 --generated-data --batch-size 4 --no-validation"
    succeed("train", *words.split(), "--iterations", 1, "--logs-path", tmp_path)
    result = exported(tmp_path, "--to", "frozen", "--output", tmp_path / "out")
    assert result.code == 0, result.err
    assert (tmp_path / "out" / "labels.txt").read_text().splitlines()[9:11] == ["truck", "class 10"]
    assert json.loads((tmp_path / "out" / "preprocessing.json").read_text())["output"]["shape"] == [None, 20]
    answers = succeed("validation", "--restore-path", tmp_path / "out" / "frozen.pb", "--predict", photograph).out
    assert len([line for line in answers.splitlines() if "%" in line]) == 5


def test_an_exported_file_that_cannot_be_asked_is_one_line(trained, photograph, tmp_path, monkeypatch):
    monkeypatch.setattr(predicting, "_try_apart", lambda *_: None)  # which takes seconds
    folder = shutil.copytree(trained / "export", tmp_path / "export")

    def said(*words: object) -> str:
        result = run("validation", "--restore-path", *words)
        assert result.code == 2 and len(result.err.splitlines()) == 1
        return result.err

    asked = ("--predict", photograph)
    assert "give --predict photographs" in said(folder / "frozen.pb")
    assert "--batch-size: " in said(folder / "frozen.pb", "--batch-size", 4, *asked)
    assert "no such file" in said(folder / "none.tflite", *asked)
    in_folder = said(folder, *asked)
    assert f"{folder} is the folder of an export; give a file in it: " in in_folder and f"{folder}/model.tflite" in in_folder
    (folder / "SHA256SUMS").unlink()
    (folder / "frozen.pb").write_bytes(b"no graph")
    assert "frozen.pb cannot be run" in said(folder / "frozen.pb", *asked)
    reading = tf.GraphDef()
    reading.node.add(name="probabilities", op="ReadFile", input=["image"])
    (folder / "frozen.pb").write_bytes(reading.SerializeToString())
    assert "it holds what no export does: ReadFile" in said(folder / "frozen.pb", *asked)
    (folder / "labels.txt").write_text("one\ntwo\n")
    assert "has 10 classes, and labels.txt beside it names 2" in said(folder / "model.tflite", *asked)
    about = json.loads((folder / "preprocessing.json").read_text())
    for changed in ({**about, "prepare": {**about["prepare"], "square": 10**9}}, {**about, "input": 3}, []):
        (folder / "preprocessing.json").write_text(json.dumps(changed))
        assert "preprocessing.json" in said(folder / "model.tflite", *asked)
    (folder / "preprocessing.json").unlink()
    assert "it belongs beside the file" in said(folder / "model.tflite", *asked)


def test_an_exported_file_that_is_not_as_it_was_written_is_not_believed(trained, photograph, tmp_path, monkeypatch):
    """One bit in weights, two names that have changed places: answers, but not the network's. None is run, as damage may end
    the process of its runtime."""
    folder = shutil.copytree(trained / "export", tmp_path / "export")

    def said(file: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(predicting, "_running", lambda file: pytest.fail(f"{file.path} is run"))
            result = run("validation", "--restore-path", folder / file, "--predict", photograph)
        assert result.code == 2 and len(result.err.splitlines()) == 1 and "%" not in result.out, result
        return result.err

    weights = folder / "saved_model" / "variables" / "variables.data-00000-of-00001"
    weights = weights if weights.exists() else folder / "saved_model" / "saved_model.pb"
    for file, path in (
        ("frozen.pb", folder / "frozen.pb"),
        ("saved_model", weights),
        ("model.tflite", folder / "model.tflite"),
    ):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x01
        path.write_bytes(content)
        assert f"{path} is not as export.py wrote it, by {folder / 'SHA256SUMS'}" in said(file)
    names = (folder / "labels.txt").read_text().splitlines()
    (folder / "labels.txt").write_text("\n".join([names[1], names[0], *names[2:]]) + "\n")
    shutil.copy(trained / "export" / "model.tflite", folder)
    assert f"{folder / 'labels.txt'} is not as export.py wrote it" in said("model.tflite")
    shutil.copy(trained / "export" / "frozen.pb", folder)
    assert exported(trained, "--to", "frozen", "--output", folder, "--force").code == 0  # its own texts, too
    succeed("validation", "--restore-path", folder / "frozen.pb", "--predict", photograph)
    (folder / "SHA256SUMS").write_text("none\n")
    assert "SHA256SUMS cannot be read: it has other lines than sha256sum writes" in said("frozen.pb")
    assert exported(trained, "--to", "tflite", "--output", folder).code == 0  # which speaks for its own files alone
    assert f"{folder / 'frozen.pb'} is not as export.py wrote it" in said("frozen.pb")
    succeed("validation", "--restore-path", folder / "model.tflite", "--predict", photograph)
    (folder / "labels.txt").rename(folder / "labels")
    assert f"{folder / 'labels.txt'} cannot be read: No such file" in said("model.tflite")
    (folder / "labels").rename(folder / "labels.txt")
    (folder / "SHA256SUMS").unlink()
    for file in ("frozen.pb", "model.tflite"):
        succeed("validation", "--restore-path", folder / file, "--predict", photograph)


def test_a_file_that_ends_its_runtime_s_process_is_one_line(trained, photograph, tmp_path, monkeypatch):
    """As damage of one bit did, where no digests tell of it."""
    folder = shutil.copytree(trained / "export", tmp_path / "export")
    (folder / "SHA256SUMS").unlink()
    monkeypatch.setattr(predicting, "_try", abort)
    result = run("validation", "--restore-path", folder / "model.tflite", "--predict", photograph)
    assert result.code == 2 and "model.tflite cannot be run: its runtime was ended by SIGABRT" in result.err


def test_an_exported_file_is_read_within_bounds(trained, photograph, tmp_path, monkeypatch):
    """A pipe was waited for, a loop ran for ever, and sizes that did not go together gave a traceback."""
    monkeypatch.setattr(predicting, "_try_apart", lambda *_: None)  # which takes seconds
    folder = shutil.copytree(trained / "export", tmp_path / "export")

    def said(name: str) -> str:
        result = run("validation", "--restore-path", folder / name, "--predict", photograph)
        assert result.code == 2 and len(result.err.splitlines()) == 1, result
        return result.err

    (folder / "SHA256SUMS").unlink()
    huge = tf.GraphDef.FromString((folder / "frozen.pb").read_bytes())
    node = huge.node.add(name="huge", op="Const")
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.0, shape=[2, 10**9]))
    (folder / "huge.pb").write_bytes(huge.SerializeToString())
    assert (
        "huge.pb cannot be run: ValueError: it holds what no export does: a tensor of 2,000,000,000 numbers, huge:0"
        in said("huge.pb")
    )
    (folder / "pipe.tflite").symlink_to(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe.tflite cannot be read: Is a pipe or a device, not a file" in said("pipe.tflite")
    os.mkfifo(folder / "saved_model" / "fingerprint.pb")
    assert "fingerprint.pb: Is a pipe or a device, not a file" in said("saved_model")
    model = flatbuffer_utils.read_model(str(folder / "model.tflite"))
    model.subgraphs *= 3
    flatbuffer_utils.write_model(model, str(folder / "other.tflite"))
    assert "it holds what no export does: 3 graphs" in said("other.tflite")
    del model.subgraphs[1:]
    model.subgraphs[0].tensors[3].shape = [1, 1 << 15, 1 << 15]
    flatbuffer_utils.write_model(model, str(folder / "other.tflite"))
    assert "it holds what no export does: a tensor of 1,073,741,824 numbers" in said("other.tflite")
    model.operatorCodes[0].customCode = "Custom"
    flatbuffer_utils.write_model(model, str(folder / "other.tflite"))
    assert "it holds what no export does: Custom" in said("other.tflite")
    about = json.loads((folder / "preprocessing.json").read_text())
    for side, prepare, told in (
        (40, {"square": 40}, "it takes pictures of (32, 32, 3), not of (40, 40, 3)"),
        (40, {"square": 40, "frame_of_zeros": 9}, "a square of 40 in a frame of 9 has not 40 pixels"),
        (40, {"shorter_side": 1}, "shorter_side is 1 but must be 45 for pictures of 40 pixels"),
        (8192, {}, "shorter_side is None but must be 9362"),
    ):
        changed = {**about, "prepare": prepare, "input": {"shape": [None, side, side, 3]}}
        (folder / "preprocessing.json").write_text(json.dumps(changed))
        assert told in said("model.tflite")


@needs_onnx
@pytest.mark.parametrize("kind", ["functions", "Loop", "data in other files"])
def test_an_onnx_file_that_is_no_export_is_not_run(kind):
    import onnx

    model = onnx.ModelProto()
    if kind == "functions":
        model.functions.add()
    elif kind == "Loop":
        model.graph.node.add(op_type="Loop").attribute.add(name="body").g.name = "body"
    else:
        model.graph.initializer.add().external_data.add(key="location", value="other")
    with pytest.raises(ValueError, match=f"it holds what no export does: {kind}"):
        file_formats._check_plain_onnx(model.SerializeToString())


@needs_onnx
def test_onnx_has_names_and_labels(trained, tmp_path):
    import onnx

    result = exported(trained, "--to", "onnx", "--output", tmp_path / "onnx")
    assert result.code == 0 and "model.onnx" in result.out
    model = onnx.load(tmp_path / "onnx" / "model.onnx")
    assert [each.name for each in (*model.graph.input, *model.graph.output)] == ["image", "probabilities"]
    assert json.loads({each.key: each.value for each in model.metadata_props}["labels"])[1] == "Trouser"


def test_eight_bits_are_fitted_to_training_pictures(trained, tmp_path):
    result = exported(trained, "--to", "tflite", "--int8", "--output", tmp_path / "phone")
    assert result.code == 0, result.err
    small, whole = (tmp_path / "phone" / "model_int8.tflite"), trained / "export" / "model.tflite"
    assert small.stat().st_size < 0.5 * whole.stat().st_size
    words = ("--to", "tflite", "--int8", "--generated-data", "--output", tmp_path / "x")
    assert "give their folder as --data-dir" in refused(trained, *words)


def test_a_file_that_answers_otherwise_is_not_written(trained, tmp_path, monkeypatch):
    def halved(content: file_formats.Content, path: Path) -> None:
        kernel = next(node for node in content.graph.node if node.name.endswith("dense/kernel"))
        kernel.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.5 * tf.make_ndarray(kernel.attr["value"].tensor)))
        path.write_bytes(content.graph.SerializeToString())

    monkeypatch.setattr(file_formats, "FORMATS", FORMATS)
    monkeypatch.setitem(
        FORMATS, "frozen", file_formats.Format(file="frozen.pb", write=halved, runner=FORMATS["frozen"].runner)
    )
    result = exported(trained, "--to", "savedmodel,frozen", "--output", tmp_path / "out")
    assert result.code == 1 and "accepted are " in result.err and len(result.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_converter_that_fails_is_one_line(trained, tmp_path, monkeypatch):
    def broken(content: file_formats.Content, path: Path) -> None:
        path.write_bytes(b"half of")
        raise KeyError("an operation")

    monkeypatch.setitem(
        FORMATS, "frozen", file_formats.Format(file="frozen.pb", write=broken, runner=FORMATS["frozen"].runner)
    )
    result = exported(trained, "--to", "frozen", "--output", tmp_path / "out")
    assert result.code == 1 and "--to frozen: KeyError: 'an operation'; nothing was written" in result.err
    assert not list(tmp_path.iterdir())


def test_no_export_of_something_else_is_written_over(trained, tmp_path):
    folder = tmp_path / "out"
    assert exported(trained, "--to", "frozen,savedmodel", "--output", folder).code == 0
    assert exported(trained, "--to", "savedmodel", "--output", folder).code == 0  # the same: replaced
    (folder / "model.tflite").write_text("mine")
    assert "holds model.tflite, which SHA256SUMS does not list" in refused(trained, "--to", "tflite", "--output", folder)
    assert (folder / "model.tflite").read_text() == "mine"
    (folder / "model.tflite").unlink()
    (folder / "saved_model/assets.extra").mkdir(exist_ok=True)
    mine = folder / "saved_model/assets.extra/requests"
    mine.write_text("mine")
    unlisted = f"{folder} holds saved_model/assets.extra/requests, which SHA256SUMS does not list"
    assert unlisted in refused(trained, "--to", "savedmodel", "--output", folder) and mine.read_text() == "mine"
    assert exported(trained, "--to", "frozen", "--output", folder).code == 0  # which leaves that one alone
    mine.unlink()
    before = (folder / "frozen.pb").read_bytes()
    (tmp_path / "other").mkdir()
    (tmp_path / "other/SHA256SUMS").write_text(f"{'0' * 64}  big.bin\n")
    assert "a SHA256SUMS of other files than an export's" in refused(
        trained, "--to", "tflite", "--output", tmp_path / "other"
    )
    earlier = (trained / "ckpt-0", "--to", "savedmodel", "--output", folder)
    assert "holds an export of something else (labels.txt, preprocessing.json, saved_model, frozen.pb)" in refused(*earlier)
    assert (folder / "frozen.pb").read_bytes() == before
    assert exported(*earlier, "--force").code == 0
    assert json.loads((folder / "preprocessing.json").read_text())["checkpoint"] == "ckpt-0"
    assert not (folder / "frozen.pb").exists()  # which was of other weights


def _put(folder: Path, texts: dict[str, str], force: bool) -> None:
    export_folder.check(folder, texts, force)
    with export_folder.staged(folder) as staging:
        (staging / "frozen.pb").write_text(texts["preprocessing.json"])
        (staging / "saved_model").mkdir()
        export_folder.put(staging, folder, texts)


@pytest.mark.parametrize("there", ["nothing", "the same", "another"])
def test_an_export_that_is_killed_while_it_is_put_in_place_goes_on_by_the_same_call(there, tmp_path, monkeypatch):
    texts, replace = {"labels.txt": "a\n", "preprocessing.json": "{}"}, os.replace
    for moves in range(13):
        folder = tmp_path / f"{there} {moves}"
        if there != "nothing":
            _put(folder, texts if there == "the same" else dict.fromkeys(texts, "other"), False)
        left = iter(range(moves))

        def killed(source: Path, target: Path, left=left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            replace(source, target)

        monkeypatch.setattr(os, "replace", killed)
        with suppress(KeyboardInterrupt):
            _put(folder, texts, there == "another")
        monkeypatch.setattr(os, "replace", replace)
        _put(folder, texts, there == "another")
        assert {path.name for path in folder.iterdir()} == {*texts, "frozen.pb", "saved_model", "SHA256SUMS"}
        assert digests.difference(folder, [*texts, "frozen.pb"]) is None
        assert (folder / "frozen.pb").read_text() == "{}"


def test_a_signal_waits_until_an_export_is_in_its_place(tmp_path, monkeypatch):
    texts, replace = {"labels.txt": "a\n", "preprocessing.json": "{}"}, os.replace
    _put(tmp_path, dict.fromkeys(texts, "other"), False)

    def signalled(source: Path, target: Path) -> None:
        replace(source, target)
        if target.parent.name == "replaced":  # what was there is gone
            monkeypatch.setattr(os, "replace", replace)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(os, "replace", signalled)
    with pytest.raises(StopRequest):
        _put(tmp_path, texts, True)
    assert {path.name for path in tmp_path.iterdir()} == {*texts, "frozen.pb", "saved_model", "SHA256SUMS"}
    assert digests.difference(tmp_path, [*texts, "frozen.pb"]) is None


def test_what_a_killed_export_left_goes_with_the_next_and_that_of_one_that_runs_stays(tmp_path):
    texts = {"labels.txt": "a\n", "preprocessing.json": "{}"}
    with export_folder.staged(tmp_path / "other") as running:
        left = running.with_name(f"{running.name[:-8]}{running.name[-8:][::-1]}")
        (left / "saved_model").mkdir(parents=True)
        like_it = running.with_name(f"{running.name[:-8]}of-mine")
        like_it.mkdir()
        _put(tmp_path / "out", texts, False)
        assert {each.name for each in tmp_path.iterdir()} == {"out", running.name, like_it.name}


def test_a_full_disk_leaves_the_export_that_was_there(tmp_path, monkeypatch):
    texts = {"labels.txt": "a\n", "preprocessing.json": "{}"}
    _put(tmp_path, dict.fromkeys(texts, "other"), False)
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(OSError, match="No space left"):
        _put(tmp_path, texts, True)
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_without_its_data_a_network_is_held_against_made_up_pictures(trained, tmp_path):
    result = exported(trained, "--to", "frozen", "--generated-data", "--output", tmp_path / "out")
    assert result.code == 0 and "on 64 made-up pictures" in result.out
    assert (tmp_path / "out" / "labels.txt").read_text().startswith("T-shirt/top\nTrouser\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--to onxx", "no format 'onxx'; did you mean onnx? There are: savedmodel, frozen, tflite, onnx"),
        ("--to keras", "did you mean savedmodel?"),
        ("--to frozen,zzz", "no format 'zzz'; there are: savedmodel"),
        ("", "--to is missing"),
        ("--to ,", "--to is missing"),
        ("--to frozen --int8", "--int8 is for tflite, and --to has frozen"),
        ("--format onnx", "unknown option --format; did you mean --to?"),
        ("--to frozen --outptu x", "unknown option --outptu; did you mean --output?"),
        ("--to frozen --precision 16.16", "--precision is not an option of export.py"),
        ("--to frozen onnx", "'onnx' is one word too many"),
        ("--to frozen --model-size 14", "does not fit the network asked for"),
        ("--to frozen --data-dir /nowhere", "--data-dir /nowhere lacks the IDX files"),
        ("--to frozen --output /proc/self/status", "is no folder"),
    ],
)
def test_wrong_input_is_one_line(trained, words, said):
    assert said in refused(trained, *words.split())


def test_nothing_to_export(tmp_path):
    assert "nothing to export" in refused("--to", "frozen")
    assert "no such folder, and no checkpoint" in refused(tmp_path / "none", "--to", "frozen")
    assert "are two networks" in refused(tmp_path, "--restore-path", "efficientnet-lite0", "--to", "frozen")


def test_missing_packages_are_named_with_their_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    said = refused("efficientnet-lite0", "--to", "onnx")
    assert "--to onnx needs tf2onnx, onnx, onnxruntime, the extra `export`: " in said
    assert said.rstrip().endswith("-m pip install tf2onnx onnx onnxruntime")


def test_help_and_errors_answer_without_tensorflow():
    code = (
        "import sys, export\n"
        "assert export.script(['--help']) == 0 and export.script(['efficientnet-lite0', '--to', 'onxx']) == 2\n"
        "assert export.script(['efficientnet-lite0', '--hel']) == 0\n"
        "assert export.script(['efficientnet-lite0', '--to', 'frozen', '--dry-run']) == 0\n"
        "assert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=plugins.ROOT, check=True, timeout=60, capture_output=True)
    assert done.stdout.count(b"usage: export.py") == 2


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ([[0.6, 0.4], [0.3, 0.7]], (FP32, FP16, INT8)),
        ([[0.6005, 0.3995], [0.3, 0.7]], (FP32, FP16, INT8)),
        ([[0.61, 0.39], [0.3, 0.7]], (FP16, INT8)),
        ([[0.55, 0.45], [0.4, 0.6]], (INT8,)),
        ([[0.49, 0.51], [0.3, 0.7]], ()),  # another first answer
        ([[np.nan, 0.4], [0.3, 0.7]], ()),
    ],
)
def test_bounds(given, fits):
    found = agreement.of(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array(given, np.float32))
    assert tuple(bound for bound in (FP32, FP16, INT8) if found.keeps(bound)) == fits


def test_the_pages_calls_are_understood():
    pages = [plugins.ROOT / "README.md", *(plugins.ROOT / "docs").glob("*.md")]
    calls = [call for page in pages for call in re.findall(r"python export\.py ([^#\n]*)", page.read_text())]
    assert len(calls) >= 3 and all(export_options.parse(shlex.split(call)) for call in calls)
