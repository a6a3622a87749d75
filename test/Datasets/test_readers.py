"""Whatever bytes lie where records should, the readers give records or one line that names the file; never a traceback."""

from __future__ import annotations

import gzip
import os
import random
import tracemalloc
from pathlib import Path

import fuzzing
import ml_dtypes
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, framed, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.errors import DataError
from base.storage import checksums, tensor_bundle
from Datasets import cifar, fashion_mnist
from Datasets._spec import OpenRequest
from Datasets.formats import class_names, idx, tfrecord
from Datasets.formats.bad_records import Tolerance
from Datasets.formats.tfrecord import RecordIndex
from harness.checkpoints import write
from tools.datasets import listings

SETTINGS = settings(
    max_examples=1500, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
RECORD = 3073
Change = tuple[str, int, bytes]
CHANGES = st.lists(
    st.tuples(st.sampled_from(["over", "into", "out", "cut"]), st.integers(0, 2**16), st.binary(min_size=1, max_size=20)),
    min_size=1,
    max_size=4,
)


def changed(content: bytes, changes: list[Change]) -> bytes:
    """`content` with bytes written over, put in, taken out, or its end cut off, at places modulo its length."""
    for kind, place, new in changes:
        at = place % (len(content) + 1)
        before, after = content[:at], content[at:]
        rest = {"over": new + after[len(new) :], "into": new + after, "out": after[len(new) :], "cut": b""}[kind]
        content = before + rest
    return content


@pytest.fixture(scope="module")
def cifars(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cifar")
    for name in (*cifar.BINARY_FILES["cifar-10"].train, *cifar.BINARY_FILES["cifar-10"].validation):
        np.arange(2 * RECORD, dtype=np.uint8).reshape(2, RECORD)[:, ::-1].tofile(folder / name)
        with open(folder / name, "r+b") as file:
            for record in range(2):
                file.seek(record * RECORD)
                file.write(bytes([record]))
    return folder


@SETTINGS
@given(CHANGES, st.sampled_from(["data_batch_2.bin", "test_batch.bin"]))
def test_small_pictures(cifars, changes, name):
    whole = (cifars / name).read_bytes()
    (cifars / name).write_bytes(changed(whole, changes))
    said = str(cifars / name)
    try:
        source = cifar.DATASETS["cifar-10"](OpenRequest(str(cifars), {}))
    except DataError as error:
        said = str(error)
    else:
        train = name.startswith("data")
        size = source.spec.train_images if train else source.spec.validation_images
        files = source._train if train else source._validation
        pixels, labels = source._gatherer(files, True)(np.arange(size))
        assert pixels.shape == (size, 32, 32, 3) and set(labels) <= set(range(10))
    finally:
        (cifars / name).write_bytes(whole)
    assert str(cifars / name) in said.splitlines()[0]


PAYLOADS = [bytes([65 + i]) * (30 + 7 * i) for i in range(5)]
SHARD = b"".join(map(framed, PAYLOADS))


@SETTINGS
@given(CHANGES)
def test_records_of_a_shard(tmp_path, changes):
    """Without tolerance: every payload that comes is one that was stored; what does not come is named."""
    file = tmp_path / "train-00000-of-00001"
    file.write_bytes(changed(SHARD, changes))
    said = str(file)
    try:
        index = RecordIndex([file])
        found = [index.payload(record) for record in range(len(index)) if not index.damage(record)]
    except DataError as error:
        said = str(error)
        found = []
    assert set(found) <= set(PAYLOADS) and str(file) in said.splitlines()[0]


@SETTINGS
@given(CHANGES)
def test_records_past_the_damage(tmp_path, changes):
    """With tolerance: the untouched records before the first change and after the last are all found, in order."""
    file = tmp_path / "train-00000-of-00001"
    content = changed(SHARD, changes)
    file.write_bytes(content)
    said = str(file)
    try:
        index = RecordIndex([file], tolerance=Tolerance(1000))
        found = [index.payload(record) for record in range(len(index)) if not index.damage(record)]
    except DataError as error:
        said = str(error)
        found = []
    assert set(found) <= set(PAYLOADS) and str(file) in said.splitlines()[0]
    ahead = [payload for k, payload in enumerate(PAYLOADS) if content.startswith(b"".join(map(framed, PAYLOADS[: k + 1])))]
    assert found[: len(ahead)] == ahead


# --- the list of a checkpoint's tensors ---


def varint(value: int) -> bytes:
    return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])


