"""Shared by all tests: a quiet TensorFlow, cached programs, parsed configurations."""

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
