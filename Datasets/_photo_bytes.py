"""Photographs in files of their own, as far as their bytes tell what they are; without TensorFlow."""

from __future__ import annotations

from base.errors import DataError
from base.storage import input_files
from Datasets import _headers


def photograph(path: str) -> bytes:
    """A file's bytes; DataError if it cannot be read, or its header does not promise a picture that can be decoded."""
    try:
        content = input_files.content(path, _headers.MOST_BYTES)
    except (OSError, ValueError) as error:
        raise DataError(f"photograph {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    wrong = _headers.fault(content)
    if wrong:
        raise DataError(f"photograph {path} {wrong}")
    return content
