"""A text table of the network: a row for each layer with output shape and cost, grouped by pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable

from cnn_harness.base.process import tf_runtime
from cnn_harness.emulator.network.network import Network, Node, operation
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.harness.run.run import Run

HEAD = ("layer", "", "output", "parameters", "moving", "multiply-adds", "activations")
Row = tuple[str, ...]


def layer_table(network: Network, plan: ExecutionPlan) -> str:
    """Return the table of layers, with sums for each stage and for the network.

    The columns "multiply-adds" and "activations" (bytes in FP32) refer to the forward pass of one image. The column "moving"
    counts the moving statistics of batch norm, which are not trained by gradients.
    """
    rows: list[Row] = [HEAD]
    for number, segments in enumerate(plan.stages):
        own = [node for node in network.operations if node.segment in segments]
        rows += [_row(node) for node in own]
        if len(plan.stages) > 1:
            rows += [_sum(f"stage {number}, from {plan.stage_names[number]}", own), ("",) * len(HEAD)]
    rows.append(_sum("all", network.operations))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(_line(row, widths) for row in rows)


def _row(node: Node) -> Row:
    height, width, channels = node.shape
    return (
        node.scope.removeprefix("all/") if node.scope != "all" else node.segment,
        operation(node),
        f"{height}x{width}x{channels}" if height * width > 1 else str(channels),
        *_counts([node]),
    )


def _counts(nodes: Iterable[Node]) -> Row:
    """Return the last four columns of the table. All except the last column are empty instead of 0."""
    counted = list(nodes)
    variables = [variable for node in counted for variable in node.variables]
    trained = sum(variable.elements for variable in variables if variable.trainable)
    moving = sum(variable.elements for variable in variables if not variable.trainable)
    work = sum(node.multiply_adds for node in counted)
    elements = sum(node.shape.elements for node in counted)
    return (*(f"{count:,}" if count else "" for count in (trained, moving, work)), f"{4 * elements:,}")


def _sum(name: str, nodes: Iterable[Node]) -> Row:
    return (name, "", "", *_counts(nodes))


def _line(row: Row, widths: list[int]) -> str:
    cells = [cell.ljust(w) if column < 3 else cell.rjust(w) for column, (cell, w) in enumerate(zip(row, widths))]
    return "  ".join(cells).rstrip()


def table_after(run: Run, name: str, training: bool) -> str:
    """Return the network of each block after the pass with this name. TensorFlow is imported, because the passes depend on
    the native operations."""
    tf_runtime.import_tensorflow("3")
    from cnn_harness.ipu_utils import printed_after

    return printed_after(run.network, run.plan, name, training, run.frozen_statistics)
