"""Predict memory and time of one workload on one system."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.emulator.cost_model import memory
from cnn_harness.emulator.cost_model.constants import Constants
from cnn_harness.emulator.cost_model.kernels import SegmentCosts
from cnn_harness.emulator.cost_model.memory import IpuMemory, IpuSizes
from cnn_harness.emulator.cost_model.memory_constants import AGREEING, MEMORY
from cnn_harness.emulator.cost_model.systems import System
from cnn_harness.emulator.cost_model.throughput import Timing
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.emulator.plan.schedules import KIND_NAMES, kinds


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The predicted memory and time of a workload on a system."""

    workload: Workload
    system: System
    timing: Timing

    @cached_property
    def sizes(self) -> tuple[IpuSizes, ...]:
        return memory.sizes(self.workload, self.system.device)

    @cached_property
    def memories(self) -> tuple[IpuMemory, ...]:
        """The memory of each IPU of one replica."""
        return tuple(each.memory(MEMORY) for each in self.sizes)

    @property
    def capacity(self) -> int:
        """The bytes of memory on an IPU."""
        return self.system.device.memory

    @property
    def fullest(self) -> IpuMemory:
        """The memory of the IPU with the least free memory."""
        return max(self.memories, key=lambda each: each.total)

    @property
    def room(self) -> int:
        """The free bytes on the fullest IPU; negative if the plan does not fit."""
        return self.capacity - self.fullest.total

    @cached_property
    def room_range(self) -> tuple[int, int]:
        """The least and the most free bytes on the fullest IPU, with all constants that agree with the published facts."""
        fullest = [max(each.memory(constants).total for each in self.sizes) for constants in (MEMORY, *AGREEING)]
        return self.capacity - max(fullest), self.capacity - min(fullest)

    @property
    def fits(self) -> bool:
        """True if the memory of every IPU suffices."""
        return self.room >= 0

    @property
    def certain(self) -> bool:
        """True if all constants that agree with the published facts answer alike whether the plan fits."""
        least, most = self.room_range
        return least >= 0 or most < 0

    @property
    def update_parts(self) -> dict[str, float]:
        """The seconds of an update by part. `host` is the time for which IPUs wait for images."""
        timing = self.timing
        parts = {
            "pipeline": timing.pipeline,
            "all_reduce": timing.all_reduce,
            "update": timing.update - timing.streamed,
            "streaming_memory": timing.streamed,
            "transfers": timing.transfers,
        }
        return {**parts, "host": max(0.0, timing.seconds - sum(parts.values()))}

    @property
    def kilowatt_hours(self) -> float | None:
        """The energy (kWh) that the plan's IPUs and their share of the machines need for the training run. None if the
        system's power is unknown."""
        watts = self.system.watts
        return None if watts is None else watts * self.workload.plan.ipus * self.timing.hours / 1000

    def values(self) -> dict[str, Any]:
        """Return the values for JSON. Sizes are in bytes, times in seconds."""
        timing, plan = self.timing, self.workload.plan
        stages = range(len(plan.stages))
        words = {kind: KIND_NAMES[kind].replace(" ", "_") for kind in kinds(plan.schedule)}
        return {
            "system": self.system.name,
            "ipu": self.system.device.name,
            "ipus": plan.ipus,
            "sdk": timing.sdk,
            "fits": self.fits,
            "memory_bytes_per_ipu": [each.total for each in self.memories],
            "memory_capacity_bytes": self.capacity,
            "memory_room_bytes": self.room,
            "memory_room_bytes_range": list(self.room_range),
            "memory_parts": [asdict(each) for each in self.memories],
            "images_per_second": timing.images_per_second,
            "update_seconds": timing.seconds,
            "update_parts": self.update_parts,
            "stage_seconds": [{word: timing.cells[j, kind].seconds for kind, word in words.items()} for j in stages],
            "stage_parts": [{word: timing.cells[j, kind].parts for kind, word in words.items()} for j in stages],
            "idle_share": timing.idle_share,
            "peak_share": timing.peak_share,
            "hours": timing.hours,
            "kilowatt_hours": self.kilowatt_hours,
            "host_images_per_second_limit": timing.host_limit,
            "global_batch": plan.global_batch,
            "micro_batch": plan.micro_batch_size,
            "accumulation": plan.accumulation,
            "replicas": plan.total_replicas,
            "stages": [list(stage) for stage in plan.stages],
            "schedule": plan.schedule,
            "precision": plan.precision.name,
        }


def check_tiles(workload: Workload, system: System) -> None:
    """Raise OptionError if --num-io-tiles reserves all tiles of an IPU."""
    io_tiles = workload.plan.options.num_io_tiles
    if system.device.tiled and io_tiles >= system.device.tiles:
        raise OptionError(
            f"--num-io-tiles {io_tiles} leaves none of the {system.device.tiles} tiles of a {system.device.name} IPU to "
            f"compute; give {memory.USUAL_IO_TILES} to 192"
        )


def predict(
    workload: Workload, system: System, constants: Constants | None = None, costs: SegmentCosts | None = None
) -> Prediction:
    """Return the predicted memory and time in milliseconds. `costs` can be shared by plans with the same network,
    micro-batch, precision and system. By default, the constants are those of the system."""
    constants = constants or system.constants
    costs = costs or SegmentCosts(workload, system.device, constants)
    timing = Timing(workload=workload, system=system, constants=constants, costs=costs)
    return Prediction(workload=workload, system=system, timing=timing)
