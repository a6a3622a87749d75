"""Several instances of a program, laid out over hosts and started with mpirun, or directly where all are on this host."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from base import plugins
from base.errors import OptionError
from base.fields import short
from base.process import orphans
from base.process.signals import URGENT
from base.storage import locks
from emulator.plan import machine
from harness.cluster import poprun_environment
from harness.processes import job_token
from harness.processes.launched_program import LaunchedProgram
from harness.processes.server_probe import ServerProbe

LOCAL = ("localhost", "127.0.0.1", "[::1]")
_NODES = Path("/sys/devices/system/node")
_SILENT = plugins.ROOT / "base" / "process" / "silent.py"
# handed on to every instance where they are set
_PASSED = (
    "PATH", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "OPAL_PREFIX", "DATA_DIR", "DATASETS_DIR", "TF_POPLAR_FLAGS",
    "POPLAR_ENGINE_OPTIONS", "POPLAR_TARGET_OPTIONS", "POPLAR_RUNTIME_OPTIONS", "POPLAR_LOG_LEVEL", "POPRUN_LOG_LEVEL",
    "TF_CPP_MIN_LOG_LEVEL", "TF_CPP_VMODULE", "CUDA_VISIBLE_DEVICES", "GCL_REAL_COLLECTIVES", "GCL_NUM_IO_TILES",
    job_token.VARIABLE,
)  # fmt: skip
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1
_MAX_INSTANCES = 1024  # instances: each is told the addresses of all of them
_MAX_PER_CORE = 64  # instances on this host, each of which has dozens of threads
_ANSWER = 30.0  # seconds in which a host must answer that is to have instances again
_GRACE = 5.0  # seconds that the others have to end by themselves when one has failed, and then when they are told to
# mpirun kills the others within a second when a signal has ended one, before they could save and say how to resume
_KILL_LATE = {"OMPI_MCA_odls_base_sigkill_timeout": f"{_GRACE:.0f}"}  # OpenMPI 4
# OpenMPI 5 cannot wait, but leave the others to themselves. An instance that ended by itself gives its exit code then; that
# a signal killed one is told on standard error alone, if asked for
_KILL_NONE = {"PRTE_MCA_state_base_recoverable": "1", "PRTE_MCA_errmgr_base_verbose": "1"}
_PRTE = rb"\[[\w.:-]+\] \[prterun-[^]\r\n]+\] errmgr:"
_TOLD = re.compile(_PRTE + rb"[^\n]*\n")
_KILLED = re.compile(_PRTE + rb"\w+: for proc \[[^]\r\n]*,(\d+)\] state ABORTED BY SIGNAL")
# such a line, as far as it has come
_BEGUN = re.compile(rb"\[[\w.:-]*(?:\](?: (?:\[(?:[prteun-]{0,8}|prterun-[^\r\n]*))?)?)?")
_LONGEST_TOLD = 600  # bytes of such a line
# where OpenMPI 4 and 5 put the files of a session on the host that starts it; the other hosts may not have this folder
_SESSION_BASES = ("OMPI_MCA_orte_local_tmpdir_base", "PRTE_MCA_prte_local_tmpdir_base")
_SESSION = ".poprun-mpirun-"  # begins the folder's name
# OpenMPI 4 and 5 say that a host was lost, and 5 ends with code 0 then
_LOST_HOST = b"has lost communication with a remote daemon"
NO_DAEMON = 255  # ssh's exit code, with which OpenMPI 5 ends where it cannot start on a host
CANNOT_START = "mpirun cannot start on "


@dataclass(frozen=True)
class Topology:
    """The places of the instances. `hosts`: that of each instance; `ports`: the port that each listens on."""

    replicas: int  # of all instances
    ipus_per_replica: int
    hosts: tuple[str, ...]
    ports: tuple[int, ...]

    @property
    def instances(self) -> int:
        """Processes."""
        return len(self.hosts)

    @property
    def local(self) -> bool:
        """True if all instances are on this host."""
        return all(host in LOCAL for host in self.hosts)

    @property
    def addresses(self) -> list[str]:
        """host:port of each instance's server."""
        return [f"{host}:{port}" for host, port in zip(self.hosts, self.ports)]

    def variables(self, instance: int) -> dict[str, str]:
        """Return the environment variables that tell an instance its place."""
        replicas = self.replicas // self.instances
        host = self.hosts[instance]
        return {
            poprun_environment.TOTAL: str(self.replicas),
            poprun_environment.LOCAL: str(replicas),
            poprun_environment.UNIFORM: "1",
            poprun_environment.OFFSET: str(instance * replicas),
            poprun_environment.IPUS: str(self.ipus_per_replica),
            poprun_environment.PLACE: str(self.hosts[:instance].count(host)),
            poprun_environment.ADDRESSES: ",".join(self.addresses),
        }

    def table(self) -> str:
        """Return a table with one line for each instance."""
        each = self.replicas // self.instances
        lines = [f"{'instance':>8}  {'address':<24} {'replicas':>8}  IPUs"]
        for k, address in enumerate(self.addresses):
            first, count = k * each * self.ipus_per_replica, each * self.ipus_per_replica
            lines.append(f"{k:>8}  {address:<24} {each:>8}  {first} to {first + count - 1}")
        return "\n".join(lines)


