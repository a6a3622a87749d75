"""The options of poprun: how they are read, from the command line and from files, and their help."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from base import plugins
from base.errors import OptionError
from base.fields import short
from harness.options import configs


def _switch(text: str) -> bool:
    switches = {"yes": True, "1": True, "true": True, "on": True, "no": False, "0": False, "false": False, "off": False}
    if text.lower() not in switches:
        raise ValueError("yes or no")
    return switches[text.lower()]


def _whole(least: int, kind: str = "a whole number", most: int = 99_999) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,5}", text) or not least <= int(text) <= most:
            raise ValueError(f"{kind} from {least} to {most}")
        return int(text)

    return read


_count = _whole(1)
_port = _whole(1, "a port", 65_535)


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:
        raise ValueError("words with their quotes closed") from None


def _hosts(text: str) -> tuple[str, ...]:
    return tuple(_host(part.strip()) for part in text.split(","))


def _host(name: str) -> str:
    """Return a host's name, or its IPv6 address in the brackets that a port can stand behind."""
    if re.fullmatch(r"[A-Za-z0-9._-]+", name):
        return name
    with suppress(ValueError):
        return f"[{ipaddress.IPv6Address(name.removeprefix('[').removesuffix(']'))}]"
    slots = re.fullmatch(r"[A-Za-z0-9._-]+:[0-9]+", name)
    more = "; the instances are divided evenly among the hosts, without slots" if slots else ""
    raise ValueError(f"host names or IPv6 addresses, separated by commas{more}")


@dataclass(frozen=True)
class PoprunOption:
    """An option: how its text is read (None: it takes none), and its help; `idle`: it means nothing without IPUs."""

    read: Callable[[str], Any] | None
    default: Any
    help: str
    idle: bool = False


OPTIONS: Mapping[str, PoprunOption] = {
    "host": PoprunOption(_hosts, (), "hosts to start on, separated by commas (-H); default: this one"),
    "num-replicas": PoprunOption(_count, 1, "replicas of all instances together"),
    "num-instances": PoprunOption(_count, 1, "processes; the replicas are divided evenly among them"),
    "ipus-per-replica": PoprunOption(_count, 1, "IPUs of a replica: the program's --shards"),
    "numa-aware": PoprunOption(_switch, True, "bind instances to NUMA nodes, where there are several"),
    "only-output-from-instance": PoprunOption(
        _whole(0, "the number of an instance,"), None, "show the standard output of this instance only"
    ),
    "mpi-global-args": PoprunOption(_words, (), "further arguments of mpirun"),
    "mpi-local-args": PoprunOption(_words, (), "arguments of mpirun for each instance, as -x NAME"),
    "print-topology": PoprunOption(_switch, False, "print where every instance is, and its replicas"),
    "first-port": PoprunOption(_port, None, "instance k listens on this port + k; default: free ports"),
    "max-restarts": PoprunOption(
        _whole(0), 0, "start all again so often when one is lost; the program goes on with its run"
    ),
    "min-instances": PoprunOption(_count, None, "at a restart, fewer where hosts do not answer; default: --num-instances"),
    "export-config": PoprunOption(str, None, "write these options to a YAML file"),
    "import-config": PoprunOption(str, None, "read options from a YAML file; the command line goes before it"),
    "overwrite-config": PoprunOption(_switch, False, "--export-config may replace a file"),
    "dry-run": PoprunOption(None, False, "print the command that would start the instances, and stop"),
    "verbose": PoprunOption(None, False, "print the command (-v, -vv, --vv)"),
    "version": PoprunOption(None, False, "print the version"),
    "help": PoprunOption(None, False, "print this help (-h)"),
    "num-ilds": PoprunOption(_count, 1, "link domains", idle=True),
    "vipu-server-host": PoprunOption(str, "localhost", "V-IPU server", idle=True),
    "vipu-server-port": PoprunOption(_port, 8090, "its port", idle=True),
    "vipu-server-timeout": PoprunOption(_count, 120, "seconds to wait for it", idle=True),
    "vipu-partition": PoprunOption(str, None, "partition", idle=True),
    "vipu-cluster": PoprunOption(str, None, "cluster", idle=True),
    "vipu-allocation": PoprunOption(str, None, "allocation", idle=True),
    "update-partition": PoprunOption(_switch, False, "change the partition", idle=True),
    "reset-partition": PoprunOption(_switch, False, "reset the partition", idle=True),
    "remove-partition": PoprunOption(_switch, True, "remove the partition at the end", idle=True),
    "executable-cache-path": PoprunOption(str, None, "folder of compiled programs", idle=True),
    "sync-type": PoprunOption(str, None, "how IPUs wait for each other", idle=True),
    "host-subnet": PoprunOption(str, None, "network between the hosts and the V-IPU server", idle=True),
    "process-placement": PoprunOption(str, None, "NUMA nodes nearest to the IPUs", idle=True),
    "offline-mode": PoprunOption(_switch, False, "compile without IPUs", idle=True),
}
SHORT = {"-H": "--host", "-v": "--verbose", "-vv": "--verbose", "--vv": "--verbose", "-h": "--help", "-n": "--num-instances"}
DASHED = ("mpi-global-args", "mpi-local-args")  # whose values may begin with a dash


