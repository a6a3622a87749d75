"""Write and check the manifest of a checkpoint: the length and SHA-256 digest of each file, the run, and the update.

A manifest is written after the files. The manifest lists only the endings of file names, so a copy may have another name.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnn_harness.base import bounds
from cnn_harness.base.storage import files, input_files

ITERATION = "iteration"  # a key of the identity: the number of finished updates
_SUFFIX = ".manifest.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def write(prefix: Path, identity: Mapping[str, Any] | None = None) -> None:
    """Flush the files of a checkpoint to disk and write the manifest. `identity` is the run and the update."""
    tensors = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")
    listed = {}
    for file in (*tensors, *(prefix.with_name(f"{prefix.name}{end}") for end in (".index", ".state.json"))):
        if file.exists():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
            listed[file.name[len(prefix.name) :]] = {"bytes": file.stat().st_size, "sha256": input_files.sha256(file)}
    content = {"files": listed, "identity": dict(identity or {})}
    files.write_atomically(_path(prefix), json.dumps(content, indent=1, sort_keys=True) + "\n")


def exists(prefix: Path) -> bool:
    """Return whether a checkpoint has a manifest."""
    return _path(prefix).exists()


def identity(prefix: Path) -> dict[str, Any]:
    """Return the run and the update of a checkpoint, or {} if they are unknown."""
    with suppress(*_UNREADABLE):
        return dict(_content(prefix)["identity"].items())
    return {}


def matches(file: Path, prefix: Path) -> bool:
    """Return whether a file of a checkpoint has the digest in the manifest."""
    with suppress(*_UNREADABLE):
        return _is_as_listed(file, _content(prefix)["files"][file.name[len(prefix.name) :]])
    return False


def find_damage(prefix: Path, digests: bool = True) -> str | None:
    """Return a message about the first file of a checkpoint that differs from the manifest.

    Return None if all files match, or if there is no manifest. If `digests` is False, compare only the lengths of files.
    """
    name = _path(prefix).name
    try:
        for end, listed in _content(prefix)["files"].items():
            name = f"{prefix.name}{end}"
            if not _is_as_listed(prefix.with_name(name), listed, digests):
                return f"{name} has changed since it was written"
    except FileNotFoundError:
        return f"{name} is missing" if exists(prefix) else None
    except _UNREADABLE:
        return f"{name} cannot be read"
    return None


def _is_as_listed(file: Path, listed: Mapping[str, Any], digests: bool = True) -> bool:
    return file.stat().st_size == listed["bytes"] and (not digests or input_files.sha256(file) == listed["sha256"])


def _content(prefix: Path) -> Any:
    return bounds.json_value(input_files.content(_path(prefix), bounds.TEXT))


def _path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _SUFFIX)
