"""Half precision is on NumPy's FP16 grid to the bit, forward and backward, in every model. Stochastic rounding keeps the mean.
Runs in 16.16 are as reproducible as in FP32.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, run, succeed, training_program, variables
from networks import built, options_of, same_bits

from cnn_harness.emulator.layers.initial_values import initial_value
from cnn_harness.emulator.layers.rounding import Rounding, add_rounded
from cnn_harness.emulator.layers.watch import GradientWatch, WatchedLayers
from cnn_harness.emulator.lowering import tensorflow as lowering
from cnn_harness.emulator.lowering.policy import PrecisionPolicy
from cnn_harness.emulator.network.recorder import record
from cnn_harness.emulator.plan.machine import Machine
from cnn_harness.emulator.plan.number_formats import BF16, E4M3FNUZ
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.plan import resolve
from cnn_harness.emulator.plan.precision import ALL, OFF, by_name
from cnn_harness.emulator.program import forward_backward
from cnn_harness.emulator.program.cells import Cells, StageOrder
from cnn_harness.emulator.program.forward_backward import PassNetwork, stage_blocks
from cnn_harness.emulator.program.loss_scale import LossScale
from cnn_harness.emulator.program.runtime import new_graph, session_config
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

NEAREST = Rounding()
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = HALVES[np.isfinite(HALVES)]
GN, BN = {"group_norm": True, "batch_norm": False}, {"group_norm": False, "batch_norm": True}
BASE = "--dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --optimiser momentum --no-validation --precision 16.16 --iterations 4"


def evaluated(*tensors):
    with tf.Session(config=session_config()) as session:
        return session.run(tensors)


def as_numpy(values: np.ndarray) -> np.ndarray:
    """Round with NumPy; overflow becomes NaN."""
    with np.errstate(all="ignore"):
        found = values.astype(np.float16).astype(np.float32)
    return np.where(np.isinf(found), np.float32(np.nan), found)


def representable(values: np.ndarray) -> bool:
    return same_bits(values, as_numpy(values))


# --- the grid ---


@pytest.mark.parametrize("count", [3, 10])
def test_half_accumulation_matches_numpy(count):
    """The gradient, its share and the sum are rounded to FP16 one after another."""
    draw = np.random.default_rng(5)
    total, x = draw.normal(size=(2, 5000)).astype(np.float16), (draw.normal(size=5000) * 300).astype(np.float32)
    share = (x.astype(np.float16).astype(np.float32) / np.float32(count)).astype(np.float16)
    expected = (total[0] + share).astype(np.float32)
    with new_graph().as_default():
        tensors = tf.constant(total[0].astype(np.float32)), tf.constant(x)
        (found,) = evaluated(add_rounded(*tensors, count, NEAREST, NEAREST))
    assert same_bits(found, expected)


# --- the vocabulary ---


HALF = by_name("16.16", stochastic=OFF)
PAIRS = np.random.default_rng(1).choice(FINITE, (2, 1 << 16)).reshape(2, 256, 1, 1, 256)


@pytest.mark.parametrize(
    ("build", "reference"),
    [
        (lambda layers, a, b: layers.add(a, b), lambda a, b: a + b),
        (lambda layers, a, b: layers.gate(a, b), lambda a, b: a * b),
        (lambda layers, a, b: layers.relu(a), lambda a, b: np.maximum(a, np.float16(0))),
    ],
    ids=["add", "multiply", "maximum"],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.half])
def test_half_arithmetic_matches_numpy_exactly(build, reference, dtype):
    """For inputs of 32 bits, and for inputs of 16 bits, which native operations take."""
    with np.errstate(all="ignore"):
        expected = reference(*PAIRS).astype(np.float32)
    expected = np.where(np.isinf(expected), np.float32(np.nan), expected)
    with new_graph().as_default():
        inputs = (tf.constant(each, dtype) for each in PAIRS)
        (found,) = evaluated(built(build, {}, *inputs, precision=HALF)[0])
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["sigmoid", "swish"])
def test_transcendental_functions_are_within_half_unit(name):
    """Within half a unit of the exact value; equal to NumPy's FP16 result for 99.9 % of all inputs."""
    x = FINITE.astype(np.float32).reshape(-1, 1, 1, 1)
    with new_graph().as_default():
        y, _ = built(lambda layers, x: getattr(layers, name)(x), {}, tf.constant(x), precision=HALF)
        (found,) = evaluated(y)
    found = found.astype(np.float32)
    exact = x.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = (1 if name == "sigmoid" else exact) / (1 + np.exp(-exact))
    best = exact.astype(np.float16).astype(np.float64)
    unit = np.spacing(np.abs(best).astype(np.float16)).astype(np.float64)
    assert representable(found)
    assert np.mean(found == best) >= 0.999
    assert np.abs(found - exact).max() <= (0.501 * unit).max()
    assert (np.abs(found - exact) <= 0.51 * unit + 2.0**-25).all()


