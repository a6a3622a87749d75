"""Manifests, which prove a checkpoint whole: the length and the digest of each of its files, written after them."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from base import bounds
from base.fields import brief
from base.storage import files, input_files
from harness.checkpoints.checkpoint import updates_in_name

_SUFFIX = ".manifest.json"
_AVERAGE = "average"
_LONGEST_NAME = 255  # bytes, of most file systems
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def write(prefix: Path, average: Mapping[str, Any] | None = None) -> None:
    """Write the manifest after all files of the checkpoint: they are on the disk then, and the manifest says so. `average`:
    what one of a run's averages is of."""
    content = {"files": {file.name: _length_and_digest(file, sync=True) for file in _existing_files(prefix)}}
    if average:
        content[_AVERAGE] = dict(average)
    files.write_atomically(_path(prefix), json.dumps(content, indent=1, sort_keys=True) + "\n")


def average(prefix: Path) -> dict[str, Any]:
    """Return what the average of a run is of, as `write` was told; empty for any other checkpoint."""
    with suppress(*_UNREADABLE):
        return dict(_content(prefix)[_AVERAGE].items())
    return {}


def exists(prefix: Path) -> bool:
    """Return whether a checkpoint has a manifest."""
    return os.path.lexists(_path(prefix))


def matches(file: Path, prefix: Path) -> bool:
    """Return whether the manifest of a checkpoint lists one of its files as it is."""
    with suppress(*_UNREADABLE):
        return _entries_under_present_name(_read_entries(prefix), prefix).get(file.name) == _length_and_digest(file)
    return False


def find_damage(prefix: Path) -> str | None:
    """The first file of a checkpoint that differs from its manifest, as a message; None if all is well. Without a manifest,
    as of other programs, the files must be regular ones at least."""
    try:
        listed = _read_entries(prefix)
    except FileNotFoundError:
        return next(filter(None, map(_not_regular_reason, _existing_files(prefix))), None)
    except _UNREADABLE:
        return f"{_path(prefix).name} cannot be read"
    listed = _entries_under_present_name(listed, prefix)
    for file in _existing_files(prefix):
        if file.name not in listed:
            return f"{file.name} is not in its manifest, which is of {', '.join(sorted(listed)[:3]) or 'nothing'}"
    for name, described in listed.items():
        damage = _difference_from_entry(prefix, name, described)
        if damage:
            return damage
    return None


def find_truncation(prefix: Path) -> str | None:
    """The first file of a checkpoint that is missing, or has another length than its manifest says, as a message: the damage
    that shows without reading tensors. None if there is none, or no manifest."""
    try:
        listed = _entries_under_present_name(_read_entries(prefix), prefix)
        lengths = {name: described["bytes"] for name, described in listed.items()}
    except FileNotFoundError:
        return None
    except _UNREADABLE:
        return f"{_path(prefix).name} cannot be read"
    for name, length in lengths.items():
        file = prefix.with_name(name)
        damage = _not_regular_reason(file)
        if damage:
            return damage
        if file.stat().st_size != length:
            return f"{file.name} is cut short or overwritten"
    return None


def _content(prefix: Path) -> Any:
    return bounds.json_value(input_files.content(_path(prefix), bounds.TEXT))


def _read_entries(prefix: Path) -> dict[str, Any]:
    """Length and digest of each file by the manifest; ValueError for what cannot be the name of a file beside it."""
    listed = dict(_content(prefix)["files"].items())
    for name in listed:
        if name in ("", ".", "..") or {*name} & {"/", "\0"} or len(os.fsencode(name)) > _LONGEST_NAME:
            raise ValueError(f"{brief(name)} is no name of a file")
    return listed


def _entries_under_present_name(listed: dict[str, Any], prefix: Path) -> dict[str, Any]:
    """The listed files under the present name of a checkpoint, if it was renamed and the name promises no other update."""
    earlier = next((name.removesuffix(".index") for name in listed if name.endswith(".index")), prefix.name)
    promised = updates_in_name(prefix.name)
    if promised not in (None, updates_in_name(earlier)) or not all(name.startswith(f"{earlier}.") for name in listed):
        return listed
    return {prefix.name + name[len(earlier) :]: described for name, described in listed.items()}


def _difference_from_entry(prefix: Path, name: str, described: Any) -> str | None:
    file = prefix.with_name(name)
    try:
        actual = _length_and_digest(file)
    except OSError as error:
        return _error_text(file, error)
    if actual == described:
        return None
    same = isinstance(described, dict) and actual["bytes"] == described.get("bytes")
    return f"{file.name} has other bytes than were written" if same else f"{file.name} is cut short or overwritten"


def _error_text(file: Path, error: OSError) -> str:
    return f"{file.name} is missing" if isinstance(error, FileNotFoundError) else f"{file.name}: {error.strerror}"


def _not_regular_reason(file: Path) -> str | None:
    try:
        input_files.open_regular_file(file).close()
    except OSError as error:
        return _error_text(file, error)
    return None


def _path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _SUFFIX)


def _existing_files(prefix: Path) -> list[Path]:
    """The files of a checkpoint: index, tensors and state."""
    candidates = [
        *prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*"),
        *map(prefix.with_name, _index_and_state_names(prefix)),
    ]
    return sorted(file for file in candidates if os.path.lexists(file))


def _index_and_state_names(prefix: Path) -> list[str]:
    return [f"{prefix.name}.index", f"{prefix.name}.state.json"]


def _length_and_digest(file: Path, sync: bool = False) -> dict[str, Any]:
    """Length and digest; with `sync` not before the file is on the disk."""
    with input_files.open_regular_file(file) as opened:
        if sync:
            os.fsync(opened.fileno())
        digest = input_files.sha256(opened)
        return {"bytes": opened.tell(), "sha256": digest}
