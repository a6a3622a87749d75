"""EfficientNet-Lite: its size, the weights that come with the project on real photographs, and --predict."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import run, succeed, variables
from networks import traced
from PIL import Image
from tensorflow.python.util import deprecation

from base.errors import OptionError
from Datasets._spec import ReadRequest
from Datasets.formats import class_names
from Datasets.pipeline import decoding, image_files
from Datasets.sources.catalogue import published_spec
from emulator.plan.trace import CountingLayers, Shape
from harness.checkpoints import npz_weights, read
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.commands import cli
from Models import efficientnet

LITE = {"batch_norm": True, "group_norm": False, "se": False, "use_relu6": True, "fix_stem_head": True}
LITE_WORDS = "--batch-norm --no-se --use-relu6 --fix-stem-head"
CATS = {"tabby", "tiger cat", "Egyptian cat"}
SHOWN = {  # package, file below it, what it shows
    "china.jpg": ("sklearn", "datasets/images", {"palace"}),
    "flower.jpg": ("sklearn", "datasets/images", {"daisy"}),
    "coffee.png": ("skimage", "data", {"espresso"}),
    "chelsea.png": ("skimage", "data", CATS),
}


def photograph(name: str) -> Path:
    """A photograph of an installed package; skips the test if it is not there."""
    package, below, _ = SHOWN[name]
    found = importlib.util.find_spec(package)
    path = Path(found.origin).parent / below / name if found and found.origin else None
    if path is None or not path.is_file():
        pytest.skip(f"{name} comes with {package}")
    return path


def shown(out: str) -> dict[str, list[tuple[float, str]]]:
    """The table of --predict: per photograph, probabilities in per cent and names."""
    found: dict[str, list[tuple[float, str]]] = {}
    last = ""
    for line in out.splitlines():
        row = re.fullmatch(r"  +(\d+\.\d) %  (.+)", line)
        if row:
            found[last].append((float(row[1]), row[2]))
        else:
            last = line
            found[last] = []
    return {photo: rows for photo, rows in found.items() if rows}


@pytest.fixture
def drawn(tmp_path) -> Path:
    """A photograph that no package is needed for."""
    path = tmp_path / "drawn.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)).save(path)
    return path


# --- the network ---


@pytest.mark.parametrize("size, count", [("B0", 4_652_008), ("B1", 5_416_680), ("B2", 6_092_072)])
def test_lite_has_its_published_number_of_parameters(size, count):
    assert traced("efficientnet", "imagenet", size, **LITE).trainable_parameters == count


def test_what_fix_stem_head_fixes():
    wide = {"width_coefficient": 2.0, "depth_coefficient": 2.0, "top_width": 100}
    fixed, scaled = (efficientnet.Options(model_size="B0", **wide, fix_stem_head=fix) for fix in (True, False))
    first, last = (efficientnet.blocks(fixed)[k] for k in (0, -1))
    assert (first.channels_in, first.channels_out, last.channels_in, last.channels_out) == (32, 32, 384, 640)
    names = {name: [b.name for b in efficientnet.blocks(o)] for name, o in (("fixed", fixed), ("scaled", scaled))}
    assert set(names["scaled"]) - set(names["fixed"]) == {"block1b", "block7b"}
    widths = [v.shape[-1] for v in traced("efficientnet", "imagenet", "B0", **{**wide, "fix_stem_head": True}).variables
              if v.name in ("all/block0/conv/conv2d/kernel", "all/Top/conv/conv2d/kernel")]  # fmt: skip
    assert widths == [32, 100]


def test_relu6_cuts_off_at_six():
    from emulator.layers.tensor_layers import TensorLayers

    with tf.Graph().as_default(), tf.Session() as session:
        made = session.run(TensorLayers({}, training=False).relu6(tf.constant([-1.0, 0.5, 6.0, 7.0])))
    assert made.tolist() == [0.0, 0.5, 6.0, 6.0]
    layers = CountingLayers()
    layers.relu6(Shape(2, 2, 3))
    assert [operation.kind for operation in layers.operations] == ["relu6"]


def test_one_activation_at_a_time():
    with pytest.raises(ValueError, match="--use-relu and --use-relu6 exclude each other; give one of them"):
        efficientnet.Options(use_relu=True, use_relu6=True)
    with pytest.raises(OptionError, match="exclude each other"):
        cli.parse(["--model", "efficientnet", "--dataset", "cifar-10", "--use-relu", "--use-relu6"], environ={})


# --- the weights ---


@pytest.fixture(scope="module")
def kept():
    return npz_weights.arrays(npz_weights.BUNDLED["efficientnet-lite0"])


def test_bundled_weights_are_small_and_licensed(kept):
    path = npz_weights.BUNDLED["efficientnet-lite0"]
    assert path.stat().st_size < 10e6
    assert "Apache License 2.0" in (path.parent / "LICENCE.md").read_text()
    assert {str(value.dtype) for name, value in kept.items() if "moving" not in name} == {"float16"}
    assert {name: value.shape for name, value in kept.items()} == {
        variable.name: variable.shape for variable in traced("efficientnet", "imagenet", "B0", **LITE).variables
    }


def test_bundled_weights_name_what_photographs_show():
    paths = {str(photograph(name)): SHOWN[name][2] for name in ("china.jpg", "flower.jpg")}
    for name in ("coffee.png", "chelsea.png"):  # more, where scikit-image is installed
        if importlib.util.find_spec("skimage"):
            paths[str(photograph(name))] = SHOWN[name][2]
    found = shown(succeed("validation", "--restore-path", "efficientnet-lite0", "--predict", *paths).out)
    assert {path: rows[0][1] in paths[path] for path, rows in found.items()} == dict.fromkeys(paths, True)
    for rows in found.values():
        assert len(rows) == 5
        assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
    if len(paths) == 4:
        assert found[str(photograph("coffee.png"))][0][0] > 90
        cats = found[str(photograph("chelsea.png"))]
        assert {name for _, name in cats[:3]} == CATS


def test_training_begins_with_the_bundled_weights(tmp_path, kept):
    words = f"--precision 32.32 --model efficientnet --dataset imagenet --generated-data {LITE_WORDS} --batch-size 2 --iterations 1 --no-validation"
    words += " --image-size 64 --ckpts-per-epoch 1 --seed 1"
    given = [*words.split(), "--logs-path", tmp_path / "run", "--init-path", "efficientnet-lite0"]
    result = succeed("train", *given, "--symmetric-input")
    assert (
        result.out.count("warning") == result.out.count("warning: the learning rate is 0") == 1
    )  # of the normalisation: none
    start = variables(tmp_path / "run", 0)
    for name, value in kept.items():
        assert start[name].dtype == np.float32
        np.testing.assert_array_equal(start[name], value.astype(np.float32))
    given[given.index(tmp_path / "run")] = tmp_path / "other"
    assert "warning: those weights" not in succeed("train", *given).out  # as the weights are, unless a call differs
    (tmp_path / "c.yml").write_text("other:\n  symmetric_input: false\n")
    given[given.index(tmp_path / "other")] = tmp_path / "third"
    assert (
        "warning: those weights were trained on pictures that were normalised with --symmetric-input"
        in succeed("train", *given, "--config-path", tmp_path / "c.yml", "--config", "other").out
    )


@pytest.mark.parametrize("host", [False, True])
def test_symmetric_input(host):
    """Nought is 127, as the padding of EfficientNet-Lite wants it; the same on host and device."""
    from Datasets.pipeline import normalisation

    request = ReadRequest(batch_size=1, image_size=2, seed=0, symmetric_input=True, hostside_norm=host)
    with tf.Graph().as_default(), tf.Session() as session:
        made = session.run(normalisation.normalise(tf.constant([0, 127, 255], tf.uint8), request))
    np.testing.assert_array_equal(made, np.array([-127 / 128, 0, 1], np.float32))


# --- files of weights ---


def broken(tmp_path: Path, kind: str, kept) -> Path:
    path = tmp_path / f"{kind}.npz"
    if kind == "cut":
        path.write_bytes(npz_weights.BUNDLED["efficientnet-lite0"].read_bytes()[:100_000])
    elif kind == "text":
        path.write_text("hello")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "objects":
        np.savez(path, options=np.array("{}"), a=np.array([{}], object))
    elif kind == "no json":
        np.savez(path, options=np.array("[1"), **kept)
    elif kind == "a list":
        np.savez(path, options=np.array("[1]"), **kept)
    elif kind == "asked":
        np.savez(path, options=np.array('{"asked": 3}'), **kept)
    elif kind == "words":
        np.savez(path, a=np.array(["b"]))
    elif kind == "flipped":
        content = bytearray(npz_weights.BUNDLED["efficientnet-lite0"].read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    return path


KINDS = ["cut", "text", "empty", "objects", "no json", "a list", "asked", "words", "flipped", "missing"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_file_of_weights_is_one_line(tmp_path, kept, kind, drawn):
    path = broken(tmp_path, kind, kept)
    words = f"--model efficientnet --dataset imagenet --generated-data {LITE_WORDS} --seed 1"
    for script, given in (
        ("validation", [*words.split(), "--restore-path", path, "--predict", drawn]),
        ("train", [*words.split(), "--iterations", 1, "--batch-size", 2, "--image-size", 32, "--no-validation",
                   "--logs-path", tmp_path / "run", "--init-path", path]),
    ):  # fmt: skip
        result = run(script, *given)
        assert result.code == 2, result.out + result.err
        assert re.fullmatch(rf"{script}\.py: error: weights {re.escape(str(path))}.+\n", result.err)
    assert not (tmp_path / "run").exists()


def test_a_missing_bundled_file_says_what_makes_it(monkeypatch, tmp_path, drawn):
    monkeypatch.setitem(npz_weights.BUNDLED, "efficientnet-lite0", tmp_path / "gone.npz")
    result = run("validation", "--restore-path", "efficientnet-lite0", "--predict", drawn)
    assert result.code == 2
    assert result.err == (f"validation.py: error: weights {tmp_path / 'gone.npz'}: no such file; "
                          "tools/import_weights.py makes it\n")  # fmt: skip


def test_weights_of_another_network_do_not_fit(drawn):
    result = run("validation", "--restore-path", "efficientnet-lite0", "--predict", drawn, "--se")
    assert result.code == 2
    assert "does not fit the network asked for: all/block1a/SE/1/conv/conv2d/kernel is missing" in result.err


def test_a_path_that_exists_goes_before_a_short_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert npz_weights.located(Path("efficientnet-lite0")) == npz_weights.BUNDLED["efficientnet-lite0"]
    Path("efficientnet-lite0").mkdir()
    assert npz_weights.located(Path("efficientnet-lite0")) is None
    assert "holds no checkpoint" in run("validation", "--restore-path", "efficientnet-lite0", "--predict", "x").err


def test_options_and_arrays_come_back(tmp_path):
    values = {"all/a/kernel": np.ones((2, 3), np.float16)}
    npz_weights.write(tmp_path / "a.npz", values, {"model": "resnet"})
    first = (tmp_path / "a.npz").read_bytes()
    assert npz_weights.options(tmp_path / "a.npz") == {"model": "resnet"}
    assert {name: value.tolist() for name, value in npz_weights.arrays(tmp_path / "a.npz").items()} == {
        "all/a/kernel": [[1.0] * 3] * 2
    }
    npz_weights.write(tmp_path / "a.npz", values, {"model": "resnet"})
    assert (tmp_path / "a.npz").read_bytes() == first
    np.savez(tmp_path / "plain.npz", **values)
    assert npz_weights.options(tmp_path / "plain.npz") == {}


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "trap.npz", a=np.array([Trap()], object))
    with pytest.raises(npz_weights.NpzError):
        npz_weights.arrays(tmp_path / "trap.npz")
    assert not (tmp_path / "sprung").exists()


# --- photographs ---


def test_photographs_are_named_by_the_command(tmp_path, drawn, monkeypatch):
    """Every kind of picture, without data, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    colour = Image.open(drawn)
    colour.save("a.jpg")
    colour.convert("L").save("grey.png")
    colour.convert("L").save("grey.jpg")
    colour.convert("RGBA").save("alpha.png")
    colour.convert("P").save("palette.png")
    colour.resize((1, 1)).save("dot.png")
    colour.resize((900, 31)).save("long.png")
    before = sorted(tmp_path.iterdir())
    names = ["a.jpg", "grey.png", "grey.jpg", "alpha.png", "palette.png", "dot.png", "long.png", "drawn.png"]
    found = shown(succeed("validation", "--restore-path", "efficientnet-lite0", "--predict", *names).out)
    assert list(found) == names
    assert all(len(rows) == 5 for rows in found.values())
    assert found["alpha.png"] == found["drawn.png"]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["drawn.png", "tall.jpg"])
