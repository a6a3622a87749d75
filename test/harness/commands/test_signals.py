"""A run that is asked to stop keeps its work: real processes and real signals at many moments. Any command ends with one
line after a signal.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from commands import assert_same_bits, run, succeed, timeless, variables

from cnn_harness.base import plugins
from cnn_harness.base.process.early_exit import BEFORE

ROOT = plugins.ROOT
# one host step of 16 updates with several micro-batches each: no event is due in between
WORDS = (
    "--dataset fashion-mnist --model-size 8 --batch-size 16 --gradient-accumulation-count 16 --fold 1 --iterations 16 --seed 3 "
    "--precision 32.32 --optimiser momentum --log-freq 16 --no-validation"
)


def started(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "train.py", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def await_line(process: subprocess.Popen[str], beginning: str) -> None:
    for line in process.stdout:
        if line.startswith(beginning):
            return
    raise AssertionError(f"no line {beginning}: {process.stderr.read()}")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    succeed("train", *WORDS.split(), "--logs-path", folder)
    return folder


@pytest.mark.parametrize(("number", "delay"), [(signal.SIGINT, 1.0), (signal.SIGTERM, 0.2)])
def test_signal_inside_host_step_loses_nothing(number, delay, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = started(*WORDS.split(), "--logs-path", folder)
    await_line(process, "Saved ")  # the initial checkpoint: the first host step starts
    time.sleep(delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    # an immediate signal may come before the host step, where this line is not written
    assert not delay or "stopping at the next micro-batch" in err
    assert f"train.py: stopped by {number.name}" in err
    assert "Traceback" not in err and f"Stopped: {number.name}" in out
    assert re.search(rf"Resume: .*restore\.py --restore-path {folder}", out)
    done = max(int(file.stem.split("-")[1]) for file in folder.glob("ckpt-*.index"))
    assert done <= 16  # on a busy machine the signal may arrive late
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 16), variables(folder, 16))
    assert timeless(unbroken / "training.csv") == timeless(folder / "training.csv")


def test_closed_terminal_stops_run_and_saves(unbroken, tmp_path):
    """The kernel sends SIGHUP, a shell sends another one, and every later write fails."""
    folder, (ours, terminal) = tmp_path / "run", os.openpty()
    command = [sys.executable, "-u", "train.py", *WORDS.split(), "--logs-path", str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
                               preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))  # fmt: skip
    os.close(terminal)
    seen = b""
    while b"Saved " not in seen:
        seen += os.read(ours, 4096)
    process.send_signal(signal.SIGSTOP)  # a process that was paused for a while resumes normally
    process.send_signal(signal.SIGCONT)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 129
    assert "Stopped: SIGHUP" in (folder / "log.txt").read_text() and "Resume: " in (folder / "log.txt").read_text()
    newest = max(int(file.stem.split("-")[1]) for file in folder.glob("ckpt-*.index"))
    assert f"The newest checkpoint is ckpt-{newest}." in (folder / "log.txt").read_text()
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 16), variables(folder, 16))
    assert timeless(unbroken / "training.csv") == timeless(folder / "training.csv")


@pytest.mark.slow
def test_second_signal_ends_at_once(tmp_path):
    """The first one waits for a long micro-batch."""
    words = "--dataset fashion-mnist --model-size 8 --batch-size 10000 --precision 32.32 --iterations 4 --no-validation"
    process = started(*words.split(), "--no-logs")
    await_line(process, "Saved ")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped at once" in err


def test_lock_admits_one_writer(unbroken, tmp_path):
    """The lock ends with the process, however the process ends."""
    folder = tmp_path / "run"
    process = started(*WORDS.split(), "--logs-path", folder)
    await_line(process, "Saved ")
    second = run("restore", "--restore-path", folder)
    assert second.code == 2 and second.err.count("\n") == 1
    assert f"another process (pid {process.pid}) is writing the run in {folder}" in second.err
    process.kill()
    process.communicate(timeout=60)
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 16), variables(folder, 16))


@pytest.mark.slow
def test_restore_validates_after_signal_during_validation(tmp_path):
    folder = tmp_path / "run"
    words = WORDS.replace("--no-validation", "").replace("--iterations 16", "--iterations 2")
    process = started(*words.split(), "--valid-batch-size", 1, "--logs-path", folder)
    await_line(process, "Validation program ready")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err
    restored = succeed("restore", "--restore-path", folder, "--valid-batch-size", 500)
    assert "Validation top-1 accuracy [ckpt-2]" in restored.out


# Every command at any moment: small programs instead of training runs

COMMANDS = (
    "train.py",
    "poprun.py",
    "Datasets/verify.py",
    "cnn_harness/tools/gc_profile.py",
    "cnn_harness/__main__.py report",
    "weight_avg.py",
)
# runs a script; sends the signal at the first import after the handlers are set, if nothing large was imported before
WHILE_IMPORTING = """
import builtins, os, runpy, signal, sys
path, *words = sys.argv[1].split()
number = int(sys.argv[2])
real = builtins.__import__
def interrupted(name, *more, **named):
    if callable(signal.getsignal(signal.SIGTERM)) and not {"argparse", "cnn_harness.emulator", "yaml"} & set(sys.modules):
        signal.raise_signal(number)
    return real(name, *more, **named)
