"""The values in memory are counted by who reads them, not by their place in a list."""

from __future__ import annotations

from cnn_harness.emulator.network.recorder import record_layers
from cnn_harness.emulator.plan.lifetimes import alive, kept
from cnn_harness.Models._norms import BatchNorm

INSIDE, OUTSIDE = 8 * 8 * 4, 8 * 8 * 16  # elements of the narrow values, and of the input and the wide values


def bottleneck(layers, x):
    """A residual block whose shortcut is computed first, so an operation that does not read it follows it."""
    shortcut = layers.norm(layers.conv(x, 16, 1, 0.0), BatchNorm())
    y = layers.relu(layers.norm(layers.conv(x, 4, 1, 0.0), BatchNorm()))
    y = layers.drop_path(layers.norm(layers.conv(y, 16, 1, 0.0), BatchNorm()), 0.5)
    return layers.relu(layers.add(y, shortcut))


def gated(layers, x):
    y = layers.swish(layers.norm(layers.conv(x, 16, 1, 0.0), BatchNorm()))
    return layers.gate(y, layers.sigmoid(layers.global_mean(y)))


def test_backward_pass_keeps_what_gradients_need():
    """Norms need the results of convolutions. ReLU needs its own result. Nothing needs what the sum reads."""
    operations = record_layers(bottleneck, (8, 8, 16)).operations
    assert kept(operations) == {"": (OUTSIDE + INSIDE + OUTSIDE) + (INSIDE + OUTSIDE)}
    assert kept(operations[:3]) == {"": OUTSIDE}  # the third convolution's result, because its norm is not among these


def test_swish_of_a_norm_is_kept_once_if_computed_with_it():
    """Swish needs its input. The gate needs the two factors."""
    operations = record_layers(gated, (8, 8, 16)).operations
    apart, together = kept(operations), kept(operations, ("swish",))
    assert apart == {"": 3 * OUTSIDE + 16}  # convolution, norm, swish and sigmoid
    assert together == {"": 2 * OUTSIDE + 16}


def test_values_in_use_include_waiting_shortcuts():
    """A shortcut waits until the sum, and the input until the second convolution reads it."""
    operations = record_layers(bottleneck, (8, 8, 16)).operations
    assert list(alive(operations)) == [
        2 * OUTSIDE, 2 * OUTSIDE,  # the shortcut; its norm overwrites its input
        2 * OUTSIDE + INSIDE, OUTSIDE + INSIDE, OUTSIDE + INSIDE,
        2 * OUTSIDE + INSIDE, 2 * OUTSIDE, 3 * OUTSIDE,  # drop-path has a result of its own
        2 * OUTSIDE, OUTSIDE,
    ]  # fmt: skip
