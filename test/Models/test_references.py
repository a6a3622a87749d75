"""Whole networks agree with other definitions: EfficientNet of Keras, ResNet and ResNeXt of timm.

Weights and moving statistics are generated, not trained. The measure is the largest difference of a logit, in standard
deviations of the logits.

Keras runs here. timm needs torch, so its logits were recorded (references/record_timm.py). timm's ResNet-18 and 34 have
no projection in the first unit of the first stage, and this project's do. With moving statistics ours is an identity;
with batch statistics timm's network was given a projection too.
"""

from __future__ import annotations

import dataclasses
import importlib

import keras
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from references import generated
from timm_networks import recorded

from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.recorder import record
from cnn_harness.emulator.plan.precision import SINGLE
from cnn_harness.emulator.program.runtime import new_graph, session_config
from cnn_harness.tools import architectures, weight_names

TOLERANCE = {"float64": 1e-8, "float32": 1e-4}
KERAS, RESNET, TIMM, _ = weight_names.LAYOUTS


def network(name, **changes):
    """Return the segments and options of a model for ImageNet with batch norm, without dropout and drop-connect."""
    module = importlib.import_module(f"cnn_harness.Models.{name}")
    fields = {field.name for field in dataclasses.fields(module.Options)}
    defaults = {key: value for key, value in module.DEFAULTS["imagenet"].items() if key in fields}
    if name == "efficientnet":
        changes |= {"dropout_rate": 0.0, "block_survival_prob": 1.0}
    options = module.Options(**{**defaults, "batch_norm": True, "group_norm": False, **changes})
    return module.build(options, "imagenet", 1000, False), options


def shapes(segments, side):
    return {variable.name: variable.shape for variable in record(segments, side).variables}


def run(segments, values, images, training=False, dtype="float32"):
    """Return the logits and batch statistics of this project's network."""
    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        weights = {name: tf.placeholder(dtype, value.shape) for name, value in values.items()}
        image = tf.placeholder(dtype, [None, *images.shape[1:]])
        policy = PrecisionPolicy(SINGLE, dtype=tf.as_dtype(dtype))
        target = policy.target("/cpu:0", training=training)
        lowering = policy.lowering(weights, target)
        out = lowering.run(prepared(record(segments, images.shape[1]), SINGLE, target), image)
        feeds = {weights[name]: value for name, value in values.items()}
        return session.run((out, lowering.statistics), {**feeds, image: images})


def with_statistics(segments, values, images):
    """Add moving statistics that roughly fit the weights and images.

    With others, a network of gates and swish fades to a constant or explodes. The small constant limits channels that hardly
    vary.
    """
    _, found = run(segments, values, images, training=True)
    random = np.random.Generator(np.random.PCG64(5))
    fit = dict(values)
    for name in sorted(name for name in found if name.endswith("moving_mean")):
        variance = name.removesuffix("mean") + "variance"
        away = random.uniform(-0.1, 0.1, (2, found[name].size)).astype(np.float32)
        fit[name] = found[name] + away[0] * np.sqrt(found[variance])
        fit[variance] = found[variance] * np.exp(away[1]) + 0.01
    return fit


def assert_close(ours, theirs, dtype):
    """Check the tolerance, and that the logits are finite, of order one and different for each image."""
    assert np.isfinite(theirs).all() and 0.1 < theirs.std() < 10
    assert np.abs(theirs[0] - theirs[1]).max() > 0.05
    assert ours.dtype == dtype
    assert np.abs(ours - theirs).max() < TOLERANCE[dtype] * theirs.std()


# --- timm ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "size"),
    [
        ("resnet50_even", "resnet", 50),
        ("efficientnet_b0_even", "efficientnet", "B0"),
        ("resnet18", "resnet", 18),
        ("resnet50", "resnet", 50),
        ("resnext50", "resnext", 50),
        ("efficientnet_b0", "efficientnet", "B0"),
    ],
)
def test_matches_recorded_timm_network(name, model, size):
    record, _ = recorded(name)
    by_name = architectures.Description(name.removesuffix("_even")).options() if name.endswith("_even") else {}
    segments, _ = network(model, model_size=size, **by_name)
    side = int(record["side"])
    values = generated.weights(shapes(segments, side), int(record["weight_seed"]))
    images = generated.noise_images(len(record["batch"]), side, int(record["picture_seed"]))
    assert_close(run(segments, values, images, training=True, dtype="float64")[0], record["batch"], "float64")
    if model == "efficientnet":
        return  # with generated moving statistics it fades; the Keras test below covers it
    projected = [key for key in values if "b1/0/p/" in key and size in (18, 34)]
    values = generated.weights(
        {key: v.shape for key, v in values.items() if key not in projected}, int(record["weight_seed"])
    )
    values |= weight_names.identities(shapes(segments, side), values)
    for dtype in TOLERANCE:
        assert_close(run(segments, values, images, dtype=dtype)[0], record["inference"], dtype)


# --- Keras ---


@pytest.fixture
def keras_in_float64():
    """Run Keras in float64, then restore FP32."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session()


def filled_in(theirs, values, options):
    """Return a Keras network with our values."""
    for layer in theirs.layers:
        for weight in layer.weights:
            name = f"{layer.name}/{weight.name}"
            ours = weight_names.clean(name)
            if KERAS.ours(ours, options):
                weight.assign(generated.value_back(KERAS, ours, values[KERAS.ours(ours, options)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "side"),  # even and odd sides
    [("B0", 96), ("B2", 65)],
)
def test_efficientnet_matches_keras(size, side, keras_in_float64):
    definition = getattr(keras.applications, f"EfficientNet{size}")
    theirs = definition(weights=None, input_shape=(side, side, 3), classifier_activation=None)
    segments, options = network("efficientnet", model_size=size)
    wanted = shapes(segments, side)
    places = {f"{layer.name}/{w.name}": w.shape for layer in theirs.layers for w in layer.weights}
    found = {KERAS.ours(weight_names.clean(n), options): KERAS.value(n, np.empty(s)).shape for n, s in places.items()}
    assert {name: shape for name, shape in found.items() if name} == wanted

    images = generated.noise_images(3, side, seed=31)
    values = with_statistics(segments, generated.weights(wanted, seed=30), images)
    filled_in(theirs, values, options)
    for layer in theirs.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    # Keras starts with a factor 1/255, rounded to FP32, and, untrained, a normalisation to mean 0 and variance 1
    scaled = keras.ops.convert_to_tensor(images / np.float64(np.float32(1 / 255)))
    inference = theirs(scaled, training=False).numpy()
    for dtype in TOLERANCE:
        assert_close(run(segments, values, images, dtype=dtype)[0], inference, dtype)
    assert_close(
        run(segments, values, images, training=True, dtype="float64")[0], theirs(scaled, training=True).numpy(), "float64"
    )
