"""The folder of an export: written beside its place, and moved there when every file has proved right."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from base.errors import OptionError
from base.storage import files, input_files
from harness.export.formats import FORMATS
from harness.export.network import LABELS, PREPROCESSING

FILES = (LABELS, PREPROCESSING, *(name for each in FORMATS.values() for name in (each.file, each.quantised) if name))
_MOST_BYTES = 64 << 20  # of a text


def check(folder: Path, texts: Mapping[str, str], force: bool) -> None:
    """OptionError for a place that is no folder, or that holds the export of something else: another network, other weights,
    or other sizes of pictures."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise OptionError(f"--output {folder} is no folder; give another name")
    there = [name for name in FILES if os.path.lexists(folder / name)]
    if there and not force and not _holds(folder, texts):
        raise OptionError(
            f"{folder} holds an export of something else ({', '.join(there)}); --force replaces it, --output names another "
            "place"
        )


def _holds(folder: Path, texts: Mapping[str, str]) -> bool:
    """Return whether the texts of an export are the same ones."""
    with suppress(OSError, UnicodeDecodeError):
        return all(input_files.text(folder / name, _MOST_BYTES) == text for name, text in texts.items())
    return False


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A folder on the same disk for files that are not finished; nothing of it stays. OptionError if none can be made."""
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    try:
        beside = Path(tempfile.mkdtemp(prefix=".export-", dir=above))
    except OSError as error:
        raise OptionError(f"--output {folder} cannot be written: {error.strerror}; give --output another place") from None
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def put(staging: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Moves finished files into their folder, with the texts that belong to them; those of another export go."""
    for name, text in texts.items():
        with files.naming(folder / name):
            (staging / name).write_text(text, encoding="utf-8")
    written, old = [path.name for path in staging.iterdir()], staging / "replaced"
    gone = written if _holds(folder, texts) else FILES
    folder.mkdir(parents=True, exist_ok=True)
    old.mkdir()
    for name in gone:
        if os.path.lexists(folder / name):
            os.replace(folder / name, old / name)
    for name in written:
        os.replace(staging / name, folder / name)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
