"""The contract of model plug-ins: what a file NAME.py in this folder must define to be used as `--model NAME`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from Models._segments import Segment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = bool | int | float | str | None  # of an option


class Model(Protocol):
    """A module. All tables have a row for each family of data: "cifar" (32 pixels) and "imagenet" (photos)."""

    TITLE: str  # the published name, a heading of --help
    Options: type  # a frozen dataclass of `base.fields.opt` with the model's own options
    DEFAULTS: Mapping[str, Mapping[str, Value]]  # by family: defaults of its own and of common options
    # by family: one number, or one for each update rule in lower case
    LEARNING_RATE_EXPONENTS: Mapping[str, float | Mapping[str, float]]
    NOT_DECAYED: Mapping[str, Sequence[str]]  # by family: variables whose names contain one of these have no weight decay

    def sizes(self, family: str) -> Sequence[int | str]:
        """Return every --model-size; none if the model has only one size."""

    def image_size(self, options: DataclassInstance, family: str) -> int:
        """Return the default of --image-size in pixels."""

    def build(self, options: DataclassInstance, family: str, num_classes: int, two_pass: bool) -> list[Segment]:
        """Return the network as segments; pipelines can be cut between them.

        `two_pass`: norms compute the variance from centred values.
        """

    def run_name(self, options: DataclassInstance, *, micro: str, replicas: str, accumulation: str, precision: str) -> str:
        """Return the name of a run directory without its random suffix, built from these parts."""

    # Optional, for lines about the options at the top of the log: def notes(options) -> list[str]
