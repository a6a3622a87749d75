"""Checks records and pictures one by one, with the decoder that training uses."""

from __future__ import annotations

from pathlib import Path

from Datasets.formats import image_headers, tf_example
from Datasets.pipeline import decoding


class ExampleChecker:
    """A check of Examples that any number of threads may use. Without `decode` only the Examples and their labels are
    checked."""

    def __init__(self, decode: bool) -> None:
        self._decoder = decoding.Decoder() if decode else None

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
        return self._decoder and self._decoder.fault(encoded)

    def file(self, file: Path) -> str | None:
        """Why a file cannot be decoded; without `decode`, why its header is no picture's."""
        return self._decoder.file_fault(file) if self._decoder else image_headers.file_fault(file)
