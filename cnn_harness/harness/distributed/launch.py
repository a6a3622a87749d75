"""Start the instances (processes) of a program for poprun: with mpirun, or directly if all run on this host."""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import commands, jobs, orphans
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
_GRACE = 5.0  # After a failure, the other instances have this many seconds to end, and as many again after SIGTERM.
# If an instance of these programs is lost, its other instances save and end by themselves.
_WATCHING = ("train", "restore", "validation")
# After a failure, OpenMPI 4 kills the other instances within a second, before they can save. Make it wait longer.
_KILL_LATE = {"OMPI_MCA_odls_base_sigkill_timeout": f"{_GRACE:.0f}"}
# OpenMPI 5 has no such timeout, so tell it not to kill the other instances.
_KILL_NONE = {"PRTE_MCA_state_base_recoverable": "1"}
# mpirun of OpenMPI 5 returns 0 if it has lost a host, or if signals have killed all instances and _KILL_NONE is set. It
# waits for minutes if a network is down. Therefore it must report failures, and its error output is read. Job 0 has
# mpirun's own daemons, which it also reports at a normal end.
_REPORTING = {"PRTE_MCA_errmgr_base_verbose": "1"}
_REPORT = re.compile(
    rb"\[[^]\r\n]+\] \[[^]\r\n]+\] errmgr:\w+: for proc \[[^]\r\n]*@(?P<job>\d+),(?P<instance>\d+)\] state [^\n]*\n"
)
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


def run_mpirun(command: Sequence[str]) -> jobs.Ending:
    """Run an mpirun command until it ends, and forward signals to the instances."""
    settings = {**_KILL_LATE, **_REPORTING, **(_KILL_NONE if _watch_each_other(command) else {})}
    with tempfile.TemporaryDirectory(prefix=".poprun-mpirun-") as session, _Mpirun() as mpirun, jobs.forwarding(mpirun):
        if not any("tmpdir_base" in word for word in (*command, *os.environ)):
            settings |= dict.fromkeys(_SESSION_BASES, session)
        return mpirun.run(command, {**settings, **os.environ})


def _watch_each_other(command: Sequence[str]) -> bool:
    """Return whether a command runs a program whose instances end by themselves after one of them is lost."""
    names = [Path(word).name for word in command]
    called = (commands.COMMANDS.get(name) for before, name in pairwise(names) if before in ("cnn", commands.PACKAGE))
    return any(f"{module}.py" in names for module in _WATCHING) or any(each and each.module in _WATCHING for each in called)


def run_directly(topology: Topology, program: Sequence[str], only_output_from: int | None = None) -> jobs.Ending:
    """Run all instances on this host, without MPI. If an instance fails, end the other instances."""
    with jobs.Children() as children, jobs.forwarding(children):
        for k in range(topology.instances):
            hidden = subprocess.DEVNULL if only_output_from not in (None, k) else None
            variables = {**os.environ, **topology.variables(k, only_output_from)}
            children.start(f"instance {k}", program, variables, stdout=hidden)
        return children.wait(_GRACE)


class _Mpirun(jobs.Children):
    """An mpirun process, which starts the instances."""

    def run(self, command: Sequence[str], environ: Mapping[str, str]) -> jobs.Ending:
        """Run the command until it ends."""
        mpirun = self.start(Path(command[0]).name, command, environ, stderr=subprocess.PIPE)
        relay = threading.Thread(target=self._relay_errors, args=(mpirun.stderr if mpirun else (),), daemon=True)
        relay.start()
        self.wait(orphans.GRACE)
        relay.join(_GRACE)  # The timeout is needed because a process that outlives mpirun may keep the pipe open.
        ending = self.wait(0)  # with what the relay has read since
        # mpirun's exit code after a signal differs between versions.
        return ending._replace(code=128 + self.sent[0]) if ending.code and ending.stopped else ending

    def translated(self, number: int) -> int:
        """Return the signal to forward.

        mpirun kills its instances a quarter of a second after most signals, before they can save. Only SIGUSR1 and SIGUSR2
        are forwarded unchanged.
        """
        if number in (signal.SIGUSR1, signal.SIGUSR2):
            return number
        again = sum(earlier in URGENT for earlier in self.sent) > 1
        return signal.SIGTERM if again or number == signal.SIGQUIT else signal.SIGUSR1

    def _relay_errors(self, errors: Iterable[bytes]) -> None:
        """Print mpirun's standard error without its reports, and store the first failure that it reports."""
        for line in errors:
            report = _REPORT.search(line)
            if _LOST_HOST in line:
                self.reason = self.reason or "mpirun lost a host"
            elif report and report["job"] != b"0":
                self.reason = self.reason or f"instance {int(report['instance'])} failed"
            with suppress(OSError):  # The terminal may be closed.
                os.write(2, _REPORT.sub(b"", line))
