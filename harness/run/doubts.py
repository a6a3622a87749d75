"""A first look at the data, the options and the environment: what cannot be meant is refused, and what is most likely not
meant is told in one line of the log's head. No TensorFlow, and before any graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from base.errors import OptionError
from Datasets._spec import DataSource
from emulator.plan.plan import ExecutionPlan
from harness.options.catalogue import LARGEST
from harness.options.rules import LINEAR
from harness.options.sections import RunOptions
from harness.options.sources import COMMAND_LINE
from harness.run.cluster import RANKS, TF_CONFIG, Cluster
from harness.run.data import family
from harness.run.horizon import Horizon

# learning rates at or below which published trainings stay, of batches up to 65,536; momentum 0.9 does the work of a rate
# ten times as large, and LARS scales by layer
HIGHEST_RATE = {"SGD": 100.0, "momentum": 20.0, "RMSprop": 2.0, "LARS": 100.0, "LAMB": 1.0}
LOWEST_RATE = 1e-9  # moves no weight of size 0.01 by the last bit of FP32
EXPONENTS = "from -14 to -5"  # of the published recipes
RISEN = 1.001  # times its peak: more than rounding
OPTIMISERS_OF = {
    "momentum": ("momentum", "RMSprop", "LARS"),
    **dict.fromkeys(("rmsprop_decay", "rmsprop_base_decay_exp", "rmsprop_epsilon"), ("RMSprop",)),
    **dict.fromkeys(("lars_epsilon", "lars_eeta", "lars_skip_list", "lars_weight_decay"), ("LARS",)),
    **dict.fromkeys(("lamb_beta1", "lamb_beta2", "lamb_epsilon", "lamb_weight_decay", "lamb_skip_list"), ("LAMB",)),
}
BELOW_ONE = {  # a decay of 1 keeps every gradient for ever, divides by 0, or takes none in
    **dict.fromkeys(("momentum", "lamb_beta1", "lamb_beta2"), "forgets no gradient ever"),
    "rmsprop_decay": "takes no gradient into the mean square ever",
}
LOSS_SCALES = 2.0**-10, 2.0**20  # beyond which most gradients in FP16 are nought, or too large
SAMPLES = 1000  # of a run's learning rates


def validation_data(source: DataSource) -> None:
    """OptionError for a data set that has nothing to validate on."""
    if not source.spec.validation_images:
        raise OptionError(f"data set {source.spec.name}: {_why_none(source)}")


def training_data(options: RunOptions, source: DataSource) -> list[str]:
    """What the log says of the data; OptionError where there is nothing to learn."""
    spec, found = source.spec, []
    if options.dataset.dataset_benchmark:
        return []
    if spec.num_classes < 2:
        raise OptionError(
            f"data set {spec.name} has one class: every answer is right, and nothing is learnt; give pictures of two "
            "classes or more, each in a folder or under a label of its own"
        )
    if spec.train_images < spec.num_classes:
        found.append(
            f"warning: data set {spec.name} has {spec.num_classes} classes and {spec.train_images} training pictures: some "
            "class has none; --num-classes says how many there are where the files do not"
        )
    if options.checkpoint.validation and not spec.validation_images:
        found.append(
            f"warning: data set {spec.name}: {_why_none(source)}; or train with --no-validation: nothing tells how good the "
            "network is on pictures that it has not seen"
        )
    return found


def _why_none(source: DataSource) -> str:
    return getattr(source, "missing", "") or "it has no pictures for validation here"


def update(
    options: RunOptions, classes: int, horizon: Horizon, peak: float, rate: Callable[[int], float]
) -> list[str]:  # fmt: skip
    """What the log says of learning rate and weight update; OptionError for numbers with which nothing can be learnt."""
    _refuse_hopeless(options, classes)
    training, highest = options.training, reached(options, horizon, peak, rate)
    if not highest:
        found = [
            f"warning: the learning rate is 0 in all of the run's {horizon.iterations} updates: the warm-up begins there, "
            "and nothing is learnt; give more --iterations or --epochs, or --warmup-epochs 0"
        ]
    else:
        found = _rate_doubts(options, horizon.global_batch, peak, highest)
    last = rate(horizon.iterations - 1)
    if not last <= LARGEST:
        raise OptionError(
            f"the {options.main.lr_schedule} schedule lets the learning rate rise from {peak:.4g} beyond FP32's largest "
            f"number, {LARGEST:.4g}; {_falling(options)} if it is to fall"
        )
    if last > RISEN * peak:
        found.append(
            f"warning: the {options.main.lr_schedule} schedule lets the learning rate rise from {peak:.4g} to {last:.4g} at "
            f"the end; {_falling(options)} if it is to fall"
        )
    shrunk = highest * (training.weight_decay or 0)
    if training.optimiser in LINEAR and shrunk >= 1:
        found.append(
            f"warning: --weight-decay {training.weight_decay:g} x learning rate {highest:.4g} = {shrunk:.4g}: an update "
            "takes away as much as the weights are, or more; give less of either"
        )
    if 1.0 in training.weight_avg_exp:
        found.append(
            "warning: --weight-avg-exp 1 is the first checkpoint, and takes nothing of the others; give less than 1"
        )
    warmup = getattr(options.schedule, "warmup_epochs", 0)
    if highest and given(options, "warmup_epochs") and warmup >= horizon.epochs:
        found.append(
            f"warning: --warmup-epochs {warmup:g} is the whole run of {horizon.epochs:.4g} epochs: the learning rate never "
            f"gets to its {peak:.4g}"
        )
    return found


def reached(options: RunOptions, horizon: Horizon, peak: float, rate: Callable[[int], float]) -> float:
    """The highest learning rate of a run: its peak, unless it ends within the warm-up."""
    if getattr(options.schedule, "warmup_epochs", 0) < horizon.epochs:
        return peak
    return max(rate((horizon.iterations - 1) * k // SAMPLES) for k in range(SAMPLES + 1))


def _falling(options: RunOptions) -> str:
    """What makes the schedule's learning rate fall."""
    if not hasattr(options.schedule, "poly_lr_end_ratio"):
        return "its decay must be below 1"
    if options.schedule.abs_end_learning_rate is not None:
        return f"--abs-end-learning-rate {options.schedule.abs_end_learning_rate:g} must be below the first"
    return f"--poly-lr-end-ratio {options.schedule.poly_lr_end_ratio:g} must be below 1"


