"""argv + configs.yml -> RunOptions: command line over configuration over model default over field default.

Says where every value came from, refuses unknown, misspelt and contradictory options, and never imports TensorFlow.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base import plugins
from base.errors import OptionError
from base.fields import HALVES, HINT, brief
from base.process import command_line, commands
from harness.checkpoints import find, run_record
from harness.checkpoints.checkpoint import CheckpointError
from harness.options.catalogue import Catalogue, Option, catalogue, section_options, shown
from harness.options.configs import Block
from harness.options.exclusive import GROUPS, check_exclusive, losers
from harness.options.sections import (
    COMMAND_LINE,
    CONFIGURATION,
    RECORDED,
    SECTIONS,
    MainOptions,
    RunOptions,
    flag,
    with_trait,
)
from harness.options.sources import (
    Given,
    Layer,
    chosen_block,
    command_layer,
    complete,
    config_layer,
    recorded_layer,
    tokens,
    universe,
    value_of,
)
from harness.options.update_rules import UPDATE_RULES
from harness.run import data
from LR_Schedules._schedule import Schedule
from Models._model import Model

NORMALISATION = ("symmetric_input", "normalise_input")  # of pictures, which weights are trained for
WITHOUT_EFFECT = "recorded, without effect on the emulated arithmetic"  # and of interest to the planner


@dataclass(frozen=True)
class Parsed:
    """The options, and lines about them that the user should read."""

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
    """All layers of one call of `script` ("train", "validation" or "restore") as RunOptions.

    `recorded`: option values of an earlier run, a layer between the configuration and the defaults; `record`: their file.
    """
    notes: list[str] = []
    origin = f"{RECORDED} ({record})" if record else RECORDED
    main, block = _main_values(argv, script, recorded, origin)
    begins_with = _chosen(argv, block, "init_path") if not recorded else None
    if begins_with:
        recorded = _network_of(begins_with, main["model"], _chosen(argv, block, "model_size"))
        origin = f"--init-path {begins_with}"
        main, block = _main_values(argv, script, recorded, origin)
    if "config_path" in main and "config" not in main:
        notes.append(f"--config-path {main['config_path'].raw} is not read: --config NAME chooses a block of it")
    model = plugins.load("Models", main["model"].raw, main["model"].where)
    schedule = plugins.load("LR_Schedules", main["lr_schedule"].raw, main["lr_schedule"].where)
    known = catalogue(model.Options, schedule.Options, script)
    layers = [command_layer(known, argv, notes)]
    if block:
        layers.append(config_layer(known, block, notes))
    if recorded:
        layers.append(recorded_layer(known, recorded, origin))
    values, sources, lost, spelled = _merge(known, layers)
    notes += _meant_with(schedule, known, spelled, values, sources, lost)
    values |= {"model": main["model"].raw, "lr_schedule": main["lr_schedule"].raw}
    if block:
        _complete_block(block, values, sources, notes)
    if not values.get("help"):
        _model_defaults(model, known, values, sources, lost, environ)
        _data_defaults(block, values, sources)
    if begins_with:
        notes += _taken_over(known, values, sources, origin)
    options = _assemble({"model": model.Options, "schedule": schedule.Options}, known, values, sources)
    return Parsed(options, tuple(notes + _hint_notes(known, values)), known)


def _chosen(argv: list[str], block: Block | None, name: str) -> str | None:
    """The value of an option of train.py, from the command line or else the configuration."""
    entry = block.entries.get(name) if block else None
    return value_of(argv, name, "train") or (str(entry.value) if entry and entry.value is not None else None)


def _network_of(weights: str, chosen: Given, size: str | None) -> dict[str, Any]:
    """The options of the network that the weights were trained in, and of its pictures' normalisation; none where nothing
    tells them, or where this call chooses another model, be it by the size that it gives to the usual one."""
    recorded: dict[str, Any] = {}
    with suppress(CheckpointError):  # which is told of when they are read
        recorded = run_record.options(find.run_folder(Path(weights)))
    other_size = size is not None and size.upper() != str(recorded.get("model_size")).upper()
    if not recorded.get("model") or (other_size if chosen.where == "default" else chosen.raw != recorded["model"]):
        return {}
    own = {field.name for field in dataclasses.fields(plugins.load("Models", recorded["model"]).Options)}
    return {name: value for name, value in recorded.items() if name in {"model", *own, *NORMALISATION}}


def _taken_over(
    known: Catalogue, values: Mapping[str, Any], sources: Mapping[str, str], origin: str
) -> list[str]:  # fmt: skip
    """A line on the options that are those of the weights to begin with, and not the usual ones."""
    words = [
        f"{name} {shown(values[name])}"
        for name, source in sources.items()
        if source == origin and values[name] != known.options[name].default
    ]
    return [f"as {origin} was trained: {', '.join(words)}"] if words else []


def _complete_block(block: Block, values: dict[str, Any], sources: dict[str, str], notes: list[str]) -> None:
    """The release whose values a configuration has, and cuts for a base that leaves them to the blocks that merge it."""
    if block.release:
        values["release"] = block.release
        sources.setdefault("release", sources["config"] if "@" in block.name else f"the last with {block.name}")
    stages = values.get("shards", 1)
    own = all(sources.get(name, "").startswith("configuration") for name in ("pipeline", "shards"))
    if own and values["pipeline"] and stages > 1 and "pipeline_splits" not in values:
        values["pipeline_splits"], sources["pipeline_splits"] = ("auto",), f"configuration {block.name} names none"
        notes.append(f"configuration {block.name} has {stages} stages but no pipeline_splits: auto cuts them by cost")


def _meant_with(
    schedule: Schedule,
    known: Catalogue,
    spelled: Mapping[str, str],
    values: dict[str, Any],
    sources: dict[str, str],
    lost: set[str],
) -> list[str]:
    """Fills in what older spellings of a schedule's options meant besides; a line about it."""
    if not hasattr(schedule, "meant_with"):
        return []
    spelling, meant = schedule.meant_with(spelled, values)
    if not meant:
        return []
    missing = {name: value for name, value in meant.items() if name not in values and name not in lost}
    word = flag(spelling)
    values |= missing
    sources |= dict.fromkeys(missing, f"default with {word}")
    told = ", ".join(f"{known.options[name].flag} {value:g}" for name, value in missing.items() if value is not True)
    curve = f"{word} means the curve of the releases that had it{': ' + told if told else ''}"
    return [f"{curve}; log rows tell the learning rate of their first update"]


