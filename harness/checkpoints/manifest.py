"""Manifests prove a checkpoint whole: length and SHA-256 digest of each file, written after the files, and the run and the
update that the checkpoint is of."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from base import bounds
from base.storage import files, input_files

_SUFFIX = ".manifest.json"
_FILES, _IDENTITY, _BYTES = (
    "files",
    "identity",
    "bytes",
)  # files by the ends of their names, so that a copy may have any name
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def write(prefix: Path, identity: Mapping[str, Any] | None = None) -> None:
    """Write the manifest after all files of the checkpoint, which are on the disk then. `identity`: its run and update."""
    content = {
        _FILES: {file.name[len(prefix.name) :]: _described(file, sync=True) for file in _existing_files(prefix)},
        _IDENTITY: dict(identity or {}),
    }
    files.write_atomically(_path(prefix), json.dumps(content, indent=1, sort_keys=True) + "\n")


def exists(prefix: Path) -> bool:
    """Return whether a checkpoint has a manifest."""
    return os.path.lexists(_path(prefix))


def identity(prefix: Path) -> dict[str, Any]:
    """Return the run and the update that a checkpoint is of, as `write` was given them; empty if nothing says so."""
    with suppress(*_UNREADABLE):
        return dict(_content(prefix)[_IDENTITY].items())
    return {}


def matches(file: Path, prefix: Path) -> bool:
    """Return whether the manifest of a checkpoint lists one of its files as it is."""
    with suppress(*_UNREADABLE):
        return _content(prefix)[_FILES][file.name[len(prefix.name) :]] == _described(file)
    return False


def find_damage(prefix: Path) -> str | None:
    """Return the first file of a checkpoint that differs from its manifest, as a message. None without a difference, or
    without a manifest."""
    return _first_difference(prefix, _described)


def find_truncation(prefix: Path) -> str | None:
    """Return the first file that is missing or has another length, as `find_damage` does without reading the files."""
    return _first_difference(prefix, lambda file: {_BYTES: file.stat().st_size})


def _first_difference(prefix: Path, describe: Callable[[Path], dict[str, Any]]) -> str | None:
    try:
        listed = {end: dict(described) for end, described in _content(prefix)[_FILES].items()}
    except FileNotFoundError:
        return None
    except _UNREADABLE:
        return f"{_path(prefix).name} cannot be read"
    unlisted = [file.name for file in _existing_files(prefix) if file.name[len(prefix.name) :] not in listed]
    if unlisted:
        return f"{unlisted[0]} is not in its manifest"
    for end, described in listed.items():
        name = f"{prefix.name}{end}"
        try:
            found = describe(prefix.with_name(name))
        except (OSError, ValueError) as error:
            return f"{name} is missing" if isinstance(error, FileNotFoundError) else f"{name}: {bounds.reason(error)}"
        if found != {key: described.get(key) for key in found}:
            same = found[_BYTES] == described.get(_BYTES)
            return f"{name} has other bytes than were written" if same else f"{name} is cut short or overwritten"
    return None


def _content(prefix: Path) -> Any:
    return bounds.json_value(input_files.content(_path(prefix), bounds.TEXT))


def _path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _SUFFIX)


def _existing_files(prefix: Path) -> list[Path]:
    """Return the files of a checkpoint: index, tensors and state."""
    tensors = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")
    others = (prefix.with_name(f"{prefix.name}{end}") for end in (".index", ".state.json"))
    return sorted(file for file in (*tensors, *others) if os.path.lexists(file))


def _described(file: Path, sync: bool = False) -> dict[str, Any]:
    """Return length and digest; with `sync` once the file is on the disk."""
    with input_files.open_regular_file(file) as opened:
        if sync:
            os.fsync(opened.fileno())
        digest = input_files.sha256(opened)
        return {_BYTES: opened.tell(), "sha256": digest}