def test_photographs_are_prepared_as_in_evaluation(tmp_path, drawn, name):
    Image.open(drawn).resize((50, 200)).save(tmp_path / "tall.jpg")
    content = (tmp_path / name).read_bytes()
    request = ReadRequest(batch_size=1, image_size=32, seed=0)
    (made,) = image_files.load([str(tmp_path / name)], published_spec("imagenet"), request)
    with tf.Graph().as_default(), tf.Session() as session:
        record = {"image/encoded": tf.constant(content)}
        np.testing.assert_array_equal(
            made, session.run(decoding.central_crop(decoding.whole(record["image/encoded"]), request.image_size))
        )


def test_small_pictures_are_the_square_in_the_middle(tmp_path):
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[:, 16:80] = np.arange(64, dtype=np.uint8)[:, None, None] * 2
    Image.fromarray(pixels).save(tmp_path / "a.png")
    request = ReadRequest(batch_size=1, image_size=32, seed=0)
    (made,) = image_files.load([str(tmp_path / "a.png")], published_spec("cifar-10"), request)
    rows = np.arange(32) * 4 + 1.0  # means of two rows
    np.testing.assert_allclose(made[:, :, 1], np.repeat(((rows - rows.mean()) / rows.std())[:, None], 32, 1), atol=1e-5)


