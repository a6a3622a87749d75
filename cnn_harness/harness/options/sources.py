"""Read the values that a call gives: on the command line, in a configuration and in the record of an earlier run.

`harness/run/option_values.py` decides which source wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.harness.options.call import DEFAULT_CONFIG_PATH, Call, check_assignments, full_flag, unknown_flag
from cnn_harness.harness.options.catalogue import Catalogue, Option, Spelling, all_options, format_value
from cnn_harness.harness.options.sections import COMMAND_LINE, CONFIGURATION, RECORDED, flag

if TYPE_CHECKING:
    from cnn_harness.harness.options.configs import Block

# Configurations must not have these options: they are read before the configuration, or apply to one call.
COMMAND_LINE_ONLY = (
    "config", "config_path", "restore_path", "autoresume", "predict", "output", "help", "version", "list_configs",
)  # fmt: skip


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


def from_call(known: Catalogue, call: Call) -> OptionSource:
    """Return the values of a call. Raise OptionError for an unknown or ambiguous flag."""
    flags, found = known.flags(), []
    if call.bare:
        check_assignments(call.bare, flags)
        raise OptionError(f"{COMMAND_LINE}: '{short(call.bare[0])}' is not an option; options begin with --")
    for written, arguments in call.given:
        full = full_flag(written, flags)
        if full is None:
            raise OptionError(f"{COMMAND_LINE}: {unknown_flag(written, flags)}")
        found.append((full, arguments))
    given = ((full, flags[full], _raw_value(flags, each, full), f"{COMMAND_LINE}: {full}") for full, each in found)
    return _layer(known, COMMAND_LINE, given)


def _raw_value(flags: Mapping[str, Spelling], arguments: Sequence[str], written: str) -> Any:
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


def chosen_config(call: Call) -> Block | None:
    """Return the configuration of --config, or None."""
    name, path = call.argument("config"), call.argument("config_path")
    if name is None and path is None:
        return None
    from cnn_harness.harness.options import configs  # late, because it imports yaml

    path = str(DEFAULT_CONFIG_PATH) if path is None else path
    if name is None:
        names = configs.ConfigFile(path).available()
        raise OptionError(f"--config-path {path} needs --config with a name in the file", names)
    return configs.choose(path, name, call.argument("release"))


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
