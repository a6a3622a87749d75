"""Draw how the rate of a plan grows with the number of IPUs, for Mk2 and Bow systems.

With a fixed global batch, more replicas mean fewer micro-batches for each. With a growing global batch, each replica keeps
its micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable

from cnn_harness.emulator.cost_model import variants
from cnn_harness.emulator.cost_model.constants import FITTED
from cnn_harness.emulator.cost_model.kernels import SegmentCosts
from cnn_harness.emulator.cost_model.prediction import Prediction, predict
from cnn_harness.emulator.cost_model.systems import BOW, MK2, SYSTEMS, Device, System
from cnn_harness.emulator.cost_model.workload import Workload
from cnn_harness.harness.reports.chart import BLUE, ORANGE, Curves, Line, span

COLOURS = {BOW: ORANGE, MK2: BLUE}
Scale = Callable[[Workload, System], Workload | None]


def panels(workload: Workload) -> list[Curves]:
    """Return two panels: images per second by the number of IPUs, and the efficiency, relative to the smallest system."""
    batch = f"batch {workload.plan.global_batch:,}"
    rates, efficiencies, sizes = [], [], [4.0]
    for device, colour in COLOURS.items():
        for scale, words in ((variants.scaled, batch), (variants.grown, "growing batch")):
            points = [(p.system.devices, p.timing.images_per_second) for p in predictions(workload, device, scale)]
            if not points:
                continue
            sizes += [ipus for ipus, _ in points]
            least, first = points[0]
            label, dashed = f"{device.name}, {words}", scale is variants.grown
            thousands = [(ipus, rate / 1000) for ipus, rate in points]
            relative = [(ipus, 100 * rate / ipus / (first / least)) for ipus, rate in points]
            for lines, values in ((rates, thousands), (efficiencies, relative)):
                lines.append(Line(label, values, colour, dots=1, dashed=dashed, last=False))
    axis = span(sizes, 0)
    return [
        Curves("Thousand images per second, by system size", rates, axis, 0, "IPUs"),
        Curves("Efficiency in %: the rate per IPU, relative to the smallest system", efficiencies, axis, 0, "IPUs"),
    ]


def predictions(workload: Workload, device: Device, scale: Scale = variants.scaled) -> list[Prediction]:
    """Return the prediction for each system with this kind of IPU that holds the plan, smallest first."""
    costs = SegmentCosts(workload, device, FITTED)
    systems = [system for system in SYSTEMS.values() if system.device == device]
    scaled = [(scale(workload, system), system) for system in systems]
    return [predict(work, system, FITTED, costs) for work, system in scaled if work]


def idle(workload: Workload) -> str:
    """Return which Mk2 systems have idle IPUs if the global batch stays the same; "" if none has."""
    idle = [p for p in predictions(workload, MK2) if variants.undivided(p.workload, p.system)]
    return ", ".join(f"{p.system.name} uses {p.workload.plan.ipus} of its {p.system.devices} IPUs" for p in idle)
