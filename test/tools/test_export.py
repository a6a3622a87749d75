"""An exported network gives the answers of its checkpoint, or is not written."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import Result, succeed
from flatbuffers.number_types import Float32Flags, Uint8Flags, Uint32Flags
from flatbuffers.table import Table
from PIL import Image
from tensorflow.lite.tools import flatbuffer_utils

from cnn_harness.Datasets._spec import ReadRequest
from cnn_harness.Datasets.formats import preprocessing
from cnn_harness.Datasets.pipeline import image_files
from cnn_harness.Datasets.sources.registry import published_spec
from cnn_harness.harness.checkpoints import find, read
from cnn_harness.harness.commands import answers
from cnn_harness.harness.programs import build
from cnn_harness.tools import export
from cnn_harness.tools.exporting import comparison, file_formats, network, predict
from cnn_harness.tools.exporting.comparison import FP16, FP32, INT8
from cnn_harness.tools.exporting.file_formats import FORMATS

OWN = "savedmodel,frozen,tflite"  # formats of TensorFlow itself
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in FORMATS["onnx"].packages), reason="the extra `export` is missing"
)


def exported(*words: object) -> Result:
    """Return the result of a call of cnn export."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = answers.run_command("export", export.main, [str(word) for word in words])
    return Result(code, out.getvalue(), err.getvalue())


