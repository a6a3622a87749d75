"""The folder of an export: written beside its place, and moved there once every file agrees with the checkpoint."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from base.errors import OptionError
from base.storage import files, input_files, locks
from harness.export.file_formats import FORMATS
from harness.export.network import LABELS, PREPROCESSING

PROGRAM = Path(__file__).with_name("predict.py")  # which names photos with the files
_TEXTS = (LABELS, PREPROCESSING, PROGRAM.name)
FILES = (*_TEXTS, *(name for each in FORMATS.values() for name in (each.file, each.quantised) if name))
_MAX_BYTES = 64 << 20  # of a text


def check(folder: Path, texts: Mapping[str, str], force: bool) -> None:
    """Raise OptionError for a place that is no folder, or that holds the export of other weights, unless `force`."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise OptionError(f"--output {folder} is no folder; give another name")
    there = [name for name in FILES if os.path.lexists(folder / name)]
    if there and not force and not _has(folder, texts):
        raise OptionError(
            f"{folder} holds an export of something else ({', '.join(there)}); --force replaces it, --output names another "
            "place"
        )


def _has(folder: Path, texts: Mapping[str, str]) -> bool:
    try:
        return all(input_files.text(folder / name, _MAX_BYTES) == text for name, text in texts.items())
    except (OSError, UnicodeDecodeError):
        return False


def staged(folder: Path) -> AbstractContextManager[Path]:
    """Make a folder on the same disk for unfinished files, and remove it in the end."""
    return locks.scratch_folder(files.nearest_folder(folder), ".unfinished-export-")


def put(staging: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Move finished files into their folder, with the texts that belong to them, and remove those of another export.

    The texts go first: by them `check` recognises this export when a call was killed in between.
    """
    finished = [path.name for path in staging.iterdir()]
    written = {**texts, PROGRAM.name: PROGRAM.read_text(encoding="utf-8")}
    for name, text in written.items():
        with files.naming(folder / name):
            (staging / name).write_text(text, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for name in finished if _has(folder, texts) else FILES:
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    for name in (*written, *finished):
        os.replace(staging / name, folder / name)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
