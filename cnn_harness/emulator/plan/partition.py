"""Cut the segments (blocks of layers) of a model into pipeline stages, at given names or by equal cost. Memory is
ignored."""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from cnn_harness.base.errors import UserError
from cnn_harness.base.plugins import nearest
from cnn_harness.emulator.network.network import Network, Node

Stages = tuple[tuple[str, ...], ...]  # the names of the segments in each stage.

PASSES = 3  # each multiply-add is done three times: forward, for the input's gradient, and for the kernel's gradient.
# A norm, activation, addition or pool costs 32 multiply-adds for each element. In half precision, a tile does 64
# multiply-adds or 4 vector operations per cycle. So an element costs 16 multiply-adds forward and 16 backward.
ELEMENT_COST = 32


class PartitionError(UserError):
    """The model cannot be cut into the requested stages. The message may end with a line that lists all segments."""

    def __init__(self, message: str, segments: Sequence[str] = ()) -> None:
        super().__init__(message, f"Available: {', '.join(segments)}" if segments else "")


def split(segments: tuple[str, ...], names: Sequence[str], shards: int | None, stages_per_ipu: int = 1) -> Stages:
    """Return stages that begin at the named segments, `stages_per_ipu` for each shard. None shards allow any number.

    Each name is the first segment of a stage; the first stage needs no name. Names are spelt as in the model, or as in later
    releases of Graphcore's harness (`stage3/unit2/relu` = `b3/1/relu`, `stage0` = `b0`). Case is ignored if no segment
    matches exactly. Names out of the model's order are rejected, because they are probably mistakes. If all stages share an
    IPU, the second stage may begin at the model's first segment. The first stage is then empty and only reads the input.
    """
    cuts = [_position(segments, name) for name in names]
    if 0 in cuts and shards is not None:
        given = f"--pipeline-splits: '{names[cuts.index(0)]}' is the model's first segment"
        raise PartitionError(f"{given}; give the first segment of the next stage", segments)
    for (before, first), (after, second) in pairwise(zip(names, cuts)):
        if second == first:
            raise PartitionError(f"--pipeline-splits: '{before}' and '{after}' are the same segment; give one of them")
        if second < first:
            given = f"--pipeline-splits: '{before}' is given before '{after}' but comes after it in the model"
            raise PartitionError(f"{given}; give the names in the model's order")
    if shards is not None and len(cuts) != shards * stages_per_ipu - 1:
        short = [name for name in segments[1:] if "relu" in name] or segments[1:]  # residual units end with a ReLU.
        several = f"with {stages_per_ipu} stages on each IPU " if stages_per_ipu > 1 else ""
        raise PartitionError(
            f"--pipeline-splits has {len(cuts)} name{'' if len(cuts) == 1 else 's'}, but --shards {shards} "
            f"{several}needs {shards * stages_per_ipu - 1}. Give auto or segments such as {', '.join(short)}",
            segments,
        )
    return cut(segments, cuts)


def automatic(
    network: Network, parts: int, include: Sequence[str] = (), exclude: Sequence[str] = (), costs: Sequence[float] = (),
) -> Stages:  # fmt: skip
    """Return stages of about equal cost. Only segments whose names pass the filters can begin a stage. `costs` has the cost
    of each segment; the default is its multiply-adds.

    A name passes if it contains a string of `include` (or `include` is empty) and no string of `exclude`. A string of
    `include` that no name contains is an error. For `exclude` it is allowed, because the original's default `0/p` is inside
    a segment.
    """
    names = network.segments
    places = [i for i in range(1, len(names)) if _passes(names[i], include, exclude)]
    lost = [text for text in include if not any(text in name for name in names[1:])]
    hint = f"no segment to cut at contains '{lost[0]}'{_did_you_mean(lost[0], names[1:])}" if lost else ""
    if len(places) + 1 < parts:
        fewer = f"leave fewer subgraphs ({len(places) + 1}) than available shards ({parts})"
        raise PartitionError(f"the model and the sharding filters {fewer}{hint and '; ' + hint}", names)
    if lost:
        raise PartitionError(f"--sharding-include-filter: {hint}", names)
    costs = costs or segment_costs(network)
    pieces = [sum(costs[first:last]) for first, last in pairwise((0, *places, len(names)))]
    return cut(names, [places[piece - 1] for piece in balanced(pieces, parts)])


def allowed(stages: Stages, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> bool:
    """Return whether the filters of `automatic` allow these stages."""
    return all(_passes(stage[0], include, exclude) for stage in stages[1:])


def segment_costs(network: Network) -> tuple[int, ...]:
    """Return the cost of each segment for one sample, forward and backward, in multiply-adds."""
    costs: Counter[str] = Counter()
    for operation in network.operations:
        costs[operation.segment] += _cost(operation)
    return tuple(costs[name] for name in network.segments)


def balanced(costs: Sequence[float], parts: int) -> tuple[int, ...]:
    """Return the indices at which to cut a sequence of costs, so that the most expensive part is as cheap as possible. No
    part is empty.

    If several cuts are equally good, return the cut with the least sum of squares, then the cut whose last index is
    smallest.
    """
    if not 1 <= parts <= len(costs):
        raise PartitionError(f"{len(costs)} segments cannot be cut into {parts} parts; 1 to {len(costs)} are possible")
    sums = (0, *accumulate(costs))
    largest, _ = _cheapest(sums, parts, max, lambda cost: cost)
    return _cheapest(sums, parts, operator.add, lambda cost: cost**2 if cost <= largest else float("inf"))[1]


def _cheapest(
    sums: Sequence[float], parts: int, combine: Callable[[float, float], float], price: Callable[[float], float]
) -> tuple[float, tuple[int, ...]]:
    """Return the least combined price of `parts` parts, and their cuts. A part from s to e - 1 costs sums[e] - sums[s]."""
    ends = range(1, len(sums))
    # best[n - 1] maps `end` to the least price of n parts before `end`, and to the start of the last part.
    best = [{end: (price(sums[end]), 0) for end in ends}]
    for count in range(1, parts):
        best.append({
            end: min((combine(best[-1][start][0], price(sums[end] - sums[start])), start) for start in range(count, end))
            for end in ends[count:]
        })  # fmt: skip
    cuts = [ends[-1]]
    for row in reversed(best[1:]):
        cuts.insert(0, row[cuts[0]][1])
    return best[-1][ends[-1]][0], tuple(cuts[:-1])


def _cost(operation: Node) -> int:
    if operation.op in ("conv", "dense"):
        return PASSES * operation.multiply_adds
    return ELEMENT_COST * max(operation.source.elements, operation.shape.elements)


def cut(segments: tuple[str, ...], cuts: Sequence[int]) -> Stages:
    """Return the stages that begin at index 0 and at the indices `cuts`."""
    return tuple(segments[first:last] for first, last in pairwise((0, *cuts, len(segments))))


def _position(segments: tuple[str, ...], name: str) -> int:
    """Return the index of the segment with a name in either spelling."""
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
        raise PartitionError(f"--pipeline-splits: no segment '{name}'{near}", segments)
    return place


def _passes(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    return (not include or any(text in name for text in include)) and not any(text in name for text in exclude)


def _did_you_mean(given: str, names: Sequence[str]) -> str:
    """Return '; did you mean a or b or c?' with the three most similar names."""
    near = nearest(given, names, cutoff=0)
    return f"; did you mean {' or '.join(near)}?" if near else ""
