"""Checks for every chart: it is well formed, has a name, fits a phone, and nothing leaves its frame."""

import re
import xml.etree.ElementTree as ET

from cnn_harness.harness.reports import chart

SVG = "{http://www.w3.org/2000/svg}"
PHONE, LEAST = 375, 12  # pixels: width of a narrow screen, and size of letters on it
_NUMBER = r"-?\d+(?:\.\d+)?"


def checked(svg: str, room: float = PHONE) -> list[str]:
    """Check a chart that is `room` pixels wide on a phone; return its texts."""
    root = ET.fromstring(svg)
    assert root.get("aria-label") and "nan" not in svg and "inf" not in re.findall(r"[\w.]+", svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    parents = {child: parent for parent in root.iter() for child in parent}
    for each in root.iter():
        x = y = 0.0  # of the enclosing nested chart or group
        above = parents.get(each)
        if above is not None and above.get("transform"):
            x, y = map(float, re.findall(_NUMBER, above.get("transform")))
        elif above is not None and above.tag == SVG + "svg" and above is not root:
            continue  # a nested chart clips it
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
