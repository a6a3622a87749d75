"""The progress of slow commands, in files and on a terminal."""

from __future__ import annotations

import sys

import pytest

from cnn_harness.base.process import progress


@pytest.mark.parametrize(("terminal", "lines"), [(False, 3), (True, 1)])
def test_progress_shows_the_time_left(monkeypatch, capsys, terminal, lines):
    """In a file, a line appears every ten seconds. On a terminal, one line changes."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with progress.Progress("images", 40) as shown:
        for _ in range(40):
            now[0] += 0.8
            shown.advance()
    said = capsys.readouterr().err
    assert said.count("\n") == lines and "13 of 40 images, 1.25 per second, 22 s left" in said
    assert said.count("\r") == (41 if terminal else 0)


def test_quick_work_shows_no_time(monkeypatch, capsys):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(100)).__next__)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.Progress("images", 3) as shown:
        for _ in range(3):
            shown.advance()
    said = capsys.readouterr().err
    assert "3 of 3 images" in said and "left" not in said
