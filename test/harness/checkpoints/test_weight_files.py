"""Files of weights that lie, are damaged or were made to harm: one line, in little memory, at once; never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import sys
import tracemalloc
import types
import zipfile
import zlib
from pathlib import Path

import fuzzing
import h5py
import numpy as np
import pytest

from base import bounds, plugins
from base.errors import DataError
from base.process import command_line
from Datasets.formats import conversion_info
from harness.checkpoints import npz_weights
from harness.checkpoints.npz_weights import NpzError
from tools import compare_runs, foreign, import_weights, weight_files
from tools.datasets import shard_writer
from tools.foreign import ForeignError
from tools.weight_files import ImportFailure

REFERENCES = plugins.ROOT / "test/references"
KERNEL = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
OPTIONS = np.array(json.dumps({"asked": {"model": "resnet"}}))
HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}\n"
MEMORY = 24 << 20  # bytes: far below what the files here claim


def npy(value: np.ndarray) -> bytes:
    """An array as NumPy writes it."""
    file = io.BytesIO()
    np.lib.format.write_array(file, value)
    return file.getvalue()


def headed(kind: str, shape: object, data: bytes = b"") -> bytes:
    """An array whose header says what it likes."""
    return odd(HEADER.format(kind, shape).encode()) + data


def odd(header: bytes) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header


def zipped(method: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def struck(content: bytes, place: int) -> bytes:
    """A file with one other byte, behind a zip's first header, in which there is the time of day."""
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def patched(content: bytes, local: int, value: bytes) -> bytes:
    """A zip of one member with other bytes in both of its headers; `local`: the place in the one before the data."""
    central = content.index(b"PK\1\2") + local + 2
    content = content[:local] + value + content[local + len(value) :]
    return content[:central] + value + content[central + len(value) :]


