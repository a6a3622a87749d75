"""The device loop agrees with independent arithmetic: gradients by finite differences, update rules and moving statistics
in float64, and the same bits for every layout.
"""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace

import commands
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cnn_harness import ipu_utils
from cnn_harness.emulator.program import runtime
from cnn_harness.emulator.program.gradient_noise import estimates
from cnn_harness.emulator.program.training_program import TrainingProgram
from cnn_harness.harness.programs import build
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare
from cnn_harness.harness.run.run import Run

FIXED = "--precision 32.32 --dataset fashion-mnist --model-size 8 --seed 3 --weight-decay 0 --loss-scaling 1"


def prepared(*words: object) -> Run:
    return prepare(cli.parse([*FIXED.split(), *map(str, words)], "train", environ={}).options, {}).run


def program(*words: object) -> TrainingProgram:
    """Return the training program of these options with its initial weights."""
    return commands.program(prepared(*words))


def after(words: tuple[object, ...], rates: list[float]) -> dict[str, np.ndarray]:
    """Return every variable after one host step."""
    built = program(*words)
    built.step(np.asarray(rates, np.float32))
    values = built.values()
    built.close()
    return values


def kernels(values: dict[str, np.ndarray]) -> list[str]:
    return [name for name in values if name.endswith(("kernel", "bias", "gamma", "beta"))]


def gradient(words: tuple[object, ...]) -> dict[str, np.ndarray]:
    """Return the first update's gradient, from plain SGD at rate 1."""
    built = program(*words, "--optimiser", "SGD")
    before = built.values()
    built.step(np.asarray([1.0], np.float32))
    found = built.values()
    built.close()
    return {name: before[name].astype(np.float64) - found[name] for name in kernels(found)}


@pytest.mark.parametrize("stages", ["", "--shards 2 --pipeline --pipeline-splits auto"])
def test_wait_for_slow_data_is_measured(stages):
    """The host needs a quarter of a second for each of four batches. A pipeline computes meanwhile."""
    run, slow = prepared(*f"--batch-size 1 --gradient-accumulation-count 4 --fold 1 {stages}".split()), 0.25

    def delay(element):
        time.sleep(slow)
        return element

    stream = build._stream(run, run.training_request(0, 0), training=True)
    delayed = replace(stream, dataset=lambda: stream.dataset().map(
        lambda x: {**x, "label": tf.ensure_shape(tf.numpy_function(delay, [x["label"]], x["label"].dtype), x["label"].shape)}
    ))  # fmt: skip
    for fed, least, most in ((stream, 0, 3 * slow), (delayed, 3 * slow, 1e9)):
        with ipu_utils.compile_training(build.training_spec(run, 0), fed) as built:
            built.step([0.1])
            started = time.perf_counter()
            (waited,) = built.step([0.1]).waited
            assert least <= waited <= min(most, time.perf_counter() - started)


@pytest.mark.parametrize(
    ("layout", "precision"),
    [
        ("--gradient-accumulation-count 4 --clip-grad-norm 0.1", ""),
        ("--gradient-accumulation-count 2 --replicas 2 --shards 2 --pipeline --pipeline-splits auto", ""),
        ("--gradient-accumulation-count 4", "--precision 16.16 --loss-scaling 1024"),
    ],
)
def test_gradient_noise_is_covariance_of_passes(layout, precision):
    """S is the size of a pass times the trace of the sample covariance of the passes' gradients, computed in float64."""
    common = ["--group-norm", "--batch-size", 2, "--optimiser", "SGD", "--fold", 1]
    with program(*common) as single:
        start, found = single.values(), []
        for _ in range(4):
            single.step([1.0])
            after_pass = single.values()
            found.append(np.concatenate([(start[k].astype(np.float64) - after_pass[k]).ravel() for k in kernels(start)]))
            single.load_initial(start)
    trace = 2 * np.var(found, axis=0, ddof=1).sum()
    with program(*common, *layout.split(), *precision.split(), "--gradient-noise") as built:
        assert built.step([0.1]).gradient_noise == pytest.approx(
            np.asarray([[trace, np.square(np.mean(found, axis=0)).sum() - trace / 8]]), rel=0.05 if precision else 1e-4
        )


def test_estimates_of_gradient_noise_are_unbiased():
    draw, plan = np.random.default_rng(7), prepared("--batch-size", 2, "--gradient-accumulation-count", 3, "--fold", 1).plan
    mean, root = 3 * draw.standard_normal(5), draw.standard_normal((5, 5))
    samples = mean + draw.standard_normal((40_000, 3, 2, 5)) @ root.T
    passes = samples.mean(2)
    norms = np.stack([np.square(passes).sum(2).mean(1), np.square(passes.mean(1)).sum(1)], 1)
    assert estimates(norms, plan).mean(0) == pytest.approx([np.trace(root @ root.T), mean @ mean], rel=0.02)


