"""From options to a run that is ready to build: data found and counted, model traced, batches and updates
worked out, learning rates known. No TensorFlow, no files written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from base import plugins
from base.errors import OptionError
from Datasets._spec import DataSource, DataSpec, ReadRequest
from emulator.plan import plan as plans
from emulator.plan.ipu_ids import DeviceError
from emulator.plan.machine import this_machine
from emulator.plan.memory_model import HostMemory
from emulator.plan.options import DeviceOptions
from emulator.plan.partition import PartitionError
from emulator.plan.plan import ExecutionPlan, PlanError
from emulator.plan.precision import Precision
from emulator.plan.schedules import ScheduleError
from emulator.plan.trace import Trace, TraceError, trace
from harness.options import rules
from harness.options.sections import DatasetOptions, RunOptions
from harness.options.sources import COMMAND_LINE, CONFIGURATION
from harness.run import cluster as clusters
from harness.run import data, doubts, host_memory, records
from harness.run.cluster import ALONE, Cluster
from harness.run.horizon import OPTIONS as PERIODS
from harness.run.horizon import Horizon
from LR_Schedules._warmup import RateHorizon
from Models._segments import Segment

EMBEDDED = "fashion-mnist"
ON = ("ON", "ON_prng_stable", "RI_prng_stable")  # spellings of stochastic rounding that do not say of what


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that training and validation are built from."""

    options: RunOptions
    source: DataSource
    data_dir: str | None
    image_size: int
    segments: list[Segment]
    trace: Trace
    plan: ExecutionPlan
    horizon: Horizon
    peak_rate: float | None  # None where nothing is trained
    rate: Callable[[int], float]
    seed: int
    name: str
    not_decayed: tuple[str, ...]
    notes: tuple[str, ...]
    memory: HostMemory  # of this process at its peak, as predicted
    cluster: Cluster = ALONE
    run_id: str = ""  # random, the run's own from its beginning on
    folders: tuple[str, ...] = ()  # of its instances, where each of them writes

    def training_request(self, done: int) -> ReadRequest:
        """What is asked of the data source for this instance's training stream, from weight update `done` on."""
        plan = self.plan
        block, period = plan.share
        return self.request(plan.samples_per_pass, done * plan.global_batch + plan.instance * block, block, period)

    def validation_request(self) -> ReadRequest:
        """The same for validation: of n instances, instance k has every n-th micro-batch from the k-th on."""
        batch, count = self.validation_batch, self.cluster.size
        return self.request(batch, self.cluster.instance * batch, *((batch, count * batch) if count > 1 else (0, 0)))

    def request(self, batch_size: int, start: int = 0, block: int = 0, period: int = 0) -> ReadRequest:
        """What is asked of the data source for one stream."""
        options = self.options.dataset
        return ReadRequest(
            batch_size=batch_size,
            image_size=self.image_size,
            seed=self.seed,
            start=start,
            block=block,
            period=period,
            augment=not options.train_with_valid_preprocessing,
            host_normalise=options.hostside_norm and not options.fused_preprocessing,
            eight_bit=options.eight_bit_io,
            fused=self.channels == 4,
            shuffle_block=options.shuffle_block,
            unit_normalise=options.normalise_input,
            symmetric_normalise=options.symmetric_input,
            parallel_calls=options.pipeline_num_parallel,
            cache=options.dataset_cache,
        )

    @property
    def channels(self) -> int:
        """Of a picture as the device gets it: 3, or 4 with fused preprocessing of photographs."""
        return _channels(self.options.dataset, data.family(self.options.dataset.dataset))

    @property
    def step_increment(self) -> int:
        """What a host step adds to a row's step: its micro-batches, or 1 in a pipeline."""
        return 1 if self.plan.options.pipeline else self.plan.accumulation

    @property
    def validation_batch(self) -> int:
        """Samples of one micro-batch in validation."""
        return self.options.checkpoint.valid_batch_size or self.plan.micro_batch

    def decayed(self, name: str) -> bool:
        """Whether weight decay applies to a variable."""
        return not any(part in name for part in self.not_decayed)

    def trained(self, name: str) -> bool:
        """Whether updates move a variable: all of them, or those that --variable-filter names."""
        wanted = self.options.training.variable_filter
        return not wanted or any(part in name for part in wanted)

    def summary(self) -> str:
        """The head of a log: what is about to run."""
        spec = self.source.spec
        lines = [
            f"Run: {self.name}, seed {self.seed}",
            f"Data set: {spec.name}, {spec.train_images} training and {spec.validation_images} validation images, "
            f"{spec.num_classes} classes",
            f"Image Size: {self.image_size}x{self.image_size}",
            self.plan.summary(),
            *self._updates(),
            f"Model: {self.trace.parameters:,} parameters ({self.trace.trainable_parameters:,} trainable), "
            f"{self.trace.multiply_adds / 1e6:,.1f} million multiply-adds and "
            f"{self.trace.activation_bytes(4) / 1e6:,.1f} MB of activations a picture",
            f"Host memory: {self.memory}" + (", in each process" if self.cluster.size > 1 else ""),
        ]
        return "\n".join(lines)

    def memory_of(self, plan: ExecutionPlan) -> HostMemory:
        """What training takes by another plan."""
        return host_memory.of_training(self.options, self.source.spec, self.trace, plan, self.picture)

    @property
    def picture(self) -> int:
        """Numbers in one picture."""
        return self.channels * self.image_size**2

    def _updates(self) -> list[str]:
        """How long and how fast is trained, if anything is."""
        if self.peak_rate is None:
            return []
        horizon, training = self.horizon, self.options.training
        highest = doubts.reached(self.options, horizon, self.peak_rate, self.rate)
        short = f" on the way to {self.peak_rate:.4g}" if highest < self.peak_rate else ""
        return [
            f"Updates: {horizon.iterations} ({horizon.epochs:g} epochs of {horizon.iterations_per_epoch}), "
            f"{training.optimiser}, learning rate up to {highest:.4g}{short} ({self.options.main.lr_schedule})"
        ]


