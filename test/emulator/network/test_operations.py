"""The table of operations is complete."""

from __future__ import annotations

from cnn_harness.emulator.layers.activations import ACTIVATIONS
from cnn_harness.emulator.lowering.tensorflow import OPERATIONS
from cnn_harness.emulator.network.network import LINEAR, OPS


def test_every_operation_can_be_lowered():
    """Proxy norm is recorded as two operations, which the normal form joins."""
    assert OPS.keys() == OPERATIONS.keys() | {"proxy"}


def test_every_activation_has_its_arithmetic():
    assert ACTIVATIONS.keys() == {LINEAR, *(name for name, op in OPS.items() if op.activation)}
