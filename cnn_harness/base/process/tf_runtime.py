"""Import TensorFlow with oneDNN and without the lines that its libraries print, and shorten its errors to one line.

If the user sets TF_CPP_MIN_LOG_LEVEL to 0 or 1, TensorFlow's output is not suppressed.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from cnn_harness.base.errors import OptionError, WrongInput

_HEADINGS = (
    "Graph execution error",
    "From /job:",
    "Detected at node",
    'File "',
    "Node: ",
    "[[",
)  # lines of TensorFlow's errors that begin with these words give no reason
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
KERNELS = ".passes-"  # part of the name of a temporary folder for kernels compiled by XLA
_LESS = (
    "use a smaller --micro-batch-size (with a larger --gradient-accumulation-count for the same global batch), "
    "--enable-recomputation, --fold 1 or a smaller --image-size"
)
_OF_DATA, _NO_MEMORY = "DataError: ", "OOM when allocating"  # parts of TensorFlow's messages
# Messages of the dynamic loader and of Python. Quoted messages do not count, because a library may have tried again.
_STARVED = re.compile(
    r"""[^'"\\]*(?:failed to map segment|cannot allocate memory|can't start new thread)[^'"\\]*""", re.IGNORECASE
)
KERNELS_FLAG = "--tf_xla_persistent_cache_"  # prefix of XLA's flags for kernels on disk
_VARIABLES = (
    "TF_",
    "XLA_",
    "DNNL_",
    "ONEDNN_",
    "OMP_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_",
)  # prefixes of environment variables that may change results
_NO_MATTER = (
    "TF_CONFIG", "TF_CLI_", "TF_CPP_", "TF_POPLAR_", "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_", "CUDA_VISIBLE_", "NVIDIA_VISIBLE_",
)  # fmt: skip
_USUAL = {"TF_NUM_INTRAOP_THREADS": "0", "TF_NUM_INTEROP_THREADS": "0", "TF_DETERMINISTIC_OPS": "0"}
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"

_importing = threading.RLock()  # without it, a second thread would find TensorFlow half imported
os.register_at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)
_used_by = 0  # the process in which TensorFlow runs, or 0


def mark_used() -> None:
    """Record that TensorFlow, if it is imported, may have started its threads in this process."""
    global _used_by
    if "tensorflow" in sys.modules:
        _used_by = os.getpid()


def check_not_forked() -> None:
    """Raise WrongInput if TensorFlow ran before this process was forked: its threads are missing here, so it would hang."""
    if _used_by not in (0, os.getpid()):
        raise WrongInput(
            "this process was forked after TensorFlow had run, so TensorFlow cannot run in it; fork earlier, or start "
            "processes with multiprocessing.get_context('spawn')"
        )


def prefer_onednn(environ: MutableMapping[str, str] = os.environ) -> None:
    """Let TensorFlow compute with oneDNN, unless the user has decided or TensorFlow is imported already.

    By itself, TensorFlow uses oneDNN only on x86 processors with AVX512-VNNI, AVX512-BF16 or AMX. On the others, ResNets
    train up to 1.75 times as fast with it. ARM processors keep TensorFlow's choice.
    """
    if "tensorflow" not in sys.modules and os.uname().machine == "x86_64":
        environ.setdefault(ONEDNN, "1")


def settings() -> dict[str, str]:
    """Return the environment variables that choose TensorFlow's kernels or threads, if they differ from the defaults.

    The last digits of results depend on these variables. On x86 processors, the choice of oneDNN is always among them,
    because TensorFlow's default differs between processors.
    """
    chosen, environ = {}, dict(os.environ)
    prefer_onednn(environ)
    for name, value in sorted(environ.items()):
        words = " ".join(word for word in value.split() if not word.startswith(KERNELS_FLAG))
        if name.startswith(_VARIABLES) and not name.startswith(_NO_MATTER) and words not in ("", _USUAL.get(name)):
            chosen[name] = words
    return chosen


def import_tensorflow(level: str = "2") -> None:
    """Import TensorFlow for the first time.

    `level` "2" hides TensorFlow's warnings and information, "3" also its errors.
    """
    with _importing:
        if "tensorflow" not in sys.modules:
            _import_first(level)


def _import_first(level: str) -> None:
    prefer_onednn()
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        if os.environ.get(name, "").strip().startswith("-"):
            raise OptionError(f"{name}={os.environ[name]}: TensorFlow aborts if the number of threads is negative; unset it")
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # otherwise the first session takes all memory of every GPU
    with _without_keras():
        _import_quietly(level)


@contextmanager
def _without_keras() -> Iterator[None]:
    """Inside, importing TensorFlow skips Keras, which is unused here and takes a third of the time.

    `tf.keras` still works later.
    """
    apart = "keras" not in sys.modules
    if apart:
        sys.modules["keras"] = None  # Python's mark for a module that cannot be imported
    try:
        yield
    finally:
        if apart:
            sys.modules.pop("keras", None)


def _import_quietly(level: str) -> None:
    """Import TensorFlow with standard error discarded, because its libraries print before they read the log level.

    Child processes inherit the log level, so their imports are as quiet.
    """
    if os.environ.setdefault(LEVEL, level).strip() in ("0", "1"):
        import tensorflow

        return
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
    """Return whether TensorFlow raised the error."""
    return type(error).__module__.startswith("tensorflow")


def device_error(error: Exception) -> str:
    """Return TensorFlow's error in one line: the DataError that caused it, or else the first line that gives a reason."""
    if any(KERNELS in line for line in _lines(error)):
        no_room = "no space for the kernels that XLA compiles; set TMPDIR to another folder or give --no-executable-cache"
        return f"{telling_line(error)}: {no_room}"
    unusable = data_error(error)
    if unusable is not None:
        return unusable
    for line in _lines(error):
        if _NO_MEMORY in line:
            return f"{line[line.index(_NO_MEMORY) :]} (out of memory: {_LESS})"
    return f"{type(error).__name__}: {telling_line(error)}"


def data_error(error: BaseException) -> str | None:
    """Return the message of a DataError that the input pipeline raised inside TensorFlow; None for any other error."""
    found = (line.partition(_OF_DATA) for line in _lines(error)) if is_of_tensorflow(error) else ()
    return next((message for _, marker, message in found if marker), None)


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(getattr(error, "message", error)).splitlines()]


def starved_message(error: BaseException) -> str | None:
    """Return the message for an error caused by too little memory or too few threads; None for any other error."""
    if isinstance(error, MemoryError):
        return f"out of memory: {_LESS}, or raise the limit (ulimit -v, ulimit -d)"
    found = _STARVED.search((str(error).splitlines() or [""])[0])
    return f"{found[0].strip()}: raise the limit on memory (ulimit -v, ulimit -d) or threads (ulimit -u)" if found else None


def telling_line(error: Exception) -> str:
    """Return the first line of TensorFlow's message that gives a reason, after headings and locations."""
    return next((line for line in _lines(error) if line and not line.startswith(_HEADINGS)), "no reason given")
