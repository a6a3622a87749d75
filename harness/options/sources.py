"""The values given to one call, layer by layer: the command line's words and a configuration block's keys as raw
values of options. Nothing here knows which layer wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from base import plugins
from base.errors import OptionError
from base.fields import short
from harness.options.catalogue import Catalogue, Option, Spelling, format_value, section_options
from harness.options.other_names import OTHER_NAMES
from harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, SECTIONS, flag

if TYPE_CHECKING:
    from harness.options.configs import Block

# read from the words before anything else is known, or an answer's place
COMMAND_LINE_ONLY = (
    "config", "config_path", "restore_path", "autoresume", "predict", "output", "help", "version", "list_configs",
)  # fmt: skip
NEVER_READ = ("gradient_accumulation",)  # keys of published files that no release knew
EARLIER_CHOICES = {"profile": "gc_profile"}  # keys of another option in their time, whose choices tell
PLUGINS = (("Models", "model", "model"), ("LR_Schedules", "lr_schedule", "schedule"))  # folder, option, section
DEFAULT_CONFIG_PATH = plugins.ROOT / "configs.yml"


@dataclass(frozen=True)
class GivenValue:
    """A value of one layer: as it was written, and where."""

    raw: Any
    where: str  # "command line: --batch-size" or "configs.yml:12"
    spelling: str = ""  # batch_size


@dataclass(frozen=True)
class OptionSource:
    """Values by option, from one place."""

    source: str  # short name, for --explain
    values: Mapping[str, GivenValue]
    notes: tuple[str, ...] = ()  # lines about older spellings and keys that are not used


def given_words(argv: list[str], script: str) -> dict[str, list[str]]:
    """Return the words after each option's last flag, before it is known which options there are. A switch that is off
    is not given."""
    everything, found = all_options(script).flags(), {}
    # --lr is short for --lr-schedule unless the chosen schedule has a --lr-... of its own
    shared = Catalogue([option for n, cls in SECTIONS.items() for option in section_options(n, cls, script)]).flags()
    for word, values in tokens(argv, everything, lenient=True):
        spelling = everything.get(word) or shared.get(full_flag(word, shared) or "")
        if spelling is None:
            continue
        option = spelling.option
        if word.startswith("--no-") or (option.base is bool and [value.lower() for value in values] == ["false"]):
            found.pop(option.name, None)
        else:
            found[option.name] = values
    return found


def value_of(argv: list[str], name: str, script: str) -> str | None:
    """Return the last value of one option on the command line, before the others are known."""
    return (given_words(argv, script).get(name) or [None])[0]


def tokens(argv: list[str], flags: Mapping[str, Spelling], lenient: bool = False) -> list[tuple[str, list[str]]]:
    """argv as (full flag, its values); prefixes are completed, negative numbers are values."""
    words: list[tuple[str, list[str]]] = []
    for token in argv:
        if not token.startswith("-") or _is_number(token):
            if not words:
                if lenient:
                    continue
                raise OptionError(f"{COMMAND_LINE}: '{short(token)}' is not an option; options begin with --")
            words[-1][1].append(token)
            continue
        written, equals, value = token.partition("=")
        written = written.replace("_", "-")
        flag = full_flag(written, flags)
        if flag is None and not lenient:
            raise OptionError(f"{COMMAND_LINE}: {_unknown_flag(written, flags)}")
        words.append((flag or written, [value] if equals else []))
    return words


def full_flag(written: str, flags: Mapping[str, Spelling]) -> str | None:
    """Return a flag, or the one option's that a word begins; None if there is none, or several."""
    matches = [written] if written in flags else _beginning_with(written, flags)
    return matches[0] if len({(flags[flag].option.name, flag.startswith("--no-")) for flag in matches}) == 1 else None


def _beginning_with(written: str, flags: Mapping[str, Spelling]) -> list[str]:
    return [flag for flag in flags if flag.startswith(written)] if written.startswith("--") and len(written) > 2 else []