def spelled_twice() -> bytes:
    """A zip that has one name with .npy and without."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("a.npy", "a"):
            archive.writestr(name, npy(KERNEL))
    return file.getvalue()


PLAIN = zipped(a=npy(KERNEL))
FLAGS, METHOD, SIZE = 6, 8, 22  # in a member's header
NPZ = {
    "no array": (zipped(a=b"hello"), "a is no NumPy array"),
    "encrypted": (patched(PLAIN, FLAGS, b"\1"), "a.npy is encrypted"),
    "unknown compression": (patched(PLAIN, METHOD, b"\x63\0"), "neither stored nor deflated (method 99)"),
    "LZMA": (zipped(zipfile.ZIP_LZMA, a=npy(KERNEL)), "neither stored nor deflated (method 14)"),
    "damaged": (struck(zipped(zipfile.ZIP_DEFLATED, a=npy(KERNEL)), 60), "cannot be read"),
    "huge": (zipped(a=headed("<f4", "(1000000, 1000000)")), "at most 268,435,456 elements"),
    "beyond 64 bits": (zipped(a=headed("<f4", f"({2**70},)")), "at most 268,435,456 elements"),
    "nothing of much": (zipped(a=headed("<f4", f"(0, {2**62})")), "at most 268,435,456 elements"),
    "negative": (zipped(a=headed("<f4", "(-5, 3)", bytes(60))), "no row of whole numbers from 0 on"),
    "half a number": (zipped(a=headed("<f4", "(1.5,)", bytes(6))), "neither kind nor shape"),
    "yes": (zipped(a=headed("<f4", "(True,)", bytes(4))), "no row of whole numbers from 0 on"),
    "more than there is": (zipped(a=headed("<f4", "(5, 3)", bytes(59))), "but has 59 bytes"),
    "less than there is": (zipped(a=headed("<f4", "(5, 3)", bytes(61))), "but has 61 bytes"),
    "many dimensions": (zipped(a=headed("<f4", "(" + "1," * 40 + ")", bytes(4))), "40 dimensions, and at most 8"),
    "brackets": (zipped(a=odd(b"(" * 9000)), "neither kind nor shape"),
    "open string": (zipped(a=odd(b"{'descr")), "neither kind nor shape"),
    "old integer": (zipped(a=odd(b"{1L")), "neither kind nor shape"),
    "long header": (zipped(a=b"\x93NUMPY\2\0" + struct.pack("<I", 2**31)), "2,147,483,648 bytes, and at most 10,000"),
    "no version": (zipped(a=b"\x93NUMPY\7\0"), "another format"),
    "words": (zipped(a=npy(np.array(["x"]))), "no numbers"),
    "objects": (zipped(a=headed("|O", "(1,)", b"c__builtin__\neval\n")), "no numbers"),
    "nothing each": (zipped(a=headed("|V0", "(7,)")), "no numbers"),
    "one name twice": (spelled_twice(), "it holds a twice"),
    "a name in two lines": (zipped(**{"a\nb": b"x"}), "a\\nb is no NumPy array"),
    "fewer bytes than claimed": (patched(PLAIN, SIZE, struct.pack("<I", 2**20)), "cannot be read"),
    "no zip": (b"PK\5\6", "cannot be read"),
}  # fmt: skip
SETTINGS = {
    "no array": (b"x", "options is no NumPy array"),
    "brackets": (npy(np.array("[" * 100_000)), "nested too deeply"),
    "no letters": (headed("<U2", "()", b"\xff" * 8), "must hold one JSON object"),
    "several": (npy(np.array(["{}", "{}"])), "must hold one JSON object"),
    "a list": (npy(np.array("[]")), "must hold one JSON object"),
    "a number": (npy(np.array(3)), "must hold one JSON object"),
}


@pytest.mark.parametrize("case", NPZ)
def test_archives_that_lie(tmp_path, case):
    content, said = NPZ[case]
    assert said in refused(npz_weights.arrays, tmp_path / "a.npz", content)


@pytest.mark.parametrize("case", SETTINGS)
def test_recorded_options_that_are_none(tmp_path, case):
    entry, said = SETTINGS[case]
    assert said in refused(npz_weights.options, tmp_path / "a.npz", zipped(a=npy(KERNEL), options=entry))


def refused(read, path: Path, content: bytes) -> str:
    """The line with which a reader refuses; it names the file and takes little memory."""
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises((NpzError, ImportFailure, ForeignError)) as caught:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_archives_as_numpy_writes_them_are_read_to_the_bit(tmp_path):
    values = {
        "c": KERNEL, "f": np.asfortranarray(KERNEL), "none": np.zeros((0, 3), np.float16), "one": np.array(7), "big": KERNEL.astype(">f8"),
        "a/b": np.arange(5, dtype=np.uint8),
    }  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", options=OPTIONS, **values)
        found = npz_weights.arrays(tmp_path / "a.npz")
        assert found.keys() == values.keys()
        for name, value in values.items():
            np.testing.assert_array_equal(found[name], value)
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert npz_weights.options(tmp_path / "a.npz") == {"asked": {"model": "resnet"}}


def test_what_unpacks_to_more_than_a_network_can_be(tmp_path):
    """A true bomb and one that hides its size; nothing of either is unpacked. The limit is on the sum over a file."""
    bomb = zipped(zipfile.ZIP_DEFLATED, a=headed("|u1", f"({64 << 20},)", bytes(64 << 20)))
    assert len(bomb) < 1 << 17
    claimed = patched(bomb, SIZE, struct.pack("<I", 2**31 - 1))
    assert "unpacks to 2,147,483,647 bytes, and at most 1,073,741,824" in refused(
        npz_weights.arrays, tmp_path / "a.npz", claimed
    )
    hidden = patched(bomb, SIZE, struct.pack("<I", len(npy(KERNEL))))
    assert "cannot be read" in refused(npz_weights.arrays, tmp_path / "a.npz", hidden)
    several = io.BytesIO()
    with zipfile.ZipFile(several, "w") as archive:
        for k in range(3):
            archive.writestr(f"{k}.npy", b"")
    for k in range(3):
        at = [i for i in range(len(several.getvalue())) if several.getvalue().startswith(b"PK\1\2", i)][k] + SIZE + 2
        several.getbuffer()[at : at + 4] = struct.pack("<I", 2**29)
    assert "unpacks to 1,610,612,736 bytes" in refused(npz_weights.arrays, tmp_path / "a.npz", several.getvalue())


def test_tables_of_contents_have_a_bound(tmp_path):
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for k in range(20_000):
            archive.writestr(f"{k}.npy", b"")
    assert "table of contents" in refused(npz_weights.arrays, tmp_path / "a.npz", many.getvalue())
    twice = zipped(a=npy(KERNEL), b=npy(KERNEL)).replace(b"b.npy", b"a.npy")
    assert "a.npy twice" in refused(npz_weights.arrays, tmp_path / "a.npz", twice)


def test_a_file_without_weights_says_what_to_do(tmp_path):
    again = "; download it again, or save the network's weights into it"
    assert refused(weight_files.arrays, tmp_path / "a.h5", b"") == f"it cannot be read: it is empty{again}"
    for name, content in (("a.h5", hdf5(tmp_path / "b.h5", list)), ("a.safetensors", tensors({})), ("a.npz", zipped())):
        assert refused(weight_files.arrays, tmp_path / name, content) == f"it holds no arrays{again}"


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.h5", "a.whl", "a.pth"])
def test_pipes_and_folders_are_not_waited_for(tmp_path, name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    os.mkfifo(tmp_path / name)
    with pytest.raises((ImportFailure, NpzError), match="Is a pipe or a device, not a file"):
        weight_files.arrays(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises((ImportFailure, NpzError), match="Is a directory"):
        weight_files.arrays(tmp_path / name)


# --- safetensors ---


def tensors(listed: object, data: bytes = b"") -> bytes:
    """A .safetensors file."""
    text = listed if isinstance(listed, bytes) else json.dumps(listed).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(kind: object = "F32", shape: object = (2, 3, 4), places: object = (0, 96)) -> dict[str, object]:
    return {"a": {"dtype": kind, "shape": shape, "data_offsets": places}}


SAFETENSORS = {
    "short": (b"\1\0", "fewer than it claims"),
    "long": (struct.pack("<Q", 2**63), "fewer than it claims"),
    "much to say": (tensors(b" " * (5 << 20)), "at most 4,194,304"),
    "no JSON": (tensors(b"{"), "says of its arrays is damaged: it is not JSON from line 1, column 2 on; download it again"),
    "nothing to say": (tensors(b""), "what it says of its arrays is damaged: it is not JSON from line 1, column 1 on; download it again"),
    "no text": (tensors(b"{\xe9}"), "says of its arrays is damaged: it is not UTF-8 text from byte 1 on; download it again"),
    "brackets": (tensors(b"[" * 100_000), "nested too deeply"),
    "a list": (tensors([]), "what it holds"),
    "no place": (tensors({"a": 3}), "where a lies"),
    "half a place": (tensors(entry(places=[0])), "where a lies"),
    "behind the end": (tensors(entry(), bytes(95)), "must follow the one that ends at 0"),
    "over another": (tensors(entry() | {"b": entry()["a"]}, bytes(96)), "must follow the one that ends at 96"),
    "rest": (tensors(entry(), bytes(97)), "end at 96 of 97 bytes"),
    "huge": (tensors(entry(shape=[2**40]), bytes(96)), "at most 268,435,456 elements"),
    "negative": (tensors(entry(shape=[-2, -12]), bytes(96)), "no row of whole numbers"),
    "words": (tensors(entry(shape="24"), bytes(96)), "no row of whole numbers"),
    "other": (tensors(entry(shape=[25]), bytes(96)), "but has 96 bytes"),
    "kind": (tensors(entry("F8_E4M3"), bytes(96)), "holds F8_E4M3, and only F64"),
    "no kind": (tensors(entry([]), bytes(96)), "holds [], and only F64"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAFETENSORS)
def test_safetensors_that_lie(tmp_path, case):
    content, said = SAFETENSORS[case]
    assert said in refused(weight_files.arrays, tmp_path / "a.safetensors", content)


def test_safetensors_hold_what_they_say(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(tensors(entry() | {"__metadata__": {"format": "pt"}}, KERNEL.tobytes()))
    np.testing.assert_array_equal(weight_files.arrays(path)["a"], KERNEL)
    halves = (KERNEL.view(np.uint32) >> 16).astype(np.uint16)
    path.write_bytes(tensors(entry("BF16", places=(0, 48)), halves.tobytes()))
    np.testing.assert_array_equal(weight_files.arrays(path)["a"], KERNEL)  # small whole numbers are bfloat16


def test_safetensors_as_the_package_writes_them(tmp_path):
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
    """Return the bytes of a file that `fill` has filled."""
    with h5py.File(path, "w") as file:
        fill(file)
    return path.read_bytes()


def virtual(file) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "x", shape=(4,))
    file.create_virtual_dataset("a", layout)


def nested(file) -> None:
    file.create_group("/".join("g" * 40))["a"] = KERNEL


def holes(file) -> None:
    file.create_dataset("a", (2**20,), "f4", chunks=(2**10,))[:24] = KERNEL.reshape(-1)


def twice(file) -> None:
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((10,))
    properties.set_deflate(9)
    properties.set_deflate(9)
    kind, space = h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((10,))
    packed = zlib.compress(zlib.compress(bytes(40)))
    h5py.h5d.create(file.id, b"a", kind, space, properties).write_direct_chunk((0,), packed)


def _chunk(packed: bytes, **how):
    """Fills a file with one chunk of 40 bytes, as it is packed."""

    def fill(file) -> None:
        file.create_dataset("a", (10,), "f4", chunks=(10,), **how).id.write_direct_chunk((0,), packed)

    return fill


H5 = {
    "huge": (lambda file: file.create_dataset("a", (2**40,), "f4", chunks=(1024,)), "at most 268,435,456 elements"),
    "never written": (lambda file: file.create_dataset("a", (2**20,), "f4"), "not wholly written"),
    "huge chunks": (lambda file: file.create_dataset("a", shape=(4,), dtype="f4", chunks=(2**29,), maxshape=(None,)), "elements"),
    "holes": (holes, "not wholly written"),
    "adding up": (lambda file: [file.create_dataset(f"{k}", (2**27,), "f4", chunks=(2**27,), compression=9) for k in range(3)], "at most 1,073"),
    "virtual": (virtual, "lies in other files"),
    "external": (lambda file: file.create_dataset("a", (4,), "u1", external=[("/etc/passwd", 0, 4)]), "lies in other files"),
    "empty": (lambda file: file.create_dataset("a", data=h5py.Empty("f4")), "a is empty"),
    "words": (lambda file: file.create_dataset("a", data="hello"), "no numbers"),
    "references": (lambda file: file.create_dataset("a", (2,), h5py.ref_dtype), "no numbers"),
    "deep": (nested, "more than 16 deep"),
    # five kilobytes took three gigabytes, or any number of them with a second filter
    "bomb": (_chunk(zlib.compress(bytes(40_000)), compression=9), "a has a chunk that unpacks to more bytes than it claims"),
    "large bomb": (_chunk(zlib.compress(bytes(4_000_000)), compression=9), "a has a chunk of more bytes than it can have"),
    "packed twice": (twice, "a is packed by filters [1, 1], and only gzip, shuffle and checksums are read"),
    "packed otherwise": (lambda file: file.create_dataset("a", data=KERNEL, compression="lzf"), "a is packed by filters [32000]"),
    "no zlib": (_chunk(b"junk", compression=9), "a cannot be unpacked: Error -3"),
}  # fmt: skip


@pytest.mark.parametrize("case", H5)
def test_hdf5_that_lies(tmp_path, case):
    fill, said = H5[case]
    assert said in refused(weight_files.arrays, tmp_path / "a.h5", hdf5(tmp_path / "b.h5", fill))


@pytest.mark.parametrize(
    "how", [{}, {"compression": 9}, {"compression": 9, "shuffle": True, "fletcher32": True}, {"shuffle": True}]
)
def test_hdf5_is_read_as_it_was_packed(how, tmp_path):
    """Noise, which HDF5 stores as it is, beside numbers that pack well, with a margin of chunks."""
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


def test_hdf5_in_circles_ends(tmp_path):
    def fill(file) -> None:
        file.create_group("a")
        for name in "bcd":
            file["a"][name] = file["a"]

    assert "more than" in refused(weight_files.arrays, tmp_path / "a.h5", hdf5(tmp_path / "b.h5", fill))


# --- PyTorch, by a stand-in for its package ---


class Tensor:
    """A tensor that claims what it likes; it cannot be read."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def numel(self) -> int:
        return int(np.prod(self.shape, dtype=object))


