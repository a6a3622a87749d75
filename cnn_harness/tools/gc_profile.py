"""Run a training command and write a profile of it into a directory:

gc-profile -d profile -- python train.py --config quickstart
gc-profile -d profile -- python train.py --config quickstart --gc-profile DEVICE_PROFILE
"""

from __future__ import annotations

if __name__ == "__main__":  # before the slow imports
    from cnn_harness.base.process import early_exit

    early_exit.install("gc-profile")

import argparse
import os
import sys
from pathlib import Path

from cnn_harness.base.process import jobs
from cnn_harness.harness.reports.profile import FOLDER_VARIABLE, STEM


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    own, command = _parted(words)
    parser = argparse.ArgumentParser(
        prog="gc-profile", usage="gc-profile -d DIR -- command [arguments]",
        description="Run a training command and record its second weight update, as a Chrome trace and a chart in DIR.",
    )  # fmt: skip
    parser.add_argument(
        "-d", "--directory", metavar="DIR", required=True, help="write profile.json and profile.svg to this folder"
    )
    folder = Path(parser.parse_args(own).directory or ".").absolute()
    if not command:
        parser.error("no command given; write it after --, as in gc-profile -d DIR -- python train.py --config quickstart")
    written = folder / f"{STEM}.json"
    before = _state(written)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with jobs.Children() as child, jobs.forwarding(child):
            child.start(command[0], command, {**os.environ, FOLDER_VARIABLE: str(folder)})
            code = child.wait(0).code
    except OSError as error:
        print(f"gc-profile: error: {error.strerror}: {error.filename}", file=sys.stderr)
        return 2
    if code == 0 and _state(written) in (None, before):
        print(f"gc-profile: warning: the command wrote no profile to {folder}", file=sys.stderr)
    return code


def _state(file: Path) -> tuple[int, int] | None:
    """Return the inode and the modification time in ns of a file, or None if the file does not exist.

    At least one of the two changes when the file is replaced, even if the clock was set back.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _parted(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words at the first `--`; without `--`, split them after -d DIR."""
    if "--" in words:
        at = words.index("--")
        return words[:at], words[at + 1 :]
    at = 2 if words[:1] in (["-d"], ["--directory"]) else 1
    return words[:at], words[at:]


if __name__ == "__main__":
    sys.exit(main())
