"""The data set of a run: which one it is, before anything is opened, and then its source.

The one place of the harness that knows how data set plug-ins are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from Datasets._locate import infer
from Datasets._spec import DataSource, OpenRequest
from Datasets.generated import generated, spec_without_data
from harness import plugins
from harness.options import DatasetOptions, OptionError

GENERATED_VALIDATION = 512  # photographs that are all alike: enough for a speed, and 50,000 take an hour
Opener = Callable[[OpenRequest], DataSource]


def openers() -> dict[str, Opener]:
    """Every data set by name."""
    found: dict[str, Opener] = {}
    for plugin in plugins.names("Datasets"):
        found |= getattr(plugins.load("Datasets", plugin), "DATASETS", {})
    return found


def name_of(
    dataset: str | None, data_dir: str | None, environ: Mapping[str, str], where: str = ""
) -> tuple[str, str | None]:
    """The data set's name, and how it was inferred if it was not given."""
    known = sorted(openers())
    if dataset is not None:
        if dataset.lower() not in known:
            prefix = f"{where}: " if where else ""
            hint = plugins.did_you_mean(dataset, known)
            raise OptionError(f"{prefix}no data set '{dataset}'{hint}\nThere are: {', '.join(known)}")
        return dataset.lower(), None
    if data_dir:
        return infer(data_dir), f"inferred from --data-dir {data_dir}"
    if environ.get("DATA_DIR"):
        return infer(environ["DATA_DIR"], "the environment's DATA_DIR"), "inferred from the environment's DATA_DIR"
    raise OptionError(
        "no data set given: --dataset fashion-mnist needs no files, the others need --data-dir or DATA_DIR\n"
        f"Try: python train.py --config quickstart\nThere are: {', '.join(known)}"
    )


def family(name: str) -> str:
    """ "cifar" for 32-pixel pictures, "imagenet" for photographs: which of a model's two tables applies."""
    return "cifar" if spec_without_data(name).image_size == 32 else "imagenet"


def open_source(options: DatasetOptions, environ: Mapping[str, str]) -> DataSource:
    """Finds and counts the data; generated and synthetic data need no files."""
    if options.generated_data or options.synthetic_data:
        return described(options)
    request = OpenRequest(options.data_dir, environ, options.dataset_percentage_to_use, skip_bad=options.skip_bad_records)
    _refuse_percentage(options)
    return openers()[options.dataset](request)


def _refuse_percentage(options: DatasetOptions) -> None:
    if options.dataset_percentage_to_use < 100 and family(options.dataset) != "imagenet":
        raise OptionError(
            f"--dataset-percentage-to-use {options.dataset_percentage_to_use} takes a part of ImageNet's shards, and "
            f"{options.dataset} has none; leave it out"
        )


def described(options: DatasetOptions) -> DataSource:
    """Generated data that looks like the set asked for."""
    _refuse_percentage(options)
    spec = spec_without_data(options.dataset)
    spec = replace(spec, train_images=max(1, spec.train_images * options.dataset_percentage_to_use // 100))
    if family(options.dataset) == "imagenet":
        spec = replace(spec, validation_images=GENERATED_VALIDATION)
    return generated(spec)
