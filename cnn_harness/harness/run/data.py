"""Find the data set of a run: first its name, without opening a file, and then its images.

Other modules of the harness use only this module to look up files in `Datasets/`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from cnn_harness.base import plugins
from cnn_harness.base.errors import DataError, OptionError
from cnn_harness.base.fields import short
from cnn_harness.Datasets._spec import DataSource, OpenRequest
from cnn_harness.Datasets.sources.locate import infer
from cnn_harness.Datasets.sources.registry import published_spec, table
from cnn_harness.harness.options.sections import DatasetOptions

SPLIT_FOLDERS = ("train_dir", "validation_dir")
GENERATED_VALIDATION = 512  # enough identical images to measure speed; 50,000 take an hour


class NoDataSet(OptionError):
    """The call names no data set."""


def name_of(
    dataset: str | None, data_dir: str | None, environ: Mapping[str, str], where: str = "", train_dir: str | None = None
) -> tuple[str, str | None]:
    """Return the name of the data set, and text on how it was inferred, or None if the call names it."""
    known = sorted(table("DATASETS"))
    if dataset is not None:
        if dataset.lower() not in known:
            prefix = f"{where}: " if where else ""
            hint = plugins.did_you_mean(dataset, known)
            raise OptionError(f"{prefix}no data set '{short(dataset)}'{hint}", f"Available: {', '.join(known)}")
        return dataset.lower(), None
    if train_dir:
        return "imagefolder", f"implied by --train-dir {train_dir}"

    if data_dir:
        return infer(data_dir), f"inferred from --data-dir {data_dir}"
    if environ.get("DATA_DIR"):
        return infer(
            environ["DATA_DIR"], "the environment variable DATA_DIR"
        ), "inferred from the environment variable DATA_DIR"
    raise NoDataSet(
        "no data set given; give --data-dir FOLDER, or --dataset fashion-mnist, which is included",
        f"Try: python train.py --config quickstart\nAvailable: {', '.join(known)}",
    )


def family(name: str) -> str:
    """Return "cifar" for a data set of 32-pixel images, otherwise "imagenet"; models have defaults for each."""
    return "cifar" if published_spec(name).image_size == 32 else "imagenet"


def channels(options: DatasetOptions) -> int:
    """Return the number of channels of an image on the device: 3, or 4 with --fused-preprocessing of photos."""
    return 4 if options.fused_preprocessing and family(options.dataset) == "imagenet" else 3


def open_source(options: DatasetOptions, environ: Mapping[str, str]) -> DataSource:
    """Open the data set and count its images. For random data, no files are opened."""
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
    """Return --train-dir and --validation-dir for the record: relative to --data-dir if inside it, otherwise absolute."""

    def recorded(given: str | None) -> str | None:
        if given is None or (options.data_dir and os.path.isdir(os.path.join(options.data_dir, given))):
            return given if given is None or not os.path.isabs(given) else _within(options.data_dir, given)
        return _within(options.data_dir, os.path.abspath(given))

    return {name: recorded(getattr(options, name)) for name in SPLIT_FOLDERS}


def _within(folder: str | None, place: str) -> str:
    top = os.path.abspath(folder) if folder else place + os.sep
    return os.path.relpath(place, top) if os.path.commonpath((top, place)) == top else place


def described(options: DatasetOptions) -> DataSource:
    """Return random images in the sizes and numbers of the data set."""
    from cnn_harness.Datasets.sources.generated import GeneratedSource

    spec = published_spec(options.dataset)
    spec = replace(spec, train_images=max(1, spec.train_images * options.dataset_percentage_to_use // 100))
    if family(options.dataset) == "imagenet":
        classes = options.num_classes or spec.num_classes
        spec = replace(spec, validation_images=GENERATED_VALIDATION, num_classes=classes)
    return GeneratedSource(spec)


def for_predictions(options: DatasetOptions, environ: Mapping[str, str]) -> DataSource:
    """Return random images with the class names of the data set."""
    request = OpenRequest(
        options.data_dir, environ, num_classes=options.num_classes, train_dir=options.train_dir,
        validation_dir=options.validation_dir,
    )  # fmt: skip
    source = described(options)
    names = table("CLASS_NAMES").get(options.dataset)
    try:
        class_names = names(request) if names else ()
    except DataError:  # without the folder, predictions show class numbers
        return source
    if not class_names or options.num_classes not in (None, len(class_names)):
        return source
    return type(source)(replace(source.spec, num_classes=len(class_names), class_names=class_names))
