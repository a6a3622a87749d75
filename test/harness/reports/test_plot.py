"""Charts of a run are well formed, complete, and drawn from any rows."""

import csv
import math
import xml.etree.ElementTree as ET

import pytest
from figures import SVG, checked

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.base.storage.tables import TRAINING_COLUMNS
from cnn_harness.harness.reports import chart, training_chart
from cnn_harness.harness.reports.training_chart import comparison_panels, run_svg, text_curve, whole_steps, write_run_svg
from cnn_harness.harness.run import validations
from cnn_harness.tools import compare_runs

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
    panels = [e for e in ET.fromstring(svg) if e.tag == SVG + "svg"]
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


def test_runs_are_compared_by_shared_measures():
    """Twelve runs need more pens than there are colours: later ones are dashed."""
    runs = [(f"run {k}", training(30), validation(3) if k else []) for k in range(12)]
    panels = comparison_panels(runs)
    assert [panel.title.split(",")[0] for panel in panels] == [
        "Training loss", "Validation loss", "Training accuracy", "Validation accuracy", "Learning rate"
    ]  # fmt: skip
    assert all(len({(line.colour, line.dashed) for line in panel.lines}) == 12 for panel in panels)
    texts = checked(chart.figure(panels, "t"))
    assert "run 0 (none)" in texts and "run 3 (last: 20)" in texts
    assert len(comparison_panels([("a", training(30), [])])) == 3
    assert "no rows yet" in checked(chart.figure(comparison_panels([("a", [], [])])))


def test_partial_host_step_ends_no_compared_curve():
    """Three batches after host steps of ten would put a corner into the curve and change its last value."""
    rest = {**training(1)[0], "iteration": 123, "epoch": 12.3 / 16, "loss_batch": 9.0, "train_acc_batch": 0.0}
    whole, longer = training(13), [*training(13), rest]
    assert comparison_panels([("a", longer, [])]) == comparison_panels([("a", whole, [])])
    assert whole_steps(training(2)) == training(2)


def test_early_losses_and_outliers_keep_curves_readable():
    """The first checkpoints' moving statistics are far off and left out. Later losses, of an overfitted network, stay."""
    early = [{**row, "loss": 20.0 if k < 2 else 1.0} for k, row in enumerate(validation(8))]
    late = [{**row, "loss": 20.0 if k > 5 else 1.0} for k, row in enumerate(validation(8))]
    spread = lambda rows: [y for _, y in drawn(run_svg(training(100), rows, ""))[AVERAGE]]
    assert max(spread(early)) - min(spread(early)) > 50 > max(spread(late)) - min(spread(late))
    rows = training(100)
    rows[50]["loss_batch"] = 1e6  # an outlier leaves the panel
    heights = [y for _, y in drawn(run_svg(rows, [], ""))[AVERAGE]]
    assert max(heights) - min(heights) > 50


def test_title_is_in_words():
    known = {"model": "efficientnet", "model_size": "B0", "dataset": "fashion-mnist"}
    assert training_chart.run_title(known) == "EfficientNet-B0 on Fashion-MNIST" and training_chart.run_title({}) == ""
    lite = {**known, "se": False, "use_relu6": True, "fix_stem_head": True}
    assert training_chart.run_title(lite) == "EfficientNet-Lite0 on Fashion-MNIST"
    assert training_chart.run_title({**lite, "se": True, "model_size": "B4"}) == "EfficientNet-B4 on Fashion-MNIST"
    assert training_chart.run_title({"model": "own", "model_size": None, "dataset": "mine"}) == "own on mine"


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("validations", [0, 1])
def test_few_rows_make_chart(rows, validations):
    svg = run_svg(training(rows), validation(validations), "short")
    assert checked(svg).count("no rows yet") == (0 if rows else 1 if validations else 3)


def test_invalid_values_break_line():
    rows = training(20)
    rows[5]["loss_batch"], rows[6]["loss_batch"], rows[7]["loss_batch"], rows[8]["epoch"] = math.nan, "inf", "", None
    as_text = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    svg = run_svg(as_text, [{"epoch": 1}], "")
    assert len(drawn(svg)[BATCHES]) == 20 - 3 - 1
    assert max(p.count("M") for p in svg.split("<path ")[1:] if BATCHES[1] in p) == 2
    assert "inf" not in svg


def test_averaged_weights_are_not_drawn():
    rows = validation(4) + [{"name": "weight_avg_N_5", "iteration": -1, "epoch": -0.01, "val_acc": 99}]
    assert len(drawn(run_svg(training(9), rows, ""))[VALIDATION]) == 4


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


def test_runs_are_compared_in_one_chart(tmp_path):
    run, head = tmp_path / "run", ",".join(TRAINING_COLUMNS)
    run.mkdir()
    odd = ("1e308", "-1e308", "1e-320", "nan", "inf", "", "x", "1e30", "1")
    rows = [",".join((str(k), str(k), y, "1", *[y] * 4, "1", "1", "1")) for k, y in enumerate(odd)]
    (run / "training.csv").write_text("\n".join([head, *rows, "cut"]))

    def compared(*words: object) -> int:
        return command_line.run("compare_runs", compare_runs.main, [str(word) for word in words], (OptionError,))

    target = tmp_path / "a.svg"
    assert compared(run, run, "--labels", "a", "b", "--output", target) == 0 and checked(target.read_text())
    assert compared(run, "--output", tmp_path) == compared(run, "--labels", "a", "b") == compared(tmp_path) == 2


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


@pytest.mark.parametrize("iterations", [1, 7, 60, 61, 5000])
@pytest.mark.parametrize("rate", [lambda i: 0.0, lambda i: 0.5, lambda i: i * 1e-6, lambda i: math.nan])
def test_rate_of_any_run_is_drawn(iterations, rate):
    lines = text_curve(rate, iterations, iterations / 100).split("\n")
    assert len(lines) == 11 and max(map(len, lines[1:-1])) <= 71


def test_lowest_loss_breaks_accuracy_tie():
    """In every list, page and chart. A missing or non-finite loss is last; if all are equal, the first one wins."""
    losses = ("", "nan", "0.5", "0.25", "0.25", "-")
    rows = [{"name": str(k), "epoch": k, "val_acc": "90.0", "loss": loss} for k, loss in enumerate(losses)]
    rows.append({"name": "6", "epoch": 6, "val_acc": "89.9", "loss": "0.1"})
    assert [row["name"] for row in validations.ranked(rows)] == ["3", "4", "2", "0", "1", "5", "6"]
    assert training_chart._best([], rows) == "best validation top-1: 90.00 % at epoch 3"
