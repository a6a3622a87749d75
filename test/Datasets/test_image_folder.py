"""Image folders and shards as data sets: splits, classes, labels, other files, unusual images."""

from __future__ import annotations

import os
import shutil
import unicodedata
from functools import partial
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import run, succeed
from streams import joined, opened, request, take

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets.formats import class_names, tf_example
from cnn_harness.Datasets.pipeline import decoding, photo_stream
from cnn_harness.Datasets.sources import image_folder, locate
from cnn_harness.harness.run import cli, data

PNG = photos.encoded(photos.plain_image(), "PNG")


def places(top: Path, names: str) -> Path:
    """Write an image into each folder."""
    for k, place in enumerate(names.split(",")):
        (top / place).mkdir(parents=True, exist_ok=True)
        (top / place / "1.png").write_bytes(photos.encoded(photos.plain_image(k), "PNG"))
    return top


# --- Splits and classes of a tree ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "classes", "validation", "note"),
    [
        ("train/a,train/b,valid/a,test/b", "a b", "valid", "test"),
        ("TRAIN/a,TRAIN/b,VAL/a,VAL/b", "a b", "VAL", ""),
        ("seg_train/seg_train/a,seg_train/seg_train/b,seg_test/seg_test/b,pred", "a b", "seg_test/seg_test", "pred"),
        ("test,cat,dog", "cat dog test", "", ""),
        ("validation,train,dog", "dog train validation", "", "train, validation"),
        ("train,test1", "", "", "no class folders!"),
        ("a/images,a/masks,b/images,b/masks", "a b", "", "a/masks/1.png and 1 more may be masks"),
        ("JPEGImages,SegmentationClass", "JPEGImages SegmentationClass", "", "JPEGImages, SegmentationClass"),
        ("pets/cat,pets/dog,__MACOSX/pets/cat,@eaDir/x,.git/x", "cat dog", "", "pets"),
        ("train/a,train/b,late/a,late/b", "", "", "late!"),
        ("one/a,one/b,two/a,two/b", "", "", "--train-dir!"),
        ("a/train,a/test,b/train,b/test", "", "", "a has splits!"),
    ],
)
def test_splits_are_found_by_structure_and_name(names, classes, validation, note, tmp_path):
    places(tmp_path, names)
    if note.endswith("!"):
        with pytest.raises(DataError, match=f"^[^\n]*{note[:-1]}[^\n]*$"):
            image_folder.tree(tmp_path)
        return
    tree = image_folder.tree(tmp_path)
    assert tree.classes == tuple(classes.split("|" if "|" in classes else None)) == image_folder.classes_of(tmp_path)
    held_out = {str(image.file.parent.parent.relative_to(tmp_path)) for image in tree.validation or ()}
    assert held_out == ({validation} if validation else set())
    assert any(note in line for line in tree.notes) if note else not tree.notes


def test_validation_list_of_tiny_imagenet_is_read(tmp_path):
    places(tmp_path, "train/n02/images,train/n01/images,val/images")
    for k in (2, 3):
        shutil.copy(tmp_path / "val/images/1.png", tmp_path / f"val/images/{k}.png")
    file = tmp_path / "val" / "val_annotations.txt"
    file.write_text("1.png\tn02\t0\t0\t9\t9\n3.png\tn01\t0\t0\t9\t9\n2.png\tn02\t0\t0\t9\t9\n\n")
    found = image_folder.tree(tmp_path).validation
    assert [(image.file.name, image.label) for image in found] == [("3.png", 1), ("1.png", 2), ("2.png", 2)]
    wrong = {"1.png\tn02\n2.png\tn03\n": "line 2: class n03", "1.png n02": "line 1: no tab", "1.png\tn01": "2.png"}
    for text, said in wrong.items():
        file.write_text(text)
        with pytest.raises(DataError, match=f"val_annotations.txt.*{said}"):
            image_folder.tree(tmp_path)
    file.unlink()
    with pytest.raises(DataError, match="class images in .* need such folders"):
        image_folder.tree(tmp_path)


def test_given_splits_are_used_unchanged(tmp_path):
    """Even next to folders that would be rejected; a resume finds them after the data were moved."""
    places(tmp_path / "d", "one/a,one/b,two/a,two/b,a/train,a/test")
    source = opened("imagefolder", tmp_path / "d", train_dir="one", validation_dir=str(tmp_path / "d/two"))
    assert (source.spec.class_names, source.spec.train_images, source.spec.validation_images) == (("a", "b"), 2, 2)
    assert opened("imagefolder", tmp_path / "d", train_dir=".").spec.class_names == ("a", "one", "two")
    words = ("train", "--dry-run", "--train-dir", tmp_path / "d/one")
    assert "imagefolder, 2 training and 2 valid" in succeed(*words, "--validation-dir", tmp_path / "d/two").out
    photos.write_shards(tmp_path / "out", "train", [photos.example(PNG, 1)], 1)
    for more, named in (
        (("--validation-dir", tmp_path / "nowhere"), "nowhere"),
        (("--validation-dir", tmp_path / "d/one"), "--validation-dir"),
        (("--data-dir", tmp_path / "out"), "--train-dir"),
        (("--dataset", "fashion-mnist"), "--dataset imagefolder"),
    ):
        refused = run(*words, *more)
        assert refused.code == 2 and named in refused.err and refused.err.count("\n") == 1


