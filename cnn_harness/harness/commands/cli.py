"""Parse argv and configs.yml into RunOptions, and record where each value comes from.

The command line overrides the configuration, which overrides the defaults of the model and of the option. Unknown and
contradictory options are rejected. This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError, WrongInput, parts
from cnn_harness.base.fields import HINT, short
from cnn_harness.emulator.plan.options import FASTEST
from cnn_harness.harness.commands import option_values
from cnn_harness.harness.commands.option_values import OptionValues
from cnn_harness.harness.options.catalogue import Catalogue, catalogue, format_value
from cnn_harness.harness.options.sections import (
    COMMAND_LINE,
    RECORDED,
    SECTIONS,
    MainOptions,
    RunOptions,
    flag,
)
from cnn_harness.harness.options.sources import (
    GivenValue,
    argument,
    chosen_config,
    from_command_line,
    from_config,
    from_record,
    given_arguments,
)
from cnn_harness.harness.run.data import NoDataSet

if TYPE_CHECKING:
    from cnn_harness.harness.options.configs import Block

# weights work only with the normalisation of images with which they were trained
NORMALISATION = ("symmetric_input", "normalise_input", "image_mean", "image_std")
WITHOUT_EFFECT = "recorded, without effect on the emulated arithmetic"


@dataclass(frozen=True)
class Parsed:
    """The options of a call, and notes for the user."""

    options: RunOptions
    notes: tuple[str, ...]
    catalogue: Catalogue


def parse(
    argv: list[str],
    script: str = "train",
    recorded: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    record: Path | None = None,
) -> Parsed:
    """Return the options of one call of `script` ("train", "validation" or "restore").

    `recorded` are the options of an earlier run, which override the defaults; `record` is the file that contains them.
    """
    notes: list[str] = []
    origin = f"{RECORDED} ({record})" if record else RECORDED
    main, block = _main_values(argv, script, recorded, origin)
    begins_with = _chosen(argv, block, "init_path") if not recorded else None
    if begins_with:
        recorded = _network_of(begins_with, main["model"], _chosen(argv, block, "model_size"))
        origin = f"--init-path {begins_with}"
        main, block = _main_values(argv, script, recorded, origin)
    model = plugins.load("Models", main["model"].value, main["model"].where)
    schedule = plugins.load("LR_Schedules", main["lr_schedule"].value, main["lr_schedule"].where)
    known = catalogue(model.Options, schedule.Options, script)
    layers = [from_command_line(known, argv)]
    if block:
        layers.append(from_config(known, block))
    if recorded:
        layers.append(from_record(known, recorded, origin, main["model"]))
    given = option_values.merged(known, layers)
    if recorded and recorded.get("precision") and given.values.get("precision") == FASTEST:
        given = given.joined({"precision": recorded["precision"]}, {"precision": origin})  # a resumed run keeps its bits
    given = option_values.with_older_meanings(given, known, schedule)
    given = given.joined({"model": main["model"].value, "lr_schedule": main["lr_schedule"].value})
    if block:
        given = option_values.with_block_completed(given, block)
    given = option_values.with_vintage(given, known, block)
    if not given.values.get("help"):
        try:
            given = option_values.with_model_defaults(given, known, model, environ)
        except NoDataSet:
            if script in ("train", "restore"):
                raise
            from cnn_harness.harness.commands import run_list

            raise OptionError(
                f"no run given; give a run directory, as in {script}.py logs/<run>, or --dataset fashion-mnist to measure "
                "random weights",
                run_list.listed(),
            ) from None
        given = option_values.with_data_defaults(given, block)
    notes += given.notes
    if begins_with:
        notes += _taken_over(known, given, origin)
    options = _assemble({"model": model.Options, "schedule": schedule.Options}, known, given)
    release = options.main.release or (block.release if block else (recorded or {}).get("values_release"))
    recipe = (
        option_values.recipe_batch(known, layers, given, model, environ) if block and not given.values.get("help") else None
    )
    options = dataclasses.replace(options, values_release=release, recipe=recipe)
    return Parsed(options, tuple(notes + _hint_notes(known, given.values)), known)


def _chosen(argv: list[str], block: Block | None, name: str) -> str | None:
    """Return the value of an option of train.py on the command line, or otherwise in the configuration."""
    entry = block.entries.get(name) if block else None
    return argument(argv, name, "train") or (str(entry.value) if entry and entry.value is not None else None)


def _network_of(weights: str, chosen: GivenValue, size: str | None) -> dict[str, Any]:
    """Return the recorded options of the network of some weights, and of the normalisation of images.

    Return {} if nothing is recorded, or if this call chooses another model or another size of the default model.
    """
    from cnn_harness.harness.checkpoints import find, run_record

    recorded: dict[str, Any] = {}
    with suppress(WrongInput, OSError):  # reading the weights reports the error later
        recorded = run_record.options(find.run_folder(Path(weights)))
    other_size = size is not None and size.upper() != str(recorded.get("model_size")).upper()
    if not recorded.get("model") or (other_size if chosen.where == "default" else chosen.value != recorded["model"]):
        return {}
    own = {field.name for field in dataclasses.fields(plugins.load("Models", recorded["model"]).Options)}
    return {name: value for name, value in recorded.items() if name in {"model", *own, *NORMALISATION}}


def _taken_over(known: Catalogue, given: OptionValues, origin: str) -> list[str]:
    """Return a line on the options that come from the initial weights and differ from the defaults, or []."""
    words = [
        f"{name} {format_value(given.values[name])}"
        for name, source in given.sources.items()
        if source == origin and given.values[name] != known.options[name].default
    ]
    return [f"options taken from {origin}: {', '.join(words)}"] if words else []


def _hint_notes(known: Catalogue, values: Mapping[str, Any]) -> list[str]:
    hints = [
        known.options[name].flag
        for name in values
        if known.options[name].meta["kind"] == HINT and values[name] != known.options[name].default
    ]
    return [f"{WITHOUT_EFFECT}: {' '.join(hints)}"] if hints else []


def explain(options: RunOptions) -> str:
    """Return a table of every option with its value and source."""
    rows = [
        (name, short(format_value(value)), options.sources.get(name, "default")) for name, value in options.values().items()
    ]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    second = min(second, 36)
    return "\n".join(f"{name:<{first}}  {value:<{second}}  {source}" for name, value, source in rows)


def _main_values(
    argv: list[str], script: str, recorded: Mapping[str, Any] | None, origin: str
) -> tuple[dict[str, GivenValue], Block | None]:
    """Return --model, --lr-schedule and other options that decide which options exist, and the configuration."""
    words = given_arguments(argv, script)
    found = {
        name: GivenValue(words[name][0], f"{COMMAND_LINE}: {flag(name)}")
        for name in ("model", "lr_schedule", "config", "config_path", "release")
        if words.get(name)
    }
    wanted = ("model", "lr_schedule")
    chosen = chosen_config(found)
    if chosen:
        block = {key.replace("-", "_"): entry for key, entry in chosen.entries.items()}
        for name in wanted:
            if name in block and block[name].value is not None and name not in found:
                found[name] = GivenValue(block[name].value, block[name].where)
    for name in wanted:
        if name not in found and recorded and recorded.get(name):
            found[name] = GivenValue(recorded[name], origin)
        found.setdefault(name, GivenValue(getattr(MainOptions(), name), "default"))
        found[name] = GivenValue(str(found[name].value).lower(), found[name].where)
    return found, chosen


def _assemble(plugin_options: Mapping[str, type], known: Catalogue, given: OptionValues) -> RunOptions:
    sections = {}
    for section, cls in {**SECTIONS, **plugin_options}.items():
        names = (field.name for field in dataclasses.fields(cls) if field.name in given.values)
        own = {name: given.values[name] for name in names if known.options[name].section == section}
        try:
            sections[section] = cls(**own)
        except ValueError as error:  # from a check in the file of the model or schedule
            raise OptionError(*parts(error)) from None
    return RunOptions(**sections, sources=dict(given.sources))
