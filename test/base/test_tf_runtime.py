"""How TensorFlow is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COUNT = "from tensorflow.python.util import _pywrap_util_port; print(_pywrap_util_port.IsMklEnabled())"


@pytest.mark.parametrize(
    "first",
    ["from cnn_harness.base.process import tf_runtime; tf_runtime.import_tensorflow()", "from cnn_harness import ipu_utils"],
)
@pytest.mark.parametrize("chosen", [None, "0"])
def test_tensorflow_uses_onednn_unless_user_forbids_it(first, chosen, monkeypatch):
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if chosen:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", chosen)
    told = "import os; print(os.environ.get('TF_ENABLE_ONEDNN_OPTS'))"
    code = f"{first}\n{COUNT}\n{told}"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(chosen != "0"), chosen or "1"]


@pytest.mark.parametrize(("level", "silent"), [(None, True), ("3", True), ("0", False)])
def test_import_is_silent_unless_user_wants_messages(level, silent, monkeypatch):
    """Also in a child process, which inherits the level that its parent has set."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    if level:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    quiet = "from cnn_harness.base.process import tf_runtime; tf_runtime.import_tensorflow()"
    code = f"{quiet}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {quiet!r}], check=True)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout + done.stderr == "") == silent
