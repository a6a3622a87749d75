"""Resolve options to a run: find the data, trace the model, and compute batches, updates and learning rates.

This module does not import TensorFlow and writes no files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError, parts
from cnn_harness.base.fields import LENGTH, TRAINING_ONLY
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.network.recorder import NetworkError, record
from cnn_harness.emulator.plan import plan as plans
from cnn_harness.emulator.plan.ipu_ids import DeviceError
from cnn_harness.emulator.plan.machine import this_machine
from cnn_harness.emulator.plan.number_formats import FP32
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.partition import PartitionError
from cnn_harness.emulator.plan.plan import ExecutionPlan, PlanError
from cnn_harness.emulator.plan.precision import NAMED, Precision, is_kernel
from cnn_harness.emulator.plan.schedules import ScheduleError
from cnn_harness.harness.options.sections import COMMAND_LINE, CONFIGURATION, DatasetOptions, RunOptions, with_trait
from cnn_harness.harness.run import data, membership, processor, rules
from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.run.length import TrainingLength
from cnn_harness.harness.run.run import Run
from cnn_harness.Models._model import Model
from cnn_harness.Models._segments import Segment

EMBEDDED = "fashion-mnist"
_DEVICE_DEFAULTS = DeviceOptions()
ON = ("ON", "ON_prng_stable", "RI_prng_stable")  # values that do not say what is rounded


class Origin:
    """A call that starts from nothing and inherits no options."""

    folder: Path | None = None  # The run directory or the weights file.
    recorded: Mapping[str, Any] = {}  # The recorded options, as the user gave them.
    total_replicas: int | None = None  # The replicas of all processes of a resumed run.
    updates: int = 0  # The number of updates done before this call.

    def check_source(self, options: RunOptions) -> list[str]:
        """Return notes for the log. Raise OptionError or CheckpointError if a run with these options cannot start."""
        return []

    def options(self, options: RunOptions) -> RunOptions:
        """Return the options without those that have no effect, because the call starts from a run."""
        return options

    def check_run(self, run: Run, cluster: Cluster) -> list[str]:
        """Return notes for a dry run. Raise the errors that would later stop the run."""
        return []


class Prepared(NamedTuple):
    """A run that has passed its checks, the instances that compute it, and the first lines of the log."""

    run: Run
    cluster: Cluster
    notes: tuple[str, ...]


def prepare(
    requested: RunOptions, environ: Mapping[str, str], notes: tuple[str, ...] = (), *, training: bool = True,
    total_replicas: int | None = None, here: bool = False,
) -> Prepared:  # fmt: skip
    """Return the run with these options. Raise OptionError or DataError if no such run is possible.

    notes: the first lines of the log
    training: if False, there is no learning rate, and the global batch only converts updates to epochs
    total_replicas: the replicas of all processes of a resumed run; options of this call override it
    here: if True, this machine computes the run, so options may depend on its processor
    """
    cluster = membership.find(requested, environ, training)
    model = plugins.load("Models", requested.main.model)
    rules.check_data_options(requested)
    source = (data.for_predictions if requested.checkpoint.predict else data.open_source)(requested.dataset, environ)
    family = data.family(requested.dataset.dataset)
    image_size = requested.dataset.image_size or model.image_size(requested.model, family)
    segments = model.build(requested.model, family, source.spec.num_classes, requested.two_pass_norms)
    network = _recorded(segments, image_size, data.channels(requested.dataset))
    options, taken = processor.with_precision(requested, network, here)
    options = replace(options, device=_device_options(options, cluster, total_replicas))
    rules.check_filters(options, network)
    plan, length = _plan_and_length(options, network, source.spec.train_images, training, cluster)
    options, plan = processor.with_bf16_units(options, plan, here)
    peak = _peak_rate(options, plan.global_batch) if training else None
    of_plan = partial(
        Run,
        options=options,
        data_source=source,
        data_dir=_data_dir(options.dataset, environ),
        image_size=image_size,
        network=network,
        length=length,
        peak_rate=peak,
        learning_rate=(lambda i: 0.0) if peak is None else learning_rate(options, length, peak),
        name=_name(options, model, plan),
        not_decayed=model.NOT_DECAYED[family],
    )
    if training and plans.cuts_automatically(options.device):
        from cnn_harness.emulator.cost_model.balance import balanced

        plan = balanced(of_plan(plan=plan).workload()).plan
    run = of_plan(plan=plan)
    warnings = rules.check_run(run, cluster, requested, environ)
    return Prepared(run, cluster, (*notes, *taken, *source.spec.notes, *warnings))


def _device_options(options: RunOptions, cluster: Cluster, total_replicas: int | None) -> DeviceOptions:
    """Return the device options with the number of replicas of this process, and explicit stochastic rounding.

    The number of replicas comes from poprun, from this call, or from the recorded run. Updates of FP32 weights, such as
    with 16.32, are not rounded. There an explicit `ON` means `all`: round results and gradients. The run records `all`, so
    that a resumed run does the same.
    """
    device, formats = options.device, NAMED[options.device.precision]
    here = {name for name, source in options.sources.items() if source.startswith((COMMAND_LINE, CONFIGURATION))}
    if cluster.replicas is not None:
        device = replace(device, replicas=cluster.replicas)
    elif total_replicas and "replicas" not in here and total_replicas % cluster.size == 0:
        device = replace(device, replicas=total_replicas // cluster.size)
    explicit = device.stochastic_rounding in ON and "stochastic_rounding" in here
    return replace(device, stochastic_rounding="all") if explicit and formats.compute != formats.master == FP32 else device


def _recorded(segments: list[Segment], image_size: int, channels: int) -> Network:
    try:
        return record(segments, image_size, channels)
    except NetworkError as error:
        raise OptionError(f"the model cannot be built: {error}; change --groups, --group-dim or --model-size") from None


def _plan_and_length(
    options: RunOptions, network: Network, images: int, training: bool, cluster: Cluster
) -> tuple[ExecutionPlan, TrainingLength]:
    try:
        plan = _plan(options, network, cluster if training else None)
        length = TrainingLength.of(
            images=images,
            global_batch=plan.global_batch,
            logs_first_rate=getattr(options.schedule, "logs_first_rate", False),
            **{name: value for name, value in options.values().items() if name in with_trait(LENGTH)},
        )
    except (PlanError, PartitionError, ScheduleError, DeviceError, ValueError) as error:
        raise OptionError(*parts(error)) from None
    return replace(plan, updates_per_host_step=length.updates_per_host_step if training else 0), length


def _plan(options: RunOptions, network: Network, cluster: Cluster | None) -> ExecutionPlan:
    """Return the plan of a training on a cluster, or of a validation, in which one IPU holds the whole network."""
    device, training = options.device, options.training
    precision = Precision.of(device, training.offload_fp32_weight_copy, _kernels(network))
    make = partial(plans.resolve, micro_batch_size=training.micro_batch_size, precision=precision)
    if cluster:
        return make(
            device, network, this_machine(), accumulation=training.gradient_accumulation_count,
            global_batch=training.global_batch_size, instances=cluster.size, instance=cluster.instance,
        )  # fmt: skip
    chosen = options.given("select_ipu") or len(device.select_ipu) == 2  # if the record has one id, it may be for training
    validation_ipu = device.select_ipu[-1] if chosen and device.select_ipu else "AUTO"
    one_ipu = {name: getattr(_DEVICE_DEFAULTS, name) for name in with_trait(TRAINING_ONLY)}
    return make(replace(device, **one_ipu, select_ipu=("AUTO", validation_ipu)), network, this_machine())


def _kernels(network: Network) -> list[str]:
    """Return the names of the kernels of convolutions and dense layers, in the order of the network."""
    return [variable.name for variable in network.variables if is_kernel(variable.name)]


def _peak_rate(options: RunOptions, global_batch: int) -> float:
    training = options.training
    if training.abs_learning_rate is not None:
        return training.abs_learning_rate
    if training.base_learning_rate_exponent is None:
        raise OptionError(
            f"model {options.main.model} has no default learning rate for --optimiser {training.optimiser}; give "
            "--base-learning-rate-exponent or --abs-learning-rate"
        )
    return 2.0**training.base_learning_rate_exponent * global_batch


def learning_rate(options: RunOptions, length: TrainingLength, peak: float) -> Callable[[int], float]:
    """Return a function from the index of an update to its learning rate. Raise OptionError for invalid options."""
    schedule = plugins.load("LR_Schedules", options.main.lr_schedule)
    try:
        return schedule.build(options.schedule, length.scheduled(peak))
    except ValueError as error:
        raise OptionError(*parts(error)) from None


def _name(options: RunOptions, model: Model, plan: ExecutionPlan) -> str:
    """Return the name of the run: model, batch and precision, then the suffix of --name-suffix."""
    name = model.run_name(
        options.model,
        micro=str(plan.micro_batch_size),
        replicas=f"x{plan.total_replicas}r" if plan.total_replicas > 1 else "",
        accumulation=_accumulation_label(plan),
        precision=plan.precision.label,
    )
    suffix = options.logging.name_suffix
    return f"{name}_{suffix}" if suffix else name


def _accumulation_label(plan: ExecutionPlan) -> str:
    """Return x<count>p with a pipeline, x<count>a without."""
    if plan.options.pipeline:
        return f"x{plan.accumulation}p"
    return f"x{plan.accumulation}a" if plan.accumulation > 1 else ""


def _data_dir(options: DatasetOptions, environ: Mapping[str, str]) -> str | None:
    """Return the absolute data folder, so that the run can be resumed from anywhere; None if no files are read."""
    reads = not options.random_data and options.dataset != EMBEDDED
    folder = options.data_dir or (environ.get("DATA_DIR") if reads else None)
    return os.path.abspath(folder) if folder else None