def prepare(
    options: RunOptions, environ: Mapping[str, str], notes: tuple[str, ...] = (), *, training: bool = True,
    total_replicas: int | None = None,
) -> Run:  # fmt: skip
    """Resolves `options`; raises OptionError or DataError for what does not fit. `total_replicas`: of all instances, where
    an earlier part of the run decides it and nobody else.

    Not `training`: no learning rate is needed, and the global batch only dates the checkpoints.
    """
    cluster = clusters.find(options, environ, training)
    options, replaced = _with_replicas(options, cluster, total_replicas)
    options, rounded = _with_rounding(options)
    model = plugins.load("Models", options.main.model)
    family = data.family(options.dataset.dataset)
    opened = data.for_predictions if options.checkpoint.predict else data.open_source
    source = opened(options.dataset, environ)
    image_size = options.dataset.image_size or model.image_size(options.model, family)
    two_pass = bool(options.training.stable_norm) and not options.device.force_unstable_norm
    segments = model.build(options.model, family, source.spec.num_classes, two_pass)
    traced = _trace(segments, image_size, _channels(options.dataset, family))
    _refuse_filters_that_match_nothing("--variable-filter", options.training.variable_filter, traced)
    forced = _forcing_notes(options.device, traced)
    plan, horizon = _plan_and_horizon(options, traced, source.spec.train_images, training, cluster)
    peak = _peak_rate(options, plan.global_batch) if training else None
    rate = (lambda i: 0.0) if peak is None else _rate(options, horizon, peak)
    memory = host_memory.of_training if training else host_memory.of_validation
    return Run(
        options=options,
        source=source,
        data_dir=_data_dir(options, environ),
        image_size=image_size,
        segments=segments,
        trace=traced,
        plan=plan,
        horizon=horizon,
        peak_rate=peak,
        rate=rate,
        seed=secrets.randbelow(2**31) if options.device.seed is None else options.device.seed,
        name=_name(options, model, plan),
        not_decayed=model.NOT_DECAYED[family],
        memory=memory(options, source.spec, traced, plan, _channels(options.dataset, family) * image_size**2),
        cluster=cluster,
        notes=(
            *notes,
            *source.spec.notes,
            *replaced,
            *rounded,
            *(model.notes(options.model) if hasattr(model, "notes") else ()),
            *rules.input_notes(options.dataset, family),
            *forced,
            *_resolution_notes(options, plan, traced, source.spec.train_images),
            *_layout_notes(options, plan, training),
            *_training_notes(options, plan, training),
            *_doubts(options, source, traced, plan, horizon, peak, rate, cluster, environ),
        ),
    )


