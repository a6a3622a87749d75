"""Count the CPU cores and GPUs of this machine without importing TensorFlow.

TensorFlow's GPU packages use NVIDIA cards through CUDA and cuDNN. The CPU package uses no GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The number of CPU cores that this process may use, and the number of GPUs that TensorFlow can use."""

    cores: int
    gpus: int


def this_machine(environ: Mapping[str, str] = os.environ) -> Machine:
    """Return the cores and GPUs of this machine."""
    return Machine(cores(), gpus(environ))


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs that TensorFlow can use. GPUs that CUDA_VISIBLE_DEVICES hides do not count. Return 0 if
    TensorFlow is the CPU package or cuDNN is missing."""
    cards = [node for node in devices.glob("nvidia*") if re.fullmatch(r"nvidia[0-9]+", node.name)]
    if not cards or not _installed("tensorflow"):
        return 0
    if not _installed("nvidia-cudnn-cu12") and not find_library("cudnn"):  # find_library is slow, so it comes second.
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(cards)
    listed = [name.strip() for name in visible.split(",")]
    allowed = listed[: listed.index("-1")] if "-1" in listed else [name for name in listed if name]
    return min(len(allowed), len(cards))


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