@pytest.mark.parametrize(
    ("holds", "said"),
    [
        ([1, 2], "no dictionary of weights"),
        ({"state_dict": 5}, "it holds no arrays"),
        ({"a": Tensor(2**20, 2**20)}, "a claims the shape [1048576, 1048576], and at most 268,435,456"),
        ({"a": Tensor(2**28), "b": Tensor(2**28)}, "at most 1,073,741,824 are read"),
        ({"a\nb": Tensor(3)}, "cannot be read"),
    ],
)
def test_what_pytorch_may_load(tmp_path, monkeypatch, holds, said):
    stand_in = types.ModuleType("torch")
    stand_in.Tensor, stand_in.load = Tensor, lambda *_, **__: holds
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    assert said in refused(weight_files.arrays, tmp_path / "a.pth", b"x")
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as wheel:
        wheel.writestr("x.pth", "x")
    assert said in refused(weight_files.arrays, tmp_path / "a.whl", (tmp_path / "b.whl").read_bytes())


def test_wheels_and_pytorch_files_have_bounds(tmp_path, monkeypatch):
    stand_in = types.ModuleType("torch")
    stand_in.load = lambda *_, **__: pytest.fail("it was loaded")
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    bomb = patched(zipped(a=b"x"), SIZE, struct.pack("<I", 2**31 - 1))
    for name in ("a.pth", "a.whl"):
        assert "unpacks to 2,147,483,647 bytes" in refused(weight_files.arrays, tmp_path / name, bomb)
    monkeypatch.setattr(weight_files, "MAX_BYTES", 100)
    for name in ("a.pth", "a.safetensors"):
        assert "more than the 100 bytes that are read" in refused(weight_files.arrays, tmp_path / name, bytes(101))


