"""What every data set plug-in speaks: a description, a source that was found, a request for a stream.

Nothing here imports TensorFlow: finding and counting data, and every error about it, must answer at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from base.errors import DataError
from base.storage import input_files

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf


def regular_size(file: Path) -> int:
    """Bytes of a file of data; DataError where there is none that could be read without waiting."""
    try:
        with input_files.opened(file) as stream:
            return os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from None


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Sizes and names of a data set, as models and the length of a training need them."""

    name: str
    num_classes: int
    image_size: int | None  # the records' own side in pixels; None: pictures of any size (the model decides)
    train_images: int
    validation_images: int
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a log says of the files
    standardised: bool = False  # every image to mean 0, deviation 1 in the stream; else channel means, on the device


@dataclass(frozen=True)
class OpenRequest:
    """Where to look for data, and how much of it to use.

    `percentage`: the first so many of a hundred shards. `num_classes`: how many classes the labels have, where the files do
    not say so. `skip_bad`: so many records and damaged places are passed over, and told of on standard error.
    """

    data_dir: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    percentage: int = 100
    num_classes: int | None = None
    skip_bad: int = 0


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """One stream of micro-batches.

    `start`: position of the first sample in the endless epoch order (training only): position p is element
    p mod N of epoch p div N, and element i of epoch e is record permuted(i, e).
    `block`, `period`: with several processes, the stream holds the first `block` of every `period` positions,
    counted from `start`; 0 is every position. In validation a block is a micro-batch.
    `eight_bit`: images are sent as uint8 (fractions cut off) and normalised by `on_device`, whatever
    `host_normalise` says. Sets whose images are standardised then send them 32 x 32, with "moments".
    `shuffle_block`: so many neighbouring records stay together in the order of an epoch.
    `augment` False: evaluation preprocessing on the training stream.
    `unit_normalise`, `symmetric_normalise`: which normalisation of photographs; neither subtracts the channel means alone.
    `fused`: `on_device` pads photographs to four channels, the last one zero.
    `host_normalise`: the plug-in normalises in its stream; otherwise `on_device` does.
    """

    batch_size: int
    image_size: int
    seed: int
    start: int = 0
    block: int = 0
    period: int = 0
    augment: bool = True
    host_normalise: bool = False
    unit_normalise: bool = False
    symmetric_normalise: bool = False
    eight_bit: bool = False
    fused: bool = False
    shuffle_block: int = 1
    parallel_calls: int = 48
    cache: bool = True


_SAMPLED = 64  # records of a split that its digest reads

# of an input pipeline: its name, the stream that ends after it, and the pictures in one element of that
Stage = tuple[str, Callable[[], "tf.data.Dataset"], int]


class DataSource(Protocol):
    """Data that was found and counted."""

    spec: DataSpec

    def train(self, request: ReadRequest) -> tf.data.Dataset:
        """Endless stream of {"image": [batch, side, side, 3] float32, "label": [batch] int32,
        "position": [batch] int64}; "moments": [batch, 4] float32 where `eight_bit` needs it."""

    def validation(self, request: ReadRequest) -> tf.data.Dataset:
        """Every image once, in order; the last micro-batch is filled up with zero images labelled -1."""

    def stages(self, request: ReadRequest, training: bool) -> list[Stage]:
        """A stream that ends after each of its stages in turn; the last one is whole."""

    def on_device(self, image: tf.Tensor, request: ReadRequest, moments: tf.Tensor | None = None) -> tf.Tensor:
        """What is left to do to a micro-batch of images inside the device's graph; float32 [b, side, side, 3]."""


class Records(Protocol):
    """Numbered records that a stream of photographs reads."""

    def __len__(self) -> int: ...

    def name(self, record: int) -> str:
        """Where the record lies, for messages."""

    def payload(self, record: int) -> bytes:
        """A serialised tf.train.Example; a DataError if it cannot be read."""

    def damage(self, record: int) -> str | None:
        """What is wrong with what is stored, if that can be told without decoding."""


def digest(splits: Iterable[tuple[int, Callable[[int], bytes]]]) -> str:
    """Of up to so many records of each split, which are given by their count and a reader: the same wherever the data is the
    same, whatever its files are called."""
    found = hashlib.blake2b(digest_size=6)
    for count, read in splits:
        for i in sorted({k * (count - 1) // (_SAMPLED - 1) for k in range(_SAMPLED)} if count else ()):
            try:
                record = read(i)
            except DataError:
                record = b"damaged"  # whoever trains on it says so
            found.update(f"{count} {i} {len(record)} ".encode() + record)
    return found.hexdigest()


def whole_stream(source: DataSource, request: ReadRequest, training: bool) -> list[Stage]:
    """The stages of a stream that is measured whole."""
    return [("host", partial(source.train if training else source.validation, request), request.batch_size)]
