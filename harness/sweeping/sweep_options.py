"""The options of sweep.py: which sweep, where to, how many trials at once, by which measure; and those of train.py that all
trials share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from base.errors import OptionError
from base.process import command_line
from emulator.plan import machine
from harness.options import sources
from harness.sweeping import block
from harness.sweeping.results import ALIASES, METRICS, Metric

FOLDER = "logs/sweep"
_OWN = ("--logs-path", "--jobs", "--metric", "--dry-run")


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The call. `name`: None for the only sweep of the file; `words`: options of train.py, by the option's name."""

    file: str
    name: str | None
    logs_path: Path
    jobs: int
    metric: Metric
    dry_run: bool
    words: Mapping[str, tuple[str, ...]]


def parse(argv: list[str], description: str) -> SweepRequest:
    """The request; prints and ends for --help and --version. OptionError for options that a sweep cannot have."""
    first = next((k for k, word in enumerate(argv) if word.startswith("-")), len(argv))
    places, rest = argv[:first], [_hyphens(word) for word in argv[first:]]
    parser = _parser(description)
    given, others = parser.parse_known_args(rest)
    if not 1 <= len(places) <= 2 or not places[0]:
        raise OptionError("give a file of sweeps first, and the name of one if it has several: python sweep.py sweep.yml")
    if given.jobs > machine.cores():
        raise OptionError(f"--jobs {given.jobs}: each trial has cores of its own, and there are {machine.cores()} here")
    return SweepRequest(
        file=places[0], name=places[1] if len(places) > 1 else None, logs_path=Path(given.logs_path), jobs=given.jobs,
        metric=METRICS[ALIASES.get(given.metric, given.metric)], dry_run=given.dry_run, words=_shared(others),
    )  # fmt: skip


def _hyphens(word: str) -> str:
    """An option of sweep.py that is spelled with underscores, as train.py's may be, with hyphens."""
    written, equals, value = word.partition("=")
    flag = written.replace("_", "-")
    return flag + equals + value if flag in _OWN else word


def _shared(given: list[str]) -> dict[str, tuple[str, ...]]:
    flags, words = sources.all_options("train").flags(), {}
    for flag, values in sources.tokens(given, flags):
        name = flags[flag].option.name
        block.check_own(name, f"command line: {flag}")
        words[name] = (*words.get(name, ()), flag, *values)
    return words


def _parser(description: str) -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="sweep.py", usage="sweep.py FILE [NAME] [options]", description=description, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Every other option of train.py may be given besides (train.py --help): all trials share it, and it wins\n"
        "over the file.",
    )  # fmt: skip
    add = parser.add_argument
    add("--logs-path", metavar="DIR", default=FOLDER, help=f"of the sweeps, a folder for each ({FOLDER})")
    add("--jobs", type=command_line.int_between(1), metavar="N", default=1,
        help="trials at once, each on its share of the cores (1)")  # fmt: skip
    add("--metric", choices=(*METRICS, *ALIASES), default=next(iter(METRICS)),
        help=f"the measure of the best trial ({next(iter(METRICS))}; loss: validation-loss)")  # fmt: skip
    add("--dry-run", action="store_true", help="check and list the trials, then stop")
    return parser
