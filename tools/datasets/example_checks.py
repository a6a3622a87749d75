"""Checks records and pictures one by one, with the decoder that training uses."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf

from base.process import tf_runtime
from Datasets.formats import image_headers, tf_example
from Datasets.pipeline import decoding


class ExampleChecker:
    """A check of Examples that any number of threads may use. Without `decode` only the Examples and their labels are
    checked."""

    def __init__(self, decode: bool) -> None:
        self._session = None
        if decode:
            with tf.Graph().as_default() as graph:
                self._encoded = tf.placeholder(tf.string, [])
                self._size = tf.shape(decoding.whole(self._encoded))
                self._session = tf.Session(graph=graph)

    def example(self, payload: bytes, classes: int) -> str | None:
        """Why a record cannot be used."""
        example = tf_example.parse(payload)
        if example is None:
            return tf_example.UNPARSED
        for name, values in ((tf_example.ENCODED, example.encoded), (tf_example.LABEL, example.labels)):
            if len(values) != 1:
                return f"it has {len(values)} values of {name} instead of 1"
        if not 1 <= example.labels[0] <= classes:
            return f"its label is {example.labels[0]}, outside 1 to {classes}"
        reason = self.picture(example.encoded[0])
        return f"its picture {reason}" if reason else example.box_fault

    def picture(self, encoded: bytes) -> str | None:
        """Why a picture cannot be decoded."""
        if self._session is None:
            return None
        wrong = image_headers.fault(encoded)
        if wrong:
            return wrong
        try:
            self._session.run(self._size, {self._encoded: np.array(encoded, object)})
        except tf.errors.OpError as error:
            return f"cannot be decoded: {tf_runtime.telling_line(error)}"
        return None
