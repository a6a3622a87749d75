"""The contract of data sets: a description, a request to open one, a request for a stream, and the opened source.

Nothing here imports TensorFlow: finding and counting data, and every error about it, must answer at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from base.errors import DataError

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Sizes and names of a data set, as models and the length of a training need them."""

    name: str
    num_classes: int
    image_size: int | None  # the records' own side in pixels; None: pictures of any size (the model decides)
    train_images: int
    validation_images: int
    class_names: tuple[str, ...] = ()
    class_images: tuple[int, ...] = ()  # of training, in each class; () where only the records tell
    first_label: int = 1  # in the records: that of the first class
    notes: tuple[str, ...] = ()  # lines for the log, about the files
    frame: int = 0  # pixels of zeros on each side that the published pictures were given
    standardised: bool = False  # every image to mean 0, deviation 1 in the stream; else channel means, on the device
    precision: str | None = None  # where nobody gives one; None: of the recipes that were published with these data

    @property
    def labels(self) -> range:
        """The labels that records may have, in the order of the classes."""
        return range(self.first_label, self.first_label + self.num_classes)


@dataclass(frozen=True)
class OpenRequest:
    """The place of the data, and the part to use.

    `percentage`: the share of the shards to use, from the first on. `num_classes`: the number of classes, where the files do
    not have it. `skip_bad`: the number of unusable records and damaged places to pass over, each with a line on
    standard error and in the run's log. `validation_split`: the part of every class of a folder that validates instead of
    training. `train_dir`, `validation_dir`: the folders of splits whose folders are classes, in `data_dir` or elsewhere.
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
    """A stream of batches.

    `batch_size`: samples of one batch: those of a pass in training (micro-batch x fold x the replicas that share batch
    norm), a micro-batch in validation.
    `start`: position of the first sample in the endless epoch order (training only): position p is element
    p mod N of epoch p div N, and element i of epoch e is record permuted(i, e).
    `shard_block`, `shard_stride`: with several instances, the stream holds the first `shard_block` of every `shard_stride`
    positions, counted from `start`; 0 is every position. A block is one micro-batch of each of an instance's replicas; in
    validation, one micro-batch.
    `eight_bit_io`: images are sent as uint8 (fractions cut off) and normalised by `on_device`, whatever
    `hostside_norm` says. Sets whose images are standardised then send them 32 x 32, with "moments".
    `shuffle_block`: neighbouring records that stay together in the order of an epoch.
    `augment` False: evaluation preprocessing on the training stream.
    `policy`: "none", "trivial" or "rand", the last with `magnitude` 0 to 10; `colour_jitter`: the most that brightness,
    contrast and saturation change, 0 to 1; `random_erasing`: a probability. They change images if `augment` is true.
    `normalise_input`, `symmetric_input`: which normalisation of photographs; neither subtracts the channel means alone.
    `image_mean`, `image_std`: of pixels from 0 to 1, red, green and blue; () leaves the choice to the two switches.
    `fused_preprocessing`: `on_device` pads photographs to four channels, the last one zero.
    `hostside_norm`: the plug-in normalises in its stream; otherwise `on_device` does.
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


_SAMPLED = 64  # records of a split that its digest reads

# a stage of the input pipeline: name, the stream up to its end, pictures in one element of that stream
InputStage = tuple[str, Callable[[], "tf.data.Dataset"], int]


class DataSource(Protocol):
    """An opened data set, its records counted."""

    spec: DataSpec

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        """Endless stream of {"image": [batch, side, side, 3] float32, "label": [batch] int32,
        "position": [batch] int64}; "moments": [batch, 4] float32 where `eight_bit_io` needs it."""

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        """Every image once, in order; the last batch is filled up with zero images labelled -1."""

    def training_in_order(self) -> DataSource:
        """Return this data set with the training images in the place of the validation images."""

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        """A stream that ends after each of its stages in turn; the last one is whole."""

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """The rest of the preprocessing, in the device's graph: float32 [batch, side, side, 3], 4 channels if
        `fused_preprocessing`."""


class Records(Protocol):
    """Numbered records that a stream of photographs reads."""

    def __len__(self) -> int: ...

    def name(self, record: int) -> str:
        """File and number of the record, for messages."""

    def picture(self, record: int) -> str:
        """The picture's file, or the record's place where that is not known."""

    def payload(self, record: int) -> bytes:
        """A serialised tf.train.Example; a DataError if it cannot be read."""


def digest(splits: Iterable[tuple[int, Callable[[int], bytes]]]) -> str:
    """12 hex digits over at most _SAMPLED records of each split, a split being its count and a reader of record i: equal for
    equal data, whatever the files' names."""
    hasher = hashlib.blake2b(digest_size=6)
    for count, read in splits:
        for i in sorted({k * (count - 1) // (_SAMPLED - 1) for k in range(_SAMPLED)} if count else ()):
            try:
                record = read(i)
            except DataError:
                record = b"damaged"  # training reports the fault
            hasher.update(f"{count} {i} {len(record)} ".encode() + record)
    return hasher.hexdigest()


def whole_stream(source: DataSource, request: ReadRequest, training: bool) -> list[InputStage]:
    """Return the whole stream as a single stage."""
    return [("host", partial(source.train if training else source.validation, request), request.batch_size)]
