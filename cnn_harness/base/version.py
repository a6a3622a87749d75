"""The versions of this project and of packages, without importing them."""

from __future__ import annotations

import platform
import re
from contextlib import suppress

from cnn_harness.base import plugins

NAME = "cnn-harness"
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")}


def own() -> str:
    """Return the project's version, from the checkout or else from the installed package."""
    with suppress(OSError):
        text = (plugins.ROOT / "pyproject.toml").read_text(encoding="utf-8")
        locked = re.search(rf'^name = "{NAME}"\nversion = "([^"]+)"$', text, re.MULTILINE)
        if locked:
            return locked[1]
    return installed(NAME)


def line() -> str:
    """Return the project's name and version, with the versions of Python and TensorFlow."""
    return f"{NAME} {own()} (Python {platform.python_version()}, TensorFlow {installed('tensorflow')})"


def installed(package: str) -> str:
    """Return the version of a package, or "not installed". Several distributions may provide the same package."""
    from importlib import metadata  # slow

    for name in _DISTRIBUTIONS.get(package, (package,)):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return "not installed"
