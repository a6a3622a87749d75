"""List groups of options that exclude each other.

The layers are: command line, configuration, recorded run. If a layer gives one option of a group, the other options of the
group are ignored in lower layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.harness.options.catalogue import Catalogue, format_value
from cnn_harness.harness.options.sections import ACCUMULATION
from cnn_harness.harness.options.sources import OptionSource
from cnn_harness.Models import _norms

EXCLUSIVE: tuple[tuple[str, ...], ...] = (
    ("iterations", "epochs"),
    ("abs_learning_rate", "base_learning_rate_exponent"),
    ("abs_end_learning_rate", "poly_lr_end_ratio"),
    _norms.SWITCHES,
    ("generated_data", "synthetic_data"),
    ("normalise_input", "symmetric_input", "image_mean"),
    ("normalise_input", "symmetric_input", "image_std"),
    ("epochs_per_ckpt", "ckpts_per_epoch"),
    ("log_freq", "logs_per_epoch"),
    ("epochs_per_sync", "syncs_per_epoch"),
    ("global_batch_size", ACCUMULATION),
    ("dry_run", "dataset_benchmark"),
    ("fp32_accumulators", "accumulator_format"),
)
# A layer may give several options of one of these groups; the first option in the group wins.
FIRST_COUNTS: tuple[tuple[str, ...], ...] = (("rmsprop_decay", "rmsprop_base_decay_exp"),)
GROUPS = EXCLUSIVE + FIRST_COUNTS


def overridden(values: Mapping[str, Any]) -> set[str]:
    """Return the options that must be ignored in lower layers because of the values of one layer."""
    lost: set[str] = set()
    for group, chosen in _chosen(values, GROUPS):
        lost |= set(group) - {*chosen}
    return lost


def check_exclusive(known: Catalogue, layer: OptionSource) -> None:
    """Raise OptionError if one layer gives two options of a group."""
    values = {name: given.value for name, given in layer.values.items()}
    for _, chosen in _chosen(values, EXCLUSIVE):
        if values.get("ckpts_per_epoch") == 1:  # users of the original harness often repeat this default
            chosen = [name for name in chosen if name != "ckpts_per_epoch"]
        if len(chosen) > 1:
            place = layer.values[chosen[1]].where
            flags = " and ".join(f"{known.options[name].flag} {short(format_value(values[name]))}" for name in chosen)
            raise OptionError(f"{place}: {flags} exclude each other; give only one of them")


def drop_conflicting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded values without the options that another option of the same group overrides."""
    remaining = dict(values)
    for _, chosen in _chosen(values, GROUPS):
        for name in sorted(chosen, key=lambda name: values[name] == 0)[1:]:  # 0 is off, so it loses
            del remaining[name]
    return remaining


def _chosen(values: Mapping[str, Any], groups: Iterable[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each group with a chosen option, and its chosen options in the order of the group."""
    for group in groups:
        if chosen := [name for name in group if name in values and _is_set(name, values[name])]:
            yield group, chosen


def _is_set(name: str, value: Any) -> bool:
    """Return whether a value selects its option in a group.

    0 selects an option, but False does not. The only exception is --epochs-per-ckpt 0, which has no meaning of its own.
    """
    return value is not None and value is not False and value != () and not (name == "epochs_per_ckpt" and value == 0)
