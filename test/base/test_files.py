"""Files of a run directory: links are never followed, a failed write names its file, and one process at a time writes."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from cnn_harness import log
from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import locks, tables
from cnn_harness.base.storage.tables import Table
from cnn_harness.harness.checkpoints import weights_file
from cnn_harness.harness.reports import training_chart
from cnn_harness.tools.exporting import export_folder


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def append_row(file: Path) -> None:
    log.RunLog(file.parent, console=False).training_row(
        {**dict.fromkeys(tables.TRAINING_COLUMNS, 1.0), "step": 1, "iteration": 1}
    )


def lock(file: Path) -> None:
    with locks.lock_folder(file.parent):
        pass


WRITERS = {
    "log.txt": lambda file: log.RunLog(file.parent),
    "training.csv": append_row,
    ".lock": lock,
    "training.svg": lambda file: training_chart.write_run_svg(file.parent),
    "arguments.json": lambda file: log.write_arguments(file.parent, {}),
}


@pytest.mark.parametrize("name", WRITERS)
def test_links_are_never_followed(name, folder, tmp_path):
    """A link is an error that names it, or is replaced by the run's own file."""
    (tmp_path / "precious").write_text("somebody's own\n")
    (folder / name).symlink_to(tmp_path / "precious")
    with suppress(OSError):
        WRITERS[name](folder / name)
    assert (tmp_path / "precious").read_text() == "somebody's own\n"


def test_second_writer_is_rejected(folder):
    with locks.lock_folder(folder):
        for _ in range(2):
            assert locks.is_locked(folder)
            with pytest.raises(OptionError, match=f"{os.getpid()}.*{folder}"), locks.lock_folder(folder):
                pass
    with locks.lock_folder(folder):
        assert (folder / ".lock").read_text() == f"pid {os.getpid()}\n"


@contextmanager
def no_room() -> Iterator[None]:
    """Limit the size of files, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def export(file: Path) -> None:
    """Export a file of labels first."""
    with patch.object(export_folder.readme, "text", return_value=""):
        export_folder.put(file.parent, file.parent, {file.name: "ant\n", export_folder.PREPROCESSING: "{}"})


@pytest.mark.parametrize(
    "name, write",
    [
        (".lock", lock),
        ("rows.csv", lambda file: Table(file, ("iteration",), 0).append({"iteration": 1})),
        ("weights.npz", lambda file: weights_file.write(file, {"a": np.ones(99)}, {})),
        ("labels.txt", export),
    ],
)
def test_full_disk_error_names_file(folder, name: str, write: Callable[[Path], None]):
    with no_room(), pytest.raises(OSError, match="File too large") as caught:
        write(folder / name)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(folder / name))
