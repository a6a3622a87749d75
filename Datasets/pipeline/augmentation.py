"""Random crops, mirroring and resizing. Small images are processed as micro-batches, photos one by one.

Every random draw depends only on the seed, the epoch and the record.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cnn_harness.base import draws

FRAME = 4  # zero pixels added on every side of a small image before its random crop


class Cuts(NamedTuple):
    """Crops of images: the first row and column in the image with its frame, and whether the image is mirrored."""

    top: tf.Tensor
    left: tf.Tensor
    mirrored: tf.Tensor


def random_cuts(record: tf.Tensor, epoch: tf.Tensor, seed: int) -> Cuts:
    """Return random crops of images with a frame. Half of the images are mirrored."""
    return Cuts(
        top=draws.uniform_below(2 * FRAME + 1, draws.key(seed, "data/crop-top"), epoch, record),
        left=draws.uniform_below(2 * FRAME + 1, draws.key(seed, "data/crop-left"), epoch, record),
        mirrored=tf.equal(draws.uniform_below(2, draws.key(seed, "data/flip"), epoch, record), 1),
    )


def no_cuts(record: tf.Tensor) -> Cuts:
    """Return cuts that change nothing."""
    middle = tf.fill(tf.shape(record), FRAME)
    return Cuts(top=middle, left=middle, mirrored=tf.zeros_like(record, tf.bool))


def flip_and_crop(image: tf.Tensor, cuts: Cuts) -> tf.Tensor:
    """Mirror images [n, side, side, c] of any type, add a frame of zeros, and crop to the old size.

    The frame is added first. Then a gather selects the rows, and a second gather the columns, in reverse order if
    mirrored.
    """
    side = image.shape[1]
    rows = cuts.top[:, None] + tf.range(side)
    columns = cuts.left[:, None] + tf.range(side)
    columns = tf.where_v2(cuts.mirrored[:, None], side + 2 * FRAME - 1 - columns, columns)
    framed = tf.pad(image, [[0, 0], [FRAME, FRAME], [FRAME, FRAME], [0, 0]])
    return tf.gather(tf.gather(framed, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)


def random_window(shape: tf.Tensor, boxes: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return a photo's crop of random position, area and aspect ratio: int32 (top, left, height, width).

    `shape` is the photo's shape, int32 [3]. `boxes` are bounding boxes of objects, float32 [1, n, 4]; the crop covers at
    least a tenth of a box, or of the photo if there is no box. `seed` is int32 [2].
    """
    corner, size, _ = tf.raw_ops.StatelessSampleDistortedBoundingBox(
        image_size=shape, bounding_boxes=boxes, seed=seed, min_object_covered=0.1,
        aspect_ratio_range=(0.75, 1.33), area_range=(0.05, 1.0), max_attempts=100,
        use_image_if_no_bounding_boxes=True,
    )  # fmt: skip
    return tf.concat([corner[:2], size[:2]], 0)


def flipped(image: tf.Tensor, mirrored: tf.Tensor) -> tf.Tensor:
    """Return a photo [height, width, 3], mirrored if `mirrored`."""
    return tf.cond(mirrored, lambda: tf.reverse(image, [1]), lambda: image)


def sized(image: tf.Tensor, side: int) -> tf.Tensor:
    """Return images [n, side, side, c], resized to `side` if their size differs."""
    return image if image.shape[1] == side else resize(image, side, side)


def resize(image: tf.Tensor, height: int | tf.Tensor, width: int | tf.Tensor) -> tf.Tensor:
    """Resize images [n, h, w, c] of any number type to float32: bilinear, with half-pixel centres."""
    return tf.raw_ops.ResizeBilinear(images=image, size=tf.stack([height, width]), half_pixel_centers=True)
