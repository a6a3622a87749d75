"""poprun --max-restarts: when an instance is lost, all are started again, and go on from the run's newest whole checkpoint.

Whatever ends the instances counts as a loss, but an exit code of 0, one of 2 (wrong input, which stays wrong), and a signal
that told poprun itself to end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from base.errors import OptionError
from base.process import commands, orphans
from base.storage import locks
from base.storage.run_tables import run_table
from harness.checkpoints import find
from harness.checkpoints.checkpoint import CheckpointError
from harness.options import sources
from harness.processes.launch import LOCAL, Ending, Topology

_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0  # seconds before a restart: doubled until a run has saved something new
_WRONG_INPUT = 2
_SCRIPTS = {"train.py": "train", "restore.py": "restore", "validation.py": "validation"}
_FOLDERS = {"train": "logs_path", "restore": "restore_path"}  # the option that names the run's folder


@dataclass(frozen=True)
class Program:
    """The program of the instances: `script`, "" for one of the user's own, and its arguments."""

    script: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: Sequence[str]) -> Program:
        """The program of a command such as `python train.py --config NAME` or `cnn train --config NAME`."""
        for k, word in enumerate(words):
            name, following = Path(word).name, words[k + 1] if k + 1 < len(words) else ""
            if name in _SCRIPTS:
                return cls(_SCRIPTS[name], tuple(words[k + 1 :]))
            if name in ("cnn", commands.PACKAGE) and following in commands.COMMANDS:
                module = commands.COMMANDS[following].module
                return cls(module if module in _SCRIPTS.values() else "", tuple(words[k + 2 :]))
        return cls("")

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run that is trained."""
        option = _FOLDERS.get(self.script)
        given = sources.value_of(list(self.arguments), option, self.script) if option else None
        return Path(given) if given else None

    def check_goes_on(self) -> None:
        """OptionError for a training that would begin anew when it is called again."""
        if self.script == "train" and not sources.is_given(list(self.arguments), "autoresume", "train"):
            raise OptionError(
                "--max-restarts makes the same call again, which has to go on with its run: give train.py --autoresume and "
                "--logs-path, or start restore.py"
            )


@dataclass(frozen=True)
class Restarts:
    """The start of a program, again at most `most` times. `lay_out`: the places of so many instances on some hosts; `start`:
    runs them to their end; `answers`: whether a host can be reached."""

    most: int
    instances: int
    least: int  # instances
    hosts: tuple[str, ...]
    program: Program
    lay_out: Callable[[int, Sequence[str]], Topology]
    start: Callable[[Topology], Ending]
    answers: Callable[[str], bool]

    def run(self, where: Topology) -> int:
        """Start, and start again; the last exit code."""
        ending, wait, saved = self.start(where), _FIRST_WAIT, self._saved()
        for restart in range(1, self.most + 1):
            if ending.code in (0, _WRONG_INPUT) or ending.told:
                return ending.code
            self._wait_for_the_lock()
            wait, saved = (_FIRST_WAIT if self._saved() != saved else wait), self._saved()
            _say(f"{ending.first}; restart {restart} of {self.most} in {wait:g} s, {self._goes_on()}")
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
            try:
                where = self._place()
            except OptionError as error:
                _say(f"restart {restart} of {self.most} is not possible: {error}")
                continue
            if where.instances != self.instances:
                _say(f"{where.instances} instances instead of {self.instances}, on {', '.join(dict.fromkeys(where.hosts))}")
            ending = self.start(where)
        if self.most and ending.code not in (0, _WRONG_INPUT) and not ending.told:
            _say(f"{ending.first}; --max-restarts {self.most} are over, and the same call goes on")
        return ending.code

    def _place(self) -> Topology:
        """The places of as many instances as the hosts that answer may have; OptionError if they are too few."""
        there = [host for host in self.hosts if host in LOCAL or self.answers(host)]
        if len(there) == len(self.hosts):
            return self.lay_out(self.instances, self.hosts)
        each = -(-self.instances // len(self.hosts))  # on a host at most, as at first
        for instances in range(min(self.instances, each * len(there)), self.least - 1, -1):
            with suppress(OptionError):  # the replicas cannot be divided among so many
                return self.lay_out(instances, there[:instances])
        silent = ", ".join(host for host in self.hosts if host not in there)
        raise OptionError(
            f"{silent} cannot be reached, and {', '.join(there) or 'no host'} can; --min-instances is {self.least}, and the "
            "replicas must be divisible by the instances"
        )

    def _saved(self) -> int:
        """The updates of the newest checkpoint; -1 if there is none."""
        folder = self.program.run_folder
        with suppress(CheckpointError):  # of a folder that may not be read, which the program tells of
            return find.numbered(folder)[-1].updates if folder and find.numbered(folder) else -1
        return -1

    def _goes_on(self) -> str:
        """Where the next start goes on, and what is done again."""
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
        while folder and locks.is_held(folder) and time.monotonic() < end:
            time.sleep(0.1)


def _say(text: str) -> None:
    print(f"poprun: {text}", file=sys.stderr, flush=True)