def _model_defaults(
    model: Model,
    known: Catalogue,
    values: dict[str, Any],
    sources: dict[str, str],
    lost: set[str],
    environ: Mapping[str, str],
) -> None:
    """Fills in what nobody gave, from the model's table for this kind of data."""
    values["dataset"], inferred = data.name_of(
        values.get("dataset"), values.get("data_dir"), environ, sources.get("dataset", "")
    )
    if inferred:
        sources["dataset"] = inferred
    family = data.family(values["dataset"])
    defaults = dict(model.DEFAULTS[family])
    exponents = model.LEARNING_RATE_EXPONENTS[family]
    optimiser = values.get("optimiser", known.options["optimiser"].default)
    exponent = exponents.get(optimiser.lower()) if isinstance(exponents, dict) else exponents
    defaults["base_learning_rate_exponent"] = exponent
    rule = UPDATE_RULES[optimiser].defaults
    defaults |= rule
    for group in GROUPS:
        if any(values.get(name) for name in group):
            lost |= set(group)
    for name, value in defaults.items():
        if name in known.options and values.get(name) is None:
            if name in lost:
                value = False if known.options[name].base is bool else None
            else:
                of = optimiser if name in rule else f"{values['model']} on {family}-sized data"
                sources[name] = f"default of {of}"
            values[name] = value
    if "model_size" in known.options:
        values["model_size"] = _model_size(model, family, values["model_size"], sources)


