"""Weights in one .npz file: arrays by variable name, and the options that the network needs, as JSON text.

The weights that come with the project have short names. Nothing is unpickled: an array of objects is an error. The sizes
that a file claims are compared with its length, and with MAX_BYTES, before memory is taken for them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from base import bounds, plugins
from base.fields import short
from base.storage import files, npz
from harness.checkpoints.checkpoint import CheckpointError

if TYPE_CHECKING:
    import numpy as np

SUFFIX = ".npz"
FOREIGN = (
    ".safetensors",
    ".h5",
    ".hdf5",
    ".keras",
    ".pth",
    ".pt",
    ".bin",
    ".whl",
)  # for tools/import_weights.py
OPTIONS = "options"  # the entry with the JSON text
MAX_BYTES = 1 << 30  # of all arrays of a file of weights; the largest network has 0.4 GB in FP32
FOLDER = plugins.ROOT / "Models" / "_weights"
BUNDLED = {"efficientnet-lite0": FOLDER / "efficientnet_lite0.npz"}


class NpzError(CheckpointError):
    """A file of weights that cannot be read. The text is one line that names the file."""


def located(path: Path) -> Path | None:
    """The file of weights at a path: a .npz, or one of the project's own by its short name."""
    if path.suffix == SUFFIX:
        return path
    bundled = BUNDLED.get(str(path))
    return bundled if bundled and not path.exists() else None


def is_own(path: Path) -> bool:
    """Return whether a file holds weights with the options of their network, as only this project writes."""
    try:
        return bool(options(path))
    except (CheckpointError, OSError):
        return False


def options(path: Path) -> dict[str, Any]:
    """The options that were recorded with the weights; empty if there are none."""
    entries = _read(path, lambda name: name == OPTIONS)
    if not entries:
        return {}
    try:
        text = entries[OPTIONS]
        recorded = bounds.json_value(str(text) if text.dtype.kind == "U" and not text.ndim else "")
        if not isinstance(recorded, dict) or not isinstance(recorded.get("asked", {}), dict):
            raise ValueError("it holds something else")
    except ValueError as error:
        raise NpzError(
            f"weights {path} are damaged: the entry '{OPTIONS}' must hold one JSON object of options; {bounds.reason(error)}"
        ) from None
    return recorded


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array by the name of its variable, in the precision of the file."""
    values = _read(path, lambda name: name != OPTIONS)
    odd = [name for name, value in values.items() if value.dtype.kind not in "fiu"]
    if odd:
        raise NpzError(f"weights {path} are damaged: {short(odd[0])} holds no numbers")
    return values


def write(path: Path, values: dict[str, np.ndarray], recorded: dict[str, Any]) -> None:
    """Write a file of weights, whole or not at all; the same values give the same bytes."""
    import numpy as np

    content = io.BytesIO()
    np.savez_compressed(content, **{OPTIONS: np.array(json.dumps(recorded, sort_keys=True))}, **values)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path.resolve(), content.getbuffer())


def _read(path: Path, wants: Callable[[str], bool]) -> dict[str, np.ndarray]:
    try:
        return npz.read(path, MAX_BYTES, wants)
    except FileNotFoundError:
        remedy = "; tools/import_weights.py makes it" if path in BUNDLED.values() else ""
        raise NpzError(f"weights {path}: no such file{remedy}") from None
    except (OSError, ValueError) as error:
        raise NpzError(f"weights {path} cannot be read: {bounds.reason(error)}") from None
