"""Judges records and pictures one by one, with the decoder that training uses."""

from __future__ import annotations

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf.message import DecodeError

from base.process import quiet
from Datasets import _examples, _headers, _photographs


class Decoder:
    """May be called from many threads. Without `decode` only the records' framing and labels are judged."""

    def __init__(self, decode: bool) -> None:
        self._session = None
        if decode:
            with tf.Graph().as_default() as graph:
                self._encoded = tf.placeholder(tf.string, [])
                self._size = tf.shape(_photographs.decoded(self._encoded))
                self._session = tf.Session(graph=graph)

    def example(self, payload: bytes, classes: int) -> str | None:
        """Why a record cannot be used."""
        try:
            features = tf.train.Example.FromString(payload).features.feature
        except DecodeError:
            return "it is no tf.train.Example"
        encoded = features[_examples.ENCODED].bytes_list.value if _examples.ENCODED in features else ()
        label = features[_examples.LABEL].int64_list.value if _examples.LABEL in features else ()
        for name, values in ((_examples.ENCODED, encoded), (_examples.LABEL, label)):
            if len(values) != 1:
                return f"it has {len(values)} values of {name} instead of 1"
        if not 1 <= label[0] <= classes:
            return f"its label is {label[0]}, outside 1 to {classes}"
        reason = self.picture(encoded[0])
        return reason and f"its picture {reason}"

    def picture(self, encoded: bytes) -> str | None:
        """Why a picture cannot be decoded."""
        if self._session is None:
            return None
        wrong = _headers.fault(encoded)
        if wrong:
            return wrong
        try:
            self._session.run(self._size, {self._encoded: np.array(encoded, object)})
        except tf.errors.OpError as error:
            return f"cannot be decoded: {quiet.telling_line(error)}"
        return None
