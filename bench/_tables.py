"""Write the comparison with Keras and PyTorch in docs/measured.md: the tables and the chart, from the files of results."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import ALL, AXIS, Box, Dot, Rows

if TYPE_CHECKING:
    from bench.peers import Row

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
FAMILIES = ("Keras", "PyTorch")
COLOURS = {"Keras": "#d9772b", "PyTorch": "#3d78b5"}


def write(files: Sequence[Path], rows: Sequence[Row]) -> None:
    """Write the tables and the chart, with the newest results of each machine."""
    machines = dict(sorted(_newest(files).items(), key=lambda item: _place(item[0])))
    page = DOCS / "measured.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    table = "\n".join(_table(machines, rows))
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    (DOCS / "peers.svg").write_text(_chart(machines, rows), encoding="utf-8")


def _newest(files: Sequence[Path]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the newest result of each row for each kind of machine, such as "2 cores of AMD EPYC with AVX2".

    `files` must be ordered by day.
    """
    machines: dict[str, dict[str, Mapping[str, Any]]] = {}
    for path in files:
        run = json.loads(path.read_text(encoding="utf-8"))
        kind, _, software = run["machine"].partition(", load")[0].partition(", ")
        known = machines.setdefault(kind, {})
        known |= {result["name"]: {**result, "day": path.name[:10], "software": software} for result in run["rows"]}
    return machines


def _place(machine: str) -> int:
    """Return the place of a kind of machine: the one that most people have is first."""
    kinds = "AVX2", "AVX-512", "AMX"
    return next((k for k, vectors in enumerate(kinds) if machine.endswith(vectors)), len(kinds))


def against(result: Mapping[str, Any], family: str, own: str = "ours") -> tuple[float, float, float, str] | None:
    """Compare the speed of our way `own` with the fastest way of another library. Return the median, least and largest ratio
    of the rounds, and the name of the fastest way; None if the library was not measured."""
    ways = {name: speeds for name, speeds in result["speeds"].items() if name.startswith(family)}
    if not ways:
        return None
    best = max(ways, key=lambda name: statistics.median(ways[name]))
    ratios = [ours / other for ours, other in zip(result["speeds"][own], ways[best])]
    return statistics.median(ratios), min(ratios), max(ratios), best


def _table(machines: Mapping[str, Mapping[str, Mapping[str, Any]]], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table for each machine. Each row of the comparison has a line for each of our ways."""
    for machine, results in machines.items():
        days = sorted({result["day"] for result in results.values()})
        software = max(results.values(), key=lambda result: result["day"])["software"]
        yield from (f"{machine}, {software}, {' and '.join(days)}:", "")
        yield "| task | images/s | GB | over Keras | GB | over PyTorch | GB | share of the matrix rate |"
        yield f"|{' --- |' * 8}"
        for row in rows:
            if result := results.get(row.name):
                yield from _line(result, row.title, "ours")
                for way in row.also:
                    yield from _line(result, f"the same, {way.options}", way.name)
        yield ""


def _line(result: Mapping[str, Any], name: str, own: str) -> Iterator[str]:
    """Yield the table line of our way `own`, if it was measured."""
    if own in result["speeds"]:
        cells = []
        for family in FAMILIES:
            ratio = against(result, family, own)
            cells += [f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else "–", _memory(result, family)]
        rate = statistics.median(result["speeds"][own])
        words = f"{name} | {rate:,.{int(rate < 100)}f} | {_gigabytes(result['peak_MB'][own])} | {' | '.join(cells)}"
        yield f"| {words} | {_share(result, own)} |"


def _memory(result: Mapping[str, Any], family: str) -> str:
    """Return the least peak memory of the ways of a library, in GB; "–" if the library was not measured."""
    peaks = [peak for name, peak in result["peak_MB"].items() if name.startswith(family)]
    return _gigabytes(min(peaks)) if peaks else "–"


def _gigabytes(megabytes: float) -> str:
    """Return the GB (10^9 bytes) of a recorded peak, whose unit is 2^20 bytes."""
    return f"{megabytes * 2**20 / 1e9:.1f}"


def _share(result: Mapping[str, Any], own: str) -> str:
    """Return the training speed in operations per second, as a share of the machine's speed in matrix products."""
    if not result["multiply_adds"]:
        return "–"
    rate = 6 * result["multiply_adds"] * statistics.median(result["speeds"][own])
    return f"{100 * rate / result['matrix_flops']:.0f} %"


def _chart(machines: Mapping[str, Mapping[str, Mapping[str, Any]]], rows: Sequence[Row]) -> str:
    """Draw a panel for each machine. Each task has a row, and each library a dot."""
    panels = []
    for machine, results in machines.items():
        shown = [row for row in rows if row.name in results]
        marks: list[Box | Dot] = [Box(1, 1, AXIS, ALL, "equal speed", least=1, thick=1)]
        for k, row in enumerate(shown):
            for family in FAMILIES:
                if ratio := against(results[row.name], family):
                    marks.append(Dot(ratio[0], COLOURS[family], k, f"over {family}"))
        panels.append(Rows(machine.partition(", ")[0], [row.title for row in shown], marks, height=22, x_axis=(0, 3.5)))
    return chart.figure(panels, "Speed-up over each library's fastest setting")
