"""The recorder rejects dimensions that do not fit together."""

from __future__ import annotations

import pytest
from networks import recorded

from cnn_harness.emulator.network.network import Shape
from cnn_harness.emulator.network.recorder import NetworkError, Recorder
from cnn_harness.Models._layers import GLOROT
from cnn_harness.Models._norms import GroupNorm


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (
            lambda layers: layers.conv(layers.value(Shape(4, 4, 6)), 8, 3, GLOROT, groups=4),
            "all/b1: 6 .* 4 convolution groups",
        ),
        (
            lambda layers: layers.conv(layers.value(Shape(4, 4, 8)), 6, 3, GLOROT, groups=4),
            "all/b1: .* 6 .* 4 convolution groups",
        ),
        (
            lambda layers: layers.norm(layers.value(Shape(4, 4, 6)), GroupNorm(groups=4)),
            "all/b1: 6 channels .* 4 norm groups",
        ),
        (lambda layers: recorded("resnet", "imagenet", 50, groups=48), "64 channels .* 48 norm groups"),
    ],
)
def test_indivisible_numbers_are_rejected_by_name(what, named):
    layers = Recorder()
    with layers.scope("all"), layers.scope("b1"), pytest.raises(NetworkError, match=named):
        what(layers)
