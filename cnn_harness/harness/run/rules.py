"""Check options against each other and against the resolved run, before any graph is built.

A rule raises OptionError for options that cannot work, and warns about options that may waste hours. If an option has no
effect without another one, its declaration says so with `opt(needs=...)`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from cnn_harness.base import conditions, plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.host_limits import ADDRESSES, DATA, Limit
from cnn_harness.Datasets.sources.registry import published_spec
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan import host_memory
from cnn_harness.emulator.plan.fault import MESSAGE
from cnn_harness.emulator.plan.host_memory import gigabytes
from cnn_harness.emulator.plan.number_formats import FP16, FP32
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.precision import ALL, FIRST, LAST, is_kernel
from cnn_harness.harness.options.releases import vintage
from cnn_harness.harness.options.sections import OPTIMISER_OPTIONS, RECORDED, DatasetOptions, RecipeBatch, RunOptions, flag
from cnn_harness.harness.run import membership
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.run.data import SPLIT_FOLDERS, family
from cnn_harness.harness.run.run import Run
from cnn_harness.Models import _norms
from cnn_harness.Models._layers import TRAINED_PROXY_ROWS
from cnn_harness.Optimisers._rule import SKIPPED

SMALL_MEAN_SQUARE = 1e-20  # smaller mean squares are from gradients too small to change weights
_MEMORY = {ADDRESSES: "address space", DATA: "writable memory"}
CIFAR_SIZE = 32  # pixels
LARGEST_HALF_SCALE = 2.0**20  # above this loss scale, most gradients overflow in FP16


Rule = Callable[[Run], Iterable[str] | None]


def check_run(run: Run, cluster: Cluster, requested: RunOptions, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the warnings about a run. Raise OptionError for the first rule that the run breaks.

    `requested` are the options as the user gave them; poprun and the precision may have replaced some values since.
    """
    notes = [*replaced_values(run, cluster, requested.device)]
    of_training: tuple[Rule, ...] = (partial(recipe_batch, by_poprun=cluster.by_poprun), *TRAINING)
    for rule in (partial(one_process, cluster=cluster), *EVERY_RUN, *(of_training if run.trains else ())):
        notes += rule(run) or ()
    if run.trains and not cluster.source:
        notes += membership.ignored_others(environ)  # this process trains alone, although the environment lists others
    return tuple(notes)


# --- Options without effect --------------------------------------------------------------------------------------


def options_without_effect(run: Run) -> Iterator[str]:
    """Warn about options on the command line that have no effect in this run."""
    options = run.options
    fields = {field.name: field for section in options.sections for field in dataclasses.fields(section)}
    unread = frozenset().union(*OPTIMISER_OPTIONS.values()) - OPTIMISER_OPTIONS[options.training.optimiser]
    norms = {name: kind for kind in _norms.KINDS if kind not in run.norms for name in kind.reads}
    for name, field in fields.items():
        needs = field.metadata.get("needs")
        if not options.given(name) or options.values()[name] == field.default:
            continue
        if name in unread:
            yield f"{options.words(name)} has no effect with --optimiser {options.training.optimiser}"
        elif name in norms:
            yield f"{options.words(name)} has no effect without {norms[name].title}"
        elif needs and not needs.is_met(run):
            yield f"{options.words(name)} has no effect without {needs.text}"


# --- Data ----------------------------------------------------------------------------------------------------------


def check_data_options(options: RunOptions) -> None:
    """Reject options that contradict the data set, before the files of the data set are opened."""
    dataset = options.dataset
    if bool(dataset.image_mean) != bool(dataset.image_std):
        name = "image_mean" if dataset.image_mean else "image_std"
        raise OptionError(f"{flag(name)} is given alone; give both --image-mean R G B and --image-std R G B")
    if dataset.image_mean and min(*dataset.image_mean, *dataset.image_std) > 1:
        raise OptionError(
            "--image-mean and --image-std must be for pixels from 0 to 1, not from 0 to 255; divide them by 255"
        )
    if family(dataset.dataset) == "imagenet":
        return
    known = published_spec(dataset.dataset).num_classes
    if dataset.num_classes not in (None, known):
        raise OptionError(
            f"--num-classes {dataset.num_classes} contradicts --dataset {dataset.dataset}, which has {known} classes; "
            "leave out --num-classes, or use the data set of the recorded run"
        )
    if dataset.dataset_percentage_to_use < 100:
        raise OptionError(
            f"--dataset-percentage-to-use {dataset.dataset_percentage_to_use} works with ImageNet only, not "
            f"with {dataset.dataset}; leave it out"
        )


