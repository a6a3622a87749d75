"""argv + configs.yml -> RunOptions: command line over configuration over model default over field default.

Says where every value came from, refuses what is unknown, misspelt, contradictory or not available yet, and
never imports TensorFlow.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import configs, data, plugins
from harness.catalogue import Catalogue, Option, Spelling, catalogue, section_options
from harness.options import EXCLUSIVE, SECTIONS, MainOptions, OptionError, RunOptions

COMMAND_LINE = "command line"
RECORDED = "the recorded run"
DEFAULT_CONFIG_PATH = plugins.ROOT / "configs.yml"


@dataclass(frozen=True)
class Given:
    """One value of one layer: as it was written, and where."""

    raw: Any
    where: str  # "command line: --batch-size" or "configs.yml:12"


@dataclass(frozen=True)
class Layer:
    """Values by option, from one place."""

    source: str  # short name, for --explain
    values: Mapping[str, Given]


@dataclass(frozen=True)
class Parsed:
    """The options, and lines about them that the user should read."""

    options: RunOptions
    notes: tuple[str, ...]
    catalogue: Catalogue


def parse(
    argv: list[str], script: str = "train", recorded: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Parsed:
    """All layers of one call of `script` ("train", "validation" or "restore") as RunOptions.

    `recorded`: option values of an earlier run, a layer between the configuration and the defaults.
    """
    notes: list[str] = []
    main = _main_values(argv, script, recorded)
    model = plugins.load("Models", main["model"].raw, main["model"].where)
    schedule = plugins.load("LR_Schedules", main["lr_schedule"].raw, main["lr_schedule"].where)
    known = catalogue(model.Options, schedule.Options, script)
    layers = [_command_layer(known, argv, notes)]
    if "config" in main:
        layers.append(_config_layer(known, main, notes))
    if recorded:
        layers.append(Layer(RECORDED, _recorded(known, recorded)))
    values, sources, lost = _merge(known, layers)
    _refuse_unavailable(known, values, sources)
    values |= {"model": main["model"].raw, "lr_schedule": main["lr_schedule"].raw}
    if not values.get("help"):
        _model_defaults(model, known, values, sources, lost, environ)
    options = _assemble({"model": model.Options, "schedule": schedule.Options}, known, values, sources)
    return Parsed(options, tuple(notes + _hint_notes(known, values, sources)), known)


def _model_defaults(
    model: ModuleType, known: Catalogue, values: dict[str, Any], sources: dict[str, str], lost: set[str], environ: Mapping[str, str]
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
    for group in EXCLUSIVE:
        if any(values.get(name) for name in group):
            lost |= set(group)
    for name, value in defaults.items():
        if name in known.options and values.get(name) is None:
            if name in lost:
                value = False if known.options[name].base is bool else None
            else:
                sources[name] = f"default of {values['model']} on {family}-sized data"
            values[name] = value
    values["model_size"] = _model_size(model, family, values["model_size"], sources)


def _model_size(model: ModuleType, family: str, size: Any, sources: Mapping[str, str]) -> Any:
    sizes = model.sizes(family)
    found = size.upper() if isinstance(size, str) else size
    if found not in sizes:
        listed = ", ".join(map(str, sizes))
        near = plugins.did_you_mean(str(size), [str(s) for s in sizes])
        raise OptionError(f"{sources['model_size']}: no model size {size} for {family}-sized data{near}\nThere are: {listed}")
    return found


def _hint_notes(known: Catalogue, values: Mapping[str, Any], sources: Mapping[str, str]) -> list[str]:
    hints = [
        known.options[name].flag
        for name in values
        if known.options[name].meta["kind"] == "hint" and values[name] != known.options[name].default
    ]
    return [f"recorded, without effect on the emulated arithmetic: {' '.join(hints)}"] if hints else []


def value_of(argv: list[str], name: str, script: str) -> str | None:
    """The last value of one option on the command line, before the others are known."""
    everything = _universe(script).flags()
    found = [values[-1] for flag, values in _tokens(argv, everything, lenient=True) if values and everything.get(flag) is not None and everything[flag].option.name == name]
    return found[-1] if found else None


def help_text(known: Catalogue, prog: str, intro: str) -> str:
    """The assembled parser's help, in argument groups."""
    parser = argparse.ArgumentParser(prog=prog, description=intro, add_help=False, usage=f"{prog} [options]")
    titles = {name: cls.__doc__ for name, cls in SECTIONS.items()}
    titles |= {"model": "Model", "schedule": "Learning-rate schedule"}
    for section in known.sections():
        group = parser.add_argument_group(titles[section])
        for option in known.options.values():
            if option.section == section:
                _add_help(group, option)
    return parser.format_help()