def part(number: int, value: int | bytes) -> bytes:
    """A field of a message."""
    return (
        varint(number << 3) + varint(value)
        if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
    )


def entry(*sizes: int, kind: int = 1, rest: bytes = b"") -> bytes:
    """Return a list's entry for a tensor that begins the file of tensors and has 8 bytes."""
    shape = b"".join(part(2, part(1, size)) for size in sizes)
    return part(1, kind) + part(2, shape) + part(5, 8) + (rest or b"\x35" + checksums.masked(bytes(8)).to_bytes(4, "little"))


def listed(pairs: list[tuple[int, bytes, bytes]], head: bytes = b"", packed: int = 0) -> bytes:
    """A whole list: of each tensor what its name shares with the one before, the rest of it, and a message. `head`: more of
    the message on all; `packed`: how its blocks are said to be."""
    content = b""

    def block(rows: list[tuple[int, bytes, bytes]]) -> bytes:
        nonlocal content
        body = b"".join(varint(same) + varint(len(own)) + varint(len(said)) + own + said for same, own, said in rows)
        body += bytes(4) + (1).to_bytes(4, "little") + bytes([packed])  # where to begin, how many such places
        place = varint(len(content)) + varint(len(body) - 1)
        content += body + checksums.masked(body).to_bytes(4, "little")
        return place

    places = block([]) + block([(0, b"z", block([(0, b"", part(1, 1) + head), *pairs]))])
    return content + places.ljust(40, b"\0") + tensor_bundle._MAGIC


def stored(prefix: Path, content: bytes) -> None:
    """A checkpoint with this list, and 8 bytes of tensors."""
    prefix.with_suffix(".index").write_bytes(content)
    prefix.with_suffix(".data-00000-of-00001").write_bytes(bytes(8))


def tensors_of(folder: Path, content: bytes) -> dict[str, np.ndarray]:
    """Return the tensors that are read where this is the list; nothing but Damaged is raised, and its shapes are those of
    the tensors."""
    stored(folder / "x", content)
    shapes = tensor_bundle.shapes(folder / "x.index")
    found = tensor_bundle.tensors(folder / "x.index")
    assert shapes == {name: value.shape for name, value in found.items()}
    return found


NO_LISTS = {  # names and their message
    "a side beyond 64 bits": (
        [(0, b"w", entry(0, 2**64 - 1))],
        r"w claims the shape \(0, 18446744073709551615\), and at most",
    ),
    "very many sides": ([(0, b"w", entry(*[1] * 70))], r"w claims the shape .* of 9 dimensions, and at most 8 are read"),
    "a side that is a number": ([(0, b"w", part(1, 1) + part(2, part(2, 3)) + part(5, 8))], "not those of its shape"),
    "a checksum of another kind": ([(0, b"w", entry(2, rest=part(6, 7)))], "other bytes than were written: those of w"),
    "text": ([(0, b"v", entry(2)), (0, b"w", entry(kind=7))], "w holds no numbers"),
    "a message cut short": ([(0, b"w", entry(2)[:-1])], "x.index is cut short or overwritten"),
    "a name that shares too much": ([(1, b"w", entry(2))], "x.index is cut short or overwritten"),
    "a long name": ([(0, b"w" * 5000, entry(2))], "a name in its index has 5,000 bytes, and at most 4,096 are read"),
    "long names that share": (
        [(0, b"w" * 4000, entry(2)), *[(4000, b"%06d" % k, entry(2)) for k in range(5000)]],
        "the names in its index are more than the 16,777,216 bytes that are read",
    ),
}


