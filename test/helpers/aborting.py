"""End a process as a fault in C++ does."""

from __future__ import annotations

import os


def abort(*_: object) -> None:
    """End the process by SIGABRT, with any arguments."""
    os.abort()