def explain(options: RunOptions) -> str:
    """Every value and where it came from."""
    rows = [(name, _shown(value), options.sources.get(name, "default")) for name, value in options.values().items()]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    second = min(second, 36)
    return "\n".join(f"{name:<{first}}  {value:<{second}}  {source}" for name, value, source in rows)


# Finding the model before the options are known


def _main_values(argv: list[str], script: str, recorded: Mapping[str, Any] | None) -> dict[str, Given]:
    """The main options that decide which others there are: --model, --lr-schedule, --config, --config-path."""
    known = Catalogue(section_options("main", MainOptions))
    everything = _universe(script)
    found: dict[str, Given] = {}
    for flag, values in _tokens(argv, everything.flags(), lenient=True):
        spelling = known.flags().get(flag)
        if spelling is not None and spelling.takes == "one" and values:
            found[spelling.option.name] = Given(values[-1], f"{COMMAND_LINE}: {flag}")
    wanted = ("model", "lr_schedule")
    if "config" in found:
        block = configs.read_block(_config_path(found), found["config"].raw)
        for name in wanted:
            if name in block and name not in found:
                found[name] = Given(block[name].value, block[name].where)
    for name in wanted:
        if name not in found and recorded and recorded.get(name):
            found[name] = Given(recorded[name], "arguments.json")
        found.setdefault(name, Given(known.options[name].default, "default"))
        found[name] = Given(str(found[name].raw).lower(), found[name].where)
    return found


def _universe(script: str | None) -> Catalogue:
    """The options of every model and schedule at once: to resolve prefixes and to say whose an option is."""
    options = [option for name, cls in SECTIONS.items() for option in section_options(name, cls, script)]
    for folder, section in (("Models", "model"), ("LR_Schedules", "schedule")):
        for name in plugins.names(folder):
            options += section_options(section, plugins.load(folder, name).Options, script)
    return Catalogue(options)


def _owners(name: str) -> list[str]:
    """The models and schedules that have an option of this spelling."""
    found = []
    for folder, flag in (("Models", "--model"), ("LR_Schedules", "--lr-schedule")):
        for plugin in plugins.names(folder):
            options = section_options("", plugins.load(folder, plugin).Options)
            if name in Catalogue(options).spellings:
                found.append(f"{flag} {plugin}")
    return found


# The command line


def _tokens(argv: list[str], flags: Mapping[str, Spelling], lenient: bool = False) -> list[tuple[str, list[str]]]:
    """argv as (full flag, its values); prefixes are completed, negative numbers are values."""
    found: list[tuple[str, list[str]]] = []
    for token in argv:
        if not token.startswith("-") or _is_number(token):
            if not found:
                if lenient:
                    continue
                raise OptionError(f"{COMMAND_LINE}: '{token}' is not an option; options begin with --")
            found[-1][1].append(token)
            continue
        written, equals, value = token.partition("=")
        found.append((_complete(written.replace("_", "-"), flags, lenient), [value] if equals else []))
    return found


def _complete(written: str, flags: Mapping[str, Spelling], lenient: bool) -> str:
    """A flag or the unambiguous beginning of one."""
    if written in flags:
        return written
    matches = [flag for flag in flags if flag.startswith(written)] if written.startswith("--") and len(written) > 2 else []
    meant = {(flags[flag].option.name, "--no-" in flag[:5]) for flag in matches}
    if len(meant) == 1:
        return matches[0]
    if lenient:
        return written
    if matches:
        raise OptionError(f"{COMMAND_LINE}: {written} could be {', '.join(sorted(matches)[:6])}; write one of them out")
    raise OptionError(_unknown_flag(written, flags))


