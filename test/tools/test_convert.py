"""Pictures of one's own: finding records in damaged files, converting folders and lists, verifying, training."""

from __future__ import annotations

import csv
import io
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import Result, arguments, run, succeed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from streams import joined, records, request, take

from base import plugins
from base.errors import DataError
from base.process import command_line
from base.storage.input_files import Slices
from Datasets import imagefolder, imagenet
from Datasets._spec import OpenRequest
from Datasets.formats import class_names, tf_example, tfrecord
from Datasets.formats.bad_records import Tolerance
from Datasets.pipeline import decoding, photograph_stream
from Datasets.sources import generated, image_folder, locate, picture_files
from harness.commands import cli
from harness.evaluation import predictions
from harness.run import data
from tools.datasets import convert, listings, verify
from tools.datasets.example_checks import ExampleChecker

ROOT = plugins.ROOT
COMMANDS = {"convert": convert.main, "verify": verify.main}
QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


# --- Folders beside the classes --------------------------------------------------------------------------------


def test_runs_and_exports_beside_the_classes_are_none(tmp_path):
    """Whatever lies there, the pictures, their classes and labels stay those of the run that goes on."""
    for name in ("blue", "green"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), name).save(tmp_path / name / "1.png")
    before = image_folder.tree(tmp_path)
    for name in ("logs/finetune_x/classifier", "logs/sweep/rates/trial-1", "run"):
        (tmp_path / name).mkdir(parents=True)
        for file in ("arguments.json", "training.svg", "ckpt-3.index"):
            (tmp_path / name / file).write_text("{}")
    (tmp_path / "export/saved_model").mkdir(parents=True)
    for file in ("labels.txt", "preprocessing.json", "model.tflite"):
        (tmp_path / "export" / file).write_text("{}")
    after = image_folder.tree(tmp_path)
    assert (after.classes, after.train, after.left_out) == (before.classes, before.train, before.left_out)
    assert after.notes == ("warning: export, logs, run are left out: they hold no pictures",)
    assert image_folder.classes_of(tmp_path) == before.classes
    shutil.copyfile(tmp_path / "blue/1.png", tmp_path / "run/picture")  # by its first bytes
    shutil.copyfile(tmp_path / "blue/1.png", tmp_path / "export/1.png")
    assert image_folder.tree(tmp_path).classes == ("blue", "export", "green", "run")


def test_files_of_runs_are_not_opened_in_search_of_pictures(tmp_path, monkeypatch):
    for name in ("a/arguments.json", "a/ckpt-1.data-00000-of-00001", "training.csv"):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).touch()
    monkeypatch.setattr(picture_files.image_headers, "file_fault", pytest.fail)
    with pytest.raises(DataError, match="no classes in"):
        image_folder.tree(tmp_path)


# --- Splits of a tree ------------------------------------------------------------------------------------------


def _places(top: Path, places: str) -> Path:
    """Write a picture into each folder."""
    for k, place in enumerate(places.split(",")):
        (top / place).mkdir(parents=True, exist_ok=True)
        (top / place / "1.png").write_bytes(encoded(plain_picture(k), "PNG"))
    return top


@pytest.mark.parametrize(
    ("places", "classes", "validation", "note"),
    [
        ("train/a,train/b,valid/a,test/b", "a b", "valid", "test is left out: training is on"),
        ("Training/a,Training/b,Testing/a", "a b", "Testing", "no other folder is for it"),
        ("TRAIN/a,TRAIN/b,VAL/a,VAL/b", "a b", "VAL", ""),
        ("data/Train_Set/a,data/Train_Set/b,data/dev set/a", "a b", "data/dev set", "the classes are the folders in"),
        ("images/trainset/a,images/trainset/b,images/test/x", "a b", "", "class x of .* is unknown to training!"),
        (
            "seg_train/seg_train/a,seg_train/seg_train/b,seg_test/seg_test/b,pred",
            "a b",
            "seg_test/seg_test",
            "pred, seg|pred is",
        ),
        ("test,cat,dog", "cat dog test", "", ""),
        ("validation,train,dog", "dog train validation", "", ""),
        ("test/deep/far,cat,dog", "cat dog test", "", ""),
        ("pets/cat,pets/dog,__MACOSX/pets/cat,@eaDir/x,.git/x", "cat dog", "", "the classes are the folders in"),
        ("train/a,train/b,late/a,late/b", "", "", "train may be a class!"),
        ("one/a,one/b,two/a,two/b", "", "", "hold folders of the same names!"),
        ("train1/a,train2/a,test/a", "", "", "several folders for training: train1, train2!"),
        ("test/a,test/b", "", "", "none for training!"),
        ("a,b,test/a,test/b", "", "", "none for training!"),
        ("a/train,a/test,b/train,b/test", "", "", "holds splits!"),
    ],
)
def test_splits_are_found_by_structure_and_name(places, classes, validation, note, tmp_path):
    _places(tmp_path, places)
    if note.endswith("!"):
        with pytest.raises(DataError, match=f"^[^\n]*{note[:-1]}[^\n]*$"):
            image_folder.tree(tmp_path)
        return
    tree = image_folder.tree(tmp_path)
    assert tree.classes == tuple(classes.split()) == image_folder.classes_of(tmp_path)
    held_out = {str(picture.file.parent.parent.relative_to(tmp_path)) for picture in tree.validation or ()}
    assert held_out == ({validation} if validation else set())
    assert any(re.search(note, line) for line in tree.notes) if note else not tree.notes


def test_given_splits_are_taken_as_they_are(tmp_path):
    """Beside folders that would be refused, and found again on resuming wherever the data have moved."""
    _places(tmp_path / "d", "one/a,one/b,two/a,two/b,a/train,a/test")
    with pytest.raises(DataError):
        opened(tmp_path / "d")
    source = opened(tmp_path / "d", train_dir="one", validation_dir=str(tmp_path / "d/two"))
    assert (source.spec.class_names, source.spec.train_images, source.spec.validation_images) == (("a", "b"), 2, 2)
    assert opened(tmp_path / "d", train_dir=".").spec.class_names == ("a", "one", "two")
    words = ("--model-size", 18, "--train-dir", tmp_path / "d/one", "--validation-dir")
    assert "imagefolder, 2 training and 2 valid" in succeed("train", *words, tmp_path / "d/two", "--dry-run").out
    refused = run("train", *words, tmp_path / "nowhere", "--dry-run")
    assert refused.code == 2 and "--validation-dir" in refused.err and "is not a folder" in refused.err
    refused = run("train", *words, tmp_path / "d/one", "--dry-run")
    assert refused.code == 2 and "validation needs other images" in refused.err
    converted(tmp_path / "d", tmp_path / "out", "--train-dir", "one", "--validation-dir", "two")
    assert len(stored(tmp_path / "out", "validation")) == 2
    refused = run("train", "--data-dir", tmp_path / "out", "--dataset", "imagefolder", "--train-dir", tmp_path / "d/one")
    assert refused.code == 2 and "are for folders of pictures, and" in refused.err
    refused = run("train", "--dataset", "fashion-mnist", "--validation-dir", tmp_path, "--dry-run")
    assert refused.code == 2 and "is for folders of --dataset imagefolder" in refused.err


def test_two_spellings_of_an_accent_are_one_class(tmp_path):
    composed, apart = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    _places(tmp_path, f"train/{composed},train/x,train/{apart},val/{apart}")
    tree = image_folder.tree(tmp_path)
    assert tree.classes == (composed, "x") and len(tree.train) == 3 and [each.label for each in tree.validation] == [1]


def test_class_folders_need_no_data_set_s_name(tmp_path):
    _places(tmp_path / "imagenette2", "train/a,train/b,val/a,val/b")
    _places(tmp_path / "cifar-like", "a,b")
    for name in ("imagenette2", "cifar-like"):
        assert locate.infer(str(tmp_path / name)) == "imagefolder"


