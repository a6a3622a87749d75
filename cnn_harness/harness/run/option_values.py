"""Compute the value of every option of a call: merge the sources, then add defaults that depend on other options.

Each function takes the values so far and returns them with more values. Options that still have no value get the default of
their field.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import HALVES, short
from cnn_harness.harness.options.catalogue import Catalogue, format_value
from cnn_harness.harness.options.releases import VINTAGES, vintage
from cnn_harness.harness.options.sections import (
    ACCUMULATION,
    COMMAND_LINE,
    CONFIGURATION,
    RECORDED,
    UPDATE_RULES,
    RecipeBatch,
    flag,
    with_trait,
)
from cnn_harness.harness.options.sources import GivenValue, OptionSource
from cnn_harness.harness.run import data
from cnn_harness.LR_Schedules._schedule import Schedule
from cnn_harness.Models import _norms
from cnn_harness.Models._model import Model

if TYPE_CHECKING:
    from cnn_harness.harness.options.configs import Block

BATCH = ("micro_batch_size", ACCUMULATION, "replicas", "global_batch_size")


@dataclass(frozen=True)
class OptionValues:
    """The values of options by name.

    found: each value, and where it comes from; "" for the default of its field
    overridden: options that are ignored, because a given option excludes them
    notes: lines for the user
    """

    found: Mapping[str, GivenValue] = field(default_factory=dict)
    overridden: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The value of each option."""
        return {name: given.value for name, given in self.found.items()}

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """Where each value comes from, if it is not the default of its field."""
        return {name: given.where for name, given in self.found.items() if given.where}

    def with_values(self, values: Mapping[str, Any], where: str = "", *notes: str) -> OptionValues:
        """Return a copy with more values and notes. Without `where`, options keep their source."""
        added = {
            name: GivenValue(value, where or self.sources.get(name, ""), getattr(self.found.get(name), "spelling", ""))
            for name, value in values.items()
        }
        return replace(self, found={**self.found, **added}, notes=(*self.notes, *notes))


def merged(known: Catalogue, layers: Sequence[OptionSource]) -> OptionValues:
    """Return the value of each option from the first layer that has it.

    Raise OptionError if one layer has options that exclude each other.
    """
    found: dict[str, GivenValue] = {}
    dropped: set[str] = set()
    for layer in layers:
        if layer.source != RECORDED:
            _check_exclusive(known, layer)
        won = {name: given for name, given in layer.values.items() if name not in found and name not in dropped}
        by_config = layer.source.startswith(CONFIGURATION)
        found |= {n: replace(each, where=f"{layer.source} ({each.where})") if by_config else each for n, each in won.items()}
        dropped |= _overridden({name: given.value for name, given in won.items()}) - found.keys()
    return OptionValues(found, frozenset(dropped), tuple(note for layer in layers for note in layer.notes))


def with_older_meanings(given: OptionValues, known: Catalogue, schedule: Schedule) -> OptionValues:
    """Add the values that older spellings of the schedule's options, or the release, imply, and a note."""
    if not hasattr(schedule, "meant_with"):
        return given
    spelling, meant = schedule.meant_with({name: each.spelling for name, each in given.found.items()}, given.values)
    if not meant:
        return given
    missing = {name: value for name, value in meant.items() if name not in given.values and name not in given.overridden}
    word = flag(spelling)
    values_text = ", ".join(f"{known.options[name].flag} {value:g}" for name, value in missing.items() if value is not True)
    curve = f"{word} selects the curve of the first releases{': ' + values_text if values_text else ''}"
    note = f"{curve}; log rows show the learning rate of their first update"
    return given.with_values(missing, f"default with {word}", note)


def with_block_completed(given: OptionValues, block: Block) -> OptionValues:
    """Add the release of a configuration, and the statistics that frozen batch norms use in this release.

    If a configuration has a pipeline without splits, add automatic splits.
    """
    values, sources = given.values, given.sources
    if block.release:
        where = f"default; the values are from {block.release}, the last release with {block.name}"
        named = "@" in block.name
        where = sources.get("release", sources["config"]) if named else where
        given = given.with_values({"release": block.release if named else values.get("release")}, where)
        if "frozen_norm_statistics" not in values:
            given = given.with_values({"frozen_norm_statistics": "batch"}, f"default of release {block.release}")
    stages = values.get("shards", 1)
    own = all(sources.get(name, "").startswith(CONFIGURATION) for name in ("pipeline", "shards"))
    if not own or not values["pipeline"] or stages <= 1 or "pipeline_splits" in values:
        return given
    return given.with_values(
        {"pipeline_splits": ("auto",)},
        f"configuration {block.name} has none",
        f"configuration {block.name} has {stages} stages but no pipeline_splits, so --pipeline-splits auto is used",
    )