def _unknown_flag(written: str, flags: Mapping[str, Spelling]) -> str:
    owners = _owners(written.lstrip("-").replace("-", "_"))
    if owners:
        return f"{COMMAND_LINE}: {written} is an option of {' and '.join(owners)} only"
    other = [s for s in ("validation", "restore") if written in Catalogue([o for n, c in SECTIONS.items() for o in section_options(n, c, s)]).flags()]
    if other:
        return f"{COMMAND_LINE}: {written} is an option of {other[0]}.py only"
    return f"{COMMAND_LINE}: unknown option {written}{plugins.did_you_mean(written, list(flags))}"


def _command_layer(known: Catalogue, argv: list[str], notes: list[str]) -> Layer:
    flags = known.flags()
    values: dict[str, list[tuple[str, Given]]] = {}
    for flag, words in _tokens(argv, flags):
        spelling = flags[flag]
        where = f"{COMMAND_LINE}: {flag}"
        raw = _raw_value(spelling, words, where)
        for name, rewritten in _rewritten(spelling, raw, where).items():
            values.setdefault(name, []).append((flag, Given(rewritten, where)))
        if not spelling.canonical:
            notes.append(f"{flag} is an older spelling of {_new_spelling(spelling, raw)}")
    return Layer(COMMAND_LINE, {name: _agreed(known.options[name], given) for name, given in values.items()})


def _raw_value(spelling: Spelling, words: list[str], where: str) -> Any:
    """The words after a flag as one raw value, their number checked."""
    if spelling.takes == "several":
        if not words:
            raise OptionError(f"{where}: needs at least one value")
        return words
    if not words and spelling.takes in ("nothing", "optional"):
        return spelling.option.meta["bare"] or True
    if spelling.takes == "nothing" and spelling.option.base is bool and len(words) == 1 and words[0].lower() in ("true", "false"):
        return words[0]
    if spelling.takes == "nothing" or len(words) > 1:
        allowed = "no value" if spelling.takes == "nothing" else "one value"
        raise OptionError(f"{where}: takes {allowed}, but was given {' '.join(words)}")
    if not words:
        raise OptionError(f"{where}: needs a value")
    return words[0]


def _rewritten(spelling: Spelling, raw: Any, where: str) -> dict[str, Any]:
    try:
        return spelling.rewrite(raw)
    except ValueError:
        raise OptionError(f"{where}: {spelling.option.name} is '{raw}' but must be true or false") from None


def _new_spelling(spelling: Spelling, raw: Any) -> str:
    names = list(spelling.rewrite(raw))
    return " and ".join("--" + name.replace("_", "-") for name in names)


def _agreed(option: Option, given: list[tuple[str, Given]]) -> Given:
    """The last value of one spelling; two spellings must agree."""
    last = {flag: entry for flag, entry in given}
    distinct = {flag: option.convert(entry.raw, entry.where) for flag, entry in last.items()}
    if len(set(distinct.values())) > 1:
        pairs = " and ".join(f"{flag} {_shown(value)}" for flag, value in distinct.items())
        raise OptionError(f"{given[-1][1].where.split(': --')[0]}: {pairs} are two spellings of {option.name} with different values; give one")
    return given[-1][1]


# The configuration file


def _config_path(main: Mapping[str, Given]) -> str:
    return main["config_path"].raw if "config_path" in main else str(DEFAULT_CONFIG_PATH)


