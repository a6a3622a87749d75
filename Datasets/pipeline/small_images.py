"""Streams of small images from fixed-length records."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from cnn_harness.Datasets._spec import ReadRequest
from cnn_harness.Datasets.pipeline import augmentation, auto_augment, batching, normalisation

_SIDE = 32

Gather = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
Element = dict[str, tf.Tensor]


def train_stream(gather: Gather, size: int, request: ReadRequest) -> tf.data.Dataset:
    """Return an endless stream of training batches, augmented if requested."""
    per_chunk = batching.micro_batches_per_chunk(request)

    def read(position: tf.Tensor) -> Element:
        record, epoch = batching.record_and_epoch(position, size, request.seed)
        pixels, label = _gathered(gather, record)
        pixels = _changed(pixels, auto_augment.draw(record, epoch, request), request)
        cuts = augmentation.random_cuts(record, epoch, request.seed) if request.augment else None
        return _preprocessed(pixels, cuts, request) | {"label": label, "position": position}

    positions = batching.training_positions(request, per_chunk * request.batch_size)
    chunks = positions.map(read, batching.num_parallel_calls(request))
    return batching.prefetched(batching.split_chunks(chunks, per_chunk, request.batch_size))


def validation_stream(gather: Gather, size: int, request: ReadRequest) -> tf.data.Dataset:
    """Return a stream of every image once, in file order. Zeros with label -1 pad the last micro-batch."""
    per_chunk = batching.micro_batches_per_chunk(request)
    chunk = per_chunk * request.batch_size

    count = batching.validation_micro_batches(request, size)

    def read(first: tf.Tensor) -> Element:
        position = batching.sample_position(request, first + tf.range(chunk, dtype=tf.int64))
        pixels, label = _gathered(gather, position)
        return _preprocessed(pixels, None, request) | {"label": label, "position": position}  # zeros stay zeros

    chunks = tf.data.Dataset.range(0, count * request.batch_size, chunk).map(read, batching.num_parallel_calls(request))
    micro_batches = batching.split_chunks(chunks, per_chunk, request.batch_size)
    return batching.prefetched(micro_batches.take(count))


def _gathered(gather: Gather, record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    pixels, label = tf.numpy_function(gather, [record], [tf.uint8, tf.int32])
    label.set_shape(record.shape)
    return tf.ensure_shape(pixels, [record.shape[0], _SIDE, _SIDE, 3]), label


def _changed(pixels: tf.Tensor, drawn: tf.Tensor | None, request: ReadRequest) -> tf.Tensor:
    """Apply the random changes of `auto_augment` to each image; return uint8 [n, side, side, 3]."""
    if drawn is None:
        return pixels

    def change(each: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return tf.cast(tf.round(auto_augment.changed(tf.cast(each[0], tf.float32), each[1], request)), tf.uint8)

    return tf.map_fn(change, (pixels, drawn), fn_output_signature=tf.uint8)


def _preprocessed(pixels: tf.Tensor, cuts: augmentation.Cuts | None, request: ReadRequest) -> Element:
    """Standardise, mirror, crop and resize images.

    With `eight_bit_io`, only mirror and crop; return uint8 images and the moments with which the device standardises.
    """
    if request.eight_bit_io:
        image = augmentation.flip_and_crop(pixels, cuts) if cuts else pixels
        return {"image": image, "moments": normalisation.moments(pixels, cuts or augmentation.no_cuts(pixels[:, 0, 0, 0]))}
    image = normalisation.standardise(pixels)
    return {"image": augmentation.sized(augmentation.flip_and_crop(image, cuts) if cuts else image, request.image_size)}
