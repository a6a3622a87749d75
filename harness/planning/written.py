"""Files that plan.py writes."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from base.errors import OptionError
from base.storage import files
from harness.planning.searched import Planned

_OF_A_RUN = ("arguments", "ckpt-", "checkpoint", "log.txt", "training.", "validation.")  # beginnings of its files' names


def json_file(planned: Sequence[Planned], target: str) -> None:
    """Write one object, or a list of them for several plans; `-`: on standard output."""
    each = [values(one) for one in planned]
    text = json.dumps(each[0] if len(each) == 1 else each, indent=1) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        whole(target, text)


def values(planned: Planned) -> dict[str, Any]:
    """Return a plan's values for JSON."""
    found = {"configuration": planned.block, "looked_at": planned.looked_at} if planned.given else {}
    given = {"given": planned.given.values()} if planned.given else {}
    return {"name": planned.name, **planned.prediction.values(), "remedies": list(planned.remedies), **found, **given}


def whole(target: str, text: str) -> None:
    """Writes a file, whole or not at all, and through a link or into a pipe or device as such; OptionError where it cannot
    be, OSError where the disk is full or fails."""
    path = Path(target)
    if (path.parent / "arguments.json").exists() and path.name.startswith(_OF_A_RUN):
        raise OptionError(
            f"{target}: {path.parent} is the folder of a run, which writes such files itself; give another name"
        )
    try:
        if not path.parent.is_dir():
            raise OptionError(f"{target}: there is no folder {path.parent}; make it first")
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
        else:
            files.write_atomically(path.resolve(), text)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
            raise OSError(error.errno, error.strerror, target) from None
        raise OptionError(f"{target} cannot be written: {error.strerror or error}") from None
