"""Classify photos with the exported network in this folder.

    python predict.py PHOTO... [--model FILE]

This program needs NumPy, Pillow and a runtime: onnxruntime for ONNX, ai-edge-litert or TensorFlow for TensorFlow Lite,
TensorFlow for the other files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageOps

Runner = Callable[[np.ndarray], np.ndarray]  # uint8 [batch, side, side, 3] -> float32 [batch, classes]
_SHOWN = 5  # This number of classes is printed for each photo.


def _onnx(model: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return lambda images: session.run(["probabilities"], {"image": images})[0]


def _tflite(model: Path) -> Runner:
    try:
        from ai_edge_litert.interpreter import Interpreter  # This package is much smaller than TensorFlow.
    except ImportError:
        from tensorflow.lite.python.interpreter import Interpreter

    run = Interpreter(str(model)).get_signature_runner("serving_default")
    return lambda images: run(image=images)["probabilities"]


def _saved_model(model: Path) -> Runner:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(model))
    return lambda images: loaded.signatures["serving_default"](image=tf.constant(images))["probabilities"].numpy()


def _frozen(model: Path) -> Runner:
    import tensorflow.compat.v1 as tf

    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.GraphDef.FromString(model.read_bytes()), name="")
    return tf.Session(graph=graph).make_callable("probabilities:0", ["image:0"])


RUNTIMES = {
    "model.onnx": _onnx, "model_int8.onnx": _onnx, "model.tflite": _tflite, "model_int8.tflite": _tflite,
    "saved_model": _saved_model, "frozen.pb": _frozen,
}  # fmt: skip


def opened(model: Path) -> Runner:
    """Open a model in its runtime. Return a function that takes images and returns probabilities."""
    return RUNTIMES[model.name](model)


def prepared(photo: str | Path, about: dict[str, Any]) -> np.ndarray:
    """Return a photo as input for the network, uint8 [side, side, 3]. `about` is the content of preprocessing.json."""
    image = ImageOps.exif_transpose(Image.open(photo))
    if image.mode == "CMYK" and "adobe" not in image.info:  # Pillow assumes inverted colours, but only Adobe writes them.
        image = ImageChops.invert(image)
    wide = image.mode.startswith("I")  # Pixels have 16 bits, and the network uses the upper 8.
    image = (Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if wide else image).convert("RGB")
    how, side = about["prepare"], about["input"]["shape"][1]
    if "square" in how:  # The network takes small images, such as those of CIFAR.
        square = ImageOps.fit(image, (how["square"], how["square"]), Image.Resampling.BOX)
        return np.asarray(ImageOps.expand(square, how["frame_of_zeros"]))
    shorter = min(image.size)
    width, height = ((length * how["shorter_side"] + shorter // 2) // shorter for length in image.size)
    x, y = image.size[0] / width, image.size[1] / height  # number of photo pixels per input pixel
    place = (x, 0, (width - side) // 2 * x, 0, y, (height - side) // 2 * y)
    window = (side, side), Image.Transform.AFFINE, place, Image.Resampling.BILINEAR
    bands = [np.asarray(band.convert("F").transform(*window)) for band in image.split()]  # Pillow would round integers down.
    return np.rint(np.stack(bands, -1)).astype(np.uint8)


def _prepared(photo: str, about: dict[str, Any]) -> np.ndarray:
    """Return the same as `prepared`, but exit with an error message if the photo cannot be read."""
    try:
        return prepared(photo, about)
    except (OSError, SyntaxError) as error:  # Pillow raises SyntaxError for a broken PNG
        sys.exit(f"predict.py: {photo}: {error}")


def main() -> None:
    """Print the most probable classes of each photo, with probabilities in per cent."""
    folder = Path(__file__).resolve().parent
    there = [name for name in RUNTIMES if (folder / name).exists()]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", nargs="+", metavar="PHOTO")
    parser.add_argument("--model", choices=there, default=there[0] if there else None, help="default: %(default)s")
    arguments = parser.parse_args()
    if not there:
        sys.exit(f"predict.py: {folder} contains none of {', '.join(RUNTIMES)}")
    about = json.loads((folder / "preprocessing.json").read_text(encoding="utf-8"))
    labels = (folder / "labels.txt").read_text(encoding="utf-8").split("\n")
    try:
        images = np.stack([_prepared(photo, about) for photo in arguments.photos])
        rows = opened(folder / arguments.model)(images)
    except (OSError, ImportError) as error:
        sys.exit(f"predict.py: {error}")
    for photo, row in zip(arguments.photos, rows):
        best = (f"{100 * row[k]:.1f} % {labels[k]}" for k in row.argsort()[::-1][:_SHOWN])
        print(photo, *best, sep="\n  ")


if __name__ == "__main__":
    main()
