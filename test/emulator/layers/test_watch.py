"""Arithmetic faults are named: layer and update of the first exception, and the number of gradients that FP16 lost."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, run, succeed, training_program, variables

from cnn_harness.emulator.layers.watch import GradientWatch, WatchedLayers
from cnn_harness.emulator.plan.number_formats import E5M2FNUZ, FP16
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.harness.programs.build import training_spec, validation_program
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.resolve import prepare

BASE = (
    "--dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --optimiser momentum --precision 16.16 --no-validation"
)
NETS = {"batch": "--model resnet --batch-norm", "group": "--model resnet --group-norm"}


def prepared(words: str):
    return prepare(cli.parse(f"{BASE} {words}".split(), "train", environ={}).options, {}).run


def planted(program, name: str, value: float) -> None:
    """Fill a variable with a value too large for the following layers."""
    values = program.values()
    values[name] = np.full_like(values[name], value)
    program.load(values)


@pytest.mark.parametrize(
    ("net", "precision", "value", "what"),
    [
        ("batch", "16.16", 6e4, "overflow or division by zero"),
        ("group", "16.32", 6e4, "overflow or division by zero"),
        ("batch", "32.32", np.nan, "invalid operation (NaN)"),
    ],
)
def test_forward_overflow_is_named(net, precision, value, what):
    with closing(training_program(prepared(f"{NETS[net]} --precision {precision} --fp-exceptions"), 0)) as program:
        program.step([1e-3, 1e-3])
        kernels = [name for name in program.values() if name.endswith("conv2d/kernel")]
        name = kernels[len(kernels) // 2]
        planted(program, name, value)
        with pytest.raises(FloatingPointError) as caught:
            program.step([1e-3])
    assert str(caught.value) == f"{what} in {name.removesuffix('2d/kernel').removesuffix('/conv')}, forward, in update 3"


def test_backward_overflow_is_named():
    """Only the loss scale takes it beyond FP16: the forward pass has no fault."""
    expected = pytest.raises(FloatingPointError, match="overflow or division by zero in .*all/fc1/dense.*, in update 1")
    with closing(training_program(prepared("--loss-scaling 1e7 --fp-exceptions"), 0)) as program, expected:
        program.step([1e-3])


@pytest.mark.slow
def test_saturation_is_reported(tmp_path):
    words = f"{BASE} --loss-scaling 1e7 --saturate-on-overflow --iterations 1 --log-dir {tmp_path}"
    stopped = run("train", *words.split(), "--fp-exceptions")
    assert stopped.code == 1 and "overflow or division by zero in" in stopped.err and stopped.err.count("\n") == 1
    assert "restore.py --restore-path" in stopped.out
    unsaturated = run("train", *words.replace("--saturate-on-overflow", "--analyse-nans").split())
    assert unsaturated.code == 1 and "invalid operation (NaN) in" in unsaturated.err and ", in update 1" in unsaturated.err


@pytest.mark.slow
def test_watching_changes_no_bit(tmp_path):
    for name, extra in (("plain", ""), ("watched", "--fp-exceptions")):
        succeed(
            "train",
            *f"{BASE} --gradient-accumulation-count 4 --fold 1 {extra} --iterations 2 --logs-path {tmp_path / name}".split(),
        )
    assert_same_bits(variables(tmp_path / "plain", 2), variables(tmp_path / "watched", 2))


def test_validation_names_layer():
    program = validation_program(prepared("--precision 32.32 --fp-exceptions"), Execution(seed=0))
    with closing(program):
        values = {name: np.zeros(variable.shape, np.float32) for name, variable in program.state.model.items()}
        values["all/b3/0/2/conv/conv2d/kernel"][:] = np.inf
        program.load(values)
        program.rewind()
        with pytest.raises(FloatingPointError, match="all/b3/0/2"):
            program.step(0, 1)


@pytest.mark.parametrize(
    ("words", "inner", "limit"), [("", (FP16, E5M2FNUZ), E5M2FNUZ.overflow), ("--format-scaling", (FP16,), FP16.overflow)]
)
def test_adaptive_formats_ignore_loss_scale(words, inner, limit):
    """Gradients are first rounded to the format of results, which does not adapt."""
    spec = training_spec(prepared(f"{NETS['batch']} --precision 8.16 {words}"), 0)
    formats = spec.watched_layers.formats
    assert formats["all/b1/0/1/conv"] == inner and formats["all/fc1/dense"] == (FP16,) and spec.gradient_limit == limit


def test_gradients_lost_in_fp16_are_counted():
    """In the first image, a quarter would round to 0 and an eighth overflows; zeros elsewhere do not count."""
    dy = np.full((2, 4, 4, 2), 1.0, np.float32)
    dy[0].reshape(-1)[:8] = [0, 2.0**-25, -(2.0**-26), 1e-9, 2.9e-8, -1e-30, 0, 2.0**-25]
    dy[0].reshape(-1)[8:12] = [65520, -np.inf, np.nan, 1e6]
    dy[0].reshape(-1)[12:15] = [65519, 2.0**-24, 3e-8]
    dy[1] = 0
    watch = GradientWatch(WatchedLayers(dict.fromkeys("abc", (FP16,)), frozenset(["a"])))
    with new_graph().as_default(), tf.Session() as session:
        for name in ("a", "b"):
            x = tf.zeros(dy.shape)
            (back,) = tf.gradients(watch.watch_gradient(x, name), [x], tf.constant(dy))
            np.testing.assert_array_equal(session.run(back), dy)
        found = session.run(watch.lost_shares())
    np.testing.assert_allclose(found, [[8 / 32, 4 / 32], [0, 4 / 32], [0, 0]])


@pytest.mark.parametrize(
    ("scale", "expected"), [("1e-3", "gradients underflow: "), ("1e7", "gradients overflow: "), ("128", None)]
)
def test_run_reports_lost_gradients(scale, expected, tmp_path):
    words = f"{BASE} --loss-scaling {scale} --iterations 8 --log-freq 4 --batches-per-step 4 --no-logs"
    result = run("train", *words.split())
    out, overflows = result.out, expected is not None and "overflow" in expected
    assert result.code == overflows, result.err  # non-finite weights end the run
    assert out.count("flow: ") == (1 if expected else 0) and (not expected or expected in out), out
    assert not overflows or "a smaller --loss-scaling than 1e+07 may help; " in result.err, result.err
