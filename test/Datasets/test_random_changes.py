"""Random changes of training images: operations compared with Pillow and float64, erased rectangles, streams of any layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image, ImageEnhance, ImageOps
from small_sets import cifar10
from splitmix import reference_bits
from streams import assert_equal, joined, opened, small, take

from cnn_harness.base import draws
from cnn_harness.Datasets.pipeline import auto_augment

SIDE = 48
ALL = {"policy": "rand", "colour_jitter": 0.4, "random_erasing": 0.5}
CHANGES = [{"policy": "trivial"}, {"policy": "rand"}, {"colour_jitter": 0.4}, {"random_erasing": 0.5}]


def sample_image() -> np.ndarray:
    """Return slopes with noise, in which some values are frequent and some missing."""
    noise = np.random.default_rng(0).integers(0, 40, (SIDE, SIDE, 3))
    return (np.asarray(photos.plain_image(1, SIDE, SIDE)) // 2 + noise).astype(np.uint8)


def changed(name: str, amount: float) -> np.ndarray:
    with tf.Graph().as_default(), tf.Session() as session:
        image = tf.constant(sample_image(), tf.float32)
        return session.run(auto_augment.OPERATIONS[name].change(image, tf.constant(float(amount))))


# --- Operations ------------------------------------------------------------------------------------------------

ENHANCED = {
    "brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "colour": ImageEnhance.Color,
    "sharpness": ImageEnhance.Sharpness,
}  # fmt: skip


@pytest.mark.parametrize("name", ENHANCED)
def test_enhancing_matches_pillow_within_rounding(name):
    """Pillow rounds the blending image and truncates the result."""
    for amount in (-0.9, -0.3, 0.0, 0.9):
        expected = ENHANCED[name](Image.fromarray(sample_image())).enhance(1 + amount)
        bound = 1 + abs(amount) if amount else 0  # no difference is allowed without change
        np.testing.assert_allclose(changed(name, amount), np.asarray(expected, np.float64), atol=bound, rtol=0)


@pytest.mark.parametrize(
    ("name", "amount", "expected", "atol"),
    [
        *[("posterize", bits, lambda image, bits=bits: ImageOps.posterize(image, 8 - bits), 0) for bits in (0, 1, 4)],
        *[("solarize", by, lambda image, by=by: ImageOps.solarize(image, 256 - by), 0) for by in (0, 100, 256)],
        ("equalize", 0, ImageOps.equalize, 0),
        ("autocontrast", 0, ImageOps.autocontrast, 1),  # truncates fractions
        ("identity", 0, lambda image: image, 0),
    ],
)
def test_other_operations_match_pillow(name, amount, expected, atol):
    np.testing.assert_allclose(
        changed(name, amount), np.asarray(expected(Image.fromarray(sample_image())), float), atol=atol
    )


def warped(image: np.ndarray, matrix: np.ndarray, shift: tuple[float, float]) -> np.ndarray:
    """Map each pixel (x, y) by the matrix about the centre plus the shift, bilinear, grey outside, in float64."""
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    places = np.einsum("ij,jhw->ihw", matrix, np.stack([x, y])) + np.array(shift)[:, None, None] + (SIDE - 1) / 2
    first = np.floor(places).astype(int)
    framed = np.full((3 * SIDE, 3 * SIDE, 3), auto_augment.FILL)
    framed[SIDE : 2 * SIDE, SIDE : 2 * SIDE] = image
    total = np.zeros(image.shape)
    for dx in (0, 1):
        for dy in (0, 1):
            weight = np.prod([1 - abs(places[k] - first[k] - d) for k, d in enumerate((dx, dy))], 0)
            total += weight[..., None] * framed[first[1] + dy + SIDE, first[0] + dx + SIDE]
    return total


ANGLE = np.deg2rad(20)
WARPS = {
    "shear x": (0.3, [[1, 0.3], [0, 1]], (0, 0)),
    "shear y": (-0.2, [[1, 0], [-0.2, 1]], (0, 0)),
    "translate x": (0.25, np.eye(2), (0.25 * SIDE, 0)),
    "translate y": (-0.11, np.eye(2), (0, -0.11 * SIDE)),
    "rotate": (20.0, [[np.cos(ANGLE), -np.sin(ANGLE)], [np.sin(ANGLE), np.cos(ANGLE)]], (0, 0)),
}


@pytest.mark.parametrize("name", WARPS)
def test_warps_match_float64(name):
    amount, matrix, shift = WARPS[name]
    np.testing.assert_allclose(changed(name, amount), warped(sample_image(), np.array(matrix), shift), atol=0.01)
    np.testing.assert_allclose(changed(name, 0.0), sample_image(), atol=1e-3)


# --- Draws -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "count"), [("trivial", 1), ("rand", 2)])
def test_policies_follow_their_draws(policy, count):
    """Which operations, by which amounts, in which order; SplitMix64 draws in plain Python."""
    asked, table = small(image_size=SIDE, policy=policy, magnitude=7.0), list(auto_augment.OPERATIONS.values())
    key, expected = draws.key(asked.seed, "data/policy"), []
    with tf.Graph().as_default(), tf.Session() as session:
        first = tf.constant(sample_image(), tf.float32)
        for record in range(12):
            image, uniform = first, [(reference_bits(key, 2, record, k) >> 40) * 2.0**-24 for k in range(6)]
            for which, sign, level in np.reshape(uniform, (2, 3))[:count]:
                each = table[int(which * len(table))]
                size = each.most * (0.7 if policy == "rand" else int(31 * level) / 30)
                image = each.change(image, tf.constant(-size if each.signed and sign < 0.5 else size, tf.float32))
            expected.append(image)
        drawn = auto_augment.draw(tf.range(12), tf.constant(2), asked)
        found = tf.map_fn(lambda each: auto_augment.changed(first, each, asked), drawn)
        np.testing.assert_allclose(*session.run([found, tf.stack(expected)]), atol=1e-3)


def test_erased_rectangles_have_drawn_size():
    side, probability = 64, 0.3
    asked = small(image_size=side, random_erasing=probability)
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = auto_augment.draw(tf.range(400), tf.zeros(400, tf.int32), asked)
        blank = tf.zeros([side, side, 3])
        images = tf.map_fn(lambda each: auto_augment.changed(blank, each, asked), drawn, tf.float32)
        corners = tf.map_fn(lambda each: tf.stack(auto_augment.erased_rectangle(each[10:], side)), drawn, tf.float32)
        drawn, images, corners = session.run([drawn, images, corners])
    erased = images[..., 0] == auto_augment.FILL
    assert np.isin(images, (0, auto_augment.FILL)).all() and (images == images[..., :1]).all()
    assert abs(erased.any((1, 2)).mean() - probability) < 0.07  # 3 deviations
    for mask, corner, numbers in zip(erased, corners.astype(int), drawn):
        top, left, height, width = corner
        assert top >= 0 and left >= 0 and top + height <= side and left + width <= side
        share = 0.02 + 0.38 * numbers[10]
        assert abs(height * width - share * side**2) <= (height + width) / 2 + 0.5  # each side is rounded
        assert 0.25 < height / width < 4
        if mask.any():
            expected = np.zeros_like(mask)
            expected[top : top + height, left : left + width] = True
            np.testing.assert_array_equal(mask, expected)


# --- Streams ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return sources of photos and of records of small images."""
    shards, records = tmp_path_factory.mktemp("shards"), tmp_path_factory.mktemp("records")
    photos.write_imagenet(shards, train=20, validation=4, shards=2)
    return {"imagenet": opened("imagenet", shards), "cifar-10": opened("cifar-10", cifar10(records, 20, 10))}


