"""Charts of a run are well formed, complete, and drawn from any rows."""

import csv
import math
import xml.etree.ElementTree as ET

from figures import SVG, checked

from cnn_harness.base.storage.tables import TRAINING_COLUMNS
from cnn_harness.harness.reports.training_chart import run_svg, text_curve, write_run_svg

COLUMNS = ("step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg")
BATCHES, AVERAGE, LOSS = (0, "#a9c4e4"), (0, "#1f5a99"), (0, "#c4561a")
TRAINING, VALIDATION, RATE = (1, "#1f5a99"), (1, "#c4561a"), (2, "#3b7d4f")


def training(count):
    values = lambda i: (i, i * 10, i / 16, 0.5 - i / 1000, 2 - i / 100 + (i % 3) / 9, 2 - i / 100, i / 2, i / 2 - 1)
    return [dict(zip(COLUMNS, values(i))) for i in range(count)]


def validation(count):
    return [
        {"name": f"ckpt-{i}", "iteration": i * 160, "epoch": i, "val_acc": 10.0 * i, "loss": 3 - i / 4} for i in range(count)
    ]


def drawn(svg):
    """Return (panel, colour) -> coordinates of the line's points, in pixels of the panel."""
    _, *panels = ET.fromstring(svg).iter(SVG + "svg")  # the first is the chart
    return {
        (k, path.get("stroke")): [tuple(map(float, p.split(","))) for p in path.get("d").replace("M", "L").split("L")[1:]]
        for k, panel in enumerate(panels)
        for path in panel.iter(SVG + "path")
    }


def test_chart_has_every_series():
    svg = run_svg(training(130), validation(8), "a run & its <name>")
    lines = drawn(svg)
    expected = {BATCHES: 130, AVERAGE: 130, LOSS: 8, TRAINING: 130, VALIDATION: 8, RATE: 130}
    assert {line: len(points) for line, points in lines.items()} == expected
    assert {"a run & its <name>", "Loss", "Top-1 accuracy, %", "Learning rate", "epoch"} <= set(checked(svg))
    assert "best validation top-1: 70.00 % at epoch 7" in checked(svg)


def test_invalid_values_break_line():
    rows = training(20)
    rows[5]["loss_batch"], rows[6]["loss_batch"], rows[7]["loss_batch"], rows[8]["epoch"] = math.nan, "inf", "", None
    as_text = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    svg = run_svg(as_text, [{"epoch": 1}], "")
    assert len(drawn(svg)[BATCHES]) == 20 - 3 - 1
    assert max(p.count("M") for p in svg.split("<path ")[1:] if BATCHES[1] in p) == 2
    assert "inf" not in svg


def test_chart_is_written_from_csv_files(tmp_path):
    with open(tmp_path / "training.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, TRAINING_COLUMNS)
        writer.writeheader()
        writer.writerows(dict.fromkeys(TRAINING_COLUMNS, 1) | row for row in training(12))
    assert write_run_svg(tmp_path) == tmp_path / "training.svg"
    svg = (tmp_path / "training.svg").read_text(encoding="utf-8")
    assert len(drawn(svg)[AVERAGE]) == 12 and VALIDATION not in drawn(svg)
    assert tmp_path.name in checked(svg)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["training.csv", "training.svg"]


def test_rate_is_drawn_as_text():
    """A ramp over half the run, then a tenth of the rate: 8 updates in 8 columns of 4 rows."""
    rates = [0.0, 0.25, 0.5, 0.75, 1.0, 0.1, 0.1, 0.0]
    head, *rows = text_curve(rates.__getitem__, 8, 4.0, width=8, height=4).split("\n")
    assert head == "learning rate: peak 1 (epoch 2), 0 at the last of 8 updates"
    assert rows == [
        "        1 ┤    █",
        "          │   ██",
        "      0.5 ┤  ███",
        "          │ ████▃▃",
        "        0 └───┬───┬",
        "          0   2   4  epochs",
    ]
