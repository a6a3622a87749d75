"""The models: published sizes and counts, names, agreement of record and graph, and the layers in float64 NumPy."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from networks import CLASSES, built, network, options_of, recorded

from base.gradient_rules import gradients
from emulator.layers.initial_values import initial_value
from emulator.lowering import policy as policies
from emulator.lowering import portable
from emulator.lowering.lists import prepared
from emulator.lowering.policy import PrecisionPolicy
from emulator.lowering.tensorflow import NORMS
from emulator.network.network import Network, Shape
from emulator.network.recorder import NetworkError, Recorder, record_layers
from emulator.plan.precision import OFF, SINGLE, by_name
from emulator.program.runtime import new_graph, session_config
from Models import _norms
from Models._layers import GLOROT, Initial, Variable
from Models._norms import BatchNorm, GroupNorm, NoNorm

GN, BN = {"group_norm": True, "batch_norm": False}, {"group_norm": False, "batch_norm": True}
G16 = {"group_dim": 16, "expand_ratio": 4}
SIZES = {
    ("resnet", "imagenet"): (10, 14, 18, 26, 34, 50, 101, 152),
    ("resnet", "cifar"): (8, 11, 14, 20, 29, 32, 38, 44, 47, 56, 65, 110),
    ("resnext", "imagenet"): (14, 26, 50, 101, 152),
    ("resnext", "cifar"): (11, 29, 38, 47, 56, 65),
    ("efficientnet", "imagenet"): ("CIFAR", *(f"B{i}" for i in range(8))),
    ("efficientnet", "cifar"): ("CIFAR", *(f"B{i}" for i in range(8))),
}
EVERY_MODEL = [(*key, size) for key, sizes in SIZES.items() for size in sizes if key != ("efficientnet", "cifar")]


def evaluated(make, feeds=None):
    """Return the values that `make` builds in a new graph, with placeholders for the arrays in `feeds`."""
    feeds = feeds or {}
    with new_graph().as_default(), tf.Session(config=session_config()) as session:
        held = {key: tf.placeholder(value.dtype, value.shape) for key, value in feeds.items()}
        return session.run(make(**held), {held[key]: value for key, value in feeds.items()})


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# --- sizes ---


def test_sizes_match_tables():
    for (name, family), sizes in SIZES.items():
        assert set(importlib.import_module(f"Models.{name}").sizes(family)) == set(sizes)


def rows(name, family, changes, counts, **more):
    return [(name, family, size, {**changes, **more}, count) for size, count in counts.items()]


def bs(*counts):
    return {f"B{i}": count for i, count in enumerate(counts)}


PARAMETERS = [
    *rows("resnet", "imagenet", GN, {10: 5_423_016, 18: 11_693_736, 34: 21_801_896}),
    *rows("resnet", "imagenet", GN, {14: 10_064_936, 26: 15_995_176, 50: 25_557_032, 101: 44_549_160, 152: 60_192_808}),
    *rows("resnet", "imagenet", BN, {50: 25_610_152}),
    *rows("resnet", "imagenet", BN, {50: 25_610_152 + 3136}, channels=4),
    *rows("resnext", "imagenet", GN, {14: 9_411_880, 26: 15_389_480, 50: 25_028_904, 101: 44_177_704, 152: 59_951_400}),
    *rows("resnext", "imagenet", GN, {14: 9_415_016}, channels=4),
    *rows("resnet", "cifar", GN, {8: 75_290, 14: 172_506, 20: 269_722, 32: 464_154, 44: 658_586, 110: 1_727_962}),
    *rows("resnet", "cifar", BN, {8: 75_770, 14: 173_434, 20: 271_098, 32: 466_426, 44: 661_754, 110: 1_736_058}),
    *rows("resnet", "cifar", GN, {11: 127_642, 29: 313_114, 56: 591_322}),
    *rows("resnext", "cifar", GN, {11: 403_162, 29: 1_293_786}),
    *rows("resnext", "cifar", BN, {29: 1_308_154}),
    *rows("resnext", "cifar", GN, {29: 4_775_754}, widenet=True),
    *rows(
        "efficientnet",
        "imagenet",
        GN,
        bs(5_288_548, 7_794_184, 9_109_994, 12_233_232, 19_341_616, 30_389_784, 43_040_704, 66_347_960),
    ),
    *rows("efficientnet", "imagenet", GN, bs(5_288_836, 7_794_472), channels=4),
    *rows("efficientnet", "imagenet", BN, {"B0": 5_330_564, "B4": 19_466_816}),
    # B6's first block has 56 channels, and 56 // 16 = 3 groups do not divide it: two groups are used. A count with
    # kernels of 56 // 3 = 18 inputs, which no convolution can have, gives 39,825,464
    *rows(
        "efficientnet",
        "imagenet",
        G16,
        bs(5_913_796, 8_332_120, 9_504_122, 12_590_896, 19_328_168, 28_715_320, 39_830_504, 59_210_264),
    ),
    *rows(
        "efficientnet",
        "imagenet",
        {**G16, "groups": 1, "proxy_norm": True},
        {"B0": 5_964_980, "B1": 8_407_160, "B4": 19_478_936, "B5": 28_922_920},
    ),
    *rows("efficientnet", "cifar", GN, {"CIFAR": 1_077_932}),
    *rows("efficientnet", "cifar", G16, {"CIFAR": 1_683_420}),
]


@pytest.mark.parametrize(
    ("size", "dim", "notes"),
    [("B6", 16, ["block1a/b"]), ("B0", 32, ["block3b/b, block4a/b"]), ("B0", 16, []), ("B7", 1, [])],
)
def test_indivisible_groups_are_noted(size, dim, notes):
    module, options = options_of("efficientnet", "imagenet", model_size=size, group_dim=dim)
    assert [note.partition(":")[0] for note in module.notes(options)] == notes


@pytest.mark.parametrize("name, family, size, changes, count", PARAMETERS)
def test_parameter_counts_match_publications(name, family, size, changes, count):
    assert recorded(name, family, size, **changes).parameters == count


def test_moving_statistics_count_but_stay_untrained():
    grouped, batch = recorded("resnet", "imagenet", 50, **GN), recorded("resnet", "imagenet", 50, **BN)
    assert batch.trainable_parameters == grouped.trainable_parameters == grouped.parameters
    moving = [variable for variable in batch.variables if "/moving_" in variable.name]
    assert sum(variable.elements for variable in moving) == batch.parameters - batch.trainable_parameters == 53_120
    assert {(variable.decay, variable.trainable) for variable in moving} == {(0.97, False)}
    assert {variable.initial for variable in moving} == {0.0, 1.0}


# size: side, 10^9 multiply-adds, 10^6 output elements of convolutions; native and half resolution
EFFICIENTNETS = {
    "B0": [(224, 0.386, 6.74), (160, 0.198, 3.44)],
    "B1": [(240, 0.687, 10.87), (176, 0.377, 5.88)],
    "B2": [(260, 0.994, 13.82), (196, 0.587, 7.97)],
    "B3": [(300, 1.827, 23.81), (204, 0.870, 11.13)],
    "B4": [(380, 4.394, 49.46), (252, 1.952, 21.86)],
    "B5": [(456, 10.266, 98.82), (328, 5.424, 51.53)],
    "B6": [(528, 19.068, 167.34)],
    "B7": [(600, 37.746, 289.87)],
}
EFFICIENTNETS_G16 = {
    "B0": [(224, 0.635, 4.97), (160, 0.325, 2.54)],
    "B1": [(240, 1.112, 8.03), (176, 0.606, 4.34)],
    "B2": [(260, 1.522, 10.16), (196, 0.891, 5.86)],
    "B3": [(300, 2.731, 17.53), (204, 1.291, 8.19)],
    "B4": [(380, 6.183, 36.10), (252, 2.743, 15.95)],
    "B5": [(456, 13.501, 71.90), (328, 7.097, 37.48)],
    "B6": [(528, 24.305, 121.65)],  # two groups in the first block, as above; three would give 23.954
    "B7": [(600, 44.862, 210.44)],
}


def product_elements(found: Network) -> int:
    """Return the number of values in the results of convolutions and dense layers."""
    return sum(each.shape.elements for each in found.operations if each.op in ("conv", "dense"))


@pytest.mark.parametrize("changes, table", [({}, EFFICIENTNETS), (G16, EFFICIENTNETS_G16)], ids=["G1", "G16"])
def test_efficientnet_work_matches_table(changes, table):
    for size, entries in table.items():
        for side, giga, mega in entries:
            found = recorded("efficientnet", "imagenet", size, side=side, **changes)
            assert found.multiply_adds / 1e9 == pytest.approx(giga, abs=0.000501), (size, side)
            # the table omits squeeze and excitation and the classifier
            outside = [x for x in found.operations if x.op == "conv" and "/SE/" not in x.scope]
            assert sum(x.shape.elements for x in outside) / 1e6 == pytest.approx(mega, abs=0.00501), (size, side)
            assert mega < product_elements(found) / 1e6 < 1.004 * mega


@pytest.mark.parametrize(
    "name, size, changes, giga, mega",
    [
        ("resnet", 18, {}, 1.82, 2.48),
        ("resnet", 34, {}, 3.67, 3.74),
        ("resnet", 50, {}, 4.11, 11.11),
        ("resnet", 101, {}, 7.83, 16.23),
        ("resnet", 152, {}, 11.56, 22.56),
        ("resnext", 50, {}, 4.26, 14.40),
        ("resnext", 101, {}, 8.01, 21.23),
        ("resnext", 101, {"convolution_groups": 64}, 15.52, 31.21),
        ("resnext", 101, {"group_dim": 8}, 16.48, 31.21),
    ],
)
def test_residual_work_matches_publications(name, size, changes, giga, mega):
    """The tolerance is one percent for multiply-adds, in which other small layers are counted."""
    found = recorded(name, "imagenet", size, **changes)
    # basic networks: only this project has a projection in the first unit of the first stage
    extra = [x for x in found.operations if x.op == "conv" and x.scope == "all/b1/0/p" and size in (18, 34)]
    multiply_adds = found.multiply_adds - sum(x.multiply_adds for x in extra)
    elements = product_elements(found) - sum(x.shape.elements for x in extra)
    assert multiply_adds / 1e9 == pytest.approx(giga, rel=0.01)
    assert elements / 1e6 == pytest.approx(mega, abs=0.00501)


# --- names ---


def test_resnet50_segments_have_their_names():
    units = [f"b{stage}/{unit}" for stage, count in ((1, 3), (2, 4), (3, 6), (4, 3)) for unit in range(count)]
    expected = ["b0", *(name for unit in units for name in (unit, f"{unit}/relu")), "reduce_mean", "fc1"]
    assert list(recorded("resnet", "imagenet", 50).segments) == expected


def test_efficientnet_b0_segments_have_their_names():
    text = """block0 block1a/b block1a/c block2a block2a/b block2a/c block2b block3a block3a/b block3a/c block3b
        block4a block4a/b block4a/c block4b block4c block5a block5a/b block5a/c block5b block5c block6a block6a/b
        block6a/c block6b block6c block6d block7a block7a/b block7a/c Top"""
    listed = text.split()
    found = list(recorded("efficientnet", "imagenet", "B0").segments)
    assert [name for name in found if not name.endswith("/SE")] == listed
    gates = [name for name in found if name.endswith("/SE")]
    assert gates == [f"block{stage}a/SE" for stage in range(1, 8)]  # the older split name, between /b and /c
    assert all(found[found.index(name) - 1] == name[:-2] + "b" for name in gates)
    assert list(recorded("efficientnet", "imagenet", "B0", se=False).segments) == listed


@pytest.mark.parametrize("name, family, size", EVERY_MODEL)
def test_names_are_unique_and_segments_count(name, family, size):
    found = recorded(name, family, size)
    assert len(set(found.segments)) == len(found.segments)
    variables = [variable.name for variable in found.variables]
    assert len(set(variables)) == len(variables)
    assert all(variable.startswith("all/") for variable in variables)
    assert {operation.segment for operation in found.operations} == set(found.segments)


def named(found, prefix):
    return {
        variable.name.removeprefix(prefix): variable.shape
        for variable in found.variables
        if variable.name.startswith(prefix)
    }


def test_resnet_variables_have_their_names():
    found = recorded("resnet", "imagenet", 50, **GN)
    norms = {
        f"{scope}/GroupNorm/{kind}": (n,)
        for scope, n in (("p", 256), ("1", 64), ("2", 64), ("3", 256))
        for kind in ("beta", "gamma")
    }
    assert named(found, "all/b1/0/") == {
        "p/conv/conv2d/kernel": (1, 1, 64, 256),
        "1/conv/conv2d/kernel": (1, 1, 64, 64),
        "2/conv/conv2d/kernel": (3, 3, 64, 64),
        "3/conv/conv2d/kernel": (1, 1, 64, 256),
        **norms,
    }
    assert named(found, "all/b0/") == {
        "conv/conv2d/kernel": (7, 7, 3, 64),
        "GroupNorm/beta": (64,),
        "GroupNorm/gamma": (64,),
    }
    assert named(found, "all/fc1/") == {"dense/kernel": (2048, 1000), "dense/bias": (1000,)}
    small = named(recorded("resnet", "cifar", 8), "all/b2/0/")
    kinds = ("beta", "gamma", "moving_mean", "moving_variance")
    assert small == {
        "1/conv/conv2d/kernel": (3, 3, 16, 32),
        "2/conv/conv2d/kernel": (3, 3, 32, 32),
        **{f"{conv}/batch_norm/{kind}": (32,) for conv in "12" for kind in kinds},
    }
    grouped = named(recorded("resnext", "imagenet", 50), "all/b2/0/")
    assert grouped["2/conv/conv2d/kernel"] == (3, 3, 8, 256)


def test_efficientnet_variables_have_their_names():
    found = recorded("efficientnet", "imagenet", "B0")
    norms = {
        f"{scope}/GroupNorm/{kind}": (n,) for scope, n in (("a", 96), ("b", 96), ("c", 24)) for kind in ("beta", "gamma")
    }
    assert named(found, "all/block2a/") == {
        "a/conv/conv2d/kernel": (1, 1, 16, 96),
        "b/conv/conv2d/kernel": (3, 3, 1, 96),
        "SE/1/conv/conv2d/kernel": (1, 1, 96, 4),
        "SE/1/conv/conv2d/bias": (4,),
        "SE/2/conv/conv2d/kernel": (1, 1, 4, 96),
        "SE/2/conv/conv2d/bias": (96,),
        "c/conv/conv2d/kernel": (1, 1, 96, 24),
        **norms,
    }
    assert named(found, "all/Top/") == {
        "conv/conv2d/kernel": (1, 1, 320, 1280),
        "GroupNorm/beta": (1280,),
        "GroupNorm/gamma": (1280,),
        "logits/dense/kernel": (1280, 1000),
        "logits/dense/bias": (1000,),
    }
    assert not any(name.startswith("a/") for name in named(found, "all/block1a/"))  # nothing to expand
    assert named(recorded("efficientnet", "imagenet", "B0", **G16), "all/block2a/")["b/conv/conv2d/kernel"] == (3, 3, 16, 64)


# --- the graph ---


class Asked(dict):
    """Weights that record the requested names."""

    def __init__(self, *args):
        super().__init__(*args)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("name, family, size", EVERY_MODEL)
def test_graph_matches_recorded_network(name, family, size):
    """Segment by segment, the graph has the recorded shapes and uses the recorded variables."""
    changes = {"batch_norm": True} if size in ("B1", 14, 50) else {}
    found = recorded(name, family, size, **changes)
    side, shapes = found.nodes[0].source.height, {node.outputs[0]: node.shape for node in found.nodes}
    with new_graph().as_default():
        weights = Asked({variable.name: tf.placeholder(tf.float32, variable.shape) for variable in found.variables})
        policy = PrecisionPolicy(SINGLE)
        target = policy.target("/cpu:0")
        lowering = policy.lowering(weights, target, positions=tf.placeholder(tf.int64, [None]))
        x = tf.placeholder(tf.float32, [None, side, side, 3])
        for segment, end in zip(found.segments, found.ends):
            x = lowering.run(prepared(found.block((segment,)), SINGLE, target), x)
            expected = list(shapes[end]) if len(x.shape) == 4 else [shapes[end].channels]
            assert x.shape.as_list() == [None, *expected], segment
    moving = {variable.name for variable in found.variables if not variable.trainable}
    assert weights.names | moving == {variable.name for variable in found.variables}
    assert set(lowering.statistics) == moving
    assert shapes[found.output] == Shape(1, 1, CLASSES[family])


# --- strides and shortcuts ---


def test_zero_gamma_with_identity_shortcuts():
    for name, changes in (("resnet", GN), ("resnet", BN), ("resnext", GN)):
        zero = {v.name.split("/GroupNorm")[0].split("/batch_norm")[0]
                for v in recorded(name, "imagenet", 50, **changes).variables
                if v.name.endswith("gamma") and v.initial == 0}  # fmt: skip
        assert zero == {f"all/b{stage}/{unit}/3" for stage, n in ((1, 3), (2, 4), (3, 6), (4, 3)) for unit in range(1, n)}
    for name, family, size in (("resnet", "imagenet", 18), ("resnet", "cifar", 20), ("efficientnet", "imagenet", "B0")):
        gammas = [v.initial for v in recorded(name, family, size).variables if v.name.endswith("gamma")]
        assert set(gammas) == {1.0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("side", "stride"), [(6, 2), (5, 2), (9, 3), (4, 1)])
def test_subsample_has_right_values_and_gradients(dtype, side, stride):
    x, kept = random(2, 2, side, side, 3).astype(dtype), -(-side // stride)
    beyond = np.finfo(dtype).max if dtype == np.float16 else np.inf  # in FP16, an overflow is NaN
    x[0, 0, 0], x[1, stride % side, 0, 0] = (beyond, np.finfo(dtype).smallest_subnormal, -1), np.nan
    dy = random(3, 2, kept, kept, 8).astype(dtype)

    def both_ways(x, dy):
        precision = by_name("16.16", stochastic=OFF) if dtype == np.float16 else SINGLE
        y, _ = built(lambda layers, x: layers.subsample(x, stride, 8), {}, x, precision=precision)
        return y, gradients(y, [x], dy)[0]

    y, dx = evaluated(both_ways, {"x": x, "dy": dy})
    expected, expected_dx = np.zeros((2, kept, kept, 8), dtype), np.zeros_like(x)
    expected[..., 2:5] = x[:, ::stride, ::stride]
    expected_dx[:, ::stride, ::stride] = dy[..., 2:5]
    assert np.array_equal(y, expected, equal_nan=True) and np.array_equal(dx, expected_dx)


# --- norms of the models ---


class Noted(Recorder):
    """Also record the norms and survival probabilities."""

    def __init__(self):
        super().__init__()
        self.policies, self.survivals, self.rates = {}, {}, {}

    def norm(self, x, policy, **more):
        self.policies[self.path()] = policy
        return super().norm(x, policy, **more)

    def drop_path(self, x, survival):
        self.survivals[self.path()] = survival
        return super().drop_path(x, survival)

    def dropout(self, x, rate):
        self.rates[self.path()] = rate
        return super().dropout(x, rate)


def noted(name, family, size, **changes):
    layers = Noted()
    segments, side = network(name, family, size, **changes)
    x = layers.value(Shape(side, side, 3))
    with layers.scope("all"):
        for segment in segments:
            x = segment.apply(layers, x)
    return layers


@pytest.mark.parametrize(
    "name, family, size, changes, expected",
    [
        ("resnet", "imagenet", 50, {}, GroupNorm(epsilon=1.53e-5, groups=32)),
        ("resnext", "imagenet", 50, {}, GroupNorm(epsilon=1.53e-5, groups=32)),
        ("resnet", "imagenet", 50, BN, BatchNorm(epsilon=1e-5)),
        ("resnet", "cifar", 20, {}, BatchNorm(epsilon=1e-5)),
        ("resnet", "cifar", 20, {**BN, "batch_norm": False}, NoNorm(epsilon=1e-5)),
        ("efficientnet", "imagenet", "B0", {}, GroupNorm(epsilon=1e-3, groups=4)),
        ("efficientnet", "imagenet", "B0", BN, BatchNorm(epsilon=1e-3)),
    ],
)
def test_models_choose_their_norms(name, family, size, changes, expected):
    for two_pass in (False, True):
        found = noted(name, family, size, two_pass=two_pass, **changes)
        assert set(found.policies.values()) == {replace(expected, two_pass=two_pass) if expected.fused else expected}


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (
            lambda layers: layers.conv(layers.value(Shape(4, 4, 6)), 8, 3, GLOROT, groups=4),
            "all/b1: 6 .* 4 convolution groups",
        ),
        (
            lambda layers: layers.conv(layers.value(Shape(4, 4, 8)), 6, 3, GLOROT, groups=4),
            "all/b1: .* 6 .* 4 convolution groups",
        ),
        (
            lambda layers: layers.norm(layers.value(Shape(4, 4, 6)), GroupNorm(groups=4)),
            "all/b1: 6 channels .* 4 norm groups",
        ),
        (lambda layers: recorded("resnet", "imagenet", 50, groups=48), "64 channels .* 48 norm groups"),
    ],
)
def test_indivisible_numbers_are_rejected_by_name(what, named):
    layers = Recorder()
    with layers.scope("all"), layers.scope("b1"), pytest.raises(NetworkError, match=named):
        what(layers)


# --- dropout and drop-path ---


def kept(method, positions, amount, *, seed=5, scope="all", training=True, shape=(3, 3, 40)):
    """Return ones after a dropping method."""

    def dropped(layers, x):
        with layers.scope(scope):
            return getattr(layers, method)(x, amount)

    def make():
        counted = tf.constant([*positions], tf.int64)
        return built(dropped, {}, tf.ones([len(positions), *shape]), training=training, seed=seed, positions=counted)[0]

    return evaluated(make)


METHODS = [("dropout", 0.3, 0.7), ("drop_path", 0.7, 0.7)]


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_masks_belong_to_sample_position(method, amount, survival):
    positions = [7, 8, 9, 1 << 33, 0, 3]
    whole = kept(method, positions, amount)
    parts = [kept(method, positions[a:b], amount) for a, b in ((0, 1), (1, 4), (4, 6))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(kept(method, positions[::-1], amount), whole[::-1])


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_masks_have_right_rate_and_scale(method, amount, survival):
    n = 4000
    shape = (1, 1, 40) if method == "dropout" else (2, 2, 3)
    mask = kept(method, range(n), amount, shape=shape)
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1) / np.float32(survival)}
    draws = (mask.reshape(n, -1) > 0).astype(np.float64)
    if method == "drop_path":
        assert (draws == draws[:, :1]).all()  # whole samples
        draws = draws[:, :1]
    assert abs(draws.mean() - survival) < 4.5 * math.sqrt(survival * (1 - survival) / draws.size)
    for axis in range(draws.ndim):  # no element and no sample is favoured
        means = draws.mean(axis=axis)
        assert np.abs(means - survival).max() < 6 * math.sqrt(survival * (1 - survival) / draws.shape[axis]) + 1e-9


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_masks_differ_by_layer_and_seed(method, amount, survival):
    masks = [kept(method, range(200), amount, **change) for change in ({}, {"seed": 6}, {"scope": "other"})]
    agreement = survival**2 + (1 - survival) ** 2  # of independent masks
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs((masks[i] == masks[j]).mean() - agreement) < 0.18
    assert np.array_equal(masks[0], kept(method, range(200), amount))


@pytest.mark.parametrize("method, amount, survival", METHODS)
def test_nothing_drops_in_evaluation_or_at_zero(method, amount, survival):
    assert (kept(method, range(50), amount, training=False) == 1).all()
    assert (kept(method, range(50), 0.0 if method == "dropout" else 1.0) == 1).all()


def test_efficientnet_drops_as_published():
    found = noted("efficientnet", "imagenet", "B0")
    blocks, skips = "1a 2a 2b 3a 3b 4a 4b 4c 5a 5b 5c 6a 6b 6c 6d 7a", "2b 3b 4b 4c 5b 5c 6b 6c 6d"
    survivals = {name: 1 - 0.2 * i / 16 for i, name in enumerate(blocks.split())}
    assert found.survivals == pytest.approx({f"all/block{name}": survivals[name] for name in skips.split()})
    assert found.rates == {"all/Top": 0.2}
    tables = {"B1": 0.2, "B2": 0.3, "B3": 0.3, "B4": 0.4, "B5": 0.4, "B6": 0.5, "B7": 0.5, "CIFAR": 0.0}
    for size, rate in tables.items():
        assert noted("efficientnet", "imagenet", size).rates == {"all/Top": rate}
    assert noted("efficientnet", "imagenet", "B0", dropout_rate=0.0).rates == {"all/Top": 0.0}
    assert set(noted("efficientnet", "imagenet", "B0", block_survival_prob=1.0).survivals.values()) == {1.0}


# --- initial values ---


def initial(variables, seed):
    return dict(evaluated(lambda: {variable.name: initial_value(variable, seed) for variable in variables}))


def variance_expected(name, model, shape):
    """Return (variance, whether uniform) by the rule in the papers' code."""
    if name.endswith("dense/kernel"):
        return 2 / sum(shape), True
    height, width, fan_in, fan_out = shape
    if model != "efficientnet":
        return 1 / (height * width * fan_in), False
    return 2 / (height * width * (fan_in if "/b/" in name else fan_out)), False


