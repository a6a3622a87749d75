"""Rules between options, and between options and the run that follows from them.

A rule refuses (OptionError) what cannot work, or warns of what costs a person hours. An option that needs another one says
so where it is declared (`opt(needs=...)`), and one sentence serves all of them. No TensorFlow; before any graph is built.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from base import plugins
from base.errors import OptionError
from Datasets._spec import DataSource
from Datasets.sources.catalogue import published_spec
from emulator.native import library
from emulator.plan.number_formats import BF16, FP16, FP32
from emulator.plan.precision import ALL, FIRST, LAST, is_kernel
from emulator.plan.trace import Trace
from harness.cluster import membership
from harness.options.sections import RECORDED, DatasetOptions, RunOptions, flag
from harness.options.update_rules import SKIPPED, UPDATE_RULES
from harness.run.data import SPLIT_FOLDERS, family, recorded_places
from harness.run.run import Run
from Models import _norms
from Models._layers import TRAINED_PROXY_ROWS

SMALL_MEAN_SQUARE = 1e-20  # of gradients that still move weights
LARGEST_HALF_SCALE = 2.0**20  # beyond this loss scale, most gradients overflow in FP16


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """A run with its options as requested, before poprun and the precision replace some, and the environment."""

    run: Run
    requested: RunOptions
    environ: Mapping[str, str]


Rule = Callable[[Resolved], Iterable[str] | None]
CONDITIONS: Mapping[str, Callable[[Run], bool]] = {  # that options name as what they need, beside other options
    "photos": lambda run: family(run.options.dataset.dataset) == "imagenet",
    "photo files": lambda run: CONDITIONS["photos"](run) and CONDITIONS["data files"](run),
    "data files": lambda run: not run.options.dataset.random_data,
    "frozen batch norms": lambda run: bool(run.frozen_norms),
    "half precision": lambda run: run.plan.precision.rounds_results or run.plan.precision.rounds_operands,
    "several stages": lambda run: len(run.plan.stages) > 1,
    "several replicas": lambda run: run.plan.total_replicas > 1,
    "several processes": lambda run: run.cluster.size > 1,
    "a checkpoint": lambda run: bool(run.options.checkpoint.ckpts_per_epoch or run.options.checkpoint.epochs_per_ckpt),
    "--cutmix-lambda": lambda run: run.options.dataset.cutmix_lambda < 1,
}


def check_run(resolved: Resolved) -> tuple[str, ...]:
    """Return the warnings about a run; OptionError from the first rule that refuses it."""
    rules = (*EVERY_RUN, *(TRAINING if resolved.run.trains else VALIDATION))
    return tuple(note for rule in rules for note in rule(resolved) or ())


# --- Options without effect --------------------------------------------------------------------------------------


def options_without_effect(resolved: Resolved) -> Iterator[str]:
    """Warn of options on the command line that have no effect, because what they need is missing."""
    run, options = resolved.run, resolved.run.options
    fields = {field.name: field for section in options.sections for field in dataclasses.fields(section)}
    reads = UPDATE_RULES[options.training.optimiser].options
    of_rules = {name for rule in UPDATE_RULES.values() for name in rule.options}
    norms = {name: kind for kind in _norms.KINDS if kind not in run.norms for name in kind.reads}
    for name, field in fields.items():
        needs, value = field.metadata.get("needs"), options.values()[name]
        if not options.given(name) or value == field.default:
            continue
        if name in of_rules and name not in reads:
            yield f"{options.words(name)} has no effect with --optimiser {options.training.optimiser}"
        elif name in norms:
            yield f"{options.words(name)} has no effect without {norms[name].title}"
        elif needs and not _is_met(needs, run):
            yield f"{options.words(name)} has no effect without {needs}"


def _is_met(needs: str, run: Run) -> bool:
    """Return whether a condition of CONDITIONS holds, or an option is on ("--wandb"), or has a value ("--fold auto")."""
    if needs in CONDITIONS:
        return CONDITIONS[needs](run)
    name, _, value = needs.removeprefix("--").partition(" ")
    found = run.options.values()[name.replace("-", "_")]
    return str(found) == value if value else bool(found)


# --- Data ----------------------------------------------------------------------------------------------------------


def check_data_options(options: RunOptions) -> None:
    """Refuse classes and shards of a data set of small images, which has its own, before its files are opened, and means
    without deviations."""
    dataset = options.dataset
    if bool(dataset.image_mean) != bool(dataset.image_std):
        name = "image_mean" if dataset.image_mean else "image_std"
        raise OptionError(f"{flag(name)} is given alone; give both --image-mean R G B and --image-std R G B")
    if dataset.image_mean and min(*dataset.image_mean, *dataset.image_std) > 1:
        raise OptionError(
            "--image-mean and --image-std are of pixels from 0 to 255 but must be of pixels / 255; divide them by 255"
        )
    if family(dataset.dataset) == "imagenet":
        return
    known = published_spec(dataset.dataset).num_classes
    if dataset.num_classes not in (None, known):
        raise OptionError(
            f"--num-classes {dataset.num_classes} contradicts --dataset {dataset.dataset}, which has {known} classes; "
            "leave it out, or keep the data set of the run that recorded it"
        )
    if dataset.dataset_percentage_to_use < 100:
        raise OptionError(
            f"--dataset-percentage-to-use {dataset.dataset_percentage_to_use} takes a part of ImageNet's shards, and "
            f"{dataset.dataset} has none; leave it out"
        )


def data_set(resolved: Resolved) -> Iterator[str]:
    """Refuse options that contradict the kind of data; warn of a place of normalisation, or a folder, that is not used."""
    options = resolved.run.options.dataset
    if options.eight_bit_io and options.hostside_image_mixing and options.mixes:
        raise OptionError(
            "--eight-bit-io sends whole numbers, but --hostside-image-mixing makes fractions; mix on the device"
        )
    if options.hostside_norm and (options.eight_bit_io or options.fused_preprocessing):
        yield "--hostside-norm has no effect with --eight-bit-io or --fused-preprocessing, which normalise on the device"
    given = [name for name in ("validation_split", *SPLIT_FOLDERS) if getattr(options, name)]
    if given and options.dataset != "imagefolder":
        raise OptionError(
            f"{flag(given[0])} {getattr(options, given[0])} is for folders of --dataset imagefolder; {options.dataset} has "
            "its own validation images"
        )
    places = recorded_places(options).values()
    if options.data_dir and all(place and os.path.isabs(place) for place in places):
        yield f"--data-dir {options.data_dir} is not read: --train-dir and --validation-dir are elsewhere"


def mixing(resolved: Resolved) -> Iterator[str]:
    """Refuse mixup and cutmix where an image has no other one to be mixed with; warn where all images are the same."""
    options = resolved.run.options.dataset
    if options.mixes:
        check_mixable(options, resolved.run.plan.micro_batch_size)
    elif options.least_micro_batch > 1:
        yield "mixup and cutmix are off: all generated and synthetic images are the same"


def check_mixable(options: DatasetOptions, micro_batch_size: int) -> None:
    """Raise OptionError for micro-batches that are too small for mixup or cutmix."""
    if micro_batch_size < options.least_micro_batch:
        words = (
            f"--mixup-alpha {options.mixup_alpha:g}"
            if options.mixup_alpha > 0
            else f"--cutmix-lambda {options.cutmix_lambda:g}"
        )
        raise OptionError(
            f"{words} mixes the images of one micro-batch, and --micro-batch-size {micro_batch_size} leaves none to mix "
            f"with; give {options.least_micro_batch} or more"
        )


def classes(resolved: Resolved) -> Iterator[str]:
    """Refuse data of one class; warn where some class has no training image, or an update takes images twice."""
    run, spec = resolved.run, resolved.run.data_source.spec
    if run.options.dataset.dataset_benchmark:
        return
    if spec.num_classes < 2:
        raise OptionError(
            f"data set {spec.name} has one class, so there is nothing to learn; give images of two classes or more"
        )
    if spec.train_images < spec.num_classes:
        yield (
            f"warning: data set {spec.name} has {spec.num_classes} classes and {spec.train_images} training images: some "
            "class has none; --num-classes gives their number where the files do not"
        )
    if run.plan.global_batch > spec.train_images:
        yield f"one update takes {run.plan.global_batch} samples: more than the {spec.train_images} images of an epoch"


def validation_images(resolved: Resolved) -> Iterator[str]:
    """Warn where a training that validates has no images for it."""
    options, source = resolved.run.options, resolved.run.data_source
    if options.checkpoint.validation and not source.spec.validation_images and not options.dataset.dataset_benchmark:
        yield f"warning: data set {source.spec.name}: {_missing(source)}; or train with --no-validation"


def nothing_to_validate_on(resolved: Resolved) -> None:
    """Refuse a validation without images, and predictions in several processes."""
    run = resolved.run
    if run.options.checkpoint.predict:
        if run.cluster.size > 1:
            alone = "start it without poprun" if run.cluster.by_poprun else "leave out --distributed"
            raise OptionError(f"--predict works in one process, and {run.cluster.size} were started: {alone}")
    elif not run.data_source.spec.validation_images:
        raise OptionError(f"data set {run.data_source.spec.name}: {_missing(run.data_source)}")


def _missing(source: DataSource) -> str:
    return getattr(source, "missing", "") or "it has no validation images here"


# --- Weight updates ------------------------------------------------------------------------------------------------


def check_filters(options: RunOptions, trace: Trace) -> None:
    """Refuse words of filters that name no variable or layer, and variables that are forced into two formats."""
    device, training = options.device, options.training
    check_matched("--variable-filter", training.variable_filter, trace)
    for word in _only_moving(device.force_weight_to_fp16, trace):
        raise OptionError(f"--force-weight-to-fp16 {word} names only moving statistics, which stay in FP32; leave it out")
    moving = _only_moving(device.force_weight_to_fp32, trace)
    check_matched("--force-weight-to-fp16", device.force_weight_to_fp16, trace)
    check_matched("--force-weight-to-fp32", [word for word in device.force_weight_to_fp32 if word not in moving], trace)
    for name in _trained_names(trace):
        forced = (device.force_weight_to_fp16, device.force_weight_to_fp32)
        words = [next((word for word in each if word in name), "") for each in forced]
        if all(words):
            raise OptionError(
                f"--force-weight-to-fp16 {words[0]} and --force-weight-to-fp32 {words[1]} both name {name}; leave out one"
            )
    kernels = [variable.name for variable in trace.variables if is_kernel(variable.name)]
    for word in device.format_for:
        part = word.rpartition("=")[0]
        if part not in (FIRST, LAST) and not any(part in name for name in kernels):
            parts = sorted({FIRST, LAST, *(part for name in kernels for part in name.split("/")[1:-1])})
            raise OptionError(
                f"--format-for {word}: no convolution's or dense layer's name contains {part}"
                f"{plugins.did_you_mean(part, parts)}; {FIRST} is {kernels[0]}, {LAST} is {kernels[-1]}"
            )


def check_matched(option: str, words: Sequence[str], trace: Trace) -> None:
    """Raise OptionError for a word that no trained variable's name contains."""
    names = _trained_names(trace)
    for word in words:
        if not any(word in name for name in names):
            parts = sorted({part for name in names for part in name.split("/")})
            raise OptionError(
                f"{option} {word}: no trained variable's name contains it{plugins.did_you_mean(word, parts)}; names are "
                f"like {names[0]} and {names[-1]}"
            )


