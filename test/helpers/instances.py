"""Real processes that train together on this host, for tests: TF_CONFIG, mpirun and poprun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.harness.distributed import launch

ROOT = plugins.ROOT


@dataclass(frozen=True)
class Ended:
    """The result of a process."""

    code: int
    out: str
    err: str


def mpi(present: bool) -> dict[str, str]:
    """Return an environment with or without mpirun."""
    folders = [
        folder
        for folder in [str(Path(sys.executable).parent), *os.environ["PATH"].split(":")]
        if present or not Path(folder, "mpirun").exists()
    ]
    return {**os.environ, "PATH": ":".join(folders)}


def free_addresses(count: int) -> list[str]:
    """Return localhost:port for unused ports."""
    return [f"localhost:{port}" for port in launch.free_ports(count)]


def tf_config(addresses: Sequence[str], index: int | None) -> str:
    """Return TF_CONFIG's value."""
    task = {} if index is None else {"task": {"type": "worker", "index": index}}
    return json.dumps({"cluster": {"worker": list(addresses)}, **task})


def started(
    script: str, words: Sequence[object], environ: Mapping[str, str] | None = None, head: Sequence[str] = ()
) -> subprocess.Popen[str]:
    """Start a command in the background."""
    own = ("TF_CONFIG", "DATA_DIR", "TF_CPP_MIN_LOG_LEVEL", "TF_XLA_FLAGS")  # of the tests' process
    clean = {k: v for k, v in os.environ.items() if k not in own}
    command = [*head, sys.executable, "-u", *script.split(), *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, env={**clean, **(environ or {})}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True)  # fmt: skip


def by_tf_config(
    script: str, each: Sequence[Sequence[object]], addresses: Sequence[str] | None = None
) -> list[subprocess.Popen]:
    """Start a process for each list of words, all of them --distributed."""
    addresses = addresses or free_addresses(len(each))
    return [
        started(script, [*words, "--distributed"], {"TF_CONFIG": tf_config(addresses, k)}) for k, words in enumerate(each)
    ]


def ended(processes: Sequence[subprocess.Popen], timeout: float = 240) -> list[Ended]:
    """Wait for all processes; kill those that do not end."""
    end, found = time.monotonic() + timeout, []
    for process in processes:
        try:
            out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            out, err = process.communicate()
            raise AssertionError(f"still running after {timeout:g} s:\n{out[-2000:]}\n{err[-2000:]}") from None
        found.append(Ended(process.returncode, out, err))
    return found


def succeeded(processes: Sequence[subprocess.Popen], timeout: float = 240) -> list[Ended]:
    """Wait for all processes, which must succeed."""
    found = ended(processes, timeout)
    assert all(each.code == 0 for each in found), "\n".join(each.err[-1500:] for each in found)
    return found
