"""Charts place values where the axis says, and every kind of chart fits its frame and a phone."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from figures import SVG, checked

from cnn_harness.base import plugins
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import ALL, Box, Curves, Dot, Line, Rows, span, thinned, ticks
from experiments import simulate_groups

LONG = "a rather long name of a run & its <settings> " * 3


def figures():
    many = [(k / 10, math.sin(k / 9)) for k in range(700)]
    lines = [Line(f"{LONG}{k}", many, chart.BLUE, dots=k == 1, dashed=k == 2) for k in range(4)]
    yield "curves", chart.figure([Curves("Loss " * 20, lines, (0, 70)), Curves("b", [], (0, 1e9), 0)], LONG, [LONG] * 2)
    yield "no numbers", chart.figure([Curves("a", [Line("a", [(0, math.nan), (1, math.inf)], chart.RED)], (0, 1))])
    yield (
        "short rows",
        chart.figure([Rows("a", ["IPU 0", "IPU 10"], [Box(-1e5, 2e6, "#eee", 1, text="x", tooltip="<")], "MiB")]),
    )
    wide = [Box(0, 9, "#111", k, f"label {k} " * 5, least=2) for k in range(8)]
    marks = [*wide, Dot(99, "#222", 3, "far"), Box(5, 5, "#333", ALL)]
    yield "long rows", chart.figure([Rows("", [LONG] * 8, marks, "ms", "{:g} %", x_axis=(2, 8), note=LONG)], "t")
    yield "no axis", chart.figure([Rows("", ["only one that is long"], [Box(0, 0, "#111")], tick="")], "t", alone=False)
    yield "groups", simulate_groups.svg(simulate_groups.outcomes(simulate_groups.Group(mtbf_hours=1)))
    shown = sorted(path for path in (plugins.ROOT / "docs").glob("*.svg") if path.name != "packages.svg")  # for developers
    yield from ((path.name, path.read_text(encoding="utf-8")) for path in shown)


@pytest.mark.parametrize("svg", [pytest.param(svg, id=name) for name, svg in figures()])
def test_chart_fits_frame_and_phone(svg):
    assert checked(svg)


def test_values_match_axis():
    values = [3.0, 9.0, 4.5, 0.5]
    svg = chart.figure([Curves("t", [Line("a & b", list(enumerate(values)), "#111", dots=True)], (0, 4), floor=0)])
    dots = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)[1:]  # the first belongs to the legend
    across, down = np.array(dots, float).T
    assert np.polyfit(values, down, 1, full=True)[1] < 0.02 and np.polyfit(values, down, 1)[0] < 0
    assert np.allclose(np.diff(across), across[1] - across[0], atol=0.11)
    assert "a & b (last: 0.5)" in checked(svg)


def test_bars_match_values():
    marks = [Box(0, 10, "#111", 0), Box(2, 7, "#222", 1)]
    drawn = chart.figure([Rows("t", ["a", "b"], marks)])
    (x, whole), (y, part) = (re.findall(rf'd="M([\d.]+),[\d.]+h([\d.]+)\S+ fill="{c}"', drawn)[0] for c in ("#111", "#222"))
    assert float(part) == pytest.approx(float(whole) / 2, abs=0.1)
    assert float(y) - float(x) == pytest.approx(float(whole) / 5, abs=0.1)


def test_invalid_xml_characters_are_escaped():
    svg = chart.figure([Curves("t", [], (0, 1))], "a\x1b[31m & \udcff\uffff")
    assert "a\\x1b[31m & \\udcff\\uffff" in checked(svg)
    assert "\\x1b[31m & " in ET.fromstring(svg).get("aria-label")


def test_long_curve_keeps_extremes_ends_and_gaps():
    points = [(float(x), math.sin(x / 50)) for x in range(20_000)]
    points[7_777], points[9_999], points[5_000] = (7_777.0, 9.0), (9_999.0, -9.0), (5_000.0, math.nan)
    kept = thinned(points)
    assert len(kept) <= 2 * 500 and kept[0] == points[0] and kept[-1] == points[-1]
    assert {points[7_777], points[9_999]} <= set(kept) and any(math.isnan(y) for _, y in kept)


def test_many_equal_bars_are_one_path():
    boxes = [Box(k, k + 1, "#111", opacity=k % 2 / 2 + 0.5) for k in range(1000)]
    drawn = ET.fromstring(chart.figure([Rows("", [""], boxes, tick="")], "t"))
    assert len(list(drawn.iter(SVG + "path"))) <= 3


def test_ticks_are_round_numbers():
    assert ticks(0, 8) == [0, 2, 4, 6, 8] and ticks(55, 75) == [55, 60, 65, 70, 75]
    assert ticks(0, 1e-5) == [0, 2e-6, 4e-6, 6e-6, 8e-6, 1e-5] and ticks(-1, 1) == [-1, -0.5, 0, 0.5, 1]


def test_axis_is_never_empty():
    for values in ([], [0.0], [7.0], [-3.0], [math.nan], [1e-12], [5.0, 5.0]):
        for floor in (None, 0.0):
            low, high = span(values, floor, slack=1)
            assert low < high and all(low <= v <= high for v in values if math.isfinite(v))
