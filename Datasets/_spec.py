"""The contract of data sets: description, request to open, request for a stream, and opened source.

Nothing here imports TensorFlow, so that data are found and counted, and errors reported, without delay.
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
    """The description of a data set: sizes, class names and properties of its images."""

    name: str
    num_classes: int
    image_size: int | None  # side of the records' images in pixels; None: any size (the model decides)
    train_images: int
    validation_images: int
    class_names: tuple[str, ...] = ()
    class_images: tuple[int, ...] = ()  # training images per class; (): only the records tell.
    first_label: int = 1  # label of the first class in the records.
    notes: tuple[str, ...] = ()  # lines for the log, about the files.
    frame: int = 0  # pixels of zeros that were added on each side of the published images.
    standardised: bool = False  # each image has mean 0, deviation 1 in the stream. False: use channel means.
    precision: str | None = None  # default; None: that of the recipes published with these data.

    @property
    def labels(self) -> range:
        """Return the valid labels of records, in the order of the classes."""
        return range(self.first_label, self.first_label + self.num_classes)


@dataclass(frozen=True)
class OpenRequest:
    """The place of the data, and the part to use.

    `percentage`: the share of the shards to use, from the first one.
    `num_classes`: the number of classes, if the files do not tell it.
    `skip_bad`: the number of unusable records and damaged places to skip, each with a warning.
    `validation_split`: the fraction of every class folder that is used for validation instead of training.
    `train_dir`, `validation_dir`: the folders of the splits, with one folder per class, in `data_dir` or elsewhere.
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

    `batch_size`: samples per batch. In training, those of a pass: micro-batch x fold x the replicas that share batch
    norm. In validation, a micro-batch.
    `start`: position of the first sample in the endless order of epochs (training only). Position p is element
    p mod N of epoch p div N, and element i of epoch e is record permuted(i, e).
    `shard_block`, `shard_stride`: with several instances, the stream holds the first `shard_block` of every `shard_stride`
    positions, counted from `start`; 0 means every position. A block is one micro-batch per replica of the instance; in
    validation, one micro-batch.
    `eight_bit_io`: send images as uint8 (fractions are cut off) and normalise them in `on_device`, regardless of
    `hostside_norm`. Standardised data sets then send 32 x 32 images with "moments".
    `shuffle_block`: number of neighbouring records that stay together in the order of an epoch.
    `augment`: False applies evaluation preprocessing to the training stream.
    `policy`: "none", "trivial" or "rand"; "rand" uses `magnitude`, 0 to 10. Only if `augment`.
    `colour_jitter`: largest change of brightness, contrast and saturation, 0 to 1. Only if `augment`.
    `random_erasing`: a probability. Only if `augment`.
    `normalise_input`, `symmetric_input`: the normalisation of photos; neither one: subtract the channel means.
    `image_mean`, `image_std`: for pixels from 0 to 1, red, green and blue; (): use the two switches above.
    `fused_preprocessing`: `on_device` pads photos to four channels, the last one zero.
    `hostside_norm`: normalise in the stream rather than in `on_device`.
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

# a stage of the input pipeline: name, function that returns the stream up to this stage, images per element
InputStage = tuple[str, Callable[[], "tf.data.Dataset"], int]


class DataSource(Protocol):
    """An opened data set, with its records counted."""

    spec: DataSpec

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        """Return an endless stream of {"image": [batch, side, side, 3] float32, "label": [batch] int32,
        "position": [batch] int64}; standardised images with `eight_bit_io` also have "moments": [batch, 4] float32."""

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        """Return a stream of every image once, in order. Zero images with label -1 pad the last batch."""

    def training_in_order(self) -> DataSource:
        """Return this data set with the training images in place of the validation images."""

    def stages(self, request: ReadRequest, training: bool) -> list[InputStage]:
        """Return the stages of the stream; the last one is the complete stream."""

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """Finish the preprocessing in the device's graph: float32 [batch, side, side, 3], or 4 channels with
        `fused_preprocessing`."""


class Records(Protocol):
    """Numbered records, read by a stream of photos."""

    def __len__(self) -> int: ...

    def name(self, record: int) -> str:
        """Return the file and number of a record, for messages."""

    def image_file(self, record: int) -> str:
        """Return the name of the original image file, or `name` if it is unknown."""

    def payload(self, record: int) -> bytes:
        """Return a serialised tf.train.Example; raise DataError if it cannot be read."""


def digest(splits: Iterable[tuple[int, Callable[[int], bytes]]]) -> str:
    """Return a digest (12 hex digits) of at most _SAMPLED records per split, independent of file names.

    Each split is its number of records and a function that reads record i.
    """
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
