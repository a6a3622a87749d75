"""The notebooks run from the first cell to the last in a kernel, as in Jupyter."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

from cnn_harness.base import plugins

NOTEBOOKS = sorted((plugins.ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(plugins.ROOT))  # this checkout, not an installed package
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=500, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()


def test_notebooks_are_small_and_machine_independent():
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        text = path.read_text()
        assert len(text) < 150_000 and "\\u001b" not in text and "/tmp/" not in text and str(Path.home()) not in text, path
