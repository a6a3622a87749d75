"""Run one pass: one or several micro-batches forward and backward through the stages, each stage on its device.

The backward pass computes gradients block by block; a block is one or more segments of the network. With recomputation, a
block keeps only its input and runs forward again, with the same random draws, before its backward. If the schedule splits
the backward pass, the operations that only gradients of weights need wait for a later cell. In every plan, gradients pass
from block to block only through one tensor, so every plan computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from cnn_harness.base.gradient_rules import delay, gradients, operations_for
from cnn_harness.emulator.layers.watch import GradientWatch
from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.passes.target import Target
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import BACKWARD, FORWARD, WEIGHTS
from cnn_harness.emulator.program.cells import Cells

Features = Mapping[str, tf.Tensor]
Change = Callable[[str, tf.Tensor], tf.Tensor]  # arguments: the kernel of a layer and its product
LOSS, ACCURACY, LOST_GRADIENTS, LARGEST_GRADIENT = "loss", "accuracy", "lost gradients", "largest gradient"
AMAX = "operand amax"


@dataclass(frozen=True)
class Block:
    """A part of the network whose gradients are computed together, after the passes, and its trained variables."""

    network: Network
    target: Target
    variables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PassNetwork:
    """The network that a pass computes."""

    stages: tuple[tuple[Block, ...], ...]
    plan: ExecutionPlan
    policy: PrecisionPolicy
    loss: Callable[[tf.Tensor, Features], tf.Tensor]
    correct: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    scale_loss: Callable[[tf.Tensor], tf.Tensor]
    sync_mean: Callable[[tf.Tensor], tf.Tensor] | None = None  # averages over the processes that share batch norm.

    def needs_input_gradient(self, stage: int, block: int) -> bool:
        """Return whether the gradient of a block's input is needed: whether an earlier block has trained variables."""
        before = [each for blocks in self.stages[:stage] for each in blocks] + list(self.stages[stage][:block])
        return any(each.variables for each in before)


def stage_blocks(
    plan: ExecutionPlan,
    network: Network,
    policy: PrecisionPolicy,
    trained: Collection[str],
    watched: Collection[str] = (),
    **use: Any,
) -> tuple[tuple[Block, ...], ...]:
    """Return the blocks of each stage. `trained` names the variables that gradients change, and `watched` the layers whose
    lost gradients are counted. `use` has fields of the blocks' `Target`."""

    def block(part: Network, device: str) -> Block:
        target = policy.target(device, **use)
        variables = tuple(v.name for v in part.variables if v.name in trained)
        return Block(prepared(part, policy.precision, target, watched), target, variables)

    parts = network.blocks(plan.stages, plan.separates_segments)
    return tuple(tuple(block(part, device) for part in own) for own, device in zip(parts, plan.stage_devices))