def data_set(run: Run) -> Iterator[str]:
    """Reject data options that contradict the kind of data or each other. Report CIFAR images of another size."""
    options = run.options.dataset
    if options.eight_bit_io and options.hostside_image_mixing and options.mixes:
        raise OptionError(
            "--eight-bit-io sends bytes, but --hostside-image-mixing produces fractions; give only one of them"
        )
    given = [name for name in ("validation_split", *SPLIT_FOLDERS) if getattr(options, name)]
    if given and options.dataset != "imagefolder":
        raise OptionError(
            f"{flag(given[0])} {getattr(options, given[0])} works with --dataset imagefolder only; {options.dataset} has "
            "its own validation images"
        )
    if options.dataset.startswith("cifar") and run.image_size != CIFAR_SIZE:
        yield (
            f"--image-size {run.image_size}: the images of {options.dataset} are resized from {CIFAR_SIZE} pixels; the "
            f"original harness accepts only {CIFAR_SIZE}"
        )


def mixing(run: Run) -> Iterator[str]:
    """Reject mixup and cutmix for micro-batches of one image; warn if all images are the same."""
    options = run.options.dataset
    if options.mixes:
        check_mixable(options, run.plan.micro_batch_size)
    elif options.least_micro_batch > 1:
        yield "mixup and cutmix are off, because all generated and synthetic images are the same"


def check_mixable(options: DatasetOptions, micro_batch_size: int) -> None:
    """Raise OptionError if micro-batches are too small for mixup or cutmix."""
    if micro_batch_size < options.least_micro_batch:
        words = (
            f"--mixup-alpha {options.mixup_alpha:g}"
            if options.mixup_alpha > 0
            else f"--cutmix-lambda {options.cutmix_lambda:g}"
        )
        raise OptionError(
            f"{words} mixes images within a micro-batch, so --micro-batch-size {micro_batch_size} is too small; give "
            f"{options.least_micro_batch} or more"
        )


def classes(run: Run) -> Iterator[str]:
    """Reject data with only one class, and class weights for data without the number of images of each class.

    Warn if there are fewer training images than classes, or than images in an update.
    """
    spec = run.data_source.spec
    if run.options.dataset.dataset_benchmark:
        return
    if spec.num_classes < 2:
        raise OptionError(f"data set {spec.name} has only one class; give images of at least two")
    if run.options.training.class_weights and not spec.class_images:
        raise OptionError(
            f"--class-weights balanced needs the number of images of each class, but data set {spec.name} does not have "
            "it; leave out --class-weights, or use --dataset imagefolder"
        )
    if spec.train_images < spec.num_classes:
        yield (
            f"warning: data set {spec.name} has {spec.num_classes} classes but only {spec.train_images} training images; "
            "check --num-classes"
        )
    if run.plan.global_batch > spec.train_images:
        yield f"an update takes {run.plan.global_batch} samples, more than the {spec.train_images} images of an epoch"


def one_process(run: Run, cluster: Cluster) -> None:
    """Reject --predict in several processes."""
    if run.options.checkpoint.predict and cluster.size > 1:
        alone = "start it without poprun" if cluster.by_poprun else "leave out --distributed"
        raise OptionError(f"--predict works in one process, but {cluster.size} were started; {alone}")


def validation_images(run: Run) -> Iterator[str]:
    """Reject validation without images; warn if a training cannot validate."""
    options, source = run.options, run.data_source
    if options.checkpoint.predict:
        return
    missing = f"data set {source.spec.name}: {getattr(source, 'missing', '') or 'it has no validation images here'}"
    if source.spec.validation_images or (run.trains and options.dataset.dataset_benchmark):
        return
    if not run.trains:
        raise OptionError(missing)
    if options.checkpoint.validation:
        yield f"warning: {missing}; or train with --no-validation"


