"""The partition of a model's segments into pipeline stages: by the names that the user gives, or balanced by traced cost.

Only the cuts are decided here, never whether a stage fits into a device's memory.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from base.errors import UserError
from base.plugins import nearest
from emulator.plan.trace import Operation, Trace

Stages = tuple[tuple[str, ...], ...]  # the segments of each stage

PASSES = 3  # a multiply-add is paid forward, for the gradient of the input and for that of the kernel
# One number of a norm, activation, addition or pool, in multiply-adds: a tile does 64 of those per cycle in half
# precision, or 4 numbers in its vector unit, so 16 per pass; one pass forward, one backward.
ELEMENT_COST = 32


class PartitionError(UserError):
    """A model cannot be cut as asked. The first line says it all; a line with all segments may follow."""

    def __init__(self, message: str, segments: Sequence[str] = ()) -> None:
        super().__init__(message, f"There are: {', '.join(segments)}" if segments else "")


def split(segments: tuple[str, ...], names: Sequence[str], stages: int | None) -> Stages:
    """Stages that begin at the named segments; `stages`: their number, None where any will do.

    A name is the first segment of the *next* stage, in the segment's own spelling or in that of the later vintage
    (`stage3/unit2/relu` = `b3/1/relu`, `stage0` = `b0`), if need be in other capitals. Names out of the model's order
    are refused, not sorted: they are likely slips. Where all stages share an IPU the model's first segment may begin the
    second stage, too: the first one, with no segments, is the input's.
    """
    cuts = [_position(segments, name) for name in names]
    if 0 in cuts and stages is not None:
        given = f"pipeline_splits: '{names[cuts.index(0)]}' is the model's first segment"
        raise PartitionError(f"{given}; a split names the first segment of the next stage", segments)
    for (before, first), (after, second) in pairwise(zip(names, cuts)):
        if second == first:
            raise PartitionError(f"pipeline_splits: '{before}' and '{after}' are the same segment; give it once")
        if second < first:
            given = f"pipeline_splits: '{before}' is given before '{after}' but comes after it in the model"
            raise PartitionError(f"{given}; give the names in the model's order")
    if stages is not None and len(cuts) != stages - 1:
        short = [name for name in segments[1:] if "relu" in name] or segments[1:]  # in residual networks: unit ends
        raise PartitionError(
            f"pipeline_splits has {len(cuts)} name{'' if len(cuts) == 1 else 's'} but shards={stages} needs {stages - 1} "
            f"(shards - 1). Segments you can split at: {', '.join(short)}",
            segments,
        )
    return cut(segments, cuts)


def automatic(
    trace: Trace, parts: int, include: Sequence[str] = (), exclude: Sequence[str] = (), costs: Sequence[float] = (),
) -> Stages:  # fmt: skip
    """Stages of about the same cost, cut only before segments whose name passes the filters. `costs`: of each segment, by
    default its multiply-adds.

    A name passes if it contains any string of `include` (no strings: every name) and none of `exclude`. A string of
    `include` in no name is an error; of `exclude` not: the original's default `0/p` is an edge inside a segment.
    """
    names = trace.segments
    places = [i for i in range(1, len(names)) if _passes(names[i], include, exclude)]
    lost = [text for text in include if not any(text in name for name in names[1:])]
    hint = f"no segment to cut at contains '{lost[0]}'{_did_you_mean(lost[0], names[1:])}" if lost else ""
    if len(places) + 1 < parts:
        fewer = f"leave fewer subgraphs ({len(places) + 1}) than available shards ({parts})"
        raise PartitionError(f"the model and the sharding filters {fewer}{hint and '; ' + hint}", names)
    if lost:
        raise PartitionError(f"sharding_include_filter: {hint}", names)
    costs = costs or segment_costs(trace)
    pieces = [sum(costs[first:last]) for first, last in pairwise((0, *places, len(names)))]
    return cut(names, [places[piece - 1] for piece in balanced(pieces, parts)])


def allowed(stages: Stages, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> bool:
    """Return whether `automatic` may cut there."""
    return all(_passes(stage[0], include, exclude) for stage in stages[1:])


def segment_costs(trace: Trace) -> tuple[int, ...]:
    """Each segment's work on a sample, both ways, in multiply-adds; those of grouped convolutions count like others."""
    costs: Counter[str] = Counter()
    for operation in trace.operations:
        costs[operation.segment] += _cost(operation)
    return tuple(costs[name] for name in trace.segments)


def balanced(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """Return where the second and later parts begin, so that the largest part is as small as can be; no part is empty.

    Among several such cuts the most even is taken (least sum of squares), then the one whose last cut comes first, and so
    on.
    """
    if not 1 <= parts <= len(costs):
        raise PartitionError(f"{len(costs)} segments cannot be cut into {parts} parts; 1 to {len(costs)} are possible")
    sums = (0, *accumulate(costs))
    largest, _ = _cheapest(sums, parts, max, lambda cost: cost)
    return _cheapest(sums, parts, operator.add, lambda cost: cost**2 if cost <= largest else float("inf"))[1]


def _cheapest(
    sums: Sequence[float], parts: int, combine: Callable[[float, float], float], price: Callable[[float], float]
) -> tuple[float, tuple[int, ...]]:
    """The least combined price of all parts, and the cuts; sums[e] - sums[s] is the cost of the members s to e - 1."""
    ends = range(1, len(sums))
    best = [{end: (price(sums[end]), 0) for end in ends}]  # per number of parts: end -> (price, start of the last part)
    for count in range(1, parts):
        best.append({
            end: min((combine(best[-1][start][0], price(sums[end] - sums[start])), start) for start in range(count, end))
            for end in ends[count:]
        })  # fmt: skip
    cuts = [ends[-1]]
    for row in reversed(best[1:]):
        cuts.insert(0, row[cuts[0]][1])
    return best[-1][ends[-1]][0], tuple(cuts[:-1])


def _cost(operation: Operation) -> int:
    if operation.kind in ("conv", "dense"):
        return PASSES * operation.multiply_adds
    return ELEMENT_COST * max(operation.source.elements, operation.result.elements)


def cut(segments: tuple[str, ...], cuts: Sequence[int]) -> Stages:
    """Stages that begin at 0 and at the cuts."""
    return tuple(segments[first:last] for first, last in pairwise((0, *cuts, len(segments))))


def _position(segments: tuple[str, ...], name: str) -> int:
    """The place of the segment that a split names."""
    known = {segment: i for i, segment in enumerate(segments)}
    for i, segment in enumerate(segments):
        unit = re.fullmatch(r"b([0-9]+)/([0-9]+)(/relu)?", segment)
        later = f"stage{unit[1]}/unit{int(unit[2]) + 1}{unit[3] or ''}" if unit else "stage0"
        if unit or segment == "b0":
            known.setdefault(later, i)
    folded = {spelling.casefold(): i for spelling, i in known.items()}
    place = known.get(name, folded.get(name.casefold()))
    if place is None:
        near = _did_you_mean(name, [spelling for spelling, i in known.items() if i > 0])
        raise PartitionError(f"pipeline_splits: no segment '{name}'{near}", segments)
    return place


def _passes(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not include or any(text in name for text in include)) and not any(text in name for text in exclude)


def _did_you_mean(given: str, names: Sequence[str]) -> str:
    """'; did you mean a or b or c?' with the nearest three names, however far."""
    near = nearest(given, names, cutoff=0)
    return f"; did you mean {' or '.join(near)}?" if near else ""
