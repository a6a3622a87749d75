"""The portable form of every layer gives the values of its emulated form for any batch."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cnn_harness.emulator.inference import frozen
from cnn_harness.harness.programs import build, embedded
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

PLAIN = frozenset(  # operations that every export runtime has
    [
        "AddV2",
        "BiasAdd",
        "Cast",
        "ConcatV2",
        "Const",
        "Conv2D",
        "DepthwiseConv2dNative",
        "ExpandDims",
        "FusedBatchNormV3",
        "MatMul",
        "MaxPool",
        "Maximum",
        "Mean",
        "Mul",
        "Pack",
        "Pad",
        "Placeholder",
        "RealDiv",
        "Relu",
        "Relu6",
        "Reshape",
        "ResizeBilinear",
        "Rsqrt",
        "Shape",
        "Sigmoid",
        "Softmax",
        "Sqrt",
        "Square",
        "SquaredDifference",
        "StridedSlice",
        "Sub",
        "Tile",
        "Unpack",
    ]
)


SMALL = "--dataset imagenet --generated-data --image-size 32 --num-classes 5 --batch-size 3"
EFFICIENT = f"--model efficientnet {SMALL} --width-coefficient 0.25 --depth-coefficient 0.25"
CIFAR = "--dataset cifar-10 --generated-data --batch-size 3"
NETWORKS = {
    "group": f"--model resnet --model-size 8 {CIFAR} --group-norm --groups 4",
    "neighbours": f"--model resnet --model-size 8 {CIFAR} --group-norm --groups 4 --contiguous-groups",
    "batch": f"--model resnet --model-size 8 {CIFAR} --batch-norm --image-size 48",
    "gated": f"{EFFICIENT} --batch-norm",
    "proxy": f"{EFFICIENT} --group-norm --groups 1 --proxy-norm --fused-preprocessing",
    "lite": f"{EFFICIENT} --batch-norm --no-se --use-relu6 --symmetric-input",
    "grouped": f"--model resnext --model-size 14 {SMALL} --batch-norm --normalise-input",
    "squeezed": f"--model squeezenet {SMALL.replace('32', '64')}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_portable_network_matches_emulated_one(name):
    words = f"{NETWORKS[name]} --precision 32.32".split()
    run = prepare(cli.parse(words, "validation", environ={}).options, {}, training=False).run
    draw = np.random.default_rng(7)
    values = {v.name: np.abs(draw.normal(0.5, 0.2, v.shape)) for v in run.network.variables}  # variances are positive
    for variable in run.network.variables:
        if variable.name.endswith("kernel"):
            values[variable.name] = draw.normal(0, (2 / variable.fans[0]) ** 0.5, variable.shape)
        elif variable.name.endswith(("beta", "bias", "moving_mean")):
            values[variable.name] = draw.normal(0, 0.2, variable.shape)
    values = {name: value.astype(np.float32) for name, value in values.items()}
    images = draw.integers(0, 256, embedded.shape(run), np.uint8)
    emulated = frozen.FrozenProgram(build.frozen_program(run, 0, values, ""))
    logits = emulated.logits(images)
    emulated.close()
    definition = build.portable_graph(run, values)
    assert {node.op for node in definition.node} <= PLAIN
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(definition, name="")
        own = graph.get_operation_by_name("probabilities").inputs[0]
        parts = [session.run(own, {"image:0": part}) for part in (images[:1], images[1:])]
    assert np.ptp(logits, axis=0).max() > 1e-3 * np.ptp(logits)  # the answer depends on the image
    np.testing.assert_allclose(np.concatenate(parts), logits, rtol=0, atol=1e-4 * np.ptp(logits))
