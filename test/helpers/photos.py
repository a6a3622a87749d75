"""Write ImageNet-style TFRecord shards of real photos, for tests and benchmarks of the input pipeline.

    python test/helpers/photos.py FOLDER [--train N] [--validation N] [--shards N]

The photos come with scikit-learn (china.jpg, flower.jpg) and, if installed, scikit-image. Their crops, about 500 pixels on
the long side at JPEG quality 95, have the size of ImageNet's images.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

_PLACES = (  # package, folder in it, photos
    ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    ("skimage", "data", ("chelsea.png", "coffee.png", "rocket.jpg", "astronaut.png")),
)
_CROP = (375, 500)
_QUALITY = 95


def installed_photos() -> list[np.ndarray]:
    """Return the installed photos, uint8 [height, width, 3]; skip the calling test if there are none."""
    files = [file for place in _PLACES for file in _installed(*place)]
    if not files:
        import pytest

        pytest.importorskip("sklearn", reason="the photos come with scikit-learn")
    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.placeholder(tf.string, [])
        image = tf.image.decode_image(data, channels=3, expand_animations=False)
        return [session.run(image, {data: file.read_bytes()}) for file in files]


def jpegs(count: int, seed: int = 0) -> list[bytes]:
    """Return `count` different crops as JPEGs."""
    images, random = installed_photos(), np.random.default_rng(seed)
    made = []
    with tf.Graph().as_default(), tf.Session() as session:
        crop = tf.placeholder(tf.uint8, [None, None, 3])
        encoded = tf.image.encode_jpeg(crop, quality=_QUALITY)
        for i in range(count):
            image = images[i % len(images)]
            height, width = min(_CROP[0], image.shape[0]), min(_CROP[1], image.shape[1])
            top = random.integers(image.shape[0] - height + 1)
            left = random.integers(image.shape[1] - width + 1)
            made.append(session.run(encoded, {crop: image[top : top + height, left : left + width]}))
    return made


def example(encoded: bytes, label: int | None, boxes: np.ndarray | None = None) -> bytes:
    """Return a record like ImageNet's: the label counts from 1; boxes [n, 4] are ymin, xmin, ymax, xmax from 0 to 1."""
    features = {"image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded]))}
    if label is not None:
        features["image/class/label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))
    for k, edge in enumerate(("ymin", "xmin", "ymax", "xmax")):
        values = [] if boxes is None else boxes[:, k].tolist()
        features[f"image/object/bbox/{edge}"] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def plain_image(seed: int = 0, height: int = 60, width: int = 90) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    planes = x * 255 // width, y * 255 // height, (x + y + 40 * seed) % 256
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def encoded(image: Image.Image, form: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def promising(width: int, height: int, pillow_format: str = "JPEG") -> bytes:
    """Return an image of a few bytes whose header claims this size."""
    more = {"exif": b"Exif"} if pillow_format == "WebP" else {}  # gives it a canvas
    data = bytearray(encoded(Image.new("L", (16, 16), 128), pillow_format, **more))
    if pillow_format == "JPEG":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    elif pillow_format == "PNG":
        data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
        data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    elif pillow_format == "GIF":
        for at in (6, data.index(b",", 13) + 5):
            data[at : at + 4] = width.to_bytes(2, "little") + height.to_bytes(2, "little")
    elif pillow_format == "WebP":
        data[24:30] = max(0, width - 1).to_bytes(3, "little") + max(0, height - 1).to_bytes(3, "little")
    else:
        data[18:26] = width.to_bytes(4, "little") + height.to_bytes(4, "little")
    return bytes(data)


BOMB = promising(20_000, 20_000)


def _odd() -> dict[str, tuple[bytes, Image.Image]]:
    """Return files, and the image that each shows."""
    colour = plain_image()
    grey, few = colour.convert("L"), colour.convert("P", palette=Image.Palette.ADAPTIVE)
    four = colour.quantize(4)  # one colour covers a good part of the image
    most = int(np.bincount(np.asarray(four).ravel()).argmax())
    sixteen = np.asarray(grey).astype(np.uint16) * 257
    upright, turned = colour.transpose(Image.Transpose.ROTATE_270), Image.Exif()
    turned[0x0112] = 6
    rows = {
        "grey JPEG": (grey, "JPEG", {"quality": 95}, grey),
        "CMYK JPEG": (colour.convert("CMYK"), "JPEG", {"quality": 95}, colour),
        "progressive JPEG": (colour, "JPEG", {"quality": 95, "progressive": True}, colour),
        "JPEG that EXIF says is turned": (colour, "JPEG", {"quality": 95, "exif": turned}, upright),
        "PNG": (colour, "PNG", {}, colour),
        "PNG with alpha": (colour.convert("RGBA"), "PNG", {}, colour),
        "grey PNG of 16 bits": (Image.fromarray(sixteen), "PNG", {}, grey),
        "PNG with a colour table": (few, "PNG", {}, few),
        "GIF": (few, "GIF", {}, few),
        "animated GIF": (few, "GIF", {"save_all": True, "append_images": [few.rotate(180)]}, few),
        "GIF with transparent pixels": (four, "GIF", {"transparency": most}, four),
        "PNG with a transparent colour": (four, "PNG", {"transparency": most}, four),
        "WebP": (colour, "WEBP", {"quality": 95}, colour),
        "lossless WebP": (colour, "WEBP", {"lossless": True}, colour),
        "WebP with alpha": (colour.convert("RGBA"), "WEBP", {"lossless": True}, colour),
        "animated WebP": (colour, "WEBP", {"quality": 95, "save_all": True, "append_images": [colour.rotate(180)]}, colour),
        "WebP that EXIF says is turned": (colour, "WEBP", {"quality": 95, "exif": turned}, upright),
        "BMP": (colour, "BMP", {}, colour),
        "grey BMP": (grey, "BMP", {}, grey),
        "BMP with a colour table": (few, "BMP", {}, few),
        "BMP of one bit": (grey.convert("1"), "BMP", {}, grey.convert("1")),
    }
    return {name: (encoded(image, form, **options), seen) for name, (image, form, options, seen) in rows.items()}


ODD = _odd()


def write_tree(
    top: Path,
    per_class: int = 3,
    names: tuple[str, ...] = ("ant", "bee", "cat"),
    suffix: str = ".JPEG",
    kinds: Iterable[str] = ODD,
) -> Path:
    """Write a folder for each class; every odd kind has the same suffix."""
    files = [ODD[kind][0] for kind in kinds]
    for k, name in enumerate(names):
        (top / name).mkdir(parents=True)
        for i in range(per_class):
            (top / name / f"{i}{suffix}").write_bytes(files[(k * per_class + i) % len(files)])
    return top


def write_shards(folder: Path, split: str, records: list[bytes], shards: int) -> list[Path]:
    """Distribute records evenly over `shards` files, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{split}-{i:05d}-of-{shards:05d}" for i in range(shards)]
    ends = [len(records) * i // shards for i in range(shards + 1)]
    for file, first, end in zip(files, ends, ends[1:]):
        with tf.io.TFRecordWriter(str(file)) as writer:
            for record in records[first:end]:
                writer.write(record)
    return files


def write_imagenet(folder: Path, train: int, validation: int, shards: int = 2, seed: int = 0) -> None:
    """Write a small ImageNet with random labels."""
    random = np.random.default_rng(seed)
    images = jpegs(train + validation, seed)
    records = [example(image, int(random.integers(1, 1001))) for image in images]
    write_shards(folder, "train", records[:train], shards)
    if validation:
        write_shards(folder, "validation", records[train:], shards)


def _installed(package: str, below: str, names: tuple[str, ...]) -> list[Path]:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return []
    files = [Path(found.origin).parent / below / name for name in names]
    return [file for file in files if file.is_file()]


def main() -> None:
    parser = argparse.ArgumentParser(description="write ImageNet-style shards of real photos")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=256)
    parser.add_argument("--validation", type=int, default=64)
    parser.add_argument("--shards", type=int, default=4)
    given = parser.parse_args()
    write_imagenet(given.folder, given.train, given.validation, given.shards)


if __name__ == "__main__":
    main()