def with_vintage(given: OptionValues, known: Catalogue, block: Block | None) -> OptionValues:
    """Add the defaults of the release in --release. Raise OptionError if the release is unknown."""
    release, values = given.values.get("release"), given.values
    if not release:
        return given
    where = given.sources["release"]
    if release not in VINTAGES and not (block and block.release) and where.startswith((COMMAND_LINE, CONFIGURATION)):
        near = plugins.did_you_mean(release, list(VINTAGES))
        raise OptionError(f"{where}: no release '{short(release)}'{near}", f"Available: {', '.join(VINTAGES)}")
    how, notes = vintage(release), []
    defaults = {"cutmix_version": how.cutmix_version, "frozen_norm_statistics": "batch"} if release in VINTAGES else {}
    meant: dict[str, Any] = {name: value for name, value in defaults.items() if name not in values}
    warms_up = "warmup_epochs" in known.options and values.get("warmup_epochs") != 0
    if not how.warms_up_iterations and values.get("iterations") and warms_up:
        meant["warmup_epochs"] = 0.0
        notes.append(f"the run has no warm-up, because release {release} had no warm-up with --iterations")
    return given.with_values(meant, f"default of release {release}", *notes)


def with_model_defaults(
    given: OptionValues, known: Catalogue, model: Model, environ: Mapping[str, str], usual_dataset: str | None = None
) -> OptionValues:  # fmt: skip
    """Add the data set if it is missing, the defaults of the model for these data, and the defaults of the optimiser."""
    values, sources = given.values, given.sources
    try:
        dataset, inferred = data.name_of(
            values.get("dataset"), values.get("data_dir"), environ, sources.get("dataset", ""), values.get("train_dir")
        )
    except data.NoDataSet:
        if usual_dataset is None:
            raise
        dataset, inferred = usual_dataset, f"{COMMAND_LINE}: --dataset"
    given = given.with_values({"dataset": dataset}, inferred or "")
    family = data.family(dataset)
    optimiser = values.get("optimiser", known.options["optimiser"].default)
    exponents, rule = model.LEARNING_RATE_EXPONENTS[family], UPDATE_RULES[optimiser].defaults
    exponent = exponents.get(optimiser.lower()) if isinstance(exponents, dict) else exponents
    defaults = {**model.DEFAULTS[family], "base_learning_rate_exponent": exponent, **rule}
    decided = (set(group) for group in GROUPS if any(values.get(name) for name in group))
    dropped = given.overridden.union(*decided)
    missing = {n: value for n, value in defaults.items() if n in known.options and values.get(n) is None}
    given = replace(given, overridden=dropped)
    for name, value in missing.items():
        usual = f"default of {optimiser}" if name in rule else f"default of {values['model']} on {family}-sized data"
        off = False if known.options[name].base is bool else None
        given = given.with_values({name: off}) if name in dropped else given.with_values({name: value}, usual)
    if "model_size" not in known.options:
        return given
    size = _model_size(model, family, given.values["model_size"], given.sources)
    return given.with_values({"model_size": size})


def recipe_batch(
    known: Catalogue, layers: Sequence[OptionSource], given: OptionValues, model: Model, environ: Mapping[str, str]
) -> RecipeBatch:  # fmt: skip
    """Return the batch of a configuration as it would be without the batch options of the command line, layers[0]."""
    others = {name: value for name, value in layers[0].values.items() if name not in BATCH}
    usual = merged(known, [replace(layers[0], values=others), *layers[1:]])
    usual = usual.with_values({name: given.values[name] for name in ("model", "dataset")})
    micro, accumulation, replicas, size = map(with_model_defaults(usual, known, model, environ).values.get, BATCH)
    size = size or micro * (accumulation or 1) * (replicas or 1)
    return RecipeBatch(name=given.values["config"], size=size, replicas=replicas or 1)


def with_data_defaults(given: OptionValues, block: Block | None) -> OptionValues:
    """Add the default precision of the data set, if it has one.

    Add nothing if the call gives an option of half precision, or uses a configuration for another data set.
    """
    values, dataset = given.values, given.values["dataset"]
    precision = data.published_spec(dataset).precision
    named = block.entries.get("dataset") if block else None
    of_others = block is not None and (named is None or dataset != str(named.value).lower())
    if not precision or "precision" in values or of_others or with_trait(HALVES) & values.keys():
        return given
    return given.with_values({"precision": precision}, f"default of --dataset {dataset}")


def _model_size(model: Model, family: str, size: Any, sources: Mapping[str, str]) -> Any:
    sizes = model.sizes(family)
    chosen = size.upper() if isinstance(size, str) else size
    if chosen not in sizes:
        listed = ", ".join(map(str, sizes))
        near = plugins.did_you_mean(str(size), [str(s) for s in sizes])
        raise OptionError(
            f"{sources['model_size']}: no model size {short(size)} for {family}-sized data{near}",
            f"Available: {listed}",
        )
    return chosen


# --- Options that exclude each other ---------------------------------------------------------------------------------

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


def _overridden(values: Mapping[str, Any]) -> set[str]:
    """Return the options that must be ignored in lower layers because of the values of one layer."""
    lost: set[str] = set()
    for group, chosen in _chosen(values, GROUPS):
        lost |= set(group) - {*chosen}
    return lost


def _check_exclusive(known: Catalogue, layer: OptionSource) -> None:
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
