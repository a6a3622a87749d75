"""The contract of a file of this folder, to be found as `--model NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from Models._segments import Segment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = bool | int | float | str | None  # of an option


class Model(Protocol):
    """A module. Families of data are "cifar" (32 pixels) and "imagenet" (photographs); every table has a row for each."""

    TITLE: str  # the published name, a heading of --help
    Options: type  # a frozen dataclass of `base.fields.opt`: the model's own options
    DEFAULTS: Mapping[str, Mapping[str, Value]]  # of options, its own and common ones, by family
    # by family: one number, or one for each update rule in lower case
    LEARNING_RATE_EXPONENTS: Mapping[str, float | Mapping[str, float]]
    NOT_DECAYED: Mapping[str, Sequence[str]]  # by family: parts of names of variables without weight decay

    def sizes(self, family: str) -> Sequence[int | str]:
        """Every --model-size; none for a model of one size."""

    def image_size(self, options: DataclassInstance, family: str) -> int:
        """Pixels of a side, unless --image-size says otherwise."""

    def build(self, options: DataclassInstance, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
        """The network in parts that a pipeline may cut at. `two_pass`: norms take the variance of centred values."""

    def run_name(self, options: DataclassInstance, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
        """The name of a run's folder without its random end, from these parts."""

    # and, if there is something to say of the options in the log's head: def notes(options) -> list[str]
