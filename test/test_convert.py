"""Pictures of one's own: finding records in damaged files, converting folders and lists, verifying, training."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from runs import run, succeed
from test_datasets import joined, request, take

from Datasets import _checksums, _examples, _photographs, _salvage, imagefolder, imagenet
from Datasets._salvage import Damage, Record
from Datasets._spec import DataError, OpenRequest

QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


# --- Records in damaged files ----------------------------------------------------------------------------------


def framed(payload: bytes) -> bytes:
    header = len(payload).to_bytes(8, "little")
    return header + b"".join(
        (_checksums.masked(header).to_bytes(4, "little"), payload, _checksums.masked(payload).to_bytes(4, "little"))
    )


def found_payloads(file: Path, **options) -> list[bytes]:
    content = file.read_bytes()
    return [content[at : at + length] for at, length in _salvage.records(_salvage.walk(file, **options))]


def test_checksums_are_those_of_the_standard_and_of_tensorflow(tmp_path):
    unmasked = (_checksums.masked(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF) == 0xE3069283  # the check value of CRC-32C
    random = np.random.default_rng(3)
    payloads = [random.bytes(n) for n in (0, 1, 3, 4, 5, 511, 512, 513, 1024, 5000, 100_000, 1_300_001)]
    (file,) = photos.write_shards(tmp_path, "train", payloads, 1)
    assert file.read_bytes() == b"".join(map(framed, payloads))
    assert found_payloads(file) == found_payloads(file, payloads=True) == payloads
    assert all(_checksums.masked_header(p) == _checksums.masked(p) for p in payloads[:9])


@st.composite
def damaged(draw) -> tuple[list[bytes], bytes, list[bool]]:
    """Payloads, a file of them in which one stretch was changed, and which records the change left alone."""
    unique = {"unique": True} if draw(st.booleans()) else {}
    payloads = draw(
        st.lists(st.binary(max_size=40) | st.binary(min_size=600, max_size=700), min_size=1, max_size=8, **unique)
    )
    whole = b"".join(map(framed, payloads))
    start = draw(st.integers(0, len(whole)))
    end = draw(st.sampled_from([start, min(start + 1, len(whole)), len(whole)]) | st.integers(start, len(whole)))
    inserted = draw(st.binary(max_size=30))
    ends = np.cumsum([len(framed(payload)) for payload in payloads])
    untouched = [e <= start or e - len(framed(p)) >= end for p, e in zip(payloads, ends, strict=True)]
    return payloads, whole[:start] + inserted + whole[end:], untouched


@QUIET
@given(damaged())
def test_every_record_that_damage_left_alone_is_found(tmp_path, case):
    payloads, content, untouched = case
    file = tmp_path / "train-00000-of-00001"
    file.write_bytes(content)
    checked = found_payloads(file, payloads=True)
    assert set(checked) <= set(payloads)
    remaining = iter(checked)
    assert all(payload in remaining for payload, whole in zip(payloads, untouched, strict=True) if whole)  # in this order
    quick = _salvage.walk(file)
    assert [stretch.offset for stretch in quick] == sorted(stretch.offset for stretch in quick)


@QUIET
@given(st.binary(max_size=3000))
def test_no_file_is_too_strange_to_walk(tmp_path, content):
    file = tmp_path / "strange"
    file.write_bytes(content)
    assert all(isinstance(stretch, Damage) for stretch in _salvage.walk(file)) and bool(_salvage.walk(file)) == bool(content)


def test_lengths_alone_lead_past_every_kind_of_damage(tmp_path):
    payloads = [bytes([65 + i]) * (700 + i) for i in range(5)]
    parts = [framed(payload) for payload in payloads]
    file = tmp_path / "train-00000-of-00001"

    def walked(*changed: bytes) -> list[Record | Damage]:
        file.write_bytes(b"".join(changed))
        return _salvage.walk(file)

    others = [payloads[0], *payloads[2:]]
    at = len(parts[0])
    for spoilt, reason in (
        (b"\xff" + parts[1][1:], _salvage.WRONG_LENGTH),
        (parts[1][:300] + parts[1][310:], _salvage.WRONG_PAYLOAD),  # leads into the next record
        (parts[1][:300] + b"more" + parts[1][300:], _salvage.WRONG_PAYLOAD),
        (b"rubbish between records", _salvage.WRONG_LENGTH),
    ):
        assert [s for s in walked(parts[0], spoilt, *parts[2:]) if isinstance(s, Damage)] == [Damage(at, reason)]
        assert found_payloads(file) == others
    assert walked(parts[0], parts[1][:-1]) == [Record(12, 700), Damage(at, _salvage.CUT.format(size=at + len(parts[1]) - 1))]
    assert walked(parts[0], b"\x01" + parts[1][1:], parts[2][:-9])[1:] == [
        Damage(at, _salvage.WRONG_LENGTH),
        Damage(at + len(parts[1]), _salvage.CUT.format(size=file.stat().st_size)),
    ]
    flipped = parts[1][:50] + b"?" + parts[1][51:]
    assert len(_salvage.records(walked(parts[0], flipped, parts[2]))) == 3  # no length is wrong
    assert _salvage.walk(file, payloads=True)[1] == Damage(at, _salvage.WRONG_PAYLOAD)


# --- Odd pictures ----------------------------------------------------------------------------------------------


def plain_picture(seed: int = 0, height: int = 60, width: int = 90) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    planes = x * 255 // width, y * 255 // height, (x + y + 40 * seed) % 256
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def encoded(picture: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def _odd() -> dict[str, tuple[bytes, Image.Image]]:
    """Files, and what they show."""
    colour = plain_picture()
    grey, few = colour.convert("L"), colour.convert("P", palette=Image.Palette.ADAPTIVE)
    sixteen = np.asarray(grey).astype(np.uint16) * 257
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "grey JPEG": (encoded(grey, "JPEG", quality=95), grey),
        "CMYK JPEG": (encoded(colour.convert("CMYK"), "JPEG", quality=95), colour),
        "progressive JPEG": (encoded(colour, "JPEG", quality=95, progressive=True), colour),
        "JPEG that EXIF says is turned": (encoded(colour, "JPEG", quality=95, exif=turned), colour),
        "PNG": (encoded(colour, "PNG"), colour),
        "PNG with alpha": (encoded(colour.convert("RGBA"), "PNG"), colour),
        "grey PNG of 16 bits": (encoded(Image.fromarray(sixteen), "PNG"), grey),
        "PNG with a colour table": (encoded(few, "PNG"), few),
        "GIF": (encoded(few, "GIF"), few),
        "animated GIF": (encoded(few, "GIF", save_all=True, append_images=[few.rotate(180)]), few),
        "BMP": (encoded(colour, "BMP"), colour),
        "grey BMP": (encoded(grey, "BMP"), grey),
        "BMP with a colour table": (encoded(few, "BMP"), few),
        "BMP of one bit": (encoded(grey.convert("1"), "BMP"), grey.convert("1")),
    }


ODD = _odd()


@pytest.mark.parametrize("kind", ODD)
def test_odd_pictures_are_decoded_whole_and_in_crops(kind):
    data, shown = ODD[kind]
    wanted = np.asarray(shown.convert("RGB")).astype(float)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(_photographs.decoded(tf.constant(data))).astype(float)
        zero, payload = tf.constant(0, tf.int64), tf.constant(_examples.example(data, 1, "any"))
        element = {"payload": payload, "record": zero, "epoch": zero, "position": zero}
        crops = [session.run(_photographs._prepared(element, request(), 1, distort)["image"]) for distort in (False, True)]
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).mean() < 4  # JPEG, and black ink
    assert all(crop.shape == (32, 32, 3) and crop.std() > 10 for crop in crops)


# --- Folders of pictures ---------------------------------------------------------------------------------------


def write_tree(top: Path, per_class: int = 3, names: tuple[str, ...] = ("ant", "bee", "cat"), suffix: str = ".JPEG") -> Path:
    """One folder for each class; every odd kind under one and the same ending."""
    kinds = [data for data, _ in ODD.values()]
    for k, name in enumerate(names):
        (top / name).mkdir(parents=True)
        for i in range(per_class):
            (top / name / f"{i}{suffix}").write_bytes(kinds[(k * per_class + i) % len(kinds)])
    return top


def opened(folder: Path, name: str = "imagefolder", **options):
    tables = imagefolder.DATASETS | imagenet.DATASETS
    return tables[name](OpenRequest(str(folder), {}, **options))


def test_a_tree_is_counted_labelled_and_streamed(tmp_path):
    write_tree(tmp_path / "train", per_class=4, names=("10", "9", "x"))
    write_tree(tmp_path / "val", per_class=2, names=("9", "x"))
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "9" / ".DS_Store").write_bytes(b"no picture")
    (tmp_path / "train" / "9" / "more").mkdir()
    (tmp_path / "train" / "9" / "more" / "5.png").write_bytes(ODD["PNG"][0])
    source = opened(tmp_path)
    spec = source.spec
    assert (spec.train_images, spec.validation_images, spec.class_names) == (13, 4, ("10", "9", "x"))
    assert opened(write_tree(tmp_path / "numbers", names=("10", "9"))).spec.class_names == ("9", "10")
    got = joined(take(lambda: source.train(request(batch_size=13)), 1))
    assert sorted(got["label"].tolist()) == [0] * 4 + [1] * 5 + [2] * 4
    held_out = joined(take(lambda: source.validation(request(batch_size=4))))
    assert held_out["label"].tolist() == [1, 1, 2, 2]


def test_a_tree_without_split_has_no_validation_and_bad_files_are_named(tmp_path):
    source = opened(write_tree(tmp_path / "pets"))
    assert source.spec.validation_images == 0
    with pytest.raises(DataError, match="no pictures for validation in val/ or validation/ or test/ of .*--no-validation"):
        source.validation(request())
    (tmp_path / "pets" / "bee" / "1.JPEG").write_bytes(b"")
    with pytest.raises(tf.errors.OpError, match=r"(?s)DataError.*pets/bee/1.JPEG cannot be used: it is empty"):
        take(lambda: opened(tmp_path / "pets").train(request(batch_size=9)), 1)
    (tmp_path / "pets" / "bee" / "1.JPEG").write_bytes(b"text")
    with pytest.raises(tf.errors.OpError, match="it is no JPEG, PNG, GIF or BMP"):
        take(lambda: opened(tmp_path / "pets").train(request(batch_size=9)), 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda top: (top / "train" / "none").mkdir(parents=True), "class none is empty: no file in"),
        (
            lambda top: write_tree(top / "val", names=("dog",)),
            "class dog of .*/val is unknown to training, which has: ant, ",
        ),
        (lambda top: (top / "train" / "two\nlines").mkdir(), "unprintable"),
    ],
)
def test_a_tree_that_cannot_be_used_is_explained(tmp_path, change, words):
    write_tree(tmp_path / "train")
    change(tmp_path)
    with pytest.raises(DataError, match=f"^data set imagefolder: .*{words}"):
        opened(tmp_path)


def test_a_folder_of_nothing_is_explained(tmp_path):
    (tmp_path / "stray.jpg").write_bytes(ODD["PNG"][0])
    with pytest.raises(DataError, match="no classes in .*looked for one folder for each class there"):
        opened(tmp_path)


def test_the_number_of_classes_comes_from_labels_else_from_the_option(tmp_path):
    photos.write_shards(tmp_path, "train", [_examples.example(ODD["PNG"][0], 2, "b")], 1)
    assert opened(tmp_path, "imagenet").spec.num_classes == 1000
    assert opened(tmp_path, "imagenet", num_classes=7).spec.num_classes == 7
    with pytest.raises(DataError, match="no labels.txt in"):
        opened(tmp_path)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    for name in ("imagenet", "imagefolder"):
        spec = opened(tmp_path, name).spec
        assert (spec.name, spec.num_classes, spec.class_names) == (name, 2, ("a", "b"))
        assert opened(tmp_path, name, num_classes=2).spec == spec
        with pytest.raises(DataError, match="3 classes were asked for .*labels.txt names 2"):
            opened(tmp_path, name, num_classes=3)
    for text, words in (("a\n\nb\n", "line 2 is empty"), ("a\nb\na\n", "lines 1 and 3 are both a"), ("", "line 1 is empty")):
        (tmp_path / "labels.txt").write_text(text)
        with pytest.raises(DataError, match=words):
            opened(tmp_path)


def test_num_classes_on_the_command_line(tmp_path):
    wrong = run("train", "--dataset", "cifar-10", "--generated-data", "--num-classes", 7, "--dry-run")
    assert wrong.code == 2 and "--num-classes 7 contradicts --dataset cifar-10, which has 10 classes" in wrong.err
    for words in ((), ("--num-classes", 5)):
        made = succeed("train", "--dataset", "imagefolder", "--generated-data", *words, "--dry-run")
        assert f", {words[1] if words else 1000} classes" in made.out and "1281167 training" in made.out