class ExitStatus(NamedTuple):
    """The end of instances, or of a command."""

    code: int  # the first that is not 0; 128 + n for signal n
    by_signal: bool = False  # to this process
    first_failure: str = ""  # which process failed first, and how, in words

    @property
    def is_untold(self) -> bool:
        """True if a signal killed an instance, or mpirun, which could not tell the user, or if none could be started."""
        told = " was killed by " not in self.first_failure and not self.first_failure.startswith(CANNOT_START)
        return not told and not self.by_signal

    @property
    def left(self) -> str:
        """The lot of the instances then, in words: they notice when their mpirun is gone."""
        of_mpirun = self.first_failure.startswith("mpirun was ")
        return "its instances save and end by themselves" if of_mpirun else "no instance is left"


def layout(replicas: int, instances: int, ipus_per_replica: int, hosts: Sequence[str], first_port: int | None) -> Topology:
    """The instances over all hosts, neighbours together; where they do not divide evenly, the first hosts have one more."""
    if replicas % instances:
        raise OptionError(
            f"--num-replicas {replicas} cannot be divided among --num-instances {instances}: each instance has as many; "
            f"nearest: {' or '.join(str(n) for n in _divisors_near(replicas, instances))} instances"
        )
    if instances > _MAX_INSTANCES:
        raise OptionError(f"--num-instances {instances}: {_MAX_INSTANCES} at most; give fewer, with more replicas each")
    names = list(dict.fromkeys(hosts)) or [LOCAL[0]]
    if len(names) > instances:
        raise OptionError(f"--host names {len(names)} hosts for --num-instances {instances}: give each host one at least")
    each, more = divmod(instances, len(names))
    placed = tuple(name for k, name in enumerate(names) for _ in range(each + (k < more)))
    return Topology(replicas, ipus_per_replica, placed, _ports(placed, first_port))


def _divisors_near(number: int, wanted: int) -> list[int]:
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    return sorted(sorted(divisors, key=lambda n: abs(n - wanted))[:2])


