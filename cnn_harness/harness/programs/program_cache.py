"""Store compiled programs for later runs in the program cache (--executable-cache-path).

An entry of the cache is a ZIP file with the optimised graph, the names in the graph, the kernels that XLA compiled, and the
key: everything on which the program depends. The file name is a digest of the key. Entries are written atomically, so
several processes may share a cache folder. The checksums of ZIP detect damage.

XLA also reads and writes its kernels in a folder. Every process has a separate temporary folder for kernels, and copies
kernels from and to the cache entry. TensorFlow reads the name of this folder from the environment when it is imported.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import io
import json
import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base import bounds
from cnn_harness.base.fields import NOT_IN_GRAPH
from cnn_harness.base.process import tf_runtime
from cnn_harness.base.storage import cache as user_cache
from cnn_harness.base.storage import files, input_files
from cnn_harness.emulator.native import library
from cnn_harness.emulator.plan import machine
from cnn_harness.harness.distributed.consistency import code_version
from cnn_harness.harness.options.sections import with_trait
from cnn_harness.harness.run.cluster import Execution
from cnn_harness.harness.run.run import Run

if TYPE_CHECKING:
    from cnn_harness.ipu_utils import OptimisedGraph

SUFFIX, _KERNELS, _KEY = ".program", "passes/", "described.json"
MAX_BYTES = 1 << 30  # Larger entries are not read.
_XLA_FLAGS = "TF_XLA_FLAGS"
_FOLDER = f"{tf_runtime.KERNELS_FLAG}directory="
_STALE = 86400  # Folders of kernels that are older than this number of seconds were left by killed processes.
_ROOM = 256 << 20  # The kernels of any network fit into this number of bytes.
_POPLAR_FLAGS = "TF_POPLAR_FLAGS"  # On IPUs, this environment variable sets the cache folder.
_POPLAR_PATH = re.compile(r"(?<!\S)--executable_cache_path(?:=|\s+(?!--))(\S+)")
_OF_STREAM = (  # These fields of a read request change the images, but not the compiled program.
    "seed", "shuffle_block", "pipeline_num_parallel", "dataset_cache",
    "policy", "magnitude", "colour_jitter", "random_erasing",
)  # fmt: skip
_OF_DATA = ("name", "num_classes", "image_size", "train_images", "validation_images", "class_images", "standardised")
_SECTIONS = ("dataset", "training", "device", "model")


def import_tensorflow(run: Run, instances: int = 1) -> None:
    """Import TensorFlow for a run.

    If the run's programs are cached, first set the folder of XLA's kernels. Also hide TensorFlow's messages about loading
    kernels: they look like errors, but are harmless.
    """
    imported = "tensorflow" in sys.modules and os.environ.get(tf_runtime.LEVEL, "") < "3"
    if folder(run, instances, os.environ) is None or imported:
        tf_runtime.import_tensorflow()
        return
    if _FOLDER not in os.environ.get(_XLA_FLAGS, ""):  # Keep a folder that is set already.
        with suppress(OSError):  # If there is no temporary folder, XLA compiles the kernels in every run.
            os.environ[_XLA_FLAGS] = f"{os.environ.get(_XLA_FLAGS, '')} {_FOLDER}{_kernels()}".strip()
    tf_runtime.import_tensorflow("3")


def folder(run: Run, instances: int, environ: Mapping[str, str]) -> Path | None:
    """Return the folder in which the run's programs are cached, or None if they are not cached.

    Programs for several instances and for GPUs are not cached. Nor are programs if the user sets XLA flags, because the
    flags may change the compiled code.
    """
    device = run.options.device
    other_flags = not all(word.startswith(tf_runtime.KERNELS_FLAG) for word in environ.get(_XLA_FLAGS, "").split())
    on_gpus = any(stage.startswith("/gpu") for stage in run.plan.stage_devices)
    if other_flags or on_gpus or instances > 1 or not device.executable_cache:
        return None
    if device.executable_cache_path:
        return Path(device.executable_cache_path)
    given = _POPLAR_PATH.search(environ.get(_POPLAR_FLAGS, ""))
    return Path(given[1].strip("\"'")) if given else user_cache.folder(environ) / "executables"


def cache_entry(run: Run, execution: Execution, kind: str, **more: Any) -> DiskCacheEntry | None:
    """Return the cache entry of a program, or None if the run's programs are not cached.

    `kind` is "training" or "validation". `more` contains other values on which the program depends.
    """
    place = folder(run, execution.cluster.size, os.environ)
    limit = run.options.device.executable_cache_size << 20
    return DiskCacheEntry(place, _cache_key(run, execution, kind, more), limit) if place else None


class DiskCacheEntry:
    """The entry of a program in the program cache."""

    def __init__(self, place: Path, key: Mapping[str, Any], limit: int) -> None:
        """`place` is the cache folder. `key` contains everything on which the program depends. All entries together have at
        most `limit` bytes."""
        text = json.dumps(key, sort_keys=True, default=str)
        self._place, self._text, self._limit = place, text, limit
        self.path = place / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{SUFFIX}"
        self.warnings: list[str] = []
        self.hit = False  # True if the program was loaded from the entry.
        self._files: dict[str, bytes] = {}
        self._kernels: frozenset[str] = frozenset()  # The names of the kernels in the entry.
        self._begun = time.perf_counter()
        # Warnings that arise after the program ran are passed to this function.
        self.warn: Callable[[str], None] = partial(print, file=sys.stderr, flush=True)

    @property
    def keeps_kernels(self) -> bool:
        """True if XLA stores its kernels in a folder."""
        return _FOLDER in os.environ.get(_XLA_FLAGS, "")

    def load(self) -> OptimisedGraph | None:
        """Return the program after copying its kernels to XLA's folder, or None if the program is not in the cache."""
        from cnn_harness.ipu_utils import OptimisedGraph

        try:
            members = _unpacked(input_files.content(self.path, MAX_BYTES), self._text)
            kernels = {Path(name).name: members.pop(name) for name in list(members) if name.startswith(_KERNELS)}
            executable, self._files = OptimisedGraph.of(members), members
            with suppress(OSError):  # If the kernels cannot be written, XLA compiles them again.
                for name, content in kernels.items():
                    (_kernels() / name).write_bytes(content)
            with suppress(OSError):
                os.utime(self.path)  # Set the time of the last use, which `_trim` reads.
        except FileNotFoundError:
            return None
        except Exception as error:  # A damaged file may raise any error. Then the program is built again.
            self.reject(error)
            return None
        self.hit, self._kernels = True, frozenset(kernels)
        return executable

    def reject(self, error: Exception) -> None:
        """Discard the entry because of an error, and add a warning."""
        self.warnings.append(f"warning: rebuilding the program, because {self.path} cannot be used: {bounds.reason(error)}")
        self.hit = False

    def save(self, executable: OptimisedGraph) -> None:
        """Write the entry. Kernels that XLA compiles later are added when `ran` is called."""
        self._files = executable.files()
        self.warnings += self._write()

    def ran(self) -> None:
        """Write the entry again if XLA has compiled more kernels. To be called after the program ran."""
        if self._files and not self._there() <= self._kernels:
            for warning in self._write():
                self.warn(warning)
        self._files = {}

    def report(self) -> list[str]:
        """Return log lines: the warnings, and whether the program was loaded or built in how many seconds."""
        how = f"loaded from {self.path}" if self.hit else "built"
        return [*self.warnings, f"The program was {how} in {time.perf_counter() - self._begun:.1f} s."]

    def _there(self) -> frozenset[str]:
        with suppress(OSError):
            return frozenset(path.name for path in _kernels().iterdir() if not path.name.startswith("."))
        return frozenset()

    def _write(self) -> list[str]:
        """Write or replace the entry. If writing fails, return a warning, because the run can continue without the entry."""
        try:
            self._kernels = self._there()
            kernels = {_KERNELS + name: (_kernels() / name).read_bytes() for name in self._kernels}
            self._place.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.write_atomically(self.path, _packed({**self._files, **kernels}, self._text))
            _trim(self._place, self._limit, self.path)
        except OSError as error:
            self._files = {}
            return [
                f"warning: cannot write the program cache: {error.strerror}: {error.filename}. Give another folder with "
                "--executable-cache-path, or turn the cache off with --no-executable-cache"
            ]
        return []


