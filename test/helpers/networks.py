"""Models by name, with the options of their families."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.lowering.tensorflow import Lowering
from cnn_harness.emulator.network.recorder import record, record_layers
from cnn_harness.emulator.plan.precision import SINGLE, Precision
from cnn_harness.emulator.program.runtime import new_graph, session_config

CLASSES = {"imagenet": 1000, "cifar": 10}


def options_of(name, family, **changes):
    """Return a model's module and its options: the family's defaults with changes."""
    module = importlib.import_module(f"cnn_harness.Models.{name}")
    fields = {field.name for field in dataclasses.fields(module.Options)}
    defaults = {key: value for key, value in module.DEFAULTS[family].items() if key in fields}
    return module, module.Options(**{**defaults, **changes})


def network(name, family, size, *, two_pass=False, **changes):
    """Return the segments of a model, and its usual image size."""
    module, options = options_of(name, family, model_size=size, **changes)
    return module.build(options, family, CLASSES[family], two_pass), module.image_size(options, family)


def recorded(name, family, size, *, side=None, channels=3, **changes):
    """Return the network of a model."""
    segments, usual = network(name, family, size, **changes)
    return record(segments, side or usual, channels)


def built(
    build: Callable[..., Any], weights: Mapping[str, tf.Tensor], *inputs: tf.Tensor, precision: Precision = SINGLE,
    training: bool = True, seed: int = 0, frozen: tuple[str, ...] = (), **context: Any,
) -> tuple[tf.Tensor, Lowering]:  # fmt: skip
    """Return the result of build(layers, *inputs) as tensors, and the lowering that made it."""
    network = record_layers(build, *(tuple(x.shape[1:]) if len(x.shape) == 4 else (1, 1, x.shape[-1]) for x in inputs))
    policy = PrecisionPolicy(precision, seed, tf.float64 if inputs[0].dtype == tf.float64 else tf.float32)
    target = policy.target(inputs[0].device, training=training, frozen=frozen)
    lowering = policy.lowering(weights, target, **context)
    return lowering.run(prepared(network, precision, target), *inputs), lowering


def evaluated(make, feeds=None):
    """Return the values that `make` builds in a new graph, with placeholders for the arrays in `feeds`."""
    feeds = feeds or {}
    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        held = {key: tf.placeholder(value.dtype, value.shape) for key, value in feeds.items()}
        return session.run(make(**held), {held[key]: value for key, value in feeds.items()})


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether values are bitwise equal in FP32, including signs of zeros; any NaN equals any other."""
    one, other = (np.ascontiguousarray(each, np.float32) for each in (one, other))
    return bool(np.all((np.isnan(one) & np.isnan(other)) | (one.view(np.uint32) == other.view(np.uint32))))


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
