"""A one-node Slurm on this host with its own keys, ports and files, for tests: Debian's slurmctld, slurmd and munge."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.harness.distributed import launch

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo")
# the folders of other system programs
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
_CONFIGURATION = """
ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthInfo=socket={top}/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
StateSaveLocation={top}/state
SlurmdSpoolDir={top}/spool
SlurmctldPidFile={top}/slurmctld.pid
SlurmdPidFile={top}/slurmd.pid
SlurmdParameters=config_overrides
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The commands of a Slurm, called in a folder."""

    def __init__(self, top: Path, folder: Path) -> None:
        self._folder = folder
        self._environ = {**os.environ, "PATH": PATH, "SLURM_CONF": str(top / "slurm.conf")}

    def call(self, *words: object) -> str:
        """Return the output of a command, which must succeed."""
        done = subprocess.run(
            list(map(str, words)),
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words: object) -> str:
        """Submit a job and return its number."""
        return self.call("sbatch", "--parsable", *words).strip()

    def state(self, job: str) -> str:
        """Return a job's state, such as RUNNING."""
        fields = dict(field.split("=", 1) for field in self.call("scontrol", "show", "job", job).split() if "=" in field)
        return fields["JobState"]

    def output(self, job: str) -> str:
        """Return what the job has printed so far."""
        file = self._folder / f"slurm-{job}.out"
        return file.read_text() if file.exists() else ""


def until(holds: Callable[[], bool], seconds: float, state: Callable[[], str] = str) -> None:
    """Wait until `holds`; raise AssertionError with the text of `state` after `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, state()
        time.sleep(0.2)


def project(folder: Path) -> None:
    """Copy the project's files to a folder, with the present virtual environment."""
    for path in plugins.ROOT.iterdir():
        if path.name not in (".venv", "logs", ".git"):
            (folder / path.name).symlink_to(path)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").write_text(f'export PATH="{Path(sys.executable).parent}:$PATH"\n')


@contextmanager
def running(folder: Path) -> Iterator[Slurm]:
    """Start a Slurm for the duration of the block; its commands are called in `folder`."""
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))  # socket paths must be short
        top.chmod(0o755)
        (top / "state").mkdir()
        (top / "spool").mkdir()
        (top / "key").write_bytes(os.urandom(1024))
        (top / "key").chmod(0o600)
        host = socket.gethostname().split(".")[0]
        (top / "slurm.conf").write_text(_CONFIGURATION.format(top=top, host=host, ports=launch.free_ports(2)))
        files = {"key-file": "key", "socket": "munge.socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = ["munged", "-F", "--force", *[f"--{name}={top / file}" for name, file in files.items()]]
        slurm = Slurm(top, folder)
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", "localhost"]):
            stack.enter_context(_daemon(command, slurm._environ, top))
            until((top / "munge.socket").exists, 10)
        logs = lambda: "\n".join(path.read_text()[-1000:] for path in top.glob("*.out"))
        until(lambda: "State=IDLE" in slurm.call("scontrol", "show", "node", "localhost"), 30, logs)
        yield slurm


@contextmanager
def _daemon(command: list[str], environ: dict[str, str], top: Path) -> Iterator[None]:
    with open(top / f"{command[0]}.out", "w") as out:
        process = subprocess.Popen(command, env=environ, stdout=out, stderr=out, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)
