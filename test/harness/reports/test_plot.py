"""Pictures of a run: well-formed, complete, and drawn from whatever rows there are."""

import csv
import itertools
import math
import xml.etree.ElementTree as ET

import pytest

from harness.reports import plot, titles, validated_rows
from harness.reports.plot import comparison_svg, run_svg, text_curve, whole_steps, write_run_svg
from harness.reports.svg import span, ticks

COLUMNS = ("step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg")
BATCHES, AVERAGE, LOSS = (0, "#a9c4e4"), (0, "#1f5a99"), (0, "#c4561a")
TRAINING, VALIDATION, RATE = (1, "#1f5a99"), (1, "#c4561a"), (2, "#3b7d4f")
SVG = "{http://www.w3.org/2000/svg}"


def training(count):
    values = lambda i: (i, i * 10, i / 16, 0.5 - i / 1000, 2 - i / 100 + (i % 3) / 9, 2 - i / 100, i / 2, i / 2 - 1)
    return [dict(zip(COLUMNS, values(i))) for i in range(count)]


def validation(count):
    return [
        {"name": f"ckpt-{i}", "iteration": i * 160, "epoch": i, "val_acc": 10.0 * i, "loss": 3 - i / 4} for i in range(count)
    ]


def drawn(picture):
    """(Panel, colour) → coordinates of the line's points, in the pixels of the panel."""
    panels = [e for e in ET.fromstring(picture) if e.tag == SVG + "svg"]
    return {
        (k, path.get("stroke")): [tuple(map(float, p.split(","))) for p in path.get("d").replace("M", "L").split("L")[1:]]
        for k, panel in enumerate(panels)
        for path in panel.iter(SVG + "path")
    }


def texts(picture):
    return [e.text for e in ET.fromstring(picture).iter(SVG + "text")]


def panels(picture):
    """The panels with their place in the picture: (element, top of the axes, bottom)."""
    found = [e for e in ET.fromstring(picture) if e.tag == SVG + "svg"]
    return [(e, float(e.get("y")) + 7, float(e.get("y")) + float(e.get("height")) - 7) for e in found]


def last_values(picture):
    """(Panel, colour) → the value at which the line ends, as the axis beside it reads."""
    values, numbers = {}, [e for e in ET.fromstring(picture).iter(SVG + "text") if e.get("text-anchor") == "end"]
    for k, (panel, top, bottom) in enumerate(panels(picture)):
        ticks = [(float(e.get("y")) - 5, float(e.text)) for e in numbers if top - 1 < float(e.get("y")) - 5 < bottom + 1]
        (y0, v0), (y1, v1) = ticks[0], ticks[-1]
        for path in panel.iter(SVG + "path"):
            y = float(path.get("d").rsplit(",", 1)[1]) + top - 7
            values[k, path.get("stroke")] = v0 + (y - y0) / (y1 - y0) * (v1 - v0)
    return values


def legends(picture):
    """(Panel, colour) → the last value that the legend tells."""
    tops, told, parts = [top for _, top, _ in panels(picture)], {}, list(ET.fromstring(picture))
    for sample, words in itertools.pairwise(parts):
        if sample.tag == SVG + "g" and "(last: " in (words.text or ""):
            panel = next(k for k, top in enumerate(tops) if float(words.get("y")) < top)
            told[panel, sample[0].get("fill")] = float(words.text.split("(last: ")[1].rstrip(")"))
    return told


def test_picture_holds_every_series():
    picture = run_svg(training(130), validation(8), "a run & its <name>")
    lines = drawn(picture)
    expected = {BATCHES: 130, AVERAGE: 130, LOSS: 8, TRAINING: 130, VALIDATION: 8, RATE: 130}
    assert {line: len(points) for line, points in lines.items()} == expected
    assert {"a run & its <name>", "Loss", "Top-1 accuracy, %", "Learning rate", "epoch"} <= set(texts(picture))
    assert "best validation top-1: 70.00 % at epoch 7" in texts(picture)


def test_a_name_that_xml_cannot_hold_is_escaped():
    picture = run_svg(training(2), [], "a\x1b[31m & \udcff\uffff")
    assert "a\\x1b[31m & \\udcff\\uffff" in texts(picture)
    assert "\\x1b[31m & " in ET.fromstring(picture).get("aria-label")


