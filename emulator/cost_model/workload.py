"""The planner's workload: a plan with its network and the facts of a training that cost memory or time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from emulator.plan import schedules
from emulator.plan.plan import ExecutionPlan
from emulator.plan.trace import Operation, Trace
from Models._layers import Variable

# fraction of tile memory for temporaries: the SDK's default, and the least that any plan needs
DEFAULT_PROPORTION, MIN_PROPORTION = 0.6, 0.01
# Effect of --internal-exchange-optimisation-target, as factors of exchange time and of code size. The directions are
# documented; the sizes are assumptions.
EXCHANGE_TARGETS = {None: (1.0, 1.0), "balanced": (1.0, 1.0), "cycles": (0.95, 1.1), "memory": (1.1, 0.9)}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training, or inference if `training` is False, in micro-batches of the plan's size."""

    trace: Trace
    plan: ExecutionPlan
    slots: int  # optimiser slots for each weight
    image_numbers: int  # numbers in an image
    eight_bit: bool  # images arrive as bytes, not in half precision.
    from_host: bool = True  # images come from the host; otherwise the device generates them
    two_pass: bool  # norms read their input twice to compute statistics.
    images: int = 0  # images of the whole training: data set x epochs
    trained: frozenset[str] = frozenset()  # names of variables that gradients change.
    training: bool = True
    least_micro_batch: int = 1  # smallest allowed micro-batch
    # processes that feed the replicas; None: one for every two IPUs of the system, as in the published runs
    processes: int | None = None

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one activation element."""
        return self.plan.precision.compute.bytes

    def operations(self, stage: int) -> tuple[Operation, ...]:
        """Return the operations of a stage."""
        return tuple(chain.from_iterable(self.trace.by_segment[name] for name in self.plan.stages[stage]))

    def moved(self, stage: int) -> Iterator[Variable]:
        """Return the variables of a stage that gradients change."""
        return (v for o in self.operations(stage) for v in o.variables if v.name in self.trained)

    @cached_property
    def trained_elements(self) -> tuple[int, ...]:
        """Weights of each stage that gradients change."""
        return tuple(sum(v.elements for v in self.moved(stage)) for stage in range(len(self.plan.stages)))

    @cached_property
    def slot_bytes(self) -> tuple[int, ...]:
        """Bytes of each stage's optimiser slots, with the FP32 copies of narrow weights."""
        precision = self.plan.precision
        return tuple(
            sum(precision.bytes_of_slots(v, self.slots) for v in self.moved(stage)) for stage in range(len(self.plan.stages))
        )

    @cached_property
    def master_bytes(self) -> tuple[int, ...]:
        """Bytes of each stage's trained weights, without the FP32 copies of narrow ones."""
        stored = self.plan.precision.stored_format
        return tuple(sum(stored(v).bytes * v.elements for v in self.moved(stage)) for stage in range(len(self.plan.stages)))

    def of_fullest_ipu(self, by_stage: Sequence[int]) -> int:
        """Return the largest amount on one IPU, given the amounts per stage."""
        return sum(by_stage) if self.one_device else max(by_stage)

    @property
    def trained_elements_per_ipu(self) -> int:
        """Weights that gradients change, on the IPU with the most of them."""
        return self.of_fullest_ipu(self.trained_elements)

    @property
    def one_device(self) -> bool:
        """True if all stages share an IPU."""
        return self.plan.options.shards == 1

    @cached_property
    def max_in_flight(self) -> tuple[int, ...]:
        """Micro-batches of one replica whose activations wait on each stage. The plan's own numbers count passes of all
        replicas."""
        plan = self.plan
        return schedules.max_in_flight(plan.schedule, len(plan.stages), plan.accumulation)

    def recomputes(self, stage: int) -> bool:
        """Return whether a stage's activations are recomputed. The last of several stages keeps its activations, because its
        backward pass follows its forward pass directly. A single stage recomputes segment by segment."""
        last = len(self.plan.stages) - 1
        return self.training and self.plan.options.enable_recomputation and (stage < last or last == 0)

    @property
    def offloads(self) -> bool:
        """True if optimiser slots are in streaming memory: by default, with accumulation or a pipeline."""
        options = self.plan.options
        return self.training and not options.disable_variable_offloading and (self.plan.accumulation > 1 or options.pipeline)

    def proportion(self, stage: int) -> float:
        """Return the fraction of tile memory for a convolution's temporaries. The option has one value, or two for each
        stage."""
        values = self.plan.options.available_memory_proportion
        if not values:
            return DEFAULT_PROPORTION
        return max(MIN_PROPORTION, values[2 * stage] if len(values) > 2 * stage + 1 else values[0])

    @property
    def image_bytes(self) -> int:
        """Bytes of one image on its way from the host."""
        return self.image_numbers * (1 if self.eight_bit else self.bytes_per_element)
