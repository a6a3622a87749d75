"""A run that is told to stop keeps what it has done: real processes, real signals, at many moments."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from runs import assert_same_bits, run, succeed, timeless, variables

ROOT = Path(__file__).resolve().parent.parent
# one host step of 60 updates, each of several micro-batches: nothing is due in between
WORDS = (
    "--dataset fashion-mnist --model-size 8 --batch-size 16 --gradient-accumulation-count 16 --fold 1 --iterations 60 --seed 3 "
    "--precision 32.32 --optimiser momentum --log-freq 60 --no-validation"
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


@pytest.mark.parametrize(
    ("number", "delay"),
    [
        (signal.SIGINT, 1.0),
        (signal.SIGTERM, 0.3),
        *(pytest.param(signal.SIGTERM, d, marks=pytest.mark.slow) for d in (0, 0.7, 1.4, 2)),
    ],
)
def test_a_signal_inside_a_host_step_loses_nothing(number, delay, unbroken, tmp_path):
    folder = tmp_path / "run"
    process = started(*WORDS.split(), "--logs-path", folder)
    await_line(process, "  fingerprint")  # of the initial checkpoint: the host step begins
    time.sleep(delay)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    assert "stopping at the next micro-batch" in err and f"train.py: stopped by {number.name}" in err
    assert "Traceback" not in err and f"Stopped: {number.name}" in out
    assert re.search(rf"Go on: .*restore\.py --restore-path {folder}", out)
    done = max(int(file.stem.split("-")[1]) for file in folder.glob("ckpt-*.index"))
    assert done <= 60  # on a busy machine the signal may come late
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 60), variables(folder, 60))
    assert timeless(unbroken / "training.csv") == timeless(folder / "training.csv")


def test_a_second_signal_ends_at_once(tmp_path):
    """The first one waits for a micro-batch that takes long."""
    words = "--dataset fashion-mnist --model-size 8 --batch-size 10000 --precision 32.32 --iterations 4 --no-validation"
    process = started(*words.split(), "--no-logs")
    await_line(process, "  fingerprint")
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped at once" in err
    assert time.monotonic() - sent < 30  # no speed, but that nothing was waited for


def test_a_signal_while_the_graph_is_built_leaves_at_once(tmp_path):
    process = started(*WORDS.split(), "--logs-path", tmp_path / "run")
    await_line(process, "Total Parameters")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in err and "train.py: stopped by SIGTERM" in err
    assert "Go on" not in out or list((tmp_path / "run").glob("ckpt-0.index"))


def test_one_process_at_a_time_writes_a_run(unbroken, tmp_path):
    """The lock ends with the process, however that ends."""
    folder = tmp_path / "run"
    process = started(*WORDS.split(), "--logs-path", folder)
    await_line(process, "  fingerprint")
    second = run("restore", "--restore-path", folder)
    assert second.code == 2 and second.err.count("\n") == 1
    assert f"the run in {folder} is being written by another process (pid {process.pid})" in second.err
    process.kill()
    process.communicate(timeout=60)
    succeed("restore", "--restore-path", folder)
    assert_same_bits(variables(unbroken, 60), variables(folder, 60))


def test_the_earlier_handlers_come_back(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    succeed("train", *WORDS.replace("--iterations 60", "--iterations 1").split(), "--logs-path", tmp_path / "run")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_during_validation_leaves_a_run_that_is_validated_on_restore(tmp_path):
    folder = tmp_path / "run"
    words = WORDS.replace("--no-validation", "").replace("--iterations 60", "--iterations 2")
    process = started(*words.split(), "--valid-batch-size", 1, "--logs-path", folder)
    await_line(process, "Validation program ready")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err
    restored = succeed("restore", "--restore-path", folder, "--valid-batch-size", 500)
    assert "Validation top-1 accuracy [ckpt-2]" in restored.out
