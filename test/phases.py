"""Where the tests' time goes: `pytest --phases=FILE` notes each test's, `python test/phases.py FILE` prints it.

A line of the file is a test as JSON: seconds of wall time, of this process' CPU time and of that of its ended children; and of
the programs that it builds in this process: seconds of building the graph, of optimising or loading it, of the first host step,
in which XLA compiles, and of all later ones. A worker's first line is of what it imports.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

IMPORTS = "imports and collection"
_FIRST, _LATER = "first host step", "later host steps"
_TOP = 40  # of the tests that are printed


class Recorder:
    """A plug-in of pytest, one in each worker."""

    def __init__(self, path: Path) -> None:
        self._path, self._phases = path, Counter()
        self._before = self._clocks()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self._note(IMPORTS)
        from emulator.inference import program as inference
        from emulator.program import executor

        self._watch(executor.TrainingProgram, "_run")
        self._watch(inference.InferenceProgram, "step")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._before = self._clocks()
        self._phases.clear()
        yield
        self._note(item.nodeid)

    def _note(self, name: str) -> None:
        wall, own, children = (after - before for before, after in zip(self._before, self._clocks()))
        row = {"test": name, "worker": os.environ.get("PYTEST_XDIST_WORKER", "alone"), "wall": wall, "cpu": own,
               "children": children, "phases": dict(self._phases)}  # fmt: skip
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    @staticmethod
    def _clocks() -> tuple[float, float, float]:
        """Seconds: wall, CPU of this process, CPU of its ended children."""
        own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return time.perf_counter(), own.ru_utime + own.ru_stime, children.ru_utime + children.ru_stime

    def _watch(self, program: type, step: str) -> None:
        """Notes what a class of programs does from now on."""
        begin, mark, run = program.__init__, program._mark, getattr(program, step)

        def begins(built: Any, *args: Any, **named: Any) -> None:
            built.noted = time.perf_counter()
            begin(built, *args, **named)

        def marks(built: Any, phase: str, note: str = "") -> None:
            mark(built, phase, note)
            self._phases[phase] += time.perf_counter() - built.noted
            built.noted = time.perf_counter()

        def runs(built: Any, *args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return run(built, *args, **named)
            finally:
                self._phases[_LATER if hasattr(built, "ran_before") else _FIRST] += time.perf_counter() - began
                built.ran_before = True

        replaced: dict[str, Callable[..., Any]] = {"__init__": begins, "_mark": marks, step: runs}
        for name, function in replaced.items():
            setattr(program, name, functools.wraps(getattr(program, name))(function))


def report(rows: list[dict[str, Any]]) -> Iterator[str]:
    """By worker, phase and file, and the tests that take longest."""
    totals, files, seconds = Counter(), Counter(), {row["test"]: row["cpu"] + row["children"] for row in rows}
    workers: Counter[str] = Counter()
    for row in rows:
        workers[row["worker"]] += row["wall"]
        totals.update({"in processes of their own (CPU)": row["children"], "all in the tests' process (CPU)": row["cpu"]})
        totals.update(row["phases"] if row["test"] != IMPORTS else {IMPORTS: row["wall"]})
        files[row["test"].split("::")[0]] += row["cpu"] + row["children"]
    for title, found, shown in (
        ("Wall seconds of each worker", workers, None),
        ("Seconds by phase", totals, None),
        ("CPU seconds by file", files, None),
        (f"CPU seconds of the {_TOP} tests that take longest", Counter(seconds), _TOP),
    ):
        yield f"{title}, {sum(found.values()):.0f} in all:" if found is not totals else f"{title}:"
        yield from (f"{value:8.1f}  {name}" for name, value in found.most_common(shown) if value >= 0.1)


if __name__ == "__main__":
    print("\n".join(report([json.loads(line) for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()])))