sys.argv, sys.path[0] = [path, *words], os.getcwd()  # for the scripts, the folder is the same; the others need python -m
builtins.__import__ = interrupted
runpy.run_path(path, run_name="__main__")
"""


def python(program: str, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize(("k", "path"), list(enumerate(COMMANDS)))
def test_signal_during_imports_is_one_line(k, path):
    number = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)[k % 3]
    done = python(WHILE_IMPORTING, path, number.value)
    assert done.returncode == 128 + number, done.stderr
    assert done.stderr.strip().count("\n") == 0 and f": stopped by {number.name}{BEFORE}\n" in done.stderr


IN_A_COMMAND = """
import os, signal, sys, threading, time
from cnn_harness.base.process import command_line, early_exit
me = os.getpid()
early_exit.install("it")
def main(words):
    %s
    return 0
sys.exit(command_line.run("it", main, None, ()))
"""
SAVING = "try: os.kill(me, signal.SIGHUP); time.sleep(9)\n    except BaseException: os.kill(me, %s); time.sleep(0.3); print('saved'); raise"
MOMENTS = {
    "in the middle": ("os.kill(me, signal.SIGTERM); time.sleep(9)", 143, "", "it: stopped by SIGTERM"),
    "in a destructor": (
        "D = type('D', (), {'__del__': lambda self: signal.raise_signal(signal.SIGINT)}); D(); time.sleep(9)",
        130, "", "it: stopped by SIGINT",
    ),
    "where a library makes an error of it": (
        "try: signal.raise_signal(signal.SIGINT)\n    except BaseException: raise ImportError('initialisation failed') from None",
        130, "", "it: stopped by SIGINT",
    ),
    "at exit": ("import atexit; atexit.register(lambda: os.kill(me, signal.SIGINT))", 130, "", "it: stopped by SIGINT"),
    "a terminal and its shell": (SAVING % "signal.SIGHUP", 129, "saved\n", "it: stopped by SIGHUP"),
    "a terminal, then the system": (SAVING % "signal.SIGTERM", 129, "saved\n", "it: stopped by SIGHUP"),
    "in a long call of a library": (  # which no handler interrupts
        "import ctypes; once = lambda: (time.sleep(1), os.kill(me, signal.SIGINT))\n"
        "    take, lock = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64); take(lock)\n"
        "    threading.Thread(target=lambda: (once(), once())).start(); take(lock)",
        130, "", "stopped at once",
    ),
}  # fmt: skip


@pytest.mark.parametrize("moment", MOMENTS)
def test_signal_ends_command_in_one_line(moment):
    body, code, out, err = MOMENTS[moment]
    done = python(IN_A_COMMAND % body)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (code, out, err)


def test_nohup_is_honoured():
    body = "os.kill(me, signal.SIGHUP); time.sleep(0.1)"
    done = python(IN_A_COMMAND % body, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stderr) == (0, "")
