"""The native kernels, where they are built and wanted: one shared library, under a name with the digest of its sources
and of the processor that it is for."""

from __future__ import annotations

import hashlib
import os
import platform
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from base.process import commands, versions
from base.storage import cache as storage

if TYPE_CHECKING:
    import tensorflow.compat.v1 as tf

SWITCH = "HARNESS_KERNELS"  # in the environment
OFF = ("0", "false", "no", "off")  # its values that do without
FOLDER = Path(__file__).parent
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


@cache
def path() -> Path:
    """Where the library of these sources lies, for this processor and this TensorFlow, if it is built."""
    digest = hashlib.sha256(repr((FLAGS, versions.installed("tensorflow"), platform.machine(), _features())).encode())
    for source in sources():
        digest.update(source.read_bytes())
    return built() / f"native-{digest.hexdigest()[:16]}.so"


def identity() -> str:
    """The name of the kernels that the programs of this process have; "" for none. Bits depend on them."""
    return path().stem if not switched_off() and is_built() else ""


def is_built() -> bool:
    """Return whether the library is there, in a folder that can be read."""
    return os.path.exists(path())


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
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(_features().split()))


def _features() -> str:
    """The features of the processor, which the compiler makes use of."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(next((line for line in lines if line.startswith(name)), "") for name in ("model name", "flags"))
