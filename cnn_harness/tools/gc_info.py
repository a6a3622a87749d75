"""List the emulated devices and their ids for --select-ipu: gc-info -l."""

from __future__ import annotations

if __name__ == "__main__":  # before the slow imports
    from cnn_harness.base.process import early_exit

    early_exit.install("gc-info")

import argparse
import os
import sys

from cnn_harness.base.process import command_line
from cnn_harness.emulator.plan import ipu_ids
from cnn_harness.emulator.plan.machine import this_machine


def main(argv: list[str] | None = None) -> int:
    """Print the list and return the exit code."""
    parser = argparse.ArgumentParser(prog="gc-info", description="List the emulated IPUs.")
    parser.add_argument("-l", "--list-devices", action="store_true", help="list the ids of all devices (the default)")
    parser.add_argument(
        "--ipus", type=command_line.int_between(1, 1 << 16), default=ipu_ids.SMALLEST_SYSTEM, metavar="N",
        help="list the devices of a system with at least N IPUs [%(default)s]",
    )  # fmt: skip
    wanted = parser.parse_args(argv).ipus
    machine = this_machine()
    size = ipu_ids.system_size(wanted)
    graphics = f" and {machine.gpus} GPU{'s' if machine.gpus > 1 else ''}" if machine.gpus else ""
    lines = [f"{size} emulated IPUs; the arithmetic runs on {machine.cores} CPU cores{graphics}"]
    lines += [f"-+- Id: [{device.id}], target: [emulated], {device.named}" for device in ipu_ids.devices(size)]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise the interpreter prints an error at exit
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