def refused(*words: object) -> str:
    """Return the one line of a rejected call."""
    result = exported(*words)
    assert result.code == 2 and len(result.err.splitlines()) == 1, result
    return result.err


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a run of a ResNet-8 that contains its own export."""
    folder = tmp_path_factory.mktemp("export") / "run"
    words = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 32 --seed 3 --no-validation"
    rest = "--iterations 60 --ckpts-per-epoch 20 --abs-learning-rate 0.1"
    succeed("train", *words.split(), *rest.split(), "--logs-path", folder)
    result = exported(folder, "--to", OWN)
    assert result.code == 0, result.err
    (folder / "output").write_text(result.out)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> list[Path]:
    """Return a PNG, a PNG with 16 bits of grey, and a JPEG that EXIF turns by 90 degrees."""
    folder = tmp_path_factory.mktemp("photos")
    coarse = np.random.default_rng(4).integers(0, 256, (5, 4, 3), np.uint8)
    photo, turned = Image.fromarray(coarse).resize((90, 70), Image.Resampling.BICUBIC), Image.Exif()
    turned[0x0112] = 6
    photo.save(folder / "photo.png")
    photo.save(folder / "turned.jpg", quality=95, exif=turned)
    Image.fromarray(np.tile(np.linspace(0, 65535, 64).astype(np.uint16), (64, 1))).save(folder / "grey.png")
    return sorted(folder.iterdir())


@pytest.mark.slow
def test_every_format_is_compared_with_checkpoint(trained):
    said = (trained / "output").read_text()
    assert "on 64 validation images" in said
    rows = re.findall(r"^  (\S+), [\d.]+ MB: probabilities differ by at most (\S+), .* for 64 of 64 images$", said, re.M)
    assert [name for name, _ in rows] == ["saved_model", "frozen.pb", "model.tflite"]
    assert all(0 < float(largest) < 1e-5 for _, largest in rows)
    names = {path.name for path in (trained / "export").iterdir()}
    assert names == {
        "saved_model",
        "frozen.pb",
        "model.tflite",
        "labels.txt",
        "preprocessing.json",
        "predict.py",
        "README.md",
    }
    assert not [path for path in trained.iterdir() if path.name.startswith(".export")]


def test_graph_has_plain_operations_and_documented_names(trained):
    graph = tf.GraphDef.FromString((trained / "export" / "frozen.pb").read_bytes())
    kinds = {node.op for node in graph.node}
    assert not [kind for kind in kinds if "Call" in kind or "Emulator" in kind or kind == "IdentityN" or "Variable" in kind]
    nodes = {node.name: node for node in graph.node}
    assert nodes["image"].attr["dtype"].type == tf.uint8.as_datatype_enum
    assert [size.size for size in nodes["image"].attr["shape"].shape.dim] == [-1, 32, 32, 3]
    assert nodes["probabilities"].op == "Softmax"
    assert not graph.library.function


def test_labels_and_preprocessing_are_exported(trained):
    folder = trained / "export"
    texts = {name: (folder / name).read_text() for name in ("labels.txt", "preprocessing.json")}
    assert texts["labels.txt"].splitlines()[:2] == ["T-shirt/top", "Trouser"]
    about = json.loads(texts["preprocessing.json"])
    assert about["checkpoint"] == "ckpt-60" and about["input"]["shape"] == [None, 32, 32, 3]
    assert about["done_inside"]["normalisation"]["kind"] == "of each image"
    assert {name: (folder / "saved_model/assets.extra" / name).read_text() for name in texts} == texts
    with zipfile.ZipFile(folder / "model.tflite") as archive:
        assert {name: archive.read(name).decode() for name in texts} == texts


def inside(table: Table, *path: int | tuple[int]) -> Table:
    """Return a table inside a table of a flatbuffer. The path contains numbers of fields; (3,) is the first table of a list."""
    for step in path:
        start = table.Offset(4 + 2 * (step[0] if isinstance(step, tuple) else step))
        assert start, f"field {step} is missing"
        place = table.Vector(start) if isinstance(step, tuple) else table.Pos + start
        table = Table(table.Bytes, table.Indirect(place))
    return table


def test_tflite_has_metadata_for_phones(trained):
    """The numbers of fields are those of metadata_schema.fbs. The mean is 0 because the graph itself normalises."""
    model = flatbuffer_utils.read_model(str(trained / "export" / "model.tflite"))
    (entry,) = [each for each in model.metadata if each.name == b"TFLITE_METADATA"]
    found = bytes(bytearray(model.buffers[entry.buffer].data))
    assert found[4:8] == b"M001"
    graph = inside(Table(found, int.from_bytes(found[:4], "little")), (3,))
    normalisation = inside(graph, (2,), (4,), 1)
    floats = [normalisation.GetVectorAsNumpy(Float32Flags, normalisation.Offset(slot)) for slot in (4, 6)]
    assert [each.tolist() for each in floats] == [[0.0], [1.0]]
    size = inside(graph, (2,), 3, 1, 1)
    assert [size.Get(Uint32Flags, size.Pos + size.Offset(slot)) for slot in (4, 6)] == [32, 32]
    file = inside(graph, (3,), (6,))
    assert file.String(file.Pos + file.Offset(4)) == b"labels.txt"
    assert file.Get(Uint8Flags, file.Pos + file.Offset(8)) == 2  # TENSOR_AXIS_LABELS


@pytest.mark.skipif(importlib.util.find_spec("mediapipe") is None, reason="the package mediapipe is missing")
@pytest.mark.parametrize("name", ["tflite", "int8"])
def test_mediapipe_reads_tflite(trained, photos, tmp_path, name):
    """MediaPipe takes size and class names from the metadata. Its answers are those of predict.py."""
    folder, int8 = tmp_path / "phone", ["--int8"] * (name == "int8")
    assert exported(trained, "--to", "tflite", *int8, "--output", folder).code == 0
    model = next(folder.glob("*.tflite"))
    program = f"""
import json, mediapipe, predict, sys
from mediapipe.tasks.python.vision import ImageClassifier
about = json.load(open("preprocessing.json"))
with ImageClassifier.create_from_model_path("{model}") as classifier:
    for photo in sys.argv[1:]:
        image = mediapipe.Image(image_format=mediapipe.ImageFormat.SRGB, data=predict.prepared(photo, about))
        rows = classifier.classify(image).classifications[0].categories[:5]
        print(photo, *(f"{{100 * row.score:.1f}} % {{row.category_name}}" for row in rows), sep="\\n  ")