def _ports(hosts: Sequence[str], first: int | None) -> tuple[int, ...]:
    """A port for each instance: from `first` on; otherwise free ones here, and likely ones elsewhere."""
    return free_ports(len(hosts)) if first is None else tuple(first + k for k in range(len(hosts)))


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that nothing on this host uses now; OptionError if there are not as many."""
    with ExitStack() as probes:
        ports = []
        try:
            for _ in range(count):  # all of them at once, or one would be given twice
                probe = probes.enter_context(socket.socket())
                probe.bind(("", 0))
                ports.append(probe.getsockname()[1])
        except OSError as error:
            raise OptionError(
                f"--num-instances {count}: only {len(ports)} ports could be had at once ({error.strerror}); give fewer, or "
                "--first-port"
            ) from None
        return tuple(ports)


def check_startable(topology: Topology, program: Sequence[str], environ: Mapping[str, str]) -> None:
    """OptionError if this host lacks the program, or is given more instances than it could carry."""
    here, cores = sum(host in LOCAL for host in topology.hosts), machine.cores()
    if here > _MAX_PER_CORE * cores:
        raise OptionError(
            f"--num-instances {topology.instances}: {here} would run on this host, whose {cores} cores carry "
            f"{_MAX_PER_CORE * cores} at most, {_MAX_PER_CORE} each; give fewer, or more hosts"
        )
    if topology.local and shutil.which(program[0], path=environ.get("PATH")) is None:
        raise OptionError(f"no program '{short(program[0])}' is found; check its name and PATH")


def mpi_command(
    mpirun: str, topology: Topology, program: Sequence[str], environ: Mapping[str, str], *,
    only_output_from: int | None = None,
    numa_aware: bool = True, global_args: Sequence[str] = (), local_args: Sequence[str] = (), marked: bool = False,
) -> list[str]:  # fmt: skip
    """The command that starts every instance, one context of mpirun for each. `only_output_from`: an instance, of
    which alone the output is wanted; `marked`: they are told which process starts them, as `run` does."""
    head = [mpirun, *["--allow-run-as-root"] * (os.geteuid() == 0)]
    if not any("bind-to" in word for word in (*global_args, *local_args)):
        head += ["--bind-to", "numa" if numa_aware and numa_nodes() > 1 and topology.instances > 1 else "none"]
    head += ["--oversubscribe", *global_args]
    passed = [word for name in _PASSED if name in environ for word in ("-x", name)]
    passed += ["-x", orphans.MARK] * marked
    command = head
    for k, host in enumerate(topology.hosts):
        given = {**topology.variables(k), **_shown(k, only_output_from)}
        variables = [word for name, value in given.items() for word in ("-x", f"{name}={value}")]
        placed = [] if topology.local else ["--host", host]
        command = [*command, *[":"] * (k > 0), "--np", "1", *placed, *variables, *passed, *local_args]
        command += [*_silenced(k, only_output_from), *program]
    return command


def host_is_reachable(mpirun: str, host: str, global_args: Sequence[str] = ()) -> bool:
    """Return whether mpirun can start a program on a host, within a while."""
    command = [mpirun, *["--allow-run-as-root"] * (os.geteuid() == 0), *global_args, "--host", host, "--np", "1", "true"]
    with suppress(subprocess.TimeoutExpired), _session_folder(command) as place:
        asked = subprocess.run(command, env={**os.environ, **place}, capture_output=True, timeout=_ANSWER)
        return asked.returncode == 0
    return False


def _shown(instance: int, only_output_from: int | None) -> dict[str, str]:
    """Return the variable by which a later instance knows that its output alone is shown."""
    return {poprun_environment.SHOWN: "1"} if instance and instance == only_output_from else {}


def _silenced(instance: int, only_output_from: int | None) -> list[str]:
    return [] if only_output_from in (None, instance) else [sys.executable, str(_SILENT)]


def numa_nodes() -> int:
    """Return the number of NUMA nodes of this host."""
    return max(1, len(list(_NODES.glob("node[0-9]*"))))


def run_mpirun(command: Sequence[str], addresses: Sequence[str]) -> ExitStatus:
    """Run mpirun to its end, or to that of all its instances where a host has gone; signals go on to the instances, whose
    servers listen at the addresses."""
    with ServerProbe(addresses) as probe, _session_folder(command) as place:
        own = {name: value for name, value in _mca_variables(command).items() if name not in os.environ}
        return run(command, {**own, **place}, lambda: probe.all_gone, through_mpirun=True)


@contextmanager
def _session_folder(command: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """The variables that give an mpirun a new folder for its session, unless the user chose one. An mpirun that is killed
    leaves its files under its process' number, and without this a later one of the same number does not start."""
    with ExitStack() as stack:
        place = None
        if not any("tmpdir_base" in word for word in (*command, *os.environ)):
            with suppress(OSError):  # mpirun says itself where it cannot write
                place = stack.enter_context(locks.scratch_folder(Path(tempfile.gettempdir()), _SESSION))
        yield dict.fromkeys(_SESSION_BASES, str(place)) if place else {}


