"""Start the instances (processes) of a program for poprun: with mpirun, or directly if all run on this host."""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import commands, orphans
from cnn_harness.base.process.signals import URGENT
from cnn_harness.harness.distributed import job_token
from cnn_harness.harness.run import membership

LOCAL = ("localhost", "127.0.0.1", "[::1]")
_NODES = Path("/sys/devices/system/node")
_WITHOUT_OUTPUT = ("sh", "-c", 'exec "$@" > /dev/null', "sh")
# mpirun passes these environment variables to every instance.
_PASSED = (
    "PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OPAL_PREFIX", "DATA_DIR", "DATASETS_DIR", "TF_POPLAR_FLAGS",
    "POPLAR_ENGINE_OPTIONS", "POPLAR_TARGET_OPTIONS", "POPLAR_RUNTIME_OPTIONS", "POPLAR_LOG_LEVEL", "POPRUN_LOG_LEVEL",
    "TF_CPP_MIN_LOG_LEVEL", "TF_CPP_VMODULE", "CUDA_VISIBLE_DEVICES", "GCL_REAL_COLLECTIVES", "GCL_NUM_IO_TILES",
    job_token.VARIABLE,
)  # fmt: skip
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_GRACE = 5.0  # After a failure, the other instances have this many seconds to end, and as many again after SIGTERM.
# If an instance of these programs is lost, its other instances save and end by themselves.
_WATCHING = ("train", "restore", "validation")
# After a failure, OpenMPI 4 kills the other instances within a second, before they can save. Make it wait longer.
_KILL_LATE = {"OMPI_MCA_odls_base_sigkill_timeout": f"{_GRACE:.0f}"}
# OpenMPI 5 has no such timeout, so tell it not to kill the other instances. Then mpirun returns 0 even if a signal killed an
# instance, so _REPORT finds that failure in mpirun's error output.
_KILL_NONE = {"PRTE_MCA_state_base_recoverable": "1", "PRTE_MCA_errmgr_base_verbose": "1"}
_REPORT = re.compile(rb"\[[\w.:-]+\] \[prterun-[^]\r\n]+\] errmgr:\w+: for proc \[[^]\r\n]*,(\d+)\] state ([^\n]*)\n")
# mpirun of OpenMPI 5 prints this message if it lost a host, and returns 0.
_LOST_HOST = b"has lost communication with a remote daemon"
# These variables of OpenMPI 4 and 5 set the directory for mpirun's temporary files. Each call gets a separate directory,
# because a killed mpirun leaves files that break a later mpirun with the same process id.
_SESSION_BASES = ("OMPI_MCA_orte_local_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base")


@dataclass(frozen=True)
class Topology:
    """The placement of the instances: `hosts` and `ports` contain the host and the listening port of every instance."""

    replicas: int  # The total number of replicas of all instances.
    ipus_per_replica: int
    hosts: tuple[str, ...]
    ports: tuple[int, ...]

    @property
    def instances(self) -> int:
        """Number of instances."""
        return len(self.hosts)

    @property
    def local(self) -> bool:
        """True if all instances are on this host."""
        return all(host in LOCAL for host in self.hosts)

    @property
    def addresses(self) -> list[str]:
        """The host:port of every instance's server."""
        return [f"{host}:{port}" for host, port in zip(self.hosts, self.ports)]

    def variables(self, instance: int, only_output_from: int | None = None) -> dict[str, str]:
        """Return the environment variables that poprun sets in an instance. If `only_output_from` is an instance's index,
        only the output of that instance is shown."""
        replicas = self.replicas // self.instances
        host = self.hosts[instance]
        return {
            membership.TOTAL: str(self.replicas),
            membership.LOCAL: str(replicas),
            membership.UNIFORM: "1",
            membership.OFFSET: str(instance * replicas),
            membership.IPUS: str(self.ipus_per_replica),
            membership.PLACE: str(self.hosts[:instance].count(host)),
            membership.ADDRESSES: ",".join(self.addresses),
            **({membership.SHOWN: "1"} if instance and instance == only_output_from else {}),
        }

    def table(self) -> str:
        """Return a table with a line for each instance."""
        each = self.replicas // self.instances
        lines = [f"{'instance':>8}  {'address':<24} {'replicas':>8}  IPUs"]
        for k, address in enumerate(self.addresses):
            first, count = k * each * self.ipus_per_replica, each * self.ipus_per_replica
            lines.append(f"{k:>8}  {address:<24} {each:>8}  {first} to {first + count - 1}")
        return "\n".join(lines)


class Ending(NamedTuple):
    """The exit code of the instances, or of a command, and the reason for it."""

    code: int  # The first exit code other than 0, or 128 + n if signal n ended a process.
    by_signal: bool = False  # True if this process received a signal.
    reason: str = ""  # The process that failed first, and how it failed.


