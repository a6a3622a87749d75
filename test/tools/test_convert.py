"""Datasets.convert and Datasets.verify: folders and lists become shards, damage is named, and the shards train the same network."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import Result, arguments, run, succeed
from PIL import Image
from streams import opened, records

from cnn_harness.base import plugins
from cnn_harness.base.errors import DataError
from cnn_harness.base.process import command_line
from cnn_harness.Datasets.formats import tf_example, tfrecord
from cnn_harness.tools.datasets import convert, listings, verify

ROOT = plugins.ROOT
COMMANDS = {"convert": convert.main, "verify": verify.main}
ODD, PNG = photos.ODD, photos.ODD["PNG"][0]


def found_payloads(file: Path) -> list[bytes]:
    index = tfrecord.RecordIndex([file])
    return [index.payload(record) for record in range(len(index))]


def test_records_and_checksums_match_tensorflow(tmp_path):
    random = np.random.default_rng(3)
    payloads = [random.bytes(n) for n in (0, 1, 5, 5000, 1_300_001)]
    (file,) = photos.write_shards(tmp_path, "train", payloads, 1)
    assert file.read_bytes() == b"".join(map(tfrecord.framed, payloads)) and found_payloads(file) == payloads


@pytest.mark.parametrize(
    ("size", "label", "text"), [(0, 1, "ant"), (3, 127, "b\u00e9e"), (200, 128, "x" * 200), (70_000, 2**31, "")]
)
def test_record_matches_protobuf(size, label, text):
    encoded = random.Random(size).randbytes(size)
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        "image/class/text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    expected = example.SerializeToString(deterministic=True)
    assert tf_example.serialised(encoded, label, text) == expected


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
    """Return label, class and file of every record of a split."""
    found = []
    for file in sorted(folder.glob(f"{split}-*-of-*")):
        for payload in found_payloads(file):
            feature = tf.train.Example.FromString(payload).features.feature
            label, text = feature["image/class/label"].int64_list.value[0], feature["image/class/text"].bytes_list.value[0]
            found.append((label, text.decode(), feature["image/encoded"].bytes_list.value[0]))
    return found


def test_folder_becomes_shards_of_unchanged_files(tmp_path):
    photos.write_tree(tmp_path / "pets" / "train", per_class=5, names=("bee", "ant"))
    photos.write_tree(tmp_path / "pets" / "test", per_class=2, names=("bee",))
    target = tmp_path / os.fsdecode(b"lat\xe9")  # not UTF-8
    done = converted(tmp_path / "pets", target, "--shards", 4)
    target.rename(tmp_path / "out")
    assert "train: 10 images in 4 shards\nvalidation: 2 images in 1 shard\n2 classes" in done.out and not done.err
    assert (tmp_path / "out" / "labels.txt").read_text() == "ant\nbee\n"
    for split, folder in (("train", "train"), ("validation", "test")):
        expected = [
            (1 + (file.parent.name == "bee"), file.parent.name, file.read_bytes())
            for file in (tmp_path / "pets" / folder).rglob("*.JPEG")
        ]
        assert sorted(stored(tmp_path / "out", split)) == sorted(expected)
    labels = [label for label, _, _ in stored(tmp_path / "out", "train")]
    assert labels != sorted(labels)  # shuffled
    for name in ("imagefolder", "imagenet"):
        spec = opened(name, tmp_path / "out").spec
        assert (spec.num_classes, spec.train_images, spec.validation_images) == (2, 10, 2)
        assert spec.class_names == opened("imagefolder", tmp_path / "pets").spec.class_names


def test_folder_splits_like_its_conversion(tmp_path):
    """Wherever the folder is, it has the validation images of the conversion, and none of them is used for training."""
    for name in ("ant", "bee"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for k in range(7):
            image = photos.plain_image(ord(name[0]) + 1000 * k)
            (tmp_path / "pets" / name / f"{k}.png").write_bytes(photos.encoded(image, "PNG"))
    converted(tmp_path / "pets", tmp_path / "out", "--validation", 0.3)
    (tmp_path / "pets").rename(tmp_path / "moved")
    source = opened("imagefolder", tmp_path / "moved", validation_split=0.3)
    assert (source.spec.train_images, source.spec.validation_images) == (10, 4)
    for split, index in (("train", source._train), ("validation", source._validation)):
        images = {tf_example.parse(index.payload(k)).encoded[0] for k in range(len(index))}
        assert {file for _, _, file in stored(tmp_path / "out", split)} == images
    photos.write_tree(tmp_path / "split/train")
    photos.write_tree(tmp_path / "split/val")
    for folder, fraction in ((tmp_path / "out", 0.3), (tmp_path / "split", 0.3), (tmp_path / "moved", 0.01)):
        with pytest.raises(DataError, match="--validation-split"):
            opened("imagefolder", folder, validation_split=fraction)
    refused = run("train", "--dataset", "fashion-mnist", "--validation-split", 0.1, "--dry-run")
    assert refused.code == 2 and "--dataset imagefolder" in refused.err


def test_shards_name_files_of_their_images(tmp_path):
    """As an image folder does. A file name is one line for any characters; changed shards have no names."""
    draw = np.random.default_rng(5)
    for name in ("a/1.png", "a/2 \n3.png", "b/<4>.png", "b/below/ü.png", "b/6.png", "c/7.png", "c/8.png"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (9, 9, 3), np.uint8)).save(tmp_path / "tree" / name)
    converted(tmp_path / "tree", tmp_path / "shards", "--validation", "0.4", "--shards", "3")
    names = {file.relative_to(tmp_path / "tree"): file.read_bytes() for file in (tmp_path / "tree").rglob("*.png")}
    source = opened("imagefolder", tmp_path / "shards")
    found = [
        (index.image_file(k), index.payload(k)) for index in (source._train, source._validation) for k in range(len(index))
    ]
    for name, payload in found:
        assert "\n" not in name and names[Path(name.replace("\\n", "\n"))] == tf_example.parse(payload).encoded[0]
    assert len(found) == len(names)
    part = opened("imagefolder", tmp_path / "shards", percentage=40)._train
    assert [part.image_file(k) for k in range(len(part))] == [name for name, _ in found][: len(part)]
    lines = (tmp_path / "shards/validation-files.txt").read_text().splitlines()
    (tmp_path / "shards/validation-files.txt").write_text("\n".join(lines[1:]) + "\n")
    again = opened("imagefolder", tmp_path / "shards")
    assert again.validation_name(0) == again._validation.name(0) != source.validation_name(0)


def test_same_call_writes_same_bytes(tmp_path):
    photos.write_tree(tmp_path / "a", per_class=9)
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


def test_bad_files_stop_or_are_left_out(tmp_path):
    pets = photos.write_tree(tmp_path / "pets")
    (pets / "ant" / "1.JPEG").write_bytes(b"")
    (pets / "bee" / "notes.PNG").write_text("hello")
    (pets / "cat" / "cut.png").write_bytes(photos.encoded(Image.effect_noise((30, 30), 50), "PNG")[:-30])
    (pets / "cat" / "0.JPEG").unlink()
    (pets / "cat" / "0.JPEG").symlink_to("nowhere")
    os.mkfifo(pets / "cat" / "pipe.jpg")
    wrong = command("convert", pets, tmp_path / "out")
    assert wrong.code == 2 and not (tmp_path / "out").exists()
    first, *others = wrong.err.splitlines()
    assert "5 files" in first and "ant/1.JPEG is empty" in first and "--skip-bad-files" in first and len(others) == 5
    left = converted(pets, tmp_path / "out", "--skip-bad-files")
    assert "Skipped 5 bad files:\n" in left.out and "train: 7 images" in left.out
    for file in (pets / "ant").iterdir():
        file.write_bytes(b"")
    emptied = command("convert", pets, tmp_path / "other", "--skip-bad-files")
    assert emptied.code == 2 and "class ant" in emptied.err


def _call(top: Path, *more: object, write: tuple[str, str] | None = None) -> tuple[object, ...]:
    if write:
        (top / write[0]).parent.mkdir(exist_ok=True)
        (top / write[0]).write_text(write[1])
    return (top / "pets", top / "out", *more)


REFUSED = {  # the call, made in a folder with nine images in pets/, and what the error must name
    "no source": (lambda t: (t / "none", t / "out"), "none"),
    "no classes": (lambda t: (t / "pets" / "ant", t / "out"), "no classes in "),
    "target in source": (lambda t: (t / "pets", t / "pets" / "out"), "pets/out"),
    "other things": (lambda t: _call(t, write=("out/mine", "")), "mine"),
    "other things beside an interrupted one": (
        lambda t: _call(t, write=("out/mine", "")) and _call(t, write=("out/conversion.unfinished", "")),
        "mine",
    ),
    "converted before": (lambda t: _call(t, write=("out/conversion.json", "{}")), "conversion.json"),
    "small part": (lambda t: _call(t, "--validation", 0.1), "give 0.33 or more"),
    "validation twice": (
        lambda t: photos.write_tree(t / "b/train") and photos.write_tree(t / "b/val") and (t / "b", t / "out", "--validation", 0.5),
        "--validation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_conversion_is_one_line(tmp_path, case):
    photos.write_tree(tmp_path / "pets")
    words, named = REFUSED[case]
    result = command("convert", *words(tmp_path))
    assert result.code == 2 and result.err.startswith("convert: error: ") and named in result.err
    assert result.err.count("\n") == 1 and not result.out
    assert not list(tmp_path.rglob("train-*"))


def test_interrupted_conversion_starts_again(tmp_path):
    photos.write_tree(tmp_path / "pets", per_class=100)
    words = [str(tmp_path / "pets"), str(tmp_path / "out"), "--shards"]
    converted(tmp_path / "pets", tmp_path / "whole", "--shards", 3)
    process = subprocess.Popen(
        [sys.executable, "-m", "Datasets.convert", *words, "150", "--jobs", "2"], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while len(list((tmp_path / "out").glob("train-*-of-00150"))) < 3 and time.monotonic() < until:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGSTOP)
    refused = command("convert", *words, "3")
    assert refused.code == 2 and "another conversion" in refused.err
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for name in ("imagefolder", "imagenet"):
        with pytest.raises(DataError, match=f"{tmp_path}/out"):
            opened(name, tmp_path / "out")
    converted(*words, "3")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


# --- Lists -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (",path,label\n0,p/1.jpg,a\n1,p/2.png,b\n", "utf-8"),
        ("Unnamed: 0;id;filename;label;width\n0;7;p/1.jpg;a;9\n1;8;p/2.png;b;9\n", "utf-8-sig"),
        ("path,label\np/1.jpg,a\np/2.png,b\n", "utf-16"),
        ("sep=;\r\np/1.jpg;a\r\np/2.png;b\r\n", "utf-8"),
        ("p\\1.jpg\ta\np\\2\tb\n", "utf-8"),
        ("image_id,breed\np/1,a\np/2,b\n", "utf-8"),
    ],
)
def test_lists_of_other_programs_are_read(text, encoding, tmp_path):
    (tmp_path / "p").mkdir()
    for name in ("1.jpg", "2.png"):
        (tmp_path / "p" / name).write_bytes(PNG)
    (tmp_path / "list.csv").write_bytes(text.encode(encoding))
    found = listings.read(tmp_path / "list.csv")
    assert found.classes == ("a", "b")
    assert [(image.file, image.label) for image in found.train] == [(tmp_path / "p/1.jpg", 1), (tmp_path / "p/2.png", 2)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a.jpg,1\n\nb.jpg,\n", "line 3: the label"),
        ("a.jpg,1,train\nb.jpg,1,later\n", "line 2: the split 'later'"),
        ("a.jpg,1\na.jpg,2\n", "line 2: a.jpg is already in line 1"),
        ("path,colour,size\na.jpg,1,2\n", "line 1: the columns"),
        ('a.jpg,"1\n', "line 1"),
        ("path,label\n", "no rows"),
        (f"a.jpg,1,{'a' * 9999}\n", "(9999 characters)"),
    ],
)
def test_bad_row_is_named(tmp_path, text, named):
    (tmp_path / "list.csv").write_text(text)
    result = command("convert", tmp_path / "list.csv", tmp_path / "out")
    assert result.code == 2 and f"convert: error: {tmp_path}/list.csv" in result.err and named in result.err
    assert len(result.err) < 1000 and result.err.count("\n") == 1


# --- Verification ----------------------------------------------------------------------------------------------


def verified(folder: Path, *words: object) -> tuple[int, list[str], str]:
    """Return exit code, findings relative to the folder, and the last line."""
    result = command("verify", folder, *words)
    *found, last = (result.out + result.err).splitlines()
    return result.code, [line.removeprefix(f"{folder}/") for line in found], last


def test_damage_to_shards_is_named(tmp_path):
    good = [tf_example.serialised(PNG, 1 + i % 2, "ab"[i % 2]) for i in range(6)]
    spoilt = list(good)
    spoilt[1] = b"\xff no example"
    spoilt[2] = tf_example.serialised(PNG, 3, "c")
    spoilt[3] = tf_example.serialised(ODD["grey JPEG"][0][:700], 1, "a")
    spoilt[4] = photos.example(PNG, None)
    (file,) = photos.write_shards(tmp_path, "train", good, 1)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    (tmp_path / "train-00000-of-more!").write_bytes(b"junk")  # the reader ignores this file too
    assert verified(tmp_path) == (0, [], "TFRecord shards: 1 file, 6 records, nothing damaged or missing")
    photos.write_shards(tmp_path, "train", spoilt, 1)
    code, found, last = verified(tmp_path)
    assert code == 1 and last == "TFRecord shards: 1 file, 6 records, 4 damaged or missing"
    name = "train-00000-of-00001: record"
    for k, reason in enumerate(("not a tf.train.Example", "label is 3", "JPEG", "0 values of image/class/label"), 1):
        assert found[k - 1].startswith(f"{name} {k}: ") and reason in found[k - 1]
    assert [line[:30] for line in verified(tmp_path, "--no-decode")[1]] == [found[k][:30] for k in (0, 1, 3)]
    photos.write_shards(tmp_path, "train", good, 1)
    bits, each = bytearray(file.read_bytes()), file.stat().st_size // 6
    bits[1 * each + 200] ^= 1
    file.write_bytes(bits[:-5])
    for number in (5, 4):
        code, found, last = verified(tmp_path)
        assert code == 1 and [line.split(": ")[1] for line in found] == ["record 1", f"record {number}"]
        assert f", {number + 1} records, 2 damaged" in last
        bits[4 * each + 2] ^= 4  # a wrong length hides all following records
        file.write_bytes(bits)
    file.rename(tmp_path / "train-00000-of-00002")
    (tmp_path / "validation-00000-of-00001").write_bytes(b"")
    code, found, last = verified(tmp_path)
    assert "train-00001-of-00002" in found[0] and found[-1].startswith("validation-00000-of-00001: ")
    assert last.endswith("2 files, 6 records, 3 damaged or missing")


def test_records_lost_by_conversion_are_reported(tmp_path):
    photos.write_tree(tmp_path / "pets", per_class=4)
    out = tmp_path / "out"
    converted(tmp_path / "pets", out, "--validation", 0.25)
    assert verified(out, "--no-decode")[:2] == (0, [])
    file = out / "train-00000-of-00001"
    file.write_bytes(b"".join(map(tfrecord.framed, found_payloads(file)[:5])))
    code, (found,), last = verified(out, "--no-decode")
    assert (
        code == 1 and found.startswith("train-00000-of-00001 has 5 ") and last.endswith(" 8 records, 1 damaged or missing")
    )
    for name in ("imagefolder", "imagenet"):
        with pytest.raises(DataError, match=f"{file} has 5 records, but conversion.json says 9"):
            opened(name, out)
        (note,) = opened(name, out, skip_bad=1).spec.notes
        assert str(file) in note
    (out / "validation-00000-of-00001").unlink()
    assert "validation" in verified(out, "--no-decode")[1][-1]


@pytest.mark.parametrize("content", ["[[", "null", '{"records": [1]}', '{"records": {"a": "b"}}'])
def test_damaged_conversion_is_named(tmp_path, content):
    photos.write_shards(tmp_path, "train", [photos.example(PNG, 1)] * 2, 1)
    (tmp_path / "conversion.json").write_text(content)
    code, (found,), _ = verified(tmp_path, "--no-decode")
    assert code == 1 and found.startswith("conversion.json is damaged: ")
    with pytest.raises(DataError, match=f"{tmp_path}/conversion.json is damaged"):
        opened("imagenet", tmp_path)


def test_damage_to_trees_is_named(tmp_path):
    photos.write_tree(tmp_path)
    assert verified(tmp_path)[0] == 0
    (tmp_path / "ant" / "0.JPEG").write_bytes(b"")
    (tmp_path / "ant" / "1.JPEG").write_bytes(photos.BOMB)
    (tmp_path / "ant" / "2.tif").write_bytes(b"II*\0")
    (tmp_path / "bee" / "0.JPEG").write_bytes(ODD["BMP"][0][:300])
    (tmp_path / "bee" / "1.JPEG").unlink()
    os.mkfifo(tmp_path / "bee" / "1.JPEG")
    code, found, last = verified(tmp_path)
    assert code == 1 and last == "tree of images: 10 files, 10 records, 5 damaged or missing"
    files = ["ant/0.JPEG", "ant/1.JPEG", "ant/2.tif", "bee/0.JPEG", "bee/1.JPEG"]
    assert [line.partition(": ")[0] for line in found] == files


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
        "data_batch_2.bin: record 2: its label 11 is outside 0 to 9",
        f"data_batch_2.bin: record 3: it is truncated: the file ends at byte {4 * 3073 - 9}",
        "test_batch.bin: is empty",
    ]


# --- Training --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_folder_and_conversion_train_same_network(tmp_path):
    for split, count in (("train", 6), ("val", 2)):
        photos.write_tree(tmp_path / "pets" / split, per_class=count)
    converted(tmp_path / "pets", tmp_path / "out")
    folders = []
    for folder, unseen in (("pets/train", 0), ("out", 6)):
        done = succeed(
            "train", "--dataset", "imagefolder", "--data-dir", tmp_path / folder, "--model", "resnet", "--model-size", 10,
            "--image-size", 32, "--precision", "32.32", "--iterations", 2, "--micro-batch-size", 4, "--seed", 3,
            "--abs-learning-rate", 0.01, "--batch-norm", "--log-dir", tmp_path / "logs",
        )  # fmt: skip
        assert f"Data set: imagefolder, 18 training and {unseen} validation images, 3 classes" in done.out
        # without validation images, validation is not suggested
        assert ("Validate again: " in done.out) == ("no validation images" not in done.out) == bool(unseen)
        assert "Train further: " in done.out
        folders.append(done.folder)
        assert arguments(done.folder)["num_classes"] == 3
    (tmp_path / "cat.png").write_bytes(PNG)
    shown = succeed("validation", "--restore-path", folders[1], "--predict", tmp_path / "cat.png")
    assert sorted(re.findall(r"%  (\w+)", shown.out)) == ["ant", "bee", "cat"]
    (tmp_path / "out" / "labels.txt").write_text("bee\nant\ncat\n")
    for words in (("validation",), ("restore", "--iterations", 3)):
        refused = run(*words, "--restore-path", folders[1])
        assert refused.code == 2 and "bee for ant" in refused.err
    (tmp_path / "out" / "labels.txt").write_text("ant\nbee\ncat\n")
    succeed("validation", "--restore-path", folders[1], "--dry-run")
    (tmp_path / "out" / "labels.txt").write_text("ant\nbee\n")
    refused = run("validation", "--restore-path", folders[1])
    assert refused.code == 2 and "3 classes" in refused.err and "labels.txt names 2" in refused.err
