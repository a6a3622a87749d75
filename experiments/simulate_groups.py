"""Simulate how groups of 16 to 1,024 training processes (instances) spend their time if hosts fail or are slow.

python -m experiments.simulate_groups                       ResNet-50, 10 Gbit/s; each host fails every 24 days
python -m experiments.simulate_groups --mtbf-hours 24 --gigabits 1 --wire-bytes 2

All times are assumed; nothing is measured. Times between failures of a host are exponentially distributed and independent.
In every update, each instance is slow with a fixed probability. Among n instances, a ring all-reduce sends 2 (n - 1) / n
times the bytes of the gradients, and takes 2 (n - 1) steps of half a round trip for each bucket of gradients.
"""

from __future__ import annotations

if __name__ == "__main__":  # run this before the slow imports below
    from cnn_harness.base.process import early_exit

    early_exit.install("simulate_groups")

import argparse
import itertools
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.harness.distributed import checkpoint_interval
from cnn_harness.harness.reports import chart, output
from cnn_harness.harness.reports.chart import Box, Rows

INSTANCES = (16, 64, 256, 1024)
_UPDATES = 500  # simulated updates for the mean wait for the slowest instance
_FAILURES = 2000  # failures in a simulated training
_CAUSES = ("arithmetic", "all-reduce", "waiting for slow instances", "checkpoints, repeated updates, restarts")
_COLOURS = (chart.GREEN, chart.BLUE, chart.SAND, chart.ORANGE)