def loss_scale(options: RunOptions, plan: ExecutionPlan) -> list[str]:
    """What the log says of a loss scale with which hardly a gradient is a number of FP16."""
    scale, (least, most) = options.training.loss_scaling, LOSS_SCALES
    if not plan.precision.rounds_results or least <= scale <= most:
        return []
    lost = "overflow" if scale > most else "become 0"
    return [f"warning: --loss-scaling {scale:g} lets most gradients {lost} in FP16; give from {least:.2g} to {most:.2g}"]


def statistics(options: RunOptions, plan: ExecutionPlan, batch_norm: bool) -> list[str]:
    """What the log says of batch norm whose statistics are those of no batch, or never move."""
    if not batch_norm:
        return []
    if getattr(options.model, "BN_decay", None) == 1 and options.training.init_path is None:
        return [
            "warning: --BN-decay 1 leaves the moving statistics as they begin, and validation takes them for those of the "
            "pictures; give less than 1"
        ]
    if plan.micro_batch * plan.options.BN_span > 1:
        return []
    return [
        "warning: batch norm takes the statistics of one picture at a time, which are not those of validation; give "
        "--micro-batch-size 2 or more, a --BN-span over replicas, or --group-norm"
    ]


def _refuse_hopeless(options: RunOptions, classes: int) -> None:
    training = options.training
    for name, why in BELOW_ONE.items():
        value = getattr(training, name)
        if training.optimiser in OPTIMISERS_OF[name] and value is not None and value >= 1:
            raise OptionError(f"{_flag(name)} {value:g} {why}; give less than 1")
    smoothing, most = training.label_smoothing or 0.0, (classes - 1) / classes
    if smoothing >= most:
        raise OptionError(
            f"--label-smoothing {smoothing:g} leaves the true class of {classes} no more than each other one; give less "
            f"than {most:.4g}"
        )


def _rate_doubts(options: RunOptions, global_batch: int, peak: float, reached: float) -> list[str]:
    training = options.training
    exponent = training.base_learning_rate_exponent
    if training.abs_learning_rate is None and exponent is not None and exponent > 0:
        return [
            f"warning: --base-learning-rate-exponent {exponent:g} makes the learning rate 2^{exponent:g} x {global_batch} = "
            f"{peak:.4g}; published exponents are {EXPONENTS}, and --abs-learning-rate takes a rate as it is"
        ]
    highest = HIGHEST_RATE[training.optimiser]
    if reached > highest:
        return [
            f"warning: the learning rate goes up to {reached:.4g}, and published ones for --optimiser {training.optimiser} "
            f"not beyond {highest:g}; see --abs-learning-rate and --base-learning-rate-exponent"
        ]
    if reached < LOWEST_RATE:
        return [f"warning: the learning rate is {reached:.4g} at most, and below {LOWEST_RATE:g} hardly a weight moves"]
    return []


