"""Parse poprun's command line, and read and write the YAML files that store poprun's options."""

from __future__ import annotations

import argparse
import ipaddress
import re
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import yaml

from cnn_harness.base import plugins, version
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.process import command_line
from cnn_harness.harness.options import configs

MAX_INSTANCES = 1024  # The limit exists because the environment of every instance contains all addresses.
DASHED = ("mpi_global_args", "mpi_local_args")
# poprun accepts these options of IPUs and V-IPU servers, but ignores them.
WITHOUT_EFFECT = (
    "num-ilds", "vipu-server-host", "vipu-server-port", "vipu-server-timeout", "vipu-partition", "vipu-cluster",
    "vipu-allocation", "update-partition", "reset-partition", "remove-partition", "executable-cache-path", "sync-type",
    "host-subnet", "process-placement", "offline-mode",
)  # fmt: skip


class _Parser(command_line.HelpParser):
    """A parser that raises OptionError for invalid arguments."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of poprun's command line."""
    count = command_line.int_between(1, 99_999)
    parser = _Parser(
        "poprun", "%(prog)s [option]... PROGRAM [argument]...", allow_abbrev=False,
        description="Start a program as several instances (processes) that train together.",
        epilog=f"Accepted, but ignored without IPUs: {', '.join(f'--{name}' for name in WITHOUT_EFFECT)}.",
    )  # fmt: skip
    add = parser.add_argument
    add("-H", "--host", type=_hosts, default=(), help="hosts to run on, separated by commas (default: this host)")
    add("--num-replicas", type=count, default=1, help="total number of replicas of all instances")
    add("-n", "--num-instances", type=command_line.int_between(1, MAX_INSTANCES), default=1,
        help="number of instances; the replicas are divided evenly among the instances")  # fmt: skip
    add("--ipus-per-replica", type=count, default=1, help="number of IPUs per replica; must equal the program's --shards")
    add("--numa-aware", type=_switch, default=True, help="bind instances to NUMA nodes if the host has several")
    add("--only-output-from-instance", type=command_line.int_between(0), help="show only this instance's standard output")
    add("--mpi-global-args", type=_words, default=(), help="additional arguments of mpirun")
    add("--mpi-local-args", type=_words, default=(), help="additional arguments of mpirun for each instance, e.g. -x NAME")
    add("--print-topology", type=_switch, default=False, help="print the address and the replicas of each instance")
    add(
        "--first-port",
        type=command_line.int_between(1, 65_535),
        help="instance k listens on this port + k (default: free ports)",
    )
    add("--max-restarts", type=command_line.int_between(0, 99_999), default=0,
        help="number of times to restart all instances after one is lost; train.py needs --autoresume")  # fmt: skip
    add("--export-config", help="write the options to this YAML file")
    add("--import-config", help="read options from this YAML file; options on the command line override the file")
    add("--overwrite-config", type=_switch, default=False, help="allow --export-config to replace a file")
    add("--dry-run", action="store_true", help="print the command that would start the instances, and exit")
    add("-v", "-vv", "--verbose", "--vv", action="store_true", help="print the command that starts the instances")
    add("--version", action="version", version=version.line(), help="print the version")
    for name in WITHOUT_EFFECT:
        add(f"--{name}", help=argparse.SUPPRESS)
    add("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def flags() -> set[str]:
    """Return all option strings."""
    return {flag for action in parser()._actions for flag in action.option_strings}


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the options, including the options of --import-config. Their `program` is the program to start and its
    arguments."""
    args = _parse(argv)
    if not args.import_config:
        return args
    imported = _imported(args.import_config)
    try:
        _parse(imported)
    except OptionError as error:
        raise OptionError(f"--import-config {args.import_config}: {error}") from None
    return _parse([*imported, *argv])


def _parse(argv: list[str]) -> argparse.Namespace:
    words = _joined(argv)
    # The values of these two options begin with a dash. argparse mistakes such values for options unless they follow a "=".
    for flag in ("--mpi-global-args", "--mpi-local-args"):
        if flag in words[:-1]:
            at = words.index(flag)
            words[at : at + 2] = [f"{flag}={words[at + 1]}"]
    args, unknown = parser().parse_known_args(words)
    if unknown:
        flag = unknown[0].partition("=")[0]
        raise OptionError(f"unknown option {short(flag)}{plugins.did_you_mean(flag, sorted(flags()), 0.3)}")
    args.program = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.program and args.program[0].endswith(".py") and shutil.which(args.program[0]) is None:
        args.program = [sys.executable, *args.program]
    return args


def _joined(argv: list[str]) -> list[str]:
    """Join an option whose name is split by a blank, as `--ipus-per replica=1` in a published command, and say so.

    The words of the program are unchanged.
    """
    words, known = list(argv), flags()
    program = next((k for k, word in enumerate(words) if word.endswith(".py") or shutil.which(word)), len(words))
    for at in reversed(range(program - 1)):
        joined = f"{words[at]}-{words[at + 1]}"
        if joined.partition("=")[0] in known and "=" not in words[at] and words[at] not in known:
            print(f"poprun: {words[at]} {words[at + 1]} is read as {joined}", file=sys.stderr)
            words[at : at + 2] = [joined]
    return words


def _imported(path: str) -> list[str]:
    """Return the options in a YAML file as command-line arguments."""
    try:
        content = configs.ConfigFile(path).values()
    except OptionError as error:
        raise OptionError(f"--import-config {str(error).removeprefix('configuration file ')}") from None
    return [
        f"--{name.replace('_', '-')}={' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in (content or {}).items()
    ]


def exported(args: argparse.Namespace) -> str:
    """Return the content of the file that --export-config writes. Raise OptionError if the file exists and
    --overwrite-config is not given."""
    if Path(args.export_config).exists() and not args.overwrite_config:
        raise OptionError(
            f"--export-config {args.export_config}: the file exists. To replace it, give --overwrite-config yes"
        )
    settings = {}
    for action in parser()._actions:
        name, value = action.dest, getattr(args, action.dest, action.default)
        if action.nargs is None and value != action.default and not name.endswith("_config"):
            joined = shlex.join if name in DASHED else ",".join
            settings[name.replace("_", "-")] = joined(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(settings)


def _switch(text: str) -> bool:
    values = {"yes": True, "1": True, "true": True, "on": True, "no": False, "0": False, "false": False, "off": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{short(text)} is not yes or no")
    return values[text.lower()]


def _words(text: str) -> tuple[str, ...]:
    """Split a string of arguments for mpirun. Prefix long options with two dashes, because OpenMPI 5 requires two."""
    try:
        words = shlex.split(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)} has a quotation mark that is not closed") from None
    older = re.compile("-(bind-to|map-by|rank-by|np|host|hostfile|tag-output|report-bindings)")
    return tuple(f"-{word}" if older.fullmatch(word) else word for word in words)


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(_host(part.strip()) for part in text.split(","))


def _host(name: str) -> str:
    """Return a host name, or an IPv6 address in brackets."""
    if re.fullmatch(r"[A-Za-z0-9._-]+", name):
        return name
    with suppress(ValueError):
        return f"[{ipaddress.IPv6Address(name.removeprefix('[').removesuffix(']'))}]"
    raise argparse.ArgumentTypeError(f"{short(name)} is not a host name or IPv6 address; separate hosts by commas")
