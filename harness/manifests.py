"""Whether a checkpoint is whole: a manifest with the length and the digest of each of its files, written after them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from log import write_atomically

_SUFFIX = ".manifest.json"


def write(prefix: Path) -> None:
    """After all files of the checkpoint are written: they are on the disk then, and the manifest says so."""
    files = {file.name: _described(file, sync=True) for file in _files(prefix)}
    write_atomically(_path(prefix), json.dumps({"files": files}, indent=1, sort_keys=True) + "\n")


def damage(prefix: Path) -> str | None:
    """What is wrong with the files of a checkpoint by its manifest; None if all is well, or if there is no manifest, as
    with checkpoints that other programs wrote."""
    try:
        wanted = json.loads(_path(prefix).read_text(encoding="utf-8"))["files"].items()
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{_path(prefix).name} cannot be read"
    for name, described in wanted:
        file = prefix.with_name(Path(name).name)
        try:
            found = _described(file)
        except OSError:
            return f"{file.name} is missing"
        if found != described:
            same = isinstance(described, dict) and found["bytes"] == described.get("bytes")
            return f"{file.name} has other bytes than were written" if same else f"{file.name} is cut short or overwritten"
    return None


def _path(prefix: Path) -> Path:
    return prefix.with_name(prefix.name + _SUFFIX)


def _files(prefix: Path) -> list[Path]:
    return sorted(file for file in prefix.parent.glob(f"{prefix.name}.*") if not file.name.endswith(_SUFFIX))


def _described(file: Path, sync: bool = False) -> dict[str, Any]:
    """Length and digest; with `sync` not before the file is on the disk."""
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        if sync:
            os.fsync(opened.fileno())
        while part := opened.read(1 << 22):
            digest.update(part)
        return {"bytes": opened.tell(), "sha256": digest.hexdigest()}
