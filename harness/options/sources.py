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
from base.fields import brief
from harness.options.catalogue import Catalogue, Option, Spelling, format_value, section_options
from harness.options.other_names import OTHER_NAMES
from harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, SECTIONS, flag

if TYPE_CHECKING:
    from harness.options.configs import Block, Entry

# read from the words before anything else is known, or an answer's place
COMMAND_LINE_ONLY = (
    "config", "config_path", "restore_path", "autoresume", "predict", "output", "help", "version", "list_configs",
)  # fmt: skip
NEVER_READ = {"gradient_accumulation": "gradient_accumulation_count"}  # keys of published files that no release knew
EARLIER_CHOICES = {"profile": "gc_profile"}  # keys of another option in their time, whose choices tell
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


def given(argv: list[str], script: str) -> dict[str, list[str]]:
    """Return the words of each option on the command line, before it is known which options there are. A switch that is
    off is not given."""
    everything, found = all_options(script).flags(), {}
    for word, values in tokens(argv, everything, lenient=True):
        if word not in everything:
            continue
        option = everything[word].option
        if word.startswith("--no-") or (option.base is bool and [value.lower() for value in values] == ["false"]):
            found.pop(option.name, None)
        else:
            found.setdefault(option.name, []).extend(values)
    return found


def value_of(argv: list[str], name: str, script: str) -> str | None:
    """Return the last value of one option on the command line, before the others are known."""
    return (given(argv, script).get(name) or [None])[-1]


def tokens(argv: list[str], flags: Mapping[str, Spelling], lenient: bool = False) -> list[tuple[str, list[str]]]:
    """argv as (full flag, its values); prefixes are completed, negative numbers are values."""
    words: list[tuple[str, list[str]]] = []
    for token in argv:
        if not token.startswith("-") or _is_number(token):
            if not words:
                if lenient:
                    continue
                raise OptionError(f"{COMMAND_LINE}: '{brief(token)}' is not an option; options begin with --")
            words[-1][1].append(token)
            continue
        written, equals, value = token.partition("=")
        words.append((expand_prefix(written.replace("_", "-"), flags, lenient), [value] if equals else []))
    return words


def expand_prefix(written: str, flags: Mapping[str, Spelling], lenient: bool) -> str:
    """A flag or the unambiguous beginning of one."""
    if written in flags:
        return written
    matches = [flag for flag in flags if flag.startswith(written)] if written.startswith("--") and len(written) > 2 else []
    meant = {(flags[flag].option.name, "--no-" in flag[:5]) for flag in matches}
    if len(meant) == 1:
        return matches[0]
    if lenient:
        return written
    elsewhere = OTHER_NAMES.get(written.removeprefix("--")) if written.startswith("--") else None
    other_name = f"; {written} of other tools is {elsewhere} here" if elsewhere else ""
    if matches:
        raise OptionError(
            f"{COMMAND_LINE}: {brief(written)} could be {', '.join(sorted(matches)[:6])}; write one of them out{other_name}"
        )
    if elsewhere:
        raise OptionError(f"{COMMAND_LINE}: unknown option {written}{other_name}")
    raise OptionError(_unknown_flag(written, flags))


def _unknown_flag(written: str, flags: Mapping[str, Spelling]) -> str:
    owners = _plugins_with_option(written.lstrip("-").replace("-", "_"))
    shown_flag = brief(written)
    if owners:
        return f"{COMMAND_LINE}: {shown_flag} is an option of {' and '.join(owners)} only"
    other = [
        s
        for s in ("validation", "restore", "inference_embedded")
        if written in Catalogue([o for n, c in SECTIONS.items() for o in section_options(n, c, s)]).flags()
    ]
    if other:
        return f"{COMMAND_LINE}: {shown_flag} is an option of {other[0]}.py only"
    named = [flag for flag in flags if flag != "--no-help"]  # which is understood, and helps nobody
    return f"{COMMAND_LINE}: unknown option {shown_flag}{plugins.did_you_mean(written, named)}"


def from_command_line(known: Catalogue, argv: list[str]) -> OptionSource:
    """The command line's values."""
    flags, notes = known.flags(), []
    values: dict[str, list[tuple[str, GivenValue]]] = {}
    for word, words in tokens(argv, flags):
        spelling = flags[word]
        where = f"{COMMAND_LINE}: {word}"
        raw = _raw_value(spelling, words, where)
        for name, rewritten in _rewritten(spelling, raw, where).items():
            values.setdefault(name, []).append((word, GivenValue(rewritten, where, word.lstrip("-").replace("-", "_"))))
        if not spelling.canonical:
            notes.append(f"{word} is an older spelling of {_new_spelling(spelling, raw)}")
    agreed = {name: _resolved_spellings(known.options[name], given) for name, given in values.items()}
    return OptionSource(COMMAND_LINE, agreed, tuple(notes))