def _unknown_flag(written: str, flags: Mapping[str, Spelling]) -> str:
    elsewhere = OTHER_NAMES.get(written.removeprefix("--")) if written.startswith("--") else None
    matches, shown_flag = _beginning_with(written, flags), short(written)
    if matches:
        other_name = f"; {written} of other tools is {elsewhere} here" if elsewhere else ""
        return f"{shown_flag} could be {', '.join(sorted(matches)[:6])}; write one of them out{other_name}"
    if elsewhere:
        return f"unknown option {written}; {written} of other tools is {elsewhere} here"
    owners = _plugins_with_option(written.lstrip("-").replace("-", "_"))
    if owners:
        return f"{shown_flag} is an option of {' and '.join(owners)} only"
    for script in ("validation", "restore", "inference_embedded"):
        if written in Catalogue([o for n, c in SECTIONS.items() for o in section_options(n, c, script)]).flags():
            return f"{shown_flag} is an option of {script}.py only"
    named = [flag for flag in flags if flag != "--no-help"]  # which is understood, and helps nobody
    return f"unknown option {shown_flag}{plugins.did_you_mean(written, named)}"


def from_command_line(known: Catalogue, argv: list[str]) -> OptionSource:
    """The command line's values."""
    flags, notes, values = known.flags(), [], {}
    for word, words in tokens(argv, flags):
        where = f"{COMMAND_LINE}: {word}"
        names = _add(values, word, flags[word], _raw_value(flags[word], words, where), where)
        if not flags[word].canonical:
            notes.append(f"{word} is an older spelling of {' and '.join(map(flag, names))}")
    agreed = {name: _resolved_spellings(known.options[name], given) for name, given in values.items()}
    return OptionSource(COMMAND_LINE, agreed, tuple(notes))


def _raw_value(spelling: Spelling, words: list[str], where: str) -> Any:
    """The words after a flag as one raw value, their number checked."""
    takes = spelling.takes
    if not words:
        if takes in ("several", "one"):
            raise OptionError(f"{where}: needs {'a value' if takes == 'one' else 'at least one value'}")
        return (takes == "optional" and spelling.option.meta["bare"]) or True
    if takes == "several":
        return words
    switched = spelling.option.base is bool and words[0].lower() in ("true", "false")
    if len(words) > 1 or (takes == "nothing" and not switched):
        allowed = "no value" if takes == "nothing" else "one value"
        raise OptionError(f"{where}: takes {allowed}, but was given {short(' '.join(words))}")
    return words[0]


def _add(
    values: dict[str, list[tuple[str, GivenValue]]], word: str, spelling: Spelling, raw: Any, where: str
) -> list[str]:  # fmt: skip
    """Add what a word and its raw value stand for to the values by option; return the options."""
    try:
        rewritten = spelling.rewrite(raw)
    except ValueError:
        raise OptionError(f"{where}: {spelling.option.name} is '{short(raw)}' but must be true or false") from None
    for name, value in rewritten.items():
        values.setdefault(name, []).append((word, GivenValue(value, where, word.lstrip("-").replace("-", "_"))))
    return list(rewritten)


def _resolved_spellings(option: Option, given: list[tuple[str, GivenValue]]) -> GivenValue:
    """The last value of one spelling; two spellings must agree, but for those that are factors of the value."""
    last = dict(given)
    distinct = {flag: option.convert(entry.raw, entry.where) for flag, entry in last.items()}
    pairs = " and ".join(f"{flag} {short(format_value(value))}" for flag, value in distinct.items())
    where = given[-1][1].where.split(": --")[0]
    if len(last) > 1 and all(entry.spelling in option.meta["factors"] for entry in last.values()):
        above = [flag for flag, value in distinct.items() if value > 1]
        if len(above) > 1:
            raise OptionError(
                f"{where}: {pairs} are both above 1, and a pipeline accumulates by its depth; give one of them"
            )
        return last[above[0]] if above else given[-1][1]
    if len(set(distinct.values())) > 1:
        raise OptionError(f"{where}: {pairs} are two spellings of {option.name} with different values; give one of them")
    return given[-1][1]


