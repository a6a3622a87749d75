"""Files of a run folder: nothing outside of it is written, nothing is waited for, and one process at a time writes it."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest

import log
from base.errors import OptionError
from base.storage import files, locks, run_tables
from base.storage.tables import Table
from harness.checkpoints import averages, npz_weights, run_record
from harness.checkpoints.checkpoint import CheckpointError
from harness.export import export_folder
from harness.report_page import page
from harness.reports import plot, profile

TEXT = "somebody's own\n"


@pytest.fixture
def precious(tmp_path) -> Path:
    file = tmp_path / "precious"
    file.write_text(TEXT)
    return file


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def append(file: Path) -> None:
    with files.append(file) as opened:
        opened.write(b"ours\n")


def append_row(file: Path) -> None:
    log.RunLog(file.parent, console=False).training_row(
        {**dict.fromkeys(run_tables.TRAINING_COLUMNS, 1.0), "step": 1, "iteration": 1}
    )


def lock(file: Path) -> None:
    with locks.lock_folder(file.parent):
        pass


def print_copied(file: Path) -> None:
    with profile.copied_output(profile.ProfileRequest("operations", file.with_name("profile"), reports=True)):
        print("copied")


def with_rows(folder: Path) -> Path:
    """A run's folder with the least that a page is written of."""
    (folder / "training.csv").write_text("iteration,epoch\n1,1\n")
    return folder


WRITERS = {
    "stdout.txt": print_copied,
    "log.txt": lambda file: log.RunLog(file.parent),
    "training.csv": append_row,
    ".lock": lock,
    "any": append,
    "training.svg": lambda file: plot.write_run_svg(file.parent),
    "report.html": lambda file: page.write(with_rows(file.parent)),
    "arguments.json": lambda file: log.RunLog(file.parent).arguments({}, restored=False),
    f".arguments.json.{os.getpid()}": lambda file: log.RunLog(file.parent).arguments({}, restored=False),
}


def named(file: str) -> str:
    """A test's name that is alike in every process of pytest's."""
    return file.replace(str(os.getpid()), "PID")


REFUSED = ("log.txt", "training.csv", ".lock", "any")


@pytest.mark.parametrize("name", WRITERS, ids=named)
def test_no_link_is_followed(name, folder, precious):
    """A link is refused by name, or replaced by a file of the run's own."""
    (folder / name).symlink_to(precious)
    refusal = pytest.raises(files.NotRegular, match=f"^{folder / name}: is a link, which is not followed")
    with refusal if name in REFUSED else nullcontext():
        WRITERS[name](folder / name)
    assert precious.read_text() == TEXT and (name in REFUSED or not (folder / name).is_symlink())


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_in_the_place_of_a_file_is_named(name, folder):
    (folder / name).mkdir()
    with pytest.raises(files.NotRegular, match=f"^{folder / name}: .*; remove it"):
        WRITERS[name](folder / name)


def test_averages_stay_in_the_run_folder(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (folder / "ckpt").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(files.NotRegular, match="is not a folder of the run"):
        files.own_folder(folder / "ckpt")
    assert averages.files is files  # which `write_average` asks


def test_a_file_that_is_too_large_is_not_read(folder):
    with open(folder / "arguments.json", "wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(CheckpointError, match="arguments.json cannot be read: Has more than the 67108864 bytes"):
        run_record.arguments(folder)


def test_a_second_writer_never_comes_in(folder):
    with locks.lock_folder(folder):
        for _ in range(2):
            assert locks.is_locked(folder)
            with pytest.raises(OptionError, match="is being written by another process"), locks.lock_folder(folder):
                pass
    with locks.lock_folder(folder):
        assert (folder / ".lock").read_text() == f"pid {os.getpid()}\n"


def test_a_folder_that_nobody_may_write_is_a_refusal(folder, monkeypatch):
    """The superuser may write anywhere, so the system's answer is made here."""

    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files, "append", read_only)
    with (
        pytest.raises(OptionError, match=r"cannot be written \(Read-only file system\)"),
        locks.lock_folder(folder),
    ):
        pass


def lock(file: Path) -> None:
    with locks.lock_folder(file.parent):
        pass


@contextmanager
def no_room() -> Iterator[None]:
    """No file may grow, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "name, write",
    [
        (".lock", lock),
        ("rows.csv", lambda file: Table(file, ("iteration",), 0).append({"iteration": 1})),
        ("weights.npz", lambda file: npz_weights.write(file, {"a": np.ones(99)}, {})),
        ("labels.txt", lambda file: export_folder.put(file.parent, file.parent, {file.name: "ant\n"})),
    ],
)
def test_a_full_disk_is_told_of_with_the_file_that_has_no_room(folder, name: str, write: Callable[[Path], None]):
    """A write's own error names none."""
    with no_room(), pytest.raises(OSError, match="File too large") as caught:
        write(folder / name)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(folder / name))


def test_weights_that_do_not_fit_leave_the_earlier_ones(folder):
    npz_weights.write(folder / "a.npz", {"a": np.ones(99)}, {})
    with no_room(), pytest.raises(OSError, match="File too large"):
        npz_weights.write(folder / "a.npz", {"a": np.zeros(99)}, {})
    assert npz_weights.arrays(folder / "a.npz")["a"].all() and os.listdir(folder) == ["a.npz"]
