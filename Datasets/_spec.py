"""The interface of data sets: the description, the request to open, the request for a stream, and the opened source.

This file does not import TensorFlow, so that data are found and counted, and errors reported, without delay.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from cnn_harness.base.errors import DataError

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """The description of a data set: sizes, class names and properties of its images."""

    name: str
    num_classes: int
    image_size: int | None  # side of the stored images in pixels; None: images may have any size.
    train_images: int
    validation_images: int
    class_names: tuple[str, ...] = ()
    class_images: tuple[int, ...] = ()  # training images of each class; () if they are not counted.
    first_label: int = 1  # label of the first class in the records.
    notes: tuple[str, ...] = ()  # lines about the files, for the log.
    frame: int = 0  # number of zero pixels that were added on each side of the published images.
    standardised: bool = False  # the stream gives each image mean 0 and deviation 1; otherwise it uses channel means.
    precision: str | None = None  # default of --precision; None: the published recipes decide.

    @property
    def labels(self) -> range:
        """Return the valid labels of records, in the order of the classes."""
        return range(self.first_label, self.first_label + self.num_classes)


@dataclass(frozen=True)
class OpenRequest:
    """The location of the data, and the share to use.

    `percentage` is the share of the shards to use, in per cent, beginning with the first shard.
    `num_classes` is the number of classes, if the files do not contain it.
    `skip_bad` is the number of damaged records to skip, each with a warning, before the run stops.
    `validation_split` is the fraction of every class folder that is used for validation instead of training.
    `train_dir` and `validation_dir` are folders that contain one folder per class, in `data_dir` or elsewhere.
    """

    data_dir: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    percentage: int = 100
    num_classes: int | None = None
    skip_bad: int = 0
    validation_split: float = 0.0
    train_dir: str | None = None
    validation_dir: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A request for a stream of batches.

    `batch_size` is the number of samples per batch. A validation batch is a micro-batch. A training batch has
    micro-batch x fold x (number of replicas that share batch norm) samples.
    `start` is the position of the first training sample in the endless order of epochs. With N records, position p is
    element p mod N of epoch p div N; element i of epoch e is record permuted(i, e).
    `shard_block` and `shard_stride` divide the samples between several processes (instances). The stream contains the
    first `shard_block` of every `shard_stride` positions, counted from `start`; 0 means every position. A block is one
    micro-batch per replica of the process; in validation, one micro-batch.
    `eight_bit_io` sends images as uint8 (fractions are cut off) and normalises them in `on_device`, regardless of
    `hostside_norm`. Standardised data sets then send 32 x 32 images with "moments".
    `shuffle_block` is the number of neighbouring records that stay together when an epoch is shuffled.
    `augment` is False if the training stream uses the preprocessing of validation, without random changes.
    `policy` is "none", "trivial" or "rand"; "rand" uses `magnitude`, 0 to 10.
    `colour_jitter` is the largest change of brightness, contrast and saturation, 0 to 1.
    `random_erasing` is the probability of erasing a rectangle.
    `normalise_input` and `symmetric_input` choose the normalisation of photos. If both are False, channel means are
    subtracted.
    `image_mean` and `image_std` replace these two switches, unless they are (). The values are for red, green and blue
    pixels from 0 to 1.
    `fused_preprocessing` makes `on_device` add a fourth channel of zeros to photos.
    `hostside_norm` normalises in the stream rather than in `on_device`.
    """

    batch_size: int
    image_size: int
    seed: int
    start: int = 0
    shard_block: int = 0
    shard_stride: int = 0
    augment: bool = True
    policy: str = "none"
    magnitude: float = 9.0
    colour_jitter: float = 0.0
    random_erasing: float = 0.0
    hostside_norm: bool = False
    normalise_input: bool = False
    symmetric_input: bool = False
    image_mean: tuple[float, ...] = ()
    image_std: tuple[float, ...] = ()
    eight_bit_io: bool = False
    fused_preprocessing: bool = False
    shuffle_block: int = 1
    pipeline_num_parallel: int = 48
    dataset_cache: bool = True


_SAMPLED = 64  # number of records per split that are read before a run

# An input pipeline consists of stages. A stage has a name, a function that returns the stream after this stage, and the
# number of images per element.
InputStage = tuple[str, Callable[[], "tf.data.Dataset"], int]


class DataSource(Protocol):
    """An opened data set, with its records counted."""

    spec: DataSpec

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        """Return an endless stream of {"image": [batch, side, side, 3] float32, "label": [batch] int32,
        "position": [batch] int64}. For standardised images with `eight_bit_io`, add "moments": [batch, 4] float32."""

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        """Return a stream of every image once, in order. Zero images with label -1 pad the last batch."""

    def training_in_order(self) -> DataSource:
        """Return a data set whose validation stream gives the training images in file order."""

    def with_held_out(self, records: Sequence[int]) -> DataSource:
        """Return a data set of the training images: validation with these records, training on the others."""

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        """Return the stages of the stream; the last one is the complete stream."""

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Finish the preprocessing in the device's graph.

        Return float32 [batch, side, side, 3], or 4 channels with `fused_preprocessing`.
        """


class Records(Protocol):
    """Numbered records, read by a stream of photos."""

    def __len__(self) -> int: ...

    def name(self, record: int) -> str:
        """Return the file and number of a record, for messages."""

    def image_file(self, record: int) -> str:
        """Return the name of the original image file, or `name` if it is unknown."""

    def payload(self, record: int) -> bytes:
        """Return a serialised tf.train.Example; raise DataError if it cannot be read."""


@dataclass(frozen=True)
class Part:
    """Some of the records of `whole`, in this order."""

    whole: Records
    records: Sequence[int]

    def __len__(self) -> int:
        return len(self.records)

    def name(self, record: int) -> str:
        return self.whole.name(self.records[record])

    def image_file(self, record: int) -> str:
        return self.whole.image_file(self.records[record])

    def payload(self, record: int) -> bytes:
        return self.whole.payload(self.records[record])


def digest(splits: Iterable[tuple[int, Callable[[int], bytes]]]) -> str:
    """Return a digest (12 hex digits) of at most _SAMPLED records per split, independent of file names.

    A split is given by its number of records and a function that reads record i.
    """
    hasher = hashlib.blake2b(digest_size=6)
    for count, read in splits:
        for i in sampled(count):
            try:
                record = read(i)
            except DataError:
                record = b"damaged"  # training reports the damage later
            hasher.update(f"{count} {i} {len(record)} ".encode() + record)
    return hasher.hexdigest()


def sampled(count: int) -> list[int]:
    """Return at most _SAMPLED numbers below `count`, evenly spaced."""
    return sorted({k * (count - 1) // (_SAMPLED - 1) for k in range(_SAMPLED)} if count else ())


def whole_stream(source: DataSource, request: ReadRequest, training: bool) -> list[InputStage]:
    """Return the whole stream as a single stage."""
    return [("host", partial(source.train if training else source.validation, request), request.batch_size)]