def test_unicode_forms_are_one_class(tmp_path):
    composed, apart = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    places(tmp_path, f"train/{composed},train/x,train/{apart},val/{apart}")
    tree = image_folder.tree(tmp_path)
    assert tree.classes == (composed, "x") and len(tree.train) == 3 and [each.label for each in tree.validation] == [1]


@pytest.mark.parametrize(
    ("name", "inferred"),
    [("imagenette2", "imagefolder"), ("cifar-like", "imagefolder"), ("d/ImageNet/cifar", "imagenet"), ("cifar100", "cifar-100"),
     ("x/cifar-100-binary", "cifar-100"), ("cifar", "cifar-10"), ("fashion", "fashion-mnist-full"), ("pets", None)],
)  # fmt: skip
def test_data_set_is_inferred_from_folder(name, inferred, tmp_path):
    if inferred == "imagefolder":
        places(tmp_path / name, "a,b")
    given = str(tmp_path / name) if inferred == "imagefolder" else name
    if inferred:
        assert locate.infer(given) == inferred
    else:
        with pytest.raises(DataError, match="--dataset"):
            locate.infer(given)


def test_folder_is_counted_labelled_and_streamed(tmp_path):
    photos.write_tree(tmp_path / "train", per_class=4, names=("10", "9", "x"))
    photos.write_tree(tmp_path / "val", per_class=2, names=("9", "x"))
    (tmp_path / "train" / ".hidden").mkdir()
    (tmp_path / "train" / "9" / "more").mkdir()
    (tmp_path / "train" / "9" / "more" / "5.png").write_bytes(PNG)
    source = opened("imagefolder", tmp_path)
    spec = source.spec
    assert (spec.train_images, spec.validation_images, spec.class_names) == (13, 4, ("10", "9", "x"))
    got = joined(take(lambda: source.train(request(batch_size=13)), 1))
    assert sorted(got["label"].tolist()) == [0] * 4 + [1] * 5 + [2] * 4
    assert joined(take(lambda: source.validation(request(batch_size=4))))["label"].tolist() == [1, 1, 2, 2]


def test_unrelated_folders_and_files_are_ignored(tmp_path):
    """Runs, exports, text and system files next to the classes are ignored; an image without a suffix counts."""
    photos.write_tree(tmp_path, names=("ant", "bee"))
    before = image_folder.tree(tmp_path)
    for name in ("logs/run/ckpt-3.index", "export/model.tflite", "ant/readme.txt", "bee/Thumbs.db", ".git/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    os.mkfifo(tmp_path / "bee" / "waits")
    after = image_folder.tree(tmp_path)
    assert (after.classes, after.train) == (before.classes, before.train)
    assert "export, logs" in after.notes[0] and ": 3, for example" in after.notes[-1]
    shutil.copyfile(tmp_path / "ant/0.JPEG", tmp_path / "export/image")
    assert image_folder.tree(tmp_path).classes == ("ant", "bee", "export") == image_folder.classes_of(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda top: photos.write_tree(top / "val", names=("dog",)), "dog"),
        (lambda top: (top / "train" / "two\nlines").mkdir(), "unprintable"),
        (lambda top: (top / "train" / " ").mkdir(), "' '"),
        (lambda top: shutil.rmtree(top / "train"), "no classes"),
        (lambda top: (top / "train/bee/1.JPEG").write_bytes(b""), "bee/1.JPEG is empty"),
        (lambda top: (top / "train/bee/1.TIF").write_bytes(b"II*\0"), "bee/1.TIF is TIFF"),
        (lambda top: (top / "train/bee/1.JPEG").write_bytes(photos.BOMB), "bee/1.JPEG claims 20000 x 20000"),
    ],
)
def test_unusable_folder_is_explained(tmp_path, change, named):
    photos.write_tree(tmp_path / "train")
    change(tmp_path)
    refused = run("train", "--dataset", "imagefolder", "--data-dir", tmp_path, "--model-size", 18, "--dry-run")
    assert refused.code == 2 and refused.err.count("\n") == 1 and named in refused.err


def test_bad_file_stops_stream_and_is_named(tmp_path):
    source = opened("imagefolder", photos.write_tree(tmp_path / "pets"))
    with pytest.raises(DataError, match="--validation-split"):
        source.validation(request())
    for content in (b"", photos.BOMB):
        (tmp_path / "pets" / "bee" / "1.JPEG").write_bytes(content)
        with pytest.raises(tf.errors.OpError, match=r"(?s)DataError.*pets/bee/1.JPEG cannot be used"):
            take(lambda: source.train(request(batch_size=9)), 1)
    assert opened("imagefolder", tmp_path / "pets", skip_bad=1).spec.train_images == 9


# --- Class names of shards -------------------------------------------------------------------------------------


