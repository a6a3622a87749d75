"""The execution plan: how a run computes its global batch. This module does not import TensorFlow.

Programs, cost model and charts read the plan. `harness/run/resolve.py` later replaces automatic stages by the better stages
of `emulator/cost_model/balance.py`, which needs a plan to start from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cnn_harness.base.errors import WrongInput
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan import partition, schedules
from cnn_harness.emulator.plan.ipu_ids import Device, select
from cnn_harness.emulator.plan.machine import Machine
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.precision import SINGLE, Precision
from cnn_harness.Models._layers import Variable
from cnn_harness.Models._norms import BatchNorm

AUTO = "auto"
INPUT = "input"  # a stage without segments has this name and only passes the images to the next stage.
MAX_SAMPLES = 2**31 - 1  # the device loop counts the samples of an update in 32 bits.
MAX_FOLDED = 8  # --fold auto chooses at most 8, because batch norm needs operations for each micro-batch of a pass.
WORTH_MEMORY = 1.02  # --fold auto prefers smaller passes that are up to 2 % slower, because they take less memory.
# These times were measured on two cores of an AMD EPYC (bench/NOTES.md). `auto` uses them on every machine, because the
# bits of a result depend on the fold.
SECONDS_PER_MULTIPLY_ADD, SECONDS_PER_BYTE = 1.2e-11, 3e-10  # the time of a sample, forward and backward, grows by these.
SECONDS_PER_LAYER, SECONDS_PER_PARAMETER = 1e-4, 1e-9  # the time of a pass grows by these, whatever its number of samples.


class PlanError(WrongInput):
    """Device options contradict each other."""


@dataclass(frozen=True, kw_only=True)
class ExecutionPlan:
    """The execution of one weight update. Every instance (process) runs replicas x accumulation micro-batches through the
    stages.

    Micro-batch m = accumulation step x total replicas + replica. The first replica of instance k has the number k x
    replicas. Each instance adds its gradients in the order of m, then the sums of the instances are added.

    * `options` has the default value for every option without effect.
    * `stages` has the names of each stage's segments (blocks of layers).
    * `updates_per_host_step` is the largest number of weight updates in a host step, or 0 without training.
    * `max_in_flight` is the largest number of passes in each stage that wait for their backward, or for the gradients of
      the weights if the schedule splits the backward.
    * `stage_devices` has the TensorFlow device of each stage.
    * `fold` is the number of a replica's micro-batches that share a pass.
    * `instance` is the number of this process, from 0.
    """

    options: DeviceOptions = field(repr=False)
    micro_batch_size: int
    accumulation: int
    stages: tuple[tuple[str, ...], ...]
    updates_per_host_step: int = 1
    precision: Precision
    schedule: str
    max_in_flight: tuple[int, ...]
    stage_devices: tuple[str, ...]
    training_device: Device
    validation_device: Device
    fold: int
    instances: int = 1
    instance: int = 0

    @property
    def stage_names(self) -> tuple[str, ...]:
        """The name of each stage's first segment."""
        return tuple(stage[0] if stage else INPUT for stage in self.stages)

    @property
    def overlapped(self) -> bool:
        """True if stages work on several passes at once."""
        return self.passes_in_flight > 1

    @property
    def pipeline_devices(self) -> int:
        """The number of devices in the schedule's timeline."""
        return len(self.stages) // schedules.SCHEDULES[self.schedule].stages_per_device

    @property
    def splits_backward(self) -> bool:
        """True if gradients of weights are computed in cells of their own, later than the gradient of the stage's input."""
        return schedules.SCHEDULES[self.schedule].split

    @property
    def separates_segments(self) -> bool:
        """True if the gradients of each segment are computed separately, so nothing is fused across segments."""
        return self.options.enable_recomputation or self.splits_backward

    @property
    def passes_in_flight(self) -> int:
        """The largest number of passes in the pipeline at once."""
        return schedules.passes_in_flight(self.schedule, len(self.stages), self.passes_per_update)

    @property
    def passes_per_update(self) -> int:
        """The number of passes (forward and backward) in one weight update of an instance."""
        return self.micro_batches // self.micro_batches_per_pass

    @property
    def micro_batches_per_pass(self) -> int:
        """The number of micro-batches in one pass: `fold` for each of the replicas that share batch norm."""
        return self.options.local_span * self.fold

    @property
    def samples_per_pass(self) -> int:
        """The number of samples in one pass."""
        return self.micro_batch_size * self.micro_batches_per_pass

    @property
    def one_replica(self) -> str:
        """A text with the number of micro-batches in one replica's update and the schedule's share of idle slots."""
        idle = 100 * schedules.scheduled_idle_fraction(self.schedule, len(self.stages), self.accumulation)
        count = _count(self.accumulation, "micro-batch", "micro-batches")
        return f"one replica's update, {count}, {idle:.0f} % of slots idle"

    def random_position(self, position: Any) -> Any:
        """Return the position that keys a sample's random draws on the device. By default this is its position among the
        samples of all replicas. With identical seeding it counts only its own replica's samples, so all replicas draw
        alike."""
        if not self.options.identical_replica_seeding or self.total_replicas == 1:
            return position
        micro_batch, sample = position // self.micro_batch_size, position % self.micro_batch_size
        return micro_batch // self.total_replicas * self.micro_batch_size + sample

    @property
    def total_replicas(self) -> int:
        """The number of replicas of all instances."""
        return self.options.replicas * self.instances

    @property
    def data_shard(self) -> tuple[int, int]:
        """(block, stride): the instance takes `block` of every `stride` samples of the global order. The first sample has
        the number instance x block. (0, 0) means that it takes all samples."""
        block = self.options.replicas * self.micro_batch_size
        return (block, block * self.instances) if self.instances > 1 else (0, 0)

    @property
    def batch_norm_group(self) -> range:
        """The numbers of the instances that share batch-norm statistics with this instance, and its own number."""
        count = max(1, self.options.BN_span // self.options.replicas)
        first = self.instance // count * count
        return range(first, first + count)

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in one weight update of an instance, for all its replicas."""
        return self.accumulation * self.options.replicas

    @property
    def global_batch(self) -> int:
        """The number of samples in one weight update of all instances."""
        return self.micro_batch_size * self.micro_batches * self.instances

    @property
    def ipus(self) -> int:
        """The number of emulated IPUs."""
        return self.options.shards * self.total_replicas

    def summary(self, variables: Iterable[Variable]) -> str:
        """Return the log's lines about the plan of a network with these variables."""
        lines = [
            f"Batch Size: {self.global_batch}",
            f"Layout: micro-batch {self.micro_batch_size} x accumulation {self.accumulation}"
            + f" x replicas {self.options.replicas}"
            + (f" x instances {self.instances}" if self.instances > 1 else "")
            + (f", {self.micro_batches_per_pass} micro-batches per pass" if self.fold > 1 else "")
            + (f", batch norm over {self.options.BN_span} replicas" if self.options.BN_span > 1 else "")
            + f"; precision {self.precision.summary(variables)}"
            + (f", up to {self.updates_per_host_step} updates per host step" if self.updates_per_host_step else ""),
        ]
        if len(self.stages) > 1:
            passes = _count(self.passes_in_flight, "pass", "passes")
            begin = ", ".join(self.stage_names)
            lines.append(f"  {len(self.stages)} stages, {self.schedule}, {passes} in flight; first segments: {begin}")
        attached = str(self.training_device)
        if self.validation_device != self.training_device:
            attached += f", validation on {self.validation_device}"
        computed_on = ", ".join(dict.fromkeys(device.strip("/") for device in self.stage_devices))
        lines.append(f"  emulates {_count(self.ipus, 'IPU', 'IPUs')}: {attached}; computed on {computed_on}")
        if self.options.enable_recomputation:
            lines.append("  activations are recomputed in the backward pass")
        if self.options.identical_replica_seeding:
            lines.append("  every replica draws the same random numbers on the device")
        return "\n".join(lines)


def resolve(
    options: DeviceOptions, network: Network, machine: Machine, *, micro_batch_size: int, accumulation: int = 1,
    global_batch: int | None = None, precision: Precision = SINGLE, instances: int = 1, instance: int = 0,
) -> ExecutionPlan:  # fmt: skip
    """Return the complete plan. If `global_batch` is given, it determines the accumulation count.

    Raise PlanError, PartitionError, ScheduleError or DeviceError if the options do not fit together. Ignore --BN-span
    without batch norm, because it would change the size of the passes and so the rounding of gradient sums.
    """
    if BatchNorm not in network.norms:
        options = replace(options, BN_span=1)
    own_devices = options.shards > 1  # True if stages have devices of their own.
    schedule = options.pipeline_schedule if options.pipeline and own_devices else "Sequential"
    stages = _stages(options, network, schedules.SCHEDULES[schedule].stages_per_device)
    replicas = options.replicas * instances
    if global_batch is not None:
        accumulation = _accumulation(global_batch, micro_batch_size, replicas)
    _check_sizes(options, micro_batch_size, accumulation, replicas)
    # Batch norm treats the micro-batches of replicas that share statistics as one micro-batch.
    micro_batches_for_norm = accumulation * options.replicas // options.local_span
    fold = _fold(options, network, micro_batch_size, micro_batches_for_norm, len(stages) if schedule != "Sequential" else 1)
    for_training, for_validation = (*options.select_ipu, "AUTO", "AUTO")[:2]
    return ExecutionPlan(
        options=options,
        micro_batch_size=micro_batch_size,
        accumulation=accumulation,
        stages=stages,
        precision=precision,
        schedule=schedule,
        max_in_flight=schedules.max_in_flight(schedule, len(stages), micro_batches_for_norm // fold),
        stage_devices=_stage_devices(options.device, len(stages), options.shards, machine),
        training_device=select(for_training, options.shards * replicas, "training"),
        validation_device=select(for_validation, 1, "validation"),
        fold=fold,
        instances=instances,
        instance=instance,
    )


def _check_sizes(options: DeviceOptions, micro_batch_size: int, accumulation: int, replicas: int) -> None:
    """Raise PlanError if the sizes do not fit together. `replicas` is the number of replicas of all instances."""
    samples = micro_batch_size * accumulation * replicas
    if samples > MAX_SAMPLES:
        raise PlanError(
            f"an update of micro-batch {micro_batch_size} x accumulation {accumulation} x replicas {replicas} = "
            f"{samples:,} samples exceeds the limit of {MAX_SAMPLES:,}"
        )
    span = options.BN_span
    if span & (span - 1) or replicas % span:
        raise PlanError(f"--BN-span {span} must be a power of two that divides the {replicas} replicas into equal groups")
    if options.replicas % span and span % options.replicas:
        raise PlanError(
            f"--BN-span {span} does not fit the {options.replicas} replicas of an instance; give a divisor or a multiple of "
            f"{options.replicas}"
        )
    if options.rts and options.disable_variable_offloading:
        raise PlanError(
            "--rts shards offloaded optimiser state, but --disable-variable-offloading keeps the state on the chip; "
            "give --no-rts or --no-disable-variable-offloading"
        )


def _stage_devices(device: str, stages: int, shards: int, machine: Machine) -> tuple[str, ...]:
    """Return a TensorFlow device for each stage: that of its emulated IPU. On CPUs every IPU has a logical device; the IPUs
    share GPUs equally."""
    ipus = [stage % shards for stage in range(stages)]
    if device == "gpu" and not machine.gpus:
        raise PlanError(
            "--device gpu: TensorFlow can use no GPU. Give --device cpu or auto; a GPU needs an NVIDIA card and the package "
            "tensorflow[and-cuda]"
        )
    if device == "cpu" or not machine.gpus:
        return tuple(f"/cpu:{ipu}" for ipu in ipus)
    return tuple(f"/gpu:{ipu * min(machine.gpus, shards) // shards}" for ipu in ipus)


def cuts_automatically(options: DeviceOptions) -> bool:
    """Return whether stages are automatic: with --pipeline-splits auto, or with --shards but neither splits nor a
    pipeline."""
    automatic = tuple(name.lower() for name in options.pipeline_splits) == (AUTO,)
    return automatic or (options.shards > 1 and not options.pipeline_splits and not options.pipeline)


def _stages(options: DeviceOptions, network: Network, per_ipu: int) -> tuple[tuple[str, ...], ...]:
    shards = options.shards
    if cuts_automatically(options):
        filters = options.sharding_include_filter, options.sharding_exclude_filter
        return partition.automatic(network, shards * per_ipu, *filters)
    return partition.split(network.segments, options.pipeline_splits, shards if shards > 1 else None, per_ipu)


def _accumulation(global_batch: int, micro_batch_size: int, replicas: int) -> int:
    samples = micro_batch_size * replicas
    if global_batch % samples:
        below = global_batch // samples * samples
        raise PlanError(
            f"--global-batch-size {global_batch} is not a multiple of micro-batch {micro_batch_size} x replicas "
            f"{replicas} = {samples}; nearest: {f'{below} or ' if below else ''}{below + samples}"
        )
    return global_batch // samples


def _fold(options: DeviceOptions, network: Network, micro_batch_size: int, micro_batches_for_norm: int, stages: int) -> int:
    """Return the number of an update's `micro_batches_for_norm` that share a pass.

    `auto` returns the smallest number up to eight whose predicted time is near the shortest. The FP32 activations of a pass
    must fit into --fold-memory, and a pipeline must have at least four passes per stage.
    """
    if options.fold != AUTO:
        fold = int(options.fold)
        if micro_batches_for_norm % fold:
            span = options.local_span
            divided = f"the {micro_batches_for_norm * span} micro-batches of an update"
            if span > 1:
                divided = f"{micro_batches_for_norm}, {divided} by the {span} of a batch norm,"
            raise PlanError(f"--fold {fold} must divide {divided} evenly")
        return fold
    samples = micro_batch_size * options.local_span
    seconds = {
        fold: _seconds_per_batch(network, samples, fold)
        for fold in range(1, min(micro_batches_for_norm, MAX_FOLDED) + 1)
        if micro_batches_for_norm % fold == 0
        and fold * samples * network.activation_bytes(4) <= options.fold_memory * 10**6
        and (stages == 1 or micro_batches_for_norm // fold >= 4 * stages)
    }
    return next((fold for fold, each in seconds.items() if each <= WORTH_MEMORY * min(seconds.values())), 1)


def _seconds_per_batch(network: Network, samples: int, fold: int) -> float:
    """Return the predicted host seconds, forward and backward, for one batch of `samples` if `fold` batches share a pass."""
    of_pass = len(network.operations) * SECONDS_PER_LAYER + network.trainable_parameters * SECONDS_PER_PARAMETER
    of_sample = network.multiply_adds * SECONDS_PER_MULTIPLY_ADD + network.activation_bytes(4) * SECONDS_PER_BYTE
    return samples * of_sample + of_pass / fold


def _count(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
