"""Starts TensorFlow without the lines that its libraries write to standard error before they can be told not to.

Whoever sets TF_CPP_MIN_LOG_LEVEL gets exactly what TensorFlow writes.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_NOISE = re.compile(rb"^(WARNING: All log messages before absl|[IW]\d{4} \d\d:\d\d)")


def import_tensorflow() -> None:
    """The first import; lines that are not of the information level come out after it."""
    if "tensorflow" in sys.modules:
        return
    if _LEVEL in os.environ:
        import tensorflow

        return
    os.environ[_LEVEL] = "2"
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            caught.seek(0)
            os.write(2, b"".join(line for line in caught if not _NOISE.match(line)))