def run(
    command: Sequence[str], more: Mapping[str, str] | None = None, abandoned: Callable[[], bool] = lambda: False, *,
    through_mpirun: bool = False,
) -> ExitStatus:  # fmt: skip
    """Run a command to its end; signals go on to the command, or to mpirun's instances. `more`: for the command's
    environment; `abandoned`: whether it will not end by itself."""
    with _Children(through_mpirun, abandoned) as children:
        try:
            children.start(command, {**os.environ, **(more or {}), orphans.MARK: orphans.mark()}, Path(command[0]).name)
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            raise OptionError(
                f"{Path(command[0]).name} cannot be given {len(command)} words at once ({error.strerror}): fewer instances, "
                "or shorter arguments"
            ) from None
        return children.wait()


def _mca_variables(command: Sequence[str]) -> Mapping[str, str]:
    """Return the variables with which mpirun gives the other instances of a command time when one is lost."""
    return {**_KILL_LATE, **(_KILL_NONE if LaunchedProgram.of(command).ends_by_itself else {})}


def run_directly(
    topology: Topology,
    program: Sequence[str],
    environ: Mapping[str, str],
    only_output_from: int | None = None,
    executable: str | None = None,
) -> ExitStatus:
    """Start every instance on this host without MPI; when one fails, the others are ended."""
    path = executable or shutil.which(program[0], path=environ.get("PATH")) or program[0]
    with _Children() as children:
        for k in range(topology.instances):
            own = {**topology.variables(k), **_shown(k, only_output_from)}
            variables = {**environ, **own, orphans.MARK: orphans.mark()}
            hidden = subprocess.DEVNULL if only_output_from not in (None, k) else None
            children.start([path, *program[1:]], variables, f"instance {k}", hidden)
        return children.wait()