def _data_defaults(block: Block | None, values: dict[str, Any], sources: dict[str, str]) -> None:
    """Fills in the precision that nobody gave where the data are not those of published recipes: unless an option speaks of
    halves, or a configuration for other data was chosen."""
    precision = data.published_spec(values["dataset"]).precision
    named = block.entries.get("dataset") if block else None
    of_others = block is not None and (named is None or values["dataset"] != str(named.value).lower())
    if precision and "precision" not in values and not of_others and not with_trait(HALVES) & values.keys():
        values["precision"], sources["precision"] = precision, f"default of --dataset {values['dataset']}"


def _model_size(model: Model, family: str, size: Any, sources: Mapping[str, str]) -> Any:
    sizes = model.sizes(family)
    chosen = size.upper() if isinstance(size, str) else size
    if chosen not in sizes:
        listed = ", ".join(map(str, sizes))
        near = plugins.did_you_mean(str(size), [str(s) for s in sizes])
        raise OptionError(
            f"{sources['model_size']}: no model size {brief(size)} for {family}-sized data{near}\nThere are: {listed}"
        )
    return chosen


def _hint_notes(known: Catalogue, values: Mapping[str, Any]) -> list[str]:
    hints = [
        known.options[name].flag
        for name in values
        if known.options[name].meta["kind"] == HINT and values[name] != known.options[name].default
    ]
    return [f"{WITHOUT_EFFECT}: {' '.join(hints)}"] if hints else []


def help_text(parsed: Parsed, prog: str, intro: str) -> str:
    """The assembled parser's help, in argument groups; those of the model and of the schedule are the chosen ones'."""
    known, chosen = parsed.catalogue, parsed.options.main
    usage = f"{prog} {commands.usage()}[options]"
    parser = command_line.Spoken(prog=prog, description=intro, add_help=False, usage=usage)
    titles: dict[str, tuple[str | None, ...]] = {name: (cls.__doc__,) for name, cls in SECTIONS.items()}
    published = getattr(plugins.load("Models", chosen.model), "TITLE", chosen.model)
    titles["model"] = published, _others("Models", "--model", chosen.model)
    curve = f"Learning-rate schedule {chosen.lr_schedule}"
    titles["schedule"] = curve, _others("LR_Schedules", "--lr-schedule", chosen.lr_schedule)
    for section in known.sections():
        group = parser.add_argument_group(*titles[section])
        for option in known.options.values():
            if option.section == section:
                _add_help(group, option)
    return parser.format_help()


def _others(folder: str, flag: str, chosen: str) -> str:
    return f"(--help with {flag} {'|'.join(name for name in plugins.names(folder) if name != chosen)} shows theirs)"


def explain(options: RunOptions) -> str:
    """Every value and where it came from."""
    rows = [(name, brief(shown(value)), options.sources.get(name, "default")) for name, value in options.values().items()]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    second = min(second, 36)
    return "\n".join(f"{name:<{first}}  {value:<{second}}  {source}" for name, value, source in rows)


# Finding the model before the options are known


