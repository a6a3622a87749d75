"""Shared by all tests: the --slow switch, a quiet TensorFlow, small runs in this process."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
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