def test_small_pictures_are_framed_as_the_records_are(tmp_path):
    """A published picture of 28 x 28, a photograph of one, and a record's own 32 x 32 are one picture to the network."""
    piece = np.random.default_rng(0).integers(0, 256, (28, 28, 1), np.uint8).repeat(3, 2)
    framed = np.pad(piece, ((2, 2), (2, 2), (0, 0)))
    expected = (framed - framed.mean()) / framed.std()
    Image.fromarray(piece).save(tmp_path / "a.png")
    Image.fromarray(piece.repeat(4, 0).repeat(4, 1)).save(tmp_path / "b.png")
    Image.fromarray(framed).save(tmp_path / "c.png")
    request = ReadRequest(batch_size=1, image_size=32, seed=0)
    for made in image_files.load(
        [str(tmp_path / f"{name}.png") for name in "abc"], published_spec("fashion-mnist"), request
    ):
        np.testing.assert_allclose(made, expected, atol=1e-5)


def test_a_trained_run_names_photographs_with_the_names_of_its_data(tmp_path, drawn):
    words = "--model-size 8 --precision 32.32 --batch-size 8 --no-validation --iterations 2 --seed 3 --dataset"
    for dataset, names in (
        ("fashion-mnist", class_names.of(published_spec("fashion-mnist"))),
        ("cifar-100 --generated-data", ()),
    ):
        folder = tmp_path / dataset[:5]
        succeed("train", *words.split(), *dataset.split(), "--logs-path", folder)
        out = succeed("validation", "--restore-path", folder, "--predict", drawn).out
        assert "with ckpt-2, 32x32 pixels" in out
        (rows,) = shown(out).values()
        assert all(name in names if names else re.fullmatch(r"class \d\d?", name) for _, name in rows)


