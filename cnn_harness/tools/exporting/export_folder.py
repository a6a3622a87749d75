"""Write the output folder of an export. The files go to a temporary folder first, and are moved when all are checked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import files, input_files, locks
from cnn_harness.tools.exporting import readme
from cnn_harness.tools.exporting.file_formats import FORMATS
from cnn_harness.tools.exporting.network import LABELS, PREPROCESSING

PROGRAM = Path(__file__).with_name("predict.py")  # classifies photos with the exported files
PAGE = Path(__file__).with_name("index.html")  # classifies photos in a browser with the ONNX file
_TEXTS = (LABELS, PREPROCESSING, PROGRAM.name, PAGE.name, readme.FILE)
FILES = (*_TEXTS, *(name for each in FORMATS.values() for name in (each.file, each.quantised) if name))
_MAX_BYTES = 64 << 20


def check(folder: Path, texts: Mapping[str, str], force: bool) -> None:
    """Raise OptionError if `folder` is a file, or if it contains an export of other weights and `force` is false."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise OptionError(f"--output {folder} is not a folder; give another name")
    there = [name for name in FILES if os.path.lexists(folder / name)]
    if there and not force and not _has(folder, texts):
        raise OptionError(
            f"{folder} contains another export, or files of the same names ({', '.join(there)}); give --force to replace "
            "them, or another --output"
        )


def _has(folder: Path, texts: Mapping[str, str]) -> bool:
    try:
        return all(input_files.text(folder / name, _MAX_BYTES) == text for name, text in texts.items())
    except (OSError, UnicodeDecodeError):
        return False


def staged(folder: Path) -> AbstractContextManager[Path]:
    """Return a context manager for a temporary folder on the same disk as `folder`."""
    return locks.scratch_folder(files.nearest_folder(folder), ".unfinished-export-")


def put(staging: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Write the text files, then move them and the exported files into the folder. Remove files of another export.

    The text files are moved first. If the process is then killed, `check` still recognises the export by the text files.
    """
    finished = [path.name for path in staging.iterdir()]
    same = _has(folder, texts)  # Its other files stay.
    exported = {*finished, *(name for name in FILES if same and os.path.lexists(folder / name))}
    programs = [PROGRAM] + [PAGE] * any(name.endswith(".onnx") for name in exported)
    written = {**texts, readme.FILE: readme.text(json.loads(texts[PREPROCESSING]), exported)}
    written |= {path.name: path.read_text(encoding="utf-8") for path in programs}
    for name, text in written.items():
        with files.naming(folder / name):
            (staging / name).write_text(text, encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for name in finished if same else FILES:
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    for name in (*written, *finished):
        os.replace(staging / name, folder / name)


def size(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