"""
    own = subprocess.run([sys.executable, folder / "predict.py", *photos], capture_output=True, text=True, timeout=120)
    read = subprocess.run([sys.executable, "-c", program, *photos], cwd=folder, capture_output=True, text=True, timeout=120)
    expected, given = table(own.stdout), table(read.stdout)
    assert len(expected) == len(given) == len(photos), read.stderr
    for photo, classes in expected.items():
        assert all(abs(share - given[photo].get(label, share)) <= 0.2 for label, share in classes.items())
        assert max(classes, key=classes.get) == max(given[photo], key=given[photo].get)


def table(text: str) -> dict[str, dict[str, float]]:
    """Return the percentages of a table of predictions by photo and class."""
    blocks = re.findall(r"^(/.*)\n((?: +[\d.]+ % .*\n)+)", text, re.M)
    return {Path(photo).name: {k: float(v) for v, k in re.findall(r"([\d.]+) % +(.+)", rows)} for photo, rows in blocks}


@pytest.mark.parametrize("name", ["savedmodel", "frozen", "tflite", pytest.param("onnx", marks=needs_onnx)])
def test_exported_program_answers_like_predict(trained, photos, tmp_path, name):
    """It runs in a process and a folder without this project."""
    folder = shutil.copytree(trained / "export", tmp_path / "elsewhere")
    if name == "onnx":
        assert exported(trained, "--to", "onnx", "--output", folder).code == 0
    call = [sys.executable, "-I", folder / "predict.py", *photos, "--model", FORMATS[name].file]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    own, given = table(succeed("validation", "--restore-path", trained, "--predict", *photos).out), table(done.stdout)
    assert own.keys() == given.keys() == {photo.name for photo in photos}
    for photo, classes in own.items():
        assert len(classes) == len(given[photo]) == 5 and list(classes)[:3] == list(given[photo])[:3]
        assert all(abs(share - given[photo].get(label, share)) <= 1.0 for label, share in classes.items())


def test_exported_program_prepares_photos_like_validation(photos):
    """It rounds to integers, while validation's resized pixels have fractions; Pillow uses another DCT for JPEGs."""
    spec, request = published_spec("imagenet"), ReadRequest(batch_size=1, image_size=48, seed=0)
    about = {"prepare": preprocessing.described(spec, request)["resize"], "input": {"shape": [None, 48, 48, 3]}}
    own = image_files.load([str(path) for path in photos], spec, request)
    for path, pixels in zip(photos, own):
        difference = np.abs(predict.prepared(path, about) - pixels)
        assert difference.max() < (10 if path.suffix == ".jpg" else 0.51) and difference.mean() < 1.5, path


def test_safetensors_are_read_back_exactly(trained, photos, tmp_path):
    """The file itself has the options of the network and the names of its classes."""
    assert exported(trained, "--to", "safetensors", "--output", tmp_path).code == 0
    path = tmp_path / "model.safetensors"
    saved, found = (read.tensors(find.select(each)[-1]) for each in (trained, path))
    assert found and all(saved[name].tobytes() == value.tobytes() for name, value in found.items())
    tables = [table(succeed("validation", "--restore-path", each, "--predict", *photos).out) for each in (trained, path)]
    assert len(tables[0]) == 3 and tables[0] == tables[1]
    begun = succeed("train", "--init-path", path, "--dataset", "fashion-mnist", "--dry-run").out
    assert "RN8" in begun and "BN" in begun


@needs_onnx
def test_onnx_has_names_and_labels(trained, tmp_path):
    import onnx

    result = exported(trained, "--to", "onnx", "--output", tmp_path / "onnx")
    assert result.code == 0 and "model.onnx" in result.out
    model = onnx.load(tmp_path / "onnx" / "model.onnx")
    assert [each.name for each in (*model.graph.input, *model.graph.output)] == ["image", "probabilities"]
    assert json.loads({each.key: each.value for each in model.metadata_props}["labels"])[1] == "Trouser"


