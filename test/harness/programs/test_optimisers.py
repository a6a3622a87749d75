"""Update rules agree with float64 NumPy over 20 updates, skip what they should, and ignore the loss scale."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import succeed, variables

from cnn_harness.base.errors import OptionError
from cnn_harness.emulator.program.runtime import new_graph, session_config
from cnn_harness.harness.options.sections import TrainingOptions
from cnn_harness.Optimisers._rule import UpdateRule, named_by

BASE = "--precision 32.32 --dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --no-validation --iterations 5"
RATES = "--abs-learning-rate 0.02 --warmup-epochs 0 --learning-rate-decay 1 --weight-decay 1e-3"
UPDATES = 20
SKIPPED = ("beta", "bias")


def rule(name: str, **values: object) -> UpdateRule:
    return TrainingOptions(optimiser=name, **values).update_rule(768)


RULES = {
    "SGD": rule("SGD"),
    "momentum": rule("momentum", momentum=0.8),
    "momentum --nesterov": rule("momentum", momentum=0.8, nesterov=True),
    "RMSprop": rule("RMSprop", rmsprop_decay=0.95, momentum=0.8, rmsprop_epsilon=1e-3),
    "LARS": rule("LARS", momentum=0.8, lars_weight_decay=0.02, lars_eeta=0.01, lars_epsilon=1e-4, lars_skip_list=SKIPPED),
    "LAMB": rule(
        "LAMB", lamb_beta1=0.85, lamb_beta2=0.99, lamb_epsilon=1e-5, lamb_weight_decay=0.02, lamb_skip_list=SKIPPED
    ),
    "Adam": rule("Adam", adam_beta1=0.85, adam_beta2=0.99, adam_epsilon=1e-5),
}


def rms(w, s, g, rate, t, skipped):
    s["ms"] = 0.95 * s.get("ms", 1.0) + 0.05 * g * g
    s["mom"] = 0.8 * s.get("mom", 0.0) + rate * g / np.sqrt(s["ms"] + 1e-3)
    return w - s["mom"]


def momentum(w, s, g, rate, t, skipped):
    s["a"] = 0.8 * s.get("a", 0.0) + g
    return w - rate * s["a"]


def nesterov(w, s, g, rate, t, skipped):
    s["a"] = 0.8 * s.get("a", 0.0) + g
    return w - rate * (g + 0.8 * s["a"])


def lars(w, s, g, rate, t, skipped):
    of_w, of_g = np.linalg.norm(w), np.linalg.norm(g)
    step = rate * g
    if not skipped:
        trust = 0.01 * of_w / (of_g + 0.02 * of_w + 1e-4) if of_w > 0 and of_g > 0 else 1.0
        step = rate * trust * (g + 0.02 * w)
    s["a"] = 0.8 * s.get("a", 0.0) + step
    return w - s["a"]


def lamb(w, s, g, rate, t, skipped):
    s["m"] = 0.85 * s.get("m", 0.0) + 0.15 * g
    s["v"] = 0.99 * s.get("v", 0.0) + 0.01 * g * g
    u = s["m"] / (1 - 0.85**t) / (np.sqrt(s["v"] / (1 - 0.99**t)) + 1e-5)
    ratio = 1.0
    if not skipped:
        u = u + 0.02 * w
        of_w, of_u = np.linalg.norm(w), np.linalg.norm(u)
        ratio = of_w / of_u if of_w > 0 and of_u > 0 else 1.0
    return w - rate * ratio * u


def adam(w, s, g, rate, t, skipped):
    s["m"] = 0.85 * s.get("m", 0.0) + 0.15 * g
    s["v"] = 0.99 * s.get("v", 0.0) + 0.01 * g * g
    return w - rate * np.sqrt(1 - 0.99**t) / (1 - 0.85**t) * s["m"] / (np.sqrt(s["v"]) + 1e-5)


REFERENCES = {
    "SGD": lambda w, s, g, rate, t, skipped: w - rate * g,
    "momentum": momentum,
    "momentum --nesterov": nesterov,
    "RMSprop": rms,
    "LARS": lars,
    "LAMB": lamb,
    "Adam": adam,
}


@pytest.mark.parametrize("name", ["all/b0/kernel", "all/b0/beta", "all/b0/nought/kernel", "all/b0/still/kernel"])
@pytest.mark.parametrize("rule", RULES)
def test_twenty_updates_match_float64(rule, name):
    draw = np.random.default_rng(4)
    start = np.zeros((3, 5)) if "nought" in name else draw.normal(size=(3, 5))
    gradients = draw.normal(size=(UPDATES, 3, 5)) * (0 if "still" in name else 1)
    rates = draw.uniform(0.01, 0.2, UPDATES)
    expected, state = start, {}
    for t in range(UPDATES):
        expected = REFERENCES[rule](expected, state, gradients[t], rates[t], t + 1, named_by(SKIPPED)(name))
    for dtype, tolerance in ((tf.float64, 1e-12), (tf.float32, 3e-6)):
        with new_graph().as_default():
            w = tf.constant(start, dtype)
            slots = {slot: tf.fill([3, 5], tf.constant(value, dtype)) for slot, value in RULES[rule].slots.items()}
            for t in range(UPDATES):
                g, rate = tf.constant(gradients[t], dtype), tf.constant(rates[t], dtype)
                w, slots = RULES[rule].update(name, w, slots, g, rate, tf.constant(t, tf.int64))
            assert slots.keys() == RULES[rule].slots.keys()
            with tf.Session(config=session_config()) as session:
                found = session.run(w)
        assert np.abs(found - expected).max() < tolerance * max(1.0, np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["LAMB", "RMSprop --clip-grad-norm 1"])
def test_loss_scale_changes_only_rounding(rule, tmp_path):
    found = []
    for scale in (1, 128):
        words = f"{BASE} {RATES} --optimiser {rule} --loss-scaling {scale} --logs-path {tmp_path / str(scale)}"
        succeed("train", *words.split())
        found.append(variables(tmp_path / str(scale), 5))
    one, other = found
    start = variables(tmp_path / "1", 0)
    for name in one:
        if name.endswith("kernel"):
            assert np.abs(one[name] - start[name]).max() > 3e-5
            assert np.abs(one[name] - other[name]).max() <= 0.02 * np.abs(one[name] - start[name]).max() + 1e-6, name


@pytest.mark.slow
def test_lars_works_with_proxy_norm(tmp_path):
    words = (
        "--dataset fashion-mnist --model efficientnet --width-coefficient 0.25 --depth-coefficient 0.2 --groups 1 --proxy-norm "
        "--image-size 16 --top-width 64 --expand-ratio 1 --no-se --optimiser LARS --abs-learning-rate 0.5 --batch-size 4 --iterations 2 --seed 3 --no-validation "
        "--gradient-accumulation-count 4 --shards 2 --pipeline --pipeline-splits auto"
    )
    succeed("train", *words.split(), "--precision", "16.16", "--logs-path", tmp_path / "run")
    before, after = variables(tmp_path / "run", 0), variables(tmp_path / "run", 2)
    proxies = [name for name in after if name.endswith("/proxy")]
    assert proxies and all(np.isfinite(after[name]).all() for name in proxies)
    for name in proxies:
        rows = after[name]
        assert not np.array_equal(before[name], rows)
        # the statistics are those of the other rows: 0 and 1 give the initial values
        assert rows.dtype == np.float32 and (rows[3] > 0).all()
        trained = rows[[0, 1, 4, 5]]
        np.testing.assert_array_equal(trained, trained.astype(np.float16).astype(np.float32))


@pytest.mark.slow
def test_rules_with_norms_treat_proxy_rows_separately(tmp_path):
    """Skipped by name, as beta and gamma of other norms are, or all together. Otherwise each row is scaled by its own norm,
    without those of the statistics.
    """
    words = (
        "--dataset fashion-mnist --model efficientnet --width-coefficient 0.25 --depth-coefficient 0.2 --groups 1 --proxy-norm "
        "--image-size 16 --top-width 64 --expand-ratio 1 --no-se --optimiser LAMB --abs-learning-rate 0.5 --batch-size 4 "
        "--iterations 2 --seed 3 --no-validation --precision 32.32 --warmup-epochs 0 --lamb-weight-decay 0.05"
    )
    after = {}
    for skipped in ("beta gamma bias", "beta gamma bias proxy", "gamma bias"):
        folder = tmp_path / skipped
        succeed("train", *words.split(), "--lamb-skip-list", *skipped.split(), "--logs-path", folder)
        after[skipped] = variables(folder, 2)
    proxy = next(name for name in after["gamma bias"] if name.endswith("/proxy"))
    by_rows, whole, scaled = after.values()
    assert all(np.array_equal(by_rows[name], whole[name]) for name in whole)
    moved = [not np.array_equal(scaled[proxy][row], whole[proxy][row]) for row in (0, 1, 4, 5)]
    assert moved == [True, False, True, False]


@pytest.mark.slow
def test_adamw_decays_weights_apart_from_update(tmp_path):
    """By rate x decay of the old value; neither the moments nor the loss scale affect the decay."""
    after, tenth = {}, "--abs-learning-rate 0.1 --warmup-epochs 0 --iterations 1"
    for decay in (0, 0.25):
        words = f"{BASE} {tenth} --optimiser AdamW --weight-decay {decay}".split()
        succeed("train", *words, "--logs-path", tmp_path / str(decay))
        after[decay] = variables(tmp_path / str(decay), 1)
    for name, start in variables(tmp_path / "0", 0).items():
        if name.endswith(("kernel", "gamma")):
            np.testing.assert_allclose(after[0.25][name], after[0][name] - np.float32(0.025) * start, atol=1e-7)
            assert np.abs(after[0][name] - start).max() > 0.05
        elif "Adam" in name:
            np.testing.assert_array_equal(after[0.25][name], after[0][name])


def test_rmsprop_decay_follows_batch():
    assert rule("RMSprop", rmsprop_decay=0.7).decay == 0.7
    assert rule("RMSprop").decay == 0.9
    assert rule("RMSprop", rmsprop_base_decay_exp=-14.0).decay == 0.953125
    with pytest.raises(OptionError, match=r"1 - 768 x 0.0625 = -47 must be between 0 and 1"):
        _ = rule("RMSprop", rmsprop_base_decay_exp=-4.0).decay
    both = rule("RMSprop", rmsprop_decay=0.7, rmsprop_base_decay_exp=-14.0)
    assert both.decay == 0.7 and "is ignored, because --rmsprop-decay 0.7" in next(both.check())
