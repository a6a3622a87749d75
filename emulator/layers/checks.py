"""Check that numbers are finite. The first result or gradient that is not ends the session call with an error that names the
layer. Checks change no result."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

MARK = "floating-point exception"
OVERFLOW, INVALID = "overflow or division by zero", "invalid operation (NaN)"


def check_finite(x: tf.Tensor, where: str) -> tf.Tensor:
    """Return x. If x is not finite, the session call fails with the message [MARK] [what happened] [where]."""
    kind = tf.where_v2(tf.reduce_any(tf.math.is_inf(x)), OVERFLOW, INVALID)
    finite = tf.reduce_all(tf.math.is_finite(x))
    with tf.control_dependencies([tf.raw_ops.Assert(condition=finite, data=[MARK, kind, where])]):
        return tf.identity(x)
