"""Random draws as pure functions of a key and counters. A key is computed from the run's seed and a purpose.

Draws have no state: the same key and counters give the same number in any order, on any number of threads, and after a
restart. Keys are computed in Python. The counters (sample position, epoch, element) are tensors, so that a few vector
operations draw numbers for a whole batch.

The generator applies the finaliser of SplitMix64 once per counter (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014). To draw a number for every element of a large tensor, two rounds of a
32-bit mixer with Wellons' low-bias constants expand SplitMix64's words. Neither generator is cryptographically secure.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from cnn_harness.base import keys
from cnn_harness.base.tracing import traced

_GOLDEN = 0x9E3779B97F4A7C15


class Keys:
    """A substitute for a seed: each key is a placeholder, so that one graph can be used with every seed."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # purpose of a key -> name of its placeholder operation
        self._placeholders: dict[str, tf.Tensor] = {}

    def key(self, what: str) -> tf.Tensor:
        """Return the placeholder for the key of a purpose, uint64 [], outside all loops and conditions."""
        if what not in self._placeholders:
            with tf.control_dependencies(None), tf.device(None):
                self._placeholders[what] = tf.placeholder(tf.uint64, [], f"key_{len(self.names)}")
            self.names[what] = self._placeholders[what].op.name
        return self._placeholders[what]


Seed = int | Keys
Key = int | tf.Tensor


def key(seed: Seed, what: str) -> Key:
    """Return the 64-bit key for a seed and a purpose, such as "data/flip" or "all/Top/dropout"."""
    if isinstance(seed, Keys):
        return seed.key(what)
    return keys.key(seed, what)


def stateless_seed(seed: Seed, what: str) -> tuple[int, int] | tf.Tensor:
    """Return the two int32 halves of a key, the lower first, as a seed for TensorFlow's stateless operations."""
    whole = key(seed, what)
    if isinstance(whole, tf.Tensor):
        return tf.bitcast(whole, tf.int32)
    return _signed(whole & 0xFFFFFFFF), _signed(whole >> 32)


def bits(key: Key, *counters: tf.Tensor) -> tf.Tensor:
    """Return 64 random bits (uint64) for each element of the broadcast integer counters."""
    state = tf.convert_to_tensor(key, tf.uint64)
    for counter in counters:
        state = _counted(state, tf.cast(counter, tf.uint64))
    return state


@traced
def _counted(state: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    return _mix(state + tf.constant(_GOLDEN, tf.uint64) * (counter + 1))


def uniform(key: Key, *counters: tf.Tensor) -> tf.Tensor:
    """Return a float32 in [0, 1), a multiple of 2^-24, for each element of the broadcast counters."""
    top = tf.bitwise.right_shift(bits(key, *counters), tf.constant(40, tf.uint64))
    return tf.cast(tf.cast(top, tf.int32), tf.float32) * (2.0**-24)


def uniform_of_words(words: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
    """Return a float32 in [0, 1), a multiple of 2^-24, for each index in `place` (int32, at least 0).

    `words` are random bits, uint64, broadcast with `place`. All steps use 32 bits, because vector units process them fast
    and this function draws noise for every element of the weights.
    """
    low, high = (tf.cast(w, tf.uint32) for w in (words, tf.bitwise.right_shift(words, tf.constant(32, tf.uint64))))
    z = tf.cast(place, tf.uint32) * tf.constant(_GOLDEN >> 32, tf.uint32) + low
    z = _xor_shift(z, 16) * tf.constant(0x21F0AAAD, tf.uint32)
    z = _xor_shift(z, 15) * tf.constant(0x735A2D97, tf.uint32)
    z = tf.bitwise.bitwise_xor(_xor_shift(z, 15), high)
    z = _xor_shift(z, 16) * tf.constant(0x21F0AAAD, tf.uint32)
    top = tf.bitwise.right_shift(_xor_shift(z, 15), tf.constant(8, tf.uint32))
    return tf.cast(tf.bitcast(top, tf.int32), tf.float32) * (2.0**-24)


def uniform_below(limit: int, key: Key, *counters: tf.Tensor) -> tf.Tensor:
    """Return an int32 in [0, limit) per counter; `limit` is at most 2^31. The bias is below limit / 2^32."""
    top = tf.bitwise.right_shift(bits(key, *counters), tf.constant(32, tf.uint64))
    scaled = tf.bitwise.right_shift(top * tf.constant(limit, tf.uint64), tf.constant(32, tf.uint64))
    return tf.cast(scaled, tf.int32)


def seed_pairs(key: Key, *counters: tf.Tensor) -> tf.Tensor:
    """Return seeds for TensorFlow's stateless operations, int32 [..., 2], one pair per counter."""
    whole = bits(key, *counters)
    low = tf.bitcast(tf.cast(tf.bitwise.bitwise_and(whole, tf.constant(0xFFFFFFFF, tf.uint64)), tf.uint32), tf.int32)
    high = tf.bitcast(tf.cast(tf.bitwise.right_shift(whole, tf.constant(32, tf.uint64)), tf.uint32), tf.int32)
    return tf.stack([low, high], axis=-1)


def permuted(index: tf.Tensor, epoch: tf.Tensor, size: int, key: Key) -> tf.Tensor:
    """Return the elements `index` [n] of random permutations of range(size), int64 [n].

    Each key and epoch [n] has its own permutation. TensorFlow's RandomIndexShuffle computes any element directly, without
    a shuffled list in memory.
    """
    low, high = tf.unstack(tf.bitcast(tf.convert_to_tensor(key, tf.uint64), tf.uint32))
    low, high = (tf.fill(tf.shape(index), word) for word in (low, high))
    seeds = tf.stack([low, high, tf.cast(epoch, tf.uint32)], axis=-1)
    return tf.raw_ops.RandomIndexShuffle(
        index=tf.cast(index, tf.int64), seed=seeds, max_index=tf.constant(size - 1, tf.int64), rounds=8
    )


def _mix(z: tf.Tensor) -> tf.Tensor:
    z = _xor_shift(z, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    z = _xor_shift(z, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return _xor_shift(z, 31)


def _xor_shift(z: tf.Tensor, by: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(z, tf.bitwise.right_shift(z, tf.constant(by, z.dtype)))


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
