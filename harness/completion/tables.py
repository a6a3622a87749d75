"""The options of every command as a shell needs them: spelled how, followed by what."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

from base import plugins
from base.process import commands
from Datasets.sources.catalogue import table
from emulator.cost_model.systems import SYSTEMS
from harness.checkpoints import npz_weights
from harness.export.file_formats import FORMATS
from harness.options import sources
from harness.options.catalogue import Option
from harness.processes import poprun_options

NOTHING, ONE, OPTIONAL, SEVERAL = "nothing", "one", "optional", "several"  # values that a flag takes
PATHS, CONFIGS = "paths", "configs"  # values that are looked up when they are wanted
SHELLS = ("bash", "zsh", "fish")
_NAMED_PATHS = ("path", "dir", "predict", "output", "profile")  # ends of the names of options of runs
_METAVARS = ("FILE", "DIR", "RUN", "PREFIX", "FOLDER")  # of parsers, for paths
_COUNTS = {None: ONE, "?": OPTIONAL, "+": SEVERAL, "*": SEVERAL}  # of argparse


@dataclass(frozen=True, kw_only=True)
class Flag:
    """An option as it is written, such as --model-size, and its values: words, and a `kind` of what is looked up."""

    help: str
    takes: str = NOTHING
    words: tuple[str, ...] = ()
    kind: str = ""


class _Found(BaseException):
    """Carries a command's parser out of the command, past whatever that catches."""


def of(name: str) -> dict[str, Flag]:
    """The flags of a command by their spelling, its own before those of runs."""
    row = commands.COMMANDS[name]
    if name == "poprun":
        return _of_poprun()
    if name == "completion":
        return {}
    own_options = _of_runs(row.takes) if row.takes else {}
    return own_options if row.module == row.takes else {**own_options, **_of_parser(row.module)}


def first(name: str) -> Flag:
    """The words that a command takes without a flag, as one without a spelling."""
    if name == "completion":
        return Flag(help="", takes=SEVERAL, words=SHELLS)
    weights = tuple(npz_weights.BUNDLED) if name in ("predict", "export") else ()
    return Flag(help="", takes=SEVERAL, words=weights, kind=PATHS)


@cache
def _of_runs(script: str) -> Mapping[str, Flag]:
    """The options of runs that a script has, with every model and schedule."""
    words_by_option = {}
    for option in sources.every_option(script):
        flag = _flag(option)
        words_by_option |= dict.fromkeys((option.flag, *option.meta["flags"]), flag)
        if option.base is bool and option.default is True:
            words_by_option[f"--no-{option.flag[2:]}"] = Flag(help=f"without {option.flag}")
    return _completed(words_by_option)


def _flag(option: Option) -> Flag:
    takes = SEVERAL if option.several else OPTIONAL if option.meta["bare"] else NOTHING if option.base is bool else ONE
    choices = tuple(map(str, option.meta["choices"]))
    kind = PATHS if option.base is str and not choices and option.name.endswith(_NAMED_PATHS) else ""
    return Flag(help=option.meta["help"], takes=takes, words=choices, kind=kind)


def _of_parser(module: str) -> dict[str, Flag]:
    """The options of the parser that a command begins with."""
    parse = argparse.ArgumentParser.parse_known_args

    def found(parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        raise _Found(parser)

    argparse.ArgumentParser.parse_known_args = found
    try:
        importlib.import_module(module).main(["--help"])
    except _Found as carrier:
        actions = carrier.args[0]._actions
    else:
        raise LookupError(f"{module} has no parser")
    finally:
        argparse.ArgumentParser.parse_known_args = parse
    return _completed({flag: _of_action(each) for each in actions for flag in each.option_strings})


def _of_action(action: argparse.Action) -> Flag:
    takes = NOTHING if action.nargs == 0 else _COUNTS.get(action.nargs, ONE)
    kind = PATHS if action.type is Path or action.metavar in _METAVARS else ""
    text = (action.help or "") % {"default": action.default} if action.help and "%(" in action.help else action.help
    return Flag(help=text or "", takes=takes, words=tuple(map(str, action.choices or ())), kind=kind)


def _of_poprun() -> dict[str, Flag]:
    rows = {f"--{name}": row for name, row in poprun_options.OPTIONS.items()}
    return {flag: Flag(help=row.help, takes=ONE if row.read else NOTHING) for flag, row in rows.items()}


def _completed(flags: Mapping[str, Flag]) -> dict[str, Flag]:
    """Flags, with the values that tables beside the options know."""
    known = _values()
    return {
        spelling: Flag(help=flag.help, takes=flag.takes, words=known[spelling][0], kind=known[spelling][1])
        if spelling in known
        else flag
        for spelling, flag in flags.items()
    }


@cache
def _values() -> Mapping[str, tuple[tuple[str, ...], str]]:
    """The words and the kind of values of options that are text to their parsers."""
    models = [plugins.load("Models", name) for name in plugins.names("Models")]
    sizes = {str(size) for model in models for family in model.DEFAULTS for size in model.sizes(family)}
    return {
        "--config": ((), CONFIGS),
        "--list-configs": ((), ""),
        "--model": (tuple(plugins.names("Models")), ""),
        "--lr-schedule": (tuple(plugins.names("LR_Schedules")), ""),
        "--model-size": (tuple(sorted(sizes)), ""),
        "--dataset": (tuple(sorted(table("DATASETS"))), ""),
        "--restore-path": (tuple(npz_weights.BUNDLED), PATHS),
        "--init-path": (tuple(npz_weights.BUNDLED), PATHS),
        "--system": (tuple(SYSTEMS), ""),
        "--to": (tuple(FORMATS), ""),
    }
