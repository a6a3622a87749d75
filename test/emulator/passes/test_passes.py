"""Passes keep networks well formed, fuse what they should, and number stochastic roundings without repeating a number."""

from __future__ import annotations

from collections import defaultdict

import pytest
from networks import CLASSES, options_of

from cnn_harness.emulator.lowering.lists import passes, prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import PRODUCTS, Network
from cnn_harness.emulator.network.recorder import record
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.machine import Machine
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.plan import ExecutionPlan, resolve
from cnn_harness.emulator.plan.precision import ALL, EXCEPTIONS, SINGLE, by_name
from cnn_harness.emulator.program.forward_backward import stage_blocks

GN, BN = {"group_norm": True, "batch_norm": False}, {"group_norm": False, "batch_norm": True}
NETWORKS = {
    "resnet": ("resnet", "imagenet", 50, BN), "basic units": ("resnet", "imagenet", 18, BN),
    "subsampled shortcuts": ("resnet", "cifar", 8, BN), "group norm": ("resnet", "cifar", 11, GN),
    "resnext": ("resnext", "cifar", 29, BN), "efficientnet": ("efficientnet", "imagenet", "B0", GN),
    "proxy norm": ("efficientnet", "cifar", "CIFAR", {**GN, "groups": 1, "proxy_norm": True}),
    "lite": ("efficientnet", "imagenet", "B0", {**BN, "se": False, "use_relu6": True}),
    "gates and batch norm": ("efficientnet", "cifar", "CIFAR", BN),
    "squeezenet": ("squeezenet", "imagenet", None, {}),
}  # fmt: skip
PRECISIONS = {
    "32.32": SINGLE,
    "16.16": by_name("16.16", stochastic=ALL),
    "8.16": by_name("8.16", stochastic=ALL, checks=EXCEPTIONS),
}
NATIVE = frozenset(
    f"emulator_{name}"
    for name in (
        "convolution", "conv_weights_gradient", "depthwise_conv_norm", "depthwise_weights_gradient", "gate", "norm",
        "pointwise_conv_bias", "pointwise_conv_norm", "relu", "sum", "winograd_conv2d",
    )
)  # fmt: skip
RESIDUAL = [name for name, (model, _, _, norms) in NETWORKS.items() if model.startswith("resne") and norms is BN]
needs_kernels = pytest.mark.skipif(not library.identity(), reason="the kernels are not built: there is no C++ compiler")


def network_of(name: str) -> Network:
    model, family, size, changes = NETWORKS[name]
    module, options = options_of(model, family, **({"model_size": size} if size else {}), **changes)
    return record(module.build(options, family, CLASSES[family], False), 64)


def planned(network: Network, **options: object) -> ExecutionPlan:
    return resolve(DeviceOptions(**options), network, Machine(2, 0), micro_batch_size=4, accumulation=8)


def assert_well_formed(network: Network) -> None:
    """Check that each value that is read enters the network, or was made once, before."""
    made = set(network.inputs)
    for node in network.nodes:
        assert made.issuperset(node.inputs), node.path
        assert made.isdisjoint(node.outputs), node.path
        made |= set(node.outputs)
    assert network.output in made


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_made_before_they_are_read(name, precision, training):
    network = network_of(name)
    segments = [network.block((segment,)) for segment in network.segments]
    for block in (network, *segments):
        assert_well_formed(block)
        watched = {node.path for node in block.nodes}
        for each in passes(PRECISIONS[precision], Target(native=NATIVE, training=training), watched).values():
            block = each(block)
            assert_well_formed(block)


@pytest.mark.parametrize("name", RESIDUAL)
def test_every_residual_end_is_fused(name):
    network = network_of(name)
    units = sum(node.op == "add" for node in network.nodes)
    nodes = prepared(network, SINGLE, Target(native=NATIVE)).nodes
    assert sum(node.fused == ("norm", "add", "relu") for node in nodes) == units > 2
    assert not {"add", "relu"} & {node.op for node in nodes}


@needs_kernels
@pytest.mark.parametrize("name", RESIDUAL)
def test_nothing_is_fused_across_blocks(name):
    """A residual unit ends in another segment than its ReLU, so recomputation, or a cut there, fuses nothing."""
    network = network_of(name)
    cut = next(segment for segment in network.segments if segment.endswith("/relu"))
    units = sum(node.op == "add" for node in network.nodes)
    for options, fused in (
        ({"enable_recomputation": True}, 0),
        ({"shards": 2, "pipeline_splits": (cut,)}, units - 1),
        ({}, units),
    ):
        plan = planned(network, **options)
        blocks = [each for stage in stage_blocks(plan, network, PrecisionPolicy(SINGLE), ()) for each in stage]
        assert sum(bool(node.fused) for each in blocks for node in each.network.nodes) == fused
        for each, part in zip(
            blocks,
            (part for stage in network.blocks(plan.stages, plan.options.enable_recomputation) for part in stage),
            strict=True,
        ):
            assert {node.segment for node in each.network.nodes} <= set(part.segments)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("precision", ["16.16", "8.16"])
@pytest.mark.parametrize("name", NETWORKS)
def test_stochastic_roundings_have_their_own_numbers(name, precision, training):
    """In each segment, in each direction."""
    network, target = network_of(name), Target(native=NATIVE, training=training)
    found = numbers(prepared(network, PRECISIONS[precision], target))
    for place, own in found.items():
        assert len(set(own)) == len(own), place
    assert sum(map(len, found.values())) >= sum(node.op in PRODUCTS for node in network.nodes)


def numbers(network: Network) -> dict[tuple[str, str], list[int]]:
    """Return the numbers of the roundings in each segment, forward and backward. The directions have different noise."""
    found = defaultdict(list)
    for node in network.nodes:
        of, rounds_gradients = node.formats, node.norm is not None or node.formats.rounds_gradient
        forward = of.operand, of.result if node.op != "sum_gradients" else None
        backward = *(r.draw for r in of.reads if r), of.gradient, of.pixels, of.result if rounds_gradients else None
        for direction, draws in (("forward", forward), ("backward", backward)):
            found[node.segment, direction] += [number for number in draws if number is not None]
    return dict(found)