@pytest.mark.parametrize("kind", ["weight", "gradient"])
def test_injected_fault_changes_one_number_once(kind):
    """In the update before it, no bit changes. A gradient's flip changes the weight, too: SGD subtracts the gradient."""
    words = ("--batch-size", 2, "--gradient-accumulation-count", 2, "--fold", 1, "--optimiser", "SGD")
    with program(*words) as sound, program(*words, "--inject", f"{kind}:all/b1/0/1/conv:2:30") as faulty:
        for update, changed in ((1, 0), (2, 1)):
            sound.step([0.1])
            faulty.step([0.1])
            expected, found = sound.values(), faulty.values()
            different = {name: np.flatnonzero(expected[name] != found[name]) for name in expected}
            assert sum(map(len, different.values())) == changed, update
    name = "all/b1/0/1/conv/conv2d/kernel"
    (place,) = different[name]
    one, other = (values[name].ravel()[place].view(np.uint32) for values in (expected, found))
    assert kind == "gradient" or one ^ other == 1 << 30


@pytest.mark.parametrize("norm", ["--batch-norm", "--group-norm"])
def test_gradient_is_slope_of_loss(norm):
    words = ("--batch-size", 16, norm, "--label-smoothing", 0.1)
    built = program(*words)
    start = built.values()
    slope = gradient(words)
    rng = np.random.default_rng(0)
    length = sum(float(np.square(g).sum()) for g in slope.values()) ** 0.5
    # a direction close to the gradient, so that the difference exceeds FP32's noise
    direction = {
        name: g / length + 0.3 * rng.standard_normal(g.shape) / np.sqrt(g.size * len(slope)) for name, g in slope.items()
    }
    step, losses = 3e-3, []
    for sign in (1, -1):
        moved = {name: value + (sign * step * direction[name]).astype(np.float32) if name in direction else value
                 for name, value in start.items()}  # fmt: skip
        fresh = program(*words)  # the same first micro-batch again
        fresh.load(moved)
        losses.append(float(fresh.step(np.zeros([1], np.float32)).loss[0]))
        fresh.close()
    expected = sum(float((slope[name] * direction[name]).sum()) for name in slope)
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(expected, rel=0.02)
    assert abs(expected) > 0.5


def reference_updates(
    rule: str, words: tuple[object, ...], decay: float, rates: list[float], limit: float = np.inf
) -> dict[str, np.ndarray]:
    """The update rule in float64, its gradients asked of a plain SGD program at the same weights and data."""
    oracle = program(*words, "--optimiser", "SGD")
    weights = {name: value.astype(np.float64) for name, value in oracle.values().items()}
    speed = {name: np.zeros_like(weights[name]) for name in kernels(weights)}
    for rate in rates:
        state = oracle.values()
        oracle.load({name: (weights[name].astype(np.float32) if name in speed else value) for name, value in state.items()})
        before = oracle.values()
        oracle.step(np.asarray([1.0], np.float32))
        found = oracle.values()
        slopes = {name: before[name].astype(np.float64) - found[name] for name in speed}
        factor = min(1.0, limit / np.sqrt(sum(np.square(g).sum() for g in slopes.values())))
        for name in speed:
            g = factor * slopes[name] + decay * weights[name]
            speed[name] = (0.9 * speed[name] if rule == "momentum" else 0) + g
            weights[name] -= rate * speed[name]
    oracle.close()
    return {name: weights[name] for name in speed}


@pytest.mark.parametrize("rule", ["SGD", "momentum"])
@pytest.mark.parametrize(("scale", "limit"), [(1, np.inf), (100, np.inf), (100, 4)])  # 4 clips the first and the third
def test_update_rules_match_float64(rule, scale, limit):
    # with seed 3 the last bit of a weight moves a pixel across a relu's kink
    words, rates = ("--batch-size", 4, "--group-norm", "--seed", 4), [0.05, 0.02, 0.08]
    words += ("--gradient-accumulation-count", 3, "--fold", 1) if limit < np.inf else ()
    own = ("--weight-decay", 0.01, "--loss-scaling", scale, "--clip-grad-norm", 0 if limit == np.inf else limit)
    found = after((*words, "--optimiser", rule, *own), rates)
    for name, expected in reference_updates(rule, words, 0.01, rates, limit).items():
        assert np.abs(found[name] - expected).max() < 2e-4 * max(1.0, np.abs(expected).max()), name


PROXIES = "--model efficientnet --model-size cifar --depth-coefficient 0.2 --width-coefficient 0.25 --groups 1 --proxy-norm"