# --- Records in damaged files ----------------------------------------------------------------------------------


def found_payloads(file: Path) -> list[bytes]:
    index = tfrecord.RecordIndex([file])
    return [index.payload(record) for record in range(len(index))]


def test_records_and_their_checksums_are_those_of_tensorflow(tmp_path):
    random = np.random.default_rng(3)
    payloads = [random.bytes(n) for n in (0, 1, 5, 5000, 1_300_001)]
    (file,) = photos.write_shards(tmp_path, "train", payloads, 1)
    assert file.read_bytes() == b"".join(map(tfrecord.framed, payloads)) and found_payloads(file) == payloads


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda parts: [parts[0], b"\xff" + parts[1][1:], parts[2]], "record 1 cannot be used: its length is damaged"),
        (lambda parts: [parts[0], b"rubbish", *parts[1:]], "record 1 cannot be used: its length is damaged"),
        (lambda parts: [parts[0], parts[1][:300] + parts[1][310:], parts[2]], "record 2 cannot be used: its length is dam"),
        (lambda parts: [*parts[:2], parts[2][:-1]], "record 2 cannot be used: it is cut short, the file ends at byte 2150"),
        (lambda parts: [*parts[:2], parts[2][:7]], "record 2 cannot be used: it is cut short"),
        (lambda parts: [bytes(1 << 20)], "record 0 cannot be used: its length is damaged"),
        (lambda parts: [], "train-00000-of-00001 cannot be used: it is empty"),
    ],
)
def test_where_no_record_can_be_found_any_more_is_named(change, told, tmp_path, capsys):
    file = tmp_path / "train-00000-of-00001"
    file.write_bytes(b"".join(change([tfrecord.framed(bytes([65 + k]) * (700 + k)) for k in range(3)])))
    with pytest.raises(DataError, match=told):
        tfrecord.RecordIndex([file])
    place, reason = told.split(" cannot be used: ")
    assert len(tfrecord.RecordIndex([file], Tolerance(1))) == int((re.search(r"record (\d)", place) or [0, 0])[1])
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"{place} is skipped: {reason}" in err


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
    four = colour.quantize(4)  # one of which is a good part of the picture
    most = int(np.bincount(np.asarray(four).ravel()).argmax())
    sixteen = np.asarray(grey).astype(np.uint16) * 257
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "grey JPEG": (encoded(grey, "JPEG", quality=95), grey),
        "CMYK JPEG": (encoded(colour.convert("CMYK"), "JPEG", quality=95), colour),
        "progressive JPEG": (encoded(colour, "JPEG", quality=95, progressive=True), colour),
        "JPEG that EXIF says is turned": (
            encoded(colour, "JPEG", quality=95, exif=turned),
            colour.transpose(Image.Transpose.ROTATE_270),
        ),
        "PNG": (encoded(colour, "PNG"), colour),
        "PNG with alpha": (encoded(colour.convert("RGBA"), "PNG"), colour),
        "grey PNG of 16 bits": (encoded(Image.fromarray(sixteen), "PNG"), grey),
        "PNG with a colour table": (encoded(few, "PNG"), few),
        "GIF": (encoded(few, "GIF"), few),
        "animated GIF": (encoded(few, "GIF", save_all=True, append_images=[few.rotate(180)]), few),
        "GIF with transparent pixels": (encoded(four, "GIF", transparency=most), four),
        "PNG with a transparent colour": (encoded(four, "PNG", transparency=most), four),
        "WebP": (encoded(colour, "WEBP", quality=95), colour),
        "lossless WebP": (encoded(colour, "WEBP", lossless=True), colour),
        "WebP with alpha": (encoded(colour.convert("RGBA"), "WEBP", lossless=True), colour),
        "animated WebP": (encoded(colour, "WEBP", quality=95, save_all=True, append_images=[colour.rotate(180)]), colour),
        "WebP that EXIF says is turned": (
            encoded(colour, "WEBP", quality=95, exif=turned),
            colour.transpose(Image.Transpose.ROTATE_270),
        ),
        "BMP": (encoded(colour, "BMP"), colour),
        "grey BMP": (encoded(grey, "BMP"), grey),
        "BMP with a colour table": (encoded(few, "BMP"), few),
        "BMP of one bit": (encoded(grey.convert("1"), "BMP"), grey.convert("1")),
    }


ODD = _odd()
BOMB = photos.promising(20_000, 20_000)


@pytest.mark.parametrize("kind", ODD)
def test_odd_pictures_are_decoded_whole_and_in_crops(kind):
    data, shown = ODD[kind]
    wanted = np.asarray(shown.convert("RGB")).astype(float)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(decoding.whole(tf.constant(data))).astype(float)
        zero, payload = tf.constant(0, tf.int64), tf.constant(tf_example.serialised(data, 1, "any"))
        element = {"payload": payload, "expected": zero, "record": zero, "epoch": zero, "position": zero}
        element |= photograph_stream._drawn(zero, zero, request())
        crops = [
            session.run(photograph_stream._prepared(element, request(), range(1, 2), distort)["image"])
            for distort in (False, True)
        ]
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).mean() < 4  # JPEG, and black ink
    assert all(crop.shape == (32, 32, 3) and crop.std() > 10 for crop in crops)


# --- Folders of pictures ---------------------------------------------------------------------------------------


def write_tree(top: Path, per_class: int = 3, names: tuple[str, ...] = ("ant", "bee", "cat"), suffix: str = ".JPEG") -> Path:
    """Write a folder for each class; every odd kind under one and the same ending."""
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
    with pytest.raises(
        DataError,
        match="no pictures for validation in class folders of .*--validation-split, as in 0.2, or train with --no-v",
    ):
        source.validation(request())
    (tmp_path / "pets" / "bee" / "1.JPEG").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"pets/bee/1.JPEG is empty; remove the damaged picture, or give --skip-bad-records 1$"
    ):
        opened(tmp_path / "pets")
    with pytest.raises(tf.errors.OpError, match=r"(?s)DataError.*pets/bee/1.JPEG cannot be used: it is empty"):
        take(lambda: source.train(request(batch_size=9)), 1)
    (tmp_path / "pets" / "bee" / "1.JPEG").write_bytes(BOMB)
    with pytest.raises(tf.errors.OpError, match="1.JPEG cannot be used: it says that it is 20000 x 20000 pixels, more than"):
        take(lambda: source.train(request(batch_size=9)), 1)
    assert opened(tmp_path / "pets", skip_bad=1).spec.train_images == 9


