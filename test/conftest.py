"""Shared by all tests: the --slow switch, a quiet TensorFlow, small runs in this process."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if "TF_POPLAR_FLAGS" not in os.environ:  # the first process of this call of pytest: what one builds serves all of them
    _kept = tempfile.mkdtemp(prefix="cnn-harness-tests-")
    os.environ["TF_POPLAR_FLAGS"] = f"--executable_cache_path={_kept}/programs"
    os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={_kept}/passes"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # XLA says at length how it looks for passes
    atexit.register(shutil.rmtree, _kept, ignore_errors=True)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # the tests under nohup: they outlive it, what they start hears it
    signal.signal(signal.SIGHUP, lambda *_: None)
os.environ.pop("DATA_DIR", None)  # the tests say themselves where data lies


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow: give --slow"))


@pytest.fixture(scope="session")
def parsed_files() -> Callable[..., Any]:
    """The parser of configuration files, with a memory."""
    from harness import configs

    return functools.cache(configs._compose)


@pytest.fixture
def read_once(parsed_files, monkeypatch) -> None:
    """The project's configuration file is parsed once, for tests that go through all of it and read no other."""
    from harness import configs

    monkeypatch.setattr(configs, "_compose", parsed_files)
