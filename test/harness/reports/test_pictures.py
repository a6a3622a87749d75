"""Every picture can be read on a phone, in the light and in the dark, and has a name."""

import re
import xml.etree.ElementTree as ET

import pytest

from base import plugins
from harness.reports import plot, svg

SVG = "{http://www.w3.org/2000/svg}"
PHONE, LEAST = 375, 12  # pixels: of a narrow screen, and of letters on it
PICTURES = sorted((plugins.ROOT / "docs").glob("*.svg"))


def drawings():
    rows = [{"iteration": 10 * i, "epoch": i / 4, "lr": 0.1, "loss_batch": 1.0, "loss_avg": 1.0} for i in range(9)]
    runs = [(f"a rather long name of run {k}", rows, []) for k in range(4)]
    yield "a run", plot.run_svg(rows, [], "a network on some data", "its_folder")
    yield "runs", plot.comparison_svg(runs, "words " * 30)
    yield from ((path.name, path.read_text(encoding="utf-8")) for path in PICTURES)


@pytest.fixture(params=list(drawings()), ids=lambda each: each[0])
def picture(request):
    return ET.fromstring(request.param[1])


def test_letters_are_large_enough_on_a_phone(picture):
    width = float(picture.get("viewBox").split()[2])
    sizes = [float(e.get("font-size")) for e in picture.iter(SVG + "text")]
    assert sizes and min(sizes) * min(1, PHONE / width) >= LEAST


def test_texts_lie_inside(picture):
    """A text's width is that of its letters in Helvetica, about; a picture cuts off what leaves it."""
    _, _, width, height = map(float, picture.get("viewBox").split())
    shifted = {text: float(re.match(r"translate\(([-.\d]+)", g.get("transform")).group(1))
               for g in picture.iter(SVG + "g") if g.get("transform") for text in g.iter(SVG + "text")}  # fmt: skip
    for each in picture.iter(SVG + "text"):
        long = svg.text_width(each.text, float(each.get("font-size")), each.get("font-weight"))
        x = float(each.get("x")) + shifted.get(each, 0)
        left = x - long * {"start": 0, "middle": 0.5, "end": 1}[each.get("text-anchor")]
        assert left >= -6 and left + long <= width + 6 and 10 <= float(each.get("y")) <= height, each.text


def test_both_schemes_have_every_colour(picture):
    """A colour that stands in an element has another in the dark, but those that are the same on purpose."""
    rules = "".join(each.text for each in picture.iter(SVG + "style"))
    assert rules.startswith("@media(prefers-color-scheme:dark){")
    for each in picture.iter():
        for kind in ("fill", "stroke"):
            colour = each.get(kind)
            if colour not in (None, "none", svg.BRIGHT):
                assert f'[{kind}="{colour}"]{{{kind}:{svg.DARK[colour]}}}' in rules


def luminance(colour):
    digits = colour.lstrip("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_letters_stand_out(dark):
    """WCAG's ratios: 4.5 for text, 3 for lines."""
    shade = (lambda colour: svg.DARK[colour]) if dark else (lambda colour: colour)
    assert all(contrast(shade(ink), shade(svg.PAPER)) >= 4.5 for ink in (svg.INK, svg.SOFT))
    assert all(contrast(shade(line), shade(svg.PAPER)) >= 3 for line in (plot.BLUE, plot.ORANGE, plot.GREEN, svg.AXIS))


def test_a_picture_has_a_name(picture):
    assert picture.find(SVG + "title").text == picture.get("aria-label") != ""
