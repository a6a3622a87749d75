"""Rules on the data set, its pictures and their way to the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from base import plugins
from base.errors import OptionError
from Datasets._spec import DataSource
from Datasets.sources.catalogue import published_spec
from harness.options.sections import DatasetOptions, RunOptions, flag
from harness.run.data import family

if TYPE_CHECKING:
    from harness.run.rule_tables import Resolved


def classes(options: RunOptions) -> None:
    """A set of small pictures knows its classes itself."""
    dataset = options.dataset
    known = published_spec(dataset.dataset).num_classes
    if dataset.num_classes not in (None, known) and family(dataset.dataset) != "imagenet":
        raise OptionError(
            f"--num-classes {dataset.num_classes} contradicts --dataset {dataset.dataset}, which has {known} classes; "
            "leave it out, or keep the data set of the run that recorded it"
        )


def percentage(options: RunOptions) -> None:
    """Only photographs lie in shards."""
    dataset = options.dataset
    if dataset.dataset_percentage_to_use < 100 and family(dataset.dataset) != "imagenet":
        raise OptionError(
            f"--dataset-percentage-to-use {dataset.dataset_percentage_to_use} takes a part of ImageNet's shards, and "
            f"{dataset.dataset} has none; leave it out"
        )


def predicted_alone(resolved: Resolved) -> None:
    """Photographs are few: one process names them, and several would do it each."""
    run = resolved.run
    if run.options.checkpoint.predict and run.cluster.size > 1:
        alone = "start it without poprun" if run.cluster.by_poprun else "leave out --distributed"
        raise OptionError(f"--predict names photographs in one process, and {run.cluster.size} were started: {alone}")


def model_notes(resolved: Resolved) -> Iterable[str]:
    """Notes of the model's own."""
    options = resolved.run.options
    model = plugins.load("Models", options.main.model)
    return model.notes(options.model) if hasattr(model, "notes") else ()


def mixed_bytes(resolved: Resolved) -> None:
    """Mixed pictures have fractions, which bytes cannot hold."""
    options = resolved.run.options.dataset
    if options.eight_bit_io and options.hostside_image_mixing and options.mixes:
        raise OptionError(
            "--eight-bit-io sends whole numbers, and --hostside-image-mixing makes others of them; mix on the device"
        )


def photographs_only(resolved: Resolved) -> Iterator[str]:
    """Options of records and of photographs' preprocessing beside a set of small pictures."""
    options = resolved.run.options.dataset
    if family(options.dataset) == "imagenet":
        return
    switches = {
        "--fused-preprocessing": options.fused_preprocessing,
        f"--shuffle-block {options.shuffle_block}": options.shuffle_block > 1 and not options.random_data,
        f"--skip-bad-records {options.skip_bad_records}": options.skip_bad_records > 0 and not options.random_data,
    }
    for words, on in switches.items():
        if on:
            yield f"{words} is ignored: {options.dataset} has no photographs"


def validation_split(resolved: Resolved) -> None:
    """Only a folder of pictures is split; every other data set has pictures for validation of its own."""
    options = resolved.run.options.dataset
    if options.validation_split and options.dataset != "imagefolder":
        raise OptionError(
            f"--validation-split {options.validation_split:g} is for folders of --dataset imagefolder: {options.dataset} "
            "has pictures for validation of its own; leave it out"
        )


def shuffled(resolved: Resolved) -> Iterator[str]:
    """Blocks of neighbouring records are permuted, so one block is never out of order."""
    options, images = resolved.run.options.dataset, resolved.run.data_source.spec.train_images
    if family(options.dataset) == "imagenet" and options.shuffle_block >= images > 1:
        yield (
            f"--shuffle-block {options.shuffle_block} is not below the {images:,} records of the training set: every epoch "
            "takes them in the same order"
        )


def normalised_on_device(resolved: Resolved) -> Iterator[str]:
    """Bytes and fused preprocessing leave the host nothing to normalise."""
    options = resolved.run.options.dataset
    on_device = [name for name in ("eight_bit_io", "fused_preprocessing") if getattr(options, name)]
    if family(options.dataset) == "imagenet" and options.hostside_norm and on_device:
        yield f"--hostside-norm is ignored: {flag(on_device[0])} normalises on the device"