def test_class_count_comes_from_labels_or_option(tmp_path):
    photos.write_shards(tmp_path / "below" / "train", "train", [photos.example(PNG, 2)], 1)
    (tmp_path / "below" / "labels.txt").write_text("a\nb\n")
    assert opened("imagenet", tmp_path / "below").spec.num_classes == 2
    photos.write_shards(tmp_path, "train", [photos.example(PNG, 2)], 1)
    assert opened("imagenet", tmp_path).spec.num_classes == 1000
    assert opened("imagenet", tmp_path, num_classes=7).spec.num_classes == 7
    with pytest.raises(DataError, match="no labels.txt in"):
        opened("imagefolder", tmp_path)
    (tmp_path / "labels.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")  # as editors on Windows write it
    for name in ("imagenet", "imagefolder"):
        spec = opened(name, tmp_path).spec
        assert (spec.name, spec.num_classes, spec.class_names) == (name, 2, ("a", "b"))
        assert opened(name, tmp_path, num_classes=2).spec == spec
        with pytest.raises(DataError, match="3 classes .*labels.txt names 2"):
            opened(name, tmp_path, num_classes=3)
        asked = cli.parse(
            f"--model-size 18 --dataset {name} --data-dir {tmp_path} --num-classes 2".split(), "train", environ={}
        )
        assert data.for_predictions(asked.options.dataset, {}).spec.class_names == ("a", "b")
    photos.write_shards(tmp_path, "train", [photos.example(PNG, 2**32 + 2)], 1)
    with pytest.raises(DataError, match="its label is 4294967298, outside 1 to 2"):  # equal to 2 in 32 bits
        take(lambda: opened("imagefolder", tmp_path).train(request(batch_size=1)), 1)


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
def test_numbers_before_names_are_record_labels(tmp_path, text, names, labels):
    photos.write_shards(tmp_path, "train", [photos.example(PNG, label) for label in labels], 1)
    (tmp_path / "labels.txt").write_text(text)
    for name in ("imagenet", "imagefolder"):
        source = opened(name, tmp_path)
        assert (source.spec.class_names, source.spec.num_classes) == (names, 2)
        batch = take(partial(source.train, request(batch_size=2)), 1)[0]
        assert sorted(batch["label"].tolist()) == [0, 1]


@pytest.mark.parametrize(
    "train, validation",
    [
        (("train-00000-of-00002", "train-00001-of-00002"), ("val-00000-of-00001",)),
        (("a-train.tfrecord-00000-of-00002", "a-train.tfrecord-00001-of-00002"), ("a-validation.tfrecord-00000-of-00001",)),
        (("train-0-of-2.tfrecord", "train-1-of-2.tfrecord"), ("valid.tfrecords",)),
        (("train_1.tfrecord", "train_2.tfrecord"), ("val/val.tfrecord",)),
    ],
)
def test_shards_are_found_by_split_name(train, validation, tmp_path):
    for name in (*train, *validation):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        photos.write_shards(tmp_path, "train", [photos.example(PNG, 1)], 1)[0].rename(tmp_path / name)
    photos.write_shards(tmp_path, "test", [photos.example(PNG, -1)], 1)
    spec = opened("imagenet", tmp_path).spec
    assert (spec.train_images, spec.validation_images) == (2, 1)


# --- Unusual images --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", photos.ODD)
def test_unusual_images_are_decoded(kind):
    content, image = photos.ODD[kind]
    wanted = np.asarray(image.convert("RGB")).astype(float)
    with tf.Graph().as_default(), tf.Session() as session:
        got = session.run(decoding.whole(tf.constant(content))).astype(float)
        zero, payload = tf.constant(0, tf.int64), tf.constant(tf_example.serialised(content, 1, "any"))
        element = {"payload": payload, "expected": zero, "record": zero, "epoch": zero, "position": zero}
        element |= photo_stream._drawn(zero, zero, request())
        crops = [
            session.run(photo_stream._prepared(element, request(), range(1, 2), distort)["image"])
            for distort in (False, True)
        ]
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).mean() < 4  # JPEG, and black ink
    assert all(crop.shape == (32, 32, 3) and crop.std() > 10 for crop in crops)


@pytest.mark.parametrize("edges", [{"ymin": [0.0, 0.5]}, {"xmax": [float("nan")]}, {}])
def test_unusable_boxes_are_named(edges, tmp_path):
    record = tf.train.Example.FromString(photos.example(PNG, 1, np.float32([[0, 0, 1, 1]])))
    for edge, values in edges.items():
        feature = record.features.feature[f"image/object/bbox/{edge}"]
        feature.Clear()
        feature.float_list.value.extend(values)
    photos.write_shards(tmp_path, "train", [photos.example(PNG, 1), record.SerializeToString()], 1)
    source = opened("imagenet", tmp_path)
    if edges:
        with pytest.raises(tf.errors.UnknownError, match=r"record 1 cannot be used: "):
            take(lambda: source.train(request(batch_size=2)), 1)
    else:
        assert take(lambda: source.train(request(batch_size=2)), 1)[0]["label"].tolist() == [0, 0]
