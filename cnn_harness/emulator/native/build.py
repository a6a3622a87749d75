"""Compile the C++ kernels with the installed compiler (CXX, c++, g++ or clang++).

make kernels

Without a compiler, print one line and end. Programs also run without the kernels.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import itertools
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from cnn_harness.base import plugins
from cnn_harness.base.process import command_line
from cnn_harness.base.storage import files
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan import machine

_ROOT = library.FOLDER.parent.parent
_HEADERS = library.FOLDER / "checks.h"
_KEPT = 8
_AT_ONCE = 4  # this number of compilers runs at once; each needs about 900 MB.
_WITHOUT = "programs run without them, but norms, convolutions and inference are slower"


def main(argv: list[str]) -> int:
    """Compile the library unless it exists. Always return 0, because programs run without the kernels."""
    parser = command_line.Parser(
        prog="make kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    compiler = library.compiler()
    if not compiler and not library.newest():
        print(f"The kernels are not built: there is no C++ compiler ({', '.join(library.COMPILERS)}); {_WITHOUT}")
        return 0
    began = time.perf_counter()
    try:
        with _alone(library.built()):
            digest = _digest(compiler) if compiler else "*"
            found = library.newest(digest)
            target = found or library.built() / f"{library.name()}-{digest}.so"
            if not found:
                print("Compiling the native kernels, one to two minutes on two free cores", flush=True)
                _compile(compiler, target)
    except (subprocess.CalledProcessError, OSError) as error:
        code = getattr(error, "returncode", None)
        output = getattr(error, "stderr", None) or (str(error) if code is None else f"{compiler[0]} ended with code {code}")
        reason = next((line for line in output.splitlines() if "error" in line), output.strip()[-300:])
        print(f"The kernels are not built: {reason}; {_WITHOUT}")
        return 0
    took = "" if found else f" in {time.perf_counter() - began:.0f} s"
    shown = target.relative_to(plugins.ROOT) if target.is_relative_to(plugins.ROOT) else target
    print(f"The kernels are built{took}: {shown}")
    return 0


def _digest(compiler: list[str]) -> str:
    """Return a digest of the compiler's options and version. The kernels' results depend on them."""
    said = _run(*compiler, "--version")
    return hashlib.sha256(repr((compiler[1:], said)).encode()).hexdigest()[:8]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process builds into a folder, then remove files that killed builds have left."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / ".lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            elif left != lock and left.suffix != ".so":
                left.unlink(missing_ok=True)
        yield


def _compile(compiler: list[str], target: Path) -> None:
    """Write the library atomically, and remove the oldest libraries for other sources and processors."""
    tensorflow = Path(find_spec("tensorflow").origin).parent
    with (
        tempfile.TemporaryDirectory(dir=target.parent) as folder,
        ThreadPoolExecutor(min(machine.cores(), _AT_ONCE)) as pool,
    ):
        # The headers of TensorFlow take most of the time of a file, so they are compiled once.
        headers = f"{folder}/{_HEADERS.name}"
        include = ("-include", headers, f"-I{_ROOT}", f"-I{tensorflow / 'include'}")
        shutil.copy(_HEADERS, headers)
        _run(*compiler, *library.FLAGS, "-w", "-fPIC", *include[2:], "-x", "c++-header", headers, "-o", f"{headers}.gch")

        def compiled(source: Path) -> str:
            made = f"{folder}/{source.stem}.o"
            _run(*compiler, *library.FLAGS, "-w", "-fPIC", *include, "-c", str(source), "-o", made)
            print(f"  {next(done)} of {len(sources)} files: {source.name}", flush=True)
            return made

        made = Path(folder) / target.name
        sources = sorted(library.FOLDER.glob("*.cc"), key=lambda source: -source.stat().st_size)  # the longest first
        done = itertools.count(1)
        objects = list(pool.map(compiled, sources))
        _run(*compiler, "-shared", *objects, "-o", str(made), f"-L{tensorflow}", "-l:libtensorflow_framework.so.2")
        files.write_atomically(target, library.sealed(made.read_bytes()))
    libraries = sorted(target.parent.glob("native-*.so"), key=lambda file: file.stat().st_mtime)
    for old in libraries[:-_KEPT]:  # other processors may share the folder.
        old.unlink(missing_ok=True)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(command_line.run("kernels", main, None, ()))
