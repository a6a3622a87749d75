"""Checks for every chart: it is well formed, has a name, fits a phone, and nothing leaves its frame.

A chart of two columns fits a phone that is held sideways."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

from cnn_harness.harness.reports import chart

SVG = "{http://www.w3.org/2000/svg}"
PHONE, SIDEWAYS, LEAST = 375, 667, 12  # pixels: sides of a small screen, and size of letters on it
_NUMBER = r"-?\d+(?:\.\d+)?"


def checked(svg: str, room: float = PHONE, wide_room: float = SIDEWAYS) -> list[str]:
    """Check a chart that is at most `room` pixels wide on a phone, or `wide_room` if it has two columns; return its texts."""
    root = ET.fromstring(svg)
    assert root.get("aria-label") and "nan" not in svg and "inf" not in re.findall(r"[\w.]+", svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    assert width in (chart.WIDTH, 2 * chart.WIDTH)
    room = room if width == chart.WIDTH else wide_room
    for each, x, y in _placed(root):
        if each.tag == SVG + "text":
            size = float(each.get("font-size"))
            assert size * min(1, room / width) >= LEAST
            long = chart.text_width(each.text, size, each.get("font-weight"))
            left = x + float(each.get("x")) - long * {"start": 0, "middle": 0.5, "end": 1}[each.get("text-anchor")]
            assert left >= -6 and left + long <= width + 6 and 10 <= y + float(each.get("y")) <= height, each.text
        elif each.tag == SVG + "circle":
            assert 0 <= x + float(each.get("cx", 0)) <= width and 0 <= y + float(each.get("cy", 0)) <= height
        elif each.tag == SVG + "path":
            _inside(each.get("d"), x, y, width, height)
    return [each.text for each in root.iter(SVG + "text")]


def _placed(element: ET.Element, x: float = 0, y: float = 0) -> Iterator[tuple[ET.Element, float, float]]:
    """Yield the elements below one, each with the origin of its group. A nested chart clips its content, so this content is
    left out."""
    for child in element:
        yield child, x, y
        if child.tag != SVG + "svg":
            right, down = map(float, re.findall(_NUMBER, child.get("transform", "0,0")))
            yield from _placed(child, x + right, y + down)


def _inside(path: str, x: float, y: float, width: float, height: float) -> None:
    """Check each corner of a path."""
    across = down = 0.0
    for letter, numbers in re.findall(rf"([MLHVhvz])((?:[ ,]?{_NUMBER})*)", path):
        values = list(map(float, re.findall(_NUMBER, numbers)))
        if letter in "ML":
            across, down = values
        across = values[0] if letter == "H" else across + values[0] if letter == "h" else across
        down = values[0] if letter == "V" else down + values[0] if letter == "v" else down
        assert -1 <= x + across <= width + 1 and -1 <= y + down <= height + 1, path