def parse(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The options given, by name, and the program with its arguments: everything from the first word on that is none."""
    given: dict[str, Any] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "--":
        written, equals, text = words.pop(0).partition("=")
        name = SHORT.get(written, written)[2:]
        option = OPTIONS.get(name)
        if option is None:
            raise OptionError(
                f"unknown option {short(written)}{plugins.did_you_mean(written, [f'--{n}' for n in OPTIONS], 0.3)}"
            )
        if option.read is None:
            if equals:
                raise OptionError(f"--{name} takes no value, but was given {short(text)}")
            given[name] = True
            continue
        if not equals:
            negative = words and re.fullmatch(r"-[0-9.]+", words[0])
            if not words or (words[0].startswith("-") and name not in DASHED and not negative):
                raise OptionError(f"--{name} needs a value: {_kind(option)}")
            text = words.pop(0)
        given[name] = _read(name, option, text)
    return given, words[1:] if words[:1] == ["--"] else words


def _read(name: str, option: PoprunOption, text: str) -> Any:
    if not text:
        raise OptionError(f"--{name} needs a value: {_kind(option)}")
    try:
        return option.read(text)
    except ValueError as error:
        raise OptionError(f"--{name} is '{short(text)}' but must be {error}") from None


def _kind(option: PoprunOption) -> str:
    """Return the form that a value must have, in words."""
    try:
        option.read("?'")
    except ValueError as error:
        return str(error)
    return "a word"


def imported(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of --import-config."""
    path = given.get("import-config")
    if not path:
        return {}
    try:
        content = configs.ConfigFile(path).values()
    except OptionError as error:
        raise OptionError(f"--import-config {str(error).removeprefix('configuration file ')}") from None
    if not content:
        raise OptionError(f"--import-config {path}: it must hold options by name, as in num-instances: 2")
    options = {}
    for key, value in content.items():
        name = key.replace("_", "-")
        option = OPTIONS.get(name)
        if option is None or option.read is None:
            raise OptionError(
                f"--import-config {path}: unknown option {short(key)}{plugins.did_you_mean(name, list(OPTIONS))}"
            )
        if value is None:
            raise OptionError(f"--import-config {path}: {key} must have one value, not {value}")
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        text = ("no", "yes")[value] if isinstance(value, bool) else text
        options[name] = _read(name, option, str(text))
    return options


def exported(path: str, given: Mapping[str, Any], overwrite: bool) -> str:
    """Return the content of --export-config's file with the options given; OptionError for what may not be replaced."""
    if Path(path).exists() and not (overwrite and Path(path).is_file()):
        remedy = "the file exists; --overwrite-config yes replaces it" if Path(path).is_file() else "it is no file"
        raise OptionError(f"--export-config {path}: {remedy}")
    settings = {k: v for k, v in given.items() if OPTIONS[k].read and not k.endswith("-config")}
    written = {
        name: (",".join if name == "host" else shlex.join)(v) if isinstance(v, tuple) else v for name, v in settings.items()
    }
    return yaml.safe_dump(written)


def help_text(introduction: str) -> str:
    """Every option, those without effect last."""
    lines = ["usage: poprun [option]... PROGRAM [argument]...", "", introduction, ""]
    for idle in (False, True):
        lines += ["", "accepted, but without effect where there are no IPUs:"] if idle else []
        for name, option in OPTIONS.items():
            if option.idle == idle:
                lines.append(f"  --{name:<28}{option.help}" + _default(option))
    return "\n".join(lines) + "\n"


def _default(option: PoprunOption) -> str:
    if option.default in (None, (), "") or option.read is None:
        return ""
    shown = ("no", "yes")[option.default] if isinstance(option.default, bool) else option.default
    return f" [{shown}]"