@pytest.mark.parametrize("drawn", [{}, ALL], ids=["usual", "all"])
@pytest.mark.parametrize("name", ["imagenet", "cifar-10"])
def test_layout_threads_and_resume_change_no_bit(name, drawn, sources):
    """Over more than one epoch, and with batches that are larger than an epoch."""

    def stream(count: int, **changes) -> dict[str, np.ndarray]:
        return joined(take(lambda: sources[name].train(small(**drawn, image_size=32, **changes)), count))

    whole = stream(8)
    assert_equal(whole, stream(16, batch_size=2, pipeline_num_parallel=1, dataset_cache=False))
    assert_equal(whole, stream(1, batch_size=32))
    assert_equal({n: x[12:] for n, x in whole.items()}, stream(5, start=12))
    shares = [stream(3, start=8 + 4 * k, shard_block=4, shard_stride=8) for k in (0, 1)]
    merged = {n: np.stack([s[n].reshape(3, 4, *s[n].shape[1:]) for s in shares], 1) for n in whole}
    assert_equal({n: x[8:] for n, x in whole.items()}, {n: x.reshape(24, *x.shape[3:]) for n, x in merged.items()})


@pytest.mark.parametrize("name", ["imagenet", "cifar-10"])
def test_changes_affect_training_draws_alone(name, sources):
    source, plain = sources[name], small(image_size=32)

    def images(request, stream=source.train) -> dict[str, np.ndarray]:
        return joined(take(lambda: stream(request), 3 if request.augment else 1))

    before = images(plain)
    for changes in CHANGES:
        after = images(replace(plain, **changes))
        assert (after["label"] == before["label"]).all()
        different = [not np.array_equal(a, b) for a, b in zip(before["image"], after["image"])]
        assert 2 <= sum(different) < (12 if "random_erasing" in changes else 13)
    central = replace(plain, augment=False)
    assert_equal(images(central), images(replace(central, **ALL)))
    validated, other = (images(each, source.validation) for each in (central, replace(plain, **ALL)))
    assert_equal(validated, {name: x[: len(validated["image"])] for name, x in other.items()})
