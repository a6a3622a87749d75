"""Whatever bytes lie where records should, the readers give records or one line that names the file; never a traceback."""

from __future__ import annotations

import gzip
import os
import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import fuzzing
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from base.errors import DataError
from Datasets import cifar, fashion_mnist
from Datasets._spec import OpenRequest
from Datasets.formats import class_names, idx, tfrecord
from Datasets.formats.bad_records import Tolerance
from Datasets.formats.tfrecord import RecordIndex
from tools.datasets import dataset_checks, listings

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
SHARD = b"".join(map(tfrecord.framed, PAYLOADS))


@SETTINGS
@given(CHANGES)
def test_records_of_a_shard(tmp_path, changes):
    """Records before the first change are found, and no payload that was not stored. Without tolerance, and in verification,
    damage is named."""
    file = tmp_path / "train-00000-of-00001"
    content = changed(SHARD, changes)
    file.write_bytes(content)
    found, said = [], str(file)
    try:
        index = RecordIndex([file], Tolerance(1))
        found = [index.payload(record) for record in range(len(index)) if not index.damage(record)]
        RecordIndex([file])
    except DataError as error:
        said = str(error)
    ahead = [
        payload
        for k, payload in enumerate(PAYLOADS)
        if content.startswith(b"".join(map(tfrecord.framed, PAYLOADS[: k + 1])))
    ]
    assert found[: len(ahead)] == ahead and set(found) <= set(PAYLOADS) and str(file) in said.splitlines()[0]
    checked = dataset_checks._checked_shard(file, range(1), SimpleNamespace(example=lambda *_: None), None, lambda: None)
    assert checked.findings or (content and b"".join(map(tfrecord.framed, found)) == content)


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
