"""The table and the picture of docs/measured.md that compare this harness with its peers, from the files of results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from harness.reports import svg

if TYPE_CHECKING:
    from benchmarks.peers import Row

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
FAMILIES = ("Keras", "PyTorch")
COLOURS = {"Keras": "#d9772b", "PyTorch": "#3d78b5"}
EDGE, STEP = 18.0, 56.0  # pixels: a margin of the picture, the height of a row


def write(files: Sequence[Path], rows: Sequence[Row]) -> None:
    """Write the table and the picture, of all machines and days there are."""
    runs = [{"day": path.name[:10], **json.loads(path.read_text(encoding="utf-8"))} for path in files]
    page = DOCS / "measured.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table = "\n".join(_table(runs, rows))
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    (DOCS / "peers.svg").write_text(_picture(runs, rows), encoding="utf-8")


def against(result: Mapping[str, Any], family: str, own: str = "ours") -> tuple[float, float, float, str] | None:
    """Return a way's speed relative to the best of a family of peers: median, least and largest of the rounds, its name."""
    ways = {name: speeds for name, speeds in result["speeds"].items() if name.startswith(family)}
    if not ways:
        return None
    best = max(ways, key=lambda name: statistics.median(ways[name]))
    ratios = [ours / other for ours, other in zip(result["speeds"][own], ways[best])]
    return statistics.median(ratios), min(ratios), max(ratios), best


def _results(runs: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [result for run in runs for result in run["rows"] if result["name"] == name]


def _table(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Iterator[str]:
    """A line for each measurement of each row, and the machines by their letters."""
    yield "| step or inference, FP32 | measured | times as fast as Keras | as PyTorch | wanted | share of the matrix rate |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        yield from _measurements(runs, row.name, row.name, "ours", row.wanted)
        for way in row.also:
            yield from _measurements(runs, row.name, f"the same{way.name.removeprefix('ours')}", way.name, way.wanted)
    yield ""
    for letter, run in zip(ascii_uppercase, runs):
        yield f"- {letter}: {run['day']}, {run['machine']}"


def _measurements(
    runs: Sequence[Mapping[str, Any]], row: str, name: str, own: str, wanted: Sequence[float | None]
) -> Iterator[str]:
    """A line for each run that measured our way `own` of a row; the first has the name and the ratios that are wanted."""
    asked = ", ".join("–" if each is None else f"{each:g}" for each in wanted)
    for letter, run in zip(ascii_uppercase, runs):
        for result in _results([run], row):
            if own not in result["speeds"]:
                continue
            compared = [against(result, family, own) for family in FAMILIES]
            cells = [f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else "–" for ratio in compared]
            yield f"| {name} | {letter} | {' | '.join(cells)} | {asked} | {_share(result, own)} |"
            name = asked = ""


def _share(result: Mapping[str, Any], own: str) -> str:
    """Return the share of the machine's own matrix rate that an update's multiply-adds come to, as text."""
    if not result["multiply_adds"]:
        return "–"
    rate = 6 * result["multiply_adds"] * statistics.median(result["speeds"][own])
    return f"{100 * rate / result['matrix_flops']:.0f} %"


def _picture(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """A dot for each measurement of each row, on an axis of ratios; a row's last one is dark, those before it pale."""
    shown = [row for row in rows if _results(runs, row.name)]
    dots = {
        (row.name, family): [ratio[0] for result in _results(runs, row.name) if (ratio := against(result, family))]
        for row in shown
        for family in FAMILIES
    }
    most = max([2.0, *(value for values in dots.values() for value in values)]) * 1.05
    title = "Times as fast as the best setting of each peer"
    samples = [(_dot(12.0, 0.0, family, True), family) for family in FAMILIES]
    samples.append(("".join(_dot(6.0 + 14 * k, 0.0, family, False) for k, family in enumerate(FAMILIES)), "before"))
    dashes = f'<path d="M12,-9v18" stroke="{svg.SOFT}" stroke-width="2" stroke-dasharray="3 2"/>'
    heading = svg.wrapped(title, svg.WIDTH - 2 * EDGE, 18, "bold")
    legend, top = svg.legend([*samples, (dashes, "wanted")], EDGE, 33.0 + 21 * len(heading), svg.WIDTH - EDGE)
    bottom = top + STEP * len(shown)

    def x(value: float) -> float:
        return EDGE + value / most * (svg.WIDTH - 2 * EDGE)

    def parts() -> Iterator[str]:
        yield from svg.paragraph(EDGE, 28, heading, size=18, weight="bold")
        yield from legend
        for tick in svg.ticks(0.0, most, 6):
            yield svg.rule(x(tick), top - 6, x(tick), bottom, svg.AXIS if tick == 1 else svg.RULE)
            yield svg.text(x(tick), bottom + 18, f"{tick:g}", anchor="middle")
        for k, row in enumerate(shown):
            y = top + STEP * k
            yield svg.text(EDGE, y + 16, row.name, halo=True)
            for family, wanted in zip(FAMILIES, row.wanted):
                if wanted is not None:
                    yield (
                        f'<path d="M{x(wanted):.1f},{y + 24:.1f}v18" stroke="{COLOURS[family]}" stroke-width="2" '
                        'stroke-dasharray="3 2"/>'
                    )
            for family in FAMILIES:
                yield from (_dot(x(value), y + 33, family, False) for value in dots[row.name, family][:-1])
            for family in FAMILIES:
                yield from (_dot(x(value), y + 33, family, True) for value in dots[row.name, family][-1:])

    return svg.document(svg.WIDTH, bottom + 30, parts(), title)


def _dot(x: float, y: float, family: str, is_last: bool) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{COLOURS[family]}" fill-opacity="{0.9 if is_last else 0.25}"/>'