@pytest.mark.parametrize(
    "words",
    ["--batch-norm", "--group-norm --precision 16.16", "--group-norm --precision 16.32 --offload-fp32-weight-copy", PROXIES],
)
def test_moving_average_of_weights_matches_float64(words):
    """It averages what each update stores, including moving statistics; the first updates weigh more."""
    layout = "--replicas 2 --gradient-accumulation-count 2 --batch-size 2"
    built = program(*f"{words} {layout} --optimiser momentum --ema 0.2 --loss-scaling 128".split())
    values = [built.values()]
    for _ in range(5):
        built.step(np.asarray([0.05], np.float32))
        values.append(built.values())
    built.close()
    averages = [name for name in values[0] if name.endswith("/ema")]
    model = {name for name in values[0] if "/" in name and name.rpartition("/")[0] not in values[0]}
    assert {name.removesuffix("/ema") for name in averages} == model
    for name in averages:
        weight = name.removesuffix("/ema")
        weights = [each.get(f"{weight}/fp32", each[weight]).astype(np.float64) for each in values]
        expected = weights[0]
        for n, now in enumerate(weights[1:]):
            decay = min(0.2, (1 + n) / (10 + n))
            expected = decay * expected + (1 - decay) * now
        rows = [0, 1, 4, 5] if weight.endswith("proxy") else slice(None)  # the others are statistics of these
        np.testing.assert_allclose(values[-1][name][rows], expected[rows], rtol=1e-5, atol=1e-6, err_msg=name)


def test_weight_decay_spares_norms_on_imagenet():
    # with a tiny loss scale the gradients vanish, and only decay moves weights
    def shrunk(*words: object) -> dict[str, float]:
        options = cli.parse([*map(str, words), "--generated-data", "--batch-size", "2", "--group-norm", "--weight-decay", "0.5",
                             "--seed", "1"], "train", environ={}).options  # fmt: skip
        run = prepare(options, {}).run
        return {v.name: run.is_decayed(v.name) for v in run.network.variables}

    cifar = shrunk("--dataset", "cifar-10", "--model-size", "8")
    imagenet = shrunk("--dataset", "imagenet", "--model-size", "10")
    assert all(cifar.values())
    assert not imagenet["all/b0/GroupNorm/gamma"]
    assert not imagenet["all/b0/GroupNorm/beta"]
    assert imagenet["all/fc1/dense/bias"]
    assert imagenet["all/b0/conv/conv2d/kernel"]


def test_moving_statistics_average_micro_batches():
    words = ("--batch-norm", "--BN-decay", 0.75, "--batch-size", 8)
    one = [after((*words, "--gradient-accumulation-count", 1), [0.0] * n) for n in (1, 2)]
    both = after((*words, "--gradient-accumulation-count", 2), [0.0])
    for name in (name for name in both if "moving_" in name):
        start = 0.0 if name.endswith("mean") else 1.0
        first = (one[0][name] - 0.75 * start) / 0.25
        second = (one[1][name] - 0.75 * one[0][name]) / 0.25
        np.testing.assert_allclose(both[name], 0.75 * start + 0.25 * (first + second) / 2, rtol=2e-4, atol=2e-5)


def test_metrics_belong_to_each_update():
    built = program("--batch-size", 8, "--gradient-accumulation-count", 2)
    found = built.step(np.zeros([3], np.float32))
    assert found.loss.shape == found.accuracy.shape == (3,)
    assert len(set(found.loss.tolist())) == 3
    assert all(value * 16 == round(value * 16) for value in found.accuracy.tolist())
    built.close()


def test_compiling_and_closing_leave_nothing():
    words = ("--batch-size", 8, "--group-norm", "--precision", "16.16")  # fused kernels, explicit gradients
    built = commands.training_program(prepared(*words), 0)
    before = built.values()
    built.compile()
    after_ = built.values()
    assert all(before[name].tobytes() == after_[name].tobytes() for name in before)
    first = built.step(np.zeros([1], np.float32)).loss
    graph = weakref.ref(built.graph)
    built.close()
    del built
    for _ in range(20):  # a garbage collection in another thread blocks one here
        gc.collect()
        if graph() is None:
            break
        time.sleep(0.1)
    assert graph() is None  # nothing of it is kept
    fresh = program(*words)
    assert fresh.step(np.zeros([1], np.float32)).loss == first  # no data was consumed either
    fresh.close()


def test_graphics_cards_use_tensorflow_kernels_alone(monkeypatch):
    """Works without a card: TensorFlow then falls back to the processor."""
    monkeypatch.setattr(runtime, "check_devices", lambda stage_devices: None)
    words = ("--batch-size", 4, "--group-norm", "--shards", 2, "--pipeline", "--pipeline-splits", "b2/0/relu")
    run = prepared(*words, "--gradient-accumulation-count", 4)
    on_cards = replace(run, plan=replace(run.plan, stage_devices=("/gpu:0", "/gpu:1")))
    found = []
    for each in (run, on_cards):
        built = commands.program(each)
        found.append(built.step(np.asarray([0.1, 0.1], np.float32)).loss)
        operations = built.graph.get_operations()
        built.close()
    np.testing.assert_allclose(*found, rtol=1e-4)
    assert not any(each.type.startswith("Emulator") for each in operations)
    places = {each.device for each in operations if each.type.startswith(("Conv2D", "DepthwiseConv"))}
    assert places == {"/device:GPU:0", "/device:GPU:1"}
