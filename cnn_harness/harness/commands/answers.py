"""Start train.py and similar scripts: parse the options, answer --help and similar questions, and report errors in one line.

This module imports little, so --help and errors about options appear at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from cnn_harness.base import version
from cnn_harness.base.errors import Answered, Failure, WrongInput
from cnn_harness.base.process import command_line, commands
from cnn_harness.emulator.plan.options import FASTEST
from cnn_harness.harness.commands import cli
from cnn_harness.harness.commands.cli import Parsed
from cnn_harness.harness.options import bare_word, option_help, sources
from cnn_harness.harness.options.sections import RunOptions

_QUESTIONS = ("help", "version", "list_configs")
_RECORDED = ("restore_path", "autoresume", "init_path")  # options whose answer needs recorded options


def run_command(script: str, main: Callable[[list[str]], int], argv: list[str] | None) -> int:
    """Run main(argv) and return its exit code. Print expected errors as one line on standard error."""
    row = commands.COMMANDS.get(commands.command_name(script) or "")
    call = row.call if row else f"{script}.py"

    def with_option(words: list[str]) -> int:
        return main(bare_word.as_option(words, script))

    return command_line.run(call.removeprefix("python "), with_option, argv, (WrongInput,), (FloatingPointError, Failure))


def answer_early(script: str) -> None:
    """Answer --help and similar questions, or reject the options, and exit. Return if the call starts a run."""
    try:
        argv = bare_word.as_option(sys.argv[1:], script)
        given = sources.given_arguments(argv, script).keys()
        if not given.isdisjoint(_RECORDED) or (script == "restore" and given.isdisjoint(_QUESTIONS)):
            return
        if given.isdisjoint((*_QUESTIONS, "explain")):
            cli.parse(argv, script)
            return
    except WrongInput:
        pass  # `parse` raises the error again, and `run_command` reports it
    sys.exit(run_command(script, lambda words: int(bool(parse(words, script))), None))


def asks(argv: list[str], script: str) -> bool:
    """Return whether the call asks for help, the version or the configurations."""
    return not sources.given_arguments(argv, script).keys().isdisjoint(_QUESTIONS)


def parse(argv: list[str], script: str, recorded: Mapping[str, Any] | None = None, folder: Path | None = None) -> Parsed:
    """Return the options of a call. If it only asks a question, print the answer and raise Answered.

    `folder` is the run directory or the weights file with the `recorded` options.
    """
    answer_general(argv, script)
    record = None
    if folder:
        from cnn_harness.harness.checkpoints import run_record

        record = run_record.arguments_file(folder)
    parsed = cli.parse(argv, script, recorded, record=record)
    if parsed.options.main.help:
        answer(option_help.help_text(parsed.catalogue, parsed.options, script))
    if parsed.options.main.explain:
        answer(cli.explain(parsed.options), "Number formats:", *_formats(parsed.options))
    return parsed


def _formats(options: RunOptions) -> list[str]:
    """Return the lines of a table of number formats. --precision auto has none, because it depends on the network."""
    if options.device.precision == FASTEST:
        return [f"--precision {FASTEST} chooses 32.32 or bf16.32; --dry-run prints the choice"]
    from cnn_harness.emulator.plan.precision import Precision

    return Precision.of(options.device, options.training.offload_fp32_weight_copy).table()


def answer_general(argv: list[str], script: str) -> None:
    """If the call has --version or --list-configs, print the answer and raise Answered."""
    given = sources.given_arguments(argv, script)
    if "version" in given:
        answer(version.line())
    if "list_configs" in given:
        from cnn_harness.harness.options import configs

        path = given.get("config_path") or [str(sources.DEFAULT_CONFIG_PATH)]
        answer(configs.listing(path[-1], (given["list_configs"] or [configs.ALL])[-1]))


def answer(*lines: str) -> NoReturn:
    """Print the lines, and raise Answered."""
    print_answer(*lines)
    raise Answered


def print_answer(*lines: str) -> None:
    """Print the lines; if poprun started several processes, only one of them prints."""
    from cnn_harness.harness.cluster import membership

    if not membership.under_poprun(os.environ) or membership.answers_for_all(os.environ):
        print(*lines, sep="\n")
