"""Predictions as one page that needs nothing else: pictures first, numbers below, legible on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from html import escape

from emulator.cost_model import variants
from emulator.cost_model.prediction import Prediction, predict
from emulator.cost_model.systems import System
from emulator.cost_model.workload import Workload
from emulator.plan.schedules import BACKWARD, FORWARD, SCHEDULES
from harness.pod_planning import table
from harness.pod_planning.planned_config import Planned
from harness.reports import svg
from harness.reports.prediction import MIB
from harness.reports.timeline import COLOURS, IDLE

WIDTH, LEFT, RIGHT = 400.0, 62.0, 16.0  # pixels: of each picture
_SIZE = 15  # of its letters, so that they are 12 pixels high on a screen of 375 at least
PARTS = {
    "weights": "#264653", "optimiser_state": "#2a9d8f", "gradients": "#8ab17d", "stashed_activations": "#e9c46a",
    "activations": "#f4a261", "temporaries": "#e76f51", "images": "#9b5de5", "code": "#8d99ae",
}  # fmt: skip
PLANNED, IDEAL, FULL = "#2a6f97", "#adb5bd", "#c1121f"
SHOWN = 3  # micro-batches for each stage that a timeline shows
_STYLE = """
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--box:#f6f6f6;--rule:#e4e4e4;--bad:#c1121f}
@media(prefers-color-scheme:dark){:root{--ink:#e4e6ea;--paper:#16181c;--box:#202329;--rule:#3a3f48;--bad:#ff6b6b}}
body{font:16px/1.5 Helvetica,Arial,"DejaVu Sans",sans-serif;margin:0 auto;max-width:1080px;padding:12px;color:var(--ink);
background:var(--paper)}
h1{font-size:1.35em}h2{font-size:1.1em;margin:1.6em 0 .3em;overflow-wrap:anywhere}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:12px;align-items:start}
figure{margin:0;border:1px solid var(--rule);border-radius:6px;padding:6px}figure svg{width:100%;height:auto;display:block}
.facts{display:flex;flex-wrap:wrap;gap:8px 24px;margin:.4em 0 1em}.facts b{font-size:1.25em}
.bad{color:var(--bad)}pre{overflow-x:auto;font-size:13px;background:var(--box);padding:10px;border-radius:6px}
"""


def of(planned: Sequence[Planned]) -> str:
    """The whole page."""
    parts = ["<h1>What these plans would do</h1>" if len(planned) > 1 else ""]
    if len(planned) > 1:
        parts.append(f"<pre>{escape(chr(10).join(table.comparison(planned)))}</pre>")
        parts.append(f'<div class="pictures">{_figure(_rates(planned))}</div>')
    parts += [_section(each) for each in planned]
    parts.append(f"<p>{escape(table.NOTE)}</p>")
    style = _STYLE + svg.dark_rules("".join(parts), "figure ")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Plan: {escape(', '.join(dict.fromkeys(each.name for each in planned)))}</title>"
        f"<style>{style}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _section(planned: Planned) -> str:
    prediction, timing = planned.prediction, planned.prediction.timing
    room = prediction.room / MIB
    fit = f"{room:,.0f} MiB left" if prediction.fits else f'<span class="bad">{-room:,.0f} MiB too much</span>'
    energy = prediction.kilowatt_hours
    facts = [
        (f"{timing.images_per_second:,.0f}", "images a second"),
        (f"{1e3 * timing.seconds:,.1f} ms", table.unit_of_work(prediction)),
        (f"{timing.hours:,.1f}", "hours"),
        (fit, "on the fullest IPU"),
        (f"{100 * timing.idle_share:.0f} %", "idle"),
        (f"{100 * timing.peak_share:.1f} %", "of the peak"),
    ]
    facts += [(f"{energy:,.0f}", "kWh")] if energy is not None else []
    facts_html = "".join(f"<span><b>{value}</b> {escape(name)}</span>" for value, name in facts)
    pictures = [_memory(prediction), _update(prediction)]
    if len(prediction.memories) > 1:
        pictures = [_timeline(prediction), *pictures, _schedules(prediction)]
    pictures.append(_scaling(prediction))
    return (
        f"<h2>{escape(planned.name)}, predicted on {prediction.system.name}</h2>"
        f'<div class="facts">{facts_html}</div>'
        f'<div class="pictures">{"".join(map(_figure, pictures))}</div>'
        f"<details><summary>Numbers</summary><pre>{escape(table.one(planned))}</pre></details>"
    )


def _figure(picture: str) -> str:
    return f"<figure>{picture}</figure>"


def _picture(title: str, height: float, parts: Iterable[str]) -> str:
    """A picture with its title."""
    return svg.inline(WIDTH, height, [svg.text(10, 22, title, size=_SIZE, weight="bold"), *parts], title)


def _box(x: float, y: float, width: float, height: float, colour: str, says: str) -> str:
    return (
        f'<g><title>{escape(says)}</title><rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" '
        f'height="{height:.1f}" fill="{colour}"/></g>'
    )


def _legend(entries: Sequence[tuple[str, str]], top: float) -> tuple[list[str], float]:
    """Colours and their words, in rows of at most the picture's width; and the height at which they end."""
    parts, y = svg.legend([(svg.square(colour), word) for colour, word in entries], 6.0, top, WIDTH - 6)
    return parts, y - 8


def _timeline(prediction: Prediction) -> str:
    """The beginning of an update, with the stages' real durations."""
    timing, stages = prediction.timing, len(prediction.memories)
    count = min(prediction.workload.plan.accumulation, SHOWN * stages)
    bars = list(timing.placed(count))
    end = max(last for _, _, last in bars)
    scale, row, top = (WIDTH - LEFT - RIGHT) / end, 26.0, 44.0
    bottom = top + row * stages
    entries = ((COLOURS[FORWARD], "forward"), (COLOURS[BACKWARD], "backward"), (IDLE, "idle; numbers are micro-batches"))
    legend, height = _legend(entries, bottom + 44)

    def parts() -> Iterator[str]:
        for stage in range(stages):
            y = top + row * stage
            yield svg.text(LEFT - 8, y + 16, f"IPU {stage}", size=_SIZE, anchor="end")
            yield _box(LEFT, y, end * scale, row - 4, IDLE, "idle")
        for action, begin, last in bars:
            says = f"stage {action.stage}, {action.kind} of micro-batch {action.micro_batch}: {1e3 * (last - begin):.2f} ms"
            x, y, width = LEFT + begin * scale, top + row * action.stage, (last - begin) * scale
            yield _box(x, y, width - 0.5, row - 4, COLOURS[action.kind], says)
            if width > svg.text_width(str(action.micro_batch), _SIZE) + 3:
                yield svg.text(x + width / 2, y + 16, str(action.micro_batch), size=_SIZE, anchor="middle", fill=svg.BRIGHT)
        for tick in svg.ticks(0.0, 1e3 * end, 5):
            yield svg.text(LEFT + tick * scale / 1e3, bottom + 16, f"{tick:g}", size=_SIZE, anchor="middle")
        yield svg.text(LEFT - 8, bottom + 16, "ms", size=_SIZE, anchor="end")
        yield from legend

    plan = prediction.workload.plan
    name = f"{plan.schedule}, one replica: {count} of {plan.accumulation}"
    return _picture(name, height, parts())


def _memory(prediction: Prediction) -> str:
    """Each IPU's memory as a stacked bar against the limit."""
    most = max(prediction.capacity, prediction.fullest.total) * 1.03
    scale, row, top = (WIDTH - LEFT - RIGHT) / most, 26.0, 44.0
    bottom = top + row * len(prediction.memories)
    legend, height = _legend([(colour, name.replace("_", " ")) for name, colour in PARTS.items()], bottom + 44)

    def parts() -> Iterator[str]:
        for j, memory in enumerate(prediction.memories):
            x, y = LEFT, top + row * j
            yield svg.text(LEFT - 8, y + 16, f"IPU {j}", size=_SIZE, anchor="end")
            for name, size in asdict(memory).items():
                yield _box(x, y, size * scale, row - 4, PARTS[name], f"{name.replace('_', ' ')}: {size / MIB:,.1f} MiB")
                x += size * scale
        limit = LEFT + prediction.capacity * scale
        yield svg.rule(limit, top - 8, limit, bottom, FULL)
        yield svg.text(limit, top - 11, f"{prediction.capacity / MIB:,.0f} MiB", size=_SIZE, anchor="end", fill=FULL)
        for tick in svg.ticks(0.0, most / MIB, 5):
            yield svg.text(LEFT + tick * MIB * scale, bottom + 16, f"{tick:g}", size=_SIZE, anchor="middle")
        yield from legend

    return _picture("Memory of each IPU", height, parts())


def _update(prediction: Prediction) -> str:
    """The parts of an update's time, or of an inference's."""
    rows = [(name.replace("_", " "), seconds) for name, seconds in prediction.update_parts.items() if seconds > 0]
    unit = table.unit_of_work(prediction)
    return _bars(f"Where the time of {unit} goes", [(n, 1e3 * v, f"{1e3 * v:,.2f} ms", PLANNED) for n, v in rows])


def _schedules(prediction: Prediction) -> str:
    """Bars of images a second, one for each schedule of the plan's stages."""
    rows = []
    for schedule in SCHEDULES:
        other = _varied(prediction, variants.scheduled(prediction.workload, schedule), prediction.system)
        own = schedule == prediction.workload.plan.schedule
        throughput = other.timing.images_per_second
        rows.append(
            (
                schedule,
                throughput,
                f"{throughput:,.0f} img/sec, {other.fullest.total / MIB:,.0f} MiB",
                PLANNED if own else IDEAL,
            )
        )
    return _bars("Schedules", rows)


def _scaling(prediction: Prediction) -> str:
    """Bars of images a second, one for each system of the same IPUs: the plan on its own system, and on the others as many
    replicas of it as they hold, of a training with the same global batch."""
    rows, workload = [], prediction.workload
    for system in variants.family(prediction.system):
        own = system is prediction.system
        other = workload if own else variants.scaled(workload, system)
        if other is None:
            rows.append((system.name, 0.0, "does not hold this plan", IDEAL))
            continue
        throughput = _varied(prediction, other, system).timing.images_per_second
        replicas = f"{other.plan.total_replicas} replica{'s' if other.plan.total_replicas > 1 else ''}"
        accumulation = f" x {other.plan.accumulation}" if workload.training else ""
        rows.append(
            (system.name, throughput, f"{throughput:,.0f} img/sec, {replicas}{accumulation}", PLANNED if own else IDEAL)
        )
    same = "global batch" if workload.training else "micro-batch"
    return _bars(f"The same {same} on other systems", rows)


def _varied(prediction: Prediction, workload: Workload, system: System) -> Prediction:
    """Return the prediction of another workload by a prediction's constants and costs of segments."""
    return predict(workload, system, prediction.timing.constants, prediction.timing.costs)


def _bars(title: str, rows: Sequence[tuple[str, float, str, str]]) -> str:
    """Rows of (name, value, words, colour); the words stand below the bars' names, in any case legible."""
    most = max((value for _, value, _, _ in rows), default=1.0) or 1.0
    left, y, parts = 10.0, 36.0, []
    for name, value, words, colour in rows:
        text_lines = svg.wrapped(f"{name}: {words}", WIDTH - 2 * left, _SIZE)
        parts += svg.paragraph(left, y + 16, text_lines, step=19, size=_SIZE)
        y += 19 * len(text_lines) + 3
        parts.append(_box(left, y, value / most * (WIDTH - left - RIGHT), 12, colour, words))
        y += 22
    return _picture(title, y + 2, parts)


def _rates(planned: Sequence[Planned]) -> str:
    """Rate against memory of the fullest IPU, a dot for each plan."""
    top, side, bottom = 44.0, 300.0, 344.0
    throughputs = [each.prediction.timing.images_per_second for each in planned]
    full = [each.prediction.fullest.total / MIB for each in planned]
    limit = max(each.prediction.capacity for each in planned) / MIB
    x1, y1 = 1.05 * max([*full, limit]), 1.1 * max(throughputs)
    labels = (
        f"{k}  {p.name}, {p.prediction.system.name}: {throughput:,.0f} img/sec"
        for k, (p, throughput) in enumerate(zip(planned, throughputs), 1)
    )
    names = [svg.wrapped(each, WIDTH - 20, _SIZE) for each in labels]

    def parts() -> Iterator[str]:
        for tick in svg.ticks(0.0, x1, 5):
            x = LEFT + tick / x1 * (WIDTH - LEFT - RIGHT)
            yield svg.rule(x, top, x, bottom) + svg.text(x, bottom + 17, f"{tick:g}", size=_SIZE, anchor="middle")
        for tick in svg.ticks(0.0, y1, 6):
            y = bottom - tick / y1 * side
            yield svg.rule(LEFT, y, WIDTH - RIGHT, y) + svg.text(LEFT - 6, y + 4, f"{tick:,.0f}", size=_SIZE, anchor="end")
        edge = LEFT + limit / x1 * (WIDTH - LEFT - RIGHT)
        yield svg.rule(edge, top, edge, bottom, FULL)
        yield svg.text(WIDTH - RIGHT, bottom + 32, "MiB on the fullest IPU", size=_SIZE, anchor="end")
        for k, (each, throughput, size) in enumerate(zip(planned, throughputs, full), 1):
            x, y = LEFT + size / x1 * (WIDTH - LEFT - RIGHT), bottom - throughput / y1 * side
            colour = PLANNED if each.prediction.fits else FULL
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{colour}" fill-opacity="0.85"/>'
            yield svg.text(x, y + 4, str(k), size=_SIZE, anchor="middle", fill=svg.BRIGHT)
        y = bottom + 56
        for text_lines in names:
            yield from svg.paragraph(10, y, text_lines, step=19, size=_SIZE)
            y += 19 * len(text_lines) + 3

    return _picture(
        "Images a second against memory", bottom + 50 + sum(19 * len(text_lines) + 3 for text_lines in names), parts()
    )