def _main_values(
    argv: list[str], script: str, recorded: Mapping[str, Any] | None, origin: str
) -> tuple[dict[str, Given], Block | None]:
    """The main options that decide which others there are (--model, --lr-schedule, --config and its companions), and
    the configuration."""
    known = Catalogue(section_options("main", MainOptions))
    everything = universe(script).flags()
    # --lr is short for --lr-schedule unless the chosen schedule has a --lr-... of its own
    shared = Catalogue([option for name, cls in SECTIONS.items() for option in section_options(name, cls, script)]).flags()
    found: dict[str, Given] = {}
    for word, values in tokens(argv, everything, lenient=True):
        spelling = known.flags().get(complete(word, shared, lenient=True))
        if spelling is not None and spelling.takes == "one" and values:
            found[spelling.option.name] = Given(values[0], f"{COMMAND_LINE}: {word}")
    wanted = ("model", "lr_schedule")
    chosen = chosen_block(found)
    if chosen:
        block = {key.replace("-", "_"): entry for key, entry in chosen.entries.items()}
        for name in wanted:
            if name in block and block[name].value is not None and name not in found:
                found[name] = Given(block[name].value, block[name].where)
    for name in wanted:
        if name not in found and recorded and recorded.get(name):
            found[name] = Given(recorded[name], origin)
        found.setdefault(name, Given(known.options[name].default, "default"))
        found[name] = Given(str(found[name].raw).lower(), found[name].where)
    return found, chosen


# Layers into options


def _merge(known: Catalogue, given_layers: list[Layer]) -> tuple[dict[str, Any], dict[str, str], set[str], dict[str, str]]:
    """The highest layer's value of each option and its source, the options that lost to another of their exclusive group,
    and the spelling by which each value was given."""
    values: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    sources: dict[str, str] = {}
    lost: set[str] = set()
    for layer in given_layers:
        converted = _converted(known, layer, values, sources)
        if layer.source != RECORDED:
            check_exclusive(known, layer, converted)
        won = [name for name in converted if name not in values and name not in lost]
        for name in won:
            values[name], sources[name] = converted[name], _source(layer, layer.values[name])
            spelled[name] = layer.values[name].spelling
        lost |= losers({name: converted[name] for name in won}) - set(values)
    return values, sources, lost, spelled


def _converted(known: Catalogue, layer: Layer, values: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """The values of a layer; OptionError for a wrong one, maybe recorded and wrong for another layer's model alone."""
    try:
        return {name: known.options[name].convert(given.raw, given.where) for name, given in layer.values.items()}
    except OptionError as error:
        recorded, model = layer.values.get("model"), values.get("model")
        if layer.source != RECORDED or recorded is None or model in (None, recorded.raw):
            raise
        raise OptionError(
            f"model {model} ({sources['model']}) is not that of the recorded run, {brief(recorded.raw)}, whose options do "
            f"not fit it ({error}); leave the model out, or begin a new run"
        ) from None


def _source(layer: Layer, given: Given) -> str:
    return f"{layer.source} ({given.where})" if layer.source.startswith(CONFIGURATION) else given.where


def _assemble(
    plugin_options: Mapping[str, type], known: Catalogue, values: Mapping[str, Any], sources: Mapping[str, str]
) -> RunOptions:
    sections = {}
    for section, cls in {**SECTIONS, **plugin_options}.items():
        fields = {field.name for field in dataclasses.fields(cls)}
        given = {name: value for name, value in values.items() if name in fields and known.options[name].section == section}
        try:
            sections[section] = cls(**given)
        except ValueError as error:  # a plug-in's own rule
            raise OptionError(str(error)) from None
    return RunOptions(**sections, sources=dict(sources))


def _add_help(group: Any, option: Option) -> None:
    meta = option.meta
    flags = [option.flag, *meta["flags"]]
    if option.base is bool and option.default is True:
        flags = ["--no-" + option.flag[2:]]
    status = " (recorded; no effect on the arithmetic)" if meta["kind"] == HINT else ""
    default = "" if option.base is bool or option.default in (None, ()) else f" [{shown(option.default)}]"
    text = (meta["help"] + default + status).replace("%", "%%")
    if option.base is bool:
        group.add_argument(*flags, action="store_true", help=text, dest=option.name)
        return
    metavar = "{" + ",".join(meta["choices"]) + "}" if meta["choices"] else {int: "N", float: "X", str: "TEXT"}[option.base]
    group.add_argument(*flags, nargs="+" if option.several else None, metavar=metavar, help=text, dest=option.name)
