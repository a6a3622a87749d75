"""The table and the picture of docs/measured.md that compare this harness with its peers, from the files of results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.reports import svg

if TYPE_CHECKING:
    from benchmarks.peers import Row

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
FAMILIES = ("Keras", "PyTorch")
COLOURS = {"Keras": "#d9772b", "PyTorch": "#3d78b5"}
WIDTH, LEFT, TOP, STEP = 860.0, 330.0, 60.0, 34.0  # pixels


def write(files: Sequence[Path], rows: Sequence[Row]) -> None:
    """Write the table and the picture, of all machines and days there are."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    page = DOCS / "measured.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table = "\n".join(_table(runs, rows))
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    (DOCS / "peers.svg").write_text(_picture(runs, rows), encoding="utf-8")


def against(result: Mapping[str, Any], family: str) -> tuple[float, float, float, str] | None:
    """Return the speed relative to the best of a family of peers: median, least and largest of the rounds, and its name."""
    ways = {name: speeds for name, speeds in result["speeds"].items() if name.startswith(family)}
    if not ways:
        return None
    best = max(ways, key=lambda name: statistics.median(ways[name]))
    ratios = [own / other for own, other in zip(result["speeds"]["ours"], ways[best])]
    return statistics.median(ratios), min(ratios), max(ratios), best


def _results(runs: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    return [result for run in runs for result in run["rows"] if result["name"] == name]


def _table(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> Iterator[str]:
    yield "| training step or inference, FP32 | times as fast as Keras | as PyTorch | wanted | share of the matrix rate |"
    yield "| --- | --- | --- | --- | --- |"
    for row in rows:
        found = _results(runs, row.name)
        if not found:
            continue
        cells = []
        for family in FAMILIES:
            compared = [ratio for result in found if (ratio := against(result, family))]
            cells.append("; ".join(f"{m:.2f} ({low:.2f} to {high:.2f})" for m, low, high, _ in compared) or "–")
        wanted = ", ".join("–" if each is None else f"{each:g}" for each in row.wanted)
        yield f"| {row.name} | {' | '.join(cells)} | {wanted} | {'; '.join(map(_share, found))} |"
    yield ""
    machines = dict.fromkeys(run["machine"] for run in runs)
    yield f"Machines, in the order of the figures: {'; '.join(machines)}."


def _share(result: Mapping[str, Any]) -> str:
    """Return the share of the machine's own matrix rate that an update's multiply-adds come to, as text."""
    if not result["multiply_adds"]:
        return "–"
    rate = 6 * result["multiply_adds"] * statistics.median(result["speeds"]["ours"])
    return f"{100 * rate / result['matrix_flops']:.0f} %"


def _picture(runs: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """A dot for each measurement of each row, on an axis of ratios."""
    shown = [row for row in rows if _results(runs, row.name)]
    dots = {
        (row.name, family): [ratio[0] for result in _results(runs, row.name) if (ratio := against(result, family))]
        for row in shown
        for family in FAMILIES
    }
    most = max([2.0, *(value for values in dots.values() for value in values)]) * 1.05
    bottom = TOP + STEP * len(shown)

    def x(value: float) -> float:
        return LEFT + value / most * (WIDTH - LEFT - 20)

    def parts() -> Iterator[str]:
        yield svg.text(10, 24, "Times as fast as the best setting of each peer", size=15, weight="bold")
        for k, family in enumerate(FAMILIES):
            yield f'<circle cx="{LEFT + 130 * k + 6}" cy="41" r="5" fill="{COLOURS[family]}"/>'
            yield svg.text(LEFT + 130 * k + 16, 45, family, size=12)
        for tick in svg.ticks(0.0, most, 8):
            yield svg.rule(x(tick), TOP - 6, x(tick), bottom, "#888" if tick == 1 else svg.RULE)
            yield svg.text(x(tick), bottom + 16, f"{tick:g}", size=12, anchor="middle")
        for k, row in enumerate(shown):
            y = TOP + STEP * (k + 0.5)
            yield svg.text(LEFT - 12, y + 4, row.name, size=12, anchor="end")
            for family, wanted in zip(FAMILIES, row.wanted):
                if wanted is not None:
                    yield (
                        f'<path d="M{x(wanted):.1f},{y - 9:.1f}v18" stroke="{COLOURS[family]}" stroke-width="2" '
                        'stroke-dasharray="3 2"/>'
                    )
                for value in dots[row.name, family]:
                    yield f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="5" fill="{COLOURS[family]}" fill-opacity="0.8"/>'

    return svg.document(WIDTH, bottom + 28, parts())
