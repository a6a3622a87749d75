"""Weights of other projects are recognised by name, renamed and transposed, or rejected in one line."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import nullcontext

import h5py
import keras
import networks
import numpy as np
import pytest
from commands import run, succeed
from PIL import Image
from references import generated
from timm_networks import recorded

from cnn_harness.base import plugins
from cnn_harness.harness.checkpoints import weights_file
from cnn_harness.harness.commands import answers
from cnn_harness.tools import import_weights, keras_layers, weight_names
from cnn_harness.tools.architectures import UNKNOWN, ImportFailure

ROOT = plugins.ROOT
NETWORKS = {
    "resnet18": ("resnet", 18), "resnet34": ("resnet", 34), "resnet50": ("resnet", 50), "resnet101": ("resnet", 101),
    "resnet152": ("resnet", 152), "resnext50": ("resnext", 50), "resnext101": ("resnext", 101),
    "efficientnet_b0": ("efficientnet", "B0"),
}  # fmt: skip
BATCH_NORM = {"batch_norm": True, "group_norm": False}


def state(name: str) -> dict[str, np.ndarray]:
    """Return a network of timm as in its file: recorded names and shapes, values from a seed."""
    _, shapes = recorded(name)
    draw = np.random.default_rng(1)
    found = {key: draw.uniform(0.5, 1.5, shape).astype(np.float32) for key, shape in shapes.items()}
    return found | {f"{key.rpartition('.')[0]}.num_batches_tracked": np.array(7) for key in found if "running_mean" in key}


@pytest.fixture
def tool(monkeypatch, capsys, tmp_path):
    """Return a function that runs the tool in its own folder and returns exit code, output and errors."""

    def start(*words: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        code = answers.run_command("import_weights", import_weights.main, [str(word) for word in words])
        return code, *capsys.readouterr()

    return start


def refused(tool, *words: object) -> str:
    """Return the one-line error; nothing must be written."""
    code, out, err = tool(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("cnn import-weights: error: ") and err.count("\n") == 1
    return err


# --- PyTorch's networks ---


@pytest.mark.parametrize("name", NETWORKS)
def test_timm_networks_take_every_weight(name):
    model, size = NETWORKS[name]
    theirs = state(name)
    found = weight_names.identify(theirs)
    assert (found.options["model"], found.options["model_size"]) == (model, size)
    assert found.without == ()
    wanted = {
        variable.name: variable.shape for variable in networks.recorded(model, "imagenet", size, **BATCH_NORM).variables
    }
    assert {key: value.shape for key, value in found.values.items()} == wanted
    kept = [value for key, value in theirs.items() if not key.endswith("tracked")]
    given = {key: value for key, value in found.values.items() if key not in found.added}
    assert sorted(float(v.sum()) for v in given.values()) == pytest.approx(sorted(float(v.sum()) for v in kept))
    assert bool(found.added) == (name in ("resnet18", "resnet34"))


def test_weights_are_placed_and_transposed():
    theirs = state("resnet50")
    found = weight_names.identify(theirs).values
    np.testing.assert_array_equal(
        found["all/b3/4/2/conv/conv2d/kernel"][1, 2, 5, 7], theirs["layer3.4.conv2.weight"][7, 5, 1, 2]
    )
    np.testing.assert_array_equal(found["all/fc1/dense/kernel"][5, 7], theirs["fc.weight"][7, 5])
    np.testing.assert_array_equal(found["all/b2/0/p/batch_norm/gamma"], theirs["layer2.0.downsample.1.weight"])
    np.testing.assert_array_equal(found["all/b0/batch_norm/moving_variance"], theirs["bn1.running_var"])
    b0 = state("efficientnet_b0")
    found = weight_names.identify(b0).values
    np.testing.assert_array_equal(
        found["all/block1a/b/conv/conv2d/kernel"][1, 2, 0, 7], b0["blocks.0.0.conv_dw.weight"][7, 0, 1, 2]
    )
    np.testing.assert_array_equal(found["all/block1a/c/batch_norm/beta"], b0["blocks.0.0.bn2.bias"])
    np.testing.assert_array_equal(found["all/block2b/c/batch_norm/beta"], b0["blocks.1.1.bn3.bias"])
    np.testing.assert_array_equal(found["all/block2b/SE/2/conv/conv2d/bias"], b0["blocks.1.1.se.conv_expand.bias"])


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.module.", "state_dict.model.", "model_state_dict.", "backbone.net."]
)
def test_prefixes_of_names_are_removed(prefix):
    theirs = state("resnet18")
    found = weight_names.identify({f"{prefix}{k}": v for k, v in theirs.items()} | {"loss.weight": np.ones(3)})
    assert np.array_equal(found.values["all/b0/batch_norm/gamma"], theirs["bn1.weight"])
    assert any("loss.weight" in note for note in found.notes)


@pytest.mark.parametrize(
    "places", [("state_dict.", "state_dict_ema."), ("model.", "model_ema.module."), ("net.", "ema_net.")]
)
def test_average_is_imported_by_default(places):
    theirs = state("resnet18")
    both = {f"{place}{k}": v + 3 * k.endswith("bn1.bias") * n for n, place in enumerate(places) for k, v in theirs.items()}
    for average, added in ((True, 3), (False, 0)):
        found = weight_names.identify(both, average=average)
        assert np.array_equal(found.values["all/b0/batch_norm/beta"], theirs["bn1.bias"] + added)
        assert places[average].strip(".") in found.notes[0]
    with pytest.raises(ImportFailure, match="contains 2 networks"):
        weight_names.identify({f"{place}{k}": v for place in ("student.", "teacher.") for k, v in theirs.items()})


@pytest.mark.parametrize(
    ("name", "wider", "deeper", "groups", "width"),
    [
        ("resnet50", ("conv1", "bn1", "conv2", "bn2"), ("conv2", "conv3"), 1, 128),  # wide_resnet50
        ("resnext50", ("conv1", "bn1", "conv2", "bn2"), ("conv2", "conv3"), 32, 8),  # resnext50_32x8d
    ],
)
def test_group_width_is_recognised_by_shapes(name, wider, deeper, groups, width):
    theirs = {}
    for key, value in state(name).items():
        place, shape = key.split(".")[-2], list(value.shape)
        if key.startswith("layer") and shape and "downsample" not in key:
            shape[0] *= 1 + (place in wider)
            shape[1:2] = [each * (1 + (place in deeper)) for each in shape[1:2]]
        theirs[key] = np.zeros(shape, np.float32)
    asked = weight_names.identify(theirs).options
    assert (asked["model"], asked["convolution_groups"], asked["group_dim"]) == ("resnext", groups, width)


def test_other_class_counts_and_missing_classifier():
    theirs = state("resnet50")
    ten = {**theirs, "fc.weight": theirs["fc.weight"][:10], "fc.bias": theirs["fc.bias"][:10]}
    assert weight_names.identify(ten).values["all/fc1/dense/kernel"].shape == (2048, 10)
    none = weight_names.identify({name: value for name, value in theirs.items() if not name.startswith("fc.")})
    assert none.without == ("all/fc1/dense/kernel", "all/fc1/dense/bias")
    recorded = [
        import_weights.options(match, UNKNOWN, False).get("num_classes") for match in (weight_names.identify(ten), none)
    ]
    assert recorded == [10, None]  # without --num-classes the printed command would expect 1,000


def underscored(kept: dict[str, np.ndarray], options) -> dict[str, np.ndarray]:
    """Return our EfficientNet-Lite0 with the names of the package it was published in."""
    layout = weight_names.LAYOUTS[3]
    blocks = [block.name for block in weight_names.plugins.load("Models", "efficientnet").blocks(options)]
    parts = {"a": ("_expand_conv", "_bn0"), "b": ("_depthwise_conv", "_bn1"), "c": ("_project_conv", "_bn2")}
    kinds = {ours: theirs for theirs, ours in weight_names.NORM.items()} | {"kernel": "weight", "bias": "bias"}
    found = {}
    for name, value in kept.items():
        _, block, *rest, kind = name.split("/")
        conv, norm = {"block0": ("_conv_stem", "_bn0"), "Top": ("_conv_head", "_bn1")}.get(block) or (
            f"_blocks.{blocks.index(block)}.{part}" for part in parts[rest[0]]
        )
        owner = "_fc" if "dense" in rest else norm if "batch_norm" in rest else conv
        found[f"{owner}.{kinds[kind]}"] = generated.value_back(layout, name, value.astype(np.float32))
    return found


def test_bundled_weights_survive_round_trip(tool, tmp_path):
    bundled = weights_file.BUNDLED["efficientnet-lite0"]
    kept, asked = weights_file.arrays(bundled), weights_file.options(bundled)
    options = weight_names.plugins.load("Models", "efficientnet").Options(model_size="B0", **weight_names.LITE)
    np.savez(tmp_path / "theirs.npz", **underscored(kept, options))
    code, out, err = tool("theirs.npz", "--half", "--symmetric-input", "--output", "lite.npz")
    assert code == 0, err
    assert "EfficientNet in PyTorch: efficientnet B0, 247 variables" in out
    made = weights_file.arrays(tmp_path / "lite.npz")
    assert made.keys() == kept.keys()
    assert all(made[name].dtype == kept[name].dtype and np.array_equal(made[name], kept[name]) for name in kept)
    assert weights_file.options(tmp_path / "lite.npz") == asked
    assert tool("theirs.npz", "--output", "lite.npz")[0] == 0  # an import may be repeated
    assert "needs no import" in refused(tool, "lite.npz")


# --- Keras ---


@pytest.fixture(scope="module")
def in_keras():
    """Return a Keras EfficientNet-B0 by layer names, as the tool's help saves it; values identify channels."""
    network = keras.applications.EfficientNetB0(weights=None, input_shape=(64, 64, 3))
    draw = np.random.default_rng(2)
    shapes = {f"{layer.name}/{w.name}": w.shape for layer in network.layers for w in layer.weights}
    return {name: draw.uniform(0.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def test_keras_npz_and_older_files_are_read(tool, tmp_path, in_keras):
    np.savez(tmp_path / "b0.npz", **in_keras)
    with h5py.File(tmp_path / "b0.h5", "w") as file:
        for name, value in in_keras.items():
            layer, kind = name.split("/")
            kind = "depthwise_kernel" if layer.endswith("dwconv") else kind
            file[f"{layer}/{layer}/{kind}:0"] = value
        file["optimizer_weights/iteration:0"] = 3
    results = []
    for source in ("b0.npz", "b0.h5"):
        code, out, _ = tool(source, "--output", f"ours-{source[3:]}.npz")
        assert code == 0 and out.startswith("EfficientNet of Keras: efficientnet B0, 311 variables\n")
        results.append(weights_file.arrays(tmp_path / f"ours-{source[3:]}.npz"))
    one, other = results
    assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    np.testing.assert_array_equal(
        one["all/block3a/b/conv/conv2d/kernel"][1, 2, 0, 7], in_keras["block3a_dwconv/kernel"][1, 2, 7, 0]
    )
    np.testing.assert_array_equal(one["all/Top/batch_norm/gamma"], in_keras["top_bn/gamma"])
    with h5py.File(tmp_path / "b0.weights.h5", "w") as file:
        file["layers/conv2d/vars/0"] = np.zeros((3, 3, 3, 32), np.float32)
    assert "lacks the names of the layers" in refused(tool, "b0.weights.h5")


@pytest.mark.parametrize("layers, mean, deviation", [
    ({}, (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)),
    ({"Rescaling": (1 / 127.5, -1.0)}, (0.7, 0.75, 0.8), (0.05, 0.1, 0.15)),
])  # fmt: skip
def test_keras_constants_are_recorded(tool, tmp_path, in_keras, layers, mean, deviation):
    """Either x / 255 followed by the normalisation, or the settings stored with the weights."""
    own = {"normalization/mean": (0.4, 0.5, 0.6), "normalization/variance": (0.01, 0.04, 0.09), "normalization/count": 7}
    found = {k: v for k, v in in_keras.items() if "normalization" not in k} | {k: np.float32(v) for k, v in own.items()}
    with h5py.File(tmp_path / "b0.h5", "w") as file:
        for name, value in found.items():
            file[f"{name.split('/')[0]}/{name}:0"] = value
        if layers:
            scale, offset = layers["Rescaling"]
            entries = [("Rescaling", {"scale": scale, "offset": offset}), ("Normalization", {"name": "normalization"})]
            entries += [("Conv2D", {}), ("Rescaling", {"scale": 5.0})]
            settings = {
                "class_name": "Functional",
                "config": {"layers": [{"class_name": k, "config": v} for k, v in entries]},
            }
            file.attrs["model_config"] = json.dumps(settings)
    assert tool("b0.h5")[0] == 0
    recorded = weights_file.options(tmp_path / "b0.npz")
    np.testing.assert_allclose(recorded["image_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(recorded["image_std"], deviation, rtol=1e-5)
    assert recorded["normalise_input"] is False


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([("RandomFlip", {}), ("Conv2D", {}), ("Activation", {})], None),
        ([("Lambda", {}), ("Conv2D", {})], "first"),
        ([("TrueDivide", {}), ("Conv2D", {})], "first"),
        ([("Conv2D", {}), ("Dense", {"activation": "softmax"})], None),
        ([("Conv2D", {}), ("Dense", {"activation": "linear"})], None),
        ([("Conv2D", {}), ("Dense", {"activation": "sigmoid"})], "sigmoid"),
    ],
)
def test_keras_networks_with_other_arithmetic_are_rejected(layers, named):
    entries = [{"class_name": kind, "config": {"name": "first", **config}} for kind, config in layers]
    settings = {"class_name": "Functional", "config": {"layers": entries}}
    with pytest.raises(ValueError, match=named) if named else nullcontext():
        keras_layers.preprocessing(settings, {})


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_keras_3_files_are_read(tool, tmp_path, suffix):
    """Its answer equals the harness's answer, without a given constant."""
    keras.utils.set_random_seed(1)
    network = keras.applications.EfficientNetB0(weights=None, input_shape=(64, 64, 3), classes=5)
    next(each for each in network.layers if isinstance(each, keras.layers.Normalization)).adapt(
        np.random.default_rng(3).integers(90, 220, (8, 9, 9, 3)) / 255
    )
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.0
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    network(np.stack([noise, noise[::-1], 255 - noise]).astype(np.float32), training=True)
    (network.save if suffix == ".keras" else network.save_weights)(tmp_path / f"b0{suffix}")
    Image.fromarray(np.pad(noise, [(4, 5), (4, 5), (0, 0)])).save(tmp_path / "noise.png")  # the centre is used
    assert tool(f"b0{suffix}", "--output", "b0.npz")[0] == 0
    words = ("--restore-path", tmp_path / "b0.npz", "--image-size", 64, "--predict", tmp_path / "noise.png")
    succeed("validation", *words, "--output", tmp_path / "out.json")
    found = {each["class"]: each["probability"] for each in json.loads((tmp_path / "out.json").read_text())[0]["top"]}
    expected = network(noise[None].astype(np.float32), training=False).numpy()[0]
    assert [found[k] for k in range(5)] == pytest.approx(expected, abs=1e-3)


# --- names and config.json ---


@pytest.mark.parametrize("words, folder, file, expected", [
    ((), {}, "m.npz", (1e-3, False)),  # with a note
    ((), {}, "efficientnet_b0_ra-3dd342df.npz", (1e-5, True)),
    ((), {}, "tf_efficientnet_b0_ns.npz", (1e-3, False)),
    ((), {"architecture": "efficientnet_b0"}, "tf_efficientnet_b0.npz", (1e-5, True)),
    (("--architecture", "tf_efficientnet_b0.ns_jft_in1k"), {"architecture": "efficientnet_b0"}, "m.npz", (1e-3, False)),
])  # fmt: skip
def test_name_decides_padding_and_epsilon(tool, tmp_path, words, folder, file, expected):
    np.savez(tmp_path / file, **state("efficientnet_b0"))
    if folder:
        (tmp_path / "config.json").write_text(json.dumps(folder))
    code, _, err = tool(file, *words, "--output", "out.npz")
    assert code == 0, err
    recorded = weights_file.options(tmp_path / "out.npz")
    assert (recorded["norm_epsilon"], recorded.get("symmetric_padding", False)) == expected


def test_neighbouring_config_is_obeyed(tool, tmp_path):
    np.savez(tmp_path / "m.npz", **state("resnet50"))
    pretrained = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.5, 1], "input_size": [3, 176, 176], "crop_pct": 0.95}
    about = {"architecture": "resnet50.a1_in1k", "pretrained_cfg": pretrained}
    config = tmp_path / "config.json"
    config.write_text(json.dumps(about))
    code, out, err = tool("m.npz", "--output", "out.npz")
    assert code == 0 and "0.95" in out, err
    recorded = weights_file.options(tmp_path / "out.npz")
    found = [recorded[name] for name in ("image_mean", "image_std", "image_size", "normalise_input")]
    assert found == [[0.5, 0.5, 0.5], [0.25, 0.5, 1], 176, False]
    assert tool("m.npz", "--output", "out.npz", "--image-mean", 0, 0, 0, "--image-std", 1, 1, 1)[0] == 0
    assert weights_file.options(tmp_path / "out.npz")["image_std"] == [1, 1, 1]
    for changes, named in (
        ({"architecture": "resnetaa50"}, "resnetaa50"),
        ({"architecture": "tf_efficientnet_b0"}, "tf_efficientnet_b0"),
        ({"model_args": {"act_layer": "silu"}}, "act_layer"),
        ({"pretrained_cfg": {"mean": [1, 2]}}, "[1, 2]"),
        ({"pretrained_cfg": {"input_size": [1, 28, 28]}}, "[1, 28, 28]"),
    ):
        config.write_text(json.dumps(about | changes))
        assert named in refused(tool, "m.npz", "--output", "other.npz")


