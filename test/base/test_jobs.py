"""Child processes: all of them end if one fails, if this process gets a signal, and if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cnn_harness.base import plugins
from cnn_harness.base.process import jobs

SLEEP = ["sleep", "600"]
STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]


def gone(pid: int) -> bool:
    """Return whether the process has ended within some seconds."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(
    ("failing", "code", "reason"),
    [("exit 3", 3, "second ended with exit code 3"), ("kill -9 $$", 137, "second was killed by SIGKILL")],
)
def test_first_failure_ends_all(failing, code, reason):
    with jobs.Children() as children:
        children.start("first", SLEEP, os.environ)
        children.start("second", ["sh", "-c", failing], os.environ)
        children.start("third", STUBBORN, os.environ)
        assert children.wait(0.1) == (code, False, reason)


def test_no_child_starts_after_a_signal():
    with jobs.Children() as children:
        children.send(signal.SIGINT)
        assert children.start("late", SLEEP, os.environ) is None
        assert children.wait(0.1) == (130, True, "")


def test_error_stops_other_calls():
    begun = []

    def work(item: int, cores: list[int]) -> int:
        begun.append(item)
        if item == 1:
            raise LookupError
        child = children.start("sleep", SLEEP, os.environ, cores)
        return child and child.wait()

    cores = sorted(os.sched_getaffinity(0))
    with jobs.Children() as children, pytest.raises(LookupError):
        list(children.run_on_cores(work, range(9), [cores, cores[:1]]))
    assert len(begun) <= 3


PARENT = """
import os, sys, time
from cnn_harness.base.process import jobs
with jobs.Children() as children:
    print(children.start("child", ["sleep", "600"], os.environ).pid, flush=True)
    time.sleep(600)
"""


def test_killed_process_leaves_no_child():
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, cwd=plugins.ROOT, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
        assert gone(child)


STUDY = """
import sys
from pathlib import Path
from experiments import study
folder = Path(sys.argv[1])
def train(name, core):
    study.call(core, folder / "train.py", name)
    yield study.Result(name, 1, 50.0)
table = draw = lambda results: " ".join(result.label for result in results)
jobs = [lambda core, name=name: train(name, core) for name in "abcde"]
sys.exit(study.script("study", lambda argv: study.run("study", folder, [], jobs, table, draw)))
"""
TRAINING = """
import os, pathlib, signal, sys, time
place = pathlib.Path(__file__).parent
def save(*_):
    (place / "saved").touch()
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
if sys.argv[1] == "e":
    (place / "begun").touch()
    time.sleep(600 if not (place / "saved").exists() else 0)
"""


def test_study_saves_after_a_signal_and_resumes(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-c", STUDY, str(tmp_path)]
    with subprocess.Popen(command, cwd=plugins.ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as study:
        while not (tmp_path / "begun").exists():
            assert study.poll() is None, study.stderr.read()
            time.sleep(0.05)
        study.terminate()
        _, err = study.communicate(timeout=60)
    assert (study.returncode, (tmp_path / "saved").exists()) == (143, True), err
    assert "repeat the call" in err and "study.py: stopped by SIGTERM" in err and "Traceback" not in err
    done = subprocess.run(command, cwd=plugins.ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and (tmp_path / "study.md").read_text() == "a b c d e\n", done.stderr
