"""Whole networks against other people's definitions of them: EfficientNet as Keras has it, ResNet-50 and ResNeXt-50
as timm has them. Weights and moving statistics are generated, never trained.

Keras is here, so it runs; timm needs torch, so its logits were recorded (references/record_resnet50.py). timm's
ResNet-18 is left out: it has no projection in the first unit of the first stage, this project's has one.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from references import generated

from emulator.cost.trace import trace
from emulator.executor import new_graph, session_config
from Models import _segments
from Models._tensor_layers import TensorLayers

RECORDED = Path(__file__).parent / "references"
TOLERANCE = 1e-4  # of the deviation of the logits
# place of a layer in a Keras block -> scope of this project
KERAS_PLACES = {"expand": "a", "dw": "b", "": "b", "project": "c", "se_reduce": "SE/1", "se_expand": "SE/2"}


def network(name, **changes):
    """The segments of a model for ImageNet with batch norm."""
    module = importlib.import_module(f"Models.{name}")
    fields = {field.name for field in dataclasses.fields(module.Options)}
    defaults = {key: value for key, value in module.DEFAULTS["imagenet"].items() if key in fields}
    options = module.Options(**{**defaults, "batch_norm": True, "group_norm": False, **changes})
    return module.build(options, "imagenet", 1000, False)


def shapes(segments, side):
    return {variable.name: variable.shape for variable in trace(segments, side).variables}


def run(segments, values, images, training=False):
    """This project's network: the logits and the batch statistics."""
    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        weights = {name: tf.placeholder(tf.float32, value.shape) for name, value in values.items()}
        picture = tf.placeholder(tf.float32, [None, *images.shape[1:]])
        layers = TensorLayers(weights, training=training)
        out = _segments.run(segments, layers, picture)
        feeds = {weights[name]: value for name, value in values.items()}
        return session.run((out, layers.statistics), {**feeds, picture: images})


def with_statistics(segments, values, images):
    """Generated weights with moving statistics that fit them and the pictures, more or less: with any others a network
    of gates and swish fades to a constant or explodes. The small constant holds channels back that hardly vary."""
    _, found = run(segments, values, images, training=True)
    random = np.random.Generator(np.random.PCG64(5))
    fit = dict(values)
    for name in sorted(name for name in found if name.endswith("moving_mean")):
        variance = name.removesuffix("mean") + "variance"
        away = random.uniform(-0.1, 0.1, (2, found[name].size)).astype(np.float32)
        fit[name] = found[name] + away[0] * np.sqrt(found[variance])
        fit[variance] = found[variance] * np.exp(away[1]) + 0.01
    return fit


def assert_close(ours, theirs):
    """Within the tolerance, and worth comparing: finite, of order one, different from picture to picture."""
    assert np.isfinite(theirs).all() and 0.1 < theirs.std() < 10
    assert np.abs(theirs[0] - theirs[1]).max() > 0.05
    assert np.abs(ours - theirs).max() < TOLERANCE * theirs.std()


@pytest.mark.parametrize(
    "name, network_name",
    [("resnet", "resnet50"), ("resnext", "resnext50")],
)
def test_equals_the_recorded_network_of_timm(name, network_name):
    with np.load(RECORDED / f"{network_name}_timm.npz", allow_pickle=False) as file:
        recorded = dict(file)
    segments, side = network(name, model_size=50), int(recorded["side"])
    values = generated.weights(shapes(segments, side), int(recorded["weight_seed"]))
    images = generated.pictures(len(recorded["logits"]), side, int(recorded["picture_seed"]))
    assert_close(run(segments, values, images)[0], recorded["logits"])


def our_name(layer, kind):
    """block2a_expand_conv's kernel is all/block2a/a/conv/conv2d/kernel."""
    if layer == "predictions":
        return f"all/Top/logits/dense/{kind}"
    first, _, rest = layer.partition("_")
    place = {"stem": "block0", "top": "Top"}.get(first)
    if place is None:
        what = rest.removesuffix("conv").removesuffix("bn").removesuffix("_")
        place = f"{first}/{KERAS_PLACES[what]}"
    return f"all/{place}/batch_norm/{kind}" if rest.endswith("bn") else f"all/{place}/conv/conv2d/{kind}"


def our_shape(layer, shape):
    """Keras keeps a depthwise kernel as [height, width, channels, 1]."""
    return (*shape[:2], 1, shape[2]) if layer.endswith("dwconv") else tuple(shape)


@pytest.mark.parametrize(
    "size, side",
    [("B0", 224), ("B1", 95), ("B3", 76)],  # even and odd sides; wider and deeper than B0
)
def test_efficientnet_equals_keras(size, side):
    definition = getattr(keras.applications, f"EfficientNet{size}")
    theirs = definition(weights=None, input_shape=(side, side, 3), classifier_activation=None)
    layers = [layer for layer in theirs.layers if layer.weights and not isinstance(layer, keras.layers.Normalization)]
    places = [(layer.name, weight) for layer in layers for weight in layer.weights]
    segments = network("efficientnet", model_size=size, dropout_rate=0.0, block_survival_prob=1.0)
    wanted = {our_name(layer, weight.name): our_shape(layer, weight.shape) for layer, weight in places}
    assert wanted == shapes(segments, side)

    images = generated.pictures(2, side, seed=31)
    values = with_statistics(segments, generated.weights(wanted, seed=30), images)
    for layer, weight in places:
        weight.assign(values[our_name(layer, weight.name)].reshape(weight.shape))
    # Keras begins with a division by 255 and, untrained, a normalisation to mean 0 and variance 1
    expected = theirs(keras.ops.convert_to_tensor(255 * images), training=False).numpy()
    assert_close(run(segments, values, images)[0], expected)