def _trained_names(trace: Trace) -> list[str]:
    return [variable.name for variable in trace.variables if variable.trainable]


def _only_moving(words: Sequence[str], trace: Trace) -> list[str]:
    """Return the words that are in the name of a moving statistic, and in no trained variable's."""
    trained, moving = _trained_names(trace), [variable.name for variable in trace.variables if not variable.trainable]
    return [word for word in words if any(word in name for name in moving) and not any(word in name for name in trained)]


def optimiser(resolved: Resolved) -> Iterator[str]:
    """Refuse a decay of RMSprop outside 0 to 1 and skip lists that match nothing; warn of second moments in FP16."""
    run, training = resolved.run, resolved.run.options.training
    if training.optimiser == "RMSprop":
        training.mean_square_decay(run.plan.global_batch)
        if None not in (training.rmsprop_decay, training.rmsprop_base_decay_exp):
            yield "--rmsprop-base-decay-exp has no effect with --rmsprop-decay"
    listed = f"{training.optimiser.lower()}_skip_list"
    if not run.options.sources.get(listed, RECORDED).startswith(RECORDED):
        rows = [f"{v.name}/{row}" for v in run.trace.variables if v.proxy for row in TRAINED_PROXY_ROWS]
        known = [*(variable.name for variable in run.trace.variables), *rows]
        for word in getattr(training, listed):
            if word not in SKIPPED and not any(word in name for name in known):
                raise OptionError(f"{flag(listed)} {word} matches no variable; their names are like {', '.join(known[:3])}")
    trained = [v for v in run.trace.variables if v.trainable and not v.proxy and run.is_trained(v.name)]
    formats = {run.plan.precision.slot_format(variable) for variable in trained}
    coarsest = max(formats, key=lambda each: each.smallest, default=FP32)
    if run.trains and UPDATE_RULES[training.optimiser].squares and coarsest.smallest > SMALL_MEAN_SQUARE:
        yield (
            f"warning: --optimiser {training.optimiser} keeps mean squares of gradients in {coarsest.name}, where those "
            f"below {coarsest.smallest / 2:.0e} become 0; give --precision 16.32 or --slot-format fp32"
        )


