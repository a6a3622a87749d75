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

    def example(self, payload: bytes, labels: range) -> str | None:
        """Why a record cannot be used."""
        return tf_example.fault(payload, labels, self.picture)

    def picture(self, encoded: bytes) -> str | None:
        """Why a picture cannot be decoded."""
        return self._decoder and self._decoder.fault(encoded)

    def file(self, file: Path) -> str | None:
        """Why a file cannot be decoded; without `decode`, why its header is no picture's."""
        return self._decoder.file_fault(file) if self._decoder else image_headers.file_fault(file)
