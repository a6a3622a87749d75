"""Convert the values of one call, layer by layer: the arguments of the command line and the keys of a configuration.

`harness/commands/option_values.py` decides which layer wins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from base import plugins
from base.errors import OptionError
from base.fields import short
from harness.options.catalogue import Catalogue, Option, Spelling, all_options, format_value, plugins_with, shared_options
from harness.options.other_names import OTHER_NAMES
from harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, flag

if TYPE_CHECKING:
    from harness.options.configs import Block

# not in configurations: read before the configuration, or valid for one call
COMMAND_LINE_ONLY = (
    "config", "config_path", "restore_path", "autoresume", "predict", "output", "help", "version", "list_configs",
)  # fmt: skip
DEFAULT_CONFIG_PATH = plugins.ROOT / "configs.yml"


@dataclass(frozen=True)
class GivenValue:
    """A value of one layer and its place."""

    value: Any
    where: str  # "command line: --batch-size" or "configs.yml:12"
    spelling: str = ""  # batch_size


@dataclass(frozen=True)
class OptionSource:
    """The values of one layer by option."""

    source: str  # short name for --explain
    values: Mapping[str, GivenValue]
    notes: tuple[str, ...] = ()  # about older spellings and unused keys


def given_arguments(argv: list[str], script: str) -> dict[str, list[str]]:
    """Return the arguments of the last flag of each option, before the model and its options are known.

    A switch that is off does not count as given.
    """
    everything, found = all_options(script).flags(), {}
    # --lr is short for --lr-schedule unless the chosen schedule has a --lr-... of its own
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
    """Return the last value of one option on the command line, before the others are known."""
    return (given_arguments(argv, script).get(name) or [None])[0]


def tokens(argv: list[str], flags: Mapping[str, Spelling], lenient: bool = False) -> list[tuple[str, list[str]]]:
    """Split argv into (full flag, arguments). Prefixes are completed, and negative numbers are arguments.

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


def full_flag(written: str, flags: Mapping[str, Spelling]) -> str | None:
    """Return the full flag for a flag or its prefix.

    None if there is none or several, or if the word has another meaning in other tools.
    """
    matches = [written] if written in flags else _beginning_with(written, flags)
    elsewhere = OTHER_NAMES.get(written[2:], "")
    if elsewhere and written not in flags and not any(flag in elsewhere for flag in matches):
        return None
    return matches[0] if len({(flags[flag].option.name, flag.startswith("--no-")) for flag in matches}) == 1 else None


def _beginning_with(written: str, flags: Collection[str]) -> list[str]:
    return [flag for flag in flags if flag.startswith(written)] if written.startswith("--") and len(written) > 2 else []


def unknown_flag(written: str, flags: Collection[str]) -> str:
    """Return the error message for an unknown or ambiguous flag: its owner, or the nearest flags."""
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
        (written, flags[written], _raw_value(flags[written], arguments, written), f"{COMMAND_LINE}: {written}")
        for written, arguments in tokens(argv, flags)
    )
    return _layer(known, COMMAND_LINE, given)


def _raw_value(spelling: Spelling, arguments: list[str], written: str) -> Any:
    """Return the arguments of a flag as one raw value. OptionError for a wrong number of them."""
    takes, where = spelling.takes, f"{COMMAND_LINE}: {written}"
    if not arguments:
        if takes in ("several", "one"):
            raise OptionError(f"{where} needs {'a value' if takes == 'one' else 'at least one value'}")
        return True
    if takes == "several":
        return arguments
    switched = spelling.option.base is bool and arguments[0].lower() in ("true", "false")
    if len(arguments) > 1 or (takes == "nothing" and not switched):
        allowed = "no value" if takes == "nothing" else "one value"
        raise OptionError(f"{where} takes {allowed}, not {short(' '.join(arguments))}")
    return arguments[0]


def _layer(
    known: Catalogue, source: str, given: Iterable[tuple[str, Spelling, Any, str]], notes: Iterable[str] = ()
) -> OptionSource:
    """Return the layer of what is `given`: the word as written, its spelling, its raw value and its place.

    The last value of a spelling wins. Two spellings of an option must agree.
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
    """Return the value of an option with several spellings. Spellings that are factors of the value may differ."""
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
    if "config" not in main:
        return None
    from harness.options import configs  # late, because it imports yaml

    path = main["config_path"].value if "config_path" in main else str(DEFAULT_CONFIG_PATH)
    return configs.choose(path, main["config"].value, main["release"].value if "release" in main else None)


def from_config(known: Catalogue, block: Block) -> OptionSource:
    """Return the values of a configuration, and notes on keys of other models. OptionError for unknown keys."""
    notes, unused, given = list(block.notes), [], []
    for key, entry in block.entries.items():
        where, plain = entry.where.replace(str(DEFAULT_CONFIG_PATH), "configs.yml"), key.replace("-", "_")
        if plain in COMMAND_LINE_ONLY:
            raise OptionError(f"{where}: {block.name}: {key} is allowed on the command line only")
        if plain == "profile" and entry.value in known.options["gc_profile"].meta["choices"]:
            plain = "gc_profile"  # the key of releases without --profile
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
    """Return the recorded values of an earlier run. OptionError if this call gives another model."""
    before = recorded.get("model")
    if model.where != where and before is not None and model.value != str(before).lower():
        raise OptionError(
            f"{model.where}: model {short(model.value)} differs from the recorded {short(before)}; leave it out, or start a "
            "new run"
        )
    values = {name: value for name, value in recorded.items() if name in known.options and value is not None}
    given = {name: GivenValue(known.options[name].convert(value, where), where) for name, value in values.items()}
    return OptionSource(RECORDED, given)


def _is_number(token: str) -> bool:
    """Return whether an argument that begins with a dash looks like a number. The option checks it."""
    try:
        float(token)
    except ValueError:
        return False
    return True