def test_matrix_products_are_rounded_once():
    """Equal to a float64 reference rounded once, except within FP32's own error of a rounding boundary."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(4, 6, 6, 32)).astype(np.float16).astype(np.float32)
    weights = draw.normal(size=(1, 1, 32, 16)).astype(np.float16).astype(np.float32) / 8
    with new_graph().as_default():
        kernel = {"conv/conv2d/kernel": tf.constant(weights)}
        y, _ = built(lambda layers, x: layers.conv(x, 16, 1, None), kernel, tf.constant(x, tf.half), precision=HALF)
        (found,) = evaluated(y)
    exact = x.astype(np.float64).reshape(-1, 32) @ weights.astype(np.float64).reshape(32, 16)
    error = 32 * 2.0**-24 * (np.abs(x.reshape(-1, 32)) @ np.abs(weights.reshape(32, 16)))
    lower, upper = (as_numpy((exact + sign * error).astype(np.float32)) for sign in (-1, 1))
    found = found.reshape(-1, 16)
    assert ((lower <= found) & (found <= upper)).all()
    assert np.mean(lower == upper) > 0.9


# --- whole models ---

SHALLOW = {"block_survival_prob": 0.5, "depth_coefficient": 0.3}
MODELS = {
    "resnet": ("resnet", "cifar", 8, BN, 16),
    "resnext": ("resnext", "cifar", 11, {**GN, "groups": 4}, 16),
    "efficientnet": ("efficientnet", "cifar", "CIFAR", {**GN, **SHALLOW, "dropout_rate": 0.5}, 16),
    "efficientnet-proxy": ("efficientnet", "cifar", "CIFAR", {**GN, **SHALLOW, "groups": 1, "proxy_norm": True}, 16),
    "squeezenet": ("squeezenet", "cifar", None, {}, 64),
}  # fmt: skip


def test_products_may_use_native_bf16():
    """Values are within the rounding of sums in BF16, and so are gradients.

    oneDNN adds in FP32, TensorFlow's own kernels in BF16. Which one computes small products depends on the number of threads.
    """
    draw = np.random.default_rng(1)
    arrays = [draw.integers(-8, 9, shape).astype(np.float32) / 8 for shape in ((4, 6, 6, 8), (3, 3, 8, 8), (4, 6, 6, 8))]
    found = []
    for native in (False, True):
        precision = by_name("bf16.16", stochastic=OFF, native_arithmetic=native)
        with new_graph().as_default() as graph:
            x, weights, dy = (tf.constant(each, kind) for each, kind in zip(arrays, (tf.bfloat16, tf.float32, tf.bfloat16)))
            y, _ = built(
                lambda layers, x: layers.conv(x, 8, 3, None), {"conv/conv2d/kernel": weights}, x, precision=precision
            )
            found.append([np.float32(each) for each in evaluated(y, *tf.gradients(y, [x, weights], dy))])
            products = {op.get_attr("T") for op in graph.get_operations() if op.type.startswith("Conv2D")}
            assert products == {tf.bfloat16} if native else tf.bfloat16 not in products
    for emulated, native in zip(*found):
        np.testing.assert_allclose(native, BF16.rounded(emulated), rtol=0, atol=0.02 * np.abs(emulated).max())


def listening(kept: dict[str, tf.Tensor]) -> dict[str, lowering.Build]:
    """Return the operations of the lowering. They also put each node's result into `kept`."""

    def heard(build):
        def keep(low, node, *inputs):
            results = build(low, node, *inputs)
            kept[f"{len(kept)} {node.path}"] = results[0] if isinstance(results, tuple) else results
            return results

        return keep

    return {op: heard(build) for op, build in lowering.OPERATIONS.items()}


