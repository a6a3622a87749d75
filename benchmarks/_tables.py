"""The table and the picture of docs/measured.md that compare this harness with its peers, from the files of results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from harness.reports import chart
from harness.reports.chart import ALL, AXIS, Box, Dot, Rows

if TYPE_CHECKING:
    from benchmarks.peers import Row

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
FAMILIES = ("Keras", "PyTorch")
COLOURS = {"Keras": "#d9772b", "PyTorch": "#3d78b5"}


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
    """Return a dot for each measurement of each row, the last one dark, those before it pale."""
    shown = [row for row in rows if _results(runs, row.name)]
    marks: list[Box | Dot] = [Box(1, 1, AXIS, ALL, least=1, thick=1)]
    for k, row in enumerate(shown):
        for family, wanted in zip(FAMILIES, row.wanted):
            ratios = [ratio[0] for result in _results(runs, row.name) if (ratio := against(result, family))]
            marks += [Dot(value, COLOURS[family], k, f"{family} before", 0.25) for value in ratios[:-1]]
            marks += [Dot(value, COLOURS[family], k, family, 0.9) for value in ratios[-1:]]
            if wanted is not None:
                marks.append(Box(wanted, wanted, COLOURS[family], k, f"{family}, wanted", thick=0.9, least=2))
    axis = 0.0, 1.05 * max(2.0, *(mark.x0 for mark in marks))
    panel = Rows("", [row.name for row in shown], marks, height=22, x_axis=axis)
    return chart.figure([panel], "Times as fast as the best setting of each peer")