@dataclass
class _Pass:
    """The tensors of one pass while its graph is built: inputs, outputs and batch statistics of blocks. If the schedule
    splits the backward pass, `of_weights` has the operations of each stage that only gradients of weights need."""

    network: PassNetwork
    weights: Mapping[str, tf.Tensor]
    positions: tf.Tensor
    watch: GradientWatch
    product: Change
    inputs: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    outputs: dict[tuple[int, int], tf.Tensor] = field(default_factory=dict)
    statistics: dict[str, tf.Tensor] = field(default_factory=dict)
    of_weights: dict[int, set[tf.Operation]] = field(default_factory=dict)

    def run(self, block: Block, x: tf.Tensor, **context: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the output of a block and its batch statistics."""
        network = self.network
        lowering = network.policy.lowering(
            self.weights, block.target, positions=self.positions, norm_parts=network.plan.fold, watch=self.watch,
            sync_mean=network.sync_mean, **context,
        )  # fmt: skip
        return lowering.run(block.network, x), lowering.statistics

    def forward(self, stage: int, x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the output of a stage and its batch statistics."""
        stage_statistics: list[tf.Tensor] = []
        for b, block in enumerate(self.network.stages[stage]):
            self.inputs[stage, b] = x
            x, statistics = self.run(block, x, product=self.product)
            self.outputs[stage, b] = x
            self.statistics |= statistics
            stage_statistics += statistics.values()
        return x, stage_statistics

    def backward(self, stage: int, dy: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Return the gradient of a stage's input and the gradients of its trained variables.

        With recomputation, every block runs forward again, except the last block of the network, which still has its
        activations. Blocks before the first trained block are skipped.
        """
        variable_gradients: dict[str, tf.Tensor] = {}
        network = self.network
        last = (len(network.stages) - 1, len(network.stages[-1]) - 1)
        for b, block in reversed(list(enumerate(network.stages[stage]))):
            needs_input_gradient = network.needs_input_gradient(stage, b)
            if not block.variables and not needs_input_gradient:
                break
            x, y = self.inputs[stage, b], self.outputs[stage, b]
            if network.plan.options.enable_recomputation and (stage, b) != last:
                x = _after(x, (dy,))
                y, _ = self.run(block, x)  # the forward pass has recorded the statistics.
            earlier = set(dy.graph.get_operations()) if network.plan.splits_backward else set()
            dxs = gradients(y, [self.weights[name] for name in block.variables] + ([x] if needs_input_gradient else []), dy)
            variable_gradients |= dict(zip(block.variables, dxs))
            if network.plan.splits_backward:
                of_input = operations_for(dxs[len(block.variables) :], earlier)
                found = (dx for dx in dxs[: len(block.variables)] if dx is not None)
                self.of_weights.setdefault(stage, set()).update(operations_for(found, earlier | of_input))
            dy = dxs[-1] if needs_input_gradient else dy
        return dy, variable_gradients


def run_pass(
    network: PassNetwork,
    weights: Mapping[str, tf.Tensor],
    features: Features,
    cells: Cells,
    watch: GradientWatch,
    product: Change = lambda kernel, y: y,
) -> dict[str, tf.Tensor]:
    """Return the results of one pass by name: loss, accuracy, gradients and batch statistics. With narrow formats, results
    also have the fractions of lost gradients, the largest gradient, and the largest values (amax) of scaled operands.

    `product` may change the products of layers. Recomputation does not call it."""
    plan = network.plan
    current_pass = _Pass(network, weights, plan.random_position(features["position"]), watch, product)
    x, variable_gradients = features["image"], {}
    for stage in range(len(network.stages)):
        with tf.device(plan.stage_devices[stage]):
            x, statistics = current_pass.forward(stage, cells.begin(stage, FORWARD, x))
            x = cells.end(stage, FORWARD, x, statistics)
    with tf.device(plan.stage_devices[-1]):
        logits = network.policy.widen(tf.identity(x))
        loss = tf.reduce_mean(network.loss(logits, features))
        accuracy = tf.reduce_mean(network.correct(logits, features["label"]))
        # Gradients must be as large as in a pass of one micro-batch, because narrow formats would lose smaller gradients. So
        # the backward pass sums over micro-batches, and `_mean` divides by their number afterwards.
        (dy,) = gradients(network.scale_loss(loss * plan.micro_batches_per_pass), [logits])
        dy = network.policy.cast_loss_gradient(dy, current_pass.positions)
    for stage in reversed(range(len(network.stages))):
        with tf.device(plan.stage_devices[stage]):
            dy, stage_gradients = current_pass.backward(stage, cells.begin(stage, BACKWARD, dy))
            of_weights = [g for g in stage_gradients.values() if g is not None]
            dy = cells.end(stage, BACKWARD, dy, [] if plan.splits_backward else of_weights)
            if plan.splits_backward:
                gate = cells.begin(stage, WEIGHTS, dy)
                delay(current_pass.of_weights.get(stage, ()), gate)
                cells.end(stage, WEIGHTS, gate, of_weights)
        variable_gradients |= {name: _mean(g, plan.micro_batches_per_pass) for name, g in stage_gradients.items()}
    monitors = {LOST_GRADIENTS: watch.lost_shares()} if watch.names else {}
    if watch.with_largest:
        monitors[LARGEST_GRADIENT] = watch.largest_gradient()
    if plan.precision.scaled_kernels:
        monitors[AMAX] = watch.operand_amax(len(plan.precision.scaled_kernels))
    return {
        LOSS: _after(loss, tuple(cells.side_effects)),
        ACCURACY: accuracy,
        **variable_gradients,
        **current_pass.statistics,
        **monitors,
    }


def _mean(total: tf.Tensor | None, micro_batches: int) -> tf.Tensor | None:
    """Return the mean of a gradient over the micro-batches of a pass, or None if there is no gradient."""
    return total if total is None or micro_batches == 1 else total / micro_batches


def _after(x: tf.Tensor, earlier: tuple[tf.Tensor | tf.Operation, ...]) -> tf.Tensor:
    """Return x, available after `earlier`."""
    with tf.control_dependencies(list(earlier)):
        return tf.identity(x)
