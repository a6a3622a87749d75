"""The tables of a run, training.csv and validation.csv: their columns, and the tags under which trackers chart these."""

from __future__ import annotations

from pathlib import Path

from base.storage.tables import Table

TRAINING_COLUMNS = (
    "step", "iteration", "epoch", "lr", "loss_batch", "loss_avg", "train_acc_batch", "train_acc_avg",
    "it_time", "img_per_sec", "total_time",
)  # fmt: skip
VALIDATION_COLUMNS = (
    "name", "iteration", "epoch", "val_acc", "raw_acc", "val_time", "val_size", "img_per_sec", "latency",
    "top5_acc", "loss",
)  # fmt: skip
TABLES = {"training.csv": TRAINING_COLUMNS, "validation.csv": VALIDATION_COLUMNS}
# the measures of TensorBoard's charts, and of other trackers', by tag: both curves of one are side by side
TRAINING_TAGS = {
    "loss/train": "loss_avg",
    "accuracy/train": "train_acc_avg",
    "learning rate": "lr",
    "images per second": "img_per_sec",
}
VALIDATION_TAGS = {"loss/validation": "loss", "accuracy/validation": "val_acc", "accuracy/validation top-5": "top5_acc"}


def run_table(folder: Path, name: str, named: bool = True) -> Table:
    """The rows of a run's training.csv or validation.csv, which need not be there. `named`: as of `Table`."""
    return Table(folder / name, TABLES[name], named)