# inputs at which gradients arrive at operations that an IPU executes, by kind of operation; AddN sums them
ARRIVING = {
    "ReluGrad": (0,), "Relu6Grad": (0,), "SigmoidGrad": (1,), "MaxPoolGrad": (2,), "BiasAddGrad": (0,), "Slice": (0,),
    "StridedSliceGrad": (4,), "FusedBatchNormGradV3": (0,), "Conv2DBackpropInput": (2,), "Conv2DBackpropFilter": (2,),
    "DepthwiseConv2dNativeBackpropInput": (2,), "DepthwiseConv2dNativeBackpropFilter": (2,), "AddN": range(9),
    "BroadcastTo": (0,), "EmulatorConvolutionInputGradient": (0,), "EmulatorConvolutionWeightsGradient": (1,),
}  # fmt: skip


def arriving(graph: tf.Graph, batch: int) -> dict[str, tf.Tensor]:
    """Return each gradient of samples that arrives at an operation of the backward pass.

    Gradients that fused operations round inside are left out, and so is the loss, which is outside the network.
    """
    found = {}
    for op in graph.get_operations():
        places = ARRIVING.get(op.type, ())
        if op.type == "MatMul" and re.search(r"MatMul(_\d+)?_grad", op.name):
            places = (0, 1)
        elif op.type == "Mul" and "mul_grad" in op.name and op.inputs[0].shape.rank == 4:  # dy x factor, and x x dy
            places = (int(op.name.endswith("Mul_1")),)
        inputs = [(k, op.inputs[k]) for k in places if k < len(op.inputs) and op.name.startswith("gradients")]
        found |= {
            f"{op.type} {op.name} {k}": x for k, x in inputs if x.dtype in (tf.float32, tf.half) and x.shape.rank in (2, 4)
        }
    # a convolution with 1x1 kernels is a product over all pixels' channels
    return {place: x for place, x in found.items() if x.shape[0] == batch or (x.shape.rank == 2 and x.shape[0] % batch == 0)}


def called(name: str, precision, kept: dict[str, tf.Tensor], recompute: bool = False):
    """Run a small network forward and backward and return the results; `kept` gets the results of its nodes."""
    model, family, size, changes, side = MODELS[name]
    module, options = options_of(model, family, **({"model_size": size} if size else {}), **changes)
    network = record(module.build(options, family, 10, False), side)
    plan = resolve(
        DeviceOptions(enable_recomputation=recompute), network, Machine(2, 0), micro_batch_size=4, precision=precision
    )
    policy = PrecisionPolicy(precision, 1)
    stages = stage_blocks(plan, network, policy, {v.name for v in network.variables if v.trainable})

    def loss(logits, features):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=features["label"], logits=logits)

    whole = PassNetwork(stages=stages, plan=plan, policy=policy, loss=loss, correct=lambda logits, label: tf.zeros([4]),
                        scale_loss=lambda x: 128 * x)  # fmt: skip
    draw = np.random.default_rng(3).normal(size=(4, side, side, 3))
    features = {"image": tf.constant(draw.astype(np.float16).astype(np.float32)), "label": tf.constant([1, 2, 3, 4]),
                "position": tf.range(4, dtype=tf.int64)}  # fmt: skip
    cells = Cells(StageOrder(plan, recording=False), tf.constant(0), tuple(() for _ in plan.stages))
    weights = {v.name: _used(v) for v in network.variables}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "OPERATIONS", listening(kept))
        return forward_backward.run_pass(whole, weights, features, cells, GradientWatch(WatchedLayers({})))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "stochastic"), [(name, name in ("resnet", "efficientnet")) for name in MODELS])
