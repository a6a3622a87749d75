"""Shared by all tests: which of them run, a quiet TensorFlow, small runs in this process."""

from __future__ import annotations

import atexit
import csv
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if "TF_POPLAR_FLAGS" not in os.environ:  # the first process of this call of pytest: what one builds serves all of them
    _kept = tempfile.mkdtemp(prefix="cnn-harness-tests-")
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={_kept}/programs"
    os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={_kept}/passes"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA says at length how it looks for passes
    atexit.register(shutil.rmtree, _kept, ignore_errors=True)
# in the background, or under nohup, the tests ignore these: they outlive them, and what they start hears them
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
os.environ.pop("DATA_DIR", None)  # the tests say themselves where data lies


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run all tests, also those that take minutes or are sampled")
    parser.addoption("--slow-for", type=float, metavar="SECONDS", help="run only those, from the sample's on, for so long")
    parser.addoption("--store-durations", action="store_true", help="note in test/durations.csv how long the tests took")
    parser.addoption("--phases", metavar="FILE", help="note where the time goes: python test/phases.py FILE prints it")
    parser.addoption(
        "--sample",
        type=int,
        default=_changes(),
        help="which part of the long tests and large grids runs (the commits so far)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--phases") and getattr(config.option, "dist", "no") == "no":
        import phases

        config.pluginmanager.register(phases.Recorder(Path(config.getoption("--phases"))))
    if config.getoption("--store-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())


def _changes() -> int:
    """A number that the next commit adds 1 to; the day, where there is no history."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    with suppress(OSError, ValueError, subprocess.CalledProcessError):
        return int(subprocess.run(command, capture_output=True, check=True).stdout)
    return int(time.time()) // 86400


def pytest_report_header(config: pytest.Config) -> str:
    sample = config.getoption("--sample")
    return f"sample {sample} of the long tests and large grids: --sample {sample} runs the same, --slow runs all of them"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    sample, limit = config.getoption("--sample"), config.getoption("--slow-for")
    left_out = {item for item in items if item.get_closest_marker("slow")} | _not_sampled(items, sample)
    if {Path(name).resolve() for name in config.args} <= {config.rootpath, config.rootpath / "test"}:
        left_out |= _of_other_parts(items, sample)
    if limit is not None:
        chosen = [item for item in items if item in left_out]
        first = sample * _STEP % max(1, len(chosen))
        items[:] = chosen[first:] + chosen[:first]
        config.slow_until = time.time() + limit
        return
    for item in left_out:
        item.add_marker(pytest.mark.skip(reason="slow, or not in this sample: give --slow"))


_STEP = 25  # slow tests that one call of --slow-for does at least, by which the next commit's begin later


def _not_sampled(items: list[pytest.Item], sample: int) -> set[pytest.Item]:
    """Of the grids marked `sampled(every)`, and of the tests marked `sampled(every, grid)`, which make a grid together: all
    but every `every`-th, from one on that changes with the sample."""
    grids: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            grid = item.get_closest_marker("sampled").args[1:]
            grids.setdefault(grid[0] if grid else item.nodeid.split("[")[0], []).append(item)
    return {
        item
        for rows in grids.values()
        for k, item in enumerate(rows)
        if (k - sample) % item.get_closest_marker("sampled").args[0]
    }


_DURATIONS = Path(__file__).with_name("durations.csv")
_LONG = 1  # second, from which on a test is one of the long ones
_PARTS = 8  # of the long tests, one of which runs after each commit


def _of_other_parts(items: list[pytest.Item], sample: int) -> set[pytest.Item]:
    """Of the long tests, which no marker names, all but one part, another with the next sample. The longest are dealt out first,
    each to the part that has least to do, so that all parts take as long."""
    seconds = _stored_durations()
    markers = ("slow", "sampled", "always", "hypothesis")
    long = [item for item in items if item.nodeid in seconds and not any(map(item.get_closest_marker, markers))]
    parts: list[set[pytest.Item]] = [set() for _ in range(_PARTS)]
    loads = [0.0] * _PARTS
    for item in sorted(long, key=lambda item: (-seconds[item.nodeid], item.nodeid)):
        least = loads.index(min(loads))
        parts[least].add(item)
        loads[least] += seconds[item.nodeid]
    return set(long) - parts[sample % _PARTS]


def _stored_durations() -> dict[str, float]:
    """Seconds of each long test, by its name."""
    with open(_DURATIONS, newline="", encoding="utf-8") as file:
        return {row["test"]: float(row["seconds"]) for row in csv.DictReader(file)}


class _Durations:
    """A plug-in of pytest that writes the file anew: with the seconds of the tests that ran, those of before for the tests that
    were left out, and nothing of tests that are no more."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()
        self._left_out: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.skipped:
            self._left_out.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        before = _stored_durations()
        now = {**self._seconds, **{name: before.get(name, 0) for name in self._left_out}}
        with open(_DURATIONS, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["seconds", "test"])
            rows.writerows([f"{now[name]:.1f}", name] for name in sorted(now) if now[name] >= _LONG)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > getattr(item.config, "slow_until", float("inf")):
        pytest.skip("the time of --slow-for is over")


@pytest.fixture(scope="session")
def parsed_files() -> Callable[..., Any]:
    """The parser of configuration files, with a memory."""
    from harness.options import configs

    return functools.cache(configs._parsed)


@pytest.fixture
def read_once(parsed_files, monkeypatch) -> None:
    """The project's configuration file is parsed once, for tests that go through all of it and read no other."""
    from harness.options import configs

    monkeypatch.setattr(configs, "_parsed", parsed_files)


@pytest.fixture
def short_efficientnet(monkeypatch) -> None:
    """EfficientNet of the first three stages, which have every kind of layer, for tests to which depth does not matter: three
    blocks with --depth-coefficient 0.5, five without."""
    from Models import efficientnet

    monkeypatch.setattr(efficientnet, "STAGES", efficientnet.STAGES[:3])
