"""An error in a Leave: it is reported as usual, then the process ends as ordered."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cnn_harness.base import plugins
from cnn_harness.base.errors import Leave, OptionError

CODE = """
import atexit, sys
from cnn_harness.base.errors import Leave, OptionError
from cnn_harness.base.process import command_line
atexit.register(print, "cleaned up")

def main(words):
    raise Leave(Leave({error}, hinted=True), seconds={seconds})

sys.exit(command_line.run("cnn", main, [], (OptionError,)))
"""


@pytest.mark.parametrize(
    ("error", "seconds", "code", "last"),
    [
        ("OptionError('wrong')", None, 2, "cnn: error: wrong"),
        ("OptionError('wrong')", 0, 2, "cnn: error: wrong"),
        ("OptionError('wrong')", 0.2, 2, "cnn: error: wrong"),
        ("ZeroDivisionError('odd')", 0, 1, "ZeroDivisionError: odd"),
        ("ZeroDivisionError('odd')", None, 1, "ZeroDivisionError: odd"),
    ],
)
def test_error_is_reported_before_the_process_ends(error, seconds, code, last):
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(error=error, seconds=seconds)], cwd=plugins.ROOT, capture_output=True, text=True
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[-1]) == (code, last)
    assert ("cleaned up" in done.stdout) == (seconds is None)


def test_later_orders_are_added():
    error = OptionError("wrong")
    both = Leave(Leave(error, hinted=True), seconds=3)
    assert (both.error, both.hinted, both.seconds) == (error, True, 3)
    assert (Leave(both).hinted, Leave(both).seconds, Leave(both, seconds=0).seconds) == (True, 3, 0)