def averages(resolved: Resolved) -> Iterator[str]:
    """Refuse averages of weights, patience and the best checkpoint without the checkpoints and validations they need."""
    training, options = resolved.run.options.training, resolved.run.options.checkpoint
    none = "" if CONDITIONS["a checkpoint"](resolved.run) else "--ckpts-per-epoch 0 writes no checkpoints"
    if none and (training.weight_avg_N or training.weight_avg_exp):
        raise OptionError(f"--weight-avg-N and --weight-avg-exp average checkpoints, but {none}; give 1 or more")
    if options.max_ckpts_to_keep and (training.weight_avg_N or training.weight_avg_exp):
        yield f"--max-ckpts-to-keep {options.max_ckpts_to_keep}: averages take only the checkpoints that are left at the end"
    words = f"--patience {options.patience}" if options.patience else "--keep-best-ckpt" if options.keep_best_ckpt else ""
    unseen = "" if options.validation else "--no-validation is given"
    if not resolved.run.data_source.spec.validation_images:
        unseen = unseen or "the data set has no validation images"
    if words and (unseen or none):
        raise OptionError(f"{words} depends on validation accuracy, but {unseen or none}; leave it out")


def label_smoothing(resolved: Resolved) -> None:
    """Refuse a smoothing that makes the true class no more likely than any other."""
    count = resolved.run.data_source.spec.num_classes
    smoothing = resolved.run.options.training.label_smoothing or 0.0
    if smoothing >= (count - 1) / count:
        raise OptionError(
            f"--label-smoothing {smoothing:g} makes the true class no more likely than any other of {count}; give less "
            f"than {(count - 1) / count:.4g}"
        )


