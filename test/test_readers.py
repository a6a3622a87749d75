"""Whatever bytes lie where records should, the readers give records or one line that names the file; never a traceback."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import framed

from Datasets import cifar
from Datasets._spec import DataError, OpenRequest
from Datasets._tfrecords import RecordIndex
from Datasets._tolerance import Tolerance

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
    for name in (*cifar.FILES["cifar-10"].train, *cifar.FILES["cifar-10"].validation):
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