# --- Weight updates ------------------------------------------------------------------------------------------------


def check_filters(options: RunOptions, network: Network) -> None:
    """Reject words that are in no name of a variable or layer, and variables that are forced into two formats."""
    device, training = options.device, options.training
    trained = [variable.name for variable in network.variables if variable.trainable]
    kernels = [variable.name for variable in network.variables if is_kernel(variable.name)]
    to_fp16, to_fp32 = device.force_weight_to_fp16, device.force_weight_to_fp32
    formats = [part for part in (word.rpartition("=")[0] for word in device.format_for) if part not in (FIRST, LAST)]
    _check_parts("--variable-filter", training.variable_filter, trained, "trained variable")
    _check_parts("--force-weight-to-fp16", to_fp16, trained, "trained variable")
    _check_parts("--force-weight-to-fp32", to_fp32, [variable.name for variable in network.variables], "variable")
    _check_parts("--format-for", formats, kernels, "convolution or dense layer", also=(FIRST, LAST))
    for name in trained:
        both = [next((part for part in parts if part in name), "") for parts in (to_fp16, to_fp32)]
        if all(both):
            raise OptionError(
                f"--force-weight-to-fp16 {both[0]} and --force-weight-to-fp32 {both[1]} both match {name}; give only one"
            )


def _check_parts(option: str, parts: Sequence[str], names: Sequence[str], kind: str, also: Sequence[str] = ()) -> None:
    """Raise OptionError if no name contains one of the words."""
    for part in parts:
        if not any(part in name for name in names):
            known = sorted({*also, *names, *(each for name in names for each in name.split("/"))})
            raise OptionError(
                f"{option} {part} is in the name of no {kind}{plugins.did_you_mean(part, known)}; names are like "
                f"{names[0]} and {names[-1]}"
            )


def optimiser(run: Run) -> Iterator[str]:
    """Reject options that the optimiser cannot use, and skip lists that match nothing. Warn about mean squares in FP16."""
    training = run.options.training
    yield from training.update_rule(run.plan.global_batch).check()
    listed = training.rule.skip_list
    if not run.options.sources.get(listed, RECORDED).startswith(RECORDED):
        rows = [f"{v.name}/{row}" for v in run.network.variables if v.proxy for row in TRAINED_PROXY_ROWS]
        names = [*(variable.name for variable in run.network.variables), *rows]
        _check_parts(flag(listed), [part for part in getattr(training, listed) if part not in SKIPPED], names, "variable")
    trained = [v for v in run.network.variables if v.trainable and not v.proxy and run.is_trained(v.name)]
    formats = {run.plan.precision.slot_format(variable) for variable in trained}
    coarsest = max(formats, key=lambda each: each.smallest, default=FP32)
    if run.trains and training.rule.squares and coarsest.smallest > SMALL_MEAN_SQUARE:
        yield (
            f"warning: --optimiser {training.optimiser} keeps mean squares of gradients in {coarsest.name}, which rounds "
            f"values below {coarsest.smallest / 2:.0e} to 0; give --precision 16.32 or --slot-format fp32"
        )


def recipe_batch(run: Run, by_poprun: bool) -> Iterator[str]:
    """Report that options or poprun change the global batch of a configuration. The user may ask for another one."""
    recipe, size = run.options.recipe, run.plan.global_batch
    if recipe and size != recipe.size and not run.options.given("global_batch_size"):
        yield (
            f"configuration {recipe.name} has a global batch of {recipe.size}, but this run has {size}; to restore it, "
            f"give {_restoring_option(run.plan, recipe, by_poprun)}"
        )


