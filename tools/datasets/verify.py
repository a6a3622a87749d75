"""Reads a whole data set and names every damaged record: a converted folder or ImageNet's shards, a tree of pictures,
CIFAR's binary files.

python -m Datasets.verify DIR                 decodes every picture, as training would
python -m Datasets.verify DIR --no-decode     lengths, checksums and labels alone

Exit code 0: all is well. 1: something is damaged. 2: wrong input.
"""

from __future__ import annotations

if __name__ == "__main__":  # before what takes time to import
    from base.process import startup

    startup.begin("verify")

import argparse
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import DataError
from base.process import command_line, tf_runtime
from base.process.progress import Progress
from tools.datasets import dataset_checks

if TYPE_CHECKING:
    from tools.datasets.example_checks import ExampleChecker


def main(argv: list[str]) -> int:
    """parse -> find -> check every file -> count."""
    arguments = _parse(argv)

    def checker() -> ExampleChecker:
        tf_runtime.import_tensorflow()
        from tools.datasets.example_checks import ExampleChecker

        return ExampleChecker(arguments.decode)

    stop = threading.Event()
    work = dataset_checks.work(Path(arguments.folder), arguments.num_classes, checker, stop)
    for note in work.notes:
        print(note)
    for finding in work.findings:
        print(finding)
    records, damaged = 0, len(work.findings)
    with Progress("files", len(work.files)) as progress, ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            futures = [pool.submit(check, file) for file, check in work.files]
            for future in futures:  # in the order of the files
                result = future.result()
                for finding in result.findings:
                    print(finding)
                records += result.records
                damaged += len(result.findings)
                progress.advance()
        finally:  # also after a signal, when a file may be long
            stop.set()
            pool.shutdown(cancel_futures=True)
    print(f"{work.kind}: {len(work.files)} files, {records} records, {damaged or 'nothing'} damaged or missing")
    return 1 if damaged else 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = command_line.Parser(
        prog="python -m Datasets.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", metavar="DIR", help="the data set")
    add("--decode", action=argparse.BooleanOptionalAction, default=True, help="decode every picture (default)")
    add(
        "--num-classes",
        type=command_line.int_between(1, 2**31 - 1),
        metavar="N",
        help="labels are from 1 to N (default: labels.txt, else 1000)",
    )
    jobs = command_line.int_between(1, 256)
    add("--jobs", type=jobs, metavar="N", default=os.cpu_count() or 1, help="files checked at once")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(command_line.run("verify", main, None, (DataError,), unprintable="backslashreplace"))