def neighbours(cluster: Cluster, environ: Mapping[str, str]) -> list[str]:
    """What the log of a process that trains alone says of others that the environment speaks of."""
    if cluster.source:  # it is one of several, or poprun has started it
        return []
    workers, ranks = _workers(environ.get(TF_CONFIG, "")), environ.get(RANKS, "")
    if workers > 1:
        return [
            f"warning: {TF_CONFIG} names {workers} workers, and this process trains alone; give --distributed if they are "
            "to train together"
        ]
    if ranks.isascii() and ranks.isdecimal() and len(ranks) < 10 and int(ranks) > 1:
        return [
            f"warning: mpirun started {ranks} processes, and each of them trains alone; start them with poprun, or give "
            f"--distributed and {TF_CONFIG}, if they are to train together"
        ]
    return []


def _workers(text: str) -> int:
    """Of all jobs, those that lead or work."""
    try:
        jobs = json.loads(text or "{}").get("cluster", {})
        named = [jobs.get(job) for job in ("chief", "master", "worker")]
        return sum(len(addresses) for addresses in named if isinstance(addresses, list))
    except (ValueError, AttributeError, TypeError, RecursionError):
        return 0


def without_effect(options: RunOptions, plan: ExecutionPlan, horizon: Horizon, batch_norm: bool) -> list[str]:
    """A line on every option of the command line that changes nothing beside the others."""
    training = options.training
    found = [
        f"{_flag(name)} changes nothing: --optimiser is {training.optimiser}"
        for name, users in OPTIMISERS_OF.items()
        if given(options, name) and training.optimiser not in users
    ]
    if len(plan.stages) == 1:
        cutting = ("pipeline_schedule", "sharding_include_filter", "sharding_exclude_filter")
        found += [f"{_asked(options, name)} changes nothing: there is one stage" for name in cutting if given(options, name)]
    if given(options, "BN_span") and plan.options.BN_span > 1 and not batch_norm:
        found.append(f"--BN-span {plan.options.BN_span} changes nothing: the network has no batch norm")
    if given(options, "BN_decay") and not batch_norm:
        found.append(f"{_asked(options, 'BN_decay')} changes nothing: the network has no batch norm")
    if given(options, "groups") and batch_norm:
        found.append(f"{_asked(options, 'groups')} changes nothing: the network has batch norm; --group-norm has groups")
    if training.stop_after is not None and training.stop_after >= horizon.iterations:
        found.append(f"--stop-after {training.stop_after} changes nothing: the run has {horizon.iterations} updates")
    return [*found, *_data_options(options), *_half_options(options, plan)]


def _data_options(options: RunOptions) -> list[str]:
    """Those that are about data that is not read."""
    dataset, found = options.dataset, []
    if (dataset.generated_data or dataset.synthetic_data) and given(options, "data_dir") and given(options, "dataset"):
        kind = "--generated-data" if dataset.generated_data else "--synthetic-data"
        found.append(f"--data-dir {dataset.data_dir} is not read: {kind} makes the pictures")
    if family(dataset.dataset) != "imagenet":
        normalising = ("normalise_input", "symmetric_input", "hostside_norm")
        asked = [name for name in normalising if given(options, name) and getattr(dataset, name)]
        found += [f"{_flag(name)} changes nothing: {dataset.dataset} standardises every picture" for name in asked]
    return found


def _half_options(options: RunOptions, plan: ExecutionPlan) -> list[str]:
    """Those that are about half precision where there is none."""
    device, precision = options.device, plan.precision
    none = f"with {precision.name} nothing is half"
    found = []
    if not precision.rounds_results:
        if device.fp32_accumulators:
            found.append(f"--fp32-accumulators changes nothing: {none}")
        if device.enable_half_partials:
            found.append(f"--enable-half-partials changes nothing: {none}")
        if given(options, "stochastic_rounding") and device.stochastic_rounding != "OFF" and not device.force_weight_to_fp16:
            found.append(f"--stochastic-rounding {device.stochastic_rounding} changes nothing: {none}")
    if device.force_weight_to_fp16 and precision.rounds_weights:
        found.append(f"--force-weight-to-fp16 changes nothing: with {precision.name} weights are half already")
    if device.force_weight_to_fp32 and not precision.rounds_weights and not device.force_weight_to_fp16:
        found.append(f"--force-weight-to-fp32 changes nothing: with {precision.name} weights are FP32 already")
    return found


def given(options: RunOptions, name: str) -> bool:
    """Whether the command line says it."""
    return options.sources.get(name, "").startswith(COMMAND_LINE)


def _asked(options: RunOptions, name: str) -> str:
    """Flag and value."""
    value = options.values()[name]
    return f"{_flag(name)} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
