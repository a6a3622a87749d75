"""Processes that lack something: standard streams, memory, threads, a clock that only goes forward."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from base import plugins
from base.process import command_line, tf_runtime
from harness.checkpoints import averages, find, read
from harness.checkpoints.checkpoint import CheckpointError
from harness.commands import gc_profile
from harness.reports import mlperf, profile
from log import RunLog

ROOT = plugins.ROOT


class ResourceExhaustedError(Exception):
    """As TensorFlow's."""


ResourceExhaustedError.__module__ = "tensorflow.python.framework.errors_impl"
OOM = "OOM when allocating tensor with shape[4096,112,112,64] and type float on /device:CPU:0 by allocator cpu"


@pytest.mark.parametrize(
    "error, said",
    [
        (MemoryError(), "out of memory"),
        (MemoryError("Unable to allocate 9.3 GiB for an array"), "out of memory"),
        (ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"), "ulimit -v"),
        (ImportError("libx.so: cannot allocate memory in static TLS block"), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (ResourceExhaustedError(f"Graph execution error:\n\n{OOM}\n\t [[{{node conv}}]]"), OOM),
    ],
)
def test_too_little_memory_or_too_few_threads_are_one_line(capsys, error, said):
    def main(words: list[str]) -> int:
        raise error

    assert command_line.run("train.py", main, [], ()) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and said in told and told.startswith("train.py: error: "), told
    if not isinstance(error, (ImportError, RuntimeError)):
        assert all(
            knob in told for knob in ("--micro-batch-size", "--gradient-accumulation-count", "--enable-recomputation")
        )


@pytest.mark.parametrize(
    "error", [RuntimeError("a fault of ours"), ImportError("no such name"), ModuleNotFoundError(name="x")]
)
def test_other_errors_keep_their_traceback(error):
    def main(words: list[str]) -> int:
        raise error

    with pytest.raises(type(error)):
        command_line.run("train.py", main, [], ())
    assert tf_runtime.starved_message(error) is None


def test_of_several_tries_the_one_without_memory_is_told():
    tries = """('\\nCould not import x, tried: [\\'a.x\\']. \\nErrors: ["No module named \\'a\\'", \\'libx.so: failed to map segment\\']')"""
    told = tf_runtime.starved_message(ImportError(tries))
    assert told.startswith("libx.so: failed to map segment: give more memory (ulimit -v")


@pytest.mark.parametrize("error", ["MemoryError()", "ImportError('libx.so: failed to map segment from shared object')"])
def test_too_little_memory_before_a_command_begins_is_one_line(error):
    code = f"from base.process import startup; startup.begin('cnn runs'); raise {error}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1 and re.fullmatch(r"cnn runs: error: .*: give more .*ulimit -v.*\n", done.stderr)


def test_numbers_of_threads_that_tensorflow_aborts_at():
    """By processes of their own, which have not imported it yet."""
    words = ["train.py", "--dataset", "fashion-mnist", "--model-size", "8", "--iterations", "1", "--no-logs"]
    environ = {**os.environ, "TF_NUM_INTEROP_THREADS": "-1"}
    ended = subprocess.run([sys.executable, *words], cwd=plugins.ROOT, env=environ, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("train.py: error: TF_NUM_INTEROP_THREADS=-1: "), ended


@pytest.mark.parametrize("look", [read.find_latest, find.select, read.load_init_path, averages.candidates])
def test_a_folder_of_another_user_is_not_called_empty(monkeypatch, tmp_path, look):
    def forbidden(path: object = ".") -> list[str]:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", forbidden)  # who is root may look everywhere
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied"):
        look(tmp_path)


def test_a_log_on_a_full_disk_is_named(tmp_path):
    log = RunLog(tmp_path)
    log._text.close()
    with open("/dev/full", "w") as full:
        log._text = full
        with pytest.raises(OSError, match=rf"No space left on device: '{tmp_path}/log.txt'"):
            log.note("a line")
        log.note("the console still hears")
    log.close()


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC])
def test_an_output_that_takes_no_more_is_named_and_told_of_in_the_log(tmp_path, monkeypatch, number):
    class Full:
        def write(self, text: str) -> None:
            raise OSError(number, os.strerror(number))

    log = RunLog(tmp_path)
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(OSError, match=f"{os.strerror(number)}: 'standard output'"):
        log.note("a line")
    log.ending()
    log.note("Stopped")
    log.close()
    assert (tmp_path / "log.txt").read_text() == "a line\nStopped\n"


UNHEARD = """
import sys
from pathlib import Path
from base.process import command_line
from log import RunLog

def main(words):
    log = RunLog(Path(words[0]))
    while True:
        log.note("a line")

sys.exit(command_line.run("train.py", main, None, ()))
"""


def test_a_run_whose_reader_has_gone_ends_in_one_line(tmp_path):
    piped = '"$0" -c "$1" "$2" | head -1'
    command = ["bash", "-o", "pipefail", "-c", piped, sys.executable, UNHEARD, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "a line\n")
    assert done.stderr == "train.py: error: Broken pipe: standard output\n"


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("words", [["train.py", "--help"], ["tools/plan.py", "--model", "resnet"]])
def test_a_full_standard_output_is_named(tmp_path, words, buffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, ROOT / words[0], *words[1:]],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1,
        f"{words[0].replace('tools/plan.py', 'cnn plan')}: error: No space left on device: standard output\n",
    )


def test_tensorflow_is_imported_where_standard_error_takes_nothing(tmp_path):
    (tmp_path / "tensorflow.py").write_text("import os; os.write(2, b'what a library says')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from base.process import tf_runtime; tf_runtime._import_quietly('3')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != tf_runtime.LEVEL}
    with open("/dev/full", "w") as full:
        assert subprocess.run(command, cwd=ROOT, env=environment, stderr=full, check=False, timeout=60).returncode == 0


OPENING = """
import os, sys
from base.process import command_line, tf_runtime

def main(words):
    with open(words[0], "wb") as file:
        assert file.fileno() > 2, file.fileno()
        os.write(2, b"what a library says")
        print("said"), print("told", file=sys.stderr), sys.stderr.isatty(), sys.stdin.read()
        return 0

sys.exit(command_line.run("train.py", main, None, ()))
"""


def test_a_profile_is_seen_with_any_clock(tmp_path, capfd):
    written = tmp_path / f"{profile.STEM}.json"
    write = "import os, sys; open(sys.argv[1], 'w').write('{}'); os.utime(sys.argv[1], (1, int(sys.argv[2])))"
    for year in ("100", "50"):  # the clock stands long before this process began, and goes back further
        assert gc_profile.main(["-d", str(tmp_path), "--", sys.executable, "-c", write, str(written), year]) == 0
        assert "wrote no profile" not in capfd.readouterr().err
    assert gc_profile.main(["-d", str(tmp_path), "--", "true"]) == 0
    assert "wrote no profile" in capfd.readouterr().err


def test_mlperf_s_times_do_not_go_back(monkeypatch):
    lines: list[str] = []
    now = iter([2e9, *[1e9] * 20])
    monkeypatch.setattr(time, "time", lambda: next(now))
    run = SimpleNamespace(options=SimpleNamespace(logging=SimpleNamespace(mlperf_logging=True)))
    events = mlperf.Events(run, SimpleNamespace(folder=None, note=lines.append))
    for key in ("one", "two", "three"):
        events._event(key)
    times = [json.loads(line.removeprefix(":::MLLOG "))["time_ms"] for line in lines]
    assert times == sorted(times) and abs(times[0] - 2e12) < 60_000