def _restoring_option(plan: ExecutionPlan, recipe: RecipeBatch, by_poprun: bool) -> str:
    """Return the option with which a run has the global batch of its configuration again."""
    micro, count, replicas = plan.micro_batch_size, plan.accumulation, plan.total_replicas
    factors = [("poprun --num-replicas", micro * count, plan.instances)] * (by_poprun and replicas != recipe.replicas)
    factors += [("--gradient-accumulation-count", micro * replicas, 1), ("--micro-batch-size", count * replicas, 1)]
    for option, others, unit in factors:
        if recipe.size % (others * unit) == 0:
            return f"{option} {recipe.size // others}"
    return "the configuration's --micro-batch-size, --gradient-accumulation-count and --replicas"


def averages(run: Run) -> Iterator[str]:
    """Reject averages, --patience and --keep-best-ckpt without the checkpoints and validations that they need."""
    training, options = run.options.training, run.options.checkpoint
    averaged = training.weight_avg_N or training.weight_avg_exp
    unsaved = "" if conditions.checkpoints.is_met(run) else "--ckpts-per-epoch 0 writes no checkpoints"
    if unsaved and averaged:
        raise OptionError(f"--weight-avg-N and --weight-avg-exp need checkpoints, but {unsaved}; give 1 or more")
    if options.max_ckpts_to_keep and averaged:
        yield f"averages use only the checkpoints that --max-ckpts-to-keep {options.max_ckpts_to_keep} keeps"
    words = f"--patience {options.patience}" if options.patience else "--keep-best-ckpt" if options.keep_best_ckpt else ""
    unseen = "" if run.data_source.spec.validation_images else "the data set has no validation images"
    unseen = unseen if options.validation else "--no-validation is given"
    if words and (unseen or unsaved):
        raise OptionError(f"{words} needs validation accuracy, but {unseen or unsaved}; leave out {words}")


def label_smoothing(run: Run) -> None:
    """Reject a smoothing that makes the true class no more likely than any other."""
    count, smoothing = run.data_source.spec.num_classes, run.options.training.label_smoothing or 0.0
    if smoothing >= (count - 1) / count:
        raise OptionError(
            f"--label-smoothing {smoothing:g} with {count} classes makes the true class no more likely than any other; "
            f"give less than {(count - 1) / count:.4g}"
        )


def learning_rate(run: Run) -> Iterator[str]:
    """Warn about a rate above all published rates, a rate that is always 0, and a warm-up as long as the run."""
    training = run.options.training
    published, warmup = training.rule.highest_rate, getattr(run.options.schedule, "warmup_epochs", 0)
    if not run.highest_rate:
        yield (
            f"warning: the learning rate is 0 in all updates of the run ({run.length.iterations}), so it learns nothing; "
            "give more --epochs, or --warmup-epochs 0"
        )
    elif run.highest_rate > published:
        yield (
            f"warning: the learning rate rises to {run.highest_rate:.4g}, but published rates for --optimiser "
            f"{training.optimiser} are below {published:g}; check --abs-learning-rate or --base-learning-rate-exponent"
        )
    if run.options.given("warmup_epochs") and warmup >= run.length.epochs and run.highest_rate:
        yield f"warning: --warmup-epochs {warmup:g} covers the whole run of {run.length.epochs:.4g} epochs; raise --epochs"


def loss_scale(run: Run) -> Iterator[str]:
    """Reject automatic loss scaling if gradients cannot overflow. Warn about a loss scale that is too large for FP16."""
    rule, scale = run.options.training.automatic_loss_scaling, run.options.training.loss_scaling
    precision, device = run.plan.precision, run.options.device
    if precision.compute == FP16 and scale > LARGEST_HALF_SCALE:
        yield f"warning: --loss-scaling {scale:g} makes gradients overflow in FP16; give less than {LARGEST_HALF_SCALE:.2g}"
    if not rule:
        return
    kernels = [variable.name for variable in run.network.variables if is_kernel(variable.name)]
    if all(each == FP32 for name in kernels for each in precision.gradients_of(name)):
        raise OptionError(
            f"--automatic-loss-scaling {rule} has no effect, because gradients cannot overflow with --precision "
            f"{precision.name}; leave it out, or give --precision 16.16"
        )
    clash = "--fp-exceptions" if device.fp_exceptions else "--analyse-nans" if precision.checks else ""
    clash = clash or "--saturate-on-overflow" * (rule == "back-off" and precision.saturate_on_overflow)
    if clash:
        raise OptionError(
            f"--automatic-loss-scaling {rule} reacts to overflow, but {clash} prevents overflow; give only one of them"
        )


