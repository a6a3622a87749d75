"""Image folders and shards as data sets: splits, classes, labels, other files, unusual images."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import photos
import pytest
import tensorflow.compat.v1 as tf
from commands import run, succeed
from streams import joined, opened, request, take

from cnn_harness.base.errors import DataError
from cnn_harness.Datasets import imagefolder
from cnn_harness.Datasets.formats import class_names, tf_example
from cnn_harness.Datasets.pipeline import decoding, photo_stream
from cnn_harness.Datasets.sources import generated, image_folder, locate, record_sample
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
        ("Training/a,Training/b,Testing/a", "a b", "Testing", "Testing"),
        ("TRAIN/a,TRAIN/b,VAL/a,VAL/b", "a b", "VAL", ""),
        ("data/Train_Set/a,data/Train_Set/b,data/dev set/a", "a b", "data/dev set", "data"),
        ("images/trainset/a,images/trainset/b,images/test/x", "a b", "", "class x!"),
        ("seg_train/seg_train/a,seg_train/seg_train/b,seg_test/seg_test/b,pred", "a b", "seg_test/seg_test", "pred"),
        ("test,cat,dog", "cat dog test", "", ""),
        ("validation,train,dog", "dog train validation", "", "train, validation"),
        ("steam_train,diesel_train", "diesel_train steam_train", "", ""),
        ("train,test1", "", "", "no class folders!"),
        ("coco/train2017,coco/val2017,coco/test2017", "", "", "no class folders!"),
        ("train/images,valid/images", "", "", "no class folders!"),
        ("train/train,test1/test1", "", "", "no class folders!"),
        ("a/images,a/masks,b/images,b/masks", "a b", "", "a/masks/1.png and 1 more may be masks"),
        ("JPEGImages,SegmentationClass", "JPEGImages SegmentationClass", "", "JPEGImages, SegmentationClass"),
        ("cat,dog,labels", "cat dog labels", "", "labels in"),
        ("mask,no_mask", "mask no_mask", "", ""),
        ("with mask,without mask,incorrect mask", "incorrect mask|with mask|without mask", "", ""),
        ("Hot dog,hot_dog,1 1,11", "1 1|11|Hot dog|hot_dog", "", "'Hot dog' and 'hot_dog'"),
        ("test/deep/far,cat,dog", "cat dog test", "", ""),
        ("pets/cat,pets/dog,__MACOSX/pets/cat,@eaDir/x,.git/x", "cat dog", "", "pets"),
        ("train/a,train/b,late/a,late/b", "", "", "late!"),
        ("train/a,train/b,cat", "", "", "cat!"),
        ("one/a,one/b,two/a,two/b", "", "", "--train-dir!"),
        ("train1/a,train2/a,test/a", "", "", "train1, train2!"),
        ("test/a,test/b", "", "", "test!"),
        ("a,b,test/a,test/b", "", "", "test!"),
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


@pytest.mark.parametrize(
    ("one", "other", "paired"),
    [
        ("{}.jpg", "{}.jpg", False), ("one_{}.jpg", "other_{}.jpg", False), ("man{}.jpg", "woman{}.jpg", False),
        ("{}.jpg", "{}.png", True), ("{}.png", "{}_cut.png", True), ("{1}.jpg", "{1}.jpg", True),
        ("x (1)/{}.jpg", "x (1)/{}.jpg", False), ("crack_{}.png", "no_crack_{}.png", False), ("s{2}.jpg", "s{2}.jpg", False),
    ],
)  # fmt: skip
def test_folders_whose_files_pair_up_are_named(one, other, paired, tmp_path):
    """Images and their outlines have the same names; but numbers are the names of files in many classes."""
    for top, name in (("one", one), ("other", other)):
        for k in (3, 4, 5, 6):
            file = tmp_path / top / name.format(k, 7**k, 15 * k)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(PNG)
    assert any("one" in note and "other" in note for note in image_folder.tree(tmp_path).notes) == paired


def test_lists_and_raw_files_are_named(tmp_path):
    places(tmp_path, "d/train/cat,d/train/dog,d/val/cat")
    (tmp_path / "d/README.txt").write_text("about")
    assert not any("warning" in note for note in image_folder.tree(tmp_path).notes)
    for name in ("labels.csv", "d/train.json", "d/train/cat/1.CR2", "d/val/bee/1.nef"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    said = "\n".join(note for note in image_folder.tree(tmp_path).notes if "warning" in note)
    assert "labels.csv" in said and "d/train.json" in said and "raw camera files are ignored: 2" in said


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


def test_labels_sort_numerically_only_if_all_numeric():
    assert class_names.ordered(["10", "9", "9"]) == ("9", "10")
    assert class_names.ordered(["10", "9", "b"]) == ("10", "9", "b")
    assert class_names.ordered(["-1", "10", "-2", "9.5"]) == ("-2", "-1", "9.5", "10")
    assert class_names.ordered(["1e3", "2"]) == ("1e3", "2")  # 1e3 counts as a name


def test_first_folder_with_classes_validates(tmp_path):
    photos.write_tree(tmp_path / "train")
    (tmp_path / "val" / "ant").mkdir(parents=True)
    (tmp_path / "validation").mkdir()
    (tmp_path / "validation" / "a.png").write_bytes(PNG)
    assert image_folder.tree(tmp_path).validation is None
    photos.write_tree(tmp_path / "test", per_class=1, suffix="")
    tree = image_folder.tree(tmp_path)
    assert {image.file.parent.parent for image in tree.validation} == {tmp_path / "test"}
    assert f"{tmp_path}/validation" in tree.notes[1]  # its images are outside class folders


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


def test_linked_class_folders_count_once(tmp_path):
    photos.write_tree(tmp_path / "pets")
    photos.write_tree(tmp_path / "more", names=("far",), per_class=2)
    for link, there in (("more/far/back", "more/far"), ("pets/cat/linked", "more/far"), ("pets/cat/twice", "more/far"),
                        ("pets/cat/up", "pets"), ("pets/cat/self", "pets/cat"), ("pets/dog", "more/far")):  # fmt: skip
        (tmp_path / link).symlink_to(tmp_path / there)
    tree = image_folder.tree(tmp_path / "pets")
    assert Counter(image.label for image in tree.train) == {1: 3, 2: 3, 3: 5, 4: 2}


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


def test_damaged_validation_image_is_named(tmp_path):
    """Its header is intact, so only validation finds the damage."""
    for split in ("train", "val"):
        photos.write_tree(tmp_path / "pets" / split, names=("ant", "bee"), kinds=("PNG",))
    file = tmp_path / "pets/val/bee/1.JPEG"
    file.write_bytes(PNG[: len(PNG) // 2])
    result = run("train", "--dataset", "imagefolder", "--data-dir", tmp_path / "pets", "--model-size", 10, "--image-size", 32,
                 "--iterations", 2, "--micro-batch-size", 2, "--logs-path", tmp_path / "run")  # fmt: skip
    assert result.code in (1, 2) and str(file) in result.err and result.err.count("\n") == 1, result.err


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
    ("text", "fault"),
    [("", "line 1"), ("a\n\nb\n", "line 2"), ("a\nb\na\n", "lines 1 and 3"), ("1:a\n3:c\n", "2 has no name"),
     ("1:a\n1:b\n", "number appears twice"), ("1:a\n2:a\n", "name appears twice")],
)  # fmt: skip
def test_ambiguous_class_names_are_rejected(text, fault, tmp_path):
    (tmp_path / "labels.txt").write_text(text)
    with pytest.raises(DataError, match=f"labels.txt.*{fault}"):
        class_names.read(tmp_path)


def test_contradictions_of_records_are_warnings(tmp_path):
    """Class names in records are compared with labels.txt and between the splits, and equal records are found."""
    images = photos.jpegs(12)

    def write(split: str, names: str, shift: int) -> None:
        rows = [tf_example.serialised(images[k + shift], k + 1, name) for k, name in enumerate(names.split("|"))]
        photos.write_shards(tmp_path, split, rows, 2)

    def warned(labels: str) -> str:
        (tmp_path / "labels.txt").write_text(labels.replace("|", "\n") + "\n")
        return "\n".join(opened("imagenet", tmp_path).spec.notes)

    write("train", "red fox|owl|crane", 0)
    write("validation", "Red_fox|owl, Bubo|crane", 3)
    assert not warned("red fox|owl|crane")
    assert "label 2 is owl in train records, but crane in labels.txt (and 1 more); the order" in warned("red fox|crane|owl")
    assert "label 1 is red fox in train records, but cat in labels.txt" in warned("cat|owl|crane")
    assert not warned("n01|n02|n03")
    write("validation", "owl|crane|red fox", 3)
    assert "label 1 is red fox in train records, but owl in validation records (and 2 more)" in warned("n01|n02|n03")
    write("validation", "red fox|owl|crane", 0)
    assert "3 of 3 sampled validation records are training records" in warned("red fox|owl|crane")
    assert "'owl' and 'Owl'" in warned("owl|Owl|crane")
    write("train", "Cafe\u0301|T-shirt|hot dog", 0)
    write("validation", "caf\u00e9|t shirt|hotdog", 3)
    assert not warned("caf\u00e9|T-Shirt|Hot Dog")


@pytest.mark.parametrize("skipped", [0, 3])
def test_labels_from_zero_cannot_be_skipped(tmp_path, skipped, monkeypatch):
    photos.write_shards(tmp_path, "train", [photos.example(PNG, k) for k in (1, 0, 1)], 1)
    (tmp_path / "labels.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"record 1 cannot be used: its label is 0, .*0:NAME"):
        opened("imagefolder", tmp_path, skip_bad=skipped)
    monkeypatch.setattr(record_sample, "sampled", lambda count: [])
    with pytest.raises(tf.errors.OpError, match=r"record 1 cannot be used: its label is 0, .*0:NAME") as caught:
        take(lambda: opened("imagefolder", tmp_path, skip_bad=skipped).train(request(batch_size=3)), 1)
    assert "--skip" not in str(caught.value)


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


def test_generated_photos_may_have_one_class():
    spec = replace(imagefolder.SPECS["imagefolder"], num_classes=1)
    assert take(lambda: generated.GeneratedSource(spec).train(request(batch_size=2)), 1)[0]["label"].tolist() == [0, 0]


def test_command_line_sets_num_classes():
    wrong = run("train", "--dataset", "cifar-10", "--generated-data", "--num-classes", 7, "--dry-run")
    assert wrong.code == 2 and "--num-classes 7" in wrong.err
    for words in ((), ("--num-classes", 5)):
        made = succeed("train", "--dataset", "imagefolder", "--generated-data", *words, "--dry-run")
        assert f", {words[1] if words else 1000} classes" in made.out and "1281167 training" in made.out


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