def layout(replicas: int, instances: int, ipus_per_replica: int, hosts: Sequence[str], first_port: int | None) -> Topology:
    """Return a topology in which each host runs consecutive instances, and no host runs two more than another.

    Raise OptionError if the numbers do not fit together.
    """
    if replicas % instances:
        nearest = sorted((n for n in range(1, replicas + 1) if replicas % n == 0), key=lambda n: abs(n - instances))[:2]
        raise OptionError(
            f"--num-replicas {replicas} is not divisible by --num-instances {instances}. Give --num-replicas "
            f"{-(-replicas // instances) * instances}, or --num-instances {' or '.join(map(str, sorted(nearest)))}"
        )
    names = list(dict.fromkeys(hosts)) or [LOCAL[0]]
    if len(names) > instances:
        raise OptionError(
            f"--host names {len(names)} hosts, but --num-instances is {instances}. Each host needs at least one instance"
        )
    each, more = divmod(instances, len(names))
    placed = tuple(name for k, name in enumerate(names) for _ in range(each + (k < more)))
    ports = free_ports(instances) if first_port is None else tuple(range(first_port, first_port + instances))
    if ports[-1] > 65535:
        raise OptionError(f"--first-port {first_port} is too high: {instances} instances need ports up to {ports[-1]}")
    return Topology(replicas, ipus_per_replica, placed, ports)


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports that are free on this host now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:  # All sockets stay bound until the end, so that every port is different.
            probe.bind(("", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def mpi_command(mpirun: str, topology: Topology, args: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """Return the mpirun command that starts all instances, each with its own environment variables. `args` is the result of
    `poprun_options.parse`."""
    command = [mpirun, *["--allow-run-as-root"] * (os.geteuid() == 0)]
    if not any("bind-to" in word for word in (*args.mpi_global_args, *args.mpi_local_args)):
        bound = args.numa_aware and topology.instances > 1 and len(list(_NODES.glob("node[0-9]*"))) > 1
        command += ["--bind-to", "numa" if bound else "none"]
    command += ["--oversubscribe", *args.mpi_global_args]
    passed = [word for name in _PASSED if name in environ for word in ("-x", name)]
    shown = args.only_output_from_instance
    for k, host in enumerate(topology.hosts):
        variables = [word for name, value in topology.variables(k, shown).items() for word in ("-x", f"{name}={value}")]
        placed = [] if topology.local else ["--host", host]
        command += [*[":"] * (k > 0), "--np", "1", *placed, *variables, *passed, *args.mpi_local_args]
        command += [*_WITHOUT_OUTPUT * (shown not in (None, k)), *args.program]
    return command


def run_mpirun(command: Sequence[str]) -> Ending:
    """Run an mpirun command until it ends, and forward signals to the instances."""
    settings = {**_KILL_LATE, **(_KILL_NONE if _watch_each_other(command) else {})}
    with tempfile.TemporaryDirectory(prefix=".poprun-mpirun-") as session:
        if not any("tmpdir_base" in word for word in (*command, *os.environ)):
            settings |= dict.fromkeys(_SESSION_BASES, session)
        return run(command, {**settings, **os.environ}, through_mpirun=True)


def _watch_each_other(command: Sequence[str]) -> bool:
    """Return whether a command runs a program whose instances end by themselves after one of them is lost."""
    names = [Path(word).name for word in command]
    called = (commands.COMMANDS.get(name) for before, name in pairwise(names) if before in ("cnn", commands.PACKAGE))
    return any(f"{module}.py" in names for module in _WATCHING) or any(each and each.module in _WATCHING for each in called)


def run(command: Sequence[str], environ: Mapping[str, str], through_mpirun: bool = False) -> Ending:
    """Run a command until it ends, and forward signals to it. If the command is mpirun, forward signals to its instances."""
    with _Children(through_mpirun) as children:
        children.start(command, environ, Path(command[0]).name)
        return children.wait()


def run_directly(topology: Topology, program: Sequence[str], only_output_from: int | None = None) -> Ending:
    """Run all instances on this host, without MPI. If an instance fails, end the other instances."""
    with _Children() as children:
        for k in range(topology.instances):
            variables = {**os.environ, **topology.variables(k, only_output_from), orphans.MARK: "1"}
            hidden = subprocess.DEVNULL if only_output_from not in (None, k) else None
            children.start(program, variables, f"instance {k}", hidden)
        return children.wait()


class _Children:
    """Child processes, used in a `with` statement.

    Signals that would end this process are forwarded to the child processes. If this process is killed, the kernel sends a
    signal to every child. Every child has a separate session. Otherwise a terminal would send Ctrl-C to the children, which
    receive it from this process already.
    """

    def __init__(self, through_mpirun: bool = False) -> None:
        self._started: dict[str, subprocess.Popen] = {}  # The child processes by name.
        self._failure: tuple[int, str] | None = None  # The exit code and the reason of the first failure.
        self._received: list[int] = []  # The signals that this process received.
        self._through_mpirun = through_mpirun
        self._relay: threading.Thread | None = None
        self._reported = False  # True after mpirun has reported a failed instance. mpirun may still wait for a lost host.
        self._lost = ""  # A sentence about the instance or host that mpirun reported as lost.

    def __enter__(self) -> _Children:
        # Signals that are ignored stay ignored, such as SIGHUP under nohup.
        ending = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
        self._earlier = {number: signal.signal(number, self._forward) for number in ending}
        self._wakeup = signal.set_wakeup_fd(-1)  # Otherwise the reader of this pipe ends this process at the second Ctrl-C.
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def start(self, command: Sequence[str], environ: Mapping[str, str], name: str, stdout: int | None = None) -> None:
        """Start a child process, unless this process has received a signal."""
        if self._received:
            return
        child = self._started[name] = subprocess.Popen(
            command, env=environ, stdout=stdout, stderr=subprocess.PIPE if self._through_mpirun else None,
            start_new_session=True, preexec_fn=ending_with_this_process(),
        )  # fmt: skip
        if self._through_mpirun:
            self._relay = threading.Thread(target=self._relay_errors, args=(child.stderr,), daemon=True)
            self._relay.start()
        for number in self._received:  # Forward the signals that arrived while the child was starting.
            child.send_signal(self._translated(number))

    def wait(self) -> Ending:
        """Wait until all child processes have ended. If one fails, end the other ones after a few seconds."""
        deadline, escalation = math.inf, [signal.SIGTERM, signal.SIGKILL]
        while self._running():
            # After a forwarded signal, the children may be saving, so skip SIGTERM.
            if self._received and len(escalation) > 1:
                deadline, escalation = math.inf, escalation[1:]
            if (self._failure or self._reported) and deadline == math.inf:
                deadline = time.monotonic() + (orphans.GRACE if self._received or self._reported else _GRACE)
            if time.monotonic() > deadline and escalation:
                self._send(escalation.pop(0))
                deadline = time.monotonic() + _GRACE
            time.sleep(0.05)
        if self._relay:
            self._relay.join(_GRACE)  # The timeout is needed because a process that outlives mpirun may keep the pipe open.
        code, reason = self._failure or (0, "")
        code, reason = code or int(bool(self._lost)), self._lost or reason
        # mpirun's exit code after a signal differs between versions, so it is replaced by the signal's exit code.
        if self._received and (not self._started or (code and self._through_mpirun)):
            return Ending(128 + self._received[0], True, reason)
        return Ending(code if code >= 0 else 128 - code, bool(self._received), reason)

    def _running(self) -> bool:
        """Return whether a child process is still running. Store the first failure."""
        running = False
        for name, child in self._started.items():
            code = child.poll()
            running |= code is None
            if code and not self._failure:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                self._failure = (code, f"{name} {how}")
        return running

    def _relay_errors(self, errors: IO[bytes]) -> None:
        """Print mpirun's standard error line by line, without the reports on failed instances, which are evaluated here."""
        for line in errors:
            report = _REPORT.search(line)
            self._reported |= report is not None
            if report and b"BY SIGNAL" in report[2]:
                self._lost = self._lost or f"instance {int(report[1])} was killed by a signal"
            if _LOST_HOST in line:
                self._lost = "mpirun lost a host"
            with suppress(OSError):  # The terminal may be closed.
                os.write(2, _REPORT.sub(b"", line))

    def _forward(self, number: int, frame: object) -> None:
        self._received.append(number)
        self._send(self._translated(number))

    def _send(self, number: int) -> None:
        for child in self._started.values():
            if child.poll() is None:
                child.send_signal(number)

    def _translated(self, number: int) -> int:
        """Return the signal to send to the children if this process received the signal `number`.

        mpirun kills its instances a quarter of a second after most signals, before they can save. Only SIGUSR1 and SIGUSR2
        are forwarded unchanged.
        """
        again = sum(earlier in URGENT for earlier in self._received) > 1
        if not self._through_mpirun or number in (signal.SIGUSR1, signal.SIGUSR2):
            return number
        return signal.SIGTERM if again or number == signal.SIGQUIT else signal.SIGUSR1


def ending_with_this_process() -> Callable[[], None] | None:
    """Return a function to call in a child process before its program starts, or None if this system is not Linux.

    After the call, the kernel sends SIGUSR1 to the child when this process ends, once for each thread of this process.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl, this = ctypes.CDLL(None).prctl, os.getpid()

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
        if os.getppid() != this:
            os.kill(os.getpid(), signal.SIGUSR1)

    return begin