def gradient_noise(run: Run) -> None:
    """Reject --gradient-noise if an update has only one pass, because the estimate compares several gradients."""
    plan = run.plan
    if run.options.training.gradient_noise and plan.passes_per_update * plan.instances == 1:
        remedy = "--fold 1" if plan.fold > 1 else "--gradient-accumulation-count 2 or --replicas 2"
        raise OptionError(f"--gradient-noise needs at least two passes per update, but there is one; give {remedy}")


def injected_fault(run: Run) -> Iterator[str]:
    """Report the fault of --inject. Reject a fault that never happens."""
    fault = run.fault
    if fault is None:
        return
    if fault.update > run.length.iterations:
        raise OptionError(f"--inject {run.options.training.inject}: the run has only {run.length.iterations} updates")
    if fault.kind == MESSAGE and run.plan.instances == 1:
        raise OptionError(f"--inject {run.options.training.inject} needs several processes, because one sends no messages")
    yield f"--inject flips bit {fault.bit} of one {fault.kind} of {fault.variable} in update {fault.update}"


# --- Devices, precision, memory --------------------------------------------------------------------------------------


def run_name(run: Run) -> None:
    """Reject a --name-suffix with path separators or unprintable characters."""
    suffix = run.options.logging.name_suffix
    if suffix and (any(part in suffix for part in ("/", "\\", "..")) or not suffix.isprintable()):
        raise OptionError(f"--name-suffix '{suffix}' must not contain / \\ .. or unprintable characters")


def profiles(run: Run) -> Iterator[str]:
    """Reject two profiles in a release with one profile per call, and report that its profile ends the training."""
    release, device = run.options.main.release, run.options.device
    if not vintage(release).profiles_one_step or not device.profile:
        return
    if device.profile_compilation:
        raise OptionError(
            f"--profile and --profile-compilation exclude each other with --release {release}; give only one of them"
        )
    if run.trains:
        yield f"the training stops after one host step, because --profile did so in release {release}"


def model_notes(run: Run) -> Iterable[str]:
    """Return the notes of the model on its options."""
    options = run.options
    model = plugins.load("Models", options.main.model)
    return model.notes(options.model) if hasattr(model, "notes") else ()


def replaced_values(run: Run, cluster: Cluster, before: DeviceOptions) -> Iterator[str]:
    """Report values that poprun, the precision or the emulation replaces."""
    device = run.options.device
    if cluster.replicas is not None and before.replicas not in (1, cluster.replicas, cluster.replicas * cluster.size):
        total = cluster.replicas * cluster.size
        yield f"poprun replaces --replicas {before.replicas}: each process has {cluster.replicas} of {total} replicas"
    if before.stochastic_rounding != device.stochastic_rounding:
        yield (
            f"--stochastic-rounding {before.stochastic_rounding} means all (round results and gradients at random), because "
            f"the weights of {run.plan.precision.name} are FP32"
        )
    if run.trains and device.enable_half_partials and run.plan.precision.rounds_results:
        yield "--enable-half-partials is not emulated: all sums inside an operation are FP32"
    if run.trains and device.pipeline and device.shards == 1:
        stages = f"{len(run.plan.stages)} stages" if len(run.plan.stages) > 1 else "1 stage"
        yield f"--pipeline with --shards 1 runs {stages} on one device, with --pipeline-schedule Sequential"