def mixing(resolved: Resolved) -> Iterator[str]:
    """Mixup and cutmix need two different pictures."""
    options, words = resolved.run.options.dataset, _words_of_mixing(resolved.run.options.dataset)
    if not words:
        if options.hostside_image_mixing:
            yield "--hostside-image-mixing changes nothing: no pictures are mixed"
    elif not options.mixes:
        yield f"{' and '.join(words)} is off: all pictures of generated and synthetic data are alike"
    else:
        check_mixable(options, resolved.run.plan.micro_batch_size)


def check_mixable(options: DatasetOptions, micro_batch_size: int) -> None:
    """OptionError for micro-batches of which no picture has another one to be mixed with."""
    if micro_batch_size < options.least_micro_batch:
        raise OptionError(
            f"{_words_of_mixing(options)[0]} mixes the pictures of one micro-batch, and --micro-batch-size "
            f"{micro_batch_size} leaves none to mix with; give {options.least_micro_batch} or more"
        )


def _words_of_mixing(options: DatasetOptions) -> list[str]:
    """The options that mix pictures."""
    mixup = [f"--mixup-alpha {options.mixup_alpha:g}"] * (options.mixup_alpha > 0)
    return mixup + [f"--cutmix-lambda {options.cutmix_lambda:g}"] * (options.cutmix_lambda < 1)


def cutmix_version(resolved: Resolved) -> Iterator[str]:
    """Version 1 keeps the whole picture with probability 1.55 lambda - 0.96, and else a part that lambda has no say in."""
    options = resolved.run.options.dataset
    if options.cutmix_version == 1 and options.mixes and 1.55 * options.cutmix_lambda < 0.96:
        yield (
            f"--cutmix-lambda {options.cutmix_lambda:g} does with --cutmix-version 1 what any up to 0.619 (0.96 / 1.55) "
            "does: pictures keep 0.77 of their area on average; version 2 keeps the given part"
        )
    if options.cutmix_lambda == 1 and resolved.run.options.given("cutmix_version"):
        yield f"{resolved.run.options.words('cutmix_version')} changes nothing: --cutmix-lambda 1 is no cutmix"


def pictures_to_learn_from(resolved: Resolved) -> Iterator[str]:
    """Two classes at least, and a picture of each."""
    spec = resolved.run.data_source.spec
    if resolved.run.options.dataset.dataset_benchmark:
        return
    if spec.num_classes < 2:
        raise OptionError(
            f"data set {spec.name} has one class: every answer is right, and nothing is learnt; give pictures of two "
            "classes or more, each in a folder or under a label of its own"
        )
    if spec.train_images < spec.num_classes:
        yield (
            f"warning: data set {spec.name} has {spec.num_classes} classes and {spec.train_images} training pictures: some "
            "class has none; --num-classes says how many there are where the files do not"
        )


def pictures_to_validate_on(resolved: Resolved) -> Iterator[str]:
    """A training that validates needs pictures for it."""
    options, source = resolved.run.options, resolved.run.data_source
    if options.checkpoint.validation and not source.spec.validation_images and not options.dataset.dataset_benchmark:
        yield (
            f"warning: data set {source.spec.name}: {_reason(source)}; or train with --no-validation: nothing tells how "
            "good the network is on pictures that it has not seen"
        )


def nothing_to_validate_on(resolved: Resolved) -> None:
    """A validation needs pictures, those to be named aside."""
    source = resolved.run.data_source
    if not source.spec.validation_images and not resolved.run.options.checkpoint.predict:
        raise OptionError(f"data set {source.spec.name}: {_reason(source)}")


def _reason(source: DataSource) -> str:
    return getattr(source, "missing", "") or "it has no pictures for validation here"


def unread_folder(resolved: Resolved) -> Iterator[str]:
    """Random pictures beside a folder of data."""
    options = resolved.run.options
    if options.dataset.random_data and options.given("data_dir") and options.given("dataset"):
        kind = "--generated-data" if options.dataset.generated_data else "--synthetic-data"
        yield f"--data-dir {options.dataset.data_dir} is not read: {kind} makes the pictures"


def options_of_photographs(resolved: Resolved) -> Iterator[str]:
    """Small pictures are standardised one by one."""
    options = resolved.run.options
    if family(options.dataset.dataset) == "imagenet":
        return
    for name in ("normalise_input", "symmetric_input", *["hostside_norm"] * (not options.dataset.synthetic_data)):
        if options.given(name) and getattr(options.dataset, name):
            yield f"{flag(name)} changes nothing: {options.dataset.dataset} standardises every picture"