@pytest.mark.parametrize(
    "model, family, size, changes",
    [
        ("resnet", "cifar", 20, {}),
        ("resnext", "cifar", 11, {}),
        ("efficientnet", "imagenet", "B0", {}),
        ("efficientnet", "cifar", "CIFAR", G16),
    ],
)
def test_initial_values_follow_published_rule(model, family, size, changes):
    variables = recorded(model, family, size, **changes).variables
    for name, value in initial(variables, 11).items():
        if not name.endswith("kernel"):
            constant = 1.0 if name.endswith(("gamma", "moving_variance")) else 0.0
            assert (value == constant).all()
            continue
        variance, uniform = variance_expected(name, model, value.shape)
        deviation, n = math.sqrt(variance), value.size
        # fourth moments: 1.8 for the uniform, below 2.4 for the truncated normal
        assert abs(value.astype(np.float64).var() / variance - 1) < 5 * math.sqrt(1.4 / n) + 2 / n, name
        assert abs(value.astype(np.float64).mean()) < 5 * deviation / math.sqrt(n), name
        bound = math.sqrt(3) if uniform else 2 / 0.87962566
        assert np.abs(value).max() <= bound * deviation * (1 + 1e-6), name
        if n > 2000:
            assert np.abs(value).max() > 0.97 * bound * deviation, name  # close to the bound


