"""Shared by all tests: test selection, a quiet TensorFlow, cached programs, parsed configurations."""

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

from cnn_harness.base.process import tf_runtime

tf_runtime.prefer_onednn()  # test modules import TensorFlow directly
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if "TF_POPLAR_FLAGS" not in os.environ:  # the first process of this pytest call: its compiled programs serve all processes
    _kept = tempfile.mkdtemp(prefix="cnn-harness-tests-")
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={_kept}/programs"
    os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={_kept}/passes"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA logs every lookup of a compiled program
    atexit.register(shutil.rmtree, _kept, ignore_errors=True)
# In the background or under nohup, tests inherit ignored signals. With handlers, they survive and their processes react
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)
os.environ.pop("DATA_DIR", None)  # the tests themselves set the data directory


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run all tests")
    parser.addoption(
        "--slow-for", type=float, metavar="SECONDS", help="run for so long the tests that a plain call leaves out"
    )
    parser.addoption(
        "--sample", type=int, default=_commits(), help="which of the long tests run (default: the commits so far)"
    )
    parser.addoption("--store-durations", action="store_true", help="update test/durations.csv")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--store-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Durations())


def _commits() -> int:
    """Return the number of commits, or the day if there is no git history."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    with suppress(OSError, ValueError, subprocess.CalledProcessError):
        return int(subprocess.run(command, capture_output=True, check=True).stdout)
    return int(time.time()) // 86400


def pytest_report_header(config: pytest.Config) -> str:
    sample = config.getoption("--sample")
    return f"sample {sample} of the long tests: --sample {sample} runs the same, --slow runs all of them"


_DURATIONS = Path(__file__).with_name("durations.csv")
_LONG = 1  # second
_EVERY = 16  # a plain call runs one of so many long tests
_STEP = 25  # minimum number of tests that one call of --slow-for runs


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the tests that run.

    A test is long if its last measurement exceeds one second (durations.csv) or it is marked `sampled`, like grids.
    `--sample N` runs every 16th of the long tests, sorted by seconds: sixteen commits run them all.
    If files are named on the command line, only tests marked `sampled` are long.
    Tests marked `slow` take minutes and run only with `--slow`, which runs everything.
    `--slow-for SECONDS` runs the remaining tests for that time and starts 25 tests later at each commit.
    """
    if config.getoption("--slow"):
        return
    sample, limit = config.getoption("--sample"), config.getoption("--slow-for")
    whole = {Path(name).resolve() for name in config.args} <= {config.rootpath, config.rootpath / "test"}
    seconds = _stored_durations() if whole else {}
    slow = {item for item in items if item.get_closest_marker("slow")}
    long = [item for item in items if item not in slow and (item.nodeid in seconds or item.get_closest_marker("sampled"))]
    long.sort(key=lambda item: (seconds.get(item.nodeid, 0), item.nodeid))
    rest = slow | set(long) - set(long[sample % _EVERY :: _EVERY])
    if limit is None:
        for item in rest:
            item.add_marker(pytest.mark.skip(reason="long, and not in this sample: give --slow"))
        return
    chosen = [item for item in items if item in rest]
    first = sample * _STEP % max(1, len(chosen))
    items[:] = chosen[first:] + chosen[:first]
    config.slow_until = time.time() + limit


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.time() > getattr(item.config, "slow_until", float("inf")):
        pytest.skip("the time of --slow-for is over")


def _stored_durations() -> dict[str, float]:
    """Return the seconds of each long test by name."""
    with open(_DURATIONS, newline="", encoding="utf-8") as file:
        return {row["test"]: float(row["seconds"]) for row in csv.DictReader(file)}


class _Durations:
    """Rewrite durations.csv at the end: skipped tests keep their seconds, deleted tests are dropped."""

    def __init__(self) -> None:
        self._before, self._seconds = _stored_durations(), Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += self._before.get(report.nodeid, 0) if report.skipped else report.duration

    def pytest_sessionfinish(self) -> None:
        with open(_DURATIONS, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["seconds", "test"])
            rows.writerows([f"{s:.1f}", name] for name, s in sorted(self._seconds.items()) if s >= _LONG)


@pytest.fixture(scope="session")
def parsed_files() -> Callable[..., Any]:
    """Return a caching parser of configuration files."""
    from cnn_harness.harness.options import configs

    return functools.cache(configs._parsed)


@pytest.fixture
def read_once(parsed_files, monkeypatch) -> None:
    """Parse the project's configuration file once, for tests that read all of it and no other file."""
    from cnn_harness.harness.options import configs

    monkeypatch.setattr(configs, "_parsed", parsed_files)


@pytest.fixture
def short_efficientnet(monkeypatch) -> None:
    """Keep EfficientNet's first three stages, which have every kind of layer.

    For tests that need no depth: three blocks with --depth-coefficient 0.5, five without.
    """
    from cnn_harness.Models import efficientnet

    monkeypatch.setattr(efficientnet, "STAGES", efficientnet.STAGES[:3])
