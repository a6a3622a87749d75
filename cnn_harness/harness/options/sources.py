"""Read the values that a call gives: on the command line, in a configuration and in the record of an earlier run.

`harness/commands/option_values.py` decides which source wins.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.harness.options.catalogue import (
    Catalogue,
    Option,
    Spelling,
    all_options,
    format_value,
    plugins_with,
    shared_options,
)
from cnn_harness.harness.options.other_names import OTHER_NAMES
from cnn_harness.harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, flag

if TYPE_CHECKING:
    from cnn_harness.harness.options.configs import Block

# Configurations must not have these options: they are read before the configuration, or apply to one call.
COMMAND_LINE_ONLY = (
    "config", "config_path", "restore_path", "autoresume", "predict", "output", "help", "version", "list_configs",
)  # fmt: skip
DEFAULT_CONFIG_PATH = plugins.ROOT / "configs.yml"


@dataclass(frozen=True)
class GivenValue:
    """A value, and where it was given."""

    value: Any
    where: str  # "command line: --batch-size" or "configs.yml:12"
    spelling: str = ""  # batch_size


@dataclass(frozen=True)
class OptionSource:
    """The values of one source, by option."""

    source: str  # the short name for --explain
    values: Mapping[str, GivenValue]
    notes: tuple[str, ...] = ()  # lines about older spellings and unused keys


def given_arguments(argv: list[str], script: str) -> dict[str, list[str]]:
    """Return {option: arguments} of a command line, before the model and its options are known.

    The last flag of an option wins. Switches that are off are left out.
    """
    everything, found = all_options(script).flags(), {}
    # --lr abbreviates --lr-schedule, unless another option of the chosen schedule begins with --lr
    shared = shared_options(script).flags()
    for written, arguments in tokens(argv, everything, lenient=True):
        spelling = everything.get(written) or shared.get(full_flag(written, shared) or "")
        if spelling is None:
            continue
        option = spelling.option
        if written.startswith("--no-") or (option.base is bool and [each.lower() for each in arguments] == ["false"]):
            found.pop(option.name, None)
        else:
            found[option.name] = arguments
    return found


def argument(argv: list[str], name: str, script: str) -> str | None:
    """Return the last value of one option on the command line."""
    return (given_arguments(argv, script).get(name) or [None])[0]


def tokens(argv: list[str], flags: Mapping[str, Spelling], lenient: bool = False) -> list[tuple[str, list[str]]]:
    """Split argv into (full flag, arguments). Complete abbreviated flags, and treat negative numbers as arguments.

    --lr RATE means --abs-learning-rate, and --lr NAME means --lr-schedule.
    """
    found: list[tuple[str, list[str]]] = []
    for token, following in zip(argv, [*argv[1:], ""]):
        if token == "--lr" and _is_number(following):
            token = "--abs-learning-rate"
        elif token.startswith("--lr=") and _is_number(token[5:]):
            token = f"--abs-learning-rate={token[5:]}"
        if not token.startswith("-") or _is_number(token):
            if found:
                found[-1][1].append(token)
            elif not lenient:
                raise OptionError(f"{COMMAND_LINE}: '{short(token)}' is not an option; options begin with --")
            continue
        written, equals, value = token.partition("=")
        written = written.replace("_", "-")
        full = full_flag(written, flags)
        if full is None and not lenient:
            raise OptionError(f"{COMMAND_LINE}: {unknown_flag(written, flags)}")
        found.append((full or written, [value] if equals else []))
    return found


def check_assignments(words: Sequence[str], flags: Mapping[str, Spelling]) -> None:
    """Raise OptionError for words such as epochs=5, if they are the options of a call without the dashes."""
    pairs = [word.partition("=") for word in words if "=" in word and not os.path.exists(word)]
    meant = []
    for name, _, value in pairs:
        written = f"--{name.replace('_', '-')}"
        elsewhere = OTHER_NAMES.get(written[2:])
        if full_flag(written, flags) or written == "--lr":
            meant.append(f"{written} {short(value)}")
        elif elsewhere:
            meant.append(elsewhere if " " in elsewhere else f"{elsewhere} {short(value)}")
    if meant and len(meant) == len(pairs):
        given = short(" ".join(map("".join, pairs)))
        raise OptionError(f"{given}: options begin with --; write {' '.join(meant)}")


def full_flag(written: str, flags: Mapping[str, Spelling]) -> str | None:
    """Return the full flag for a flag or an abbreviation of it.

    Return None if no flag or several flags match, or if other tools use the abbreviation for something else.
    """
    matches = [written] if written in flags else _beginning_with(written, flags)
    elsewhere = OTHER_NAMES.get(written[2:], "")
    if elsewhere and written not in flags and not any(flag in elsewhere for flag in matches):
        return None
    return matches[0] if len({(flags[flag].option.name, flag.startswith("--no-")) for flag in matches}) == 1 else None


def _beginning_with(written: str, flags: Collection[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith(written)] if written.startswith("--") and len(written) > 2 else []


def unknown_flag(written: str, flags: Collection[str]) -> str:
    """Return the error message for an unknown or ambiguous flag, with the model that has it or the nearest flags."""
    matches, name = _beginning_with(written, flags), written.lstrip("-")
    elsewhere = OTHER_NAMES.get(name)
    if matches:
        instead = f", or use {elsewhere}" if elsewhere else ""
        return f"{short(written)} is ambiguous: {', '.join(sorted(matches)[:6])}; write one of them in full{instead}"
    if elsewhere:
        return f"unknown option {written}; use {elsewhere}"
    owners = plugins_with(name.replace("-", "_"))
    owners = owners or [f"{script}.py" for script in ("validation", "restore") if written in shared_options(script).flags()]
    if owners:
        return f"{short(written)} is an option of {' and '.join(owners)} only"
    return f"unknown option {short(written)}{plugins.did_you_mean(written, list(flags))}"


def from_command_line(known: Catalogue, argv: list[str]) -> OptionSource:
    """Return the values of the command line."""
    flags = known.flags()
    given = (
        (written, flags[written], _raw_value(flags, arguments, written), f"{COMMAND_LINE}: {written}")
        for written, arguments in tokens(argv, flags)
    )
    return _layer(known, COMMAND_LINE, given)


def _raw_value(flags: Mapping[str, Spelling], arguments: list[str], written: str) -> Any:
    """Return the arguments of a flag as one raw value. Raise OptionError for a wrong number of arguments."""
    spelling, where = flags[written], f"{COMMAND_LINE}: {written}"
    takes = spelling.takes
    if not arguments:
        if takes in ("several", "one"):
            raise OptionError(f"{where} needs {'a value' if takes == 'one' else 'at least one value'}")
        return True
    if takes == "several":
        return arguments
    switched = spelling.option.base is bool and arguments[0].lower() in ("true", "false")
    if len(arguments) > 1 or (takes == "nothing" and not switched):
        check_assignments(arguments if takes == "nothing" else arguments[1:], flags)
        allowed = "no value" if takes == "nothing" else "one value"
        raise OptionError(f"{where} takes {allowed}, not {short(' '.join(arguments))}")
    return arguments[0]


def _layer(
    known: Catalogue, source: str, given: Iterable[tuple[str, Spelling, Any, str]], notes: Iterable[str] = ()
) -> OptionSource:
    """Return the values of one source.

    `given` has the flag or key as written, its spelling, its raw value, and where it was given. The last value of a spelling
    wins. Two spellings of one option must have the same value.
    """
    notes, found = list(notes), {}
    for written, spelling, raw, where in given:
        try:
            rewritten = spelling.rewrite(raw)
        except ValueError:
            raise OptionError(f"{where}: {spelling.option.name} is '{short(raw)}' but must be true or false") from None
        for name, each in rewritten.items():
            value = GivenValue(known.options[name].convert(each, where), where, written.lstrip("-").replace("-", "_"))
            spellings = found.setdefault(name, {})
            spellings.pop(written, None)
            spellings[written] = value
        if not spelling.canonical:
            names = map(flag, rewritten) if written.startswith("--") else rewritten
            place = "" if written.startswith("--") else f"{where}: "
            notes.append(f"{place}{written} is an older spelling of {' and '.join(names)}")
    agreed = {name: _agreed(known.options[name], spellings) for name, spellings in found.items()}
    return OptionSource(source, agreed, tuple(dict.fromkeys(notes)))


def _agreed(option: Option, spellings: Mapping[str, GivenValue]) -> GivenValue:
    """Return the value of an option that is given by several spellings.

    Only spellings in `factors` may have different values, and at most one of them may be above 1.
    """
    last = list(spellings.values())[-1]
    if len({given.value for given in spellings.values()}) == 1:
        return last
    pairs = " and ".join(f"{written} {short(format_value(given.value))}" for written, given in spellings.items())
    where = last.where.split(": --")[0]
    if any(given.spelling not in option.meta["factors"] for given in spellings.values()):
        raise OptionError(f"{where}: {pairs} are spellings of {option.name} with different values; give one of them")
    above = [given for given in spellings.values() if given.value > 1]
    if len(above) > 1:
        raise OptionError(
            f"{where}: {pairs} are both above 1, but the pipeline depth already sets the accumulation; give one of them"
        )
    return above[0]


def chosen_config(main: Mapping[str, GivenValue]) -> Block | None:
    """Return the configuration of --config, or None."""
    if "config" not in main and "config_path" not in main:
        return None
    from cnn_harness.harness.options import configs  # late, because it imports yaml

    path = main["config_path"].value if "config_path" in main else str(DEFAULT_CONFIG_PATH)
    if "config" not in main:
        names = configs.ConfigFile(path).available()
        raise OptionError(f"--config-path {path} needs --config with a name in the file", names)
    return configs.choose(path, main["config"].value, main["release"].value if "release" in main else None)


def from_config(known: Catalogue, block: Block) -> OptionSource:
    """Return the values of a configuration, and notes on keys of other models. Raise OptionError for unknown keys."""
    notes, unused, given = list(block.notes), [], []
    for key, entry in block.entries.items():
        where, plain = entry.where.replace(str(DEFAULT_CONFIG_PATH), "configs.yml"), key.replace("-", "_")
        if plain in COMMAND_LINE_ONLY:
            raise OptionError(f"{where}: {block.name}: {key} is allowed on the command line only")
        if plain == "profile" and entry.value in known.options["gc_profile"].meta["choices"]:
            plain = "gc_profile"  # releases without --profile used this key for --gc-profile
        if plain in known.spellings:
            given.append((key, known.spellings[plain], entry.value, where))
        elif plain in all_options(None).spellings:
            unused.append(key)
        else:
            near = plugins.did_you_mean(key, list(known.spellings))
            raise OptionError(f"{where}: {block.name}: unknown key '{short(key)}'{near}")
    if unused:
        notes.append(f"configuration {block.name}: ignored keys of other models, schedules or scripts: {', '.join(unused)}")
    return _layer(known, f"{CONFIGURATION} {block.name}", given, notes)


def from_record(known: Catalogue, recorded: Mapping[str, Any], where: str, model: GivenValue) -> OptionSource:
    """Return the recorded values of an earlier run. Raise OptionError if this call gives another model."""
    before = recorded.get("model")
    if model.where != where and before is not None and model.value != str(before).lower():
        raise OptionError(
            f"{model.where}: model {short(model.value)} differs from the recorded {short(before)}; leave out --model, or "
            "start a new run"
        )
    values = {name: value for name, value in recorded.items() if name in known.options and value is not None}
    given = {name: GivenValue(known.options[name].convert(value, where), where) for name, value in values.items()}
    return OptionSource(RECORDED, given)


def _is_number(token: str) -> bool:
    """Return whether an argument, such as -1e3, is a number and not a flag."""
    try:
        float(token)
    except ValueError:
        return False
    return True
