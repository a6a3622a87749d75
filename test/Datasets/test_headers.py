"""Image headers are checked before decoding, and EXIF's orientation is applied."""

from __future__ import annotations

import io
import os
import resource

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import run
from photos import encoded
from PIL import Image, ImageOps
from streams import opened, request, take

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets.formats import image_headers, tfrecord
from cnn_harness.Datasets.pipeline import decoding, image_files
from cnn_harness.Datasets.sources.registry import published_spec

FORMATS = image_headers.FORMATS


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_valid_images_pass_with_their_size(form, mode):
    for size in ((1, 1), (7, 300), (640, 48)):
        data = encoded(Image.new("RGB", size, (1, 2, 3)).convert(mode if (form, mode) != ("JPEG", "P") else "L"), form)
        assert image_headers.header(data)[:3] == (form, *size)
        assert image_headers.fault(data) is None


BYTES = {  # invalid images and what the error must name
    "empty": (b"", "empty"), "text": (b"text", "JPEG, PNG"), "cut WebP": (b"RIFF????WEBPVP8 ", "damaged"),
    "cut JPEG": (b"\xff\xd8\xff", "damaged"), "cut PNG": (b"\x89PNG\r\n\x1a\n", "damaged"), "cut GIF": (b"GIF89a", "damaged"),
    "TIFF": (b"II*\0", "TIFF"), "HEIC": (b"\0\0\0 ftypheic", "HEIC"), "AVIF": (b"\0\0\0 ftypavif", "AVIF"),
    "JPEG XL": (b"\xff\x0a", "JPEG XL"), "JPEG 2000": (b"\0\0\0\x0cjP  ", "JPEG 2000"), "PNM": (b"P6\n", "PNM"),
    **{f"no pixels, {form}": (photos.promising(0, 100, form), "damaged") for form in FORMATS[:3]},
    **{f"large {form}": (photos.promising(20_000, 20_000, form), "20000 x 20000") for form in FORMATS[:-1]},
    "large WebP": (photos.promising(20_000, 20_000, "WebP"), "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("case", BYTES)
def test_invalid_image_is_rejected_by_every_reader(case, tmp_path, memory):
    content, named = BYTES[case]
    (tmp_path / "photo").write_bytes(content)
    reason = image_headers.fault(content)
    assert named in reason and reason == image_headers.file_fault(tmp_path / "photo") == decoding.Decoder().fault(content)
    with pytest.raises(DataError, match="photo ") as caught:
        image_files.load([str(tmp_path / "photo")], published_spec("imagenet"), request())
    assert reason in str(caught.value)


@pytest.fixture
def memory():
    """Limit the test's memory: a decoder that trusts the header would need 1,200 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


@pytest.mark.parametrize("form", FORMATS)
def test_truncated_image_is_found_in_any_crop(form):
    """A JPEG decoder does not read the rows below a crop."""
    data = encoded(Image.effect_noise((300, 300), 50).convert("RGB"), form)
    with tf.Graph().as_default(), tf.Session() as session:
        fed, seed = tf.placeholder(tf.string, []), tf.placeholder(tf.int32, [2])
        crop = decoding.random_crop(fed, tf.zeros([1, 0, 4]), seed)
        for length in (len(data) // 2, len(data) * 9 // 10):
            assert decoding.Decoder().fault(data[:length])
            for k in range(6):
                with pytest.raises(tf.errors.OpError):
                    session.run(crop, {fed: data[:length], seed: [k, 3]})


def test_training_names_or_skips_decompression_bomb(tmp_path, memory, capsys):
    good = encoded(Image.effect_noise((40, 40), 50).convert("RGB"), "PNG")
    photos.write_shards(tmp_path, "train", [photos.example(data, 1) for data in (good, photos.BOMB, good, good)], 1)
    with pytest.raises(tf.errors.OpError, match="record 1 cannot be used: its image claims 20000 x 20000"):
        take(lambda: opened("imagenet", tmp_path).train(request(batch_size=4)), 1)
    assert len(take(lambda: opened("imagenet", tmp_path, skip_bad=1).train(request(batch_size=4)), 1)) == 1
    assert "record 1 is skipped" in capsys.readouterr().err


# --- EXIF's orientation


def turned_to(number: int, form: str = "JPEG") -> tuple[bytes, bytes]:
    """Return an image with an EXIF orientation, and the same pixels without it."""
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 56, 3), np.uint8))
    tags = Image.Exif()
    tags[0x0112] = number
    return encoded(image, form, exif=tags), encoded(image, form)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_images_are_upright_by_exif(form):
    """Like Pillow, for each of the eight orientations, in whole images and in crops."""
    with tf.Graph().as_default(), tf.Session() as session:
        data, none = tf.placeholder(tf.string, []), tf.zeros([1, 0, 4])
        decoded = decoding.whole(data), decoding.random_crop(data, none, tf.constant([3, 4]))
        for number in range(1, 9):
            turned, plain = turned_to(number, form)
            assert [image_headers.header(each).orientation for each in (turned, plain)] == [number, 1]
            for got, stored in zip(session.run(decoded, {data: turned}), session.run(decoded, {data: plain})):
                shown, tags = Image.fromarray(stored), Image.Exif()
                tags[0x0112] = number
                again = Image.open(io.BytesIO(encoded(shown, "PNG", exif=tags)))
                np.testing.assert_array_equal(got, np.asarray(ImageOps.exif_transpose(again)))


# --- Not a file


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("nowhere", path)])
def test_pipes_are_never_waited_for(make, tmp_path):
    shard = tmp_path / "train-00000-of-00001"
    make(shard)
    result = run("train", "--dataset", "imagenet", "--data-dir", tmp_path, "--model-size", 18, "--dry-run")
    assert (result.code, result.err.count("\n")) == (2, 1) and f"{shard} cannot be read" in result.err
    with pytest.raises(DataError, match=f"photo {shard} cannot be read"):
        image_files.load([str(shard)], published_spec("imagenet"), request())


def test_shard_of_zeros_fails_at_first_record(tmp_path):
    """An interrupted download may leave gigabytes of zeros: every sixteen would be a record without content."""
    shard = tmp_path / "train-00000-of-00001"
    with shard.open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(DataError, match="record 0 cannot be used: its length is damaged"):
        tfrecord.RecordIndex([shard])
