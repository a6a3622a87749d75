"""The progress line for slow work."""

from __future__ import annotations

import io
import sys
import time

import pytest

from cnn_harness.base.process import progress


def gone(*_):
    """Write to a closed terminal."""
    raise OSError


@pytest.mark.parametrize(
    ("terminal", "seconds", "shown"),
    [(True, 0.3, "Waiting ... 0 s\r"), (False, 0.3, "Waiting ...\n"), (True, 0, "\x1b[2K"), (False, 0, "")],
)
def test_progress_line_needs_terminal(terminal, seconds, shown, monkeypatch):
    output = io.StringIO()
    output.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", output)
    for name in ("_SECOND", "_LINE_EVERY"):
        monkeypatch.setattr(progress, name, 0.05)
    with progress.waiting("Waiting"):
        time.sleep(seconds)
    lines = output.getvalue()
    assert lines.startswith(shown) and lines.endswith("\x1b[2K") == terminal
    output.write = gone
    with progress.waiting("Waiting"):
        time.sleep(seconds)
    assert (lines.count("Waiting") > 1) == ("\r" in lines) == (terminal and seconds > 0)
