"""Find and load the native kernels: one shared library, if it is built and not switched off.

The file name has a digest of sources, flags and processor, and a digest of the compiler. The file ends with a digest of its
content. A truncated library would crash the process, so it counts as missing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
from collections.abc import Collection
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from cnn_harness.base import version
from cnn_harness.base.process import commands
from cnn_harness.base.storage import cache as storage

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

SWITCH = "HARNESS_KERNELS"  # this environment variable can switch the kernels off.
# Compiled code depends on these lines of /proc/cpuinfo.
_TELLING = ("model name", "model", "flags", "Features", "CPU implementer", "CPU variant", "CPU part")
STORED = "float32", "float16", "bfloat16"  # the dtypes of tensors between layers.
OFF = ("0", "false", "no", "off")  # HARNESS_KERNELS has one of these values to switch the kernels off.
FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-U__AVX512FP16__",  # Eigen in TensorFlow's headers does not compile for these.
)  # fmt: skip


def built() -> Path:
    """Return the folder of built libraries. In a checkout it is next to the sources. For an installed copy it is in the
    user's cache, because the installation may belong to another user."""
    return FOLDER / "built" if commands.in_checkout() else storage.folder(os.environ) / "kernels"


def compiler() -> list[str] | None:
    """Return the compiler's command with the options in CXX, or None if there is no compiler."""
    words = shlex.split(os.environ.get("CXX", ""))
    return words or next(([found] for found in map(shutil.which, COMPILERS) if found), None)


@cache
def name() -> str:
    """Return the prefix of a library's file name for these sources, this processor and this TensorFlow."""
    digest = hashlib.sha256(repr((FLAGS, version.installed("tensorflow"), platform.machine(), features())).encode())
    for source in sorted([*FOLDER.glob("*.cc"), *FOLDER.glob("*.h")]):
        digest.update(source.read_bytes())
    return f"native-{digest.hexdigest()[:16]}"


@cache
def path() -> Path | None:
    """Return the newest complete library with this prefix, or None if none is built. Within a process, the result stays the
    same."""
    return newest()


def newest(pattern: str = "*") -> Path | None:
    """Return the newest complete library. The digest of its compiler must match the pattern."""
    found = [file for file in built().glob(f"{name()}-{pattern}.so") if _is_whole(file.read_bytes())]
    return max(found, key=lambda file: file.stat().st_mtime_ns, default=None)


def sealed(content: bytes) -> bytes:
    """Return the content of a library followed by its digest. The loader ignores the digest."""
    return content + hashlib.sha256(content).digest()


def _is_whole(content: bytes) -> bool:
    return content == sealed(content[: -hashlib.sha256().digest_size])


def identity() -> str:
    """Return the name of the kernels that this process uses, or "". With other kernels, results may have other bits."""
    return "" if switched_off() or not path() else path().stem


def described() -> str:
    """Return the log's text about the kernels: the name, or why none are used."""
    if identity():
        return identity()
    if switched_off():
        reason = f"{SWITCH}={os.environ[SWITCH]}"
    elif compiler():
        reason = f"to build faster kernels for this processor, run {_build_command()}"
    else:
        reason = "there is no C++ compiler to build faster kernels"
    return f"only those of TensorFlow and XLA; {reason}"


def _build_command() -> str:
    return "make kernels" if commands.in_checkout() else "cnn kernels"


def switched_off() -> bool:
    """Return whether the environment switches the kernels off."""
    return os.environ.get(SWITCH, "1").strip().lower() in OFF


def load() -> ModuleType | None:
    """Load and return the native operations, or None without kernels. Call this before reading a graph that uses them."""
    return _loaded(path()) if identity() else None


def operations() -> frozenset[str]:
    """Return the names of the native operations, which this function loads."""
    return frozenset(name for name in dir(load()) if name.startswith("emulator_"))


def lanes() -> int:
    """Return how many FP32 numbers a vector of the kernels has: 16 with AVX-512, 8 with AVX2, or 4; 0 without kernels."""
    return _constant("lanes")


def has_units() -> bool:
    """Return whether the kernels use matrix units of the processor (AMX)."""
    return bool(_constant("units"))


def _constant(name: str) -> int:
    return ctypes.c_int.in_dll(ctypes.CDLL(str(path())), f"emulator_{name}").value if load() else 0


def load_for(x: tf.Tensor, dtypes: Collection[str] = ("float32",)) -> ModuleType | None:
    """Return the native operations for a tensor, or None. They support tensors of these dtypes on a CPU."""
    return load() if x.dtype.name in dtypes and "GPU" not in x.device.upper() else None


@cache
def _loaded(library: Path) -> ModuleType | None:
    import tensorflow.compat.v1 as tf

    try:
        return tf.load_op_library(str(library))
    except (tf.errors.OpError, OSError, RuntimeError) as error:  # damaged, or built for another TensorFlow.
        advice = f"delete it and run {_build_command()}, or set {SWITCH}=0"
        raise OSError(f"{library} cannot be loaded ({error}): {advice}") from None


def has_bf16() -> bool:
    """Return whether the processor has BF16 multiplication."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(features().split()))


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the lines of /proc/cpuinfo with model and features of the processor. Compiled code depends on them."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in _TELLING}))
