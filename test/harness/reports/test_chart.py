"""Charts place values where the axis says, and every kind of chart fits its frame and a phone."""

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from figures import SVG, checked

from cnn_harness.base import plugins
from cnn_harness.harness.reports import chart
from cnn_harness.harness.reports.chart import ALL, Box, Curves, Dot, Line, Rows
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
    yield "long rows", chart.figure([Rows("", [LONG] * 8, marks, "ms", "{:g} %".format, x_axis=(2, 8), note=LONG)], "t")
    yield "no axis", chart.figure([Rows("", ["only one that is long"], [Box(0, 0, "#111")], tick=None)], "t", alone=False)
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


def test_panels_fill_two_columns():
    """The next panel is in the shorter column. A wide panel is in both, below all others."""
    wide = Rows("wide", ["a"], [Box(0, 1, "#111")], wide=True)
    tall, low = (Rows(f"{count} rows", ["a"] * count, [Box(0, 1, "#111")]) for count in (9, 1))
    root = ET.fromstring(chart.figure([tall, low, low, wide, low]))
    left = [group.get("transform") is None for group in root if group.tag == f"{SVG}g"]
    assert left == [True, False, False, True, True] and root.get("width") == "880"
    tops = [float(next(group.iter(f"{SVG}text")).get("y")) for group in root if group.tag == f"{SVG}g"]
    assert tops[0] == tops[1] < tops[2] < tops[3] < tops[4]
    assert ET.fromstring(chart.figure([low])).get("width") == "440"


def test_invalid_xml_characters_are_escaped():
    svg = chart.figure([Curves("t", [], (0, 1))], "a\x1b[31m & \udcff\uffff")
    assert "a\\x1b[31m & \\udcff\\uffff" in checked(svg)
    assert "\\x1b[31m & " in ET.fromstring(svg).get("aria-label")
