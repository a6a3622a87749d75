"""Splits by name and by cost: every spelling of every segment, error messages, balance compared with all possible cuts."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import random

import pytest

from cnn_harness.emulator.network.network import Network, Node, Shape
from cnn_harness.emulator.network.recorder import record
from cnn_harness.emulator.plan.partition import ELEMENT_COST, PartitionError, automatic, balanced, segment_costs, split

RN50_UNITS = (3, 4, 6, 3)


@functools.cache
def recorded(name, size, **changes):
    """Return the network of a model for ImageNet."""
    module = importlib.import_module(f"cnn_harness.Models.{name}")
    fields = {field.name for field in dataclasses.fields(module.Options)}
    defaults = {key: value for key, value in module.DEFAULTS["imagenet"].items() if key in fields}
    options = module.Options(**{**defaults, "model_size": size, **changes})
    return record(module.build(options, "imagenet", 1000, False), 224)


RN50, B0 = recorded("resnet", 50).segments, recorded("efficientnet", "B0").segments


def firsts(stages):
    return [stage[0] for stage in stages]


# --- names


@pytest.mark.parametrize("segments", [RN50, B0], ids=["ResNet-50", "EfficientNet-B0"])
def test_every_later_segment_may_start_stage(segments):
    assert len(segments) > 30
    for place, name in enumerate(segments[1:], start=1):
        assert split(segments, [name], 2) == (segments[:place], segments[place:])
    assert split(segments, segments[1:], len(segments)) == tuple((name,) for name in segments)


def test_newer_segment_names_are_accepted():
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
def test_documented_splits_are_accepted(segments, names):
    stages = split(segments, names, 4)
    assert firsts(stages) == [segments[0], *names]
    assert sum(stages, ()) == segments


def test_case_matters_only_between_equal_names():
    assert firsts(split(B0, ["BLOCK2A/se", "Block4A", "top"], 4))[1:] == ["block2a/SE", "block4a", "Top"]
    assert firsts(split(RN50, ["Stage3/Unit2/ReLU", "FC1"], 3))[1:] == ["b3/1/relu", "fc1"]
    alike = ("a", "X", "x", "Y")
    assert split(alike, ["X"], None) == (("a",), ("X", "x", "Y"))
    assert split(alike, ["x"], None) == (("a", "X"), ("x", "Y"))


# --- rejected splits


@pytest.mark.parametrize(
    ("names", "stages", "named"),
    [
        (["b1/0", "b3/9/relu"], 3, ("'b3/9/relu'", "b3/5/relu")),
        (["stage3/unit7/relu"], 2, ("'stage3/unit7/relu'", "stage3/unit6/relu")),
        (["b0", "b2/0"], 3, ("'b0'", "first segment")),
        (["stage0", "b2/0"], 3, ("'stage0'", "first segment")),
        (["b1/1", "b2/0", "stage2/unit1"], 4, ("'b2/0'", "'stage2/unit1'")),
        (["b1/1", "b3/0", "b2/0"], 4, ("'b3/0'", "'b2/0'", "order")),
        (["b1/1", "b2/0"], 4, ("2 names", "--shards 4", "3", "b1/2/relu, b2/0/relu")),
        (["b1/1"], 1, ("1 name", "--shards 1", "0")),
    ],
)
def test_impossible_splits_are_named(names, stages, named):
    with pytest.raises(PartitionError) as caught:
        split(RN50, names, stages)
    first, *more = str(caught.value).splitlines()
    assert all(part in first for part in named) and len(more) <= 1


def test_first_stage_may_be_input_alone():
    assert split(RN50, ["b0", "b2/0"], None)[:2] == ((), RN50[: RN50.index("b2/0")])


# --- balance


def by_trying_all(costs, parts):
    """Return the cuts as defined by `balanced`, from all possible ones."""

    def rank(cuts):
        sizes = [sum(costs[first:last]) for first, last in itertools.pairwise((0, *cuts, len(costs)))]
        return max(sizes), sum(size**2 for size in sizes), cuts[::-1]

    return min(itertools.combinations(range(1, len(costs)), parts - 1), key=rank)


def test_balanced_finds_best_cuts():
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
        ([1, 1, 1], 2, (1,)),  # two equally good: the first cut wins
        ([0, 0, 0, 0], 3, (1, 2)),
        ([1, 1, 1, 1, 9], 3, (2, 4)),  # 9 is the largest in any case; the others are even, not 1 and 3
        ([9, 1, 1, 1, 1], 2, (1,)),
        ([0.5, 0.25, 0.25, 1.0], 2, (3,)),
        ([3, 2, 1], 3, (1, 2)),
    ],
)
def test_balanced_by_hand(costs, parts, cuts):
    assert balanced(costs, parts) == cuts


def tiny(*rows):
    """Return a network of (segment, op, source, shape, kernel size)."""
    nodes = tuple(
        Node(op=op, inputs=(k,), outputs=(k + 1,), segment=segment, scope=segment, source=Shape(*source), shape=Shape(*shape),
             kernel=kernel)
        for k, (segment, op, source, shape, kernel) in enumerate(rows)
    )  # fmt: skip
    segments = tuple(dict.fromkeys(node.segment for node in nodes))
    return Network(segments, nodes, (0,), tuple(range(1, 1 + len(segments))))


def test_costs_by_hand():
    """The convolution has 1600 multiply-adds, the dense layer seven."""
    pixels = 4, 4, 1
    counted = tiny(
        ("a", "conv", pixels, pixels, 10), ("a", "relu", pixels, pixels, 0), ("b", "max_pool", pixels, (2, 2, 1), 0),
        ("c", "dense", (1, 1, 1), (1, 1, 7), 0),
    )  # fmt: skip
    assert segment_costs(counted) == (3 * 1600 + 16 * ELEMENT_COST, 16 * ELEMENT_COST, 21)
    assert segment_costs(tiny(("a", "concat", (1, 1, 1), (3, 3, 1), 0))) == (9 * ELEMENT_COST,)
    assert segment_costs(Network(("a", "empty"), counted.nodes[:1], (0,), (1, 1))) == (4800, 0)


# --- the automatic sharder


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize(("include", "only"), [((), ""), (("",), ""), (("relu",), "relu")])
def test_automatic_cuts_are_allowed_and_best(parts, include, only):
    counted = recorded("resnet", 14)
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


def test_costs_decide_cuts():
    filters = {"a": 5, "b": 1, "c": 1, "d": 2}  # of a pixel with one channel, so that each is one multiply-add
    counted = tiny(*((name, "conv", (1, 1, 1), (1, 1, count), 1) for name, count in filters.items()))
    assert automatic(counted, 2) == (("a",), ("b", "c", "d"))
    assert automatic(counted, 2, exclude=["b"]) == (("a", "b"), ("c", "d"))
    assert automatic(counted, 2, include=["d", "c"], exclude=["c"]) == (("a", "b", "c"), ("d",))


def test_excluded_names_start_no_stage():
    counted = recorded("efficientnet", "B0")
    stages = automatic(counted, 8, exclude=["/", "Top"])
    assert len(stages) == 8 and not any("/" in name or name == "Top" for name in firsts(stages))
    assert automatic(counted, 8, exclude=["0/p"]) == automatic(counted, 8)  # the original's default


@pytest.mark.parametrize(
    ("parts", "filters", "named"),
    [
        (6, {"include": ["relu"]}, ("(5)", "(6)")),
        (2, {"exclude": [""]}, ("(1)", "(2)")),
        (2, {"include": ["b2/0/rleu"]}, ("(1)", "'b2/0/rleu'", "b2/0/relu")),
        (2, {"include": ["relu", "b2/0/rleu"]}, ("--sharding-include-filter", "'b2/0/rleu'", "b2/0/relu")),
    ],
)
def test_filters_with_too_few_candidates_are_named(parts, filters, named):
    with pytest.raises(PartitionError) as caught:
        automatic(recorded("resnet", 14), parts, **filters)
    assert all(part in str(caught.value).splitlines()[0] for part in named)
