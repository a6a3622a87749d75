"""Print the facts of the systems that the planner knows, or of your own in a YAML file.

cnn systems
cnn systems POD16 A100-8
cnn systems my-servers.yml
cnn systems --measure computer.yml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import opt
from cnn_harness.base.process import commands
from cnn_harness.emulator.cost_model.systems import SOURCES, SYSTEMS, System
from cnn_harness.harness.commands import answers
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.reports import output
from cnn_harness.tools.planning import system_file

GB, MIB = 10**9, 2**20


@dataclass(frozen=True, kw_only=True)
class SystemsOptions(answers.OwnOptions):
    """The options of cnn systems."""

    measure: str | None = opt(
        None, "measure for a minute how fast this computer trains, and write it to FILE as a system for cnn plan",
        metavar="FILE",
    )  # fmt: skip


def main(call: Call) -> int:
    """Print a table of all systems, or the facts of each system that is named. Or measure this computer."""
    words = {"NAME|FILE...": "names of systems, or YAML files (default: all systems)"}
    usage = "cnn systems [NAME|FILE...] [options]"
    given, named, _ = answers.own_options(SystemsOptions, call, usage, __doc__, words)
    if given.measure:
        if named:
            raise OptionError(f"--measure measures this computer; leave out {named[0]}")
        _measure(given.measure)
        return 0
    systems = system_file.chosen(named, "")
    print("\n\n".join(map(facts, systems)) if systems else table(list(SYSTEMS.values())))
    return 0


def _measure(file: str) -> None:
    """Measure this computer, print the errors of the planner, and write the system."""
    from cnn_harness.tools.planning import this_computer  # late, because a table needs no other modules

    output.check(file, (f"{this_computer.NAME}:",))
    errors, text = this_computer.measure()
    output.write_atomically(file, text, (f"{this_computer.NAME}:",))
    print(errors)
    print(commands.as_invoked(f"Plan for this computer with: cnn plan --system {file}"))


def table(rows: Sequence[System]) -> str:
    """Return a table with a line for each system."""
    lines = [f"{'system':14s} {'chips':>5s} {'chip':10s} {'memory':>8s} {'FP16 TFLOP/s':>12s} {'FP32':>6s} "
             f"{'memory TB/s':>11s} {'link GB/s':>9s} {'watts':>6s}"]  # fmt: skip
    for row in rows:
        device = row.device
        lines.append(
            f"{row.name:14s} {row.devices:5d} {device.name:10s} {device.memory / GB:5.2f} GB {device.peak / 1e12:12.1f} "
            f"{_single_rate(row) / 1e12:6.1f} {_total(row, device.bandwidth) / 1e12:11.2f} {device.link / GB:9.0f} "
            f"{'' if row.watts is None else f'{row.watts:6.0f}'}".rstrip()
        )
    return "\n".join(
        [*lines, "", "All numbers are of one chip. For the other facts and their sources, run cnn systems NAME."]
    )


def facts(row: System) -> str:
    """Return the facts of a system, one in each line."""
    device = row.device
    known: list[tuple[str, str]] = [
        ("chips", f"{row.devices} {device.name} {device.kind}s, {row.machine} in a machine, {row.pod} connected by links"),
        ("memory", f"{device.memory / MIB:,.0f} MiB"),
        ("FP16 matrix rate", f"{device.peak / 1e12:.1f} TFLOP/s"),
        ("FP32 matrix rate", f"{_single_rate(row) / 1e12:.1f} TFLOP/s"),
        ("memory bandwidth", f"{_total(row, device.bandwidth) / 1e12:.2f} TB/s"),
    ]
    if device.tiled:
        known += [
            ("tiles", f"{device.tiles:,} with {device.threads} threads and {device.tile_memory / 1024:.0f} KiB each"),
            ("clock", f"{device.clock / 1e9:.2f} GHz"),
            ("exchange", f"{_total(row, device.exchange) / 1e12:.1f} TB/s between tiles"),
        ]
    elif device.vector_macs:
        known.append(("vector rate", f"{2 * device.vector_macs * device.clock / 1e12:.1f} TFLOP/s"))
    known += [
        ("links of a chip", f"{device.link / GB:.0f} GB/s, both directions together"),
        ("between machines", f"{row.machine_link / GB:.1f} GB/s; {row.gateway_link / GB:.1f} GB/s through gateways"),
        ("from the host", f"{row.host_link / GB:.1f} GB/s to a chip; {row.processes} processes prepare images"),
        ("host or DRAM", f"{row.dram / GB:.1f} GB/s for a machine's offloaded state"),
        ("power", "unknown" if row.watts is None else f"{row.watts:.1f} W for a chip and its share of the machine"),
        ("price", "unknown" if row.price is None else f"{row.price:g} an hour for the system"),
        ("source", row.source),
        *((f"[{letter}]", text) for letter, text in SOURCES.items() if f"[{letter}]" in row.source),
    ]
    return "\n".join([row.name, *(f"  {name:18s}{text}" for name, text in known)])


def _single_rate(row: System) -> float:
    return 2 * row.device.tiles * row.device.single_macs * row.device.clock


def _total(row: System, per_cycle: float) -> float:
    """Return the bytes per second of a chip for a number of bytes per cycle and tile."""
    return per_cycle * row.device.tiles * row.device.clock


if __name__ == "__main__":
    sys.exit(answers.run_command("systems", main, None))