@dataclass(frozen=True)
class Group:
    """Properties of a group of instances. Each instance has its own host. Times are in seconds."""

    parameters: float = 25.6e6
    arithmetic: float = 4.0  # for one update, without waiting for others
    gigabits: float = 10.0  # bandwidth in Gbit/s
    wire_bytes: int = 4  # bytes of one gradient on the network
    round_trip: float = 2e-4
    bucket_bytes: float = 10 * 2**20
    slow_probability: float = 1e-3  # for each instance in each update
    slow_factor: float = 1.5
    mtbf_hours: float = 24 * 24.0  # mean hours between two failures of a host
    saving: float = 0.4  # training pauses this long for a checkpoint
    restarting: float = 60.0  # time from a failure to the next update

    def all_reduce(self, instances: int) -> float:
        """Return the seconds of an all-reduce. Arithmetic does not overlap with the all-reduce."""
        data = self.wire_bytes * self.parameters
        buckets = -(-data // self.bucket_bytes)
        moved = 2 * (instances - 1) / instances * data / (self.gigabits * 1e9 / 8)
        return moved + buckets * 2 * (instances - 1) * self.round_trip / 2

    def slowest(self, instances: int, rng: random.Random) -> float:
        """Return the mean seconds that an update waits for its slowest instance."""
        waits = sum(
            any(rng.random() < self.slow_probability for _ in range(instances)) * (self.slow_factor - 1) * self.arithmetic
            for _ in range(_UPDATES)
        )
        return waits / _UPDATES

    def interval(self, instances: int, minutes: float | None) -> float:
        """Return the seconds between checkpoints. If `minutes` is None, choose them as --safety-ckpt-minutes auto does."""
        best = checkpoint_interval.best_interval(self.saving, 3600 * self.mtbf_hours / instances)
        return best if minutes is None else 60 * minutes


@dataclass(frozen=True)
class Outcome:
    """The time shares of a group. `shares` has one share for each of _CAUSES."""

    instances: int
    interval: float  # seconds between two checkpoints
    shares: tuple[float, ...]


def simulated(group: Group, instances: int, minutes: float | None, seed: int = 1) -> Outcome:
    """Simulate a training with many failures, and return how it spends its time."""
    rng = random.Random(seed)
    update = (group.arithmetic, group.all_reduce(instances), group.slowest(instances, rng))
    interval, between = group.interval(instances, minutes), 3600 * group.mtbf_hours / instances
    if between < group.restarting / 5:  # almost no restart succeeds
        return Outcome(instances, interval, (*(0.0 for _ in update), 1.0))
    time = trained = 0.0
    for _ in range(_FAILURES):
        lived = rng.expovariate(1 / between)
        trained += interval * (lived // (interval + group.saving))
        time += lived
        while (lived := rng.expovariate(1 / between)) < group.restarting:  # another failure during the restart
            time += lived
        time += group.restarting
    useful = trained / time
    return Outcome(instances, interval, (*(useful * part / sum(update) for part in update), 1 - useful))


def outcomes(group: Group) -> list[tuple[str, Outcome]]:
    """Return a description of the checkpoint interval, and the outcome, for each number of instances and each interval."""
    choices = (("auto", None), ("10 minutes", 10.0), ("an hour", 60.0))
    return [(name, simulated(group, count, minutes)) for count in INSTANCES for name, minutes in choices]


def table(rows: Sequence[tuple[str, Outcome]]) -> str:
    """Return the outcomes as a Markdown table."""
    lines = [f"| instances | checkpoints | {' | '.join(_CAUSES)} |", f"| --- | --- |{' --- |' * len(_CAUSES)}"]
    for name, outcome in rows:
        every = f"auto: {outcome.interval / 60:.1f} minutes" if name == "auto" else name
        shares = " | ".join(f"{100 * share:.1f} %" for share in outcome.shares)
        lines.append(f"| {outcome.instances:,} | {every} | {shares} |")
    return "\n".join(lines)


def svg(rows: Sequence[tuple[str, Outcome]]) -> str:
    """Return the outcomes as a chart of stacked bars."""
    names, marks = [], []
    for k, (name, outcome) in enumerate(rows):
        every = f"auto, {outcome.interval / 60:.1f} minutes" if name == "auto" else name
        names.append(f"{outcome.instances:,} instances; checkpoints: {every}")
        ends = [0.0, *itertools.accumulate(outcome.shares)]
        marks += [Box(*ends[j : j + 2], colour, k, cause) for j, (colour, cause) in enumerate(zip(_COLOURS, _CAUSES))]
    return chart.figure([Rows("", names, marks, tick=None, height=16)], "How large worker groups spend their time")


def main(argv: list[str]) -> int:
    """Simulate, print the table and write the chart; return the exit code."""
    parser = command_line.Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = Group()
    for flag, field, least, most, help in (
        ("--parameters", "parameters", 1, 1e13, "number of trainable parameters"),
        ("--seconds", "arithmetic", 1e-3, 1e5, "seconds of arithmetic per update"),
        ("--gigabits", "gigabits", 1e-3, 1e5, "network bandwidth of an instance in Gbit/s"),
        ("--mtbf-hours", "mtbf_hours", 0.01, 1e7, "mean hours between failures of a host"),
        ("--saving", "saving", 0, 1e5, "seconds that training pauses for a checkpoint"),
        ("--restarting", "restarting", 0, 1e5, "seconds from a failure to the next update"),
        ("--slow", "slow_probability", 0, 1, "probability that an instance is slow in an update"),
        ("--slow-factor", "slow_factor", 1, 1e3, "time of a slow instance divided by the time of the others"),
    ):
        value, read = getattr(usual, field), command_line.number(least, most)
        parser.add_argument(flag, type=read, default=value, dest=field, help=f"{help} (default: {value:g})")
    parser.add_argument("--wire-bytes", type=command_line.int_between(2, 4), choices=(2, 4), default=4,
                        help="bytes of one gradient on the network (default: 4)")  # fmt: skip
    parser.add_argument("--output", metavar="FILE.svg", help="write the chart to this file")
    asked = vars(parser.parse_args(argv))
    target = asked.pop("output")
    if target:
        output.check(target, output.SVG)
    rows = outcomes(Group(**asked))
    print(table(rows))
    if target:
        output.write_atomically(target, svg(rows), output.SVG)
        print(f"\nChart: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(command_line.run("simulate_groups", main, None, (OptionError,)))