# --- which network it is ---


def state(name: str) -> dict[str, np.ndarray]:
    """A network of timm by its names and shapes, in no memory."""
    with np.load(REFERENCES / f"{name}.npz") as file:
        shapes = json.loads(str(file["names"]))
    return {key: np.broadcast_to(np.float32(1), shape) for key, shape in shapes.items()}


RANKS = {
    "layer1.0.conv2.weight": ((), "a kernel has 4 dimensions"),
    "layer1.0.conv1.weight": ((64,), "has shape [64] instead of [1, 1, 64, 64]"),
    "fc.bias": ((), "one number for each of 1 to 1,000,000 classes"),
    "fc.weight": ((1000,), "has shape [1000] instead of"),
    "bn1.weight": ((2,) * 4, "all/b0/batch_norm/gamma has shape [2, 2, 2, 2]"),
}


@pytest.mark.parametrize("name", RANKS)
def test_a_wrong_rank(name):
    shape, said = RANKS[name]
    with pytest.raises(ForeignError) as caught:
        foreign.identify({**state("resnet50"), name: np.zeros(shape, np.float32)})
    assert said in str(caught.value)


def test_odd_classifiers_groups_and_names():
    theirs = state("resnet50")
    for bias in (np.zeros(0, np.float32), np.broadcast_to(np.float32(0), (10**9,))):
        with pytest.raises(ForeignError, match="classes"):
            foreign.identify({**theirs, "fc.bias": bias})
    for shape in ((64, 0, 3, 3), (64, 48, 3, 3), (0, 64, 3, 3)):
        with pytest.raises(ForeignError, match="channels are no groups of"):
            foreign.identify({**theirs, "layer1.0.conv2.weight": np.zeros(shape, np.float32)})
    with pytest.raises(ForeignError, match="two are all/fc1/dense/bias"):
        foreign.identify({**theirs, "module.fc.bias": theirs["fc.bias"]})
    with pytest.raises(ForeignError, match=r"like 'a\\nx+\.\.\. \(100002 characters\)'"):
        foreign.identify({"a\n" + "x" * 100_000: theirs["fc.bias"]})
    stem = np.zeros((3, 3, 3, 32), np.float32)
    with pytest.raises(ForeignError, match="of Keras by its names"):
        foreign.identify({"stem_conv/kernel": stem, "block1a_dwconv/kernel": stem[0], "block1a_dwconv/y": stem})


