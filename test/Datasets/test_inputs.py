"""Photos on their way to the device: bytes, four channels, blocks, parts of a set, bad records."""

from __future__ import annotations

import gc
import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import assert_same_bits, run, succeed, timeless, variables
from streams import assert_equal, joined, opened, small, take

from cnn_harness.Datasets.formats import preprocessing, tfrecord
from cnn_harness.Datasets.formats.tfrecord import RecordIndex
from cnn_harness.Datasets.pipeline import batching

TRAIN = ("--dataset", "imagenet", "--model", "resnet", "--model-size", 10, "--image-size", 32, "--batch-size", 4, "--precision",
         "32.32", "--seed", 3, "--iterations", 3, "--valid-batch-size", 4)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("photos")
    photos.write_imagenet(made, train=20, validation=8, shards=4)
    return made


@pytest.fixture
def copy(folder, tmp_path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


# --- Order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size, block", [(20, 1), (20, 4), (20, 7), (20, 20), (20, 50), (1, 3), (1000, 64)])
def test_blocks_stay_together_and_records_come_once(size, block):
    """For any requested part, also across the end of an epoch."""
    with tf.Graph().as_default(), tf.Session() as session:
        position = tf.range(3 * size, dtype=tf.int64)
        record, epoch = session.run(batching.record_and_epoch(position, size, 5, block))
        part = session.run(batching.record_and_epoch(position[size // 2 : 2 * size], size, 5, block)[0])
    np.testing.assert_array_equal(part, record[size // 2 : 2 * size])
    np.testing.assert_array_equal(epoch, np.arange(3 * size) // size)
    orders = record.reshape(3, size)
    for order in orders:
        assert sorted(order) == list(range(size))
        inside = ((order[:-1] + 1) % min(block, size) != 0) & (order[:-1] + 1 < size)  # within a block
        followed = np.diff(order)[inside]
        assert (followed == 1).all()
    if size // min(block, size) > 2:
        assert not (orders[0] == orders[1]).all()


# --- On the way to the device ----------------------------------------------------------------------------------


OWN = {"image_mean": (0.1, 0.2, 0.3), "image_std": (0.5, 1.0, 2.0)}


@pytest.mark.parametrize("changes", [{}, {"normalise_input": True}, {"symmetric_input": True}, OWN])
def test_four_channels_are_three_and_zeros(changes, folder):
    source = opened("imagenet", folder)
    asked = small(**changes)
    batch = take(lambda: source.train(asked), 1)[0]
    with tf.Graph().as_default(), tf.Session() as session:
        image = tf.constant(batch["image"])
        three, four = session.run(
            [source.on_device(image, asked), source.on_device(image, replace(asked, fused_preprocessing=True))]
        )
    assert four.shape == (*three.shape[:-1], 4)
    np.testing.assert_array_equal(four[..., :3], three)
    assert not four[..., 3].any()


@pytest.mark.parametrize("changes", [{"hostside_norm": True}, {"eight_bit_io": True}, {"fused_preprocessing": True}, {}])
def test_own_constants_apply_to_every_normalisation(changes, folder):
    source = opened("imagenet", folder)
    raw, asked = (small(**more, dataset_cache=False) for more in ({"eight_bit_io": True}, {**OWN, **changes}))
    pixels = take(lambda: source.validation(raw), 1)[0]["image"].astype(np.float64)
    batch = take(lambda: source.validation(asked), 1)[0]["image"]
    with tf.Graph().as_default(), tf.Session() as session:
        found = session.run(source.on_device(tf.constant(batch), asked))[..., :3]
    expected = (pixels / 255 - np.array(OWN["image_mean"])) / np.array(OWN["image_std"])
    np.testing.assert_allclose(found, expected, atol=1.01 / 255 / 0.5)  # bytes have no fractions
    described = preprocessing.described(source.spec, asked)["normalisation"]
    np.testing.assert_allclose(described["mean"], 255 * np.array(OWN["image_mean"]))
    np.testing.assert_allclose(described["deviation"], 255 * np.array(OWN["image_std"]))


@pytest.mark.slow
def test_bytes_and_four_channels_train_and_resume(folder, tmp_path):
    words = (*TRAIN, "--data-dir", folder, "--eight-bit-io", "--fused-preprocessing", "--hostside-norm")
    succeed("train", *words, "--logs-path", tmp_path / "one")
    assert 4 in {value.shape[2] for value in variables(tmp_path / "one", 3).values() if value.ndim == 4}
    succeed("train", *words, "--logs-path", tmp_path / "two", "--stop-after", 2)
    succeed("restore", "--restore-path", tmp_path / "two")
    assert_same_bits(variables(tmp_path / "one", 3), variables(tmp_path / "two", 3))
    succeed("validation", "--restore-path", tmp_path / "one", "--no-logs")


def test_small_image_bytes_lose_nothing(tmp_path):
    """They are standardised on the device with exactly the bits of the host."""
    words = ("--dataset", "fashion-mnist", "--model-size", 8, "--batch-size", 20, "--iterations", 3, "--seed", 3)
    succeed("train", *words, "--no-validation", "--precision", "32.32", "--logs-path", tmp_path / "a")
    succeed("train", *words, "--no-validation", "--precision", "32.32", "--eight-bit-io", "--logs-path", tmp_path / "b")
    assert_same_bits(variables(tmp_path / "a", 3), variables(tmp_path / "b", 3))


# --- Part of a set ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("percentage, train", [(100, 20), (99, 15), (50, 10), (25, 5)])
def test_percentage_selects_first_shards(percentage, train, folder):
    source = opened("imagenet", folder, percentage=percentage)
    assert source.spec.train_images == train


def test_single_validation_shard_stays_whole(tmp_path):
    photos.write_imagenet(tmp_path, train=8, validation=4, shards=4)
    whole, *others = sorted(tmp_path.glob("validation-*"))
    for file in others:
        file.unlink()
    whole.rename(tmp_path / "validation-00000-of-00001")
    spec = opened("imagenet", tmp_path, percentage=50).spec
    assert spec.train_images == 4 and spec.validation_images > 0


# --- Bad records -----------------------------------------------------------------------------------------------


def strike(folder: Path, shard: str, record: int, kind: str) -> None:
    """Damage one record of a shard."""
    file = folder / shard
    index, data = RecordIndex([file]), bytearray(file.read_bytes())
    start, length = int(index._offsets[record]), int(index._lengths[record])
    if kind in ("undecodable", "label"):
        other = {"undecodable": (b"\xff\xd8\xff no image", 3), "label": (photos.jpegs(1)[0], 99_999)}[kind]
        data[start - 12 : start + length + 4] = tfrecord.framed(photos.example(*other))
    elif kind in ("cut", "empty"):
        data = data[: start + length // 2 if kind == "cut" else 0]
    else:
        data[{"payload": start + length // 2, "length": start - 12}[kind]] ^= 4
    file.write_bytes(data)


@pytest.mark.parametrize("kind", ["payload", "undecodable", "cut"])
def test_bad_record_is_named(kind, copy):
    """The error has file and record in one line; the exit code is 2 or 1."""
    strike(copy, "train-00001-of-00004", 2, kind)
    before = open_sessions()
    result = run("train", *TRAIN, "--iterations", 6, "--data-dir", copy, "--no-validation", "--no-logs")
    assert open_sessions() <= before  # garbage collection of open sessions can deadlock
    assert result.code in (1, 2) and result.err.count("\n") == 1, result.err
    assert "train-00001-of-00004" in result.err and "record 2" in result.err


def open_sessions() -> set[int]:
    """Return the open sessions of this process."""
    return {id(each) for each in gc.get_objects() if isinstance(each, tf.Session) and not each._closed}


@pytest.mark.parametrize("kind", ["payload", "length", "label", "empty"])
def test_bad_record_is_skipped(kind, copy, folder, capfd):
    """The next good record replaces it, no other image moves, and a restored stream is the same."""
    strike(copy, "train-00001-of-00004", 2, kind)
    source, lost = opened("imagenet", copy, skip_bad=5), {"length": 3, "cut": 3, "empty": 5}.get(kind, 0)
    assert source.spec.train_images == 20 - lost
    asked = small()
    stream = joined(take(lambda: source.train(asked), 10))
    assert stream["position"].tolist() == list(range(40))
    err = capfd.readouterr().err
    assert err.count("warning: ") == 1 and "train-00001-of-00004" in err
    assert_equal({n: x[16:] for n, x in stream.items()}, joined(take(lambda: source.train(replace(asked, start=16)), 6)))
    if not lost:
        clean = joined(take(lambda: opened("imagenet", folder).train(small()), 10))
        same = [np.array_equal(a, b) for a, b in zip(stream["image"], clean["image"])]
        assert Counter(same)[False] == 2  # once in each epoch


def test_excess_bad_record_is_error(copy):
    """The work so far is saved and the printed command resumes to the same bits. log.txt has the details."""
    for record in (0, 3):
        strike(copy, "train-00002-of-00004", record, "undecodable")
    words = (*TRAIN, "--iterations", 10, "--batches-per-step", 5, "--log-freq", 1, "--data-dir", copy, "--no-validation")
    result = run("train", *words, "--skip-bad-records", 1, "--logs-path", copy / "run")
    reason = "record 2, but --skip-bad-records is 1"
    assert result.code == 1 and reason in result.err
    log = (copy / "run/log.txt").read_text()
    assert f"{reason}\n" in log and re.search(r"^The newest checkpoint is ckpt-[1-9]\.$", log, re.MULTILINE)
    command = re.search(r"^Resume: +\S+ \S*restore\.py (.*)$", result.out, re.MULTILINE)[1]
    succeed("restore", *command.split())
    succeed("train", *words, "--skip-bad-records", 2, "--logs-path", copy / "whole")
    assert_same_bits(variables(copy / "run", 10), variables(copy / "whole", 10))
    assert timeless(copy / "run/training.csv") == timeless(copy / "whole/training.csv")
    assert (copy / "whole/log.txt").read_text().count("is skipped: ") == 2


@pytest.mark.slow
def test_bad_image_is_excluded_from_validation(copy):
    strike(copy, "validation-00001-of-00004", 0, "payload")
    names = ("--data-dir", copy, "--skip-bad-records", 2)
    out = succeed("train", *TRAIN, *names, "--no-logs").out
    assert "7 images" in out
    for split, records in (("validation", 2), ("train", 5)):  # first no validation data, then no training data
        for shard, record in itertools.product(copy.glob(f"{split}-*"), range(records)):
            strike(copy, shard.name, record, "label")
        refused = run("train", *TRAIN, "--data-dir", copy, "--skip-bad-records", 100, "--no-logs")
        assert refused.code in (1, 2) and refused.err.count("error: ") == 1, refused.err


# --- Keeping an index ------------------------------------------------------------------------------------------


def test_large_index_is_cached_and_renewed(copy, tmp_path_factory, monkeypatch):
    cache = tmp_path_factory.mktemp("cache")
    files = sorted(copy.glob("train-*"))
    environ = {"XDG_CACHE_HOME": str(cache)}
    monkeypatch.setattr(tfrecord, "_MIN_CACHED", 0)
    first = RecordIndex(files, environ=environ)
    (kept,) = cache.rglob("records-*.npz")
    with monkeypatch.context() as patched:
        patched.setattr(tfrecord, "_walk", None)  # no shard is read again
        again = RecordIndex(files, environ=environ)
    assert [again.payload(k) for k in range(20)] == [first.payload(k) for k in range(20)]
    kept.write_bytes(kept.read_bytes()[:100])
    assert len(RecordIndex(files, environ=environ)) == 20
    files[0].write_bytes(files[0].read_bytes() + tfrecord.framed(first.payload(3)))
    assert len(RecordIndex(files, environ=environ)) == 21


# --- The benchmark ---------------------------------------------------------------------------------------------


def test_benchmark_shows_time_per_part(folder, monkeypatch):
    from cnn_harness.harness.evaluation import input_benchmark

    monkeypatch.setattr(input_benchmark.report, "__defaults__", (print, 0.1))
    result = succeed("train", *TRAIN, "--data-dir", folder, "--dataset-benchmark")
    named = re.findall(r"^  (\w+) +[\d.]+ ms per image +([\d.]+) %$", result.out, re.M)
    assert [name for name, _ in named] == ["read", "decode", "augment", "batch", "transfer"]
    assert 99 < sum(float(share) for _, share in named) < 101
    assert re.search(r"^mean throughput: [\d.]+ imgs/sec$", result.out, re.M)
    assert " Saving to" not in result.out
