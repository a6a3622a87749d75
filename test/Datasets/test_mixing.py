"""Mixup and cutmix: an image mixes as its label shares say, and only seed and position decide it."""

from __future__ import annotations

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, succeed, variables

from cnn_harness.Datasets.pipeline.mixing import Mixing
from cnn_harness.emulator.program.runtime import new_graph
from cnn_harness.harness.programs import losses
from cnn_harness.harness.programs.build import training_spec
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.resolve import prepare

SIDE = 16
BASE = "--dataset fashion-mnist --model-size 8 --seed 3 --precision 32.32 --no-validation"
BOTH = "--mixup-alpha 0.4 --cutmix-lambda 0.6"


def mixed(mixing: Mixing, batch: int, start: int = 0) -> dict[str, np.ndarray]:
    """Return the mixture of images filled with their position + 1, which is also their label."""
    position = np.arange(start, start + batch)
    image = np.broadcast_to((position + 1.0)[:, None, None, None], (batch, SIDE, SIDE, 3)).astype(np.float32)
    with new_graph().as_default(), tf.Session() as session:
        features = {
            "image": tf.constant(image),
            "label": tf.constant(position + 1, tf.int32),
            "position": tf.constant(position),
        }
        return session.run(mixing(features))


def mixing(**kinds) -> Mixing:
    return Mixing(
        **{"mixup_alpha": 0.0, "cutmix_lambda": 1.0, "cutmix_version": 1, "micro_batch_size": 4, "seed": 7, **kinds}
    )


@pytest.mark.parametrize("micro_batch_size", [2, 3, 8])
@pytest.mark.parametrize("alpha", [0.0, 0.2])
@pytest.mark.parametrize(("kept", "version"), [(1.0, 1), (0.7, 1), (0.7, 2)])
def test_label_shares_match_mixed_image(micro_batch_size, alpha, kept, version):
    if alpha == 0 and kept == 1:
        return
    found = mixed(
        mixing(mixup_alpha=alpha, cutmix_lambda=kept, cutmix_version=version, micro_batch_size=micro_batch_size),
        3 * micro_batch_size,
    )
    np.testing.assert_allclose(found["shares"].sum(1), 1, rtol=1e-6)
    mean = found["image"].mean((1, 2, 3), dtype=np.float64)
    np.testing.assert_allclose(mean, (found["shares"] * found["labels"]).sum(1), rtol=1e-5)
    np.testing.assert_array_equal(found["labels"][:, 0], found["label"])
    assert found["labels"].shape[1] == (2 if alpha else 1) * (2 if kept < 1 else 1)
    together = (found["labels"] - 1) // micro_batch_size
    assert (together == together[:, :1]).all()  # partners are in the same micro-batch


@pytest.mark.parametrize("micro_batch_size", [2, 5])
def test_cutmix_pastes_one_box_of_partner(micro_batch_size):
    found = mixed(mixing(cutmix_lambda=0.75, cutmix_version=2, micro_batch_size=micro_batch_size), micro_batch_size * 4)
    image, labels = found["image"], found["labels"]
    shift = 1 if micro_batch_size == 2 else 2
    np.testing.assert_array_equal(
        labels.reshape(4, micro_batch_size, 2)[..., 1], np.roll(labels.reshape(4, micro_batch_size, 2)[..., 0], shift, 1)
    )
    pasted = image[..., 0] == labels[:, 1, None, None]
    for group in pasted.reshape(4, micro_batch_size, SIDE, SIDE):
        assert (group == group[0]).all()  # one box for the whole micro-batch
        rows, columns = np.flatnonzero(group[0].any(1)), np.flatnonzero(group[0].any(0))
        assert len(rows) == len(columns) == SIDE // 2 and np.ptp(rows) == SIDE // 2 - 1 and group[0].sum() == SIDE**2 // 4
    assert len({tuple(np.argwhere(group[0])[0]) for group in pasted.reshape(4, micro_batch_size, SIDE, SIDE)}) > 1


@pytest.mark.parametrize("alpha", [0.02, 0.2, 1.0, 3.0])
def test_mixup_coefficients_follow_beta_distribution(alpha):
    """The Kolmogorov-Smirnov distance to as many NumPy draws is below its 1 in 10,000 point."""
    count = 20_000
    drawn = np.random.default_rng(0).beta(alpha, alpha, count)
    image, position = np.zeros((count, 1, 1, 1), np.float32), np.arange(count)
    with new_graph().as_default(), tf.Session() as session:
        features = {"image": tf.constant(image), "label": tf.zeros([count], tf.int32), "position": tf.constant(position)}
        found = session.run(mixing(mixup_alpha=alpha)(features)["shares"])[:, 0].astype(np.float64)
    ours, theirs = np.sort(found), np.sort(np.maximum(drawn, 1 - drawn).astype(np.float32).astype(np.float64))
    at = np.unique(np.concatenate([ours, theirs]))
    distance = np.abs(np.searchsorted(ours, at, "right") - np.searchsorted(theirs, at, "right")).max() / count
    assert distance < 2.23 * np.sqrt(2 / count)