def learning_rate(resolved: Resolved) -> Iterator[str]:
    """Warn of a rate beyond all published ones, of a rate that is always 0, and of a warm-up that is never left."""
    run, training = resolved.run, resolved.run.options.training
    published, warmup = UPDATE_RULES[training.optimiser].highest_rate, getattr(run.options.schedule, "warmup_epochs", 0)
    if not run.highest_rate:
        yield (
            f"warning: the learning rate is 0 in all {run.length.iterations} updates: nothing is learnt; train longer, or "
            "give --warmup-epochs 0"
        )
    elif run.highest_rate > published:
        yield (
            f"warning: the learning rate goes up to {run.highest_rate:.4g}; published ones for --optimiser "
            f"{training.optimiser} stay below {published:g}; see --abs-learning-rate and --base-learning-rate-exponent"
        )
    if run.options.given("warmup_epochs") and warmup >= run.length.epochs and run.highest_rate:
        yield f"warning: --warmup-epochs {warmup:g} is the whole run of {run.length.epochs:.4g} epochs; give more --epochs"


def loss_scale(resolved: Resolved) -> Iterator[str]:
    """Refuse automatic loss scaling where gradients cannot overflow, or must not; warn of a scale that overflows in FP16."""
    run, rule, scale = (
        resolved.run,
        resolved.run.options.training.automatic_loss_scaling,
        resolved.run.options.training.loss_scaling,
    )
    precision, device = run.plan.precision, run.options.device
    if precision.compute == FP16 and scale > LARGEST_HALF_SCALE:
        yield f"warning: --loss-scaling {scale:g} makes gradients overflow in FP16; give less than {LARGEST_HALF_SCALE:.2g}"
    if not rule:
        return
    kernels = [variable.name for variable in run.trace.variables if is_kernel(variable.name)]
    if all(each == FP32 for name in kernels for each in precision.gradients_of(name)):
        raise OptionError(
            f"--automatic-loss-scaling {rule} has nothing to go by: with --precision {precision.name} no gradient can "
            "overflow; leave it out, or give --precision 16.16"
        )
    clash = "--fp-exceptions" if device.fp_exceptions else "--analyse-nans" if precision.checks else ""
    clash = clash or "--saturate-on-overflow" * (rule == "back-off" and precision.saturate_on_overflow)
    if clash:
        raise OptionError(
            f"--automatic-loss-scaling {rule} needs gradients that overflow, and {clash} prevents that; leave one out"
        )


# --- Devices and precision -------------------------------------------------------------------------------------------


def run_name(resolved: Resolved) -> None:
    """Refuse a suffix that is no printable part of a path."""
    suffix = resolved.run.options.logging.name_suffix
    if suffix and (any(part in suffix for part in ("/", "\\", "..")) or not suffix.isprintable()):
        raise OptionError(f"--name-suffix '{suffix}' must not contain / \\ .. or unprintable characters")


