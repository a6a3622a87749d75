"""Predict the time of a weight update: micro-batches in the order of the schedule, then the update of the weights.

On IPUs, a clock of the schedule takes as long as its slowest stage, because they exchange data after each clock. In the
Grouped schedule, all stages first do their forward, then all stages do their backward. Other chips begin an action when its
data are there. After the ramp-up, every N micro-batches add the same time. So the time of a long schedule follows from the
times of short schedules.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cnn_harness.emulator.cost_model.constants import Constants
from cnn_harness.emulator.cost_model.kernels import Cycles, SegmentCosts, Work
from cnn_harness.emulator.cost_model.systems import FIRST_SDK, LAST_SDK, System
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.emulator.plan import schedules
from cnn_harness.emulator.plan.schedules import BACKWARD, FORWARD, KINDS, WEIGHTS, Action

LINK_SHARE = 0.85  # transfers reach 0.85 times the links' rate, as in poplibs' simulator.
HOP = 15e-9  # seconds for each of the 1 + IPUs / 4 hops of a synchronisation; signals go there and back.
FED = 8_000.0  # one host process prepares at most 8,000 images per second. This value is an estimate.
UPDATE_ACCESSES = 4  # an update reads and writes the gradient and the weight.
SLOT_ACCESSES = 2  # an update reads and writes each slot.
# A norm of LARS or LAMB squares, sums in each tile, sums over all tiles and takes the root: for weights and for gradients.
# The trust ratio takes another twelve operations on single numbers.
NORM_LAUNCHES = 20
# Before an update, the gradients of a proxy norm's mean and deviation go back through 200 values of an activation; after it,
# both are computed again.
PROXY_LAUNCHES = 60
IO_OVERHEAD = 0.15  # I/O tiles hide 85 % of the transfers from the host.


@dataclass(frozen=True)
class Cell:
    """An action of the schedule, or its share of a block: its cycles by kind of work, and its seconds."""

    cycles: Cycles
    seconds: float

    @property
    def parts(self) -> dict[str, float]:
        """The seconds by kind of work."""
        scale = self.seconds / (self.cycles.total or 1.0)
        return {name: scale * cycles for name, cycles in self.cycles._asdict().items()}


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The predicted times of a workload on a system."""

    workload: Workload
    system: System
    constants: Constants
    costs: SegmentCosts

    @cached_property
    def cells(self) -> dict[tuple[int, str], Cell]:
        """The cells of each stage by kind."""
        cells = {}
        for stage in range(len(self.workload.plan.stages)):
            forward, backward, weights = self._stage_cycles(stage)
            if self.workload.recomputes(stage):
                backward += forward
            cells[stage, FORWARD] = self.cell(forward)
            if self.workload.plan.splits_backward:
                cells[stage, BACKWARD], cells[stage, WEIGHTS] = self.cell(backward), self.cell(weights)
            else:
                cells[stage, BACKWARD] = self.cell(backward + weights)
        return cells

    def cell(self, cycles: Cycles) -> Cell:
        """Return the cycles with their seconds."""
        return Cell(cycles, cycles.total * self._software / self.system.device.clock)

    @property
    def sdk(self) -> float | None:
        """The release of the SDK for which times are predicted: the nearest to the requested one with published rates. None
        for a chip without this SDK."""
        first = self.system.device.sdk
        return first and min(max(self.workload.sdk or FIRST_SDK, first), LAST_SDK)

    @property
    def _software(self) -> float:
        return self.constants.release_time ** (10 * (self.sdk - FIRST_SDK)) if self.sdk else 1.0

    def _stage_cycles(self, stage: int) -> tuple[Cycles, Cycles, Cycles]:
        forward, backward, weights = Cycles(), Cycles(), Cycles()
        for segment in self.workload.plan.stages[stage]:
            costs = self.segment_cycles(stage, segment)
            forward, backward, weights = forward + costs[0], backward + costs[1], weights + costs[2]
        return forward, backward, weights

    def segment_cycles(self, stage: int, segment: str) -> tuple[Cycles, Cycles, Cycles]:
        """Return the cycles of a segment in a stage for one micro-batch: forward, for the gradient of its input, and for the
        gradients of its weights."""
        workload, span = self.workload, self.workload.plan.options.BN_span
        forward, backward, weights = self.costs.of(segment, workload.proportion(stage))
        if span > 1:
            norms = sum(operation.op == "norm" for operation in workload.network.by_segment[segment])
            sync = Cycles(launches=2 * norms * self._hops(span) * self.system.device.clock)
            forward, backward = forward + sync, backward + sync
        return forward, backward, weights

    def _hops(self, ipus: int) -> float:
        """Return the seconds of a synchronisation of `ipus` IPUs."""
        return 2 * HOP * (1 + ipus / 4)

    # --- an update ----------------------------------------------------------------------------------------------------

    @cached_property
    def pipeline(self) -> float:
        """The seconds for all micro-batches of one replica in the order of the schedule."""
        plan, stages = self.workload.plan, len(self.workload.plan.stages)
        if plan.schedule == "Sequential":
            return plan.accumulation * self._one_after_another
        step = max(2, stages)  # schedules repeat after at most `step` micro-batches.
        least = 4 * step + plan.accumulation % step
        if plan.accumulation <= least:
            return self._walked(plan.accumulation)
        short = self._walked(least)
        return short + (plan.accumulation - least) * (self._walked(least + step) - short) / step

    def _walked(self, micro_batches: int) -> float:
        return max(end for _, _, end in self.placed(micro_batches))

    def placed(self, micro_batches: int) -> Iterator[tuple[Action, float, float]]:
        """Yield every action of the schedule with its begin and end in seconds."""
        stages = len(self.workload.plan.stages)
        timeline = _timeline(self.workload.plan.schedule, stages, micro_batches)
        if not self.system.device.tiled:
            yield from self._placed_freely(timeline, stages)
            return
        grouped = any(len(cell) > 1 for row in timeline for cell in row)
        begin = 0.0
        for row in timeline:
            for kinds in ((FORWARD,), (BACKWARD,)) if grouped else (KINDS,):
                actions = [action for cell in row for action in cell if action.kind in kinds]
                seconds = [self.cells[action.stage, action.kind].seconds for action in actions]
                yield from ((action, begin, begin + own) for action, own in zip(actions, seconds))
                begin += max(seconds, default=0.0)

    def _placed_freely(self, timeline: schedules.Timeline, stages: int) -> Iterator[tuple[Action, float, float]]:
        """Yield every action with its times, if devices run the actions of the timeline in order but do not share clocks."""
        ended: dict[Action, float] = {}
        free = [0.0] * len(timeline[0])
        for row in timeline:
            for device, slot in enumerate(row):
                for action in slot:
                    needed = [ended[each] for each in schedules.dependencies(action, stages)]
                    begin = max([free[device], *needed])
                    free[device] = ended[action] = begin + self.cells[action.stage, action.kind].seconds
                    yield action, begin, free[device]

    @cached_property
    def busy(self) -> float:
        """The seconds for which an IPU works on the micro-batches of an update, averaged over the IPUs."""
        plan = self.workload.plan
        return plan.accumulation * self._one_after_another / plan.options.shards

    @property
    def _one_after_another(self) -> float:
        """The seconds of all cells of one micro-batch."""
        return sum(cell.seconds for cell in self.cells.values())

    @cached_property
    def all_reduce(self) -> float:
        """The seconds to all-reduce gradients over the replicas: in rings within each machine, then between the machines of
        a POD, then between PODs through gateways. Each step begins with a synchronisation."""
        workload, plan, system = self.workload, self.workload.plan, self.system
        replicas, shards = plan.total_replicas, plan.options.shards
        if replicas == 1 or not workload.training:
            return 0.0
        element = plan.precision.accumulator.bytes
        sent = sum(workload.trained_elements) * element
        near = min(replicas, system.machine // shards or 1)
        within = min(replicas, system.pod // shards or 1)
        far = -(-within // near)
        seconds = _ring(workload.trained_elements_per_ipu * element, near) / (system.device.link / 2 * LINK_SHARE)
        seconds += _ring(sent / max(1, shards / system.machine), far) / (system.machine_link * LINK_SHARE)
        seconds += 2 * (within - 1) * self._hops(min(plan.ipus, system.pod))
        pods = -(-plan.ipus // system.pod)
        if pods > 1:
            seconds += _ring(sent, pods) / (system.pod / system.machine * system.gateway_link)
            seconds += 2 * math.ceil(math.log2(pods)) * self.constants.gateway_seconds  # each step doubles the PODs' groups.
        return seconds

    @cached_property
    def update(self) -> float:
        """The seconds to update weights and slots, without the all-reduce."""
        workload = self.workload
        if not workload.training:
            return 0.0
        device = self.system.device
        moved = UPDATE_ACCESSES * workload.of_fullest_ipu(workload.master_bytes)
        moved += SLOT_ACCESSES * workload.of_fullest_ipu(workload.slot_bytes)
        launches = (1 + workload.slots) * workload.of_fullest_ipu(workload.trained_tensors)
        launches += NORM_LAUNCHES * workload.of_fullest_ipu(workload.normed_tensors)
        launches += PROXY_LAUNCHES * workload.of_fullest_ipu(workload.proxies)
        cycles = Work(accessed=moved / device.tiles, launches=launches).cycles(device, self.constants).total
        return cycles * self._software / device.clock + self.constants.update_seconds + self.streamed

    @cached_property
    def streamed(self) -> float:
        """The seconds to read offloaded optimiser state from the machine's DRAM and write it back. Each IPU has its share of
        the DRAM's rate for the state of its own stage."""
        workload, plan = self.workload, self.workload.plan
        if not workload.offloads:
            return 0.0
        share = plan.total_replicas if plan.options.rts else 1
        return 2 * workload.of_fullest_ipu(workload.slot_bytes) / share / (self.system.dram / self.system.machine)

    @cached_property
    def transfers(self) -> float:
        """The seconds that transfers of images from the host add to an update. I/O tiles fetch images while other tiles
        compute, and chips without tiles fetch them while they compute."""
        plan = self.workload.plan
        if not self.workload.from_host:
            return 0.0
        seconds = plan.accumulation * plan.micro_batch_size * self.workload.image_bytes / self.system.host_link
        if not self.system.device.tiled:
            return max(0.0, seconds - self.pipeline)
        if not plan.options.num_io_tiles:
            return seconds
        return max(IO_OVERHEAD * seconds, seconds - self.pipeline)

    @cached_property
    def host_limit(self) -> float | None:
        """The largest number of images per second that the host's processes deliver. None if the device makes the images."""
        return FED * (self.workload.processes or self.system.processes) if self.workload.from_host else None

    @cached_property
    def seconds(self) -> float:
        """The seconds of one weight update."""
        device = self.pipeline + self.all_reduce + self.update + self.transfers
        return max(device, self.workload.plan.global_batch / self.host_limit) if self.host_limit else device

    @property
    def images_per_second(self) -> float:
        """The images per second of all replicas together."""
        return self.workload.plan.global_batch / self.seconds

    @property
    def idle_share(self) -> float:
        """The fraction of an update for which an IPU is idle, averaged over the IPUs."""
        return max(0.0, 1 - (self.busy + self.all_reduce + self.update) / self.seconds)

    @property
    def peak_share(self) -> float:
        """The network's operations per second, divided by the IPUs' FP16 peak. Recomputed operations do not count."""
        passes = 3 if self.workload.training else 1
        operations = 2 * passes * self.workload.network.multiply_adds * self.images_per_second
        return operations / (self.system.device.peak * self.workload.plan.ipus)

    @property
    def hours(self) -> float:
        """The hours of the whole training run, without validation, compilation and checkpoints."""
        return self.workload.images / self.images_per_second / 3600


def _ring(size: float, members: int) -> float:
    """Return the bytes that each member sends if a ring all-reduces tensors of `size` bytes."""
    return 2 * size * (members - 1) / members


@lru_cache(maxsize=64)  # a search uses the same timelines many times.
def _timeline(schedule: str, stages: int, micro_batches: int) -> schedules.Timeline:
    return schedules.build(schedule, stages, micro_batches)
