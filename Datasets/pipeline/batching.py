"""Functions for all streams: positions in the endless order of epochs, chunks of micro-batches, and prefetching.

A stream depends only on its request; it has no shuffle buffer and no random state. A stream that starts at a later
position is therefore the rest of the same stream, for any number of threads.

Streams call Python (`tf.numpy_function`), so they need an initializable iterator in the process that built them.
"""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf

from cnn_harness.base import draws
from cnn_harness.Datasets._spec import ReadRequest

_ENDLESS = 1 << 60
_CHUNK_SAMPLES = 256  # with fewer samples, the overhead per call exceeds the work on 32 x 32 images
_CHUNK_BYTES = 16 << 20
_PREFETCH = 2


def sample_position(request: ReadRequest, sample: tf.Tensor) -> tf.Tensor:
    """Return the position of the sample with number `sample` in a stream; works with tensors and numpy arrays."""
    if not request.shard_stride:
        return request.start + sample
    return request.start + sample // request.shard_block * request.shard_stride + sample % request.shard_block


def validation_micro_batches(request: ReadRequest, size: int) -> int:
    """Return the number of micro-batches that this process reads if there are `size` samples in total."""
    total = -(-size // request.batch_size)
    if not request.shard_stride:
        return total
    return len(range(request.start // request.batch_size, total, request.shard_stride // request.shard_block))


def training_positions(request: ReadRequest, chunk: int) -> tf.data.Dataset:
    """Return an endless stream of vectors with `chunk` positions, int64."""
    samples = tf.data.Dataset.range(0, _ENDLESS, chunk)
    return samples.map(lambda first: sample_position(request, first + tf.range(chunk, dtype=tf.int64)))


def record_and_epoch(position: tf.Tensor, size: int, seed: int, block: int = 1) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the record at each position [n], and the epoch; both int64 [n]. There are `size` records.

    Blocks of `block` neighbouring records are permuted as a whole. The last, incomplete block is inserted at a random
    place between the other blocks.
    """
    epoch, index = position // size, position % size
    key, block = draws.key(seed, "data/order"), min(block, size)
    if block == 1:
        return draws.permuted(index, epoch, size, key), epoch
    blocks, rest = divmod(size, block)
    before = block * tf.cast(draws.uniform_below(blocks + 1, draws.key(seed, "data/order-rest"), epoch), tf.int64)
    index_in_blocks = tf.where_v2(index < before, index, tf.maximum(index - rest, 0))  # skips the incomplete block
    record = draws.permuted(index_in_blocks // block, epoch, blocks, key) * block + index_in_blocks % block
    in_rest = tf.logical_and(index >= before, index < before + rest)
    return tf.where_v2(in_rest, blocks * block + index - before, record), epoch


def micro_batches_per_chunk(request: ReadRequest) -> int:
    """Return the number of micro-batches that one call reads. This number does not affect the results."""
    sample_bytes = 4 * 3 * request.image_size**2
    samples = min(_CHUNK_SAMPLES, _CHUNK_BYTES // sample_bytes)
    return max(1, samples // request.batch_size)


def num_parallel_calls(request: ReadRequest) -> int:
    """Return the requested number of parallel calls, at most one per processor."""
    return max(1, min(request.pipeline_num_parallel, os.cpu_count() or 1))


def split_chunks(stream: tf.data.Dataset, per_chunk: int, batch_size: int) -> tf.data.Dataset:
    """Split elements [per_chunk * batch_size, ...] into micro-batches [batch_size, ...]."""
    if per_chunk == 1:
        return stream

    def rows(element: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(x, [per_chunk, batch_size, *x.shape[1:]]) for name, x in element.items()}

    return stream.map(rows).unbatch()


def prefetched(stream: tf.data.Dataset) -> tf.data.Dataset:
    """Add a small buffer, so that the next micro-batch is prepared while the device works on this one."""
    return stream.prefetch(_PREFETCH)
