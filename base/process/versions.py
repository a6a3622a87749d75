"""The installed version of a package, whatever distribution it came with and without importing it. A leaf."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu")}


def installed(package: str) -> str:
    """Return the version by a package's distribution; otherwise by the package itself, if it is imported."""
    for name in _DISTRIBUTIONS.get(package, (package,)):
        with suppress(PackageNotFoundError):
            return version(name)
    return str(getattr(sys.modules.get(package), "__version__", "unknown"))
