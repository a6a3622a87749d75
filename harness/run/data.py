"""The data set of a run: its name, before anything is opened, and then its source.

The one place of the harness that knows how data set plug-ins are found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from base import plugins
from base.errors import DataError, OptionError
from base.fields import short
from Datasets._spec import DataSource, OpenRequest
from Datasets.sources.locate import infer
from Datasets.sources.registry import published_spec, table
from harness.options.sections import DatasetOptions

SPLIT_FOLDERS = ("train_dir", "validation_dir")
GENERATED_VALIDATION = 512  # photographs that are all alike: enough for a speed, and 50,000 take an hour


class NoDataSet(OptionError):
    """The error of a call that names no data set."""


def name_of(
    dataset: str | None, data_dir: str | None, environ: Mapping[str, str], where: str = "", train_dir: str | None = None
) -> tuple[str, str | None]:
    """Return the data set's name, and how it was inferred if it was not given."""
    known = sorted(table("DATASETS"))
    if dataset is not None:
        if dataset.lower() not in known:
            prefix = f"{where}: " if where else ""
            hint = plugins.did_you_mean(dataset, known)
            raise OptionError(f"{prefix}no data set '{short(dataset)}'{hint}", f"There are: {', '.join(known)}")
        return dataset.lower(), None
    if train_dir:
        return "imagefolder", f"which --train-dir {train_dir} is for"

    if data_dir:
        return infer(data_dir), f"inferred from --data-dir {data_dir}"
    if environ.get("DATA_DIR"):
        return infer(environ["DATA_DIR"], "the environment's DATA_DIR"), "inferred from the environment's DATA_DIR"
    raise NoDataSet(
        "no data set given: --dataset fashion-mnist needs no files, the others need --data-dir or DATA_DIR",
        f"Try: python train.py --config quickstart\nThere are: {', '.join(known)}",
    )


def family(name: str) -> str:
    """ "cifar" for 32-pixel pictures, "imagenet" for photographs: which of a model's two tables applies."""
    return "cifar" if published_spec(name).image_size == 32 else "imagenet"


def channels(options: DatasetOptions) -> int:
    """Return the channels of a picture on the device: 3, or 4 with fused preprocessing of photographs."""
    return 4 if options.fused_preprocessing and family(options.dataset) == "imagenet" else 3


def open_source(options: DatasetOptions, environ: Mapping[str, str]) -> DataSource:
    """Find and count the data; generated and synthetic data need no files."""
    if options.random_data:
        return described(options)
    return table("DATASETS")[options.dataset](
        OpenRequest(
            options.data_dir,
            environ,
            percentage=options.dataset_percentage_to_use,
            num_classes=options.num_classes,
            skip_bad=options.skip_bad_records,
            validation_split=options.validation_split,
            train_dir=options.train_dir,
            validation_dir=options.validation_dir,
        )
    )


def recorded_places(options: DatasetOptions) -> dict[str, str | None]:
    """Return the folders of splits as a run records them: relative to the data folder if inside it, else in full."""

    def recorded(given: str | None) -> str | None:
        if given is None or (options.data_dir and os.path.isdir(os.path.join(options.data_dir, given))):
            return given if given is None or not os.path.isabs(given) else _within(options.data_dir, given)
        return _within(options.data_dir, os.path.abspath(given))

    return {name: recorded(getattr(options, name)) for name in SPLIT_FOLDERS}


def _within(folder: str | None, place: str) -> str:
    top = os.path.abspath(folder) if folder else place + os.sep
    return os.path.relpath(place, top) if os.path.commonpath((top, place)) == top else place


def described(options: DatasetOptions) -> DataSource:
    """Return generated data of the data set's sizes."""
    from Datasets.sources.generated import GeneratedSource

    spec = published_spec(options.dataset)
    spec = replace(spec, train_images=max(1, spec.train_images * options.dataset_percentage_to_use // 100))
    if family(options.dataset) == "imagenet":
        classes = options.num_classes or spec.num_classes
        spec = replace(spec, validation_images=GENERATED_VALIDATION, num_classes=classes)
    return GeneratedSource(spec)


def for_predictions(options: DatasetOptions, environ: Mapping[str, str]) -> DataSource:
    """Return the same as `described`, with the class names that the data set's folder has."""
    request = OpenRequest(
        options.data_dir, environ, num_classes=options.num_classes, train_dir=options.train_dir,
        validation_dir=options.validation_dir,
    )  # fmt: skip
    source = described(options)
    names = table("CLASS_NAMES").get(options.dataset)
    try:
        class_names = names(request) if names else ()
    except DataError:  # without the folder predictions have numbers for names
        return source
    if not class_names or options.num_classes not in (None, len(class_names)):
        return source
    return type(source)(replace(source.spec, num_classes=len(class_names), class_names=class_names))
