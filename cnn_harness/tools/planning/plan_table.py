"""Format predictions as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import commands
from cnn_harness.emulator.cost_model import variants
from cnn_harness.emulator.cost_model.prediction import Prediction
from cnn_harness.emulator.cost_model.search import keeps_micro_batch
from cnn_harness.emulator.cost_model.systems import IPU
from cnn_harness.emulator.plan.schedules import FORWARD, kinds, scheduled_idle_fraction
from cnn_harness.harness.reports import noise_scale
from cnn_harness.harness.reports.predicted_rate import MIB, duration, sdk_of
from cnn_harness.tools.planning.costs import energy
from cnn_harness.tools.planning.planned_config import Planned, efficiencies

NOTE = "The planner is fitted to published rates. To see its errors, run cnn fit-planner."


def report(planned: Sequence[Planned]) -> str:
    """Return the report on all plans. If there are several plans, a table compares them first. Notes and number formats
    appear only once for each configuration."""
    parts = ["\n".join(comparison(planned))] if len(planned) > 1 else []
    parts += [one(each, each.run is not before) for each, before in zip(planned, (None, *(p.run for p in planned)))]
    return "\n\n".join([*parts, commands.as_invoked(NOTE)])


def comparison(planned: Sequence[Planned]) -> list[str]:
    """Return a table with a line for each plan."""
    width, shares = max(len(each.name) for each in planned), efficiencies(planned)
    chips = "IPUs" if all(each.prediction.system.device.kind == IPU for each in planned) else "chips"
    heading = f" {'efficiency':>10s}" if any(shares) else ""
    lines = [f"{'':{width}s}  {'system':11s} {chips:>5s} {'replicas':>8s} {'accum.':>6s} {'batch':>6s} {'fits':>4s} "
             f"{f'fullest {chips[:-1]}':>12s} {'MiB free':>20s} "
             f"{'img/sec':>9s}{heading} {'hours':>7s} {'energy':>10s} {'idle':>5s}"]  # fmt: skip
    for each, efficiency in zip(planned, shares):
        prediction, timing, plan = each.prediction, each.prediction.timing, each.prediction.workload.plan
        share = f"{'' if efficiency is None else f'{100 * efficiency:.0f} %':>10s}"
        lines.append(
            f"{each.name:{width}s}  {prediction.system.name:11s} {plan.ipus:5d} {plan.total_replicas:8d} "
            f"{plan.accumulation:6d} {plan.global_batch:6d} {_verdict(prediction):>4s} "
            f"{prediction.fullest.total / MIB:8,.0f} MiB {_free(prediction):>20s} "
            f"{timing.images_per_second:9,.0f}{f' {share}' if heading else ''} "
            f"{timing.hours:7.1f} {energy(prediction.kilowatt_hours):>10s} {100 * timing.idle_share:3.0f} %"
            + (f"  {each.undivided}" if each.undivided else "")
        )
    singles = {each.name.rpartition("+")[2]: each.changes for each in planned if each.name.count(" +") == 1}
    return [*lines, *(f"  +{letter}: {changes}" for letter, changes in singles.items())]


def _verdict(prediction: Prediction) -> str:
    """Return whether a plan fits. A question mark means that the answer is within the error."""
    return ("yes" if prediction.fits else "NO") + "?" * (not prediction.certain)


def _free(prediction: Prediction) -> str:
    """Return the free memory in MiB, and its range."""
    least, most = (round(each / MIB) for each in prediction.room_range)
    return f"{prediction.room / MIB:,.0f} ({least:,} to {most:,})"


def unit_of_work(prediction: Prediction) -> str:
    """Return "per update" for a training, "per micro-batch" for an inference."""
    return "per update" if prediction.workload.training else "per micro-batch"


def one(planned: Planned, whole: bool = True) -> str:
    """Return the report on one plan. If `whole` is true, the report includes notes and number formats."""
    prediction, plan = planned.prediction, planned.prediction.workload.plan
    timing, system = prediction.timing, prediction.system
    electricity, unit = energy(prediction.kilowatt_hours), unit_of_work(prediction)
    kind = system.device.kind + "s" * (plan.ipus > 1)
    replicas = f"{plan.total_replicas} replica{'s' if plan.total_replicas > 1 else ''}"
    lines = [
        f"{planned.name} on {system.name}: {plan.ipus} {system.device.name} {kind}, {replicas}, "
        f"micro-batch {plan.micro_batch_size} x accumulation {plan.accumulation}, global batch {plan.global_batch}, "
        f"{plan.precision.name}{sdk_of(prediction)}",
        *(f"  {note}" for note in planned.notes if whole),
        f"  predicted on {system.name}: {timing.images_per_second:,.0f} img/sec, {1e3 * timing.seconds:,.1f} ms {unit}, "
        f"{duration(timing.hours)} for {prediction.workload.images:,} images"
        + (f", {electricity}" if electricity else ""),
        f"  idle {100 * timing.idle_share:.0f} %; {100 * timing.peak_share:.1f} % of the matrix units' peak",
        f"  {unit}: " + ", ".join(f"{name.replace('_', '-')} {1e3 * value:.2f} ms"
                                    for name, value in prediction.update_parts.items() if value > 5e-6),
        *planned.rates.line(prediction),
        *_fit(planned),
        *_stages(prediction),
        *(f"  {line}" for line in plan.precision.table() if whole),
    ]  # fmt: skip
    if planned.given:
        lines += _found(planned)
    return "\n".join(lines)


def _fit(planned: Planned) -> list[str]:
    prediction = planned.prediction
    capacity, room = prediction.capacity / MIB, prediction.room / MIB
    least, most = (each / MIB for each in prediction.room_range)
    parts = sorted(asdict(prediction.fullest).items(), key=lambda part: -part[1])[:4]
    largest = ", ".join(f"{name.replace('_', ' ')} {size / MIB:,.0f}" for name, size in parts)
    kind, unsure = prediction.system.device.kind, "" if prediction.certain else ", but this is within the error"
    if prediction.fits:
        return [
            f"  fits{unsure}: {room:,.0f} of {capacity:,.0f} MiB free on the fullest {kind}; {least:,.0f} to {most:,.0f} "
            f"with all constants that agree with published runs (largest parts in MiB: {largest})"
        ]
    lines = [
        f"  DOES NOT FIT{unsure}: {-room:,.0f} MiB too much for the fullest {kind} with {capacity:,.0f} MiB; {-most:,.0f} "
        f"to {-least:,.0f} with all constants that agree with published runs (largest parts in MiB: {largest})"
    ]
    return [*lines, *(f"    try {remedy}" for remedy in planned.remedies[:4])]


def _stages(prediction: Prediction) -> list[str]:
    plan, timing = prediction.workload.plan, prediction.timing
    name = max(map(len, plan.stage_names))
    lines = [f"  stage  {'begins at':{max(9, name)}s}  forward   backward   memory"]
    for j, begins_at in enumerate(plan.stage_names):
        forward = timing.cells[j, FORWARD].seconds
        backward = sum(timing.cells[j, kind].seconds for kind in kinds(plan.schedule)) - forward
        ipus, kind = len(prediction.memories), prediction.system.device.kind
        size = f"{prediction.memories[j].total / MIB:5,.0f} MiB" if j < ipus else (
            f"   (same {kind})" if ipus == 1 else f"   (with stage {j % ipus})")  # fmt: skip
        lines.append(f"  {j:5d}  {begins_at:{max(9, name)}s} {1e3 * forward:5.2f} ms  {1e3 * backward:6.2f} ms  {size}")
    return lines


def schedules(planned: Planned) -> str:
    """Return a table with a line for each pipeline schedule. Raise OptionError for a plan without a pipeline."""
    prediction, accumulation = planned.prediction, planned.prediction.workload.plan.accumulation
    if len(prediction.memories) == 1:
        raise OptionError(f"--schedules compares pipelines, but {planned.name} has one stage; add --pipeline --shards 4")
    lines = [
        f"{planned.name} on {prediction.system.name}, {accumulation} micro-batches per update. Idle slots are counted with "
        "equal actions, idle time is predicted:",
        f"  {'schedule':12s} {'stages':>6s} {'idle slots':>10s} {'idle time':>9s} {'img/sec':>9s} {'fullest':>10s} fits  "
        "micro-batches held by each stage",
    ]
    for name, other in variants.by_schedule(prediction):
        count, timing = len(other.workload.plan.stages), other.timing
        lines.append(
            f"  {name:12s} {count:6d} {100 * scheduled_idle_fraction(name, count, accumulation):8.1f} % "
            f"{100 * timing.idle_share:7.1f} % {timing.images_per_second:9,.0f} {other.fullest.total / MIB:6,.0f} MiB "
            f"{_verdict(other):4s}  {' '.join(map(str, other.workload.max_in_flight))}"
        )
    return "\n".join(lines)


def batches(planned: Planned, scale: float) -> str:
    """Return a table with a line for each global batch: the predicted hours until the loss of the plan's own batch, if the
    gradient noise scale is `scale` images. Raise OptionError for an inference."""
    prediction = planned.prediction
    if not prediction.workload.training:
        raise OptionError("--noise-scale compares trainings; leave out --inference or --noise-scale")
    batch = prediction.workload.plan.global_batch
    lines = [
        f"{planned.name} on {prediction.system.name}, to the loss of batch {batch} at a gradient noise scale of {scale:,g} "
        "images and a tuned learning rate:",
        "  global batch accum. updates  epochs   img/sec           time",
    ]
    for factor in noise_scale.FACTORS:
        if other := variants.with_batch(prediction, factor):
            plan, timing = other.workload.plan, other.timing
            updates, epochs = noise_scale.relative(batch, plan.global_batch, scale)
            lines.append(
                f"  {plan.global_batch:12d} {plan.accumulation:6d} {updates:5.2f} x {epochs:5.2f} x "
                f"{timing.images_per_second:9,.0f} {duration(epochs * timing.hours):>14s}"
            )
    return "\n".join(lines)


def _found(planned: Planned) -> list[str]:
    """Return lines on a search: the best plans, and the chosen plan as a configuration."""
    given, best = planned.given, planned.prediction
    ratio = best.timing.images_per_second / given.timing.images_per_second
    micro_batch_note = (
        ["  the search does not change the micro-batch size, because batch norm depends on it"]
        if keeps_micro_batch(given.workload)
        else []
    )
    scaled = given.workload.plan.total_replicas != planned.run.plan.total_replicas
    asked = "the given plan" + f", with {given.workload.plan.total_replicas} replicas" * scaled
    lines = [
        *micro_batch_note,
        f"  fastest of {planned.looked_at:,} plans: {ratio:.2f} times the rate of {asked} "
        f"({given.timing.images_per_second:,.0f} img/sec{'' if given.fits else ', does not fit'})",
        "  fastest plans by number of stages and micro-batch size:",
    ]
    for other in planned.frontier[:8]:
        plan = other.workload.plan
        lines.append(
            f"    {len(plan.stages):2d} {'stages' if len(plan.stages) > 1 else 'stage '} x {plan.total_replicas:3d} replica"
            f"{'s' if plan.total_replicas > 1 else ' '}, micro-batch {plan.micro_batch_size:3d} x "
            f"{plan.accumulation:4d}: {other.timing.images_per_second:9,.0f} img/sec, {other.fullest.total / MIB:5,.0f} MiB"
            + (", recomputation" if plan.options.enable_recomputation else "")
        )
    return [*lines, "", "# for configs.yml", planned.block.rstrip()]
