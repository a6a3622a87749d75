"""The host memory that this process may use: limits of the machine, of control groups (versions 1 and 2) and of ulimit."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RESIDENT, DATA, ADDRESSES = "resident", "data", "addresses"  # kinds of memory that a limit counts
_UNLIMITED = 1 << 60  # version 1 of the control groups writes 2^63 minus a page for "no limit"
_ULIMITS = ((DATA, resource.RLIMIT_DATA, "ulimit -d"), (ADDRESSES, resource.RLIMIT_AS, "ulimit -v"))


@dataclass(frozen=True)
class Limit:
    """A limit in bytes on one kind of memory.

    `source` says what sets the limit, with a verb, as in "ulimit -v allows". `shared` is true if all processes of the
    machine or group share the limit.
    """

    kind: str
    bytes: int
    source: str
    shared: bool = False


def limits(root: Path = Path("/")) -> tuple[Limit, ...]:
    """Return every limit. A file that cannot be read sets no limit."""
    return (*_machine(root), *_groups(root), *_own())


def hard_bytes(root: Path = Path("/")) -> int | None:
    """Return the number of bytes that this process may use if other processes use none; None if nothing limits it."""
    total = _meminfo(root).get("MemTotal")
    bytes_allowed = [limit.bytes for limit in (*_groups(root), *_own()) if limit.kind != ADDRESSES]
    return min([*bytes_allowed, *([total] if total else [])], default=None)


def _machine(root: Path) -> Iterator[Limit]:
    """Yield the memory that is free or can be freed: the file cache, and swap."""
    meminfo = _meminfo(root)
    if "MemAvailable" in meminfo:
        yield Limit(RESIDENT, meminfo["MemAvailable"] + meminfo.get("SwapFree", 0), "this machine has", shared=True)


def _meminfo(root: Path) -> Mapping[str, int]:
    rows = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _groups(root: Path) -> Iterator[Limit]:
    """Yield the limits of this process's control groups and of their parents, up to the group of a container."""
    top = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            places = ((top, "memory.max"), (top / "unified", "memory.max"))
        elif "memory" in controllers.split(","):
            places = ((top / "memory", "memory.limit_in_bytes"),)
        else:
            continue
        own = Path(path.lstrip("/"))
        for base, name in places:
            for group in (own, *own.parents):
                words = _text(base / group / name).split()
                if words and words[0].isdigit() and int(words[0]) < _UNLIMITED:
                    yield Limit(RESIDENT, int(words[0]), "the control group (container) allows", shared=True)


def _own() -> Iterator[Limit]:
    for kind, number, source in _ULIMITS:
        soft, _ = resource.getrlimit(number)
        if soft != resource.RLIM_INFINITY:
            yield Limit(kind, soft, f"{source} allows")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
