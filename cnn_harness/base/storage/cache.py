"""Expand included data sets once into the user's cache folder; several processes may do this at the same time.

A data set is built in a temporary folder, which is renamed when it is complete. Recorded sizes and digests show whether
the files are intact.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from cnn_harness.base import bounds
from cnn_harness.base.errors import DataError
from cnn_harness.base.storage import input_files

_PROJECT = "cnn-harness"
_RECORD = "checksums.json"
_ATTEMPTS = 8  # attempts to rename the folder; one fails if another process has just created the folder


def expanded(name: str, build: Callable[[Path], None], environ: Mapping[str, str]) -> Path:
    """Return the cache's folder `name`; call `build(folder)` first if it is missing or damaged."""
    failures = []
    for base in _bases(environ):
        try:
            base.mkdir(parents=True, exist_ok=True, mode=0o700)
            if base.stat().st_uid != os.getuid():  # another user may have created the temporary folder
                raise PermissionError(13, "belongs to another user", str(base))
            return _expanded_in(base / name, build)
        except OSError as error:
            failures.append(f"{base}: {error.strerror or error}")
    raise DataError(
        f"data set {name} cannot be expanded because no cache folder is writable ({'; '.join(failures)}); "
        "set XDG_CACHE_HOME to a folder with free space"
    )


def folder(environ: Mapping[str, str]) -> Path:
    """Return the user's cache folder of this project, which may not exist."""
    return next(_bases(environ))


def _bases(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    yield Path(home) / _PROJECT
    yield Path(tempfile.gettempdir()) / f"{_PROJECT}-{os.getuid()}"


def _expanded_in(final: Path, build: Callable[[Path], None]) -> Path:
    if _is_whole(final):
        return final
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent, ignore_cleanup_errors=True) as top:
        new = Path(top, "new")
        new.mkdir()
        build(new)
        rows = {file.name: [file.stat().st_size, input_files.sha256(file)] for file in sorted(new.iterdir())}
        (new / _RECORD).write_text(json.dumps(rows, indent=1), encoding="utf-8")
        for _ in range(_ATTEMPTS):
            try:
                os.rename(new, final)
                return final
            except OSError:
                if _is_whole(final):  # another process has created it
                    return final
            with suppress(FileNotFoundError):  # a folder deleted in place would be seen half deleted
                os.rename(final, tempfile.mkdtemp(dir=top))
    raise OSError(f"{final} is damaged and cannot be replaced")


def _is_whole(folder: Path) -> bool:
    try:
        rows = bounds.json_value(input_files.content(folder / _RECORD, bounds.TEXT))
        return bool(rows) and all(
            (folder / name).stat().st_size == size and input_files.sha256(folder / name) == digest
            for name, (size, digest) in rows.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False