def test_initial_values_depend_on_seed_and_name():
    variables = recorded("resnet", "cifar", 8).variables
    first, backwards = initial(variables, 4), initial(variables[::-1][3:], 4)
    assert all(np.array_equal(value, first[name]) for name, value in backwards.items())
    kernels = [name for name in first if name.endswith("kernel")]
    other = initial(variables, 5)
    assert not any(np.array_equal(first[name], other[name]) for name in kernels)
    rule = Initial(1.0, "fan_in")
    same_shape = initial([Variable(name, (3, 3, 8, 8), rule) for name in ("all/x/kernel", "all/y/kernel")], 4)
    assert not np.array_equal(*same_shape.values())


# --- convolutions ---


def padded(x, kernel, stride, value=0.0):
    """Pad as in SAME: the odd row and column go to the bottom and the right."""
    amounts = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in x.shape[1:3]]
    return np.pad(x, [(0, 0), *((a // 2, a - a // 2) for a in amounts), (0, 0)], constant_values=value)


def windows(x, kernel, stride, value=0.0):
    """Return [batch, rows, columns, channels, kernel, kernel] of the padded x."""
    every = np.lib.stride_tricks.sliding_window_view(padded(x, kernel, stride, value), (kernel, kernel), (1, 2))
    return every[:, ::stride, ::stride]


def numpy_conv(x, weights, stride=1, groups=1):
    """Return a SAME convolution in float64; output channels of one group are adjacent."""
    x, weights = x.astype(np.float64), weights.astype(np.float64)
    parts = zip(np.split(x, groups, -1), np.split(weights, groups, -1))
    return np.concatenate(
        [np.einsum("nxycij,ijco->nxyo", windows(part, len(w), stride), w, optimize=True) for part, w in parts], -1
    )


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    "side, kernel, stride, channels, filters, groups",
    [
        (8, 3, 1, 4, 6, 1),
        (8, 3, 2, 4, 6, 1),
        (9, 3, 2, 4, 6, 1),
        (8, 1, 2, 4, 6, 1),
        (14, 7, 2, 3, 8, 1),
        (8, 5, 2, 12, 12, 12),  # depthwise
        (8, 3, 1, 12, 12, 3),
        (8, 3, 2, 8, 16, 4),
        (7, 5, 1, 8, 4, 2),
        (8, 3, 1, 4, 8, 4),  # one input channel and two outputs per group
    ],
)
def test_conv_matches_numpy(monkeypatch, split, side, kernel, stride, channels, filters, groups):
    """Forward against NumPy, backward against directional differences; native groups and split groups."""
    if split:  # as without oneDNN
        monkeypatch.setattr(policies, "_pywrap_util_port", SimpleNamespace(IsMklEnabled=lambda: False))
    x = random(1, 2, side, side, channels)
    w = random(2, kernel, kernel, channels // groups, filters) / kernel
    expected = numpy_conv(x, w, stride, groups)
    weight = random(3, *expected.shape)

    def make(x, w):
        def conv(layers, x):
            return layers.conv(x, filters, kernel, GLOROT, stride=stride, groups=groups)

        # Kernels must not read memory that they have not set: leave freed memory full of numbers.
        with tf.control_dependencies([tf.fill([size], 7.0) + x[0, 0, 0, 0] for size in (x.shape.num_elements(), 64, 512)]):
            y, _ = built(conv, {"conv/conv2d/kernel": w}, tf.identity(x))
        return y, tf.gradients(tf.reduce_sum(y * weight), [x, w])

    y, (dx, dw) = evaluated(make, {"x": x, "w": w})
    assert y.shape == expected.shape and np.abs(y - expected).max() < 1e-5
    along_x, along_w = random(4, *x.shape), random(5, *w.shape)
    # linear in x and in w: the derivative along a direction is the value there
    assert (dx * along_x).sum(dtype=np.float64) == pytest.approx(
        (weight * numpy_conv(along_x, w, stride, groups)).sum(), abs=2e-3
    )
    assert (dw * along_w).sum(dtype=np.float64) == pytest.approx(
        (weight * numpy_conv(x, along_w, stride, groups)).sum(), abs=2e-3
    )


def normed(layers, x, scope):
    """Return a batch norm that changes nothing, with the variables of `without_effect`."""
    with layers.scope(scope):
        return layers.norm(x, BatchNorm(epsilon=2.0**-10))


def without_effect(scope, channels):
    values = {"gamma": 1.0, "beta": 0.0, "moving_mean": 0.0, "moving_variance": 1 - 2.0**-10}
    return {f"{scope}/batch_norm/{name}": tf.fill([channels], value) for name, value in values.items()}


def portably(build, weights, x):
    return portable.logits(record_layers(build, tuple(x.shape[1:])), weights, x)


WAYS = {
    "training": lambda build, weights, x: built(build, weights, x)[0],
    "inference": lambda build, weights, x: built(build, weights, x, training=False)[0],
    "fused inference": lambda build, weights, x: built(
        lambda layers, x: normed(layers, build(layers, x), "after"), weights, x, training=False
    )[0],
    "portable": portably,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side, kernel, groups", [(8, 3, 1), (9, 3, 1), (14, 7, 1), (8, 3, 12), (8, 5, 12), (7, 5, 12)])
def test_symmetric_padding_is_equal_on_both_sides(way, side, kernel, groups):
    x, w = random(1, 2, side, side, 12), random(2, kernel, kernel, 12 // groups, 12) / kernel
    rows = 2 * [(kernel // 2, kernel // 2)]
    expected = numpy_conv(np.pad(x, [(0, 0), *rows, (0, 0)]), w, 1, groups)[:, kernel // 2 :: 2, kernel // 2 :: 2]
    expected = expected[:, : (side + 1) // 2, : (side + 1) // 2]
    pooled = np.pad(abs(x), [(0, 0), (1, 1), (1, 1), (0, 0)])
    pooled = np.lib.stride_tricks.sliding_window_view(pooled, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))

    def make(x, w):
        def conv(layers, x):
            return layers.conv(x, 12, kernel, GLOROT, stride=2, groups=groups, padding="SYMMETRIC")

        weights = {"conv/conv2d/kernel": w, **without_effect("after", 12)}
        pool = WAYS[way](lambda layers, x: layers.max_pool(x, 3, 2, padding="SYMMETRIC"), weights, abs(x))
        return WAYS[way](conv, weights, x), pool

    y, most = evaluated(make, {"x": x, "w": w})
    assert y.shape == expected.shape and np.abs(y - expected).max() < 1e-5
    assert np.array_equal(most, pooled)


def test_conv_bias_pooling_and_means_match_numpy():
    x = random(1, 2, 5, 6, 3)

    def make(x):
        weights = {"conv/conv2d/kernel": tf.zeros([1, 1, 3, 4]), "conv/conv2d/bias": tf.range(4.0)}
        layers = (
            lambda layers, x: layers.conv(x, 4, 1, GLOROT, bias=True),
            lambda layers, x: layers.max_pool(x, 3, 2),
            lambda layers, x: layers.global_mean(x),
        )
        return tuple(built(layer, weights, x, training=False)[0] for layer in layers)

    biased, pooled, mean = evaluated(make, {"x": x})
    assert np.array_equal(biased, np.broadcast_to(np.float32([0, 1, 2, 3]), (2, 5, 6, 4)))
    assert np.array_equal(pooled, windows(x, 3, 2, -np.inf).max((-1, -2)))
    assert np.abs(mean - x.mean((1, 2), keepdims=True)).max() < 1e-6


# --- norms ---


def norm_of(x, policy, gamma=None, beta=None, training=True, moving=None):
    """Return (y, statistics) of one norm."""
    channels = x.shape[-1]
    scope = policy.scope
    weights = {
        f"{scope}/gamma": tf.ones([channels]) if gamma is None else gamma,
        f"{scope}/beta": tf.zeros([channels]) if beta is None else beta,
        **(moving or {}),
    }
    y, lowering = built(lambda layers, x: layers.norm(x, policy), weights, x, training=training)
    return y, lowering.statistics


def test_every_norm_kind_has_its_arithmetic():
    assert set(NORMS) == {kind for kind in _norms.KINDS if kind.scope}


def numpy_group_norm(x, gamma, beta, groups, epsilon):
    """Normalise with group(c) = c mod groups, one sample and channel at a time, in float64."""
    x = x.astype(np.float64)
    y = np.empty_like(x)
    for n in range(len(x)):
        for g in range(groups):
            members = [c for c in range(x.shape[-1]) if c % groups == g]
            part = x[n][..., members]
            y[n][..., members] = (part - part.mean()) / np.sqrt(part.var() + epsilon)
    return y * gamma + beta


def numpy_batch_norm(x, gamma, beta, epsilon):
    x = x.astype(np.float64)
    return (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + epsilon) * gamma + beta


def slope(function, arguments, index, direction):
    """Return the derivative of a float64 function of several arrays along a direction of one of them."""
    step = 1e-5

    def at(t):
        moved = [argument.astype(np.float64) for argument in arguments]
        moved[index] = moved[index] + t * direction
        return function(*moved)

    return (at(step) - at(-step)) / (2 * step)


def assert_norm(policy, reference, x, tolerance=2e-5):
    """Compare value, and gradients along random directions, with a float64 reference(x, gamma, beta)."""
    channels = x.shape[-1]
    gamma, beta, weight = 1 + 0.3 * random(7, channels), random(8, channels), random(9, *x.shape)

    def make(x, gamma, beta):
        y, _ = norm_of(x, policy, gamma, beta)
        return y, tf.gradients(tf.reduce_sum(y * weight), [x, gamma, beta])

    y, gradients = evaluated(make, {"x": x, "gamma": gamma, "beta": beta})
    assert np.abs(y - reference(x, gamma, beta)).max() < tolerance
    for index, gradient in enumerate(gradients):
        direction = random(10 + index, *gradient.shape)
        expected = slope(lambda *a: (weight * reference(*a)).sum(), [x, gamma, beta], index, direction)
        found = (gradient.astype(np.float64) * direction).sum()
        scale = np.linalg.norm(gradient)
        assert abs(found - expected) < 10 * tolerance * max(scale, 1.0)


@pytest.mark.parametrize("two_pass", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4, 12])
def test_group_norm_matches_float64(groups, two_pass):
    policy = GroupNorm(groups=groups, epsilon=1.53e-5, two_pass=two_pass)
    x = random(6, 3, 4, 5, 12) * np.arange(1, 13, dtype=np.float32) + 0.5
    assert_norm(policy, lambda *a: numpy_group_norm(*a, groups, policy.epsilon), x)


@pytest.mark.parametrize("groups", [2, 3, 12])
def test_contiguous_groups_are_adjacent_channels(groups):
    policy = GroupNorm(groups=groups, epsilon=1e-5, two_pass=True, contiguous=True)
    order = np.arange(12).reshape(groups, -1).T.ravel()  # in this order of channels, strided groups are contiguous

    def reference(x, gamma, beta):
        y = np.empty_like(x, shape=x.shape)
        y[..., order] = numpy_group_norm(x[..., order], 1, 0, groups, policy.epsilon)
        return y * gamma + beta

    x = random(6, 3, 4, 5, 12) * np.arange(1, 13, dtype=np.float32) + 0.5
    assert_norm(policy, reference, x)
    by_hand = x[:, :, :, : 12 // groups]
    first = reference(x, 1, 0)[:, :, :, : 12 // groups]
    assert np.abs(first - (by_hand - by_hand.mean((1, 2, 3), keepdims=True)) / np.sqrt(
        by_hand.var((1, 2, 3), keepdims=True) + 1e-5)).max() < 1e-4  # fmt: skip


def test_two_passes_are_more_accurate():
    x = random(6, 2, 8, 8, 8) + 3000
    expected = numpy_group_norm(x, 1, 0, 4, 1e-5)
    policies = [GroupNorm(groups=4, two_pass=two_pass) for two_pass in (False, True)]
    one, two = evaluated(lambda x: [norm_of(x, policy)[0] for policy in policies], {"x": x})
    assert np.isfinite(one).all()  # even if rounding makes the difference of squares negative
    assert np.abs(two - expected).max() < 5e-3 < np.abs(one - expected).max()


def test_batch_norm_matches_float64():
    policy = BatchNorm(epsilon=1e-5)
    x = random(6, 3, 4, 5, 6) * np.arange(1, 7, dtype=np.float32) + 0.5
    assert_norm(policy, lambda *a: numpy_batch_norm(*a, policy.epsilon), x)


def test_batch_norm_uses_given_epsilon():
    """A wrapper raised 1e-5 to 1.001e-5, which is visible with smaller variances."""
    x = 1e-4 * random(6, 8, 4, 4, 3)
    for epsilon in (1e-5, 1e-3):
        policy = BatchNorm(epsilon=epsilon)
        y = evaluated(lambda x, policy=policy: norm_of(x, policy)[0], {"x": x})
        expected = numpy_batch_norm(x, 1, 0, epsilon)
        assert np.abs(y - expected).max() < 1e-4 * np.abs(expected).max()


def test_batch_norm_reports_mean_and_biased_variance():
    x = random(6, 2, 1, 2, 5) + 3
    statistics = evaluated(lambda x: norm_of(x, BatchNorm())[1], {"x": x})
    assert list(statistics) == ["batch_norm/moving_mean", "batch_norm/moving_variance"]
    mean, variance = statistics.values()
    assert np.abs(mean - x.mean((0, 1, 2))).max() < 1e-5
    assert np.abs(variance - x.astype(np.float64).var((0, 1, 2))).max() < 1e-5  # four values: unbiased is a third more


def test_batch_norm_evaluates_with_moving_statistics():
    x, mean, variance = random(6, 2, 3, 3, 5), random(7, 5), np.float32([0.5, 1, 2, 1e-6, 4])
    gamma, beta = random(8, 5), random(9, 5)

    def make(x):
        moving = {"batch_norm/moving_mean": tf.constant(mean), "batch_norm/moving_variance": tf.constant(variance)}
        return norm_of(x, BatchNorm(epsilon=1e-3), gamma, beta, training=False, moving=moving)

    y, statistics = evaluated(make, {"x": x})
    expected = (x.astype(np.float64) - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    assert statistics == {} and np.abs(y - expected).max() < 1e-4