def _with_replicas(options: RunOptions, cluster: Cluster, before: int | None) -> tuple[RunOptions, list[str]]:
    """poprun says how many replicas an instance has; otherwise a run that goes on has as many in all as `before`."""
    asked, given = options.device.replicas, cluster.replicas
    chosen = _on_command_line(options, "replicas")
    if given is None and before and not chosen and before % cluster.size == 0:
        total = before // cluster.size
        return dataclasses.replace(options, device=dataclasses.replace(options.device, replicas=total)), []
    if given in (None, asked):
        return options, []
    total = given * cluster.size
    said = [f"--replicas {asked} is replaced by poprun's {given} of {total}"] if asked not in (1, total) else []
    return dataclasses.replace(options, device=dataclasses.replace(options.device, replicas=given)), said


def _with_rounding(options: RunOptions) -> tuple[RunOptions, list[str]]:
    """With FP32 masters no update rounds, so that who asks for stochastic rounding means results and gradients. Recorded as
    `all`, it is no longer taken for the default where the run goes on."""
    device = options.device
    asked, source = device.stochastic_rounding, options.sources.get("stochastic_rounding", "")
    if device.precision != "16.32" or asked not in ON or not source.startswith((COMMAND_LINE, CONFIGURATION)):
        return options, []
    said = f"--stochastic-rounding {asked}: with 16.32's FP32 weights, results and gradients are rounded at random (all)"
    return dataclasses.replace(options, device=dataclasses.replace(device, stochastic_rounding="all")), [said]


def _channels(options: DatasetOptions, family: str) -> int:
    """Of a picture as the device gets it."""
    return 4 if options.fused_preprocessing and family == "imagenet" else 3


def _trace(segments: list[Segment], image_size: int, channels: int) -> Trace:
    try:
        return trace(segments, image_size, channels)
    except TraceError as error:
        raise OptionError(f"the model cannot be built: {error}; change --groups, --group-dim or the size") from None


def _forcing_notes(device: DeviceOptions, traced: Trace) -> list[str]:
    """What the log says of --force-weight-to-...; OptionError for words that name nothing, or what cannot be forced."""
    half, single = device.force_weight_to_fp16, device.force_weight_to_fp32
    for part in rules.only_moving(half, *_names(traced)):
        raise OptionError(
            f"--force-weight-to-fp16 {part} names moving statistics only, and they are kept in FP32; leave it out"
        )
    kept = rules.only_moving(single, *_names(traced))
    for kind, words in (("fp16", half), ("fp32", [part for part in single if part not in kept])):
        _refuse_filters_that_match_nothing(f"--force-weight-to-{kind}", words, traced)
    _refuse_what_is_forced_both_ways(half, single, traced)
    return [f"--force-weight-to-fp32 {' '.join(kept)} changes nothing: moving statistics are FP32 already"] if kept else []


def _names(traced: Trace) -> tuple[list[str], list[str]]:
    """Of the variables that gradients train, and of those that batches move."""
    trained, moving = ([v.name for v in traced.variables if v.trainable is kind] for kind in (True, False))
    return trained, moving


def _refuse_what_is_forced_both_ways(to_half: tuple[str, ...], to_single: tuple[str, ...], traced: Trace) -> None:
    for name in _names(traced)[0]:
        half, single = ([part for part in parts if part in name] for parts in (to_half, to_single))
        if half and single:
            raise OptionError(
                f"--force-weight-to-fp16 {half[0]} and --force-weight-to-fp32 {single[0]} both name {name}; leave it in one "
                "of them"
            )


def _refuse_filters_that_match_nothing(option: str, filters: Sequence[str], traced: Trace) -> None:
    names, _ = _names(traced)
    for part in filters:
        if not any(part in name for name in names):
            known = sorted({name.split("/")[1] for name in names} | {name.rsplit("/", 1)[-1] for name in names})
            near = plugins.did_you_mean(part, known)
            raise OptionError(
                f"{option} {part}: no trained variable's name contains it{near}; names are like {names[0]} and {names[-1]}"
            )


def _plan_and_horizon(
    options: RunOptions, traced: Trace, images: int, for_training: bool, cluster: Cluster
) -> tuple[ExecutionPlan, Horizon]:
    resolve = _training_plan if for_training else _validation_plan
    try:
        plan = resolve(options, traced, cluster)
        horizon = Horizon.of(
            images=images,
            global_batch=plan.global_batch,
            tells_first=getattr(options.schedule, "rows_tell_first", False),
            **{name: value for name, value in options.values().items() if name in PERIODS},
        )
    except (PlanError, PartitionError, ScheduleError, DeviceError, ValueError) as error:
        raise OptionError(str(error)) from None
    return dataclasses.replace(plan, updates_per_step=horizon.iterations_per_step if for_training else 0), horizon


