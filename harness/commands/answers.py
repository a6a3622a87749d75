"""The entry of every script of runs: parse options, answer questions about them, and report errors in one line.

Few modules are imported here, so that help and rejected options take no time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from base import version
from base.errors import Answered, Failure, WrongInput
from base.process import command_line, commands
from harness.commands import cli
from harness.commands.cli import Parsed
from harness.options import bare_word, option_help, sources

_QUESTIONS = ("help", "version", "list_configs")
_RECORDED = ("restore_path", "autoresume", "init_path")  # these also read recorded options


def run_command(script: str, main: Callable[[list[str]], int], argv: list[str] | None) -> int:
    """Run main(argv) and return its exit code. Print expected errors as one line on standard error."""
    row = commands.COMMANDS.get(commands.command_name(script) or "")
    call = row.call if row else f"{script}.py"

    def with_option(words: list[str]) -> int:
        return main(bare_word.as_option(words, script))

    return command_line.run(call.removeprefix("python "), with_option, argv, (WrongInput,), (FloatingPointError, Failure))


def answer_early(script: str) -> None:
    """Answer a question of this call or reject its options, and exit; return if it asks for a run."""
    try:
        argv = bare_word.as_option(sys.argv[1:], script)
        given = sources.given_arguments(argv, script).keys()
        if not given.isdisjoint(_RECORDED) or (script == "restore" and given.isdisjoint(_QUESTIONS)):
            return
        if given.isdisjoint((*_QUESTIONS, "explain")):
            cli.parse(argv, script)
            return
    except WrongInput:
        pass  # it is raised again and reported below
    sys.exit(run_command(script, lambda words: int(bool(parse(words, script))), None))


def asks(argv: list[str], script: str) -> bool:
    """Return whether the call asks for help, the version or the configurations."""
    return not sources.given_arguments(argv, script).keys().isdisjoint(_QUESTIONS)


def parse(argv: list[str], script: str, recorded: Mapping[str, Any] | None = None, folder: Path | None = None) -> Parsed:
    """Return the options; Answered if the call only asked a question.

    `folder`: the run directory or weights file of the `recorded` options.
    """
    answer_general(argv, script)
    record = None
    if folder:
        from harness.checkpoints import run_record

        record = run_record.arguments_file(folder)
    parsed = cli.parse(argv, script, recorded, record=record)
    if parsed.options.main.help:
        answer(option_help.help_text(parsed.catalogue, parsed.options.main, script))
    if parsed.options.main.explain:
        from emulator.plan.precision import Precision

        precision = Precision.of(parsed.options.device, parsed.options.training.offload_fp32_weight_copy)
        answer(cli.explain(parsed.options), "Number formats:", *precision.table())
    return parsed


def answer_general(argv: list[str], script: str) -> None:
    """Print the version or the configurations and raise Answered, if the call asks for them."""
    given = sources.given_arguments(argv, script)
    if "version" in given:
        answer(version.line())
    if "list_configs" in given:
        from harness.options import configs

        path = given.get("config_path") or [str(sources.DEFAULT_CONFIG_PATH)]
        answer(configs.listing(path[-1], (given["list_configs"] or [configs.ALL])[-1]))


def answer(*lines: str) -> NoReturn:
    """Print the answer to a question, and raise Answered."""
    print_answer(*lines)
    raise Answered


def print_answer(*lines: str) -> None:
    """Print the answer to a question, in one of the instances that poprun started."""
    from harness.cluster import membership

    if not membership.under_poprun(os.environ) or membership.answers_for_all(os.environ):
        print(*lines, sep="\n")
