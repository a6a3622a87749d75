"""The version of this project, and of the packages below, without importing any."""

from __future__ import annotations

import platform
import re
from contextlib import suppress

from base import plugins

NAME = "cnn-harness"


def own() -> str:
    """Return the project's version: that of the checkout, or else of the installed package."""
    with suppress(OSError):
        text = (plugins.ROOT / "pyproject.toml").read_text(encoding="utf-8")
        locked = re.search(rf'^name = "{NAME}"\nversion = "([^"]+)"$', text, re.MULTILINE)
        if locked:
            return locked[1]
    return _installed(NAME)


def line() -> str:
    """Return name and version, with those of Python and TensorFlow."""
    return f"{NAME} {own()} (Python {platform.python_version()}, TensorFlow {_installed('tensorflow', 'tensorflow-cpu')})"


def _installed(*packages: str) -> str:
    """The version of the first of some packages that is installed, or "not installed"."""
    from importlib import metadata  # slow

    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return "not installed"