@cache
def _kernels() -> Path:
    """Return the folder of kernels of this process. The folder is deleted when the process ends.

    Raise OSError if there is too little space on the disk, because XLA aborts a run if it cannot write a kernel.
    """
    longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < _ROOM or (longest != resource.RLIM_INFINITY and longest < _ROOM):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), tempfile.gettempdir())
    place = Path(tempfile.mkdtemp(prefix=f"cnn-harness{tf_runtime.KERNELS}"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    for left in place.parent.glob(f"cnn-harness{tf_runtime.KERNELS}*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE and left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
    return place


def _cache_key(run: Run, execution: Execution, kind: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cache key of a program: everything on which the program depends, as JSON values."""
    left_out = with_trait(NOT_IN_GRAPH)
    options = {
        f"{section}.{name}": value
        for section in _SECTIONS
        for name, value in vars(getattr(run.options, section)).items()
        if name not in left_out and (kind == "training" or section != "training" or name in ("stable_norm", "loss"))
    }
    spec, plan = run.data_source.spec, repr(replace(run.plan, updates_per_host_step=0))
    request = run.training_request(0, execution.seed)
    if kind != "training":
        plan, request = repr((run.plan.precision, run.plan.stage_devices[0])), run.validation_request(execution)
    return {
        "kind": kind,
        "model": run.options.main.model,
        "options": options,
        "plan": plan,
        "network": hashlib.sha256(repr(run.network).encode()).hexdigest(),
        "not decayed": list(run.not_decayed),
        "data": [type(run.data_source).__qualname__, {name: getattr(spec, name) for name in _OF_DATA}],
        "request": {name: value for name, value in vars(request).items() if name not in _OF_STREAM},
        "mirrored": run.mirrors,
        "code": code_version(),
        "kernels": library.identity(),
        "processor": _processor(),
        "environment": tf_runtime.settings(),
        **more,
    }


@cache
def _processor() -> list[Any]:
    """Return the features of the processor for which XLA compiles."""
    return [platform.machine(), os.cpu_count(), machine.cores(), library.features()]


def _packed(members: Mapping[str, bytes], text: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in {_KEY: text.encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _unpacked(content: bytes, text: str) -> dict[str, bytes]:
    """Return the files in a ZIP file by name. Raise an error if the ZIP file is damaged or has another key than `text`."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    if members.pop(_KEY, b"").decode() != text:
        raise ValueError("it contains another program")
    return members


def _trim(place: Path, limit: int, newest: Path) -> None:
    """Delete the least recently used entries until the total size is below the limit."""
    entries = []
    for path in place.glob(f"*{SUFFIX}"):
        with suppress(OSError):  # Another process may have deleted the file, or it may be a broken link.
            entries.append((path.stat().st_mtime, path.stat().st_size, path))
    total = 0
    for _, size, path in sorted(entries, reverse=True):
        total += size
        if total > limit and path != newest:
            with suppress(OSError):
                path.unlink()