def test_everything_in_model_is_half(name, stochastic):
    """Checked for every layer's output and every gradient in the backward pass, also if a tensor has several readers; with
    stochastic rounding, and with recomputation.
    """
    kept = {}
    precision = by_name("16.32", stochastic=ALL if stochastic else OFF)
    with new_graph().as_default() as graph:
        found = called(name, precision, kept, recompute=stochastic)
        whole = called(name, precision, kept) if stochastic else found
        gradients = arriving(graph, 4)
        with tf.Session(config=session_config()) as session:
            results, backward, found, whole = session.run((kept, gradients, found, whole))
    assert_same_bits(found, whole)  # with and without separate differentiation of segments
    for place, value in (*results.items(), *backward.items()):
        assert np.isfinite(value).all() and representable(value), place
    assert len(results) > 25
    kinds = [place.split()[0] for place in backward]
    filters = "Conv2DBackpropFilter", "EmulatorConvolutionWeightsGradient"
    convolutions = sum(map(kinds.count, filters)) + kinds.count("MatMul") // 2
    assert convolutions >= 7 and kinds.count("AddN") >= 3, sorted(kinds)
    assert sum(bool(np.any(value)) for value in backward.values()) > 0.9 * len(backward)
    assert all(np.isfinite(value).all() for value in found.values())


def _used(variable):
    value = initial_value(variable, 5, tf.float32)
    return value if not variable.trainable or variable.proxy else tf.cast(tf.cast(value, tf.half), tf.float32)


@pytest.mark.slow
def test_half_tensors_take_half_the_memory():
    """The largest number of bytes of live tensors in an update with 128 images, most of which are kept activations."""
    alive = {}
    for precision in ("32.32", "16.16", "bf16.32"):
        given = (
            f"--dataset fashion-mnist --micro-batch-size 128 --fold 1 --precision {precision} --model-size 14 --batch-norm"
        )
        trained = training_program(prepare(cli.parse(given.split(), "train", environ={}).options, {}).run, 0, recording=True)
        trained.compile()
        alive[precision] = trained.profile(1e-4, operations=True).most_alive
    assert max(alive["16.16"], alive["bf16.32"]) < 0.65 * alive["32.32"], alive


# --- runs ---


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> Path:
    """Return the run directory of a run in 16.16."""
    folder = tmp_path_factory.mktemp("halves") / "run"
    succeed("train", *BASE.split(), "--logs-path", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["16.16", "8.16 --master-format e4m3fnuz --slot-format bf16 --format-scaling"])
