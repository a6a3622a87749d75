"""Starts TensorFlow without the lines that its libraries write to standard error before anything can stop them, and
puts its errors into one line.

Whoever sets TF_CPP_MIN_LOG_LEVEL gets exactly what TensorFlow writes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from base.errors import OptionError

_HEADINGS = ("Graph execution error", "From /job:", "Detected at node", 'File "', "Node: ", "[[")  # of TensorFlow's messages
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
KERNELS = ".passes-"  # in the name of a process' folder of kernels that XLA has compiled
_LESS = (
    "give a smaller --micro-batch-size, with --gradient-accumulation-count for the same global batch, "
    "--enable-recomputation, --fold 1 or a smaller --image-size"
)
_OF_DATA, _NO_MEMORY = "DataError: ", "OOM when allocating"  # in a line of TensorFlow's messages
# of the loader, and of Python; some libraries give it as one of several tries, in quotation marks
_STARVED = re.compile(
    r"""[^'"\\]*(?:failed to map segment|cannot allocate memory|can't start new thread)[^'"\\]*""", re.IGNORECASE
)
KERNELS_FLAG = "--tf_xla_persistent_cache_"  # begins the flags of XLA's that are of kernels on the disk
_VARIABLES = ("TF_", "XLA_", "DNNL_", "ONEDNN_", "OMP_", "CUDA_", "CUBLAS_", "NVIDIA_")  # on which TensorFlow's work depends
_NO_MATTER = (
    "TF_CONFIG", "TF_CLI_", "TF_CPP_", "TF_POPLAR_", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_", "CUDA_VISIBLE_", "NVIDIA_VISIBLE_",
)  # fmt: skip
_USUAL = {
    "TF_ENABLE_ONEDNN_OPTS": "1", "TF_NUM_INTRAOP_THREADS": "0", "TF_NUM_INTEROP_THREADS": "0", "TF_DETERMINISTIC_OPS": "0",
}  # fmt: skip


def settings() -> dict[str, str]:
    """Return the variables of the environment that choose TensorFlow's kernels or threads, on which the last places of sums
    depend, unless they say what TensorFlow does without them."""
    chosen = {}
    for name, value in sorted(os.environ.items()):
        words = " ".join(word for word in value.split() if not word.startswith(KERNELS_FLAG))
        if name.startswith(_VARIABLES) and not name.startswith(_NO_MATTER) and words not in ("", _USUAL.get(name)):
            chosen[name] = words
    return chosen


def import_tensorflow(level: str = "2") -> None:
    """Import TensorFlow for the first time.

    `level`: what it does not log: 2 up to warnings, 3 errors too.
    """
    if "tensorflow" in sys.modules:
        return
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        if os.environ.get(name, "").strip().startswith("-"):
            raise OptionError(f"{name}={os.environ[name]}: TensorFlow aborts with a negative number of threads; unset it")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # else the first session takes all memory of every card
    with _without_keras():
        _import_quietly(level)


@contextmanager
def _without_keras() -> Iterator[None]:
    """TensorFlow's import leaves Keras out, which nothing here uses and which takes a third of its time. `tf.keras` is still
    imported where somebody asks for it later."""
    apart = "keras" not in sys.modules
    if apart:
        sys.modules["keras"] = None  # how Python marks a module that cannot be imported
    try:
        yield
    finally:
        if apart:
            sys.modules.pop("keras", None)


def _import_quietly(level: str) -> None:
    """Import it while standard error goes nowhere: its libraries write there before a logging level counts."""
    if LEVEL in os.environ:
        import tensorflow

        return
    os.environ[LEVEL] = level
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow  # noqa: F401
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def is_of_tensorflow(error: BaseException | None) -> bool:
    """Return whether TensorFlow has raised the error."""
    return type(error).__module__.startswith("tensorflow")


def device_error(error: Exception) -> str:
    """TensorFlow's error in one line: the DataError of a reader inside of it, or its first line with a reason."""
    if any(KERNELS in line for line in _lines(error)):
        no_room = "no room for what XLA compiles; TMPDIR names another folder, --no-executable-cache does without"
        return f"{telling_line(error)}: {no_room}"
    unusable = data_error(error)
    if unusable is not None:
        return unusable
    for line in _lines(error):
        if _NO_MEMORY in line:
            return f"{line[line.index(_NO_MEMORY) :]} (out of memory: {_LESS})"
    return f"{type(error).__name__}: {telling_line(error)}"


def data_error(error: BaseException) -> str | None:
    """Return the message of the DataError that a reader has raised within TensorFlow; None for any other error."""
    found = (line.partition(_OF_DATA) for line in _lines(error)) if is_of_tensorflow(error) else ()
    return next((message for _, marker, message in found if marker), None)


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(getattr(error, "message", error)).splitlines()]


def starved_message(error: BaseException) -> str | None:
    """Return a line on an error that comes of too little memory, or of too few threads; None for any other."""
    if isinstance(error, MemoryError):
        return f"out of memory: {_LESS}, or more memory (ulimit -v, ulimit -d)"
    found = _STARVED.search((str(error).splitlines() or [""])[0])
    return f"{found[0].strip()}: give more memory (ulimit -v, ulimit -d) or threads (ulimit -u)" if found else None


def telling_line(error: Exception) -> str:
    """The first line of TensorFlow's message that says why: headings and places stand before it, nodes after it."""
    lines = (line.strip() for line in str(getattr(error, "message", error)).splitlines())
    return next((line for line in lines if line and not line.startswith(_HEADINGS)), "no reason given")