@pytest.mark.parametrize("case", NO_LISTS)
def test_a_list_of_tensors_that_cannot_be(case, tmp_path):
    """Its own checksums are right."""
    assert tensors_of(tmp_path, listed([(0, b"w", entry(2))]))["w"].tolist() == [0, 0]
    pairs, said = NO_LISTS[case]
    tracemalloc.start()
    try:
        with pytest.raises(tensor_bundle.Damaged, match=said):
            tensors_of(tmp_path, listed(pairs))
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_damaged_messages_of_tensors(tmp_path, pytestconfig):
    """In a list whose own checksums are right."""

    def make(rng: random.Random) -> bytes:
        return listed([(0, b"w", fuzzing.damaged(rng, entry(1, 2)))])

    count = fuzzing.rounds(1500, 20_000, pytestconfig)
    assert (
        fuzzing.hold("messages of tensors", count, make, lambda given: tensors_of(tmp_path, given), tensor_bundle.Damaged)
        > 0
    )


NEGATIVE = 2**64 - 1
FIRST_HALF = part(1, part(1, 0) + part(2, 1))  # of a tensor of two elements
FORMS = {  # a list of a form that is not read, and its message
    **{f"type {kind}": (listed([(0, b"w", entry(2, kind=kind))]), f"w is of TensorFlow's data type {kind}, and only float32, ")
       for kind in (0, 8, 100, 101, 107, 999, NEGATIVE)},
    "no such side": (listed([(0, b"w", entry(NEGATIVE, kind=14))]), r"w claims the shape \(18446744073709551615,\), and at most"),
    "huge sides": (listed([(0, b"w", entry(2**62, 2**62, kind=14))]), "w claims the shape"),
    "300 sides": (listed([(0, b"w", entry(*[1] * 300, kind=14))]), "9 dimensions, and at most 8 are read"),
    "slices": (listed([(0, b"w", entry(2, rest=part(7, FIRST_HALF)))]), "it holds a tensor in pieces, and only whole ones are read"),
    "a slice that begins below 0": (listed([(0, b"w", entry(2, rest=part(7, part(1, part(1, NEGATIVE) + part(2, 1)))))]),
                                    "it holds a tensor in pieces"),
    "a piece": (listed([(0, b"\0w\0\1\1\1\x80\x81", entry(1))]), "it holds a tensor in pieces"),
    "an unknown message": (listed([(0, b"AA", entry(2) + b"\x0b\x0c"), (0, b"w", entry(2))]), "x.index is cut short or overwritten"),
    "a name in no letters": (listed([(0, b"\xff", entry(2))]), "x.index is cut short or overwritten"),
    "a packed list": (listed([(0, b"w", entry(2))], packed=1), r"its index is packed \(kind 1\)"),
    "big-endian": (listed([(0, b"w", entry(2))], part(2, 1)), "its tensors are big-endian, and only little-endian ones are read"),
    "another version": (listed([(0, b"w", entry(2))], part(3, part(1, 127) + part(2, 127))),
                        "it is for readers of version 127 on, and only version 1 is read"),
    "shared bytes": (listed([(0, b"v", entry(2)), (0, b"w", entry(2))]), "w overlaps with another tensor in x.data-00000-of-00001"),
    "gigabytes": (listed([(0, b"w", part(1, 1) + part(2, part(2, part(1, 3 << 28))) + part(5, 3 << 30))]),
                  "w has 3,221,225,472 bytes, and at most 1,073,741,824 of a tensor are read"),
    "gigabytes in all": (listed([(0, b"%d" % k, part(1, 1) + part(2, part(2, part(1, 1 << 28))) + part(4, k << 30) + part(5, 1 << 30))
                                 for k in range(5)]), "its tensors take 5,368,709,120 bytes, and at most 4,294,967,296 are read"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
def test_a_checkpoint_of_a_form_that_is_not_read_is_left_out(case, tmp_path):
    """TensorFlow's reader ended the process at most of these."""
    content, said = FORMS[case]
    with pytest.raises(tensor_bundle.Damaged, match=said):
        tensors_of(tmp_path, content)
    stored(tmp_path / "ckpt-40", content)
    words = ("weight_avg", "--restore-path", tmp_path, "--mode", "mean", "--filename", tmp_path / "mean")
    alone = run(*words)
    assert (alone.code, alone.err.count("\n")) == (2, 2) and "all 1 checkpoints are damaged" in alone.err
    stored(tmp_path / "ckpt-5", listed([(0, b"w", entry(2))]))
    others = run(*words)
    assert (others.code, others.err.count("\n")) == (0, 1) and "Using 1: ckpt-5" in others.out
    assert "warning: checkpoint ckpt-40 is damaged and left out: " in others.err


def test_any_list_gives_arrays_or_one_line(tmp_path, pytestconfig):
    """With types, sides, slices, versions and fields that may be anything, and checksums of its own that are right."""

    def number(rng: random.Random) -> int:
        return rng.choice((*range(4), 7, 8, 14, 19, 100, 999, *fuzzing.LENGTHS, NEGATIVE - 6, rng.getrandbits(64)))

    def anything(rng: random.Random) -> bytes:
        return rng.choice((varint(rng.randrange(1 << 12)) + rng.randbytes(4), part(rng.randrange(1, 20), number(rng))))

    def message(rng: random.Random) -> bytes:
        sides = [number(rng) for _ in range(rng.choice((0, 1, 1, 2, 4, 300)))]
        slices = part(7, part(1, part(1, number(rng)) + part(2, number(rng))))
        kind = rng.choice((1, 14, 19, number(rng)))
        return entry(*rng.choice((sides, [2], [4], [1, 2])), kind=kind) + rng.choice((b"", b"", slices, anything(rng)))

    def make(rng: random.Random) -> bytes:
        version = part(3, part(1, number(rng)) + part(2, number(rng)))
        head = rng.choice((b"", b"", b"", version, part(2, number(rng)), anything(rng)))
        names = sorted(rng.sample((b"w", b"v", b"\0w\0\1", b"\xff", b"global_step"), rng.choice((1, 1, 2))))
        return listed([(0, name, message(rng)) for name in names], head, rng.choice((0, 0, 0, 0, 1)))

    count = fuzzing.rounds(600, 20_000, pytestconfig)
    refused = fuzzing.hold("lists", count, make, lambda given: tensors_of(tmp_path, given), tensor_bundle.Damaged, 8 << 20)
    assert 0 < refused < count


def test_what_tensorflow_writes_is_read_without_it(tmp_path):
    """Tensors of every type are read, and names that fill several blocks of the list."""
    kinds = (*tensor_bundle._TYPES.values(), *(getattr(ml_dtypes, name) for name in tensor_bundle._ML_DTYPES.values()))
    values = {f"{k}/{np.dtype(kind)}": np.arange(6).reshape(2, 3).astype(kind) for k, kind in enumerate(kinds)}
    values |= {f"{k:03d} {'x' * 2000}": np.full((k % 3, 2), k, np.float32) for k in range(300)}
    write.write_checkpoint(tmp_path / "x", {**values, "scalar": np.int64(3)})
    reader = tf.train.NewCheckpointReader(str(tmp_path / "x"))
    read = tensor_bundle.tensors(tmp_path / "x.index")
    assert_same_bits(read, {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})
    assert all(read[name].dtype == value.dtype and read[name].flags.writeable for name, value in values.items())
    assert list(tensor_bundle.tensors(tmp_path / "x.index", only=("scalar", "none"))) == ["scalar"]


# --- the small files beside them ---

IDX = bytes((0, 0, 8, 3)) + b"".join(size.to_bytes(4, "big") for size in (5, 4, 3)) + bytes(range(60))


def test_packed_images_have_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "_MAX_BYTES", 1 << 20)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(bytes(64 << 20), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="unpacks to more than the 1,048,576 bytes that are read"):
            idx._idx(file, 3)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    file.write_bytes(gzip.compress(IDX[:4] + b"\xff" * 12))
    with pytest.raises(DataError, match="its header says 79228162458924105385300197391"):
        idx._idx(file, 3)


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        ((40, 28, 28), [1] * 39, "labels-idx1-ubyte holds 39 labels, and .*train-images-idx3-ubyte 40 pictures"),
        ((0, 28, 28), [], "train-images-idx3-ubyte holds no pictures"),
        ((2, 32, 32), [0, 1], "train-images-idx3-ubyte holds pictures of 32 x 32 pixels; 28 x 28 are read"),
        ((2, 28, 28), [0, 25], "train-labels-idx1-ubyte holds the label 25; the 10 classes have 0 to 9"),
    ],
)
def test_idx_files_of_something_else_are_named(images, labels, told, tmp_path):
    """The cache's file was blamed, which nobody has seen, or there was a traceback; and nothing of theirs is cached."""
    for split in ("train", "t10k"):
        for kind, array in (("images-idx3", np.zeros(images, np.uint8)), ("labels-idx1", np.uint8(labels))):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            (tmp_path / f"{split}-{kind}-ubyte").write_bytes(bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes())
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(DataError, match=told):
        fashion_mnist.DATASETS["fashion-mnist-full"](OpenRequest(str(tmp_path), environ))
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_lists_have_a_bound(tmp_path, monkeypatch):
    (tmp_path / "list.csv").write_text("a.jpg,x\n")
    assert len(listings.read_rows(tmp_path / "list.csv")) == 1
    monkeypatch.setattr(listings, "_MAX_BYTES", 7)
    with pytest.raises(DataError, match="more than the 7 bytes that are read of a list"):
        listings.read_rows(tmp_path / "list.csv")
    monkeypatch.setattr(class_names, "_MAX_BYTES", 7)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    assert class_names.read(tmp_path) == ("a", "b")
    (tmp_path / "labels.txt").write_text("a\nb\nc\nd\n")
    with pytest.raises(DataError, match="more than the 7 bytes"):
        class_names.read(tmp_path)
    (tmp_path / "labels.txt").unlink()
    os.mkfifo(tmp_path / "labels.txt")
    with pytest.raises(DataError, match=r"labels.txt cannot be read: Is a pipe"):
        class_names.read(tmp_path)