def _config_layer(known: Catalogue, main: Mapping[str, Given], notes: list[str]) -> Layer:
    path, name = _config_path(main), main["config"].raw
    values: dict[str, list[tuple[str, Given]]] = {}
    unused = []
    for key, entry in configs.read_block(path, name).items():
        where = _short(entry.where)
        spelling = known.spellings.get(key.replace("-", "_"))
        if spelling is None:
            if _owners(key.replace("-", "_")) or key in _universe(None).spellings:
                unused.append(key)
                continue
            raise OptionError(f"{where}: {name}: unknown key '{key}'{plugins.did_you_mean(key, list(known.spellings))}")
        for option, raw in _rewritten(spelling, entry.value, where).items():
            values.setdefault(option, []).append((key, Given(raw, where)))
        if not spelling.canonical:
            notes.append(f"{where}: {key} is an older spelling of {_new_spelling(spelling, entry.value)[2:].replace('-', '_')}")
    if unused:
        notes.append(f"configuration {name}: not used by this model and schedule: {', '.join(unused)}")
    return Layer(f"configuration {name}", {option: _agreed(known.options[option], given) for option, given in values.items()})


def _short(where: str) -> str:
    """file:line with the file as the user would write it."""
    return where.replace(str(DEFAULT_CONFIG_PATH), "configs.yml")


# Layers into options


def _recorded(known: Catalogue, recorded: Mapping[str, Any]) -> dict[str, Given]:
    return {
        name: Given(value, RECORDED)
        for name, value in recorded.items()
        if name in known.options and value is not None
    }


def _merge(known: Catalogue, layers: list[Layer]) -> tuple[dict[str, Any], dict[str, str], set[str]]:
    """The highest layer's value of each option and its source, and the options that lost to another of their
    exclusive group."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    lost: set[str] = set()
    for layer in layers:
        converted = {name: known.options[name].convert(given.raw, given.where) for name, given in layer.values.items()}
        if layer.source != RECORDED:
            _refuse_contradictions(known, layer, converted)
        for name, value in converted.items():
            if name not in values and name not in lost:
                values[name], sources[name] = value, _source(layer, layer.values[name])
        for group in EXCLUSIVE:
            asked = {name for name in group if converted.get(name) and name in values}
            lost |= set(group) - asked - set(values) if asked else set()
    return values, sources, lost


def _refuse_contradictions(known: Catalogue, layer: Layer, converted: Mapping[str, Any]) -> None:
    for group in EXCLUSIVE:
        asked = [name for name in group if converted.get(name) and converted[name] != known.options[name].default]
        if len(asked) > 1:
            place = layer.values[asked[1]].where
            flags = " and ".join(f"{known.options[name].flag} {_shown(converted[name])}" for name in asked)
            raise OptionError(f"{place}: {flags} exclude each other; give one of them")


def _source(layer: Layer, given: Given) -> str:
    return f"{layer.source} ({given.where})" if layer.source.startswith("configuration") else given.where


def _refuse_unavailable(known: Catalogue, values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
    for name, value in values.items():
        # a recorded run's values were accepted when it began
        if known.options[name].asks_for_more(value) and not sources[name].startswith(RECORDED):
            shown = "" if value is True else f" {_shown(value)}"
            raise OptionError(f"{sources[name]}: {known.options[name].flag}{shown} is not available yet")


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


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "(none)"
    return {None: "(not set)", True: "yes", False: "no"}.get(value, str(value)) if not isinstance(value, (int, float)) or isinstance(value, bool) else f"{value}"


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


def _add_help(group: Any, option: Option) -> None:
    meta = option.meta
    flags = [option.flag, *meta["flags"]]
    if option.base is bool and option.default is True:
        flags = ["--no-" + option.flag[2:]]
    status = {"later": " (not available yet)", "hint": " (recorded; no effect on the arithmetic)"}.get(meta["kind"], "")
    default = "" if option.base is bool or option.default in (None, ()) else f" [{_shown(option.default)}]"
    text = (meta["help"] + default + status).replace("%", "%%")
    if option.base is bool:
        group.add_argument(*flags, action="store_true", help=text, dest=option.name)
        return
    metavar = "{" + ",".join(meta["choices"]) + "}" if meta["choices"] else {int: "N", float: "X", str: "TEXT"}[option.base]
    group.add_argument(*flags, nargs="+" if option.several else None, metavar=metavar, help=text, dest=option.name)
