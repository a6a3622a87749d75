"""Worker process of bench/peers.py that runs Keras on random images: `fit` for training, a compiled call for inference.

Call: python -m bench._keras_worker NETWORK SIDE BATCH UPDATES [--jit] [--inference]. SIDE is the height and width of an
image. When the worker is ready, it prints its version. For each line of standard input, it runs UPDATES batches and prints
the speed.
"""

from __future__ import annotations

import argparse
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
import keras
import numpy as np
import tensorflow as tf

from bench import _rounds
from cnn_harness.base.process import command_line

LAYERS = keras.layers


def resnet14() -> keras.Model:
    """Return the network of configuration quickstart: three stages of two basic units. Shortcuts pool and add zero
    channels."""

    def unit(x: keras.KerasTensor, filters: int, stride: int) -> keras.KerasTensor:
        y = LAYERS.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        y = LAYERS.ReLU()(LAYERS.BatchNormalization()(y))
        y = LAYERS.BatchNormalization()(LAYERS.Conv2D(filters, 3, padding="same", use_bias=False)(y))
        if stride > 1:
            x = LAYERS.AveragePooling2D(stride)(x)
            x = LAYERS.Concatenate()([x, LAYERS.Lambda(tf.zeros_like)(x)])
        return LAYERS.ReLU()(LAYERS.Add()([x, y]))

    given = LAYERS.Input((32, 32, 3))
    x = LAYERS.Conv2D(16, 3, padding="same", use_bias=False)(given)
    x = LAYERS.ReLU()(LAYERS.BatchNormalization()(x))
    for filters, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        x = unit(x, filters, stride)
    return keras.Model(given, LAYERS.Dense(10)(LAYERS.GlobalAveragePooling2D()(x)))


NETWORKS = {"efficientnet_b0": "EfficientNetB0", "efficientnet_b2": "EfficientNetB2", "resnet50": "ResNet50"}


def main() -> None:
    """Build the network and run the requested rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=[*NETWORKS, "resnet14"])
    parser.add_argument("side", type=command_line.int_between(1))
    parser.add_argument("batch", type=command_line.int_between(1))
    parser.add_argument("updates", type=command_line.int_between(1))
    parser.add_argument("--jit", action="store_true", help="compile with XLA")
    parser.add_argument("--inference", action="store_true")
    asked = parser.parse_args()
    classes = 10 if asked.network == "resnet14" else 1000
    if asked.network == "resnet14":
        model = resnet14()
    else:
        build = getattr(keras.applications, NETWORKS[asked.network])
        model = build(weights=None, input_shape=(asked.side, asked.side, 3), classifier_activation=None)
    samples = asked.batch * asked.updates
    images = np.random.default_rng(0).random((samples, asked.side, asked.side, 3), np.float32)
    labels = np.random.default_rng(1).integers(0, classes, samples)
    if asked.inference:
        call = tf.function(lambda x: model(x, training=False), jit_compile=asked.jit)
        batches = [tf.constant(images[i : i + asked.batch]) for i in range(0, samples, asked.batch)]

        def work() -> None:
            for batch in batches:
                call(batch).numpy()
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e-4, 0.9), loss, jit_compile=asked.jit)
        data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(asked.batch).prefetch(2)
        # tf.data's autotuning thread sleeps for up to 640 ms, and the end of an epoch would wait until it wakes.
        steady = tf.data.Options()
        steady.autotune.enabled = False
        data = data.with_options(steady)

        def work() -> None:
            model.fit(data, verbose=0)

    work()
    _rounds.serve(work, samples, version=f"Keras {keras.__version__}")


if __name__ == "__main__":
    main()