def native_arithmetic(run: Run) -> Iterator[str]:
    """Reject --native-arithmetic unless all products are BF16 and are rounded to the nearest."""
    precision = run.plan.precision
    if not precision.native_arithmetic:
        return
    if precision.stochastic == ALL:
        raise OptionError(
            "--native-arithmetic rounds products to the nearest, but --stochastic-rounding all rounds them at random; give "
            "only one of them"
        )
    if not precision.multiplies_bf16:
        raise OptionError(
            f"--native-arithmetic multiplies in BF16, but --precision {precision.name} or a format option asks for another "
            "format; give --precision bf16.32 and no format options"
        )
    if run.computes_on_cpu and not library.has_bf16():
        yield "warning: --native-arithmetic makes this slow, because this processor has no BF16 units"


def hadamard(run: Run) -> Iterator[str]:
    """Warn about a Hadamard transform of single images, which changes nothing."""
    size = run.plan.micro_batch_size
    if run.plan.precision.hadamard and run.plan.precision.may_rotate and size % 2:
        yield (
            f"warning: --hadamard has no effect with --micro-batch-size {size}, because it transforms 2, 4, 8 or 16 images "
            "at once; give an even micro-batch"
        )


def memory_proportions(run: Run) -> None:
    """Reject --available-memory-proportion unless it has one value, or two for each shard of a pipeline.

    Do not check the values of a configuration if the call changes the number of shards, or only validates.
    """
    options = run.options
    values, shards = options.device.available_memory_proportion, options.device.shards
    own = options.given("available_memory_proportion") or (run.trains and not options.given("shards"))
    if own and len(values) > 1 and not (options.device.pipeline and len(values) == 2 * shards):
        several = f", or 2 per shard ({2 * shards})" if options.device.pipeline else " without --pipeline"
        raise OptionError(f"--available-memory-proportion has {len(values)} values but needs 1{several}")


def batch_statistics(run: Run) -> Iterator[str]:
    """Warn about batch norm over single images, and about moving averages that never change."""
    if run.frozen_statistics.issuperset(v.name for v in run.network.variables if v.decay is not None):
        return
    if getattr(run.options.model, "BN_decay", None) == 1 and run.options.training.init_path is None:
        yield "warning: --BN-decay 1 never updates the moving averages that validation uses; give less than 1"
    elif run.plan.micro_batch_size * run.plan.options.BN_span == 1:
        yield (
            "warning: batch norm sees one image at a time, so training and validation use different statistics; give "
            "--micro-batch-size 2 or more, --BN-span over several replicas, or --group-norm"
        )


def check_host_memory(run: Run, processes: int, limits: Sequence[Limit]) -> list[str]:
    """Warn if the predicted host memory of a run with `processes` on this machine is above a limit.

    Raise OptionError if the system would kill the run, unless --no-memory-check is given.
    """
    needed = run.memory
    limit, hopeless = host_memory.find_exceeded_limit(needed, limits, processes)
    if limit is None:
        return []
    smaller = "a smaller --micro-batch-size or --valid-batch-size, or a smaller --image-size"
    if run.trains:
        smaller = (
            "a smaller --micro-batch-size with a larger --gradient-accumulation-count, --fold 1, --enable-recomputation, or "
            "a smaller --image-size"
        )
    if needed.records and host_memory.find_exceeded_limit(replace(needed, records=0), [limit], processes)[0] is None:
        smaller = "--no-dataset-cache"
    shared = f" in each of the {processes} processes here" if limit.shared and processes > 1 else ""
    message = (
        f"{'training' if run.trains else 'this'} needs about {gigabytes(needed.of_kind(limit.kind))} GB of "
        f"{_MEMORY.get(limit.kind, 'host memory')}{shared}, but {limit.source} {gigabytes(limit.bytes)} GB; give {smaller}"
    )
    if hopeless and run.options.device.memory_check:
        raise OptionError(f"{message}; to try it anyway, give --no-memory-check")
    return [f"warning: {message}"]


EVERY_RUN: tuple[Rule, ...] = (
    run_name, profiles, model_notes, data_set, validation_images, optimiser, native_arithmetic, memory_proportions,
)  # fmt: skip
TRAINING: tuple[Rule, ...] = (
    mixing, averages, classes, label_smoothing, learning_rate, loss_scale, gradient_noise, injected_fault, hadamard,
    batch_statistics, options_without_effect,
)  # fmt: skip
