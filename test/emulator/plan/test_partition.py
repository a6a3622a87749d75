"""Splits by name and by cost: every spelling of every segment, the texts of errors, balance against all possible cuts."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import random

import pytest

from emulator.plan.partition import ELEMENT_COST, PartitionError, automatic, balanced, segment_costs, split
from emulator.plan.trace import Operation, Shape, Trace, trace

RN50_UNITS = (3, 4, 6, 3)


@functools.cache
def traced(name, size, **changes):
    """A model for ImageNet, counted."""
    module = importlib.import_module(f"Models.{name}")
    fields = {field.name for field in dataclasses.fields(module.Options)}
    defaults = {key: value for key, value in module.DEFAULTS["imagenet"].items() if key in fields}
    options = module.Options(**{**defaults, "model_size": size, **changes})
    return trace(module.build(options, "imagenet", 1000, False), 224)


RN50, B0 = traced("resnet", 50).segments, traced("efficientnet", "B0").segments


def message(*args):
    """The first line and the rest of the refusal of a split."""
    with pytest.raises(PartitionError) as caught:
        split(*args)
    first, _, rest = str(caught.value).partition("\n")
    return first, rest


def firsts(stages):
    return [stage[0] for stage in stages]


# --- names


@pytest.mark.parametrize("segments", [RN50, B0], ids=["ResNet-50", "EfficientNet-B0"])
def test_every_segment_but_the_first_begins_a_stage(segments):
    assert len(segments) > 30
    for place, name in enumerate(segments[1:], start=1):
        assert split(segments, [name], 2) == (segments[:place], segments[place:])
    assert split(segments, segments[1:], len(segments)) == tuple((name,) for name in segments)


def test_the_names_of_the_later_vintage():
    seen = set()
    for stage, units in enumerate(RN50_UNITS, start=1):
        for unit, relu in itertools.product(range(units), ("", "/relu")):
            own, later = f"b{stage}/{unit}{relu}", f"stage{stage}/unit{unit + 1}{relu}"
            assert firsts(split(RN50, [later], 2)) == ["b0", own]
            seen.add(own)
    assert seen == set(RN50) - {"b0", "reduce_mean", "fc1"}
    assert firsts(split(RN50, ["stage3/unit2/relu"], 2))[1] == "b3/1/relu"
    assert firsts(split(RN50, ["stage1/unit3/relu", "b3/1/relu", "stage4/unit1"], 4))[1:] == [
        "b1/2/relu",
        "b3/1/relu",
        "b4/0",
    ]


@pytest.mark.parametrize(
    ("segments", "names"),
    [
        (B0, ["block2b", "block4a", "block6a"]),
        (B0, ["block2a/SE", "block4a", "block5c"]),
        (RN50, ["b1/2/relu", "b2/3/relu", "b3/5/relu"]),
    ],
)
def test_the_splits_of_documented_commands(segments, names):
    stages = split(segments, names, 4)
    assert firsts(stages) == [segments[0], *names]
    assert sum(stages, ()) == segments


def test_capitals_matter_only_where_names_differ_by_nothing_else():
    assert firsts(split(B0, ["BLOCK2A/se", "Block4A", "top"], 4))[1:] == ["block2a/SE", "block4a", "Top"]
    assert firsts(split(RN50, ["Stage3/Unit2/ReLU", "FC1"], 3))[1:] == ["b3/1/relu", "fc1"]
    alike = ("a", "X", "x", "Y")
    assert split(alike, ["X"], None) == (("a",), ("X", "x", "Y"))
    assert split(alike, ["x"], None) == (("a", "X"), ("x", "Y"))


def test_with_no_wanted_number_any_number_of_splits_will_do():
    assert split(RN50, [], None) == (RN50,) == split(RN50, [], 1)
    for count in (1, 2, 9):
        assert len(split(RN50, RN50[1 : 1 + count], None)) == count + 1


# --- refused splits


def test_an_unknown_name():
    first, rest = message(RN50, ["b1/0", "b3/9/relu"], 3)
    assert first == "pipeline_splits: no segment 'b3/9/relu'; did you mean b3/5/relu or b3/4/relu or b3/3/relu?"
    assert rest == f"There are: {', '.join(RN50)}"
    first, _ = message(RN50, ["stage3/unit7/relu"], 2)
    assert first.startswith("pipeline_splits: no segment 'stage3/unit7/relu'; did you mean stage3/unit6/relu or ")
    assert "did you mean block2a/b or " in message(B0, ["block2a/d/b"], 2)[0]
    assert message(B0, ["zzz"], 2)[0].count(" or ") == 2  # three names, however far
    assert "'TOP1'; did you mean Top or " in message(B0, ["TOP1"], 2)[0]
    near = message(B0, ["BLOCK6E"], 2)[0].split("did you mean ")[1]
    assert all(name.startswith("block6") for name in near.rstrip("?").split(" or "))
    assert set(message(("b0", "x", "y"), ["b0/0"], 2)[0].split("did you mean ")[1]) == set("x or y?")  # never the first


def test_squeeze_and_excitation_can_only_begin_a_stage_where_there_is_some():
    without = traced("efficientnet", "B0", se=False).segments
    assert message(without, ["block2a/SE"], 2)[0].startswith(
        "pipeline_splits: no segment 'block2a/SE'; did you mean block2a"
    )


@pytest.mark.parametrize("first_segment", ["b0", "stage0", "B0"])
def test_the_first_segment_leaves_no_first_stage(first_segment):
    first, _ = message(RN50, [first_segment, "b2/0"], 3)
    assert first == (
        f"pipeline_splits: '{first_segment}' is the model's first segment; a split names the first segment of the next stage"
    )
    assert split(RN50, [first_segment, "b2/0"], None)[:2] == ((), RN50[: RN50.index("b2/0")])  # of one IPU: the input's


def test_duplicates_and_the_wrong_order_name_both():
    assert message(RN50, ["b1/1", "b2/0", "stage2/unit1"], 4)[0] == (
        "pipeline_splits: 'b2/0' and 'stage2/unit1' are the same segment; give it once"
    )
    assert message(RN50, ["b1/1", "b3/0", "b2/0"], 4)[0] == (
        "pipeline_splits: 'b3/0' is given before 'b2/0' but comes after it in the model; give the names in the model's order"
    )
    assert "'b2/0' is given before 'b1/1'" in message(RN50, ["b1/1", "b2/0", "b1/1"], 4)[0]


def test_the_wrong_number_lists_where_to_split():
    ends = [f"b{s}/{i}/relu" for s, units in enumerate(RN50_UNITS, start=1) for i in range(units)]
    first, rest = message(RN50, ["b1/1", "b2/0"], 4)
    assert first == (
        "pipeline_splits has 2 names but shards=4 needs 3 (shards - 1). Segments you can split at: " + ", ".join(ends)
    )
    assert rest == f"There are: {', '.join(RN50)}"
    first, _ = message(B0, ["block2a"], 3)
    assert first == (
        "pipeline_splits has 1 name but shards=3 needs 2 (shards - 1). Segments you can split at: " + ", ".join(B0[1:])
    )
    assert message(("a/relu", "b", "c/relu"), [], 2)[0].endswith("Segments you can split at: c/relu")
    assert message(RN50, [], 2)[0].startswith("pipeline_splits has 0 names but shards=2 needs 1 (shards - 1).")
    assert message(RN50, ["b1/1"], 1)[0].startswith("pipeline_splits has 1 name but shards=1 needs 0 (shards - 1).")


# --- balance


def by_trying_all(costs, parts):
    """The cuts as `balanced` states them, from all that there are."""

    def rank(cuts):
        sizes = [sum(costs[first:last]) for first, last in itertools.pairwise((0, *cuts, len(costs)))]
        return max(sizes), sum(size**2 for size in sizes), cuts[::-1]

    return min(itertools.combinations(range(1, len(costs)), parts - 1), key=rank)


def test_balanced_equals_the_best_of_all_cuts():
    source = random.Random(3)
    tried = 0
    for _ in range(60):
        costs = [source.choice((0, 1, 1, 2, 3, source.randrange(100))) for _ in range(source.randrange(1, 10))]
        for parts in range(1, len(costs) + 1):
            assert balanced(costs, parts) == by_trying_all(costs, parts), (costs, parts)
            tried += 1
    assert tried > 200


@pytest.mark.parametrize(
    ("costs", "parts", "cuts"),
    [
        ([5], 1, ()),
        ([1, 1, 1, 1], 2, (2,)),
        ([1, 1, 1], 2, (1,)),  # two equally good: the cut that comes first
        ([0, 0, 0, 0], 3, (1, 2)),
        ([1, 1, 1, 1, 9], 3, (2, 4)),  # 9 is the largest in any case; the others are even, not 1 and 3
        ([9, 1, 1, 1, 1], 2, (1,)),
        ([0.5, 0.25, 0.25, 1.0], 2, (3,)),
        ([3, 2, 1], 3, (1, 2)),
    ],
)
def test_balanced_by_hand(costs, parts, cuts):
    assert balanced(costs, parts) == cuts


@pytest.mark.parametrize(("costs", "parts"), [([], 1), ([1, 2], 3), ([1, 2], 0), ([1, 2], -1)])
def test_balanced_leaves_no_part_empty(costs, parts):
    with pytest.raises(PartitionError, match=f"{len(costs)} segments cannot be cut into {parts} parts"):
        balanced(costs, parts)


def tiny(*rows):
    """A trace of (segment, kind, source side, result side, multiply-adds), one channel."""
    operations = tuple(
        Operation(segment=segment, name=segment, kind=kind, source=Shape(a, a, 1), result=Shape(b, b, 1), multiply_adds=work)
        for segment, kind, a, b, work in rows
    )
    return Trace(tuple(dict.fromkeys(operation.segment for operation in operations)), operations)


def test_costs_by_hand():
    counted = tiny(("a", "conv", 4, 4, 1000), ("a", "relu", 4, 4, 0), ("b", "max_pool", 4, 2, 0), ("c", "dense", 1, 1, 7))
    assert segment_costs(counted) == (3 * 1000 + 16 * ELEMENT_COST, 16 * ELEMENT_COST, 21)
    assert segment_costs(tiny(("a", "concat", 1, 3, 0))) == (9 * ELEMENT_COST,)
    assert segment_costs(Trace(("a", "empty"), counted.operations[:1])) == (3000, 0)


# --- the automatic sharder


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize(("include", "only"), [((), ""), (("",), ""), (("relu",), "relu")])
def test_automatic_cuts_where_it_may_and_best(parts, include, only):
    counted = traced("resnet", 14)
    costs = dict(zip(counted.segments, segment_costs(counted)))

    def largest(stages):
        return max(sum(costs[name] for name in stage) for stage in stages)

    stages = automatic(counted, parts, include)
    assert len(stages) == parts and sum(stages, ()) == counted.segments
    assert all(only in name for name in firsts(stages)[1:])
    places = [name for name in counted.segments[1:] if only in name]
    assert largest(stages) == min(
        largest(split(counted.segments, names, parts)) for names in itertools.combinations(places, parts - 1)
    )


def test_the_costs_are_those_of_the_trace():
    counted = tiny(("a", "conv", 1, 1, 5), ("b", "conv", 1, 1, 1), ("c", "conv", 1, 1, 1), ("d", "conv", 1, 1, 2))
    assert automatic(counted, 2) == (("a",), ("b", "c", "d"))
    assert automatic(counted, 2, exclude=["b"]) == (("a", "b"), ("c", "d"))
    assert automatic(counted, 2, include=["d", "c"], exclude=["c"]) == (("a", "b", "c"), ("d",))


def test_real_models_are_cut_evenly():
    for counted, limit in ((traced("resnet", 50), 1.25), (traced("efficientnet", "B0"), 1.25), (traced("resnet", 152), 1.1)):
        costs = dict(zip(counted.segments, segment_costs(counted)))
        sizes = [sum(costs[name] for name in stage) for stage in automatic(counted, 4)]
        assert max(sizes) < limit * sum(sizes) / 4


def test_excluded_names_begin_no_stage():
    counted = traced("efficientnet", "B0")
    stages = automatic(counted, 8, exclude=["/", "Top"])
    assert len(stages) == 8 and not any("/" in name or name == "Top" for name in firsts(stages))
    assert automatic(counted, 8, exclude=["0/p"]) == automatic(counted, 8)  # the original's default


def refusal(*args, **filters):
    with pytest.raises(PartitionError) as caught:
        automatic(*args, **filters)
    return str(caught.value).splitlines()


def test_too_few_places_to_cut():
    counted = traced("resnet", 14)
    assert len(automatic(counted, 5, include=["relu"])) == 5
    first, rest = refusal(counted, 6, include=["relu"])
    assert first == "the model and the sharding filters leave fewer subgraphs (5) than available shards (6)"
    assert rest.startswith("There are: b0, b1/0, ")
    assert "fewer subgraphs (1) than available shards (2)" in refusal(counted, 2, exclude=[""])[0]
    assert f"fewer subgraphs ({len(RN50)}) than available shards (99)" in refusal(traced("resnet", 50), 99)[0]


def test_a_filter_that_matches_nothing_is_named():
    counted = traced("resnet", 14)
    fewer = "the model and the sharding filters leave fewer subgraphs (1) than available shards (2); "
    lost = "no segment to cut at contains 'b2/0/rleu'; did you mean b2/0/relu or "
    assert refusal(counted, 2, include=["b2/0/rleu"])[0].startswith(fewer + lost)
    assert refusal(counted, 2, include=["relu", "b2/0/rleu"])[0].startswith("sharding_include_filter: " + lost)
