"""Processes that lack something: standard streams, memory, threads, a monotonic clock."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from cnn_harness.base import plugins
from cnn_harness.base.process import command_line
from cnn_harness.log import RunLog

ROOT = plugins.ROOT


class ResourceExhaustedError(Exception):
    """Stand-in for TensorFlow's error."""


ResourceExhaustedError.__module__ = "tensorflow.python.framework.errors_impl"
OOM = "OOM when allocating tensor with shape[4096,112,112,64] and type float on /device:CPU:0 by allocator cpu"


@pytest.mark.parametrize(
    "error, said",
    [
        (MemoryError("Unable to allocate 9.3 GiB for an array"), "--micro-batch-size"),
        (ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"), "ulimit -v"),
        (ImportError("tried: ['a.x', 'libx.so: failed to map segment']"), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (ResourceExhaustedError(f"Graph execution error:\n\n{OOM}\n\t [[{{node conv}}]]"), OOM),
    ],
)
def test_exhausted_memory_or_threads_are_one_line(capsys, error, said):
    def main(words: list[str]) -> int:
        raise error

    assert command_line.run("train.py", main, [], ()) == 1
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and said in printed and printed.startswith("train.py: error: "), printed


@pytest.mark.parametrize("error", ["MemoryError()", "ImportError('libx.so: failed to map segment from shared object')"])
def test_exhausted_memory_at_start_is_one_line(error):
    code = f"from cnn_harness.base.process import early_exit; early_exit.install('cnn runs'); raise {error}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and re.fullmatch(r"cnn runs: error: .*: .*ulimit -v.*\n", done.stderr)


def test_full_disk_error_names_log(tmp_path):
    log = RunLog(tmp_path)
    log._text.close()
    with open("/dev/full", "w") as full:
        log._text = full
        with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/log.txt'"):
            log.note("a line")
        log.note("the console still hears")
    log.close()


UNHEARD = """
import sys
from pathlib import Path
from cnn_harness.base.process import command_line
from cnn_harness.log import RunLog

def main(words):
    log = RunLog(Path(words[0]))
    while True:
        log.note("a line")

sys.exit(command_line.run("train.py", main, None, ()))
"""


def test_closed_pipe_ends_run_in_one_line(tmp_path):
    piped = '"$0" -c "$1" "$2" | head -1'
    command = ["bash", "-o", "pipefail", "-c", piped, sys.executable, UNHEARD, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "a line\n")
    assert done.stderr == "train.py: error: Broken pipe: standard output\n"


def test_full_standard_output_is_named(tmp_path):
    for words, prog in (
        (["train.py", "--help"], "train.py"),
        (["-m", "cnn_harness.tools.plan", "--model", "resnet"], "cnn plan"),
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
            )  # fmt: skip
        assert (done.returncode, done.stderr) == (1, f"{prog}: error: No space left on device: standard output\n")
