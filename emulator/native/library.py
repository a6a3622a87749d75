"""The native kernels, where they are built and wanted: one shared library.

The name has a digest of sources, flags and processor, and one of the compiler. The file ends with the digest of its content:
a library that was cut short, which would end the process, counts as missing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from base import version
from base.process import commands
from base.storage import cache as storage

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

SWITCH = "HARNESS_KERNELS"  # in the environment
_TELLING = ("model name", "model", "flags", "Features", "CPU implementer", "CPU variant", "CPU part")  # in /proc/cpuinfo
OFF = ("0", "false", "no", "off")  # its values that do without
FOLDER = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-U__AVX512FP16__",  # for whose instructions the Eigen in TensorFlow's headers does not compile
)  # fmt: skip


def sources() -> list[Path]:
    """The files that are compiled, and the files that these include."""
    return sorted([*FOLDER.glob("*.cc"), *FOLDER.glob("*.h")])


def built() -> Path:
    """The folder of built libraries: beside the sources in a checkout, in the user's cache for an installed copy, whose
    folder may belong to somebody else."""
    return FOLDER / "built" if commands.in_checkout() else storage.folder(os.environ) / "kernels"


def compiler() -> list[str] | None:
    """The compiler's command, with CXX's own options; None without one."""
    words = shlex.split(os.environ.get("CXX", ""))
    return words or next(([found] for found in map(shutil.which, COMPILERS) if found), None)


@cache
def name() -> str:
    """The start of the names of libraries of these sources, for this processor and this TensorFlow."""
    digest = hashlib.sha256(repr((FLAGS, version.installed("tensorflow"), platform.machine(), features())).encode())
    for source in sources():
        digest.update(source.read_bytes())
    return f"native-{digest.hexdigest()[:16]}"


@cache
def path() -> Path | None:
    """The newest whole library of that name; None if none is built. A process keeps to what it has found first."""
    return newest()


def newest(pattern: str = "*") -> Path | None:
    """The newest whole library whose compiler's digest has the pattern."""
    found = [file for file in built().glob(f"{name()}-{pattern}.so") if _is_whole(file.read_bytes())]
    return max(found, key=lambda file: file.stat().st_mtime_ns, default=None)


def sealed(content: bytes) -> bytes:
    """Return a library's content with its digest behind, which the loader passes over."""
    return content + hashlib.sha256(content).digest()


def _is_whole(content: bytes) -> bool:
    return content == sealed(content[: -hashlib.sha256().digest_size])


def identity() -> str:
    """The name of the kernels that the programs of this process have; "" for none. Bits depend on them."""
    return "" if switched_off() or not path() else path().stem


def described() -> str:
    """The kernels for a log's head: their name, or why there are none."""
    if identity():
        return identity()
    if switched_off():
        reason = f"{SWITCH}={os.environ[SWITCH]}"
    elif compiler():
        call = "make kernels" if commands.in_checkout() else "cnn kernels"
        reason = f"faster ones are not built for this processor: {call} builds them"
    else:
        reason = "there is no C++ compiler to build faster ones"
    return f"those of TensorFlow and XLA alone; {reason}"


def switched_off() -> bool:
    """Return whether the environment asks to do without."""
    return os.environ.get(SWITCH, "1").strip().lower() in OFF


def load() -> ModuleType | None:
    """The operations, which graphs with them need before they are read; None without kernels."""
    return _loaded(path()) if identity() else None


def load_for(x: tf.Tensor) -> ModuleType | None:
    """The operations for a tensor that they can work on, FP32 on a processor; None otherwise."""
    return load() if x.dtype.name == "float32" and "GPU" not in x.device.upper() else None


@cache
def _loaded(library: Path) -> ModuleType | None:
    import tensorflow.compat.v1 as tf

    try:
        return tf.load_op_library(str(library))
    except (tf.errors.OpError, OSError, RuntimeError) as error:  # of another build of TensorFlow, or damaged
        advice = f"delete it and let make kernels build it anew; {SWITCH}=0 does without"
        raise OSError(f"{library} cannot be loaded ({error}): {advice}") from None


def has_bf16() -> bool:
    """Return whether the processor multiplies BF16 by itself."""
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(features().split()))


def features(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model and the features of the processor, which the compiler makes use of, as x86 and ARM name them."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.partition(":")[0].strip() in _TELLING}))
