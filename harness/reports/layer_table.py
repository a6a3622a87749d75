"""A text table of the network: a row for each layer with output shape and cost, grouped by pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable

from emulator.plan.plan import ExecutionPlan
from emulator.plan.trace import Operation, Trace

HEAD = ("layer", "", "output", "parameters", "moving", "multiply-adds", "activations")
Row = tuple[str, ...]


def layer_table(trace: Trace, plan: ExecutionPlan) -> str:
    """Return the table of layers, with sums for each stage and for the network.

    The columns "multiply-adds" and "activations" (bytes in FP32) refer to the forward pass of one image. The column "moving"
    counts the moving statistics of batch norm, which are not trained by gradients.
    """
    rows: list[Row] = [HEAD]
    for number, segments in enumerate(plan.stages):
        own = [operation for operation in trace.operations if operation.segment in segments]
        rows += [_row(operation) for operation in own]
        if len(plan.stages) > 1:
            rows += [_sum(f"stage {number}, from {plan.stage_names[number]}", own), ("",) * len(HEAD)]
    rows.append(_sum("all", trace.operations))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(_line(row, widths) for row in rows)


def _row(operation: Operation) -> Row:
    height, width, channels = operation.result
    return (
        operation.name.removeprefix("all/") if operation.name != "all" else operation.segment,
        _kind(operation),
        f"{height}x{width}x{channels}" if height * width > 1 else str(channels),
        *_counts([operation]),
    )


def _kind(operation: Operation) -> str:
    """Return a description such as conv 3x3/2 in 32 groups, depthwise 5x5, norm or relu."""
    if not operation.kernel:
        return operation.kind
    depthwise = operation.groups > 1 and operation.groups == operation.source.channels
    name = "depthwise" if depthwise else operation.kind
    window = f"{operation.kernel}x{operation.kernel}" + (f"/{operation.stride}" if operation.stride > 1 else "")
    return f"{name} {window}" + (f" in {operation.groups} groups" if operation.groups > 1 and not depthwise else "")


def _counts(operations: Iterable[Operation]) -> Row:
    """Return the last four columns of the table. All except the last column are empty instead of 0."""
    counted = list(operations)
    variables = [variable for operation in counted for variable in operation.variables]
    trained = sum(variable.elements for variable in variables if variable.trainable)
    moving = sum(variable.elements for variable in variables if not variable.trainable)
    work = sum(operation.multiply_adds for operation in counted)
    elements = sum(operation.result.elements for operation in counted)
    return (*(f"{count:,}" if count else "" for count in (trained, moving, work)), f"{4 * elements:,}")


def _sum(name: str, operations: Iterable[Operation]) -> Row:
    return (name, "", "", *_counts(operations))


def _line(row: Row, widths: list[int]) -> str:
    cells = [cell.ljust(w) if column < 3 else cell.rjust(w) for column, (cell, w) in enumerate(zip(row, widths))]
    return "  ".join(cells).rstrip()