def _training_plan(options: RunOptions, traced: Trace, cluster: Cluster) -> ExecutionPlan:
    training = options.training
    return plans.resolve(
        options.device,
        traced,
        this_machine(),
        micro_batch=training.micro_batch_size,
        accumulation=training.gradient_accumulation_count,
        global_batch=training.global_batch_size,
        precision=Precision.of(options.device, training.offload_fp32_weight_copy),
        instances=cluster.size,
        instance=cluster.instance,
    )


def _validation_plan(options: RunOptions, traced: Trace, _: Cluster) -> ExecutionPlan:
    """The whole network at once on one IPU: stages, spans and folds are the training's affair."""
    device, training = options.device, options.training
    chosen = _on_command_line(options, "select_ipu")  # a recorded one may be for training
    validation_ipu = device.select_ipu[-1] if chosen or len(device.select_ipu) == 2 else "AUTO"
    return plans.resolve(
        DeviceOptions(device=device.device, select_ipu=("AUTO", validation_ipu)),
        traced,
        this_machine(),
        micro_batch=training.micro_batch_size,
        precision=Precision.of(device, training.offload_fp32_weight_copy),
    )


def _peak_rate(options: RunOptions, global_batch: int) -> float:
    training = options.training
    if training.abs_learning_rate is not None:
        return training.abs_learning_rate
    if training.base_learning_rate_exponent is None:
        raise OptionError(
            f"model {options.main.model} has no default learning rate for --optimiser {training.optimiser}: give "
            "--base-learning-rate-exponent or --abs-learning-rate"
        )
    return 2.0**training.base_learning_rate_exponent * global_batch


def _rate(options: RunOptions, horizon: Horizon, peak: float) -> Callable[[int], float]:
    schedule = plugins.load("LR_Schedules", options.main.lr_schedule)
    try:
        return schedule.build(
            options.schedule,
            RateHorizon(
                peak=peak,
                iterations=horizon.iterations,
                epochs=horizon.exact_epochs,
                iterations_per_epoch=horizon.iterations_per_epoch,
                epochs_per_update=horizon.epochs_per_update,
            ),
        )
    except ValueError as error:
        raise OptionError(str(error)) from None


def _name(options: RunOptions, model: ModuleType, plan: ExecutionPlan) -> str:
    """The run's name without its random end, and its suffix."""
    name = model.run_name(
        options.model,
        micro=str(plan.micro_batch),
        replicas=f"x{plan.total_replicas}r" if plan.total_replicas > 1 else "",
        accumulation=_accumulation_label(plan),
        precision=plan.precision.label,
    )
    suffix = options.logging.name_suffix
    if suffix and (any(part in suffix for part in ("/", "\\", "..")) or not suffix.isprintable()):
        raise OptionError(f"--name-suffix '{suffix}' must not contain / \\ .. or unprintable characters")
    return f"{name}_{suffix}" if suffix else name


def _accumulation_label(plan: ExecutionPlan) -> str:
    """x<count>p in a pipeline, x<count>a outside of one."""
    if plan.options.pipeline:
        return f"x{plan.accumulation}p"
    return f"x{plan.accumulation}a" if plan.accumulation > 1 else ""


def _resolution_notes(options: RunOptions, plan: ExecutionPlan, traced: Trace, images: int) -> list[str]:
    notes = rules.notes(options.training, options.sources, plan.global_batch, *_names(traced))
    if not plan.precision.rounds_weights and plan.precision.offload_fp32_weight_copy:
        notes.append(f"--offload-fp32-weight-copy changes nothing: with {plan.precision.name} the weights are FP32")
    if not plan.precision.rounds_results and plan.precision.saturate_on_overflow:
        notes.append(f"--saturate-on-overflow changes nothing: with {plan.precision.name} nothing is half")
    if plan.global_batch > images:
        notes.append(f"one update takes {plan.global_batch} samples: more than the {images} images of an epoch")
    return notes


def _on_command_line(options: RunOptions, name: str) -> bool:
    return options.sources.get(name, "").startswith(COMMAND_LINE)


