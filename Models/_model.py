"""The interface of model plug-ins. A file NAME.py in this folder must define these names to be used as `--model NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cnn_harness.Models._segments import Segment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = bool | int | float | str | None  # the value of an option


class Model(Protocol):
    """The module of a model. Every table has a row for each family of data: "cifar" (32 pixels) and "imagenet" (photos)."""

    TITLE: str  # the published name, which is a heading in --help.
    Options: type  # a frozen dataclass; each field is one of the model's options, declared by `base.fields.opt`.
    DEFAULTS: Mapping[str, Mapping[str, Value]]  # family -> defaults of the model's options and of common options.
    # Map a family to one number, or to a number for each update rule in lower case.
    LEARNING_RATE_EXPONENTS: Mapping[str, float | Mapping[str, float]]
    NOT_DECAYED: Mapping[str, Sequence[str]]  # family -> parts of the names of variables without weight decay

    def sizes(self, family: str) -> Sequence[int | str]:
        """Return all values of --model-size; () if the model has only one size."""

    def image_size(self, options: DataclassInstance, family: str) -> int:
        """Return the default of --image-size in pixels."""

    def build(self, options: DataclassInstance, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
        """Return the network as segments; pipelines can be cut between them.

        If `two_pass` is true, norms compute the variance from centred values.
        """

    def run_name(self, options: DataclassInstance, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
        """Return the name of a run directory without its random suffix, built from these parts."""

    # A model may also define notes(options) -> list[str], which returns lines about its options for the log.