def test_a_legend_tells_the_value_at_which_its_curve_ends():
    """The heights at which the curves end, by the panel's axis, against the words beside their colours."""
    pictures = (
        run_svg(training(130), validation(8), ""),
        comparison_svg([("one", training(130), validation(8)), ("two", training(90), validation(5))], ""),
    )
    for picture in pictures:
        told, ends = legends(picture), last_values(picture)
        assert told.keys() == ends.keys() and len(told) >= 6
        for line, value in told.items():
            assert math.isclose(value, ends[line], rel_tol=0.02, abs_tol=0.02), line


def test_the_rest_of_a_host_step_ends_no_compared_curve():
    """Three batches after host steps of ten would be a corner in the curve and another last value than the network's."""
    rest = {**training(1)[0], "iteration": 123, "epoch": 12.3 / 16, "loss_batch": 9.0, "train_acc_batch": 0.0}
    whole, longer = training(13), [*training(13), rest]
    assert comparison_svg([("a", longer, [])], "") == comparison_svg([("a", whole, [])], "")
    assert whole_steps(training(2)) == training(2)


def test_early_losses_of_validation_do_not_flatten_the_curves():
    """The first checkpoints' moving statistics are far off; later losses, of a network that learns by heart, stay."""
    early = [{**row, "loss": 20.0 if k < 2 else 1.0} for k, row in enumerate(validation(8))]
    late = [{**row, "loss": 20.0 if k > 5 else 1.0} for k, row in enumerate(validation(8))]
    spread = lambda rows: [y for _, y in drawn(run_svg(training(100), rows, ""))[AVERAGE]]
    assert max(spread(early)) - min(spread(early)) > 50 > max(spread(late)) - min(spread(late))


@pytest.mark.parametrize(
    "options, told",
    [
        ({"model": "resnet", "model_size": 14, "dataset": "fashion-mnist"}, "ResNet-14 on Fashion-MNIST"),
        ({"model": "efficientnet", "model_size": "B0", "dataset": "imagenet"}, "EfficientNet-B0 on ImageNet"),
        ({"model": "own", "model_size": None, "dataset": "mine"}, "own on mine"),
        ({}, ""),
    ],
)
def test_a_title_is_in_words(options, told):
    assert titles.of_run(options) == told


def test_values_land_where_the_axis_says():
    """Accuracy 0 … 70 on an axis 0 … 80 of 150 pixels, epochs 0 … 7: a straight line."""
    points = drawn(run_svg([], validation(8), ""))[VALIDATION]
    (x0, y0), (x1, y1) = points[0], points[-1]
    assert (x0, y0) == (7, 157) and (x1, y1) == (367, 25.8)
    assert all(abs((x - x0) / (x1 - x0) - k / 7) < 1e-3 for k, (x, _) in enumerate(points))
    assert all(abs((y - y0) / (y1 - y0) - k / 7) < 1e-3 for k, (_, y) in enumerate(points))


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("validations", [0, 1])
def test_few_rows(rows, validations):
    picture = run_svg(training(rows), validation(validations), "short")
    assert texts(picture).count("no rows yet") == (0 if rows else 1 if validations else 3)
    assert "nan" not in picture and "inf" not in picture


def test_values_that_are_no_numbers_break_the_line():
    rows = training(20)
    rows[5]["loss_batch"], rows[6]["loss_batch"], rows[7]["loss_batch"], rows[8]["epoch"] = math.nan, "inf", "", None
    as_text = [{k: str(v) for k, v in row.items()} for row in rows]
    picture = run_svg(as_text, [{"epoch": 1}], "")
    assert len(drawn(picture)[BATCHES]) == 20 - 3 - 1
    assert next(p for p in picture.split("<path ")[1:] if BATCHES[1] in p).count("M") == 2
    assert "inf" not in picture


def test_an_outlier_does_not_flatten_the_loss():
    rows = training(100)
    rows[50]["loss_batch"] = 1e6
    heights = [y for _, y in drawn(run_svg(rows, [], ""))[AVERAGE]]
    assert max(heights) - min(heights) > 50


