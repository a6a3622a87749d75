"""The draws agree with a plain NumPy SplitMix64 and look random."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from splitmix import reference_below, reference_bits

from cnn_harness.base import draws


def evaluated(make):
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(make())


def test_one_counter_gives_splitmix64():
    # the published sequence of SplitMix64 seeded with 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert evaluated(lambda: draws.bits(1234567, tf.range(3))).tolist() == published


def test_bits_uniform_below_and_pairs_match_reference():
    key = draws.key(7, "test")
    first, second = np.arange(5, dtype=np.int64)[:, None], np.array([0, 1, 1 << 40], np.int64)
    whole, unit, nine, pairs = evaluated(
        lambda: (
            draws.bits(key, first, second),
            draws.uniform(key, first, second),
            draws.uniform_below(9, key, first, second),
            draws.seed_pairs(key, first, second),
        )
    )
    for i in range(5):
        for j in range(3):
            expected = reference_bits(key, i, int(second[j]))
            assert int(whole[i, j]) == expected
            assert unit[i, j] == (expected >> 40) * 2.0**-24
            assert nine[i, j] == reference_below(9, key, i, int(second[j]))
            assert pairs[i, j].view(np.uint32).tolist() == [expected & 0xFFFFFFFF, expected >> 32]


def test_keys_differ_by_seed_and_purpose():
    keys = {draws.key(seed, what) for seed in range(20) for what in ("data/flip", "data/order", "dropout")}
    assert len(keys) == 60
    low, high = draws.stateless_seed(3, "x")
    assert (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32 == draws.key(3, "x")
    assert -(1 << 31) <= low < 1 << 31 and -(1 << 31) <= high < 1 << 31


def test_uniform_draws_are_uniform_and_independent():
    n = 200_000
    x = evaluated(lambda: draws.uniform(draws.key(1, "uniform"), tf.range(n))).astype(np.float64)
    assert x.min() >= 0 and x.max() < 1
    assert abs(x.mean() - 0.5) < 5 / np.sqrt(12 * n)
    counts = np.histogram(x, 50, (0, 1))[0]
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 49 + 5 * np.sqrt(2 * 49)
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 5 / np.sqrt(n)


def test_below_reaches_values_evenly():
    n = 90_000
    counts = np.bincount(evaluated(lambda: draws.uniform_below(9, draws.key(2, "below"), tf.range(n), 4)), minlength=9)
    assert len(counts) == 9
    assert ((counts - n / 9) ** 2 / (n / 9)).sum() < 8 + 5 * np.sqrt(2 * 8)


def test_permuted_is_keyed_permutation_for_every_size():
    sizes = (1, 2, 3, 7, 64, 1000, 1001)

    def orders():
        return [
            [
                draws.permuted(tf.range(n, dtype=tf.int64), tf.fill([n], epoch), n, key)
                for epoch, key in ((0, 5), (1, 5), (0, 6))
            ]
            for n in sizes
        ]

    for n, three in zip(sizes, evaluated(orders), strict=True):
        for order in three:
            assert np.array_equal(np.sort(order), np.arange(n))
        if n >= 64:
            assert all((three[0] == other).mean() < 0.1 for other in (*three[1:], np.arange(n)))
