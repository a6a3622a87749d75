"""The run as a value: everything that training and validation are built from. No TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from base.process import tf_runtime
from Datasets._spec import DataSource, ReadRequest
from emulator.native import library
from emulator.plan import host_memory, machine
from emulator.plan.host_memory import HostMemory
from emulator.plan.number_formats import FP16
from emulator.plan.plan import ExecutionPlan
from emulator.plan.trace import Trace
from harness.cluster.cluster import ALONE, Cluster
from harness.options.sections import RunOptions
from harness.options.update_rules import named_by
from harness.run import data
from harness.run.length import TrainingLength
from LR_Schedules._schedule import highest
from Models._norms import Norm
from Models._segments import Segment

if TYPE_CHECKING:
    from emulator.cost_model.workload import Workload

HALVES_COST = "1.2 to 1.6"  # measured: docs/measured.md, benchmarks/NOTES.md


@dataclass(frozen=True, kw_only=True)
class Run:
    """Options, network, data, plan, length and learning rates, fitted to each other."""

    options: RunOptions
    data_source: DataSource
    data_dir: str | None
    image_size: int
    segments: list[Segment]
    trace: Trace
    plan: ExecutionPlan
    length: TrainingLength
    peak_rate: float | None  # None where nothing is trained
    learning_rate: Callable[[int], float]
    seed: int
    name: str
    not_decayed: tuple[str, ...]
    cluster: Cluster = ALONE
    notes: tuple[str, ...] = ()  # for the log's head
    run_id: str = ""  # random, constant from the run's beginning to its end
    folders: tuple[str, ...] = ()  # of the instances, where each of them writes

    def training_request(self, done: int) -> ReadRequest:
        """Return the request for this instance's training stream, from weight update `done` on."""
        plan = self.plan
        block, stride = plan.data_shard
        return self.request(plan.samples_per_pass, done * plan.global_batch + plan.instance * block, block, stride)

    def validation_request(self) -> ReadRequest:
        """Return the request for this instance's validation stream: of n instances, instance k has every n-th micro-batch
        from the k-th on."""
        batch, count = self.validation_batch, self.cluster.size
        return self.request(batch, self.cluster.instance * batch, *((batch, count * batch) if count > 1 else (0, 0)))

    def request(self, batch_size: int, start: int = 0, shard_block: int = 0, shard_stride: int = 0) -> ReadRequest:
        """Return the request for a stream of the data source."""
        options = self.options.dataset
        return ReadRequest(
            batch_size=batch_size,
            image_size=self.image_size,
            seed=self.seed,
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
    def channels(self) -> int:
        """Channels of a picture on the device."""
        return data.channels(self.options.dataset)

    @property
    def step_increment(self) -> int:
        """Steps of a log row for one update: its micro-batches, or 1 in a pipeline."""
        return 1 if self.plan.options.pipeline else self.plan.accumulation

    @property
    def validation_batch(self) -> int:
        """Samples of one micro-batch in validation."""
        return self.options.checkpoint.valid_batch_size or self.plan.micro_batch_size

    @property
    def mirrors(self) -> bool:
        """True if inference takes each image's mirror image, too."""
        return self.options.checkpoint.tta == "flip"

    def is_decayed(self, name: str) -> bool:
        """Return whether weight decay applies to a variable."""
        return not named_by(self.not_decayed)(name)

    def is_trained(self, name: str) -> bool:
        """Return whether updates move a variable: each one, unless --variable-filter names some."""
        words = self.options.training.variable_filter
        return not words or named_by(words)(name)

    @cached_property
    def frozen_norms(self) -> frozenset[str]:
        """The scopes of the batch norms of which updates move no variable."""
        scopes = {v.name.rpartition("/")[0] for v in self.trace.variables if v.decay is not None}
        return frozenset(scopes - {v.name.rpartition("/")[0] for v in self.trace.variables if self.is_trained(v.name)})

    @property
    def frozen_statistics(self) -> frozenset[str]:
        """The names of the moving statistics that their norms use in training too."""
        if self.options.training.frozen_norm_statistics == "batch":
            return frozenset()
        names = (v.name for v in self.trace.variables if v.decay is not None)
        return frozenset(name for name in names if name.rpartition("/")[0] in self.frozen_norms)

    @property
    def trains(self) -> bool:
        """True if weights are updated, not only validated."""
        return self.peak_rate is not None

    @property
    def norms(self) -> frozenset[type[Norm]]:
        """The kinds of norms in the network, of Models._norms.KINDS."""
        return self.trace.norms

    @cached_property
    def highest_rate(self) -> float:
        """The highest learning rate of all updates: below the peak where the curve falls within the warm-up, or the run ends
        there, and above the peak where the curve rises."""
        return highest(self.learning_rate, self.length.iterations)[0]

    @property
    def is_far_below_peak(self) -> bool:
        """Return whether the learning rate never gets near its peak: the run ends within the warm-up, or the curve falls too
        soon."""
        within = getattr(self.options.schedule, "warmup_epochs", 0) >= self.length.epochs
        return self.highest_rate < (self.peak_rate if within else self.peak_rate / 2)

    @property
    def arithmetic(self) -> str:
        """The kernels of this process, its cores or GPUs, and TensorFlow's settings: with others the last places of sums
        differ."""
        cores = machine.cores()
        where = "GPUs" if self.plan.stage_devices[0].startswith("/gpu") else f"{cores} core{'s' * (cores > 1)}"
        return ", ".join([
            library.identity() or "no native kernels", where,
            *(f"{name}={value}" for name, value in tf_runtime.settings().items()),
        ])  # fmt: skip

    def summary(self) -> str:
        """The head of a log: the run in a few lines."""
        spec = self.data_source.spec
        lines = [
            f"Run: {self.name}, seed {self.seed}",
            *self._emulated_halves(),
            f"Data set: {spec.name}, {spec.train_images} training and {spec.validation_images} validation images, "
            f"{spec.num_classes} classes",
            f"Image Size: {self.image_size}x{self.image_size}",
            self.plan.summary(self.trace.variables),
            f"  kernels: {library.described()}",
            *self._updates(),
            f"Model: {self.trace.parameters:,} parameters ({self.trace.trainable_parameters:,} trainable), "
            f"{self.trace.multiply_adds / 1e6:,.1f} million multiply-adds and "
            f"{self.trace.activation_bytes(4) / 1e6:,.1f} MB of activations a picture",
            f"  host memory: {self.memory}" + (", in each process" if self.cluster.size > 1 else ""),
        ]
        return "\n".join(lines)

    def _emulated_halves(self) -> list[str]:
        """A line on the price of narrow formats, if the run has any."""
        precision = self.plan.precision
        if precision.native_arithmetic or not (precision.rounds_results or precision.rounds_operands):
            return []
        if precision.compute == FP16 and not precision.rounds_operands:
            return [f"Halves are emulated: {precision.name} takes {HALVES_COST} times as long here as --precision 32.32"]
        return [f"Narrow formats are emulated: {precision.name} takes longer here than --precision 32.32"]

    @cached_property
    def memory(self) -> HostMemory:
        """The predicted memory of this process at its peak: training with its validation, or inference."""
        options, spec = self.options, self.data_source.spec
        if not self.trains:
            predicting = bool(options.checkpoint.predict)
            records = 0 if predicting else self._cached_records(spec.validation_images)
            batch = (1 if predicting else self.validation_batch) * (2 if self.mirrors else 1)
            return host_memory.inference(self.trace, self.plan.precision, batch, self.image_numbers, records)
        validated = self.validation_batch if options.checkpoint.validation else 0
        return host_memory.training(
            self.trace,
            self.plan,
            slots=options.training.slots,
            picture=self.image_numbers,
            records=self._cached_records(spec.train_images + (spec.validation_images if validated else 0)),
            validated=validated,
            trained=self.is_trained,
        )

    def _cached_records(self, images: int) -> int:
        """Return the bytes of the cached raw records; photos are not counted, as their cache follows free memory."""
        options, side = self.options.dataset, self.data_source.spec.image_size
        return 0 if options.random_data or not options.dataset_cache or side is None else images * 3 * side**2

    def workload(self, processes: int | None = None) -> Workload:
        """Return the run as the planner sees it. `processes`: of the host, that feed the replicas."""
        from emulator.cost_model.workload import Workload

        trained_images = self.length.iterations * self.plan.global_batch
        return Workload(
            trace=self.trace,
            plan=self.plan,
            slots=self.options.training.slots,
            image_numbers=self.image_numbers,
            eight_bit=self.options.dataset.eight_bit_io,
            from_host=not self.options.dataset.synthetic_data,
            two_pass=self.options.two_pass_norms,
            images=trained_images if self.trains else self.data_source.spec.validation_images,
            trained=frozenset(v.name for v in self.trace.variables if v.trainable and self.is_trained(v.name)),
            training=self.trains,
            processes=processes,
            least_micro_batch=self.options.dataset.least_micro_batch if self.trains else 1,
        )

    @property
    def image_numbers(self) -> int:
        """Numbers in one picture."""
        return self.channels * self.image_size**2

    def _updates(self) -> list[str]:
        """Length and learning rate of a training, and its frozen norms."""
        if not self.trains:
            return []
        length, training, highest = self.length, self.options.training, self.highest_rate
        short = f" on the way to {self.peak_rate:.4g}" if self.is_far_below_peak else ""
        return [
            f"Updates: {length.iterations} ({length.epochs:g} epochs of {length.iterations_per_epoch}), "
            f"{training.optimiser}, learning rate up to {highest:.4g}{short} ({self.options.main.lr_schedule})",
            *self._frozen_norms(),
        ]

    def _frozen_norms(self) -> list[str]:
        """A line on the batch norms that are not trained, if there are any."""
        statistics, count = self.options.training.frozen_norm_statistics, len(self.frozen_norms)
        used = "the statistics of each batch" if statistics == "batch" else "their moving statistics"
        return [f"Frozen norms: {count}, with {used} (--frozen-norm-statistics {statistics})"] if count else []
