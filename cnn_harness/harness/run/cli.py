"""Parse argv and configs.yml into RunOptions, and record where each value comes from.

The command line overrides the configuration, which overrides the defaults of the model and of the option. Unknown and
contradictory options are rejected. This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError, parts
from cnn_harness.base.fields import HINT, short
from cnn_harness.emulator.plan.options import FASTEST
from cnn_harness.harness.options.call import Call, Parsed
from cnn_harness.harness.options.catalogue import Catalogue, catalogue, format_value
from cnn_harness.harness.options.sections import (
    COMMAND_LINE,
    RECORDED,
    SECTIONS,
    MainOptions,
    RunOptions,
    flag,
)
from cnn_harness.harness.options.sources import GivenValue, chosen_config, from_call, from_config, from_record
from cnn_harness.harness.run import option_values
from cnn_harness.harness.run.option_values import OptionValues

if TYPE_CHECKING:
    from cnn_harness.harness.options.configs import Block

# weights work only with the normalisation of images with which they were trained
NORMALISATION = ("symmetric_input", "normalise_input", "image_mean", "image_std")
WITHOUT_EFFECT = "recorded, without effect on the emulated arithmetic"


def parse(
    argv: Sequence[str], script: str = "train", recorded: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Parsed:  # fmt: skip
    """Return the options of the words of one call of `script` ("train", "validation" or "restore")."""
    return resolve(Call.of_words(argv, script), recorded, environ)


def resolve(
    call: Call, recorded: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ,
    record: Path | None = None, dataset: str | None = None,
    network_of: Callable[[Path], Mapping[str, Any]] = lambda weights: {},
) -> Parsed:  # fmt: skip
    """Return the options of one call.

    `recorded` are the options of an earlier run, which override the defaults; `record` is the file that contains them.
    `dataset` is the data set if the call names none. Without it, such a call raises NoDataSet. `network_of` returns the
    recorded options of the run that made the weights of --init-path.
    """
    origin, block = f"{RECORDED} ({record})" if record else RECORDED, chosen_config(call)
    begins_with = None if recorded else _first("init_path", call, block).value
    if begins_with:
        recorded, origin = _network(network_of(Path(begins_with)), call, block), f"--init-path {begins_with}"
    chosen = {name: _first(name, call, block, recorded, origin) for name in ("model", "lr_schedule")}
    chosen = {name: GivenValue(str(each.value).lower(), each.where) for name, each in chosen.items()}
    model = plugins.load("Models", chosen["model"].value, chosen["model"].where)
    schedule = plugins.load("LR_Schedules", chosen["lr_schedule"].value, chosen["lr_schedule"].where)
    known = catalogue(model.Options, schedule.Options, call.script)
    layers = [from_call(known, call)]
    if block:
        layers.append(from_config(known, block))
    if recorded:
        layers.append(from_record(known, recorded, origin, chosen["model"]))
    given = option_values.merged(known, layers)
    if recorded and recorded.get("precision") and given.values.get("precision") == FASTEST:
        given = given.with_values({"precision": recorded["precision"]}, origin)  # a resumed run keeps its bits
    given = option_values.with_older_meanings(given, known, schedule)
    given = given.with_values({name: each.value for name, each in chosen.items()})
    if block:
        given = option_values.with_block_completed(given, block)
    given, recipe = option_values.with_vintage(given, known, block), None
    if not given.values.get("help"):
        given = option_values.with_model_defaults(given, known, model, environ, dataset)
        given = option_values.with_data_defaults(given, block)
        recipe = option_values.recipe_batch(known, layers, given, model, environ) if block else None
    options = _assemble({"model": model.Options, "schedule": schedule.Options}, known, given)
    release = options.main.release or (block.release if block else (recorded or {}).get("values_release"))
    notes = (*given.notes, *(_taken_over(known, given, origin) if begins_with else ()), *_hint_notes(known, given.values))
    return Parsed(dataclasses.replace(options, values_release=release, recipe=recipe), notes, known)


def _first(
    name: str, call: Call, block: Block | None, recorded: Mapping[str, Any] | None = None, origin: str = ""
) -> GivenValue:
    """Return the value of an option in the call, the configuration, the record or MainOptions, before it is converted."""
    if argument := call.argument(name):
        return GivenValue(argument, f"{COMMAND_LINE}: {flag(name)}")
    for key, entry in block.entries.items() if block else ():
        if key.replace("-", "_") == name and entry.value is not None:
            return GivenValue(entry.value, entry.where)
    if recorded and recorded.get(name):
        return GivenValue(recorded[name], origin)
    return GivenValue(getattr(MainOptions(), name, None), "default")


def _network(recorded: Mapping[str, Any], call: Call, block: Block | None) -> dict[str, Any]:
    """Return the recorded options of a network, and of the normalisation of images.

    Return {} if nothing is recorded, or if this call chooses another model or another size of the default model.
    """
    model, size = _first("model", call, block), _first("model_size", call, block).value
    other_size = size is not None and str(size).upper() != str(recorded.get("model_size")).upper()
    other_model = str(model.value).lower() != recorded.get("model")
    if not recorded.get("model") or (other_size if model.where == "default" else other_model):
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
