"""The memory that this process may have: of the machine, of its control groups (versions 1 and 2), of ulimit.

Host memory, never that of an IPU. Limits alone, no needs; imports nothing of the project.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

RESIDENT, DATA, ADDRESSES = "resident", "data", "addresses"  # kinds of memory that a limit counts
_UNLIMITED = 1 << 60  # version 1 of the control groups writes 2^63 less a page for none
_ULIMITS = ((DATA, resource.RLIMIT_DATA, "ulimit -d"), (ADDRESSES, resource.RLIMIT_AS, "ulimit -v"))


@dataclass(frozen=True)
class Limit:
    """A limit in bytes on one kind of memory. `source`: who sets the limit, with a verb, as in "ulimit -v allows".
    `shared`: by all processes of this machine or of the group."""

    kind: str
    bytes: int
    source: str
    shared: bool = False


def limits(root: Path = Path("/")) -> tuple[Limit, ...]:
    """Every limit; files that cannot be read give none."""
    return (*_machine(root), *_groups(root), *_own())


def hard_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that machine, groups and ulimit allow this process, whatever is in use now; None without any limit."""
    total = _meminfo(root).get("MemTotal")
    bytes_allowed = [limit.bytes for limit in (*_groups(root), *_own()) if limit.kind != ADDRESSES]
    return min([*bytes_allowed, *([total] if total else [])], default=None)


def _machine(root: Path) -> Iterator[Limit]:
    """The bytes that are free now or can be freed: the file cache, and swap."""
    meminfo = _meminfo(root)
    if "MemAvailable" in meminfo:
        yield Limit(RESIDENT, meminfo["MemAvailable"] + meminfo.get("SwapFree", 0), "this machine has", shared=True)


def _meminfo(root: Path) -> Mapping[str, int]:
    rows = (line.split() for line in _text(root / "proc/meminfo").splitlines())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _groups(root: Path) -> Iterator[Limit]:
    """Yield the limit of each group that this process is in, and of those above; a container's own group lies at the top."""
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