def model_notes(resolved: Resolved) -> Iterable[str]:
    """Return the model's own notes on its options."""
    options = resolved.run.options
    model = plugins.load("Models", options.main.model)
    return model.notes(options.model) if hasattr(model, "notes") else ()


def replaced_values(resolved: Resolved) -> Iterator[str]:
    """Report values that poprun or the precision replace, and stages that share one device."""
    run, before, cluster = resolved.run, resolved.requested.device, resolved.run.cluster
    if cluster.replicas is not None and before.replicas not in (1, cluster.replicas, cluster.replicas * cluster.size):
        yield f"--replicas {before.replicas} is replaced by poprun's {cluster.replicas} of {cluster.replicas * cluster.size}"
    if before.stochastic_rounding != run.options.device.stochastic_rounding:
        yield (
            f"--stochastic-rounding {before.stochastic_rounding}: {run.plan.precision.name} has FP32 weights: results and "
            "gradients are rounded at random (all)"
        )
    if run.trains and run.options.device.enable_half_partials and run.plan.precision.rounds_results:
        yield "--enable-half-partials is not emulated: all sums inside an operation are FP32"
    if run.trains and run.options.device.pipeline and run.options.device.shards == 1:
        stages = f"{len(run.plan.stages)} stages" if len(run.plan.stages) > 1 else "one stage"
        yield f"--pipeline with --shards 1: {stages} on one device, run as Sequential"


def native_arithmetic(resolved: Resolved) -> Iterator[str]:
    """Refuse --native-arithmetic unless everything is BF16, rounded to the nearest."""
    run, precision = resolved.run, resolved.run.plan.precision
    if not precision.native_arithmetic:
        return
    operands = (*precision.operands, *(each for _, each in precision.exceptions))
    if any(each != BF16 for each in (precision.compute, *operands)):
        raise OptionError(
            f"--native-arithmetic multiplies in BF16, and --precision {precision.name} has other formats in its products; "
            "give --precision bf16.32, without other formats"
        )
    if precision.stochastic == ALL:
        raise OptionError(
            "--native-arithmetic rounds products to the nearest, and --stochastic-rounding all asks for random rounding; "
            "leave one of them out, or give --no-native-arithmetic"
        )
    if run.plan.stage_devices[0].startswith("/cpu") and not library.has_bf16():
        yield "warning: --native-arithmetic: this processor has no instructions for BF16, so training is slower"


def memory_proportions(resolved: Resolved) -> None:
    """Refuse a number of values other than one, or two for each shard of a pipeline, unless they come from a configuration
    for others."""
    run, options = resolved.run, resolved.run.options
    values, shards = options.device.available_memory_proportion, options.device.shards
    own = options.given("available_memory_proportion") or (run.trains and not options.given("shards"))
    if own and len(values) > 1 and not (options.device.pipeline and len(values) == 2 * shards):
        several = f", or 2 for each of the {shards} shards" if options.device.pipeline else " without --pipeline"
        raise OptionError(f"--available-memory-proportion has {len(values)} values but needs 1{several}")


def batch_statistics(resolved: Resolved) -> Iterator[str]:
    """Warn of batch norm over a single image, and of moving statistics that never move."""
    run = resolved.run
    if run.frozen_statistics.issuperset(v.name for v in run.trace.variables if v.decay is not None):
        return
    if getattr(run.options.model, "BN_decay", None) == 1 and run.options.training.init_path is None:
        yield "warning: --BN-decay 1 keeps the moving statistics at their initial values, which validation uses; give less"
    elif run.plan.micro_batch_size * run.plan.options.BN_span == 1:
        yield (
            "warning: batch norm sees one image at a time, so its statistics differ from those of validation; give "
            "--micro-batch-size 2 or more, a --BN-span over replicas, or --group-norm"
        )


def ignored_processes(resolved: Resolved) -> Iterator[str]:
    """Warn of a process that trains alone although the environment names others."""
    if not resolved.run.cluster.source:
        yield from membership.ignored_others(resolved.environ)


EVERY_RUN: tuple[Rule, ...] = (
    run_name, replaced_values, model_notes, data_set, optimiser, native_arithmetic, memory_proportions,
)  # fmt: skip
TRAINING: tuple[Rule, ...] = (
    mixing, averages, classes, validation_images, label_smoothing, learning_rate, loss_scale, batch_statistics,
    ignored_processes, options_without_effect,
)  # fmt: skip
VALIDATION: tuple[Rule, ...] = (nothing_to_validate_on,)