def config_path(main: Mapping[str, GivenValue]) -> str:
    """The configuration file of this call."""
    return main["config_path"].raw if "config_path" in main else str(DEFAULT_CONFIG_PATH)


def chosen_config(main: Mapping[str, GivenValue]) -> Block | None:
    """The configuration that this call asks for."""
    if "config" not in main:
        return None
    from harness.options import configs  # which imports yaml

    release = main["release"].raw if "release" in main else None
    block = configs.choose(config_path(main), main["config"].raw, release)
    dead = _dead_keys(block)
    notes = [f"{_short(block.entries[key].where)}: {key} is left out: its release did not read it" for key in dead]
    entries = {key: entry for key, entry in block.entries.items() if key not in dead}
    return dataclasses.replace(block, entries=entries, notes=(*block.notes, *notes))


def from_config(known: Catalogue, block: Block) -> OptionSource:
    """The chosen block's values; a key of another model or schedule is noted, an unknown one refused."""
    name, notes, unused, values = block.name, [*block.notes], [], {}
    for key, entry in block.entries.items():
        where, plain = _short(entry.where), key.replace("-", "_")
        if plain in COMMAND_LINE_ONLY:
            raise OptionError(f"{where}: {name}: {key} has a meaning on the command line only")
        earlier = EARLIER_CHOICES.get(plain)
        if earlier and entry.value in known.options[earlier].meta["choices"]:
            plain = earlier
        spelling = known.spellings.get(plain)
        if spelling is None:
            if not _plugins_with_option(plain) and key not in all_options(None).spellings:
                near = plugins.did_you_mean(key, list(known.spellings))
                raise OptionError(f"{where}: {name}: unknown key '{short(key)}'{near}")
            unused.append(key)
            continue
        names = _add(values, key, spelling, entry.value, where)
        if not spelling.canonical or plain == earlier:
            notes.append(f"{where}: {key} is an older spelling of {' and '.join(names)}")
    if unused:
        notes.append(f"configuration {name}: not used by this model and schedule: {', '.join(unused)}")
    agreed = {option: _resolved_spellings(known.options[option], given) for option, given in values.items()}
    return OptionSource(f"{CONFIGURATION} {name}", agreed, tuple(notes))


def _dead_keys(block: Block) -> list[str]:
    """Return the keys of old files that their release did not read: it knew options by one name only, with underscores and
    without no_."""
    old = block.is_old
    return [
        key for key in block.entries
        if key.replace("-", "_") in NEVER_READ or (old and ("-" in key or key.startswith("no_")))
    ]  # fmt: skip


def _short(where: str) -> str:
    """file:line with the file as the user would write it."""
    return where.replace(str(DEFAULT_CONFIG_PATH), "configs.yml")


def from_record(known: Catalogue, recorded: Mapping[str, Any], where: str) -> OptionSource:
    """The values of an earlier run."""
    known_values = {name: value for name, value in recorded.items() if name in known.options and value is not None}
    return OptionSource(RECORDED, {name: GivenValue(value, where) for name, value in known_values.items()})


@cache
def all_options(script: str | None) -> Catalogue:
    """The options of every model and schedule at once: to resolve prefixes and to say whose an option is."""
    return Catalogue(every_option(script))


def every_option(script: str | None) -> list[Option]:
    """Every option of every model and schedule, of which some share a name; of all scripts, if `script` is None."""
    options = [option for name, cls in SECTIONS.items() for option in section_options(name, cls, script)]
    for folder, _, section in PLUGINS:
        for name in plugins.names(folder):
            options += section_options(section, plugins.load(folder, name).Options, script)
    return options


def _plugins_with_option(name: str) -> list[str]:
    """The models and schedules that have an option of this spelling."""
    return [
        f"{flag(option)} {plugin}"
        for folder, option, _ in PLUGINS
        for plugin in plugins.names(folder)
        if name in Catalogue(section_options("", plugins.load(folder, plugin).Options)).spellings
    ]


def _is_number(token: str) -> bool:
    """Return whether a word that begins with a dash is meant as a number; whether it is one, its option says."""
    try:
        float(token)
    except ValueError:
        return False
    return True
