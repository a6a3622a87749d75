"""Bounds on a picture's header: its promises are checked by every command that reads it, before a decoder believes them."""

from __future__ import annotations

import errno
import io
import os
import resource
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import run
from PIL import Image, ImageOps, PngImagePlugin
from streams import request

from base.errors import DataError
from Datasets._spec import OpenRequest
from Datasets.formats import binary, image_headers, tf_example, tfrecord
from Datasets.imagenet import open_imagenet
from Datasets.pipeline import decoding, image_files
from Datasets.sources import catalogue, image_folder
from Datasets.sources.catalogue import published_spec
from tools.datasets import dataset_checks
from tools.datasets.example_checks import ExampleChecker

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WebP")


def encoded(picture: Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    picture.save(out, form, **options)
    return out.getvalue()


def scanned(scans: int, behind: bytes = b"") -> bytes:
    """A JPEG with a number of scans, each with a few bytes, and what a phone may put behind the picture."""
    whole = encoded(Image.new("L", (64, 64)), "JPEG", progressive=True)
    at = whole.index(b"\xff\xda")
    return whole[:at] + whole[at:-2] * scans + b"\xff\xd9" + behind


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_sizes_are_read_and_real_pictures_pass(form, mode):
    for size in ((1, 1), (7, 300), (640, 48)):
        data = encoded(Image.new("RGB", size, (1, 2, 3)).convert(mode if (form, mode) != ("JPEG", "P") else "L"), form)
        assert image_headers.header(data)[:3] == (form, *size)
        assert image_headers.fault(data) is None


@pytest.mark.parametrize(
    "form, mode, options",
    [
        ("JPEG", "L", {"optimize": True, "quality": 1}),
        ("JPEG", "RGB", {"optimize": True, "quality": 1, "subsampling": "4:2:0"}),
        ("JPEG", "L", {"progressive": True, "optimize": True}),
        ("PNG", "1", {"optimize": True, "compress_level": 9}),
        ("GIF", "P", {}),
        ("BMP", "1", {}),
    ],
)
def test_pictures_of_one_colour_pass(form, mode, options):
    """The smallest files that real encoders make of large pictures."""
    data = encoded(Image.new(mode, (3000, 3000)), form, **options)
    assert image_headers.fault(data) is None


@pytest.mark.parametrize("form", FORMATS[:-1])
@pytest.mark.parametrize("size", [(20_000, 20_000), (9_500, 9_500), (65_000, 1500)])
def test_what_cannot_be_is_refused(form, size):
    reason = image_headers.fault(photos.promising(*size, form))
    assert f"says that it is {size[0]} x {size[1]} pixels" in reason
    rule = "more than the" if size[0] == 20_000 else "bytes cannot hold"
    assert rule in reason


def test_a_webp_says_its_size_in_each_of_its_forms():
    """Lossy, lossless, and with a canvas; a few bytes can hold any size of one colour."""
    for options in ({}, {"lossless": True}, {"exif": b"Exif"}):
        data = encoded(Image.new("RGB", (640, 48)), "WebP", **options)
        assert image_headers.header(data)[:3] == ("WebP", 640, 48)
    assert "is damaged" in image_headers.fault(photos.promising(20_000, 20_000, "WebP"))
    lossy = bytearray(encoded(Image.new("RGB", (640, 48)), "WebP"))
    lossy[26:28] = bytes(2)
    for damaged in (bytes(lossy), data[:12] + b"ICCP" + data[16:], data[:22]):
        assert "is damaged: the header of its WebP" in image_headers.fault(damaged)


@pytest.mark.parametrize("form", FORMATS[:-2])
@pytest.mark.parametrize("size", [(0, 100), (100, 0)])
def test_a_picture_without_pixels_is_damaged(form, size):
    assert "is damaged" in image_headers.fault(photos.promising(*size, form))


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"\xff\xc0\0\x11\x08", b"\xff\xc1\0\x11\x0c"), (b"\xff\xc0\0\x11\x08", b"\xff\xc3\0\x11\x08")],
    ids=["12 bits", "lossless"],
)
def test_a_sound_jpeg_that_no_decoder_reads_is_not_called_damaged(before, after, tmp_path):
    thumbnail = encoded(Image.new("RGB", (8, 8)), "JPEG")
    data = encoded(Image.effect_noise((64, 64), 50).convert("RGB"), "JPEG", exif=b"Exif\0\0" + thumbnail)
    head, tail = data.rsplit(before, 1)
    (tmp_path / "a.jpg").write_bytes(head + after + tail)
    for reason in (image_headers.fault(head + after + tail), image_headers.file_fault(tmp_path / "a.jpg")):
        advice = image_folder.BadFile(tmp_path, reason).advice
        assert advice.startswith("cannot be read: ") and "save it anew" in advice and "damaged" not in advice


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_cut_short_is_found_wherever_a_crop_lies(form):
    """A crop of a JPEG is decoded without the rows below it."""
    data = encoded(Image.effect_noise((300, 300), 50).convert("RGB"), form)
    with tf.Graph().as_default(), tf.Session() as session:
        fed, seed = tf.placeholder(tf.string, []), tf.placeholder(tf.int32, [2])
        crop = decoding.random_crop(fed, tf.zeros([1, 0, 4]), seed)
        for length in (len(data) // 2, len(data) * 9 // 10):
            assert decoding.Decoder().fault(data[:length])
            for k in range(6):
                with pytest.raises(tf.errors.OpError):
                    session.run(crop, {fed: data[:length], seed: [k, 3]})


def test_scans_of_a_jpeg_count_and_what_follows_it_does_not():
    assert image_headers.fault(scanned(10)) is None
    assert image_headers.fault(scanned(10, b"\xff\xda\x00\x08" * 1000)) is None
    assert "more than the 200 scans" in image_headers.fault(scanned(300))
    large = scanned(100, bytes(1 << 17)).replace(b"\x00\x40\x00\x40", (11_000).to_bytes(2, "big") * 2, 1)
    assert "more than the 17 scans" in image_headers.fault(large)


@pytest.mark.parametrize(
    "data", [b"", b"text", b"RIFF????WEBPVP8 ", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"\xff" * 9]
)
def test_what_is_no_picture_is_said(data):
    assert image_headers.fault(data)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"\0\0\0 ftypheic", "HEIC"),
        (b"\0\0\0 ftypavif", "AVIF"), (b"\xff\x0a", "JPEG XL"), (b"\0\0\0\x0cjP  ", "JPEG 2000"), (b"P6\n", "PNM"),
    ],
)  # fmt: skip
def test_pictures_of_other_formats_are_to_be_converted(data, name):
    reason = image_headers.fault(data)
    assert reason == f"is {name}, which is not read; convert it to JPEG, PNG, GIF, BMP or WebP"
    assert image_folder.BadFile(Path("x"), reason).advice == reason


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path, monkeypatch):
    def forbidden(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(image_headers.input_files, "open_regular_file", forbidden)
    reason = image_headers.file_fault(tmp_path / "a.jpg")
    assert image_folder.BadFile(Path("x"), reason).advice == "cannot be read: Permission denied; make it readable"


# --- The commands that read pictures


@pytest.fixture(scope="module")
def bombs(tmp_path_factory):
    """Shards whose second record promises too much, and the folder they are in."""
    folder = tmp_path_factory.mktemp("bombs")
    good = encoded(Image.effect_noise((40, 40), 50).convert("RGB"), "PNG")
    records = [tf_example.serialised(data, 1, "a") for data in (good, photos.promising(20_000, 20_000), good, good)]
    photos.write_shards(folder, "train", records, 1)
    (folder / "labels.txt").write_text("a\nb\n")
    return folder


@pytest.fixture
def memory():
    """The memory of the test is bounded: a decoder that believed the header would take 1,200 MB."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


def test_training_names_it_or_goes_past_it(bombs, memory, capsys):
    def stream(most: int):
        source = open_imagenet(OpenRequest(str(bombs), {}, skip_bad=most))
        with tf.Graph().as_default(), tf.Session() as session:
            batches = tf.data.make_initializable_iterator(source.train(request(batch_size=4)))
            session.run(batches.initializer)
            return session.run(batches.get_next())["image"]

    with pytest.raises(tf.errors.OpError, match="record 1 cannot be used: its picture says that it is 20000 x 20000 pixels"):
        stream(0)
    assert stream(1).shape[0] == 4
    assert "record 1 is skipped: its picture says that it is 20000 x 20000" in capsys.readouterr().err


def test_every_decoder_refuses_it(bombs, memory, tmp_path):
    judge = ExampleChecker(True)
    for form in FORMATS:
        for size in ((20_000, 20_000), (9_500, 9_500))[: 1 if form == "WebP" else 2]:  # a WebP's bytes can hold the second
            data = photos.promising(*size, form)
            assert judge.picture(data) == image_headers.fault(data)
            (tmp_path / "photo").write_bytes(data)
            with pytest.raises(DataError, match=f"photo {image_headers.fault(data)}"):
                image_files.load([str(tmp_path / "photo")], published_spec("imagenet"), request())
    payload = tfrecord.RecordIndex([bombs / "train-00000-of-00001"]).payload(1)
    assert "its picture says that it is 20000 x 20000" in judge.example(payload, range(1, 3))


def test_a_line_of_pixels_is_not_resized_whole(memory):
    """A row of sixty thousand pixels, resized to 256 rows, would have fifteen million columns."""
    line = encoded(Image.fromarray(np.arange(60_000, dtype=np.uint32).astype(np.uint8)[None]), "PNG")
    with tf.Graph().as_default(), tf.Session() as session:
        image = session.run(decoding.central_crop(decoding.whole(tf.constant(line)), 224))
    assert image.shape == (224, 224, 3)


# --- EXIF's orientation


def turned_to(number: int, form: str = "JPEG") -> tuple[bytes, bytes]:
    """A picture that EXIF says is turned, and the same one without that."""
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 56, 3), np.uint8))
    tags = Image.Exif()
    tags[0x0112] = number
    return encoded(picture, form, exif=tags), encoded(picture, form)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pictures_are_upright_by_exif_whole_and_in_crops(form):
    """As Pillow turns the decoded pixels, for each of the eight orientations."""
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


def test_exif_that_cannot_be_read_turns_nothing():
    for number in (0, 9, 255):
        assert image_headers.header(turned_to(number)[0]).orientation == 1
    turned, _ = turned_to(6)
    at = turned.index(b"Exif") + 6
    for place in range(at, at + 26):
        damaged = turned[:place] + b"\xff" + turned[place + 1 :]
        assert image_headers.header(damaged).orientation in range(1, 9)


XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WebP"])
@pytest.mark.parametrize("exif", [None, 3])
def test_xmp_turns_a_picture_where_exif_says_nothing(form, exif):
    """As Pillow has it, which programs with an exported network use."""
    picture = Image.effect_noise((40, 24), 50).convert("RGB")
    tags, text = Image.Exif(), PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", XMP, zip=True)
    if exif:
        tags[0x0112] = exif
    metadata = {"pnginfo": text} if form == "PNG" else {"xmp": XMP.encode()}
    data = encoded(picture, form, exif=tags, **metadata)
    assert image_headers.header(data).orientation == (exif or 6)
    with tf.Graph().as_default(), tf.Session() as session:
        shown = session.run(decoding.whole(tf.constant(data)))
    assert shown.shape == np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))).shape


# --- Not a file


def test_nothing_waits_for_a_pipe(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    shard = folder / "train-00000-of-00001"
    words = ("--dataset", "imagenet", "--data-dir", folder, "--model-size", 18, "--dry-run")
    makes = {
        "Is a pipe or a device, not a file": os.mkfifo,
        "Is a directory": lambda path: path.mkdir(), "No such file or directory": lambda path: path.symlink_to("nowhere"),
    }  # fmt: skip
    for reason, make in makes.items():
        make(shard)
        said = run("train", *words)
        assert (said.code, said.err.count("\n")) == (2, 1) and f"{shard} cannot be read: {reason}" in said.err
        assert dataset_checks._checked_shard(shard, 2, None, None, lambda: None).findings == [
            (shard, None, f"cannot be read: {reason}")
        ]
        with pytest.raises(DataError, match=f"photograph {shard} cannot be read: {reason}"):
            image_files.load([str(shard)], published_spec("imagenet"), request())
        shard.rmdir() if shard.is_dir() else shard.unlink()
    photos.write_shards(folder, "train", [b"x"], 1)
    os.mkfifo(folder / "labels.txt")
    said = run("train", *words)
    assert said.code == 2 and "labels.txt cannot be read: Is a pipe or a device, not a file" in said.err


def test_a_binary_file_of_too_many_records_is_refused_before_it_is_read(tmp_path):
    """Their labels were read for minutes, and kept."""
    layout = catalogue.table("BINARY_FILES")["cifar-10"].layout
    file = tmp_path / "data_batch_3.bin"
    file.touch()
    os.truncate(file, (binary.MAX_RECORDS + 1) * layout.record_bytes - 1)
    assert len(binary.RecordFile(file, layout)) == binary.MAX_RECORDS
    os.truncate(file, (binary.MAX_RECORDS + 1) * layout.record_bytes)
    with pytest.raises(DataError, match="data_batch_3.bin has 1,048,577 records, and at most 1,048,576 are read"):
        binary.RecordFile(file, layout)
    check = dataset_checks._binary_check(layout, 10, lambda: None)
    assert check(file).findings[0].reason.startswith("has 1,048,577 records, and at most 1,048,576 are read")


def test_a_shard_of_zeros_is_refused_at_its_first_record(tmp_path):
    """An interrupted download may leave gigabytes of them: each sixteen would be a record without bytes."""
    shard = tmp_path / "train-00000-of-00001"
    with shard.open("wb") as file:
        file.truncate(1 << 36)
    with pytest.raises(DataError, match="record 0 cannot be used: its length is damaged"):
        tfrecord.RecordIndex([shard])