def _layout_notes(options: RunOptions, plan: ExecutionPlan, training: bool) -> list[str]:
    """What the log says of stages and their memory; OptionError for a list that does not fit the shards it is for."""
    notes = []
    stages = len(plan.stages)
    if training and options.device.pipeline and options.device.shards == 1:
        counted = f"{stages} stages" if stages > 1 else "one stage"
        notes.append(f"--pipeline with --shards 1: {counted} on one device, run as Sequential")
    memory, shards = options.device.available_memory_proportion, options.device.shards
    if len(memory) not in (0, 1, 2 * shards):
        given = {name for name in ("available_memory_proportion", "shards") if _on_command_line(options, name)}
        said = f"--available-memory-proportion has {len(memory)} values but needs 1, or 2 for each of the {shards} shards"
        if "available_memory_proportion" in given or (training and "shards" not in given):
            raise OptionError(said)
        notes.append(f"{said}: the configuration's list, which changes nothing here, was for other shards")
    return notes


def _training_notes(options: RunOptions, plan: ExecutionPlan, training: bool) -> list[str]:
    """What concerns nobody who only validates."""
    if not training:
        return []
    return [
        *rules.mixing_notes(options.dataset, plan.micro_batch),
        *rules.averaging_notes(options.training, options.checkpoint),
    ]


def _doubts(
    options: RunOptions, source: DataSource, traced: Trace, plan: ExecutionPlan, horizon: Horizon, peak: float | None,
    rate: Callable[[int], float], cluster: Cluster, environ: Mapping[str, str],
) -> list[str]:  # fmt: skip
    """What is most likely not meant, in a line each; OptionError for what cannot be."""
    if peak is None:
        if not options.checkpoint.predict:
            doubts.validation_data(source)
        return []
    batch_norm = any("batch_norm/moving" in variable.name for variable in traced.variables)
    return [
        *doubts.training_data(options, source),
        *doubts.update(options, source.spec.num_classes, horizon, peak, rate),
        *doubts.loss_scale(options, plan),
        *doubts.statistics(options, plan, batch_norm),
        *doubts.neighbours(cluster, environ),
        *doubts.without_effect(options, plan, horizon, batch_norm),
    ]


def arguments(run: Run, command: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    """What arguments.json records: every option's value and source, and what follows from them."""
    values = {name: list(value) if isinstance(value, tuple) else value for name, value in run.options.values().items()}
    linear = run.options.training.optimiser in rules.LINEAR
    scale = run.options.training.loss_scaling
    derived = {
        "batch_size": run.plan.micro_batch,
        "command": command,
        "data_dir": run.data_dir,
        "fold_used": run.plan.fold,
        "global_batch_size": run.plan.global_batch,
        "grad_scale": 1.0 if linear else scale,
        "iterations_per_epoch": run.horizon.iterations_per_epoch,
        "lr_scale": scale if linear else 1.0,
        "name": run.name,
        records.CLASSES: names_digest(run.source.spec),
        "num_classes": run.source.spec.num_classes,  # --predict needs no data, but the network's size
        "parameters": run.trace.parameters,
        "precision": run.plan.precision.name,
        "seed": run.seed,
        "seed_specified": run.options.device.seed is not None,
        "summary_str": run.summary(),
        "total_batch_size": run.plan.global_batch,
        "total_iterations": run.horizon.iterations,
        "total_replicas": run.plan.total_replicas,
        "instances": run.plan.instances,
        "instance": run.cluster.instance,
        "instance_folders": list(run.folders),
        "image_size": run.image_size,
        "wd_exclude": list(run.not_decayed),
    }
    asked = {"global_batch_size": run.options.training.global_batch_size, "image_size": run.options.dataset.image_size}
    return {**values, **derived, **extra, "asked": asked, "sources": dict(run.options.sources)}


def names_digest(spec: DataSpec) -> str | None:
    """Of what the classes of a data set are called, in their order; None if nobody has told it."""
    names = json.dumps(spec.class_names).encode()
    return hashlib.blake2b(names, digest_size=8).hexdigest() if spec.class_names else None


def _data_dir(options: RunOptions, environ: Mapping[str, str]) -> str | None:
    """The data's folder in full, so that the run can be resumed from anywhere; None if no files are read."""
    made = options.dataset.generated_data or options.dataset.synthetic_data
    embedded = options.dataset.dataset == EMBEDDED
    given = options.dataset.data_dir or (None if made or embedded else environ.get("DATA_DIR"))
    return os.path.abspath(given) if given else None