def test_averaged_weights_have_no_place_on_the_axis():
    rows = validation(4) + [{"name": "weight_avg_N_5", "iteration": -1, "epoch": -0.01, "val_acc": 99}]
    assert len(drawn(run_svg(training(9), rows, ""))[VALIDATION]) == 4


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0, 8, [0, 2, 4, 6, 8]),
        (0, 0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (55, 75, [55, 60, 65, 70, 75]),
        (0, 1e-5, [0, 2e-6, 4e-6, 6e-6, 8e-6, 1e-5]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
    ],
)
def test_ticks(low, high, expected):
    assert ticks(low, high, 6) == expected


def test_an_axis_is_never_empty():
    for values in ([], [0.0], [7.0], [-3.0], [math.nan], [1e-12], [5.0, 5.0]):
        for floor in (None, 0.0):
            low, high = span(values, floor, slack=1)
            assert low < high and all(low <= v <= high for v in values if math.isfinite(v))


def test_file_is_written_from_the_csvs(tmp_path):
    with open(tmp_path / "training.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(training(12))
    assert write_run_svg(tmp_path) == tmp_path / "training.svg"
    picture = (tmp_path / "training.svg").read_text(encoding="utf-8")
    assert len(drawn(picture)[AVERAGE]) == 12 and VALIDATION not in drawn(picture)
    assert tmp_path.name in texts(picture)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["training.csv", "training.svg"]


def test_curve_as_text():
    """A ramp over half the run, then a tenth: 8 updates in 8 columns of 4 rows."""
    rates = [0.0, 0.25, 0.5, 0.75, 1.0, 0.1, 0.1, 0.0]
    head, *rows = text_curve(rates.__getitem__, 8, 4.0, width=8, height=4).split("\n")
    assert head == "learning rate: 1 at its peak (epoch 2), 0 at the last of 8 updates"
    assert rows == [
        "        1 ┤    █",
        "          │   ██",
        "      0.5 ┤  ███",
        "          │ ████▃▃",
        "        0 └───┬───┬",
        "          0   2   4  epochs",
    ]


@pytest.mark.parametrize("iterations", [1, 7, 60, 61, 5000])
@pytest.mark.parametrize("rate", [lambda i: 0.0, lambda i: 0.5, lambda i: i * 1e-6, lambda i: math.nan])
def test_curve_of_any_run(iterations, rate):
    lines = text_curve(rate, iterations, iterations / 100).split("\n")
    assert len(lines) == 11 and max(map(len, lines[1:-1])) <= 71


def test_curve_finds_the_tip_between_its_columns():
    peak = 12_345
    text = text_curve(lambda i: i / peak if i <= peak else 0.2, 200_000, 100.0)
    assert text.startswith("learning rate: 1 at its peak (epoch 6.173)")


def test_curve_of_a_long_run_finds_the_tip_by_few_looks():
    """A base of the recipes, with its own batch of 3, has 149 million updates."""
    peak, looks = 123_456_789, []

    def rate(i: int) -> float:
        looks.append(i)
        return i / peak if i <= peak else 0.2

    assert text_curve(rate, 2**31 - 1, 1000.0).startswith("learning rate: 1 at its peak (epoch 57.49)")
    assert len(looks) < 50_000


def test_the_curve_of_a_tiny_rate_has_its_peak():
    assert text_curve(lambda i: 1e-31 * i, 8, 2.0).startswith(
        "learning rate: 7e-31 at its peak (epoch 1.75), 7e-31 at the last"
    )


def test_of_equal_accuracies_the_lower_loss_is_the_best():
    """In every list, page and picture alike; a loss that is missing, or no number, comes last, and of equal ones the first."""
    losses = ("", "nan", "0.5", "0.25", "0.25", "-")
    rows = [{"name": str(k), "epoch": k, "val_acc": "90.0", "loss": loss} for k, loss in enumerate(losses)]
    rows.append({"name": "6", "epoch": 6, "val_acc": "89.9", "loss": "0.1"})
    assert [row["name"] for row in validated_rows.ranked(rows)] == ["3", "4", "2", "0", "1", "5", "6"]
    assert plot._best([], rows) == "best validation top-1: 90.00 % at epoch 3"