def test_what_is_no_picture_does_not_count(tmp_path):
    """By what it is: a picture without an ending counts, and text with a picture's ending is damage."""
    write_tree(tmp_path / "train")
    write_tree(tmp_path / "val")
    (tmp_path / "train" / "ant" / "bare").write_bytes(ODD["PNG"][0])
    litter = {"Thumbs.db": b"\xd0\xcf\x11\xe0", "readme.txt": b"hello", "desktop.ini": b"[x]", "empty": b""}
    for name, content in litter.items():
        (tmp_path / "train" / "bee" / name).write_bytes(content)
        (tmp_path / "val" / "cat" / name).write_bytes(content)
    os.mkfifo(tmp_path / "train" / "bee" / "waits")
    spec = opened(tmp_path).spec
    assert (spec.train_images, spec.validation_images) == (10, 9)
    note = f"9 files that are no pictures are left out: {tmp_path}/train/bee/Thumbs.db, ..."
    assert spec.notes == (note,)
    words = ("--dataset", "imagefolder", "--data-dir", tmp_path, "--model-size", 18, "--batch-size", 2, "--dry-run")
    assert note in succeed("train", *words).out.splitlines()
    (tmp_path / "train" / "bee" / "1.TIF").write_bytes(b"II*\0")
    refused = run("train", *words)
    assert refused.code == 2 and refused.err.count("\n") == 1
    assert f"data set imagefolder: {tmp_path}/train/bee/1.TIF is TIFF, which is not read; convert it to" in refused.err
    assert "remove what" not in refused.err and refused.err.endswith(" or give --skip-bad-records 1\n")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda top: write_tree(top / "val", names=("dog",)),
            "class dog of .*/val is unknown to training, which has: ant, ",
        ),
        (lambda top: (top / "train" / "two\nlines").mkdir(), "unprintable"),
        (lambda top: (top / "train" / " ").mkdir(), "the class folder ' ' in .*/train has nothing but blanks in its name"),
        (
            lambda top: write_tree(top, names=("cat", "dog")),
            "has pictures in cat, dog, and in folders below train: train may be",
        ),
        (
            lambda top: write_tree(top, names=("cat",), suffix=""),
            "has pictures in cat, and in folders below train: train may be",
        ),
    ],
)
def test_a_tree_that_cannot_be_used_is_explained(tmp_path, change, words):
    write_tree(tmp_path / "train")
    change(tmp_path)
    with pytest.raises(DataError, match=f"^data set imagefolder: .*{words}"):
        opened(tmp_path)


def test_linked_folders_of_a_class_count_once(tmp_path):
    """They were left out without a word, where linked files and class folders counted."""
    write_tree(tmp_path / "pets")
    write_tree(tmp_path / "more", names=("far",), per_class=2)
    (tmp_path / "more" / "far" / "back").symlink_to(tmp_path / "more" / "far")
    (tmp_path / "pets" / "cat" / "linked").symlink_to(tmp_path / "more" / "far")
    (tmp_path / "pets" / "cat" / "twice").symlink_to(tmp_path / "more" / "far")
    (tmp_path / "pets" / "cat" / "self").symlink_to(".")
    (tmp_path / "pets" / "dog").symlink_to(tmp_path / "more" / "far")
    tree = image_folder.tree(tmp_path / "pets")
    assert Counter(picture.label for picture in tree.train) == {1: 3, 2: 3, 3: 5, 4: 2}
    assert {picture.file.parent.name for picture in tree.train} == {"ant", "bee", "cat", "linked", "dog"}


@pytest.mark.parametrize("link", ["cat/up", "cat/deep/up", "up"])
def test_a_link_to_the_folder_around_the_classes_is_refused(link, tmp_path):
    """Through it every class would belong to one."""
    write_tree(tmp_path / "pets")
    (tmp_path / "pets" / "cat" / "deep").mkdir()
    (tmp_path / "pets" / link).symlink_to(tmp_path / "pets")
    with pytest.raises(DataError, match=f"^{tmp_path}/pets/{link} is a link to {tmp_path}/pets, the folder around .*remove"):
        image_folder.tree(tmp_path / "pets")


def test_validation_is_of_the_first_folder_with_pictures_in_classes(tmp_path):
    """A flat folder was validation without pictures, and an empty one, or one of empty classes, hid the next."""
    write_tree(tmp_path / "train")
    (tmp_path / "val" / "ant").mkdir(parents=True)
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "a.png").write_bytes(ODD["PNG"][0])
    assert image_folder.tree(tmp_path).validation is None
    write_tree(tmp_path / "test", per_class=1, suffix="")
    tree = image_folder.tree(tmp_path)
    assert {picture.file.parent.parent for picture in tree.validation} == {tmp_path / "test"}
    assert tree.notes[1:] == (
        f"the pictures in {tmp_path}/validation itself are left out: they are in no folder of a class",
    )


@pytest.mark.parametrize("top", ["", "train", "test"])
def test_pictures_beside_the_folders_of_classes_are_told_of(top, tmp_path):
    for split in ("train", "test") if top else ("",):
        write_tree(tmp_path / split)
    (tmp_path / top / "stray").write_bytes(ODD["PNG"][0])
    assert image_folder.tree(tmp_path).notes[bool(top) :] == (
        f"the pictures in {tmp_path / top} itself are left out: they are in no folder of a class",
    )


@pytest.mark.parametrize(
    ("edges", "told"),
    [
        ({"ymin": [0.0, 0.5]}, "its boxes have 2 of image/object/bbox/ymin, 1 of image/object/bbox/xmin, "),
        ({"xmax": [float("nan")]}, "an edge of its boxes is no number"),
        ({"xmin": [0]}, "its image/object/bbox/xmin holds no floats, which a box's edges are"),
        ({}, None),
    ],
)
def test_boxes_that_training_cannot_use_are_named_by_all(edges, told, tmp_path):
    """Verification called them sound, and training asked whether the file was being written."""
    record = tf.train.Example.FromString(photos.example(ODD["PNG"][0], 1, np.float32([[0, 0, 1, 1]])))
    for edge, values in edges.items():
        feature = record.features.feature[f"image/object/bbox/{edge}"]
        feature.Clear()
        kind = feature.int64_list if isinstance(values[0], int) else feature.float_list
        kind.value.extend(values)
    found = ExampleChecker(True).example(record.SerializeToString(), range(1, 2))
    assert found == told if told is None else found.startswith(told)
    photos.write_shards(tmp_path, "train", [photos.example(ODD["PNG"][0], 1), record.SerializeToString()], 1)
    (tmp_path / "labels.txt").write_text("a\n")
    stream = lambda: opened(tmp_path).train(request(batch_size=2))
    if told is None:
        assert take(stream, 1)[0]["label"].tolist() == [0, 0]
    else:
        with pytest.raises(tf.errors.UnknownError, match=rf"record 1 cannot be used: {re.escape(told)}"):
            take(stream, 1)


def test_a_folder_of_nothing_is_explained(tmp_path):
    (tmp_path / "stray.jpg").write_bytes(ODD["PNG"][0])
    with pytest.raises(DataError, match="no classes in .*looked for one folder for each class there"):
        opened(tmp_path)


def test_the_number_of_classes_comes_from_labels_else_from_the_option(tmp_path):
    photos.write_shards(tmp_path / "below" / "train", "train", [tf_example.serialised(ODD["PNG"][0], 2, "b")], 1)
    (tmp_path / "below" / "labels.txt").write_text("a\nb\n")
    assert opened(tmp_path / "below", "imagenet").spec.num_classes == 2
    photos.write_shards(tmp_path, "train", [tf_example.serialised(ODD["PNG"][0], 2, "b")], 1)
    assert opened(tmp_path, "imagenet").spec.num_classes == 1000
    assert opened(tmp_path, "imagenet", num_classes=7).spec.num_classes == 7
    with pytest.raises(DataError, match="no labels.txt in"):
        opened(tmp_path)
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")  # as editors on Windows write it
    for name in ("imagenet", "imagefolder"):
        spec = opened(tmp_path, name).spec
        assert (spec.name, spec.num_classes, spec.class_names) == (name, 2, ("a", "b"))
        assert opened(tmp_path, name, num_classes=2).spec == spec
        with pytest.raises(DataError, match="3 classes were asked for .*labels.txt names 2"):
            opened(tmp_path, name, num_classes=3)
        asked = cli.parse(
            f"--model-size 18 --dataset {name} --data-dir {tmp_path} --num-classes 2".split(), "train", environ={}
        )
        assert data.for_predictions(asked.options.dataset, {}).spec.class_names == ("a", "b")
    photos.write_shards(tmp_path, "train", [tf_example.serialised(ODD["PNG"][0], 2**32 + 2, "b")], 1)
    with pytest.raises(DataError, match="its label is 4294967298, outside 1 to 2"):  # which is 2 in 32 bits
        take(lambda: opened(tmp_path).train(request(batch_size=1)), 1)