def test_numbers_beyond_what_is_kept():
    with pytest.raises(ImportFailure, match=r"holds 1e\+39, more than FP32's largest, 3.40282e\+38$"):
        import_weights.cast({"a": np.array([1e39])}, False)
    with pytest.raises(
        ImportFailure, match="holds 128, more|holds 70000, more than FP16's largest, 65504; leave out --half"
    ):
        import_weights.cast({"a": np.array([-70000])}, True)
    assert import_weights.cast({"a": np.array([-128], np.int8)}, True)["a"] == -128


# --- settings ---


def test_files_beyond_a_bound_are_not_read(tmp_path):
    with open(tmp_path / "a.pth", "wb") as file:
        file.truncate(weight_files.MAX_BYTES + 1)  # takes no room on the disc
    tracemalloc.start()
    try:
        with pytest.raises(ImportFailure, match="more than the 1073741824 bytes"):
            weight_files.arrays(tmp_path / "a.pth")
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()


def test_json_that_is_nested_deeply_is_an_error():
    assert bounds.json_value(json.dumps({"text": "[" * 1000 + '\\"' * 9 + "{" * 1000}))
    for text in ('{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, '"' + '\\"' * 200_000 + "["):
        with pytest.raises(ValueError, match=r"nested too deeply|not JSON from line 1"):
            bounds.json_value(text)


CONVERSIONS = {
    "brackets": (b"[" * 100_000, "nested too deeply"),
    "a list": (b"[]", "no JSON object"),
    "no text": (b"\xff\xfe{}", "is damaged"),
    "long": (b" " * (5 << 20), "more than the 4194304 bytes"),
    "a number of many digits": (
        b'{"format": ' + b"1" * 5000 + b"}",
        "is damaged: Exceeds the limit",
    ),
    "another": (json.dumps({"x\ny": "z" * 5000}).encode(), "x\\ny is zzz"),
}


@pytest.mark.parametrize("case", CONVERSIONS)
def test_conversions_that_cannot_be_continued(tmp_path, case):
    content, said = CONVERSIONS[case]
    (tmp_path / conversion_info.FILE).write_bytes(content)
    with pytest.raises(DataError) as caught:
        claim(tmp_path)
    assert said in str(caught.value) and len(str(caught.value)) < 700 and "\n" not in str(caught.value)


def test_a_pipe_for_a_conversion(tmp_path):
    os.mkfifo(tmp_path / conversion_info.FILE)
    with pytest.raises(DataError, match="Is a pipe"):
        claim(tmp_path)


def claim(folder: Path) -> None:
    """Begins a conversion of nothing in a folder."""
    with shard_writer.exclusive(folder, shard_writer.Plan(("a",), [], {}, {})):
        pass


# --- runs in one picture ---


def compared(*words: object) -> int:
    return command_line.run("compare_runs", compare_runs.main, [str(word) for word in words], ())


def test_comparing_runs(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    run.mkdir()
    odd = ["1e308", "-1e308", "1e-320", "-5e-324", "nan", "inf", "", "x", "1e30", "1"]
    lines = [",".join((x, y, y, y)) for x in odd for y in odd]
    (run / "training.csv").write_text("\n".join(["epoch,loss_batch,loss_avg,train_acc_avg", *lines]))
    assert compared(run, "--output", tmp_path / "new" / "folder" / "a.svg") == 0
    assert (tmp_path / "new" / "folder" / "a.svg").read_text().endswith("</svg>\n")
    (tmp_path / "file").touch()
    assert compared(run, "--output", tmp_path / "file" / "a.svg") == 2
    assert compared(run, "--output", tmp_path) == 2
    assert compared(run, "--labels", "a", "b") == 2
    monkeypatch.chdir(tmp_path)
    assert compared(run) == compared(run) == 0 and Path("compared.svg").read_text().startswith("<svg")
    Path("compared.svg").write_text("mine")  # which nobody named
    assert compared(run) == 2 and Path("compared.svg").read_text() == "mine"
    assert compared(run, "--output", "compared.svg") == 0
    Path("compared.svg").unlink()
    Path("compared.svg").mkdir()
    assert compared(run) == 2
    assert compared(tmp_path) == 2
    for content, said in ((b"epoch\n\xff", "can't decode"), (b'"' + b"x" * 200_000, "field larger")):
        (run / "training.csv").write_bytes(content)
        capsys.readouterr()
        assert compared(run, "--output", tmp_path / "a.svg") == 2
        err = capsys.readouterr().err
        assert said in err and err.count("\n") == 1 and str(run) in err
    (run / "training.csv").unlink()
    os.mkfifo(run / "training.csv")
    assert compared(run, "--output", tmp_path / "a.svg") == 2


# --- whatever bytes there are ---


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, list[bytes]]:
    """Small whole files of every format."""
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
    plan = {"format": 1, "seed": 0, "validation part": None, "train pictures": 5, "listing": "ab" * 32}
    with zipfile.ZipFile(folder / "a.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("a/model.pth", packed[0])
    return {
        ".npz": packed, ".safetensors": [tensors(listed, bytes(102))], ".h5": stored,
        ".json": [json.dumps(plan).encode()], ".whl": [(folder / "a.whl").read_bytes()], ".pth": packed,
    }  # fmt: skip


ROUNDS = {
    ".npz": (30, 1200),
    ".safetensors": (30, 800),
    ".h5": (30, 1200),
    ".json": (30, 400),
    ".whl": (10, 200),
    ".pth": (10, 200),
}


@pytest.mark.parametrize("suffix", ROUNDS)
def test_whatever_bytes_there_are(tmp_path, bases, suffix, pytestconfig, monkeypatch):
    path = tmp_path / (conversion_info.FILE if suffix == ".json" else f"a{suffix}")
    stand_in = types.ModuleType("torch")
    stand_in.Tensor, stand_in.load = Tensor, lambda content, **_: dict.fromkeys(zipfile.ZipFile(content).namelist(), 1)
    monkeypatch.setitem(sys.modules, "torch", stand_in)

    def make(rng: random.Random) -> bytes:
        if suffix == ".npz" and rng.random() < 0.5:  # past the checksums
            inside = {name: fuzzing.damaged(rng, npy(value)) for name, value in (("w", KERNEL), ("options", OPTIONS))}
            return zipped(rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)), **inside)
        return fuzzing.damaged(rng, rng.choice(bases[suffix]))

    def read(content: bytes) -> None:
        path.write_bytes(content)
        if suffix == ".json":
            claim(tmp_path)
            return
        if suffix == ".npz":
            npz_weights.options(path)
        foreign.identify(weight_files.arrays(path))

    count = fuzzing.rounds(*ROUNDS[suffix], pytestconfig)
    errors = (NpzError, ImportFailure, ForeignError, DataError)
    assert fuzzing.hold(suffix, count, make, read, errors, MEMORY) > 0


def test_whatever_names_and_shapes_there_are(pytestconfig):
    networks = {
        name: {key: value.shape for key, value in state(name).items()}
        for name in ("efficientnet_b0", "resnet18", "resnet50", "resnext50")
    }
    marks = [part for layout in foreign.LAYOUTS for part in (layout.mark, layout.classifier)] + ["layer1.0.conv2.weight"]
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
        foreign.identify({key: np.lib.stride_tricks.as_strided(one, each, [0] * len(each)) for key, each in shapes.items()})

    count = fuzzing.rounds(15, 600, pytestconfig)
    assert fuzzing.hold("names and shapes", count, make, read, ForeignError) > 0
