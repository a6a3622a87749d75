"""Log lines with the rate and memory that the planner predicts for a run on a POD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cnn_harness.base.errors import OptionError

if TYPE_CHECKING:
    from cnn_harness.emulator.cost_model.prediction import Prediction
    from cnn_harness.harness.run.run import Run

MIB = 2**20


def on_smallest_system(run: Run) -> Prediction | None:
    """Return the prediction for the smallest Mk2 POD with enough IPUs for the run. Return None if no POD has enough, or if
    --num-io-tiles leaves no tile for computing."""
    from cnn_harness.emulator.cost_model import systems
    from cnn_harness.emulator.cost_model.prediction import check_tiles, predict

    work = run.workload()
    try:
        system = systems.smallest(run.plan.ipus)
        check_tiles(work, system)
    except OptionError:
        return None
    return predict(work, system)


def lines(run: Run) -> list[str]:
    """Return lines with the prediction for the start of a log. The lines name the POD, because this machine has another
    rate."""
    prediction = on_smallest_system(run) if run.trains else None
    if prediction is None:
        return []
    room, timing = prediction.room / MIB, prediction.timing
    idle = f"{100 * timing.idle_share:.0f} % idle, " if run.plan.options.shards > 1 else ""
    fit = f"{room:,.0f} MiB free" if prediction.fits else f"does not fit: {-room:,.0f} MiB too much"
    fit += "" if prediction.certain else " (within the error)"
    return [
        f"Predicted on {prediction.system.name}{sdk_of(prediction)}: {timing.images_per_second:,.0f} img/sec, "
        f"{duration(timing.hours)}, {idle}{fit} on the fullest IPU; for details, run cnn plan"
    ]


def sdk_of(prediction: Prediction) -> str:
    """Return ", " and the SDK release of a prediction, with the requested release if that one has no published rates. Return
    "" for a chip without this SDK."""
    used, asked = prediction.timing.sdk, prediction.workload.sdk
    return (
        ""
        if used is None
        else f", SDK {used:.1f}"
        + (f" (the nearest to {asked:.1f} with published rates)" if asked not in (None, used) else "")
    )


def compared(run: Run, host_throughput: float) -> list[str]:
    """Return two lines for the end of a log: the measured rate of this host, and the predicted rate of the POD."""
    prediction = on_smallest_system(run)
    if prediction is None or not host_throughput:
        return []
    predicted = f"predicted on {prediction.system.name} img/sec: {prediction.timing.images_per_second:,.0f}"
    return [f"host img/sec: {host_throughput:,.1f}", predicted]


def duration(hours: float) -> str:
    """Return a duration as text, in hours, minutes or seconds."""
    if hours >= 1:
        return f"{hours:,.1f} hours"
    number, unit = (round(60 * hours), "minute") if hours >= 1 / 60 else (round(3600 * hours), "second")
    return f"{number} {unit}{'s' * (number != 1)}"
