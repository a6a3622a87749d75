"""poprun --max-restarts: when an instance is lost, all are started again, and resume from the run's newest whole checkpoint.

Whatever ends the instances counts as a loss, but an exit code of 0, one of 2 (wrong input, which stays wrong), and a signal
that told poprun itself to end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from base.errors import OptionError
from base.process import orphans
from base.storage import locks
from base.storage.tables import run_table
from harness.checkpoints import find
from harness.checkpoints.checkpoint import CheckpointError
from harness.processes.launch import LOCAL, ExitStatus, Topology
from harness.processes.launched_program import LaunchedProgram

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds before a restart: doubled until a run has saved something new
_WRONG_INPUT = 2


@dataclass(frozen=True)
class Restarts:
    """The start of a program, again at most `max_restarts` times. `lay_out`: the places of a number of instances on hosts;
    `start`: runs them to their end; `host_is_reachable`: whether a host can be reached."""

    max_restarts: int
    instances: int
    min_instances: int
    hosts: tuple[str, ...]
    program: LaunchedProgram
    lay_out: Callable[[int, Sequence[str]], Topology]
    start: Callable[[Topology], ExitStatus]
    host_is_reachable: Callable[[str], bool]

    def run(self, topology: Topology) -> int:
        """Start, and start again; the last exit code."""
        ending, wait, saved = self.start(topology), _FIRST_WAIT, self._saved()
        for restart in range(1, self.max_restarts + 1):
            if ending.code in (0, _WRONG_INPUT) or ending.by_signal:
                return ending.code
            self._wait_for_the_lock()
            wait, saved = (_FIRST_WAIT if self._saved() != saved else wait), self._saved()
            _say(f"{ending.first_failure}; restart {restart} of {self.max_restarts} in {wait:g} s, {self._resumes()}")
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
            try:
                topology = self._place()
            except OptionError as error:
                _say(f"restart {restart} of {self.max_restarts} is not possible: {error}")
                continue
            if topology.instances != self.instances:
                hosts = ", ".join(dict.fromkeys(topology.hosts))
                _say(f"{topology.instances} instances instead of {self.instances}, on {hosts}")
            ending = self.start(topology)
        if self.max_restarts and ending.code not in (0, _WRONG_INPUT) and not ending.by_signal:
            _say(f"{ending.first_failure}; --max-restarts {self.max_restarts} are over, and the same call goes on")
        return ending.code

    def _place(self) -> Topology:
        """The places of as many instances as the hosts that answer may have; OptionError if they are too few."""
        there = [host for host in self.hosts if host in LOCAL or self.host_is_reachable(host)]
        if len(there) == len(self.hosts):
            return self.lay_out(self.instances, self.hosts)
        each = -(-self.instances // len(self.hosts))  # on a host at most, as at first
        for instances in range(min(self.instances, each * len(there)), self.min_instances - 1, -1):
            with suppress(OptionError):  # the replicas cannot be divided among these
                return self.lay_out(instances, there[:instances])
        silent = ", ".join(host for host in self.hosts if host not in there)
        raise OptionError(
            f"{silent} cannot be reached, and {', '.join(there) or 'no host'} can; --min-instances is {self.min_instances}, "
            "and the replicas must be divisible by the instances"
        )

    def _saved(self) -> int:
        """The updates of the newest checkpoint; -1 if there is none."""
        folder = self.program.run_folder
        with suppress(CheckpointError):  # of a folder that may not be read, which the program tells of
            return find.numbered(folder)[-1].updates if folder and find.numbered(folder) else -1
        return -1

    def _resumes(self) -> str:
        """Return from where the next start resumes, and what is done again."""
        folder, saved = self.program.run_folder, self._saved()
        if folder is None:
            return "with the same call"
        logged = 0
        with suppress(OSError, ValueError, LookupError):
            logged = int(run_table(folder, "training.csv").read()[-1]["iteration"])
        again = f": updates {max(saved, 0) + 1} to {logged} at least are done again" if logged > max(saved, 0) else ""
        return (f"from ckpt-{saved}" if saved >= 0 else "from the beginning") + again

    def _wait_for_the_lock(self) -> None:
        """Wait for an instance that mpirun has left behind: it saves, and ends by itself or by force."""
        folder, end = self.program.run_folder, time.monotonic() + 1.1 * orphans.GRACE
        while folder and locks.is_locked(folder) and time.monotonic() < end:
            time.sleep(0.1)


def _say(text: str) -> None:
    print(f"poprun: {text}", file=sys.stderr, flush=True)
