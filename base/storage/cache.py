"""Files that are expanded once, in the user's cache: atomic, verified, safe for several processes at once.

A folder is built under a temporary name and renamed when complete, so that a folder of the final name was once
whole; sizes and checksums recorded beside the files show whether it still is.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from base import bounds
from base.errors import DataError
from base.storage import input_files

_PROJECT = "cnn-harness"
_RECORD = "checksums.json"
_ATTEMPTS = 8  # every lost race means that another process has just put a folder in place


def expanded(name: str, build: Callable[[Path], None], environ: Mapping[str, str]) -> Path:
    """The folder `name` of the cache, made by `build(folder)` when it is absent or damaged."""
    failures = []
    for base in _bases(environ):
        try:
            _claim(base)
            return _expanded_in(base / name, build)
        except OSError as error:
            failures.append(f"{base}: {error.strerror or error}")
    raise DataError(
        f"data set {name} cannot be expanded: no cache folder can be written ({'; '.join(failures)}); "
        "set XDG_CACHE_HOME to a folder with free space"
    )


def folder(environ: Mapping[str, str]) -> Path:
    """The user's cache of this project, there or not."""
    return next(_bases(environ))


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with input_files.open_regular_file(file) as stream:
        return input_files.sha256(stream)


def _bases(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    yield Path(home) / _PROJECT
    yield Path(tempfile.gettempdir()) / f"{_PROJECT}-{os.getuid()}"


def _claim(base: Path) -> None:
    """Make the folder; the temporary one lies where others could have made it first, so the owner counts."""
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    if base.stat().st_uid != os.getuid():
        raise PermissionError(13, "belongs to another user", str(base))


def _expanded_in(final: Path, build: Callable[[Path], None]) -> Path:
    if _is_whole(final):
        return final
    unfinished = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        build(unfinished)
        _record(unfinished)
        _put_in_place(unfinished, final)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return final


def _record(folder: Path) -> None:
    rows = {file.name: [file.stat().st_size, digest(file)] for file in sorted(folder.iterdir())}
    (folder / _RECORD).write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _is_whole(folder: Path) -> bool:
    try:
        rows = bounds.json_value(input_files.content(folder / _RECORD, bounds.TEXT))
        return bool(rows) and all(
            (folder / name).stat().st_size == size and digest(folder / name) == wanted
            for name, (size, wanted) in rows.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename; a folder that is in the way is kept when it is whole and moved aside when it is not."""
    for _ in range(_ATTEMPTS):
        try:
            os.rename(temporary, final)
            return
        except OSError:
            if _is_whole(final):
                return
        _remove(final)
    raise OSError(f"{final} is damaged and cannot be replaced")


def _remove(damaged: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{damaged.name}-", dir=damaged.parent))
    try:
        os.rename(damaged, aside / "damaged")  # no other process can see a half-deleted folder
    except FileNotFoundError:
        pass
    finally:
        shutil.rmtree(aside, ignore_errors=True)