def test_checkpoint_keeps_formats(precision, halves, tmp_path):
    folder = halves if precision == "16.16" else tmp_path / "run"
    if precision != "16.16":
        succeed("train", *BASE.split(), *f"--precision {precision}".split(), "--logs-path", folder)
    found = variables(folder, 4)
    kinds = {name: value.dtype.name for name, value in found.items()}
    master = "float8_e4m3fnuz" if "e4m3" in precision else "float16"
    for name, kind in kinds.items():
        fine = "moving" in name or name == "format_scaling"
        slot = "bfloat16" if "bf16" in precision and name.endswith("Momentum") else master
        assert kind == ("int64" if name == "global_step" else "float32" if fine else slot), name
    if "e4m3" in precision:
        kernel = np.float32(found["all/fc1/dense/kernel"])
        np.testing.assert_array_equal(E4M3FNUZ.rounded(kernel), kernel)
        words = ["--iterations", 1, "--micro-batch-size", 2000, "--tmp-execs"]
        outputs = [
            succeed("validation", "--restore-path", folder, "--no-logs").out,
            succeed("inference_embedded", "--restore-path", folder / "ckpt-4", "--no-logs", *words).out,
        ]
        (one,), (other,) = (
            re.findall(r"top-1 accuracy \[ckpt-4\] \(.*\): (\S+%\n.* 2000 images)", text) for text in outputs
        )
        assert one == other
    assert any(name.endswith("Momentum") for name in kinds)
    before = variables(folder, 0)
    assert all(np.isfinite(value).all() for value in found.values())
    assert not np.array_equal(before["all/b1/0/1/conv/conv2d/kernel"], found["all/b1/0/1/conv/conv2d/kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("words", [
    "--precision 8.16 --stochastic-rounding all --format-for last=bf16 --format-scaling --automatic-loss-scaling largest --loss-scaling 1e7",
    "--stochastic-rounding all",
    "--precision 32.32 --weight-format e4m3fn --activation-format e5m2 --gradient-format e5m2 --accumulator-format bf16",
    "--format-for last=bf16 all=nvfp4 --hadamard --stochastic-rounding all",
])  # fmt: skip
def test_half_is_equal_for_every_layout(words, tmp_path):
    one = "--gradient-accumulation-count 4 --fold 1"
    other = "--gradient-accumulation-count 2 --replicas 2 --fold 1 --enable-recomputation --shards 2 --pipeline --pipeline-splits auto"
    base = BASE.replace("--iterations 4", "--iterations 2")
    for k, layout in enumerate((one, other)):
        succeed("train", *base.split(), *words.split(), *layout.split(), "--logs-path", tmp_path / str(k))
    assert_same_bits(variables(tmp_path / "0", 2), variables(tmp_path / "1", 2))


def test_forced_weights_keep_their_format(tmp_path):
    succeed("train", *BASE.split(), "--force-weight-to-fp32", "fc1", "batch_norm", "--logs-path", tmp_path / "run")
    for name, value in variables(tmp_path / "run", 4).items():
        if "moving" in name:
            assert value.dtype == np.float32
        elif name != "global_step":
            assert value.dtype == (np.float32 if "fc1" in name or "batch_norm" in name else np.float16), name


def test_fp32_copy_keeps_small_updates(tmp_path):
    succeed("train", *BASE.split(), "--offload-fp32-weight-copy", "--logs-path", tmp_path / "run")
    found = variables(tmp_path / "run", 4)
    name = "all/b1/0/1/conv/conv2d/kernel"
    assert (found[name].dtype, found[f"{name}/fp32"].dtype, found[f"{name}/Momentum"].dtype) == (
        np.float16, np.float32, np.float32)  # fmt: skip
    np.testing.assert_array_equal(found[name], found[f"{name}/fp32"].astype(np.float16))
    assert not representable(found[f"{name}/fp32"])


@pytest.mark.slow
def test_overflow_is_nan_or_saturates(tmp_path):
    """The loss scale exceeds FP16: gradients become NaN or saturate."""
    words = [*BASE.split(), "--loss-scaling", "1e7", "--iterations", "1"]
    lost = run("train", *words, "--logs-path", tmp_path / "lost")
    assert lost.code == 1 and "update 1, all/b0/conv/conv2d/kernel" in lost.err and "--loss-scaling 128" in lost.out
    succeed("train", *words, "--keep-going", "--logs-path", tmp_path / "nan")
    assert np.isnan(variables(tmp_path / "nan", 1)["all/fc1/dense/kernel"]).any()
    succeed("train", *words, "--saturate-on-overflow", "--analyse-nans", "--logs-path", tmp_path / "cut")
    assert np.isfinite(variables(tmp_path / "cut", 1)["all/fc1/dense/kernel"]).all()


