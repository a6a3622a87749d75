"""Fine-tune EfficientNet-Lite0 in Keras from this project's weights, and print the validation accuracy after each phase.

Call: python -m bench._keras_finetuning FOLDER SIDE. FOLDER has train/<class> and val/<class>. The recipe is that of Keras's
guide to transfer learning. Adam trains a new classifier behind dropout 0.2 for 20 epochs at a rate of 1e-3, and then all
weights for 10 epochs at 1e-5. Batches have 32 images; half of the images are mirrored. Batch norms do not change.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras
import numpy as np

from bench._class_folders import central, images, normalised
from cnn_harness.base import plugins

LAYERS = keras.layers
BATCH = 32
# Repeats, filters, first stride and kernel size of each stage (Tan and Le, arXiv 1905.11946; "lite" has no gates).
STAGES = ((1, 16, 1, 3), (2, 24, 2, 3), (2, 40, 2, 5), (3, 80, 2, 3), (3, 112, 1, 5), (4, 192, 2, 5), (1, 320, 1, 3))


def lite0() -> keras.Model:
    """Return the network without its classifier, with the published weights. Both projects list the layers in one order."""

    def normed(layer: keras.Layer, x: keras.KerasTensor, act: bool = True) -> keras.KerasTensor:
        x = LAYERS.BatchNormalization(epsilon=1e-3)(layer(x))
        return LAYERS.ReLU(6)(x) if act else x

    given = LAYERS.Input((None, None, 3))
    x = normed(LAYERS.Conv2D(32, 3, 2, "same", use_bias=False), given)
    for stage, (repeats, filters, first_stride, size) in enumerate(STAGES):
        for k in range(repeats):
            y, stride = x, first_stride if k == 0 else 1
            if stage:
                y = normed(LAYERS.Conv2D(6 * x.shape[-1], 1, use_bias=False), y)
            y = normed(LAYERS.DepthwiseConv2D(size, stride, "same", use_bias=False), y)
            y = normed(LAYERS.Conv2D(filters, 1, use_bias=False), y, act=False)
            x = LAYERS.Add()([x, y]) if k else y
    x = LAYERS.GlobalAveragePooling2D()(normed(LAYERS.Conv2D(1280, 1, use_bias=False), x))
    model = keras.Model(given, x)
    with np.load(plugins.ROOT / "Models/_weights/efficientnet_lite0.npz", allow_pickle=False) as file:
        arrays = [file[name] for name in file.files if name.startswith("all/") and "logits" not in name]
    pairs = zip(arrays, model.weights, strict=True)  # depthwise kernels are [height, width, 1, channels] or the reverse
    model.set_weights([a.transpose(0, 1, 3, 2) if a.ndim == 4 and a.shape[2] != w.shape[2] else a for a, w in pairs])
    return model


def main() -> None:
    """Train and validate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("side", type=int)
    asked = parser.parse_args()
    keras.utils.set_random_seed(1)
    (x, y), (held_out, answers) = (
        (normalised([central(each, asked.side) for each in pictures]), labels)
        for pictures, labels in (images(asked.folder / split) for split in ("train", "val"))
    )
    body = lite0()
    body.trainable = False
    given = LAYERS.Input(x.shape[1:])
    features = body(LAYERS.RandomFlip("horizontal")(given))
    network = keras.Model(given, LAYERS.Dense(int(1 + y.max()))(LAYERS.Dropout(0.2)(features)))
    for rate, epochs in ((1e-3, 20), (1e-5, 10)):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        network.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
        network.fit(x, y, BATCH, epochs, verbose=0)
        right = (network.predict(held_out, verbose=0).argmax(1) == answers).sum()
        print(f"rate {rate}: {right} of {len(answers)}", flush=True)
        for layer in body.layers:
            layer.trainable = not isinstance(layer, LAYERS.BatchNormalization)


if __name__ == "__main__":
    main()
