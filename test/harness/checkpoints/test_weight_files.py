"""Damaged or dishonest weight files give a one-line error in little memory, never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import fuzzing
import h5py
import numpy as np
import pytest

from cnn_harness.base import bounds, plugins
from cnn_harness.harness.checkpoints import weights_file
from cnn_harness.harness.checkpoints.weights_file import NpzError
from cnn_harness.tools import weight_files, weight_names
from cnn_harness.tools.architectures import ImportFailure

REFERENCES = plugins.ROOT / "test/references"
KERNEL = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
OPTIONS = np.array(json.dumps({"asked": {"model": "resnet"}}))
HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n"
MEMORY = 24 << 20  # bytes: far below what these files claim


def npy(value: np.ndarray) -> bytes:
    """Return an array as NumPy writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, value)
    return file.getvalue()


def headed(kind: str, shape: object, data: bytes = b"") -> bytes:
    """Return an array with any header."""
    return odd(HEADER.format(kind, shape).encode()) + data


def odd(header: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def zipped(method: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def patched(content: bytes, local: int, value: bytes) -> bytes:
    """Return a zip of one member with other bytes in both headers; `local` is the offset in the local header."""
    central = content.index(b"PK\1\2") + local + 2
    content = content[:local] + value + content[local + len(value) :]
    return content[:central] + value + content[central + len(value) :]


def refused(read, path: Path, content: bytes) -> str:
    """Return the one-line error of a reader, which must take little memory."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises((NpzError, ImportFailure)) as caught:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- .npz ---

PLAIN = zipped(a=npy(KERNEL))
BOMB = zipped(zipfile.ZIP_DEFLATED, a=headed("|u1", f"({64 << 20},)", bytes(64 << 20)))
FLAGS, SIZE = 6, 22  # offsets in a member's header
NPZ = {
    "no zip": b"PK\5\6",
    "no array": zipped(a=b"hello"),
    "encrypted": patched(PLAIN, FLAGS, b"\1"),
    "LZMA": zipped(zipfile.ZIP_LZMA, a=npy(KERNEL)),
    "damaged": PLAIN[:60] + b"x" + PLAIN[61:],
    "huge": zipped(a=headed("<f4", "(1000000, 1000000)")),
    "beyond 64 bits": zipped(a=headed("<f4", f"({2**70},)")),
    "negative": zipped(a=headed("<f4", "(-5, 3)", bytes(60))),
    "more than there is": zipped(a=headed("<f4", "(5, 3)", bytes(59))),
    "brackets": zipped(a=odd(b"(" * 9000)),
    "long header": zipped(a=b"\x93NUMPY\2\0" + struct.pack("<I", 2**31)),
    "words": zipped(a=npy(np.array(["x"]))),
    "objects": zipped(a=headed("|O", "(1,)", b"c__builtin__\neval\n")),
    "a name in two lines": zipped(**{"a\nb": b"x"}),
    "a bomb that says so": patched(BOMB, SIZE, struct.pack("<I", 2**31 - 1)),
    "a bomb that hides it": patched(BOMB, SIZE, struct.pack("<I", len(npy(KERNEL)))),
}
SETTINGS = {
    "no array": b"x",
    "brackets": npy(np.array("[" * 100_000)),
    "no letters": headed("<U2", "()", b"\xff" * 8),
    "several": npy(np.array(["{}", "{}"])),
    "a list": npy(np.array("[]")),
}


@pytest.mark.parametrize("case", NPZ)
def test_archive_with_wrong_claims_is_rejected(tmp_path, case):
    assert f"{tmp_path}/a.npz" in refused(weights_file.arrays, tmp_path / "a.npz", NPZ[case])


@pytest.mark.parametrize("case", SETTINGS)
def test_invalid_recorded_options_are_rejected(tmp_path, case):
    content = zipped(a=npy(KERNEL), options=SETTINGS[case])
    assert f"{tmp_path}/a.npz" in refused(weights_file.options, tmp_path / "a.npz", content)


def test_numpy_archives_are_read_exactly(tmp_path):
    values = {
        "c": KERNEL, "f": np.asfortranarray(KERNEL), "none": np.zeros((0, 3), np.float16), "one": np.array(7), "big": KERNEL.astype(">f8"),
        "a/b": np.arange(5, dtype=np.uint8),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", options=OPTIONS, **values)
        found = weights_file.arrays(tmp_path / "a.npz")
        assert found.keys() == values.keys()
        for name, value in values.items():
            np.testing.assert_array_equal(found[name], value)
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert weights_file.options(tmp_path / "a.npz") == {"asked": {"model": "resnet"}}


def test_file_without_weights_is_error(tmp_path):
    assert "empty" in refused(weight_files.arrays, tmp_path / "a.h5", b"")
    for name, content in (("a.h5", hdf5(tmp_path / "b.h5", list)), ("a.safetensors", tensors({})), ("a.npz", zipped())):
        assert "no arrays" in refused(weight_files.arrays, tmp_path / name, content)


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.h5", "a.whl", "a.pth"])
def test_pipes_are_never_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises((ImportFailure, NpzError)):
        weight_files.arrays(tmp_path / name)


# --- safetensors ---


def tensors(listed: object, data: bytes = b"") -> bytes:
    """Return a .safetensors file."""
    text = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(kind: object = "F32", shape: object = (2, 3, 4), places: object = (0, 96)) -> dict[str, object]:
    return {"a": {"dtype": kind, "shape": shape, "data_offsets": places}}


SAFETENSORS = {
    "short": b"\1\0",
    "long": struct.pack("<Q", 2**63),
    "much to say": tensors(b" " * (5 << 20)),
    "no JSON": tensors(b"{"),
    "no text": tensors(b"{\xe9}"),
    "brackets": tensors(b"[" * 100_000),
    "a list": tensors([]),
    "no place": tensors({"a": 3}),
    "half a place": tensors(entry(places=[0])),
    "behind the end": tensors(entry(), bytes(95)),
    "huge": tensors(entry(shape=[2**40]), bytes(96)),
    "negative": tensors(entry(shape=[-2, -12]), bytes(96)),
    "words": tensors(entry(shape="24"), bytes(96)),
    "other": tensors(entry(shape=[25]), bytes(96)),
    "kind": tensors(entry("F8_E4M3", [96]), bytes(96)),
    "dimensions": tensors(entry(shape=[1] * 99 + [24]), bytes(96)),
    "no numbers": tensors(entry("BOOL", [96]), bytes(96)),
    "overlapping": tensors(entry() | {"b": {"dtype": "F32", "shape": [3], "data_offsets": [92, 104]}}, bytes(104)),
    "a gap": tensors(entry() | {"b": {"dtype": "F32", "shape": [1], "data_offsets": [100, 104]}}, bytes(104)),
}


@pytest.mark.parametrize("case", SAFETENSORS)
def test_safetensors_with_wrong_claims_are_rejected(tmp_path, case):
    refused(weight_files.arrays, tmp_path / "a.safetensors", SAFETENSORS[case])


def test_safetensors_have_stated_values(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(tensors(entry() | {"__metadata__": {"format": "pt"}}, KERNEL.tobytes()))
    np.testing.assert_array_equal(weight_files.arrays(path)["a"], KERNEL)
    halves = (KERNEL.view(np.uint32) >> 16).astype(np.uint16)
    path.write_bytes(tensors(entry("BF16", places=(0, 48)), halves.tobytes()))
    np.testing.assert_array_equal(weight_files.arrays(path)["a"], KERNEL)  # small whole numbers are exact in bfloat16


def test_safetensors_of_package_are_read(tmp_path):
    package = pytest.importorskip("safetensors.numpy")
    values = {
        k: np.arange(6, dtype=k).reshape(2, 3) for k in ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "u2", "u4", "u8")
    }
    values |= {"none": np.zeros((0, 2), np.float32), "one": np.array(3.5)}
    package.save_file(values, tmp_path / "a.safetensors", metadata={"format": "np"})
    found = weight_files.arrays(tmp_path / "a.safetensors")
    assert found.keys() == values.keys()
    for name, value in values.items():
        assert found[name].tobytes() == value.tobytes() and found[name].shape == value.shape


# --- HDF5 ---


def hdf5(path: Path, fill) -> bytes:
    """Return the bytes of an HDF5 file filled by `fill`."""
    with h5py.File(path, "w") as file:
        fill(file)
    return path.read_bytes()


def virtual(file) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape=(4,))
    file.create_virtual_dataset("a", layout)


def holes(file) -> None:
    file.create_dataset("a", (2**20,), "f4", chunks=(2**10,))[:24] = KERNEL.reshape(-1)


def inflating(size: int):
    """Return a function that writes a chunk of 24 numbers that inflates to `size` bytes."""

    def fill(file) -> None:
        packed = file.create_dataset("a", (24,), "f4", chunks=(24,), compression="gzip")
        packed.id.write_direct_chunk((0,), zlib.compress(bytes(size)))

    return fill


H5 = {
    "huge": lambda file: file.create_dataset("a", (2**40,), "f4", chunks=(1024,)),
    "never written": lambda file: file.create_dataset("a", (2**20,), "f4"),
    "huge chunks": lambda file: file.create_dataset("a", shape=(4,), dtype="f4", chunks=(2**29,), maxshape=(None,)),
    "holes": holes,
    "a bomb": inflating(100_000),
    "a large bomb": inflating(64 << 20),
    "virtual": virtual,
    "external": lambda file: file.create_dataset("a", (4,), "u1", external=[("/etc/passwd", 0, 4)]),
    "empty": lambda file: file.create_dataset("a", data=h5py.Empty("f4")),
    "words": lambda file: file.create_dataset("a", data="hello"),
    "references": lambda file: file.create_dataset("a", (2,), h5py.ref_dtype),
}  # fmt: skip


@pytest.mark.parametrize("case", H5)
def test_hdf5_with_wrong_claims_is_rejected(tmp_path, case):
    refused(weight_files.arrays, tmp_path / "a.h5", hdf5(tmp_path / "b.h5", H5[case]))


@pytest.mark.parametrize(
    "how", [{}, {"compression": 9}, {"compression": 9, "shuffle": True, "fletcher32": True}, {"shuffle": True}]
)
def test_hdf5_is_read_in_every_packing(how, tmp_path):
    """Noise, which HDF5 cannot compress, and numbers that compress well, with incomplete chunks at the edge."""
    noise = np.random.default_rng(3).integers(0, 2**32, (50, 33), np.uint32)
    given = {"a": np.arange(1650, dtype=np.float32).reshape(50, 33), "b": noise}
    hdf5(tmp_path / "a.h5", lambda file: [file.create_dataset(k, data=v, chunks=(20, 20), **how) for k, v in given.items()])
    found = weight_files.arrays(tmp_path / "a.h5")
    assert all((found[name] == value).all() for name, value in given.items())


def test_hdf5_follows_no_links(tmp_path):
    hdf5(tmp_path / "other.h5", lambda file: file.create_dataset("x", data=KERNEL))

    def fill(file) -> None:
        file["a/k"] = KERNEL
        file["soft"], file["away"] = h5py.SoftLink("/a"), h5py.ExternalLink(str(tmp_path / "other.h5"), "/x")

    hdf5(tmp_path / "a.h5", fill)
    assert list(weight_files.arrays(tmp_path / "a.h5")) == ["a/k"]


def test_cyclic_hdf5_ends(tmp_path):
    def fill(file) -> None:
        file.create_group("a")
        for name in "bcd":
            file["a"][name] = file["a"]

    refused(weight_files.arrays, tmp_path / "a.h5", hdf5(tmp_path / "b.h5", fill))


# --- PyTorch's files and wheels: the bounds hold before PyTorch is imported ---


def test_wheels_and_pytorch_files_have_bounds(tmp_path):
    bomb = patched(zipped(a=b"x"), SIZE, struct.pack("<I", 2**31 - 1))
    refused(weight_files.arrays, tmp_path / "a.whl", bomb)
    with open(tmp_path / "a.pth", "wb") as file:
        file.truncate(weight_files.MAX_BYTES + 1)  # sparse: takes no space on disk
    with pytest.raises(ImportFailure, match=str(weight_files.MAX_BYTES)):
        weight_files.arrays(tmp_path / "a.pth")


# --- identification of the network ---


def state(name: str) -> dict[str, np.ndarray]:
    """Return a network of timm by its names and shapes, without memory."""
    with np.load(REFERENCES / f"{name}.npz") as file:
        shapes = json.loads(str(file["names"]))
    return {key: np.broadcast_to(np.float32(1), shape) for key, shape in shapes.items()}


def test_unknown_shapes_are_rejected():
    theirs = state("resnet50")
    wrong = {
        "layer1.0.conv2.weight": [(), (64, 0, 3, 3), (64, 48, 3, 3), (0, 64, 3, 3)],
        "layer1.0.conv1.weight": [(64,)],
        "fc.bias": [(), (0,), (10**9,)],
        "fc.weight": [(1000,)],
        "bn1.weight": [(2,) * 4],
    }
    for name, shapes in wrong.items():
        for shape in shapes:
            with pytest.raises(ImportFailure):
                weight_names.identify({**theirs, name: np.broadcast_to(np.float32(0), shape)})
    for names in ({**theirs, "module.fc.bias": theirs["fc.bias"]}, {"a\n" + "x" * 100_000: theirs["fc.bias"]}):
        with pytest.raises(ImportFailure) as caught:
            weight_names.identify(names)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_deeply_nested_json_is_error():
    assert bounds.json_value(json.dumps({"text": "[" * 1000 + '\\"' * 9 + "{" * 1000}))
    for text in ('{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, '"' + '\\"' * 200_000 + "["):
        with pytest.raises(ValueError, match=r"nested too deeply|not valid JSON: line 1"):
            bounds.json_value(text)


# --- random bytes ---


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, list[bytes]]:
    """Return small valid files of every format."""
    folder = tmp_path_factory.mktemp("bases")
    packed = []
    for save in (np.savez, np.savez_compressed):
        save(folder / "a.npz", options=OPTIONS, w=KERNEL, v=np.zeros(5, np.float16))
        packed.append((folder / "a.npz").read_bytes())
    listed = entry() | {"b": {"dtype": "BF16", "shape": [3], "data_offsets": [96, 102]}}
    stored = []
    for how in ({}, {"libver": "latest"}, {"userblock_size": 512}):
        with h5py.File(folder / "a.h5", "w", **how) as file:
            file["stem_conv/stem_conv/kernel:0"] = KERNEL
            file.create_dataset("a/b/bias:0", data=np.arange(100.0), chunks=(10,), compression="gzip")
        stored.append((folder / "a.h5").read_bytes())
    with zipfile.ZipFile(folder / "a.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a/model.pth", packed[0])
    return {
        ".npz": packed, ".safetensors": [tensors(listed, bytes(102))], ".h5": stored,
        ".whl": [(folder / "a.whl").read_bytes()],
    }  # fmt: skip


ROUNDS = {".npz": 100, ".safetensors": 100, ".h5": 100, ".whl": 30}


@pytest.mark.parametrize("suffix", ROUNDS)
def test_random_bytes_never_crash(tmp_path, bases, suffix):
    path = tmp_path / f"a{suffix}"

    def make(rng: random.Random) -> bytes:
        if suffix == ".npz" and rng.random() < 0.5:  # bypass the checksums
            inside = {name: fuzzing.damaged(rng, npy(value)) for name, value in (("w", KERNEL), ("options", OPTIONS))}
            return zipped(rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)), **inside)
        return fuzzing.damaged(rng, rng.choice(bases[suffix]))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        if suffix == ".npz":
            weights_file.options(path)
        weight_names.identify(weight_files.arrays(path))

    errors = (NpzError, ImportFailure)
    assert fuzzing.hold(suffix, ROUNDS[suffix], make, read, errors, MEMORY) > 0


def test_random_names_and_shapes_never_crash():
    networks = {
        name: {key: value.shape for key, value in state(name).items()}
        for name in ("efficientnet_b0", "resnet18", "resnet50", "resnext50")
    }
    marks = [part for layout in weight_names.LAYOUTS for part in (layout.mark, layout.classifier)] + [
        "layer1.0.conv2.weight"
    ]
    sizes = (0, 1, 2, 3, 7, 64, 96, 1000)

    def make(rng: random.Random) -> dict[str, tuple[int, ...]]:
        found = dict(networks[rng.choice(sorted(networks))])
        for _ in range(rng.choice((1, 1, 2, 5))):
            name = rng.choice([*found, *[mark for mark in marks if mark in found] * 50])
            other = rng.choice(
                (name, f"module.{name}", rng.choice(marks), fuzzing.damaged(rng, name.encode()).decode("latin1"))
            )
            shape = list(found[name])
            if rng.random() < 0.3:
                shape = [rng.choice(sizes) for _ in range(rng.randint(0, 5))]
            elif shape and rng.random() < 0.5:
                shape[rng.randrange(len(shape))] = rng.choice((*sizes, 10**9))
            if rng.random() < 0.5:
                del found[name]
            if rng.random() < 0.8:
                found[other] = tuple(shape)
        return found

    def read(shapes: dict[str, tuple[int, ...]]) -> None:
        one = np.ones(1, np.float32)
        weight_names.identify(
            {key: np.lib.stride_tricks.as_strided(one, each, [0] * len(each)) for key, each in shapes.items()}
        )

    assert fuzzing.hold("names and shapes", 40, make, read, ImportFailure) > 0
