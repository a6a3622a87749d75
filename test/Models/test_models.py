"""The models: published sizes and counts, names, and agreement of record and graph."""

from __future__ import annotations

import importlib

import pytest
import tensorflow.compat.v1 as tf
from networks import CLASSES, network, recorded

from cnn_harness.emulator.lowering.lists import prepared
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.network import Network, Shape
from cnn_harness.emulator.network.recorder import Recorder
from cnn_harness.emulator.plan.precision import SINGLE
from cnn_harness.emulator.program.runtime import new_graph

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


# --- sizes ---


def test_sizes_match_tables():
    for (name, family), sizes in SIZES.items():
        assert set(importlib.import_module(f"cnn_harness.Models.{name}").sizes(family)) == set(sizes)


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


@pytest.mark.parametrize(
    "name, family, size",
    [("resnet", "imagenet", 18), ("resnet", "imagenet", 50), ("resnet", "cifar", 8), ("resnet", "cifar", 29)]
    + [("resnext", "imagenet", 50), ("resnext", "cifar", 11), ("efficientnet", "imagenet", "B1")]
    + [("efficientnet", "imagenet", "CIFAR"), ("efficientnet", "imagenet", "B6")],
)
def test_graph_matches_recorded_network(name, family, size):
    """Segment by segment, the graph has the recorded shapes and uses the recorded variables."""
    changes = {"batch_norm": True} if size in ("B1", 8, 50) else {}
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


def test_zero_gamma_with_identity_shortcuts():
    for name, changes in (("resnet", GN), ("resnet", BN), ("resnext", GN)):
        zero = {v.name.split("/GroupNorm")[0].split("/batch_norm")[0]
                for v in recorded(name, "imagenet", 50, **changes).variables
                if v.name.endswith("gamma") and v.initial == 0}  # fmt: skip
        assert zero == {f"all/b{stage}/{unit}/3" for stage, n in ((1, 3), (2, 4), (3, 6), (4, 3)) for unit in range(1, n)}
    for name, family, size in (("resnet", "imagenet", 18), ("resnet", "cifar", 20), ("efficientnet", "imagenet", "B0")):
        gammas = [v.initial for v in recorded(name, family, size).variables if v.name.endswith("gamma")]
        assert set(gammas) == {1.0}


# --- norms of the models ---


class Noted(Recorder):
    """Also record rates and survival probabilities."""

    def __init__(self):
        super().__init__()
        self.survivals, self.rates = {}, {}

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