class _Children:
    """Child processes that get every signal that would end this one, inside `with`; should it be killed, the kernel tells
    them where it can. They are in sessions of their own, or a terminal's Ctrl-C would come to them twice."""

    def __init__(self, through_mpirun: bool = False, abandoned: Callable[[], bool] = lambda: False) -> None:
        self._abandoned = abandoned
        self._started: list[subprocess.Popen] = []
        self._names: list[str] = []
        self._first_failure = ""  # the first that failed, in words
        self._received: list[int] = []
        self._through_mpirun = through_mpirun
        self._relay: threading.Thread | None = None
        self._lost_host = False
        self._killed: list[int] = []  # instances, as mpirun tells
        self._given_up = False  # mpirun itself, which waited for a host

    def __enter__(self) -> _Children:
        ending = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]  # as nohup has it
        self._earlier = {number: signal.signal(number, self._forward) for number in ending}
        self._wakeup = signal.set_wakeup_fd(-1)  # whose reader ends this process at the second Ctrl-C
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def start(self, command: Sequence[str], environ: Mapping[str, str], name: str, stdout: int | None = None) -> None:
        """Start one more process, unless a signal has come; `name`: for messages."""
        if self._received:
            return
        child = subprocess.Popen(
            command, env=environ, stdout=stdout, stderr=subprocess.PIPE if self._through_mpirun else None,
            start_new_session=True, preexec_fn=ending_with_this_process(),
        )  # fmt: skip
        if self._through_mpirun:
            self._relay = threading.Thread(target=self._relay_errors, args=(child.stderr,), daemon=True)
            self._relay.start()
        self._started.append(child)
        self._names.append(name)
        for number in self._received:  # while it was being started
            child.send_signal(self._heard(number))

    def wait(self) -> ExitStatus:
        """Wait until all have ended."""
        failed, last, end = 0, [signal.SIGTERM, signal.SIGKILL], math.inf
        while [child for child in self._started if child.poll() is None]:  # all of them are asked
            failed = failed or self._failed()
            if failed and end == math.inf:
                end = time.monotonic() + (orphans.GRACE if self._received else _GRACE)
            if self._received and len(last) > 1:  # they have been told, and may be saving
                last, end = last[1:], time.monotonic() + orphans.GRACE if failed else math.inf
            if not self._first_failure and self._abandoned():
                self._first_failure = "no instance answers, but mpirun waits for a host that it cannot reach, and was killed"
                self._given_up = True
                self._send(signal.SIGKILL)
            if time.monotonic() > end and last:
                self._send(last.pop(0))
                end = time.monotonic() + _GRACE
            time.sleep(0.05)
        if self._relay:
            self._relay.join(_GRACE)  # unless something that outlives mpirun holds the pipe
        code = failed or self._failed()
        if self._killed and not self._lost_host and not self._given_up:
            self._first_failure = f"instance {self._killed[0]} was killed by a signal"
        if not code and (self._lost_host or self._killed):  # which OpenMPI 5 ends well after
            self._first_failure, code = "mpirun lost a host" if self._lost_host else self._first_failure, 1
        if self._received and (not self._started or (code and self._through_mpirun)):  # whose own code says little
            return ExitStatus(128 + self._received[0], True, self._first_failure)
        return ExitStatus(code if code >= 0 else 128 - code, bool(self._received), self._first_failure)

    def _failed(self) -> int:
        """The first exit code that is not 0."""
        failed = [(name, child.returncode) for name, child in zip(self._names, self._started) if child.returncode]
        if failed and not self._first_failure:
            name, code = failed[0]
            self._first_failure = f"{name} {_killed(-code) if code < 0 else f'ended with exit code {code}'}"
        return failed[0][1] if failed else 0

    def _relay_errors(self, errors: IO[bytes]) -> None:
        """Relay mpirun's standard error as it comes, and look there for a lost host and for killed instances."""
        end = held = b""  # of what came, and of that what is not yet shown
        while came := os.read(errors.fileno(), 1 << 16):
            end += came
            self._lost_host |= _LOST_HOST in end
            end = end[-len(_LOST_HOST) :]
            text = held + came
            self._killed += [int(instance) for instance in _KILLED.findall(text)]
            text = _TOLD.sub(b"", text)
            held = _begun(text)
            _show(text[: len(text) - len(held)])
        _show(held)

    def _forward(self, number: int, frame: object) -> None:
        self._received.append(number)
        self._send(self._heard(number))

    def _send(self, number: int) -> None:
        for child in self._started:
            if child.poll() is None:
                child.send_signal(number)

    def _heard(self, number: int) -> int:
        """Return the signal that the processes are sent. mpirun kills its instances a quarter of a second after most
        signals, before they could save; SIGUSR1 it hands on as it is."""
        again = sum(earlier in URGENT for earlier in self._received) > 1
        if not self._through_mpirun or number in (signal.SIGUSR1, signal.SIGUSR2):
            return number
        return signal.SIGTERM if again or number == signal.SIGQUIT else signal.SIGUSR1


def _begun(text: bytes) -> bytes:
    """Return the end of a text that may become a line of mpirun's own."""
    end = text[max(text.rfind(b"\n") + 1, len(text) - _LONGEST_TOLD) :]
    starts = (k for k in range(len(end)) if end[k : k + 1] == b"[")
    return next((end[k:] for k in starts if _BEGUN.fullmatch(end, k)), b"")


def _show(text: bytes) -> None:
    """Write on standard error, if somebody still reads there."""
    with suppress(OSError):
        os.write(2, text)


def _killed(number: int) -> str:
    """Return how a signal ended a process, in words."""
    known = number in {each.value for each in signal.Signals}
    return f"was killed by {signal.Signals(number).name if known else f'signal {number}'}"


def ending_with_this_process() -> Callable[[], None] | None:
    """Return the function to call in a child before its program begins: the kernel sends it SIGUSR1 when this process ends,
    however it does; once for each of its threads, so that it must be a signal that may come again. None where there is no
    such thing; instances watch their launcher besides."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, this = ctypes.CDLL(None).prctl, os.getpid()

    def begin() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
        if os.getppid() != this:
            os.kill(os.getpid(), signal.SIGUSR1)

    return begin
