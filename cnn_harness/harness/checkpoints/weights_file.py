"""Read and write weights in one .npz or .safetensors file: an array for each variable, and the options of the network.

The options are JSON. Included weights have short names. Pickled objects are rejected. Before memory is allocated, the sizes
in the header are compared with the size of the file and with MAX_BYTES.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from cnn_harness.base import bounds, plugins
from cnn_harness.base.fields import short
from cnn_harness.base.storage import files, input_files
from cnn_harness.harness.checkpoints.checkpoint import CheckpointError

if TYPE_CHECKING:
    import numpy as np

SUFFIX, SAFETENSORS = ".npz", ".safetensors"
FOREIGN = (
    SAFETENSORS,
    ".h5",
    ".hdf5",
    ".keras",
    ".pth",
    ".pt",
    ".bin",
    ".whl",
)  # formats of other projects
OPTIONS = "options"  # the name of the entry with the JSON text
MAX_BYTES = 1 << 30  # the limit for all arrays of a file; the largest network has 0.4 GB in FP32
FOLDER = plugins.ROOT / "Models" / "_weights"
BUNDLED = {"efficientnet-lite0": FOLDER / "efficientnet_lite0.npz"}
# {type in a .safetensors file: NumPy type}. A BF16 number is the upper half of an FP32 number.
_KINDS = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1",
}  # fmt: skip


class NpzError(CheckpointError):
    """A weights file cannot be read. The message is one line with the name of the file."""


def located(path: Path) -> Path | None:
    """Return the weights file of a path: .npz, .safetensors of this project, or the short name of included weights.

    Return None for any other path.
    """
    if path.suffix == SUFFIX or (path.suffix == SAFETENSORS and is_own(path)):
        return path
    bundled = BUNDLED.get(str(path))
    return bundled if bundled and not path.exists() else None


def is_own(path: Path) -> bool:
    """Return whether a file records the options of the network, because only files of this project do."""
    try:
        return bool(options(path))
    except (CheckpointError, OSError):
        return False


def options(path: Path) -> dict[str, Any]:
    """Return the options that are recorded with the weights, or {} if there are none."""
    entries = _metadata(path) if path.suffix == SAFETENSORS else _read(path, lambda name: name == OPTIONS)
    if OPTIONS not in entries:
        return {}
    try:
        recorded = bounds.json_value(str(entries[OPTIONS]))
        if not isinstance(recorded, dict) or not isinstance(recorded.get("asked", {}), dict):
            raise ValueError("it contains something else")
    except ValueError as error:
        raise NpzError(
            f"weights {path} are damaged: '{OPTIONS}' must contain one JSON object of options; {bounds.reason(error)}"
        ) from None
    return recorded


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Return {variable name: array} with the dtypes of the file. BF16 arrays become FP32."""
    values = _tensors(path) if path.suffix == SAFETENSORS else _read(path, lambda name: name != OPTIONS)
    odd = [name for name, value in values.items() if value.dtype.kind not in "fiu"]
    if odd:
        raise NpzError(f"weights {path} are damaged: {short(odd[0])} is not numeric")
    return values


def write(path: Path, values: dict[str, np.ndarray], recorded: dict[str, Any]) -> None:
    """Write a weights file atomically. Equal values give equal bytes."""
    import numpy as np

    text, content = json.dumps(recorded, sort_keys=True), io.BytesIO()
    if path.suffix == SAFETENSORS:
        from safetensors.numpy import save

        content.write(save({name: np.ascontiguousarray(value) for name, value in values.items()}, {OPTIONS: text}))
    else:
        np.savez_compressed(content, **{OPTIONS: np.array(text)}, **values)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomically(path.resolve(), content.getbuffer())


@contextmanager
def open_zip(file: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Open a zip file. Raise ValueError if it is damaged or has more than MAX_BYTES unpacked."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            bounds.total([info.file_size for info in members], MAX_BYTES, "it unpacks to")
            if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members):
                raise ValueError("its members are neither stored nor deflated")
            yield archive
    except Exception as error:  # zipfile raises many types of errors for damaged files
        raise ValueError(bounds.reason(error)) from None


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return the bytes of a member, at most as many as the header says."""
    with archive.open(name) as opened:
        return opened.read(archive.getinfo(name).file_size)


def _read(path: Path, wants: Callable[[str], bool]) -> dict[str, np.ndarray]:
    try:
        with input_files.open_regular_file(path) as file, open_zip(file) as archive:
            names = {name.removesuffix(".npy"): name for name in archive.namelist()}
            return {short: _array(member(archive, name)) for short, name in names.items() if wants(short)}
    except FileNotFoundError:
        remedy = "; create it with cnn import-weights" if path in BUNDLED.values() else ""
        raise NpzError(f"weights {path}: no such file{remedy}") from None
    except (OSError, ValueError) as error:
        raise NpzError(f"weights {path} cannot be read: {bounds.reason(error)}") from None


def _array(content: bytes) -> np.ndarray:
    """Return the array in a .npy file. Raise ValueError if the header claims more bytes than the file has.

    Damaged files may raise other types of errors.
    """
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, kind = headers[npy.read_magic(file)](file)
    if math.prod(shape) * kind.itemsize > len(content):
        raise ValueError("its header claims more bytes than the file has")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


@contextmanager
def _by_safetensors(path: Path) -> Iterator[Any]:
    """Import the package safetensors and yield it. Turn its errors into NpzError.

    The package rejects arrays that overlap or do not fill the file.
    """
    try:
        import safetensors
    except ImportError:
        raise NpzError(f"weights {path} need the package safetensors: pip install safetensors") from None
    try:
        yield safetensors
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise NpzError(f"weights {path} cannot be read: {bounds.reason(error)}") from None


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a .safetensors file."""
    with _by_safetensors(path) as package, input_files.open_regular_file(path), package.safe_open(path, "np") as file:
        return file.metadata() or {}


def _tensors(path: Path) -> dict[str, np.ndarray]:
    import numpy as np

    found = {}
    with _by_safetensors(path) as package:
        for name, entry in package.deserialize(input_files.content(path, MAX_BYTES)):
            kind, shape = entry["dtype"], entry["shape"]
            if kind not in _KINDS:
                raise ValueError(f"{short(name)} has the unsupported type {kind}; supported: {', '.join(_KINDS)}")
            bounds.elements(short(name), shape, MAX_BYTES)
            value = np.frombuffer(entry["data"], _KINDS[kind]).reshape(shape)
            found[name] = (value.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else value
    return found
