"""Options of which a layer may ask for one: a higher layer's choice drops the others of its group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from base.errors import OptionError
from base.fields import short
from harness.options.catalogue import Catalogue, format_value
from harness.options.sections import ACCUMULATION
from harness.options.sources import OptionSource
from Models import _norms

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
# groups of which a layer may give several: the first one counts
FIRST_COUNTS: tuple[tuple[str, ...], ...] = (("rmsprop_decay", "rmsprop_base_decay_exp"),)
GROUPS = EXCLUSIVE + FIRST_COUNTS


def overridden(values: Mapping[str, Any]) -> set[str]:
    """The options that the values of one layer drop."""
    lost: set[str] = set()
    for group, chosen in _chosen(values, GROUPS):
        lost |= set(group) - {*chosen}
    return lost


def check_exclusive(known: Catalogue, layer: OptionSource) -> None:
    """OptionError for two options of one group in one layer."""
    values = {name: given.value for name, given in layer.values.items()}
    for _, chosen in _chosen(values, EXCLUSIVE):
        if values.get("ckpts_per_epoch") == 1:  # the original's default; its users write it beside epochs_per_ckpt
            chosen = [name for name in chosen if name != "ckpts_per_epoch"]
        if len(chosen) > 1:
            place = layer.values[chosen[1]].where
            flags = " and ".join(f"{known.options[name].flag} {short(format_value(values[name]))}" for name in chosen)
            raise OptionError(f"{place}: {flags} exclude each other; give one of them")


def drop_conflicting(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a finished run less those that another one of their group makes idle, as a layer would give them."""
    remaining = dict(values)
    for _, chosen in _chosen(values, GROUPS):
        for name in sorted(chosen, key=lambda name: values[name] == 0)[1:]:  # a zero is idle beside another
            del remaining[name]
    return remaining


def _chosen(values: Mapping[str, Any], groups: Iterable[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield each group of which these values choose an option, and its chosen options in the group's order."""
    for group in groups:
        if chosen := [name for name in group if name in values and _is_set(name, values[name])]:
            yield group, chosen


def _is_set(name: str, value: Any) -> bool:
    """Return whether a value asks for its option. A switch that is off does not, and an exponent of 0 does;
    --epochs-per-ckpt 0 says 'not in this way', but --ckpts-per-epoch 0 says 'none'."""
    return value is not None and value is not False and value != () and not (name == "epochs_per_ckpt" and value == 0)
