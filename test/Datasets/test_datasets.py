"""Data sets: find and count them, compare their streams with NumPy, and handle damage."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from splitmix import reference_below
from streams import joined, opened, records, request, small, take

from cnn_harness.base import draws
from cnn_harness.base.errors import DataError
from cnn_harness.Datasets import cifar
from cnn_harness.Datasets._spec import OpenRequest
from cnn_harness.Datasets.formats import idx, tfrecord
from cnn_harness.Datasets.pipeline import augmentation
from cnn_harness.Datasets.sources import generated, record_sample
from cnn_harness.Datasets.sources.registry import published_spec
from cnn_harness.harness.run.recorded_arguments import changed_data, data_identity
from cnn_harness.tools.datasets import rebuild_fashion_mnist

_TRAIN = 200  # 5 files of 40
_VALIDATION = 30


@pytest.fixture
def cifar_dir(tmp_path) -> Path:
    for i in range(5):
        (tmp_path / f"data_batch_{i + 1}.bin").write_bytes(records(_TRAIN // 5, i).tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records(_VALIDATION, 9).tobytes())
    return tmp_path


# --- CIFAR's records -------------------------------------------------------------------------------------------


def reference_standardised(row: np.ndarray) -> np.ndarray:
    image = row[-3072:].reshape(3, 32, 32).transpose(1, 2, 0).astype(np.float64)
    return (image - image.mean()) / max(image.std(), 1 / np.sqrt(3072))


def reference_augmented(row: np.ndarray, record: int, epoch: int, seed: int) -> np.ndarray:
    """Standardise, mirror, pad with zeros and crop one image at a time, in float64."""
    image = reference_standardised(row)
    if reference_below(2, draws.key(seed, "data/flip"), epoch, record):
        image = image[:, ::-1]
    top = reference_below(9, draws.key(seed, "data/crop-top"), epoch, record)
    left = reference_below(9, draws.key(seed, "data/crop-left"), epoch, record)
    return np.pad(image, ((4, 4), (4, 4), (0, 0)))[top : top + 32, left : left + 32]


def test_cifar_training_matches_reference(cifar_dir):
    rows = np.concatenate([records(_TRAIN // 5, i) for i in range(5)])
    rows[3, 1:] = 77  # a flat image: the lower limit of the deviation applies
    (cifar_dir / "data_batch_1.bin").write_bytes(rows[:40].tobytes())
    source = opened("cifar-10", cifar_dir)
    got = joined(take(lambda: source.train(request(batch_size=50, start=150)), 5))  # covers two epochs
    position = got["position"]
    assert position.tolist() == list(range(150, 400))
    with tf.Graph().as_default(), tf.Session() as session:
        order = session.run(draws.permuted(position % _TRAIN, position // _TRAIN, _TRAIN, draws.key(5, "data/order")))
    assert 3 in order[50:]
    expected = [reference_augmented(rows[r], int(r), int(p) // _TRAIN, 5) for r, p in zip(order, position, strict=True)]
    np.testing.assert_allclose(got["image"], np.stack(expected), atol=2e-6)
    assert got["label"].tolist() == rows[order, 0].tolist()
    assert got["image"].dtype == np.float32 and got["label"].dtype == np.int32 and position.dtype == np.int64


def test_records_once_per_epoch_in_new_order(cifar_dir):
    source = opened("cifar-10", cifar_dir)
    got = joined(take(lambda: source.train(request(batch_size=_TRAIN, augment=False)), 2))
    images = got["image"].reshape(2, _TRAIN, -1)
    epochs = [[image.tobytes() for image in epoch] for epoch in images]
    assert set(epochs[0]) == set(epochs[1]) and len(set(epochs[0])) == _TRAIN
    assert sum(a == b for a, b in zip(*epochs, strict=True)) < 10


def test_validation_has_every_image_once_in_order(cifar_dir):
    source = opened("cifar-10", cifar_dir)
    elements = take(lambda: source.validation(request(batch_size=8)))
    got, rows = joined(elements), records(_VALIDATION, 9)
    assert len(elements) == 4 and got["label"].tolist() == [*rows[:, 0].tolist(), -1, -1]
    np.testing.assert_allclose(got["image"][:_VALIDATION], [reference_standardised(row) for row in rows], atol=2e-6)
    assert not got["image"][_VALIDATION:].any()
    assert len(take(lambda: source.validation(request(batch_size=15)))) == 2


@pytest.mark.parametrize("changes", [{}, {"image_size": 48}, {"augment": False}], ids=str)
def test_bytes_standardised_on_device_match_floats(cifar_dir, changes):
    source = opened("cifar-10", cifar_dir)
    for split in (source.train, source.validation):
        floats = joined(take(lambda split=split: split(request(**changes)), 2))["image"]
        sent = joined(take(lambda split=split: split(request(eight_bit_io=True, **changes)), 2))
        assert sent["image"].dtype == np.uint8 and sent["image"].shape[1] == 32
        with tf.Graph().as_default(), tf.Session() as session:
            device = session.run(
                source.on_device(tf.constant(sent["image"]), request(**changes), tf.constant(sent["moments"]))
            )
        np.testing.assert_array_equal(device, floats)


def test_cifar_100_uses_fine_labels(tmp_path):
    real = tmp_path / "elsewhere" / "cifar-100-binary"
    real.mkdir(parents=True)
    (real / "train.bin").write_bytes(records(20, 1, 2, 100).tobytes())
    (real / "test.bin").write_bytes(records(10, 2, 2, 100).tobytes())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    source = opened("cifar-100", None, {"DATA_DIR": str(tmp_path / "data")})
    assert (source.spec.train_images, source.spec.validation_images, source.spec.num_classes) == (20, 10, 100)
    labels = joined(take(lambda: source.validation(request(batch_size=10))))["label"]
    assert labels.tolist() == records(10, 2, 2, 100)[:, 1].tolist()


def test_changed_byte_is_noticed_on_resume(cifar_dir):
    first = cifar.DATASETS["cifar-10"](OpenRequest(str(cifar_dir), {}))
    recorded = data_identity(first)
    assert changed_data(first, recorded) == []
    file = cifar_dir / "data_batch_2.bin"
    content = file.read_bytes()
    for place in (1, len(content) // 2, len(content) - 1):
        changed = bytearray(content)
        changed[place] ^= 1
        file.write_bytes(changed)
        again = cifar.DATASETS["cifar-10"](OpenRequest(str(cifar_dir), {}))
        assert changed_data(again, recorded) == ["the same number of images, but different ones or in another order"]


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda d: (d / "data_batch_3.bin").write_bytes(b"x" * 4000), "data_batch_3.bin has 4000 bytes"),
        (lambda d: (d / "test_batch.bin").write_bytes(b"\x0b" * 6146), "test_batch.bin .*record 0 has label 11"),
        (lambda d: (d / "data_batch_1.bin").unlink(), "lacks data_batch_1.bin"),
    ],
)
def test_wrong_cifar_files_are_named(cifar_dir, damage, named):
    damage(cifar_dir)
    with pytest.raises(DataError, match=named) as caught:
        opened("cifar-10", cifar_dir)
    assert str(cifar_dir) in str(caught.value)


# --- Fashion-MNIST ---------------------------------------------------------------------------------------------


def test_embedded_set_matches_publication(tmp_path):
    source = opened("fashion-mnist", None, {"XDG_CACHE_HOME": str(tmp_path), "DATA_DIR": "/ignored"})
    assert (source.spec.train_images, source.spec.validation_images) == (10_000, 2_000)
    assert len(source.spec.class_names) == 10
    splits = idx.unpacked(idx.EMBEDDED)
    for (_, labels), each in zip(splits.values(), (1000, 200), strict=True):
        assert Counter(labels.tolist()) == dict.fromkeys(range(10), each)
    assert splits["train"][1][:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]  # the first labels of the published order
    got = take(lambda: source.validation(request(batch_size=20)), 1)[0]
    frame = np.pad(splits["t10k"][0][:20], ((0, 0), (2, 2), (2, 2))).astype(np.float64)
    expected = (frame - frame.mean((1, 2), keepdims=True)) / frame.std((1, 2), keepdims=True)
    np.testing.assert_allclose(got["image"], np.repeat(expected[..., None], 3, -1), atol=2e-6)
    assert got["label"].tolist() == splits["t10k"][1][:20].tolist()


def test_expansion_repeats_only_after_damage(tmp_path):
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    opened("fashion-mnist", None, environ)
    folder = tmp_path / "cnn-harness" / "fashion-mnist-v1"
    sums = json.loads((folder / "checksums.json").read_text())
    made = folder.stat().st_ino
    opened("fashion-mnist", None, environ)
    assert folder.stat().st_ino == made
    with (folder / "train.bin").open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"\xff\xfe")
    opened("fashion-mnist", None, environ)
    assert folder.stat().st_ino != made
    (folder / "test.bin").unlink()
    opened("fashion-mnist", None, environ)
    assert json.loads((folder / "checksums.json").read_text()) == sums
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]  # no temporary files are left


def test_full_set_needs_idx_files(tmp_path, monkeypatch):
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", tmp_path / "debian")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with pytest.raises(DataError, match="apt install dataset-fashion-mnist"):
        opened("fashion-mnist-full", None, environ)
    with pytest.raises(DataError, match="leave out --data-dir"):
        opened("fashion-mnist", tmp_path, environ)
    for name, shape in zip(idx.IDX_FILES, ((30, 28, 28), (30,), (20, 28, 28), (20,)), strict=True):
        header = bytes((0, 0, 8, len(shape))) + np.array(shape, ">u4").tobytes()
        (tmp_path / name).write_bytes(header + np.ones(shape, np.uint8).tobytes())
    for name in ("fashion-mnist", "fashion-mnist-full"):
        spec = opened(name, tmp_path, environ).spec
        assert (spec.name, spec.train_images, spec.validation_images) == (name, 30, 20)
    (tmp_path / idx.IDX_FILES[1]).write_bytes(header + b"cut")
    with pytest.raises(DataError, match="truncated"):
        opened("fashion-mnist-full", tmp_path, environ)


@pytest.mark.skipif(not idx.holds_idx(idx.DEBIAN_FOLDER), reason="dataset-fashion-mnist is not installed")
def test_embedded_file_is_rebuilt_from_package():
    assert rebuild_fashion_mnist.main(["--check"]) == 0


# --- ImageNet --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def imagenet_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    photos.write_imagenet(folder, train=12, validation=7, shards=3)
    return folder


def test_imagenet_is_permuted_with_keyed_crops(imagenet_dir):
    source = opened("imagenet", imagenet_dir)
    assert (source.spec.train_images, source.spec.validation_images, source.spec.image_size) == (12, 7, None)
    stream = joined(take(lambda: source.train(small()), 6))
    assert stream["position"].tolist() == list(range(24)) and stream["image"].shape == (24, 40, 40, 3)
    assert stream["image"].min() >= 0 and 100 < stream["image"].max() <= 255
    assert Counter(stream["label"][:12].tolist()) == Counter(stream["label"][12:].tolist())
    assert len({image.tobytes() for image in stream["image"]}) == 24  # the second epoch has other crops
    other_seed = take(lambda: source.train(small(seed=6)), 1)[0]
    assert not np.array_equal(other_seed["image"], stream["image"][:4])


def test_imagenet_validation_takes_every_image_once(imagenet_dir):
    source = opened("imagenet", imagenet_dir)
    elements = take(lambda: source.validation(small(hostside_norm=True)))
    got = joined(elements)
    assert len(elements) == 2 and (got["label"][:7] >= 0).all() and got["label"][7] == -1
    assert not got["image"][7].any() and got["image"][:7].any((1, 2, 3)).all()
    raw = joined(take(lambda: source.validation(small(batch_size=7))))["image"]
    with tf.Graph().as_default(), tf.Session() as session:
        image = session.run(tf.image.decode_jpeg(photos.jpegs(13)[12], channels=3, dct_method="INTEGER_FAST"))
        side = int(40 * 256 / 224)
        size = [round(n * side / min(image.shape[:2])) for n in image.shape[:2]]
        whole = session.run(augmentation.resize(image[None], *size))[0]
    top, left = (size[0] - 40) // 2, (size[1] - 40) // 2
    np.testing.assert_array_equal(raw[0], whole[top : top + 40, left : left + 40])


@pytest.mark.parametrize("unit", [False, True])
def test_imagenet_normalises_alike_on_host_and_device(imagenet_dir, unit):
    source = opened("imagenet", imagenet_dir)
    host = take(lambda: source.train(small(hostside_norm=True, normalise_input=unit)), 1)[0]["image"]
    raw = take(lambda: source.train(small()), 1)[0]["image"]
    with tf.Graph().as_default(), tf.Session() as session:
        device = session.run(source.on_device(tf.constant(raw), small(normalise_input=unit)))
    np.testing.assert_allclose(host, device, atol=1e-5)
    mean, deviation = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) if unit else ([123.68, 116.78, 103.94], [1, 1, 1])
    np.testing.assert_allclose(host, (raw.astype(np.float64) / (255 if unit else 1) - mean) / deviation, atol=2e-5)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda top: (top / "train-00001-of-00003").unlink(), "train-00001-of-00003"),
        (lambda top: (top / "train-00000-of-00004").write_bytes(b""), "00003, .*00004"),
    ],
)
def test_missing_imagenet_shards_are_named(spoil, named, imagenet_dir, tmp_path):
    for file in imagenet_dir.glob("train-*"):
        (tmp_path / file.name).symlink_to(file)
    source = opened("imagenet", tmp_path)
    assert (source.spec.train_images, source.spec.validation_images) == (12, 0)
    with pytest.raises(DataError, match="no validation-"):
        source.validation(small())
    spoiled = tmp_path / "train-00001-of-00003"
    spoiled.unlink()
    spoiled.write_bytes((imagenet_dir / spoiled.name).read_bytes())
    spoil(tmp_path)
    with pytest.raises(DataError, match=f"{tmp_path}.*{named}"):
        opened("imagenet", tmp_path)


@pytest.mark.parametrize("spoilt", ["jpeg", "label", "bytes"])
def test_unusable_record_stops_stream_and_is_named(tmp_path, spoilt, monkeypatch):
    where = 5  # alone in the last micro-batch of the validation
    good = photos.jpegs(6)
    rows = [photos.example(image, 1) for image in good]
    rows[where] = photos.example(good[0][:3000], 1) if spoilt == "jpeg" else photos.example(good[0], 1001)
    photos.write_shards(tmp_path, "train", rows, 2)
    shard = photos.write_shards(tmp_path, "validation", rows, 2)[1]
    if spoilt == "bytes":
        for file in (shard, tmp_path / "train-00001-of-00002"):
            data = bytearray(file.read_bytes())
            at = int(tfrecord.RecordIndex([file])._offsets[where - 3])
            data[at : at + 50] = b"\xff" * 50
            file.write_bytes(data)
    reason = {"jpeg": "JPEG", "label": "outside 1 to 1000", "bytes": "checksum does not match"}[spoilt]
    if spoilt == "label":
        with pytest.raises(DataError, match=f"train-00001-of-00002: record {where - 3}.*{reason}"):
            opened("imagenet", tmp_path)
    monkeypatch.setattr(record_sample, "sampled", lambda count: [])  # as for a record that is not in the sample
    source = opened("imagenet", tmp_path)
    for split in ("train", "validation"):
        with pytest.raises(tf.errors.OpError, match=f"(?s)DataError.*{split}-00001-of-00002: record {where - 3}.*{reason}"):
            take(lambda split=split: getattr(source, split)(small(batch_size=5)), 20)


# --- Generated data --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar-10", "imagenet"])
def test_generated_data_is_one_sample(name):
    spec = published_spec(name)
    asked = request(batch_size=3, image_size=48 if name == "imagenet" else 128, start=7)
    source = generated.GeneratedSource(spec)
    got = joined(take(lambda: source.train(asked), 2))
    assert got["position"].tolist() == list(range(7, 13)) and len({image.tobytes() for image in got["image"]}) == 1
    assert len(set(got["label"].tolist())) == 1 and 0 <= got["label"][0] <= spec.num_classes - 2
    with tf.Graph().as_default(), tf.Session() as session:
        made = generated.synthetic(spec, asked, tf.range(6, dtype=tf.int64))
        image, label = session.run(made)
        device = session.run(source.on_device(made[0], asked))
    np.testing.assert_array_equal(image, got["image"])
    np.testing.assert_array_equal(label, got["label"])
    sent = joined(take(lambda: source.train(replace(asked, eight_bit_io=True)), 2))
    assert sent["image"].dtype == np.uint8
    with tf.Graph().as_default(), tf.Session() as session:
        moments = tf.constant(sent["moments"]) if "moments" in sent else None
        unpacked = session.run(source.on_device(tf.constant(sent["image"]), asked, moments))
    np.testing.assert_array_equal(unpacked, device)
    if name == "imagenet":
        assert image.min() >= 0 and image.max() <= 247 and abs(image.mean() - 127) < 5 and 48 < image.std() < 56
        np.testing.assert_allclose(device, image - np.float32([123.68, 116.78, 103.94]), atol=1e-5)
    else:
        assert abs(image[0].mean()) < 1e-4 and abs(image[0].std() - 1) < 1e-4
