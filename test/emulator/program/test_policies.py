"""An update of a two-layer network in every policy equals float64 NumPy with the casts of ml_dtypes, to the bit.

FP32 represents every sum exactly, so that all rounding is rounding to a format.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from two_layers import BATCH, PASSES, features, loss, network, numbers

from cnn_harness import ipu_utils
from cnn_harness.emulator.plan import number_formats
from cnn_harness.emulator.plan.checkpoint_tensors import AMAX_HISTORY, LOSS_SCALE
from cnn_harness.emulator.plan.machine import Machine
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.plan import resolve
from cnn_harness.emulator.plan.precision import NAMED, Precision
from cnn_harness.emulator.program.loss_scale import BACK_OFF
from cnn_harness.emulator.program.update import AMAX_DECAY
from cnn_harness.harness.options.sections import TrainingOptions

KINDS = {
    "FP16": np.float16, "BF16": ml_dtypes.bfloat16, "FP32": np.float32, "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz, "e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "mxfp4": ml_dtypes.float4_e2m1fn, "mxfp6_e2m3": ml_dtypes.float6_e2m3fn, "mxfp8_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
POLICIES = {
    **{name: {"precision": name, "format_for": ("one=fp32",)} for name in NAMED},  # narrow in the second layer alone
    "8.16 throughout": {"precision": "8.16", "format_for": ("nothing=fp32",)},
    "8.16 but for the ends": {"precision": "8.16"},
    "8 bits that are scaled": {"precision": "8.32", "weight_bias": 11, "gradient_bias": 14, "format_for": ("nothing=fp32",)},
    "formats that follow": {"precision": "8.32", "format_scaling": "maximum", "format_for": ("nothing=fp32",)},
    "operands alone": {
        "precision": "32.32", "weight_format": "e4m3fn", "activation_format": "e5m2", "gradient_format": "bf16",
    },
    "blocks": {
        "precision": "16.32", "weight_format": "mxfp4", "activation_format": "mxfp6_e2m3", "gradient_format": "mxfp8_e5m2",
    },
    "states": {"precision": "16.32", "accumulator_format": "bf16", "master_format": "e5m2fnuz", "slot_format": "e4m3fn"},
}  # fmt: skip
SCALE, RATE, MOMENTUM = 4.0, 0.25, 0.5
LARGEST = [[2.2, 40.0], [3.3, 30.0]]  # the largest activations and gradients so far


def cast(number_format: number_formats.Format, x: np.ndarray) -> np.ndarray:
    """Cast with ml_dtypes; a bias shifts the exponent of its format."""
    usual = next(
        each for each in number_formats.TABLE if each[1:3] == number_format[1:3] and each.specials == number_format.specials
    )
    shift = 2.0 ** (number_format.bias - usual.bias)
    with np.errstate(all="ignore"):
        return np.float64((np.float32(x) * np.float32(shift)).astype(KINDS[usual.name]).astype(np.float32)) / shift


def operand(number_format: number_formats.Format | number_formats.BlockFormat, x: np.ndarray, axis: int) -> np.ndarray:
    """Cast an operand with ml_dtypes; `axis` has one block."""
    if isinstance(number_format, number_formats.Format):
        return cast(number_format, x)
    kind = KINDS[number_format.name]
    most, largest = float(ml_dtypes.finfo(kind).max), np.abs(x).max(axis, keepdims=True)
    scale = np.exp2(np.floor(np.log2(np.where(largest, largest, 1))) - np.floor(np.log2(most)))
    return np.clip(x / scale, -most, most).astype(kind).astype(np.float64) * scale


def updated(precision: Precision, loss_scale: ipu_utils.LossScale | None = None) -> dict[str, np.ndarray]:
    """Return weights and slots after an update, by the device layer."""
    weights, two_layers = numbers()[0], network()
    plan = resolve(
        DeviceOptions(fold="1"), two_layers, Machine(2, 0), micro_batch_size=BATCH, accumulation=PASSES, precision=precision
    )

    training = ipu_utils.TrainingSpec(
        network=two_layers, plan=plan, seed=1, loss=loss, correct=lambda logits, labels: tf.zeros([BATCH]),
        optimiser=TrainingOptions(optimiser="momentum", momentum=MOMENTUM).update_rule(1), loss_scale=loss_scale or ipu_utils.LossScale(SCALE, True), weight_decay=0.0, decayed=lambda name: True,
    )  # fmt: skip
    program = ipu_utils.compile_training(training, ipu_utils.Stream(features))
    scaling = {AMAX_HISTORY: np.float32(LARGEST)} if precision.scaled_kernels else {}
    program.load({**program.values(), **{name: value.astype(np.float32) for name, value in weights.items()}, **scaling})
    program.step([RATE])
    values = program.values()
    program.close()
    return {name: np.float64(np.float32(value)) for name, value in values.items()}


def moved(number_format: number_formats.Format, x: np.ndarray, largest: float) -> np.ndarray:
    """Cast numbers shifted by the power of two that puts twice `largest` into the format's range."""
    factor = 2.0 ** np.floor(np.log2(number_format.largest / (2 * largest)))
    return cast(number_format, x * factor) / factor