def test_seed_and_position_decide_alone():
    kinds = {"mixup_alpha": 0.4, "cutmix_lambda": 0.6, "micro_batch_size": 4}
    whole = mixed(mixing(**kinds), 12)
    for first in (0, 4, 8):
        part = mixed(mixing(**kinds), 4, start=first)
        for name in part:
            np.testing.assert_array_equal(part[name], whole[name][first : first + 4], err_msg=name)
    assert not np.array_equal(mixed(mixing(**kinds, seed=8), 12)["shares"], whole["shares"])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_uses_mixed_targets(smoothing):
    draw = np.random.default_rng(2)
    logits, labels = draw.normal(size=(6, 10)), draw.integers(0, 10, (6, 4))
    shares = draw.dirichlet(np.ones(4), 6)
    one_hot = np.where(np.arange(10) == labels[..., None], 1 - smoothing, smoothing / 9)
    targets = (one_hot * shares[..., None]).sum(1)
    positive = 1 / (1 + np.exp(-logits))
    expected = {
        "cross-entropy": -(targets * (logits - np.log(np.exp(logits).sum(1, keepdims=True)))).sum(1),
        "bce": -(targets * np.log(positive) + (1 - targets) * np.log(1 - positive)).mean(1),
    }
    factors, mixed_images = draw.uniform(0.2, 3, 10), {"label": labels[:, 0], "labels": labels, "shares": shares}
    for kind, values in expected.items():
        with new_graph().as_default(), tf.Session() as session:
            features = {name: tf.constant(value) for name, value in mixed_images.items()}
            found = session.run(losses.Loss(kind, smoothing, tuple(factors))(tf.constant(logits), features))
        np.testing.assert_allclose(found, values * (factors[labels] * shares).sum(1), rtol=1e-12)


def test_class_weights_balance_classes(tmp_path):
    """4, 1 and 1 training images, after the validation split took the rest."""
    for name, count in (("ant", 6), ("bee", 2), ("cat", 1)):
        photos.write_tree(tmp_path / "set", count, (name,), kinds=["grey JPEG"])
    words = f"--dataset imagefolder --data-dir {tmp_path / 'set'} --validation-split 0.34 --model-size 18 --batch-size 2"
    run = prepare(cli.parse([*words.split(), "--class-weights", "balanced"], "train", environ={}).options, {}).run
    assert training_spec(run, 0).loss.class_weights == (0.5, 2, 2)
    assert training_spec(prepare(cli.parse(words.split(), "train", environ={}).options, {}).run, 0).loss.class_weights == ()


@pytest.mark.slow
def test_host_device_and_layout_mix_alike(tmp_path):
    """On the host or the device, folded or pipelined, unbroken or resumed: the same bits."""
    train = f"{BASE} {BOTH} --batch-size 4 --gradient-accumulation-count 4 --iterations 4 --log-dir {tmp_path}"
    first = variables(succeed("train", *f"{train} --fold 1".split()).folder, 4)
    pipeline = "--shards 2 --pipeline --pipeline-splits b2/0/relu"
    for other in ("--hostside-image-mixing --fold 1", f"--fold 1 {pipeline}"):
        assert_same_bits(first, variables(succeed("train", *f"{train} {other}".split()).folder, 4))
    stopped = succeed("train", *f"{train} --fold 1 --stop-after 2".split()).folder
    assert_same_bits(first, variables(succeed("restore", "--restore-path", stopped) and stopped, 4))
    plain = succeed("train", *f"{train} --fold 1 --mixup-alpha 0 --cutmix-lambda 1".split()).folder
    with pytest.raises(AssertionError, match="differ"):
        assert_same_bits(first, variables(plain, 4))


@pytest.mark.slow
def test_mixed_run_is_validated_per_image(tmp_path):
    folder = succeed("train", *f"{BASE} {BOTH} --iterations 1 --log-dir {tmp_path}".split()).folder
    assert (
        "top-1"
        in succeed(
            "validation", "--restore-path", folder / "ckpt-1", "--batch-size", 1, "--log-dir", tmp_path, "--no-logs"
        ).out
    )
