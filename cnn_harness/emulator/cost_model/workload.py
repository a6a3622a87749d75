"""The workload that the planner predicts: a plan, its network, and all of a run that costs memory or time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from cnn_harness.emulator.network.network import Network, Node
from cnn_harness.emulator.plan import schedules
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.Models._layers import Variable

# The fraction of tile memory for temporaries is 0.6 by default, as in Graphcore's SDK. Every plan needs at least 0.01.
DEFAULT_PROPORTION, MIN_PROPORTION = 0.6, 0.01
# EXCHANGE_TARGETS has the factors by which --internal-exchange-optimisation-target multiplies exchange time and code size.
# Graphcore documents which of the two gets smaller; the factors are assumptions.
EXCHANGE_TARGETS = {None: (1.0, 1.0), "balanced": (1.0, 1.0), "cycles": (0.95, 1.1), "memory": (1.1, 0.9)}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training run, or inference if `training` is False.

    * `slots` is the number of optimiser slots for each weight.
    * `image_numbers` is the number of values in an image.
    * `eight_bit` means that images arrive as bytes; otherwise they arrive in half precision.
    * `from_host` means that images come from the host; otherwise the device generates images.
    * `two_pass` means that norms read their input twice to compute statistics.
    * `images` is the number of images in the training run: data set x epochs.
    * `trained` has the names of the variables that gradients change.
    * `normed` has the names of the variables whose updates need norms: the trust ratios of LARS and LAMB.
    * `sdk` is the requested release of the SDK; None means the first release with published rates for the IPU.
    * `least_micro_batch` is the smallest allowed micro-batch size.
    * `processes` is the number of host processes that prepare images. None means one process for every two IPUs, as in the
      published runs.
    """

    network: Network
    plan: ExecutionPlan
    slots: int
    image_numbers: int
    eight_bit: bool
    from_host: bool = True
    two_pass: bool
    images: int = 0
    trained: frozenset[str] = frozenset()
    training: bool = True
    least_micro_batch: int = 1
    processes: int | None = None
    normed: frozenset[str] = frozenset()
    sdk: float | None = None

    @property
    def bytes_per_element(self) -> int:
        """The bytes of one value in an activation."""
        return self.plan.precision.compute.bytes

    def operations(self, stage: int) -> tuple[Node, ...]:
        """Return the operations of a stage."""
        return tuple(chain.from_iterable(self.network.by_segment[name] for name in self.plan.stages[stage]))

    def moved(self, stage: int) -> Iterator[Variable]:
        """Yield the variables of a stage that gradients change."""
        return (v for o in self.operations(stage) for v in o.variables if v.name in self.trained)

    @cached_property
    def trained_elements(self) -> tuple[int, ...]:
        """The number of weights in each stage that gradients change."""
        return self._by_stage(lambda v: v.elements)

    @cached_property
    def trained_tensors(self) -> tuple[int, ...]:
        """The number of tensors in each stage that gradients change."""
        return self._by_stage(lambda v: 1)

    @cached_property
    def normed_tensors(self) -> tuple[int, ...]:
        """The number of tensors in each stage whose updates need norms."""
        return self._by_stage(lambda v: v.name in self.normed)

    @cached_property
    def proxies(self) -> tuple[int, ...]:
        """The number of proxy norms in each stage."""
        return self._by_stage(lambda v: v.proxy is not None)

    @cached_property
    def slot_bytes(self) -> tuple[int, ...]:
        """The bytes of each stage's optimiser slots, including FP32 copies of narrow weights."""
        return self._by_stage(lambda v: self.plan.precision.bytes_of_slots(v, self.slots))

    @cached_property
    def master_bytes(self) -> tuple[int, ...]:
        """The bytes of each stage's trained weights, without their FP32 copies."""
        return self._by_stage(lambda v: self.plan.precision.stored_format(v).bytes * v.elements)

    def _by_stage(self, amount: Callable[[Variable], int]) -> tuple[int, ...]:
        """Return the sum of amounts of the variables of each stage that gradients change."""
        return tuple(sum(map(amount, self.moved(stage))) for stage in range(len(self.plan.stages)))

    def of_fullest_ipu(self, by_stage: Sequence[int]) -> int:
        """Return the largest amount on one IPU if `by_stage` has the amount of each stage."""
        return max(sum(by_stage[stage] for stage in stages) for stages in self.stages_by_ipu)

    @property
    def trained_elements_per_ipu(self) -> int:
        """The number of trained weights on the IPU that has the most."""
        return self.of_fullest_ipu(self.trained_elements)

    @property
    def stages_by_ipu(self) -> tuple[range, ...]:
        """The numbers of the stages on each IPU of a replica, round robin."""
        count, ipus = len(self.plan.stages), self.plan.options.shards
        return tuple(range(ipu, count, ipus) for ipu in range(ipus))

    @cached_property
    def max_in_flight(self) -> tuple[int, ...]:
        """The number of one replica's micro-batches whose activations wait on each stage. `plan.max_in_flight` counts passes
        of all replicas instead."""
        plan = self.plan
        return schedules.max_in_flight(plan.schedule, len(plan.stages), plan.accumulation)

    def recomputes(self, stage: int) -> bool:
        """Return whether a stage recomputes its activations. The last of several stages keeps its activations, because its
        backward pass follows its forward pass directly."""
        last = len(self.plan.stages) - 1
        return self.training and self.plan.options.enable_recomputation and (stage < last or last == 0)

    @property
    def offloads(self) -> bool:
        """True if optimiser slots are in the machine's DRAM. This is the default with accumulation or a pipeline."""
        options = self.plan.options
        return self.training and not options.disable_variable_offloading and (self.plan.accumulation > 1 or options.pipeline)

    def proportion(self, stage: int) -> float:
        """Return the fraction of tile memory for the temporaries of a convolution in a stage.
        --available-memory-proportion has one value, or two for each stage."""
        values = self.plan.options.available_memory_proportion
        if not values:
            return DEFAULT_PROPORTION
        return max(MIN_PROPORTION, values[2 * stage] if len(values) > 2 * stage + 1 else values[0])

    @property
    def image_bytes(self) -> int:
        """The bytes of one image that the host sends."""
        return self.image_numbers * (1 if self.eight_bit else self.bytes_per_element)
