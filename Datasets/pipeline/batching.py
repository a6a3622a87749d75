"""The part common to all streams: positions in the endless epoch order, chunks of micro-batches, and prefetching.

A stream is a pure function of its request: no buffer is shuffled and no generator keeps a state, so starting at
another position gives the later part of the same stream, on any number of threads.

Streams call Python (`tf.numpy_function`), so they need an initializable iterator in the process that built them.
"""

from __future__ import annotations

import os

import tensorflow.compat.v1 as tf

from base import draws
from Datasets._spec import ReadRequest

_ENDLESS = 1 << 60
_CHUNK_SAMPLES = 256  # below this, per-call overhead outweighs the work on 32 x 32 images
_CHUNK_BYTES = 16 << 20
_PREFETCH = 2


def sample_position(request: ReadRequest, sample: tf.Tensor) -> tf.Tensor:
    """Position of the stream's `sample`-th sample (works on tensors and on numpy arrays)."""
    if not request.shard_stride:
        return request.start + sample
    return request.start + sample // request.shard_block * request.shard_stride + sample % request.shard_block


def validation_micro_batches(request: ReadRequest, size: int) -> int:
    """Micro-batches of `size` samples in this process's share."""
    total = -(-size // request.batch_size)
    if not request.shard_stride:
        return total
    return len(range(request.start // request.batch_size, total, request.shard_stride // request.shard_block))


def training_positions(request: ReadRequest, chunk: int) -> tf.data.Dataset:
    """Endless vectors of `chunk` positions, int64."""
    samples = tf.data.Dataset.range(0, _ENDLESS, chunk)
    return samples.map(lambda first: sample_position(request, first + tf.range(chunk, dtype=tf.int64)))


def record_and_epoch(position: tf.Tensor, size: int, seed: int, block: int = 1) -> tuple[tf.Tensor, tf.Tensor]:
    """The record out of `size` at each position [n], and its epoch; both int64 [n].

    `block` neighbouring records stay together: whole blocks are permuted, and the records that fill no block are put in
    after a random one of them.
    """
    epoch, index = position // size, position % size
    key, block = draws.key(seed, "data/order"), min(block, size)
    if block == 1:
        return draws.permuted(index, epoch, size, key), epoch
    blocks, rest = divmod(size, block)
    before = block * tf.cast(draws.uniform_below(blocks + 1, draws.key(seed, "data/order-rest"), epoch), tf.int64)
    index_in_blocks = tf.where_v2(index < before, index, tf.maximum(index - rest, 0))  # without those that fill no block
    record = draws.permuted(index_in_blocks // block, epoch, blocks, key) * block + index_in_blocks % block
    in_rest = tf.logical_and(index >= before, index < before + rest)
    return tf.where_v2(in_rest, blocks * block + index - before, record), epoch


def micro_batches_per_chunk(request: ReadRequest) -> int:
    """Micro-batches prepared by one call; no result depends on the number."""
    sample_bytes = 4 * 3 * request.image_size**2
    samples = min(_CHUNK_SAMPLES, _CHUNK_BYTES // sample_bytes)
    return max(1, samples // request.batch_size)


def num_parallel_calls(request: ReadRequest) -> int:
    """Parallel calls: the request's, at most one for each processor."""
    return max(1, min(request.pipeline_num_parallel, os.cpu_count() or 1))


def split_chunks(stream: tf.data.Dataset, per_chunk: int, batch_size: int) -> tf.data.Dataset:
    """Elements of [per_chunk * batch_size, ...] as micro-batches of [batch_size, ...]."""
    if per_chunk == 1:
        return stream

    def rows(element: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {name: tf.reshape(x, [per_chunk, batch_size, *x.shape[1:]]) for name, x in element.items()}

    return stream.map(rows).unbatch()


def prefetched(stream: tf.data.Dataset) -> tf.data.Dataset:
    """The stream with a small buffer: the next micro-batch is prepared while the device works on this one."""
    return stream.prefetch(_PREFETCH)
