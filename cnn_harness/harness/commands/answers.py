"""Start train.py and similar scripts: parse the options, answer --help and similar questions, and report errors in one line.

This module imports little, so --help and errors about options appear at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from cnn_harness.base import version
from cnn_harness.base.errors import Answered, Failure, OptionError, WrongInput
from cnn_harness.base.fields import opt, short
from cnn_harness.base.process import command_line, commands
from cnn_harness.emulator.plan.options import FASTEST
from cnn_harness.harness.options.call import DEFAULT_CONFIG_PATH, Call, Parsed
from cnn_harness.harness.options.catalogue import Catalogue, section_options
from cnn_harness.harness.options.sections import RunOptions
from cnn_harness.harness.options.sources import from_call
from cnn_harness.harness.run import cli
from cnn_harness.harness.run.data import NoDataSet

_QUESTIONS = ("help", "version", "list_configs")
_RECORDED = ("restore_path", "autoresume", "init_path")  # options whose answer needs recorded options


def run_command(script: str, main: Callable[[Call], int], argv: list[str] | Call | None) -> int:
    """Run main(call); return the exit code.

    Print expected errors as one line on standard error. `argv` is None for the words of this process.
    """
    row = commands.COMMANDS.get(commands.command_name(script) or "")
    prog = (row.call if row else f"{script}.py").removeprefix("python ")
    call = argv if isinstance(argv, Call) else None

    def called(words: list[str]) -> int:
        takes = row.takes if row else ""
        made = call or Call.of_words(words, takes)
        return main(made.with_option() if takes == script else made)

    return command_line.run(prog, called, None if call else argv, (WrongInput,), (FloatingPointError, Failure))


def answer_early(script: str) -> Call:
    """Return the call of this process. Answer --help and similar questions, or reject the options, and exit."""
    call = None
    try:
        call = Call.of_words(sys.argv[1:], script).with_option()
        if any(name in call for name in _RECORDED) or (script == "restore" and not asks(call)):
            return call
        if not asks(call) and "explain" not in call:
            return replace(call, parsed=resolve(call))
    except WrongInput:
        pass  # `parse` raises the error again, and `run_command` reports it
    sys.exit(run_command(script, lambda call: int(bool(parse(call))), call))


def asks(call: Call) -> bool:
    """Return whether the call asks for help, the version or the configurations."""
    return any(name in call for name in _QUESTIONS)


def resolve(
    call: Call, recorded: Mapping[str, Any] | None = None, record: Path | None = None, dataset: str | None = None
) -> Parsed:
    """Return the options of one call, as `cli.resolve` does. Weights of --init-path bring the options of their network."""
    try:
        return cli.resolve(call, recorded, record=record, dataset=dataset, network_of=_recorded_network)
    except NoDataSet:
        if call.script in ("train", "restore"):
            raise
    from cnn_harness.harness.commands import run_list

    raise OptionError(
        f"no run given; give a run directory, as in {call.script}.py logs/<run>, or --dataset fashion-mnist to measure "
        "random weights",
        run_list.listed(),
    )


def _recorded_network(weights: Path) -> Mapping[str, Any]:
    from cnn_harness.harness.checkpoints import find, run_record

    with suppress(WrongInput, OSError):  # reading the weights reports the error later
        return run_record.options(find.run_folder(weights))
    return {}


def parse(call: Call, recorded: Mapping[str, Any] | None = None, folder: Path | None = None) -> Parsed:
    """Return the options of a call. If it only asks a question, print the answer and raise Answered.

    `folder` is the run directory or the weights file with the `recorded` options.
    """
    answer_general(call)
    record = None
    if folder:
        from cnn_harness.harness.checkpoints import run_record

        record = run_record.arguments_file(folder)
    parsed = (not recorded and call.parsed) or resolve(call, recorded, record)
    if parsed.options.main.help:
        from cnn_harness.harness.options import option_help

        answer(option_help.help_text(parsed.catalogue, parsed.options, call.script))
    if parsed.options.main.explain:
        answer(cli.explain(parsed.options), "Number formats:", *_formats(parsed.options))
    return parsed


def _formats(options: RunOptions) -> list[str]:
    """Return the lines of a table of number formats. --precision auto has none, because it depends on the network."""
    if options.device.precision == FASTEST:
        return [f"--precision {FASTEST} chooses 32.32 or bf16.32; --dry-run prints the choice"]
    from cnn_harness.emulator.plan.precision import Precision

    return Precision.of(options.device, options.training.offload_fp32_weight_copy).table()


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    """The options of every command that has options of its own. A subclass adds its options with `opt`."""

    help: bool = opt(False, "show this help and exit", flags=("-h",))
    version: bool = opt(False, "print the versions and stop")


Own = TypeVar("Own", bound=OwnOptions)


def own_options(
    cls: type[Own], call: Call, usage: str, description: str, words: Mapping[str, str] = MappingProxyType({}),
    more: str = "",
) -> tuple[Own, tuple[str, ...], Call]:  # fmt: skip
    """Return the options that only a command has, its words without a flag, and the call with the options of a script.

    If the call has --help, --version or --list-configs, print the answer and raise Answered. The other arguments are parts
    of the help: `words` describes the words, and `more` the options of the script.
    """
    known = Catalogue([*section_options("own", cls)])
    mine, bare, others = call.parted(known)
    own = cls(**{name: given.value for name, given in from_call(known, mine).values.items()})
    if own.help or "help" in others:  # --hel is found, too
        from cnn_harness.harness.options import option_help

        answer(option_help.own_help(cls, usage, description, words, more))
    if own.version:
        answer(version.line())
    answer_general(others)
    extra = () if call.script or any(name.endswith("...") for name in words) else bare[len(words) :]
    if extra:
        raise OptionError(f"unexpected argument {short(extra[0])}")
    return own, bare, others


def answer_general(call: Call) -> None:
    """If the call has --version or --list-configs, print the answer and raise Answered."""
    if "version" in call:
        answer(version.line())
    if "list_configs" in call:
        from cnn_harness.harness.options import configs

        path = call.arguments("config_path") or [str(DEFAULT_CONFIG_PATH)]
        answer(configs.listing(path[-1], (call.arguments("list_configs") or [configs.ALL])[-1]))


def answer(*lines: str) -> NoReturn:
    """Print the lines, and raise Answered."""
    print_answer(*lines)
    raise Answered


def print_answer(*lines: str) -> None:
    """Print the lines; if poprun started several processes, only one of them prints."""
    from cnn_harness.harness.run import membership

    if not membership.under_poprun(os.environ) or membership.answers_for_all(os.environ):
        print(*lines, sep="\n")