@pytest.mark.slow
def test_run_finds_its_loss_scale(tmp_path):
    """From a scale beyond FP16: updates that overflow are skipped and the scale is halved until one succeeds."""
    words = [*BASE.split(), "--loss-scaling", "3e6", "--automatic-loss-scaling", "--logs-path"]
    succeed("train", *words, tmp_path / "run", "--iterations", 8)
    first, last = variables(tmp_path / "run", 0), variables(tmp_path / "run", 8)
    scale, since, skipped = last["loss_scaling"]
    assert skipped > 1 and since == 8 - skipped and scale == 3e6 / 2**skipped
    assert first["loss_scaling"].tolist() == [3e6, 0, 0] and np.isfinite(last["all/fc1/dense/kernel"]).all()
    succeed("train", *words, tmp_path / "skipped", "--iterations", int(skipped))
    unmoved = variables(tmp_path / "skipped", int(skipped))
    assert_same_bits(
        *({n: v for n, v in each.items() if n not in ("global_step", "loss_scaling")} for each in (first, unmoved))
    )
    # Adam's first step equals the rate, however many updates were skipped before
    given = BASE.replace("momentum", "Adam --abs-learning-rate 0.001 --warmup-epochs 0 --learning-rate-decay 1")
    scaling = ["--precision", "16.32", "--loss-scaling", "3e6", "--automatic-loss-scaling"]
    succeed("train", *given.split(), *scaling, "--logs-path", tmp_path / "adam", "--iterations", int(skipped) + 1)
    first, moved = (variables(tmp_path / "adam", updates)["all/fc1/dense/kernel"] for updates in (0, int(skipped) + 1))
    np.testing.assert_allclose(np.median(np.abs(moved - first)), 0.001, rtol=0.02)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--force-weight-to-fp32 fc1 --force-weight-to-fp16 dense", "all/fc1/dense/kernel"),
        ("--weight-format e4m3fnux", "e4m3fnux e4m3fnuz"),
        ("--weight-format mxfp8", "mxfp8_e4m3 mxfp8_e5m2"),
        ("--format-for last=nvfp5", "nvfp5 nvfp4"),
        ("--slot-format mxfp4", "mxfp4 block operands"),
        ("--gradient-format mxfp4 --gradient-bias 3", "mxfp4 bias"),
        ("--native-arithmetic --precision bf16.16 --stochastic-rounding all", "--native-arithmetic"),
        ("--automatic-loss-scaling --fp-exceptions", "--fp-exceptions"),
    ],
)
def test_impossible_precision_is_rejected(words, named):
    result = run("train", *BASE.split(), *words.split(), "--dry-run")
    assert result.code == 2 and result.err.count("\n") == 1 and all(word in result.err for word in named.split())


@pytest.mark.parametrize("rule", ["back-off", "largest"])
def test_loss_scales_follow_their_rules(rule):
    scaling, limit = LossScale(1024.0, False, rule, period=3), 57344.0
    seen = [(True, 1.0), (True, 500.0), (True, 3e4), (False, 1.0), (True, 0.0), (True, 7168.0), (True, 7169.0), (True, 1e-9)]
    with new_graph().as_default():
        state = scaling.first_state()
        states = [state := scaling.next_state(state, tf.constant(f), tf.constant(g), limit) for f, g in seen]
        found = evaluated(*states)
    scale, since, skipped = 1024.0, 0, 0
    for (finite, largest), state in zip(seen, found):
        if not finite:
            factor = 0.5
        elif rule == "back-off":
            factor = 2.0 if since + 1 >= 3 else 1.0
        else:
            factor = 2.0 ** min(1, math.floor(math.log2(limit / 8 / max(largest, 1e-30))))
        scale, since, skipped = scale * factor, since + 1 if factor == 1 else 0, skipped + (not finite)
        assert state.tolist() == [scale, since, skipped]
