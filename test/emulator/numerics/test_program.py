"""Observed statistics of a network's numbers agree with NumPy."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
from two_layers import BATCH, features, loss, network, numbers

from cnn_harness import ipu_utils
from cnn_harness.emulator.numerics.observation import KINDS
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY
from cnn_harness.emulator.plan.number_formats import E4M3FNUZ
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.precision import Precision
from cnn_harness.harness.reports import numerics_chart

SCALE = 30.0
KERNELS = "all/one/conv/conv2d/kernel", "all/two/dense/kernel"


def test_observation_matches_numpy():
    options = DeviceOptions(
        precision="8.16", weight_format="e2m1fn", activation_bias=9, gradient_format="e3m2", format_for=("one=fp32",)
    )
    precision = Precision.of(options, kernels=KERNELS)
    weights, images, targets = numbers()
    observed = ipu_utils.ObservationSpec(network=network(), loss=loss, precision=precision, micro_batches=2)
    with ipu_utils.ObservingProgram(observed, ipu_utils.Stream(features), 1) as program:
        values = {name: value.astype(np.float32) for name, value in weights.items()}
        found = program.observe(values, 7, SCALE)
        again = program.observe({name: 2 * value for name, value in values.items()}, 8, 1.0)
    (w, b, w_2, b_2), x, target = weights.values(), images[0, :, 0, 0], targets[0]
    a = np.maximum(x @ w[0, 0] + b, 0)
    dy_2 = SCALE * (a @ w_2 + b_2 - target) / (BATCH / 2)  # each micro-batch has its own mean
    dy = (dy_2 @ w_2.T) * (x @ w[0, 0] + b > 0)
    assert (found.updates, found.scale) == (7, SCALE)
    assert [(each.layer, each.kind) for each in found.tensors] == [
        (layer, kind) for layer in ("all/one/conv", "all/two/dense") for kind in KINDS
    ]
    for each, numbers_of in zip(found.tensors, (w, x, dy, w_2, a, dy_2)):
        size = np.abs(numbers_of.ravel())
        expected = Counter(np.frexp(size[size > 0])[1] - 1)
        assert each.exponents == dict(sorted(expected.items())), each
        if each.layer == "all/one/conv":
            assert each.format.name == ("FP32" if each.kind == "weights" else "FP16")  # the format of results is narrower
        rounded = size if each.format.name == "FP32" else np.minimum(each.format.rounded(size), each.format.largest)
        rounded = np.where(np.isnan(rounded), each.format.largest, rounded)
        np.testing.assert_allclose(
            each.losses,
            [
                np.mean(size == 0), np.mean((size > 0) & (rounded == 0)), np.mean(size >= each.format.overflow),
                np.abs(rounded - size).sum() / size.sum(),
            ],
            rtol=1e-5,
        )  # fmt: skip
    lost = [each.losses for each in found.tensors if each.layer == "all/two/dense"]
    assert lost[0].under > 0 and lost[1].error > 0 and lost[2].over > 0  # the numbers cover each case
    assert min(again.tensors[0].exponents) == min(found.tensors[0].exponents) + 1


def test_adaptive_formats_are_observed_as_shifted():
    """All gradients near 2^-24 would be 0 in e5m2fnuz with its default bias. A format adapted to smaller ones loses the
    largest of them.
    """
    options = DeviceOptions(precision="8.16", format_scaling="maximum", format_for=("two=fp16",))
    precision = Precision.of(options, kernels=KERNELS)
    weights, images, _ = numbers()
    spec = ipu_utils.ObservationSpec(network=network(), loss=loss, precision=precision)
    history = np.float32([[1.0, 2.0**-25]] * 2)
    with ipu_utils.ObservingProgram(spec, ipu_utils.Stream(features), 1) as program:
        values = {**{name: value.astype(np.float32) for name, value in weights.items()}, AMAX_HISTORY: history}
        found = program.observe(values, 7, 2.0**-20)
        smaller = program.observe(values, 7, 2.0**-24)
    weight, activation, gradient, *second = found.tensors
    assert [each.format.name for each in found.tensors] == ["e4m3fnuz", "e4m3fnuz", "e5m2fnuz", "FP16", "FP16", "FP16"]
    assert all(each.follows for each in (weight, activation, gradient)) and not any(each.follows for each in second)
    assert gradient.exponents == {-24: 1, -23: 2}
    np.testing.assert_allclose(gradient.losses[:3], [3 / 6, 0, 2 / 6], rtol=1e-6)
    np.testing.assert_allclose(smaller.tensors[2].losses[:3], [3 / 6, 3 / 6, 0], rtol=1e-6)  # in FP16, as they arrive
    x = np.abs(images[0])
    assert activation.losses.over == np.mean(x >= E4M3FNUZ.overflow / 2.0**6)  # 1 is at 2^6
    drawn = numerics_chart.draw(found)
    assert "e5m2fnuz: 33 octaves, scaled to each layer" in drawn and "e4m3fnuz: 18 octaves" in drawn


def test_block_formats_are_observed_in_blocks():
    """Weights have blocks along their input channels, activations and gradients along their channels."""
    precision = Precision.of(DeviceOptions(precision="32.32", format_for=("all=mxfp4",)), kernels=KERNELS)
    weights, images, _ = numbers()
    spec = ipu_utils.ObservationSpec(network=network(), loss=loss, precision=precision)
    with ipu_utils.ObservingProgram(spec, ipu_utils.Stream(features), 1) as program:
        found = program.observe({name: value.astype(np.float32) for name, value in weights.items()}, 7, 1.0)
    assert [(each.format.name, each.follows) for each in found.tensors] == [("mxfp4", True)] * 6
    for tensor, x, axis in zip(found.tensors, (weights[KERNELS[0]], images[0]), (2, -1)):
        largest = np.abs(x).max(axis, keepdims=True)
        scale = np.exp2(np.floor(np.log2(np.where(largest, largest, 1))) - 2)
        rounded = np.clip(x / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale
        np.testing.assert_allclose(tensor.losses.error, np.abs(rounded - x).sum() / np.abs(x).sum(), rtol=1e-5)
        assert tensor.losses.over == 0
    assert found.tensors[0].losses.error > 0  # the weights are not all numbers of the format.
    assert "mxfp4: 4 octaves, scaled to each block" in numerics_chart.draw(found)
