"""Say how long a training waits for data, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cnn_harness.harness.reports.training_chart import number

MUCH = 0.1  # From this share of the time on, a faster input is worth the effort.


def mean(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean share over the rows of training.csv, weighted by the time of an update; nan if no row has it."""
    pairs = [(number(row, "input_share"), number(row, "it_time")) for row in rows]
    known = [(share, seconds) for share, seconds in pairs if share >= 0 and seconds > 0]
    return sum(share * seconds for share, seconds in known) / sum(seconds for _, seconds in known) if known else float("nan")


def advice(share: float, options: Mapping[str, Any]) -> str:
    """Return a sentence with the share and the option to use. `options` has the values of the run's options by name."""
    if options.get("dataset_cache") is False:
        remedy = "omit --no-dataset-cache, so that records stay in memory"
    elif options.get("hostside_image_mixing"):
        remedy = "omit --hostside-image-mixing, so that the device mixes images"
    else:
        remedy = "to find the slow stage of the input, repeat the command with --dataset-benchmark"
    return f"The training waits for data {100 * share:.0f} % of the time; {remedy}"