def _raw_value(spelling: Spelling, words: list[str], where: str) -> Any:
    """The words after a flag as one raw value, their number checked."""
    if spelling.takes == "several":
        if not words:
            raise OptionError(f"{where}: needs at least one value")
        return words
    if not words and spelling.takes in ("nothing", "optional"):
        return spelling.option.meta["bare"] or True if spelling.takes == "optional" else True
    if (
        spelling.takes == "nothing"
        and spelling.option.base is bool
        and len(words) == 1
        and words[0].lower() in ("true", "false")
    ):
        return words[0]
    if spelling.takes == "nothing" or len(words) > 1:
        allowed = "no value" if spelling.takes == "nothing" else "one value"
        raise OptionError(f"{where}: takes {allowed}, but was given {brief(' '.join(words))}")
    if not words:
        raise OptionError(f"{where}: needs a value")
    return words[0]


def _rewritten(spelling: Spelling, raw: Any, where: str) -> dict[str, Any]:
    try:
        return spelling.rewrite(raw)
    except ValueError:
        raise OptionError(f"{where}: {spelling.option.name} is '{brief(raw)}' but must be true or false") from None


def _new_spelling(spelling: Spelling, raw: Any) -> str:
    names = list(spelling.rewrite(raw))
    return " and ".join(flag(name) for name in names)


def _resolved_spellings(option: Option, given: list[tuple[str, GivenValue]]) -> GivenValue:
    """The last value of one spelling; two spellings must agree, but for those that are factors of the value."""
    last = dict(given)
    distinct = {flag: option.convert(entry.raw, entry.where) for flag, entry in last.items()}
    pairs = " and ".join(f"{flag} {brief(format_value(value))}" for flag, value in distinct.items())
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
    notes = [_short(note) for note in block.notes]
    return dataclasses.replace(block, entries=_without_dead_keys(block, notes), notes=tuple(notes))


def from_config(known: Catalogue, block: Block) -> OptionSource:
    """The chosen block's values; a key of another model or schedule is noted, an unknown one refused."""
    name, notes = block.name, [*block.notes]
    values: dict[str, list[tuple[str, GivenValue]]] = {}
    unused = []
    for key, entry in block.entries.items():
        where = _short(entry.where)
        if key.replace("-", "_") in COMMAND_LINE_ONLY:
            raise OptionError(f"{where}: {name}: {key} has a meaning on the command line only")
        spelling = known.spellings.get(_meant(known, key.replace("-", "_"), entry))
        if spelling is None:
            if _plugins_with_option(key.replace("-", "_")) or key in all_options(None).spellings:
                unused.append(key)
                continue
            raise OptionError(
                f"{where}: {name}: unknown key '{brief(key)}'{plugins.did_you_mean(key, list(known.spellings))}"
            )
        for option, raw in _rewritten(spelling, entry.value, where).items():
            values.setdefault(option, []).append((key, GivenValue(raw, where, key.replace("-", "_"))))
        if not spelling.canonical or spelling.option.name == EARLIER_CHOICES.get(key):
            notes.append(f"{where}: {key} is an older spelling of {' and '.join(spelling.rewrite(entry.value))}")
    if unused:
        notes.append(f"configuration {name}: not used by this model and schedule: {', '.join(unused)}")
    agreed = {option: _resolved_spellings(known.options[option], given) for option, given in values.items()}
    return OptionSource(f"{CONFIGURATION} {name}", agreed, tuple(notes))


def _meant(known: Catalogue, key: str, entry: Entry) -> str:
    """Return the spelling that a key of a block stands for: those that were another option are that one where their value is
    one of its choices."""
    earlier = EARLIER_CHOICES.get(key)
    return earlier if earlier and entry.value in known.options[earlier].meta["choices"] else key


def _without_dead_keys(block: Block, notes: list[str]) -> dict[str, Entry]:
    """Return the entries without the keys of old files that changed nothing in their time: those that no release read, and,
    as the first one with such files knew options by one name only, keys with hyphens and those that begin with no_."""
    remaining = {}
    for key, entry in block.entries.items():
        named = NEVER_READ.get(key.replace("-", "_"))
        instead = f"no release read it; {named} may be meant" if named else ""
        if not named and block.is_old and ("-" in key or key.startswith("no_")):
            meant = key.replace("-", "_")
            given = f"{meant} is given too"
            instead = (
                given if meant in block.entries else f"its release did not read it; {meant.removeprefix('no_')} is a key"
            )
        if instead:
            notes.append(f"{_short(entry.where)}: {key} is left out: {instead}")
        else:
            remaining[key] = entry
    return remaining


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
    for folder, section in (("Models", "model"), ("LR_Schedules", "schedule")):
        for name in plugins.names(folder):
            options += section_options(section, plugins.load(folder, name).Options, script)
    return options


def _plugins_with_option(name: str) -> list[str]:
    """The models and schedules that have an option of this spelling."""
    owners = []
    for folder, switch in (("Models", "--model"), ("LR_Schedules", "--lr-schedule")):
        for plugin in plugins.names(folder):
            options = section_options("", plugins.load(folder, plugin).Options)
            if name in Catalogue(options).spellings:
                owners.append(f"{switch} {plugin}")
    return owners


def _is_number(token: str) -> bool:
    """Return whether a word that begins with a dash is meant as a number; whether it is one, its option says."""
    try:
        float(token)
    except ValueError:
        return False
    return True
