"""Define `Run`: what a call computes. This module does not import TensorFlow.

`Execution` in cluster.py says where: instances, seed and folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cnn_harness.base.process import tf_runtime
from cnn_harness.Datasets._spec import DataSource, ReadRequest
from cnn_harness.emulator.native import library
from cnn_harness.emulator.network.network import Network
from cnn_harness.emulator.plan import fault, host_memory, machine
from cnn_harness.emulator.plan.host_memory import HostMemory
from cnn_harness.emulator.plan.number_formats import FP16
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.harness.options.releases import version
from cnn_harness.harness.options.sections import RunOptions
from cnn_harness.harness.run import data
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.length import TrainingLength
from cnn_harness.LR_Schedules._schedule import highest
from cnn_harness.Models._norms import Norm
from cnn_harness.Optimisers._rule import named_by

if TYPE_CHECKING:
    from cnn_harness.emulator.cost_model.workload import Workload

HALVES_COST = "1.2 to 1.6"  # measured in docs/measured.md, bench/NOTES.md


@dataclass(frozen=True, kw_only=True)
class Run:
    """The options, network, data, plan, length and learning rates of a run. `rules.py` has checked them."""

    options: RunOptions
    data_source: DataSource
    data_dir: str | None
    image_size: int
    network: Network
    plan: ExecutionPlan
    length: TrainingLength
    peak_rate: float | None  # None for validation and inference
    learning_rate: Callable[[int], float]
    name: str
    not_decayed: tuple[str, ...]

    def training_request(self, done: int, seed: int) -> ReadRequest:
        """Return the request for the training images of this process, starting after `done` weight updates."""
        plan = self.plan
        block, stride = plan.data_shard
        return self.request(plan.samples_per_pass, seed, done * plan.global_batch + plan.instance * block, block, stride)

    def validation_request(self, execution: Execution) -> ReadRequest:
        """Return the request for the validation images of this process.

        Process k of n validates every n-th micro-batch, starting with micro-batch k.
        """
        batch, cluster = self.validation_batch, execution.cluster
        shards = (batch, cluster.size * batch) if cluster.size > 1 else (0, 0)
        return self.request(batch, execution.seed, cluster.instance * batch, *shards)

    def request(
        self, batch_size: int, seed: int = 0, start: int = 0, shard_block: int = 0, shard_stride: int = 0
    ) -> ReadRequest:
        """Return the request for a stream of batches. Without augmentation and shuffling, the seed has no effect."""
        options = self.options.dataset
        return ReadRequest(
            batch_size=batch_size,
            image_size=self.image_size,
            seed=seed,
            start=start,
            shard_block=shard_block,
            shard_stride=shard_stride,
            augment=not options.train_with_valid_preprocessing,
            policy=options.augment,
            magnitude=options.augment_magnitude,
            colour_jitter=options.colour_jitter,
            random_erasing=options.random_erasing,
            hostside_norm=options.hostside_norm and not options.fused_preprocessing,
            eight_bit_io=options.eight_bit_io,
            fused_preprocessing=self.channels == 4,
            shuffle_block=options.shuffle_block,
            normalise_input=options.normalise_input,
            symmetric_input=options.symmetric_input,
            image_mean=options.image_mean,
            image_std=options.image_std,
            pipeline_num_parallel=options.pipeline_num_parallel,
            dataset_cache=options.dataset_cache,
        )

    @property
    def family(self) -> str:
        """The kind of the data set's images: "cifar" or "imagenet"."""
        return data.family(self.options.dataset.dataset)

    @property
    def channels(self) -> int:
        """The number of channels of an image on the device."""
        return data.channels(self.options.dataset)

    @property
    def step_increment(self) -> int:
        """The number by which an update increases `step` in the log: its micro-batches, or 1 with a pipeline."""
        return 1 if self.plan.options.pipeline else self.plan.accumulation

    @property
    def validation_batch(self) -> int:
        """The number of images in a micro-batch of validation."""
        return self.options.checkpoint.valid_batch_size or self.plan.micro_batch_size

    @property
    def mirrors(self) -> bool:
        """True with --tta flip: inference also uses the mirror image of each image."""
        return self.options.checkpoint.tta == "flip"

    def is_decayed(self, name: str) -> bool:
        """Return whether weight decay applies to a variable."""
        return not named_by(self.not_decayed)(name)

    def is_trained(self, name: str) -> bool:
        """Return whether a variable is trained. Without --variable-filter, every variable is."""
        words = self.options.training.variable_filter
        return not words or named_by(words)(name)

    def is_normed(self, name: str) -> bool:
        """Return whether an update needs the norms of a variable and of its gradient."""
        rule = self.options.training.update_rule(self.plan.global_batch)
        return rule.has_norms and not rule.skips(name)

    @property
    def fault(self) -> fault.Fault | None:
        """The fault of --inject. Raise OptionError if there is no such layer."""
        trained = [variable for variable in self.network.variables if self.is_trained(variable.name)]
        given = self.options.training.inject
        return fault.parse(given, trained) if given else None

    @cached_property
    def frozen_norms(self) -> frozenset[str]:
        """The names of the batch norms whose variables are not trained."""
        scopes = {v.name.rpartition("/")[0] for v in self.network.variables if v.decay is not None}
        return frozenset(scopes - {v.name.rpartition("/")[0] for v in self.network.variables if self.is_trained(v.name)})

    @property
    def frozen_statistics(self) -> frozenset[str]:
        """The moving averages that batch norms use in training too, because they are frozen."""
        if self.options.training.frozen_norm_statistics == "batch":
            return frozenset()
        names = (v.name for v in self.network.variables if v.decay is not None)
        return frozenset(name for name in names if name.rpartition("/")[0] in self.frozen_norms)

    @property
    def trains(self) -> bool:
        """True if the run updates weights; False if it only validates."""
        return self.peak_rate is not None

    @property
    def norms(self) -> frozenset[type[Norm]]:
        """The kinds of norms in the network, such as batch norm."""
        return self.network.norms

    @cached_property
    def highest_rate(self) -> float:
        """The highest learning rate of all updates.

        The rate is below the peak if the run ends in the warm-up, and above the peak if the curve rises after the warm-up.
        """
        return highest(self.learning_rate, self.length.iterations)[0]

    @property
    def is_far_below_peak(self) -> bool:
        """True if the run ends in the warm-up below the peak, or if the highest rate is below half of the peak."""
        within = getattr(self.options.schedule, "warmup_epochs", 0) >= self.length.epochs
        return self.highest_rate < (self.peak_rate if within else self.peak_rate / 2)

    @property
    def computes_on_cpu(self) -> bool:
        """True if a CPU computes, and not GPUs."""
        return self.plan.stage_devices[0].startswith("/cpu")

    @property
    def arithmetic(self) -> str:
        """The kernels, cores or GPUs, BF16 units, and settings of TensorFlow. They determine the order of sums, and so the
        rounding."""
        cores = machine.cores()
        where = f"{cores} core{'s' * (cores > 1)}" if self.computes_on_cpu else "GPUs"
        units = "the processor's BF16 units" if library.has_bf16() else "BF16 products without BF16 units"
        return ", ".join([
            library.identity() or "no native kernels", where, *[units] * self.plan.precision.native_arithmetic,
            *(f"{name}={value}" for name, value in tf_runtime.settings().items()),
        ])  # fmt: skip

    def summary(self, execution: Execution) -> str:
        """Return the first lines of the log, which describe the run."""
        spec = self.data_source.spec
        lines = [
            f"Run: {self.name}, seed {execution.seed}",
            *self._narrow_formats(),
            f"Data set: {spec.name}, {spec.train_images} training and {spec.validation_images} validation images, "
            f"{spec.num_classes} classes",
            f"Image Size: {self.image_size}x{self.image_size}",
            self.plan.summary(self.network.variables),
            f"  kernels: {library.described()}",
            *self._updates(),
            f"Model: {self.network.parameters:,} parameters ({self.network.trainable_parameters:,} trainable), "
            f"{self.network.multiply_adds / 1e6:,.1f} million multiply-adds and "
            f"{self.network.activation_bytes(4) / 1e6:,.1f} MB of activations per image",
            f"  host memory: {self.memory}" + (", in each process" if execution.cluster.size > 1 else ""),
        ]
        return "\n".join(lines)

    def _narrow_formats(self) -> list[str]:
        """Return a line on how narrow number formats are computed, or []."""
        precision = self.plan.precision
        if precision.native_arithmetic:
            used = "The processor's BF16 units multiply, so the last digits depend on the processor (--no-native-arithmetic"
            return [f"{used} emulates BF16 instead)"] * library.has_bf16()
        if not (precision.rounds_results or precision.rounds_operands):
            return []
        if precision.compute == FP16 and not precision.rounds_operands:
            return [f"FP16 is emulated, so {precision.name} takes {HALVES_COST} times as long here as --precision 32.32"]
        if precision.multiplies_bf16 and self.computes_on_cpu and not library.has_bf16():
            return [f"This processor has no BF16 units, so {precision.name} is emulated and takes longer than 32.32"]
        return [f"Narrow formats are emulated, so {precision.name} takes longer here than --precision 32.32"]

    @cached_property
    def memory(self) -> HostMemory:
        """The predicted peak memory of this process."""
        options, spec = self.options, self.data_source.spec
        if not self.trains:
            predicting = bool(options.checkpoint.predict)
            records = 0 if predicting else self._cached_records(spec.validation_images)
            batch = (1 if predicting else self.validation_batch) * (2 if self.mirrors else 1)
            return host_memory.inference(self.network, batch, self.image_numbers, records)
        validated = self.validation_batch if options.checkpoint.validation else 0
        return host_memory.training(
            self.network,
            self.plan,
            slots=options.training.slots,
            image=self.image_numbers,
            records=self._cached_records(spec.train_images + (spec.validation_images if validated else 0)),
            validated=validated,
            trained=self.is_trained,
        )

    def _cached_records(self, images: int) -> int:
        """Return the bytes of cached records. Photos do not count, because their cache adapts to the free memory."""
        options, side = self.options.dataset, self.data_source.spec.image_size
        return 0 if options.random_data or not options.dataset_cache or side is None else images * 3 * side**2

    def workload(self, processes: int | None = None) -> Workload:
        """Return the input of the planner. `processes` is the number of host processes that feed the replicas."""
        from cnn_harness.emulator.cost_model.workload import Workload

        release = version(self.options.values_release or "")
        trained_images = self.length.iterations * self.plan.global_batch
        return Workload(
            network=self.network,
            plan=self.plan,
            slots=self.options.training.slots,
            image_numbers=self.image_numbers,
            eight_bit=self.options.dataset.eight_bit_io,
            from_host=not self.options.dataset.synthetic_data,
            two_pass=self.options.two_pass_norms,
            images=trained_images if self.trains else self.data_source.spec.validation_images,
            trained=frozenset(v.name for v in self.network.variables if v.trainable and self.is_trained(v.name)),
            training=self.trains,
            processes=processes,
            normed=frozenset(v.name for v in self.network.variables if self.is_normed(v.name)),
            sdk=release[0] + release[1] / 10 if release else None,
            least_micro_batch=self.options.dataset.least_micro_batch if self.trains else 1,
        )

    @property
    def image_numbers(self) -> int:
        """The number of values in an image."""
        return self.channels * self.image_size**2

    def _updates(self) -> list[str]:
        """Return lines on the length, the learning rate and the frozen batch norms, or [] without training."""
        if not self.trains:
            return []
        length, training, highest = self.length, self.options.training, self.highest_rate
        short = f" of a peak of {self.peak_rate:.4g}" if self.is_far_below_peak else ""
        return [
            f"Updates: {length.iterations} ({length.epochs:g} epoch{'s' * (length.epochs != 1)} of "
            f"{length.iterations_per_epoch}), {training.optimiser}, "
            f"learning rate up to {highest:.4g}{short} ({self.options.main.lr_schedule})",
            *self._frozen_norms(),
        ]

    def _frozen_norms(self) -> list[str]:
        """Return a line on frozen batch norms, or [] if there are none."""
        statistics, count = self.options.training.frozen_norm_statistics, len(self.frozen_norms)
        used = "the statistics of each batch" if statistics == "batch" else "their moving statistics"
        return [f"Frozen norms: {count}, which use {used} (--frozen-norm-statistics {statistics})"] if count else []
