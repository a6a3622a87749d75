"""Streams of data sets: requests, elements, and records of random bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.Datasets import cifar, fashion_mnist, imagefolder, imagenet
from cnn_harness.Datasets._spec import OpenRequest, ReadRequest


def request(**changes) -> ReadRequest:
    return ReadRequest(**({"batch_size": 16, "image_size": 32, "seed": 5} | changes))


def take(make, count: int | None = None) -> list[dict[str, np.ndarray]]:
    """Return the first elements of a stream, or all of a finite one."""
    with tf.Graph().as_default(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(make())
        element = iterator.get_next()
        session.run(iterator.initializer)
        taken: list[dict[str, np.ndarray]] = []
        while count is None or len(taken) < count:
            try:
                taken.append(session.run(element))
            except tf.errors.OutOfRangeError:
                break
        return taken


def joined(elements: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([element[name] for element in elements]) for name in elements[0]}


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for name in ("image", "label", "position"):
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def records(count: int, seed: int, label_bytes: int = 1, classes: int = 10) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (count, label_bytes + 3072), dtype=np.uint8)
    rows[:, label_bytes - 1] = random.integers(0, classes, count)
    return rows


def opened(name: str, folder: Path | None, environ: dict[str, str] | None = None, **options):
    tables = cifar.DATASETS | fashion_mnist.DATASETS | imagenet.DATASETS | imagefolder.DATASETS
    return tables[name](OpenRequest(str(folder) if folder else None, environ or {}, **options))


def small(**changes) -> ReadRequest:
    return request(**({"batch_size": 4, "image_size": 40} | changes))
