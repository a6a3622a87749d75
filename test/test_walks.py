"""The walk of a user of an installation: test/walks/installed.sh."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from commands import rows

from cnn_harness.base import plugins

FILES = ("run/ckpt-3.index", "two/ckpt-2.index", "exported/frozen.pb", "predicted.csv", "report.html", "compared.svg")


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a dozen commands, each of which builds its programs
def test_installed_walk_succeeds(tmp_path):
    environ = {**os.environ, "PYTHON": sys.executable, "RUNS": str(tmp_path)}
    done = subprocess.run(
        ["sh", "test/walks/installed.sh"], cwd=plugins.ROOT, env=environ, capture_output=True, text=True, timeout=1700
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert [name for name in FILES if not (tmp_path / name).exists()] == []
    assert {name: len(rows(tmp_path / name / "validation.csv")) for name in ("validation", "again")} == {
        "validation": 2,
        "again": 1,
    }
