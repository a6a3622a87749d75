"""Splits by name and by cost: every spelling of every segment, error messages, balance compared with all possible cuts."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import random

import pytest

from cnn_harness.emulator.network.recorder import record
from cnn_harness.emulator.plan.partition import PartitionError, automatic, balanced, segment_costs, split

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