def test_shards_know_the_files_of_their_pictures(tmp_path):
    """As the tree does; a file's name is a line, whatever it holds. Other shards than were written have no names."""
    draw = np.random.default_rng(5)
    for name in ("a/1.png", "a/2 \n3.png", "b/<4>.png", "b/below/ü.png", "b/6.png", "c/7.png", "c/8.png"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (9, 9, 3), np.uint8)).save(tmp_path / "tree" / name)
    convert.main([str(tmp_path / "tree"), str(tmp_path / "shards"), "--validation", "0.4", "--shards", "3"])
    names = {file.relative_to(tmp_path / "tree"): file.read_bytes() for file in (tmp_path / "tree").rglob("*.png")}
    source = imagefolder.open_imagefolder(OpenRequest(str(tmp_path / "shards")))
    count = 0
    for index in (source._train, source._validation):
        for record in range(len(index)):
            shown = index.picture(record)
            assert "\n" not in shown
            assert names[Path(shown.replace("\\n", "\n"))] == tf_example.parse(index.payload(record)).encoded[0]
            count += 1
    assert count == len(names)
    part = imagefolder.open_imagefolder(OpenRequest(str(tmp_path / "shards"), percentage=40))
    assert [part._train.picture(k) for k in range(len(part._train))] == [
        source._train.picture(k) for k in range(len(part._train))
    ]
    lines = (tmp_path / "shards/validation-files.txt").read_text().splitlines()
    (tmp_path / "shards/validation-files.txt").write_text("\n".join(lines[1:]) + "\n")
    again = imagefolder.open_imagefolder(OpenRequest(str(tmp_path / "shards")))
    assert again.validation_name(0) == again._validation.name(0) != source.validation_name(0)


def test_a_class_is_shown_in_a_line_whatever_its_name():
    best = predictions.best(np.array([0.25, 0.75]), ("a\x1b[31m", "b" * 10_000))
    assert best[0].name == "b" * 10_000  # whole, in files
    shown = predictions.table("a.jpg", best).splitlines()
    assert shown == ["a.jpg", f"   75.0 %  {'b' * 100}... (10000 characters)", "   25.0 %  a\\x1b[31m"]


def test_generated_photographs_may_have_one_class():
    """--num-classes 1, which a run on a folder of one class records, drew from no labels at all."""
    spec = replace(imagefolder.SPECS["imagefolder"], num_classes=1)
    assert take(lambda: generated.GeneratedSource(spec).train(request(batch_size=2)), 1)[0]["label"].tolist() == [0, 0]


def test_num_classes_on_the_command_line(tmp_path):
    wrong = run("train", "--dataset", "cifar-10", "--generated-data", "--num-classes", 7, "--dry-run")
    assert wrong.code == 2 and "--num-classes 7 contradicts --dataset cifar-10, which has 10 classes" in wrong.err
    for words in ((), ("--num-classes", 5)):
        made = succeed("train", "--dataset", "imagefolder", "--generated-data", *words, "--dry-run")
        assert f", {words[1] if words else 1000} classes" in made.out and "1281167 training" in made.out


# --- Conversion ------------------------------------------------------------------------------------------------


def command(name: str, *words: object) -> Result:
    """Run one of this folder's commands as the shell would start it."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line.run(name, COMMANDS[name], [str(word) for word in words], (DataError,))
    return Result(code, out.getvalue(), err.getvalue())


def converted(*words: object) -> Result:
    result = command("convert", *words)
    assert result.code == 0, result.err + result.out
    return result


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def stored(folder: Path, split: str) -> list[tuple[int, str, bytes]]:
    """Label, class and file of every record of a split."""
    found = []
    for file in sorted(folder.glob(f"{split}-*-of-*")):
        for payload in found_payloads(file):
            feature = tf.train.Example.FromString(payload).features.feature
            label, text = feature["image/class/label"].int64_list.value[0], feature["image/class/text"].bytes_list.value[0]
            found.append((label, text.decode(), feature["image/encoded"].bytes_list.value[0]))
    return found


def test_a_tree_becomes_shards_of_the_files_as_they_are(tmp_path):
    write_tree(tmp_path / "pets" / "train", per_class=5, names=("bee", "ant"))
    write_tree(tmp_path / "pets" / "test", per_class=2, names=("bee",))
    target = tmp_path / os.fsdecode(b"lat\xe9")  # a name that is no UTF-8
    done = converted(tmp_path / "pets", target, "--shards", 4)
    target.rename(tmp_path / "out")
    assert "train: 10 pictures in 4 shards\nvalidation: 2 pictures in 1 shard\n2 classes" in done.out and not done.err
    labels = tmp_path / "out" / "labels.txt"
    assert labels.read_text() == "ant\nbee\n"
    labels.write_text("ant\n")
    with pytest.raises(DataError, match="names 1 classes, and conversion.json tells of 2; copy it again"):
        imagefolder.DATASETS["imagefolder"](OpenRequest(str(tmp_path / "out"), {}))
    labels.write_text("ant\nbee\n")
    for split, folder in (("train", "train"), ("validation", "test")):
        expected = [
            (1 + (file.parent.name == "bee"), file.parent.name, file.read_bytes())
            for file in (tmp_path / "pets" / folder).rglob("*.JPEG")
        ]
        assert sorted(stored(tmp_path / "out", split)) == sorted(expected)
    labels = [label for label, _, _ in stored(tmp_path / "out", "train")]
    assert labels != sorted(labels)  # shuffled
    for name in ("imagefolder", "imagenet"):
        spec = opened(tmp_path / "out", name).spec
        assert (spec.num_classes, spec.train_images, spec.validation_images) == (2, 10, 2)
        assert spec.class_names == opened(tmp_path / "pets").spec.class_names


@pytest.mark.parametrize(
    ("size", "label", "text"), [(0, 1, "ant"), (3, 127, "b\u00e9e"), (200, 128, "x" * 200), (70_000, 2**31, "")]
)
def test_a_record_is_what_protobuf_writes(size, label, text):
    encoded = random.Random(size).randbytes(size)
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "image/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    expected = example.SerializeToString(deterministic=True)
    assert tf_example.serialised(encoded, label, text) == expected and tf_example.length(size, label, text) == len(expected)


def test_a_tree_is_split_as_a_conversion_splits(tmp_path):
    """Pictures that validate are the conversion's, wherever the tree lies, and none trains."""
    names, per_class = ("ant", "bee"), 7
    for name in names:
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(per_class):
            (tmp_path / "pets" / name / f"{k}.png").write_bytes(encoded(plain_picture(ord(name[0]) + 1000 * k), "PNG"))
    converted(tmp_path / "pets", tmp_path / "out", "--validation", 0.3)
    (tmp_path / "pets").rename(tmp_path / "moved")
    source = opened(tmp_path / "moved", validation_split=0.3)
    assert (source.spec.train_images, source.spec.validation_images) == (10, 4)
    for split, index in (("train", source._train), ("validation", source._validation)):
        pictures = {index.payload(k) for k in range(len(index))}
        assert {file for _, _, file in stored(tmp_path / "out", split)} == {
            tf.train.Example.FromString(each).features.feature["image/encoded"].bytes_list.value[0] for each in pictures
        }
    for folder, said in ((tmp_path / "out", "is for folders of pictures, and .*out has shards; leave it out"),
                         (_split_tree(tmp_path / "split"), "has pictures for validation of its own; leave --val")):  # fmt: skip
        with pytest.raises(DataError, match=said):
            opened(folder, validation_split=0.3)
    with pytest.raises(
        DataError, match="--validation-split 0.01 takes no picture of any class: the largest has 7; give 0.14"
    ):
        opened(tmp_path / "moved", validation_split=0.01)
    refused = run("train", "--dataset", "fashion-mnist", "--validation-split", 0.1, "--dry-run")
    assert refused.code == 2 and "is for folders of --dataset imagefolder; fashion-mnist has its own" in refused.err