def scaled(precision: Precision) -> dict[str, np.ndarray]:
    """Return the kernels and the amax history after an update with scaled formats."""
    weights, images, targets = numbers()
    of, (kernel, bias, kernel_2, bias_2) = precision.operands, weights
    w, w_2 = (moved(of.weight, weights[name], np.abs(weights[name]).max()) for name in (kernel, kernel_2))
    totals, largest = {kernel: 0.0, kernel_2: 0.0}, np.zeros([2, 2])
    for image, target in zip(images, targets):
        x = image[:, 0, 0]
        z = cast(
            precision.compute, cast(precision.compute, moved(of.activation, x, LARGEST[0][0]) @ w[0, 0]) + weights[bias]
        )
        a = moved(of.activation, np.maximum(z, 0), LARGEST[1][0])
        logits = cast(precision.compute, cast(precision.compute, a @ w_2) + weights[bias_2])
        dy_2 = cast(precision.compute, SCALE * (logits - target) / BATCH)
        g_2 = moved(of.gradient, dy_2, LARGEST[1][1])
        dy = cast(precision.compute, g_2 @ w_2.T) * (z > 0)
        g = moved(of.gradient, dy, LARGEST[0][1])
        for name, gradient in ((kernel, (moved(of.activation, x, LARGEST[0][0]).T @ g)[None, None]), (kernel_2, a.T @ g_2)):
            totals[name] = cast(precision.compute, totals[name] + cast(precision.compute, gradient) / PASSES)
        seen = [[np.abs(x).max(), np.abs(dy).max()], [np.maximum(z, 0).max(), np.abs(dy_2).max()]]
        largest = np.maximum(largest, seen)
    largest = np.maximum(np.float32(largest), np.float32(LARGEST) * np.float32(AMAX_DECAY))
    kernels = {name: np.float32(weights[name] - RATE / SCALE * total) for name, total in totals.items()}
    return kernels | {AMAX_HISTORY: largest}


def expected(precision: Precision) -> dict[str, np.ndarray]:
    """Return the same in float64."""
    weights, images, targets = numbers()
    result, summed = precision.compute, precision.accumulator
    kernel, bias, kernel_2, bias_2 = weights  # names for both layers
    master = {name: cast(precision.master, value) for name, value in weights.items()}
    of, of_2 = precision.operands_of(kernel), precision.operands_of(kernel_2)
    w, w_2 = master[kernel][0, 0], master[kernel_2]
    b, b_2 = cast(result, master[bias]), cast(result, master[bias_2])
    totals = {name: np.zeros_like(value) for name, value in weights.items()}
    for image, target in zip(images, targets):
        x = cast(result, image[:, 0, 0])
        z = cast(result, cast(result, operand(of.activation, x, 1) @ operand(of.weight, w, 0)) + b)
        a = np.maximum(z, 0)
        logits = cast(result, cast(result, operand(of_2.activation, a, 1) @ operand(of_2.weight, w_2, 0)) + b_2)
        dy_2 = cast(result, SCALE * (logits - target) / BATCH)
        dy = cast(result, operand(of_2.gradient, dy_2, 1) @ operand(of_2.weight, w_2, 1).T) * (z > 0)
        of_w = operand(of.activation, x, 0).T @ operand(of.gradient, dy, 0)
        of_w_2 = operand(of_2.activation, a, 0).T @ operand(of_2.gradient, dy_2, 0)
        gradients = {kernel: of_w[None, None], bias: dy.sum(0), kernel_2: of_w_2, bias_2: dy_2.sum(0)}
        for name, gradient in gradients.items():
            share = cast(summed, cast(result, gradient) / PASSES)
            totals[name] = cast(summed, totals[name] + share)
    slot = precision.slot or precision.master
    moved = {name: cast(precision.master, master[name] - RATE / SCALE * totals[name]) for name in weights}
    return moved | {f"{name}/Momentum": cast(slot, totals[name]) for name in weights}


@pytest.mark.parametrize("name", POLICIES)
def test_update_matches_float64(name):
    options = DeviceOptions(stochastic_rounding="OFF", **POLICIES[name])
    precision = Precision.of(options, kernels=["all/one/conv/conv2d/kernel", "all/two/dense/kernel"])
    found = updated(precision)
    reference = scaled if precision.scaled_kernels else expected
    for variable, values in reference(precision).items():
        np.testing.assert_array_equal(found[variable], values, variable)


def test_gradient_sizes_grow_with_loss_scale():
    """An update without overflow doubles the scale here; unadapted formats would lose their headroom."""
    options = DeviceOptions(stochastic_rounding="OFF", **POLICIES["formats that follow"])
    precision = Precision.of(options, kernels=["all/one/conv/conv2d/kernel", "all/two/dense/kernel"])
    found = updated(precision, ipu_utils.LossScale(SCALE, False, BACK_OFF, period=1))
    assert found[LOSS_SCALE][0] == 2 * SCALE
    np.testing.assert_array_equal(found[AMAX_HISTORY], scaled(precision)[AMAX_HISTORY] * [1, 2])