@pytest.mark.parametrize(
    "name", ["labels.txt", "list.csv", "train-images-idx3-ubyte", "train-images-idx3-ubyte.gz", "records.npz"]
)
def test_whatever_lies_beside_records(tmp_path, name, pytestconfig):
    file = tmp_path / name
    np.savez(file.with_suffix(".npz"), counts=np.array([2]), offsets=np.array([0, 9]), lengths=np.array([5, 5]))
    index = file.with_suffix(".npz").read_bytes()
    readers = {
        "labels.txt": (b"cat\ndog\n\xc3\xa4\n", lambda: class_names.read(tmp_path)),
        "list.csv": (b'path,label,split\na.jpg,cat,train\n"b.jpg",dog,val\n', lambda: listings.read_rows(file)),
        "train-images-idx3-ubyte": (IDX, lambda: idx._idx(file, 3)),
        "train-images-idx3-ubyte.gz": (gzip.compress(IDX), lambda: idx._idx(file, 3)),
        "records.npz": (index, lambda: tfrecord._load_index(file, 1)),
    }
    whole, reader = readers[name]

    def read(content: bytes) -> None:
        file.write_bytes(content)
        reader()

    def make(rng: random.Random) -> bytes:
        return fuzzing.damaged(rng, whole)

    fuzzing.hold(name, fuzzing.rounds(20, 400, pytestconfig), make, read, DataError, 24 << 20)