def test_the_same_call_gives_the_same_bytes_wherever_the_source_lies(tmp_path):
    write_tree(tmp_path / "a", per_class=9)
    words = ("--shards", 5, "--validation", 0.3)
    converted(tmp_path / "a", tmp_path / "one", *words, "--jobs", 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").rename(tmp_path / "elsewhere" / "b")
    converted(os.path.relpath(tmp_path / "elsewhere" / "b"), tmp_path / "two", *words, "--jobs", 4)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    converted(tmp_path / "elsewhere" / "b", tmp_path / "three", *words, "--seed", 1)
    one, three = (stored(tmp_path / name, "train") for name in ("one", "three"))
    assert one != three and len(one) == len(three) == 27 - 9
    assert [label for label, _, _ in sorted(stored(tmp_path / "three", "validation"))] == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_list_and_a_second_tree_for_validation(tmp_path):
    write_tree(tmp_path / "pictures", names=("x",), per_class=6)
    rows = [("path", "label", "split")] + [
        (f"pictures/x/{i}.JPEG", i % 2 + 9, "val" if i > 3 else "train") for i in range(6)
    ]
    (tmp_path / "list.csv").write_text("\n".join(",".join(map(str, row)) for row in rows))
    converted(tmp_path / "list.csv", tmp_path / "one")
    assert (tmp_path / "one" / "labels.txt").read_text() == "9\n10\n"
    assert sorted(label for label, _, _ in stored(tmp_path / "one", "train")) == [1, 1, 2, 2]
    for delimiter, name in ((";", "semicolons"), ("\t", "tabs")):
        (tmp_path / name).write_text("\n".join(delimiter.join(map(str, row)) for row in rows))
        assert listings.of(tmp_path / name) == listings.of(tmp_path / "list.csv")
    (tmp_path / "list.csv").write_text("\n".join(f"{path},{label}" for path, label, _ in rows[1:]))
    write_tree(tmp_path / "held out", names=("10",))
    converted(tmp_path / "list.csv", tmp_path / "two", "--validation-dir", tmp_path / "held out")
    assert [text for _, text, _ in stored(tmp_path / "two", "validation")] == ["10"] * 3
    assert len(stored(tmp_path / "two", "train")) == 6


def test_bad_files_stop_the_conversion_or_are_left_out(tmp_path):
    pets = write_tree(tmp_path / "pets")
    (pets / "ant" / "1.JPEG").write_bytes(b"")
    (pets / "bee" / "notes.PNG").write_text("hello")
    (pets / "cat" / "cut.png").write_bytes(encoded(Image.effect_noise((30, 30), 50), "PNG")[:-30])
    (pets / "cat" / "0.JPEG").unlink()
    (pets / "cat" / "0.JPEG").symlink_to("nowhere")
    os.mkfifo(pets / "cat" / "pipe.jpg")
    wrong = command("convert", pets, tmp_path / "out")
    assert wrong.code == 2 and not (tmp_path / "out").exists()
    assert re.match(
        "convert: error: 5 files cannot be taken: .*ant/1.JPEG is empty; .*or give --skip-bad-files\n", wrong.err
    )
    for said in ("bee/notes.PNG is no JPEG, PNG, GIF, BMP or WebP by its first bytes", "cat/cut.png cannot be decoded: ",
                 "cat/0.JPEG does not exist", "cat/pipe.jpg cannot be read: Is a pipe"):  # fmt: skip
        assert said in wrong.err
    left = converted(pets, tmp_path / "out", "--skip-bad-files")
    assert "Left out 5 bad files:\n" in left.out and "train: 7 pictures" in left.out
    for file in (pets / "ant").iterdir():
        file.write_bytes(b"")
    emptied = command("convert", pets, tmp_path / "other", "--skip-bad-files")
    assert emptied.code == 2 and "class ant has no picture for training left" in emptied.err


def _call(tmp_path: Path, *more: object) -> tuple[object, ...]:
    return (tmp_path / "pets", tmp_path / "out", *more)


def _wrote(file: Path, text: str = "") -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def _split_tree(top: Path) -> Path:
    for split in ("train", "val"):
        write_tree(top / split)
    return top


REFUSED = {  # the call, made in a folder with a tree of nine pictures called pets, and the message
    "no source": (lambda t: (t / "none", t / "out"), "none is neither a folder nor a CSV file"),
    "no classes": (lambda t: (t / "pets" / "ant", t / "out"), "no classes in "),
    "target in source": (lambda t: (t / "pets", t / "pets" / "out"), "would count as pictures"),
    "target is a file": (lambda t: _wrote(t / "out") or _call(t), "out is a file"),
    "other things": (lambda t: _wrote(t / "out" / "mine") or _call(t), "already: mine"),
    "labels there": (lambda t: _wrote(t / "out" / "labels.txt") or _call(t), "already: labels.txt"),
    "damaged plan": (lambda t: _wrote(t / "out" / "conversion.json", "{") or _call(t), "conversion.json is damaged"),
    "many shards": (lambda t: _call(t, "--shards", 10), "--shards 10 is more than the 9 pictures for train"),
    "small part": (
        lambda t: _call(t, "--validation", 0.1),
        "--validation 0.1 takes no picture of any class: the largest has 3; give 0.33 or more",
    ),
    "part of one": (
        lambda t: (write_tree(t / "one", per_class=1), t / "out", "--validation", 0.5),
        "takes no picture of any class: the largest has 1; add pictures, for one stays in training",
    ),
    "no second tree": (lambda t: _call(t, "--validation-dir", t / "no"), "no is not a folder"),
    "validation twice": (lambda t: (_split_tree(t / "both"), t / "out", "--validation", 0.5), "of its own"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_converted_is_one_line_and_two(tmp_path, case):
    write_tree(tmp_path / "pets")
    words, said = REFUSED[case]
    result = command("convert", *words(tmp_path))
    assert result.code == 2 and result.err.startswith("convert: error: ") and said in result.err
    assert result.err.count("\n") == 1 and not result.out
    assert not list(tmp_path.rglob("train-*"))


@pytest.mark.parametrize("option", ["--validation", "--validation-dir"])
def test_a_list_that_names_no_picture_for_validation_has_none_of_its_own(option, tmp_path):
    """A column of splits was taken for pictures."""
    tree = write_tree(tmp_path / "pets")
    rows = [f"pets/{name}/{i}.JPEG,{name},train\n" for name in ("ant", "bee", "cat") for i in range(3)]
    (tmp_path / "list.csv").write_text("".join(rows))
    held_out = converted(tmp_path / "list.csv", tmp_path / "out", option, 0.4 if option == "--validation" else tree).out
    assert re.search(r"^validation: [39] pictures in 1 shard$", held_out, re.MULTILINE)


def test_errors_and_help_need_no_tensorflow(tmp_path):
    for call in (["Datasets.convert", "--help"], ["Datasets.verify", "--help"], ["Datasets.verify", str(tmp_path / "no")]):
        code = (
            "import runpy, sys; sys.modules['tensorflow'] = None; sys.argv = sys.argv[1:]; "
            "runpy.run_module(sys.argv[0], run_name='__main__')"
        )
        done = subprocess.run([sys.executable, "-c", code, *call], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == (0 if "--help" in call else 2), done.stderr
        assert "Traceback" not in done.stderr


def test_an_interrupted_conversion_goes_on_where_it_was_killed(tmp_path):
    write_tree(tmp_path / "pets", per_class=100)
    words = [str(tmp_path / "pets"), str(tmp_path / "out"), "--shards", "150"]
    converted(tmp_path / "pets", tmp_path / "whole", "--shards", 150)
    process = subprocess.Popen(
        [sys.executable, "-m", "Datasets.convert", *words, "--jobs", "2"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while len(list((tmp_path / "out").glob("train-*-of-00150"))) < 3 and time.monotonic() < until:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    first = {file: file.stat() for file in (tmp_path / "out").glob("train-*-of-00150")}
    assert 3 <= len(first) < 150
    again = converted(*words)
    assert f"{len(first)} of 150 shards are there already" in again.out
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")  # nothing temporary stays
    assert all(file.stat().st_ino == state.st_ino for file, state in first.items())
    for change, said in (
        (["--seed", "1"], "its seed is 0, not 1"),
        (["--shards", "2"], "its train shards is 150, not 2"),
        (["--validation", "0.5"], "its validation part is None, not 0.5"),
    ):
        refused = command("convert", *words, *change)
        assert refused.code == 2 and "holds another conversion" in refused.err and said in refused.err
    os.utime(tmp_path / "pets" / "bee" / "3.JPEG", (1, 1))
    refused = command("convert", *words)
    assert refused.code == 2 and "the source's files have changed since" in refused.err
    for file in ((tmp_path / "out") / name for name in ("conversion.json", "labels.txt", "train-files.txt")):
        file.unlink()  # shards of the right names and sizes, of nobody knows what
    refused = command("convert", *words)
    assert refused.code == 2 and "train-00000-of-00150; give a new or empty folder, or one of an interrupted" in refused.err


def test_a_second_conversion_into_the_same_folder_is_refused(tmp_path, monkeypatch):
    write_tree(tmp_path / "pets")
    inner: list[Result] = []
    write = convert.shard_writer.write

    def write_twice(*words: object) -> None:
        inner.append(command("convert", *_call(tmp_path)))
        write(*words)

    monkeypatch.setattr(convert.shard_writer, "write", write_twice)
    converted(*_call(tmp_path))
    assert inner[0].code == 2 and "another conversion is writing into" in inner[0].err


# --- Lists -----------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)


@QUIET
@given(
    st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=20, unique_by=lambda row: row[0]),
    st.booleans(),
    st.booleans(),
)
def test_every_list_that_is_written_is_read(tmp_path, rows, with_split, with_headings):
    full = [(path, label, "train" if i % 3 else "validation") for i, (path, label) in enumerate(rows)]
    shown = full if with_split else rows
    file = tmp_path / "list.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(([("Path", "LABEL", "Split")[: len(shown[0])]] if with_headings else []) + shown)
    if not with_headings and rows[0][0].lower() in listings._HEADINGS:
        return
    found = listings.of(file)
    both = [*found.train, *(found.validation or ())]
    assert {(p.file, found.classes[p.label - 1]) for p in both} == {
        (tmp_path / path, class_names.normal(label)) for path, label in rows
    }
    assert (found.validation is None) != with_split
    if with_split:
        assert len(found.validation) == len([row for row in full if row[2] == "validation"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.jpg,1\nb.jpg\n", "line 2: 1 columns, but the first line has 2"),
        ("a.jpg,1\n\nb.jpg,\n", "line 3: the label is empty"),
        ("a.jpg,1,train\nb.jpg,1,later\n", "line 2: the split is 'later', neither train nor validation"),
        ("a.jpg,1\nb.jpg, 01\n", "line 2: the label 01 is the number of 1 in line 1; write it one way"),
        ("a.jpg,2\nb.jpg,x\nc.jpg,x\nd.jpg,+2\n", "line 4: the label +2 is the number of 2 in line 1; write it one way"),
        ("a.jpg,1\na.jpg,2\n", "line 2: a.jpg is in line 1 already"),
        ("a.jpg,1\n./x/../a.jpg,2\n", "line 2: ./x/../a.jpg is in line 1 already"),
        ("path,colour\na.jpg,1\n", "line 1: no heading is called 'colour'"),
        ("path,label,path\n", "line 1: the headings path, label, path must be"),
        ('a.jpg,"1\n', "line 1: unexpected end of data"),
        ("path,label\n", "has no rows"),
        ("a.jpg\n", "line 1: 1 columns; a row has"),
        (f"a.jpg,1,{'a' * 9999}\n", "... (9999 characters)', neither train nor validation"),
        (f"path,{'a' * 9999}\n", "... (9999 characters)'; the columns are"),
    ],
)
def test_a_bad_row_is_named(tmp_path, text, words):
    (tmp_path / "list.csv").write_text(text)
    result = command("convert", tmp_path / "list.csv", tmp_path / "out")
    assert result.code == 2 and f"convert: error: {tmp_path}/list.csv" in result.err and words in result.err
    assert len(result.err) < 1000


def test_labels_are_ordered_as_numbers_only_if_all_are():
    assert class_names.ordered(["10", "9", "9"]) == ("9", "10")
    assert class_names.ordered(["10", "9", "b"]) == ("10", "9", "b")
    assert class_names.ordered(["-1", "10", "-2", "9.5"]) == ("-2", "-1", "9.5", "10")
    assert class_names.ordered(["1e3", "2"]) == ("1e3", "2")  # a name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 is empty"),
        ("a\n\nb\n", "line 2 is empty"),
        ("a\nb\na\n", "lines 1 and 3 are both a"),
        ("2\n1\nx\n+1\n", r"line 2 \(1\) and line 4 \(\+1\) are one number"),
        ("1.0\n2\n1\n", r"line 1 \(1.0\) and line 3 \(1\) are one number"),
        ("1:a\n3:c\n", "2 has no name"),
        ("1:a\n1:b\n", "a number comes twice"),
        ("1:a\n2:a\n", "a name comes twice"),
    ],
)
def test_ambiguous_class_names_are_refused(text, words, tmp_path):
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(DataError, match=f"labels.txt.*{words}"):
        class_names.read(tmp_path)


def test_class_folders_that_are_one_number_are_refused(tmp_path):
    write_tree(tmp_path / "tree", names=("1", "01"))
    with pytest.raises(DataError, match="the class folders 01 and 1 in .* are one number"):
        image_folder.tree(tmp_path / "tree")


@pytest.mark.parametrize("name", ["train-00000-of-00001.partial", "labels.txt.partial", "conversion.json.partial"])
def test_nothing_is_written_through_what_lies_under_a_temporary_name(name, tmp_path):
    """A link to a file elsewhere, or a pipe, on which a writer would wait for good."""
    write_tree(tmp_path / "tree", names=("a", "b"))
    precious = tmp_path / "precious"
    precious.write_text("precious")
    for make in (lambda place: place.symlink_to(precious), os.mkfifo):
        target = tmp_path / make.__name__.strip("<>")
        target.mkdir()
        make(target / name)
        assert command("convert", tmp_path / "tree", target).code == 0
        assert precious.read_text() == "precious"
        assert all(file.is_file() and not file.is_symlink() for file in target.iterdir())


# --- Verification ----------------------------------------------------------------------------------------------


def verified(folder: Path, *words: object) -> tuple[int, list[str], str]:
    """Exit code, findings relative to the folder, and the last line."""
    result = command("verify", folder, *words)
    *found, last = (result.out + result.err).splitlines()
    return result.code, [line.removeprefix(f"{folder}/") for line in found], last


def test_every_kind_of_damage_to_shards_is_named(tmp_path):
    good = [tf_example.serialised(ODD["PNG"][0], 1 + i % 2, "ab"[i % 2]) for i in range(6)]
    spoilt = list(good)
    spoilt[1] = b"\xff no example"
    spoilt[2] = tf_example.serialised(ODD["PNG"][0], 3, "c")
    spoilt[3] = tf_example.serialised(ODD["grey JPEG"][0][:700], 1, "a")
    spoilt[4] = photos.example(ODD["PNG"][0], None)
    (file,) = photos.write_shards(tmp_path, "train", good, 1)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    for other in ("train-0000\u0661-of-00001", "train-00000-of-more!"):  # which the reader takes for no shards either
        (tmp_path / other).write_bytes(b"junk")
    assert verified(tmp_path) == (0, [], "TFRecord shards: 1 files, 6 records, nothing damaged or missing")
    photos.write_shards(tmp_path, "train", spoilt, 1)
    code, found, last = verified(tmp_path)
    name = "train-00000-of-00001: record"
    assert code == 1 and last == "TFRecord shards: 1 files, 6 records, 4 damaged or missing"
    assert found[0] == f"{name} 1: it is no tf.train.Example"
    assert found[1] == f"{name} 2: its label is 3, outside 1 to 2"
    assert found[2].startswith(f"{name} 3: its picture is cut short: ") and "JPEG" in found[2]
    assert found[3] == f"{name} 4: it has 0 values of image/class/label instead of 1"
    assert [line[:30] for line in verified(tmp_path, "--no-decode")[1]] == [found[k][:30] for k in (0, 1, 3)]
    photos.write_shards(tmp_path, "train", good, 1)
    whole = file.read_bytes()
    each = len(whole) // 6
    bits = bytearray(whole)
    bits[1 * each + 200] ^= 1
    file.write_bytes(bits[:-5])
    damaged = f"{name} 1: its content is damaged (its checksum does not match)"
    assert verified(tmp_path)[1] == [damaged, f"{name} 5: it is cut short, the file ends at byte {len(whole) - 5}"]
    bits[4 * each + 2] ^= 4
    file.write_bytes(bits)
    code, found, last = verified(tmp_path)
    assert (
        code == 1
        and found[0] == damaged
        and ", 5 records, 2 damaged" in last
        and found[1]
        == (
            f"{name} 4: its length is damaged (its checksum does not match), and the {2 * each} bytes from there on are lost"
        )
    )
    file.rename(tmp_path / "train-00000-of-00002")
    (tmp_path / "validation-00000-of-00001").write_bytes(b"")
    code, found, last = verified(tmp_path)
    assert found[0] == f"{tmp_path}: lacks 1 of 2 train shards: train-00001-of-00002"
    assert found[-1] == "validation-00000-of-00001: it is empty" and last.endswith(
        "2 files, 5 records, 4 damaged or missing"
    )


def test_a_shard_in_the_place_of_another_is_noticed(tmp_path):
    write_tree(tmp_path / "pets", per_class=4)
    words = tmp_path / "pets", tmp_path / "out", "--validation", 0.25, "--shards", 3
    converted(*words)
    out, whole = tmp_path / "out", contents(tmp_path / "out")
    train = out / "train-00000-of-00003"
    for there in (out / "train-00001-of-00003", out / "validation-00000-of-00001"):
        shutil.copy(train, there)
        size = f"has {train.stat().st_size} bytes, and conversion.json beside it tells of {len(whole[there.name])}; copy or"
        code, found, _ = verified(out, "--no-decode")
        assert code == 1 and len(found) == 1 and found[0].startswith(f"{there.name}: {size}")
        with pytest.raises(DataError, match=size):
            opened(out, "imagefolder")
        assert "3 of 4 shards are there already\n1 shard had lost" in converted(*words).out and contents(out) == whole


def test_what_a_conversion_has_lost_is_missed_and_written_again(tmp_path):
    write_tree(tmp_path / "pets", per_class=4)
    words = tmp_path / "pets", tmp_path / "out", "--validation", 0.25
    converted(*words)
    out, whole = tmp_path / "out", contents(tmp_path / "out")
    assert verified(out, "--no-decode")[:2] == (0, [])
    payloads = found_payloads(out / "train-00000-of-00001")
    (out / "train-00000-of-00001").write_bytes(b"".join(map(tfrecord.framed, payloads[:5])))
    lost = "holds 5 records, and conversion.json beside it tells of 9; copy or convert it again"
    code, found, last = verified(out, "--no-decode")
    assert (code, found) == (1, [f"train-00000-of-00001: {lost}"]) and last.endswith(", 8 records, 1 damaged or missing")
    for name in ("imagefolder", "imagenet"):
        with pytest.raises(DataError, match=f"{lost}, or remove .*conversion.json if that is meant"):
            opened(out, name)
        assert opened(out, name, skip_bad=1).spec.notes == (f"warning: {out}/train-00000-of-00001 {lost}",)
    again = converted(*words).out
    assert again.startswith("1 of 2 shards are there already\n1 shard had lost records and is written again\n")
    assert contents(out) == whole

    for name in ("validation-00000-of-00001", "labels.txt"):
        (out / name).unlink()
    lost = "lacks every validation shard, of which conversion.json tells; copy or convert them again"
    assert verified(out, "--no-decode")[1] == [f"{out}: {lost}", "labels.txt: is missing"]
    with pytest.raises(DataError, match=lost):
        opened(out, "imagenet")
    converted(*words)
    for name in (texts := ("labels.txt", "train-files.txt")):
        (out / name).write_text("".join(reversed((out / name).read_text().splitlines(keepends=True))))
    changed = "has other names than were converted, by conversion.json"
    assert [each.partition(";")[0] for each in verified(out, "--no-decode")[1]] == [f"{name}: {changed}" for name in texts]
    notes = [note.partition(";")[0] for note in opened(out, "imagenet").spec.notes]
    assert notes == [f"warning: {out}/{name} {changed}" for name in texts]
    converted(*words)
    assert contents(out) == whole


def test_verification_reads_the_class_names_that_training_reads(tmp_path):
    photos.write_shards(tmp_path / "train", "train", [photos.example(ODD["PNG"][0], label) for label in (1, 4)], 1)
    (tmp_path / "labels.txt").write_text("a\nb\nc\n")
    assert opened(tmp_path, "imagenet").spec.num_classes == 3
    assert [line.partition(": ")[2] for line in verified(tmp_path)[1]] == ["record 1: its label is 4, outside 1 to 3"]


@pytest.mark.parametrize(
    "content",
    [
        "[[",
        "null",
        '{"train pictures": 2, "train shards": 1, "classes": 3, "sha256": [1]}',
        '{"a":1}',
        '{"train pictures": 9, "train shards": 10, "classes": 3}',
    ],
)
def test_a_damaged_conversion_is_told_of(tmp_path, content):
    photos.write_shards(tmp_path, "train", [photos.example(ODD["PNG"][0], 1)] * 2, 1)
    (tmp_path / "conversion.json").write_text(content)
    (code, (found,), _), spec = verified(tmp_path, "--no-decode"), opened(tmp_path, "imagenet").spec
    assert code == 1 and found.startswith("conversion.json: is damaged: ") and spec.train_images == 2
    assert spec.notes[0].startswith(f"warning: {tmp_path}/conversion.json is damaged: ")


@pytest.mark.parametrize(
    ("text", "names", "labels"),
    [
        ("0:background\n1:a\n2:b\n", ("a", "b"), (1, 2)),
        ("\ufeff0: a\r\n1: b\r\n", ("a", "b"), (0, 1)),
        ("2:b\n1:a\n", ("a", "b"), (1, 2)),
        ("a:1\nb:2\n", ("a:1", "b:2"), (1, 2)),
        ("16:9\n4:3\n", ("16:9", "4:3"), (1, 2)),
        (class_names.text(["0:a", "1:b"]), ("0:a", "1:b"), (1, 2)),  # as folders may be called
    ],
)
def test_numbers_before_names_are_the_labels_of_the_records(tmp_path, text, names, labels):
    photos.write_shards(tmp_path, "train", [tf_example.serialised(ODD["PNG"][0], label, "x") for label in labels], 1)
    (tmp_path / "labels.txt").write_text(text)
    for name in ("imagenet", "imagefolder"):
        source = opened(tmp_path, name)
        assert (source.spec.class_names, source.spec.num_classes) == (names, 2)
        batch = take(partial(source.train, request(batch_size=2)), 1)[0]
        assert sorted(batch["label"].tolist()) == [0, 1]
    assert verified(tmp_path)[0] == 0


@pytest.mark.parametrize("skipped", [0, 3])
def test_labels_from_zero_are_not_to_be_skipped(tmp_path, skipped):
    photos.write_shards(tmp_path, "train", [tf_example.serialised(ODD["PNG"][0], k, "x") for k in (1, 0, 1)], 1)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    with pytest.raises(
        tf.errors.OpError, match=r"record 1 cannot be used: its label is 0, outside 1 to 2; labels.txt"
    ) as told:
        take(lambda: opened(tmp_path, skip_bad=skipped).train(request(batch_size=3)), 1)
    assert "--skip" not in str(told.value) and "0:NAME" in str(told.value)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_shards_are_named(tmp_path, compression):
    with tf.io.TFRecordWriter(str(tmp_path / "train-00000-of-00001"), compression) as writer:
        writer.write(tf_example.serialised(ODD["PNG"][0], 1, "a"))
    (tmp_path / "labels.txt").write_text("a\nb\n")
    for skipped in (0, 3):
        with pytest.raises(DataError, match=f"train-00000-of-00001 is compressed with {compression.lower()}, .*decompress"):
            opened(tmp_path, skip_bad=skipped)
    assert f"is compressed with {compression.lower()}" in verified(tmp_path)[1][0]


def test_damage_to_trees_is_named(tmp_path):
    write_tree(tmp_path)
    assert verified(tmp_path)[0] == 0
    (tmp_path / "ant" / "0.JPEG").write_bytes(b"")
    (tmp_path / "ant" / "1.JPEG").write_bytes(BOMB)
    (tmp_path / "ant" / "2.tif").write_bytes(b"II*\0")
    (tmp_path / "bee" / "0.JPEG").write_bytes(ODD["BMP"][0][:300])
    (tmp_path / "bee" / "1.JPEG").unlink()
    os.mkfifo(tmp_path / "bee" / "1.JPEG")
    (tmp_path / "bee" / "Thumbs.db").write_bytes(b"?")
    code, (note, *found), last = verified(tmp_path)
    assert note.endswith(f"no picture is left out: {tmp_path / 'bee/Thumbs.db'}")
    assert code == 1 and last == "tree of pictures: 10 files, 10 records, 5 damaged or missing"
    for line, said in zip(found, (
        "ant/0.JPEG: is empty", "ant/1.JPEG: says that it is 20000 x 20000 pixels, more than", "ant/2.tif: is TIFF, which is not",
        "bee/0.JPEG: cannot be decoded: ", "bee/1.JPEG: cannot be read: Is a pipe or a device, not a file",
    ), strict=True):  # fmt: skip
        assert line.startswith(said)


def test_damage_to_binary_files_is_named(tmp_path):
    below = tmp_path / "cifar-10-batches-bin"
    below.mkdir()
    for k in range(1, 5):
        (below / f"data_batch_{k}.bin").write_bytes(records(4, k).tobytes())
    (below / "test_batch.bin").write_bytes(b"")
    rows = records(4, 1)
    rows[2, 0] = 11
    (below / "data_batch_2.bin").write_bytes(rows.tobytes()[:-9])
    code, found, last = verified(tmp_path)
    assert (code, last) == (1, "cifar-10 binary files: 5 files, 16 records, 4 damaged or missing")
    assert [line.removeprefix("cifar-10-batches-bin/") for line in found] == [
        "data_batch_5.bin: is missing",
        "data_batch_2.bin: record 2: its label is 11, outside 0 to 9",
        f"data_batch_2.bin: record 3: it is cut short, the file ends at byte {4 * 3073 - 9}",
        "test_batch.bin: is empty",
    ]


@pytest.mark.parametrize("kind", ["binary", "shard"])
def test_verification_ends_by_a_signal_within_a_file(kind, tmp_path, monkeypatch):
    """It read the file at hand to its end, of thirty gigabytes or more."""
    reads, ending = [], threading.Event()
    read, shutdown = Slices.__getitem__, ThreadPoolExecutor.shutdown

    def noted(content: Slices, place: slice) -> bytes:
        if threading.current_thread() is not threading.main_thread():
            reads.append(place)
            if len(reads) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                assert ending.wait(60)
        return read(content, place)

    def shut_down(pool: ThreadPoolExecutor, *args: object, **options: object) -> None:
        ending.set()
        shutdown(pool, *args, **options)

    if kind == "binary":
        (tmp_path / "data_batch_1.bin").touch()
        os.truncate(tmp_path / "data_batch_1.bin", 3073 * 1024 * 20)
    else:
        photos.write_shards(tmp_path, "train", [b"x"] * 20, 1)
    monkeypatch.setattr(Slices, "__getitem__", noted)
    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", shut_down)
    result = command("verify", tmp_path, "--jobs", 1)
    assert (result.code, result.err) == (143, "verify: stopped by SIGTERM\n") and len(reads) < 3


def test_what_is_no_data_set_cannot_be_verified(tmp_path):
    for folder, said in ((tmp_path, "no data set in"), (tmp_path / "none", "none is not a folder")):
        code, found, last = verified(folder)
        assert code == 2 and not found and said in last


# --- Training --------------------------------------------------------------------------------------------------


def test_a_tree_and_its_conversion_train_the_same_network(tmp_path):
    for split, count in (("train", 6), ("val", 2)):
        write_tree(tmp_path / "pets" / split, per_class=count)
    converted(tmp_path / "pets", tmp_path / "out")
    folders = []
    for folder, unseen in (("pets/train", 0), ("out", 6)):
        done = succeed(
            "train", "--dataset", "imagefolder", "--data-dir", tmp_path / folder, "--model", "resnet", "--model-size", 10,
            "--image-size", 32, "--precision", "32.32", "--iterations", 2, "--micro-batch-size", 4, "--seed", 3,
            "--abs-learning-rate", 0.01, "--batch-norm", "--log-dir", tmp_path / "logs",
        )  # fmt: skip
        assert f"Data set: imagefolder, 18 training and {unseen} validation images, 3 classes" in done.out
        # without pictures for it, validation is no next step
        assert ("Validate again: " in done.out) == ("warning: " not in done.out) == bool(unseen)
        assert "Train further: " in done.out
        folders.append(done.folder)
        assert arguments(done.folder)["num_classes"] == 3
    (tmp_path / "cat.png").write_bytes(ODD["PNG"][0])
    shown = succeed("validation", "--restore-path", folders[1], "--predict", tmp_path / "cat.png")
    assert sorted(re.findall(r"%  (\w+)", shown.out)) == ["ant", "bee", "cat"]
    (tmp_path / "out" / "labels.txt").write_text("bee\nant\ncat\n")
    for words in (("validation",), ("restore", "--iterations", 3)):
        refused = run(*words, "--restore-path", folders[1])
        assert refused.code == 2 and "as bee for ant: give them their earlier names" in refused.err
    (tmp_path / "out" / "labels.txt").write_text("ant\nbee\ncat\n")
    succeed("validation", "--restore-path", folders[1], "--dry-run")
    (tmp_path / "out" / "labels.txt").write_text("ant\nbee\n")
    refused = run("validation", "--restore-path", folders[1])
    assert refused.code == 2 and "3 classes were asked for" in refused.err and "labels.txt names 2" in refused.err