def test_names_of_imagenet():
    names = class_names.of(published_spec("imagenet"))
    assert len(set(names)) == 1000
    assert [names[k] for k in (0, 285, 698, 967, 985, 999)] == [
        "tench", "Egyptian cat", "palace", "espresso", "daisy", "toilet tissue",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind, message",
    [
        ("missing", "cannot be read: No such file or directory"),
        ("text", "is no JPEG, PNG, GIF, BMP or WebP by its first bytes"),
        ("empty", "is empty"),
        ("cut", "is cut short: its JPEG has no end; it is damaged"),
        ("strip", "is 331 x 10 pixels: no side may be longer than 32 times the other; crop it"),
    ],
)
def test_a_photograph_that_cannot_be_read_is_one_line(tmp_path, drawn, kind, message):
    path = tmp_path / kind
    if kind == "strip":
        Image.open(drawn).resize((331, 10)).save(path, "png")
    elif kind == "cut":
        Image.open(drawn).save(path, "jpeg")
        path.write_bytes(path.read_bytes()[:800])
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "hello, this is no picture")
    dry = ["--dry-run"] * (kind not in ("cut", "strip"))  # all but what has to be decoded is known to it
    result = run("validation", "--restore-path", "efficientnet-lite0", *dry, "--predict", drawn, path)
    assert (result.code, result.err) == (2, f"validation.py: error: photograph {path} {message}\n")


def test_predict_needs_weights_and_photographs(drawn):
    assert run("validation", "--predict", drawn).err == (
        "validation.py: error: --predict needs --restore-path: a run folder, a checkpoint, a .npz file or efficientnet-lite0\n"
    )
    assert (
        "--predict: needs at least one value" in run("validation", "--restore-path", "efficientnet-lite0", "--predict").err
    )


def test_the_recorded_options_are_those_of_the_network():
    recorded = npz_weights.options(npz_weights.BUNDLED["efficientnet-lite0"])
    assert {name: recorded[name] for name in LITE} == LITE
    assert recorded["symmetric_input"] is True
    assert json.loads(json.dumps(recorded)) == recorded


def test_a_missing_file_of_weights_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match="no such file"):
        read.tensors(Checkpoint(str(tmp_path / "x.npz"), -1))


def test_photographs_are_prepared_without_notices_of_tensorflow(monkeypatch):
    told: list[object] = []
    monkeypatch.setattr(deprecation, "_PRINTED_WARNING", {})  # each is given once
    monkeypatch.setattr(deprecation.logging, "warning", lambda *words: told.append(words))
    with tf.Graph().as_default(), tf.Session() as session:
        square = session.run(image_files._square(tf.constant(np.full((40, 30, 3), 7, np.uint8)), 8))
    assert square.shape == (8, 8, 3) and (square == 7).all() and told == []