@pytest.mark.parametrize("name", ["tflite", pytest.param("onnx", marks=needs_onnx)])
def test_int8_is_calibrated_on_training_images(trained, tmp_path, name):
    result = exported(trained, "--to", name, "--int8", "--output", tmp_path / "phone")
    assert result.code == 0, result.err
    small, whole = (tmp_path / "phone" / f"model_int8.{name}"), trained / "export" / "model.tflite"
    assert small.stat().st_size < 0.5 * whole.stat().st_size
    words = ("--to", name, "--int8", "--generated-data", "--output", tmp_path / "x")
    assert "give their folder as --data-dir" in refused(trained, *words)


@pytest.mark.parametrize("name", ["tflite", pytest.param("onnx", marks=needs_onnx)])
def test_int8_keeps_answers_of_included_weights(name, tmp_path):
    """EfficientNet-Lite0 is made for 8 bits: its activations are at most 6."""
    weights, images = "efficientnet-lite0", comparison._generated(224)[:8]
    opened = network.open_network(weights)
    graph = build.portable_graph(opened.run, opened.values)
    found = []
    for calibration in (None, images[:4]):
        content = file_formats.Content(
            graph=graph, values={}, recorded={}, labels=opened.names, texts={}, calibration=calibration
        )
        file = tmp_path / (FORMATS[name].file if calibration is None else FORMATS[name].quantised)
        with file_formats.quiet():
            FORMATS[name].write(content, file)
            found.append(comparison.answers(predict.opened(file), images))
    agreement = comparison.compare(*found)
    assert agreement.keeps(INT8) and agreement.same == len(images), agreement


def test_deviating_file_is_not_written(trained, tmp_path, monkeypatch):
    def halved(content: file_formats.Content, path: Path) -> None:
        kernel = next(node for node in content.graph.node if node.name.endswith("dense/kernel"))
        kernel.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.5 * tf.make_ndarray(kernel.attr["value"].tensor)))
        path.write_bytes(content.graph.SerializeToString())

    monkeypatch.setattr(file_formats, "FORMATS", FORMATS)
    monkeypatch.setitem(FORMATS, "frozen", file_formats.Format(file="frozen.pb", write=halved))
    result = exported(trained, "--to", "savedmodel,frozen", "--output", tmp_path / "out")
    assert result.code == 1 and "accepted: " in result.err and len(result.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_other_exports_are_not_overwritten(trained, tmp_path):
    folder = shutil.copytree(trained / "export", tmp_path / "export")
    before = (folder / "model.tflite").read_bytes()
    other = ("efficientnet-lite0", "--to", "frozen", "--output", folder)
    assert "contains another export" in refused(*other)
    assert (folder / "model.tflite").read_bytes() == before
    assert exported(trained, "--to", "frozen", "--output", folder).code == 0  # the same weights: the other files stay
    assert (folder / "model.tflite").read_bytes() == before
    assert exported(*other, "--force").code == 0 and not (folder / "model.tflite").exists()
    (tmp_path / "file").touch()
    assert "is not a folder" in refused(trained, "--to", "frozen", "--output", tmp_path / "file")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("RUN --to onxx", ("'onxx'", "did you mean onnx")),
        ("RUN --to frozen --int8", ("--int8", "tflite", "frozen")),
        ("RUN --to frozen --model-size 14", ("does not fit",)),
        ("RUN --to frozen --data-dir /nowhere", ("--data-dir /nowhere",)),
        ("--to frozen", ("nothing to export",)),
        ("/nowhere/none --to frozen", ("/nowhere/none",)),
    ],
)
def test_wrong_input_is_one_line(trained, words, named):
    said = refused(*[trained if word == "RUN" else word for word in words.split()])
    assert all(each in said for each in named)


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
def test_answers_stay_within_bounds(given, fits):
    found = comparison.compare(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array(given, np.float32))
    assert tuple(bound for bound in (FP32, FP16, INT8) if found.keeps(bound)) == fits