# --- from a file to an answer ---


def test_safetensors_file_gives_answers(tmp_path):
    """The real commands: import, then --predict without further options."""
    safetensors = pytest.importorskip("safetensors.numpy")
    _, shapes = recorded("resnet18")
    layout = weight_names.LAYOUTS[1]
    ours = {layout.ours(name, None): layout.value(name, np.empty(shape)).shape for name, shape in shapes.items()}
    values = generated.weights(ours, 3)
    theirs = {
        name: np.ascontiguousarray(generated.value_back(layout, name, values[layout.ours(name, None)])) for name in shapes
    }
    safetensors.save_file(theirs, tmp_path / "model.safetensors")
    command = [sys.executable, "-m", "cnn_harness", "import-weights", "model.safetensors"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "a ResNet of torchvision or timm: resnet 18, 107 variables" in done.stdout
    assert weights_file.options(tmp_path / "model.npz")["symmetric_padding"] is True  # as PyTorch pads
    noise = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    shown = succeed("validation", "--restore-path", tmp_path / "model.npz", "--predict", tmp_path / "noise.png")
    assert " % " in shown.out


@pytest.mark.parametrize("name", ["model.safetensors", "model.h5", "model.pth", "a name.h5"])
def test_foreign_files_lead_to_import_tool(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(b"x")
    network = ("--model", "resnet", "--dataset", "cifar-10", "--generated-data")
    for words in (("train", "--init-path", path, *network), ("validation", "--restore-path", path)):
        result = run(*words)
        assert result.code == 2 and f"cnn import-weights {shlex.quote(str(path))}" in result.err


# --- rejections ---


def without(name: str) -> dict[str, np.ndarray]:
    return {key: value for key, value in state("resnet18").items() if key != name}


ARRAYS = {  # arrays of a .npz, options of the call, and what the error must name
    "other": (lambda: {"weight": np.zeros(3)}, (), "'weight'"),
    "one missing": (lambda: without("layer2.1.bn1.bias"), (), "all/b2/1/1/batch_norm/beta"),
    "one too many": (lambda: state("resnet18") | {"layer4.1.se.weight": np.zeros(3)}, (),
                     "all variables of resnet 18, but 1 variable more than it: layer4.1.se.weight;"),
    "one channel": (lambda: state("resnet18") | {"conv1.weight": np.zeros((64, 1, 7, 7))}, (), "[7, 7, 1, 64]"),
    "not finite": (lambda: state("resnet18") | {"bn1.bias": np.full(64, np.nan)}, (), "all/b0/batch_norm/beta"),
    "beyond FP16": (lambda: state("resnet18") | {"bn1.bias": np.full(64, 1e5)}, ("--half",), "--half"),
    "negative variance": (lambda: state("resnet18") | {"bn1.running_var": np.full(64, -1)}, (), "all/b0/batch_norm/moving_variance"),
    "pooling": (lambda: state("resnet18"), ("--architecture", "resnetblur18"), "resnetblur18"),
    "over another": (lambda: state("resnet18"), ("--output", "mine.npz"), "mine.npz"),
}  # fmt: skip
FILES = {
    "a.npz": b"no", "a.safetensors": b"\xff" * 9, "b.safetensors": b"", "a.h5": b"no", "a.keras": b"no", "a.txt": b"", "a.whl": b"no",
    "a.pth": b"no", "missing.npz": None,
}  # fmt: skip


@pytest.mark.parametrize("case", ARRAYS)
def test_unsuitable_weights_are_rejected(tool, tmp_path, case):
    arrays, words, named = ARRAYS[case]
    np.savez(tmp_path / "a.npz", **arrays())
    np.savez(tmp_path / "mine.npz", mine=np.zeros(3))
    before = (tmp_path / "a.npz").read_bytes()
    assert named in refused(tool, "a.npz", *words)
    assert (tmp_path / "a.npz").read_bytes() == before and list(np.load(tmp_path / "mine.npz")) == ["mine"]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", FILES)
def test_unreadable_files_are_rejected(tool, tmp_path, name):
    if FILES[name] is not None:
        (tmp_path / name).write_bytes(FILES[name])
    assert name in refused(tool, name, "--output", "out.npz")
