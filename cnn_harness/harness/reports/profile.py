"""Profile one weight update: write a Chrome trace (profile.json) and a timeline of the pipeline stages (profile.svg).

There are three ways to request a profile: `--profile [FILE]`, `--gc-profile [TYPE]`, and `gc-profile -d DIR -- command`,
which sets an environment variable. The files are written to FILE, to DIR, or else to the run directory. The last two ways
also write files in the style of Graphcore's profiler:

- `execution.json` contains the measured times.
- `stdout.txt` contains the output of the command.
- `archive.a` is an `ar` archive of the trace, the timeline and `execution.json`.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from cnn_harness.base.errors import OptionError
from cnn_harness.base.storage import files
from cnn_harness.base.storage.files import write_atomically
from cnn_harness.emulator.plan import timings
from cnn_harness.emulator.plan.machine import cores
from cnn_harness.emulator.plan.options import DeviceOptions
from cnn_harness.emulator.plan.plan import ExecutionPlan
from cnn_harness.emulator.plan.schedules import KIND_NAMES
from cnn_harness.emulator.plan.timings import CellTiming
from cnn_harness.harness.options.sections import AUTO
from cnn_harness.harness.reports import timeline

FOLDER_VARIABLE = "GC_PROFILE_DIR"
NONE, DEVICE, IPU, TILE = "NO_PROFILE", "DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE"
STEM = "profile"
OWN_NAMES = (f"{STEM}.json", f"{STEM}.svg")  # the default file names
EXECUTION, PRINTED, ARCHIVE = "execution.json", "stdout.txt", "archive.a"
STAGES_PROCESS = 10_000  # The stages' process number in the trace. TensorFlow's devices have smaller numbers.


@dataclass(frozen=True)
class ProfileRequest:
    """A requested profile. `kind` is a value of --gc-profile. `target` is the path of the trace and the timeline without
    suffix. If `reports` is true, execution.json, archive.a and stdout.txt are written too."""

    kind: str
    target: Path
    reports: bool

    @property
    def operations(self) -> bool:
        """Whether to record every TensorFlow operation, not only the passes of each stage."""
        return self.kind != DEVICE

    @property
    def trace(self) -> Path:
        """The path of the trace."""
        return self.target.with_name(f"{self.target.name}.json")

    @property
    def drawing(self) -> Path:
        """The path of the timeline."""
        return self.target.with_name(f"{self.target.name}.svg")


def requested(options: DeviceOptions, folder: Path, environ: Mapping[str, str]) -> ProfileRequest | None:
    """Return the profile that the options or the environment request, or None. `folder` is the run directory."""
    around = environ.get(FOLDER_VARIABLE)
    if options.gc_profile == NONE or (options.gc_profile is None and options.profile is None and not around):
        return None
    target = Path(around or folder) / STEM
    if options.profile not in (None, AUTO):
        named = Path(options.profile)
        inside = named.is_dir() or options.profile.endswith("/")
        target = named / STEM if inside else named.with_suffix("") if named.suffix in (".svg", ".json") else named
    return ProfileRequest(options.gc_profile or IPU, target, options.gc_profile is not None or bool(around))


def check_target(options: DeviceOptions, environ: Mapping[str, str]) -> None:
    """Create the folder for the files that --profile names. Raise OptionError if the files cannot be written."""
    request = requested(options, Path(), environ)
    if request is None or options.profile in (None, AUTO):
        return
    try:
        request.target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        folder = request.target.parent
        raise OptionError(f"--profile {options.profile}: cannot create folder {folder}: {error.strerror}") from None
    from cnn_harness.harness.reports import output

    output.check(str(request.trace), output.JSON, OWN_NAMES)
    output.check(str(request.drawing), output.SVG, OWN_NAMES)


def write(
    request: ProfileRequest,
    plan: ExecutionPlan,
    title: str,
    cells: Sequence[CellTiming],
    operations: Sequence[Mapping[str, Any]] = (),
    most_alive: int | None = None,
) -> list[str]:
    """Write all files and return log lines about them. `operations` are events of a Chrome trace, in microseconds.
    `most_alive` is the peak memory of live tensors, in bytes."""
    measures = _measures(plan, cells, most_alive)
    texts = {
        request.trace: json.dumps({"traceEvents": [*_cell_events(cells, len(plan.stages)), *operations]}),
        request.drawing: timeline.svg(plan, cells, title, cores()),
    }
    failure = _write_all(request, title, texts, operations, measures)
    if failure:
        return [failure]
    lines = [
        f"Profile of one weight update ({measures['milliseconds']:.1f} ms, "
        f"stages {100 * measures['idle_share']:.0f} % idle, "
        f"at most {measures['busy_at_once']} of {measures['stages']} busy at once): {request.drawing}",
        f"Trace of its {'operations' if operations else 'cells'} for chrome://tracing or ui.perfetto.dev: {request.trace}",
    ]
    if most_alive is not None:
        lines.append(f"Peak memory of tensors, without the weights: {most_alive / 1e6:.1f} MB")
    if request.kind == TILE:
        lines.append("TILE_PROFILE: tiles are not emulated, so the profile is the same as with IPU_PROFILE")
    return lines


def write_operations(request: ProfileRequest, title: str, operations: Sequence[Mapping[str, Any]]) -> str:
    """Write the trace of a program that has no stages, such as a validation, and return a log line about it."""
    failure = _write_all(request, title, {request.trace: json.dumps({"traceEvents": list(operations)})}, operations, {})
    return failure or f"Trace of the operations of one micro-batch for chrome://tracing or ui.perfetto.dev: {request.trace}"


def _measures(plan: ExecutionPlan, cells: Sequence[CellTiming], most_alive: int | None) -> dict[str, Any]:
    """Return the measured times of the stages, in milliseconds since the first pass began."""
    began = min(cell.begin for cell in cells)
    return {
        "schedule": plan.schedule,
        "stages": len(plan.stages),
        "milliseconds": 1000 * (max(cell.end for cell in cells) - began),
        "idle_share": timings.idle_fraction(cells, plan.pipeline_devices),
        "busy_at_once": timings.busy_at_once(cells),
        "most_alive_bytes": most_alive,
        "cells": [
            {
                "stage": cell.action.stage,
                "kind": KIND_NAMES[cell.action.kind],
                "micro_batch": cell.action.micro_batch,
                "begin": 1000 * (cell.begin - began),
                "end": 1000 * (cell.end - began),
            }
            for cell in cells
        ],
    }


def _write_all(
    request: ProfileRequest, title: str, texts: Mapping[Path, str], operations: Sequence[Mapping[str, Any]],
    measures: Mapping[str, Any],
) -> str:  # fmt: skip
    """Write the texts and, if requested, execution.json and archive.a; return an error message or ""."""
    members = {f"{STEM}{path.suffix}": text for path, text in texts.items()}
    try:
        request.target.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_atomically(path, text)
        if request.reports:
            content = {"title": title, "kind": request.kind, **measures, "operations": _totals(operations)}
            members[EXECUTION] = json.dumps(content, indent=1) + "\n"
            write_atomically(request.target.with_name(EXECUTION), members[EXECUTION])
            write_atomically(request.target.with_name(ARCHIVE), _archive(members))
    except OSError as error:  # The run continues without a profile.
        return f"The profile was not written: {error.strerror}: {error.filename}"
    return ""


def _totals(operations: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, float]]:
    """Return the count and the total time of each type of operation."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: {"count": 0, "milliseconds": 0.0})
    for event in operations:
        if "op" in event.get("args", {}):
            sums = totals[event["args"]["op"]]
            sums["count"] += 1
            sums["milliseconds"] += event.get("dur", 0) / 1000
    return totals


def _archive(members: Mapping[str, str]) -> bytes:
    """Return an `ar` archive of files. The files have no owner and no date, so the archive is reproducible."""
    parts = [b"!<arch>\n"]
    for name, text in members.items():
        content = files.encoded(text)
        header = f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]  # Each file begins at an even offset.
    return b"".join(parts)


class _Copied:
    """A text stream that also writes to a second stream. Errors of the second stream are ignored."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream, self._copy = stream, copy

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._copy.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def copied_output(request: ProfileRequest | None) -> Iterator[None]:
    """Copy standard output to stdout.txt in the profile's folder, if the request has `reports`."""
    if request is None or not request.reports:
        yield
        return
    path = request.target.with_name(PRINTED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, "")  # If the path is a link or a pipe, replace it instead of writing through it.
        copy = io.TextIOWrapper(files.append(path), encoding="utf-8", errors="replace", line_buffering=True)
    except OSError as error:
        print(f"Standard output is not copied to {path}: {error.strerror}")
        yield
        return
    try:
        with contextlib.redirect_stdout(_Copied(sys.stdout, copy)):
            yield
    finally:
        with contextlib.suppress(OSError):
            copy.close()


def _cell_events(cells: Sequence[CellTiming], stages: int) -> list[dict[str, Any]]:
    """Return the passes of all stages as events of one process, with a thread for each stage."""
    named = [_name("process_name", 0, "stages"), *(_name("thread_name", j, f"stage {j}") for j in range(stages))]
    events = [
        {
            "ph": "X",
            "name": f"{KIND_NAMES[cell.action.kind]} {cell.action.micro_batch}",
            "cat": KIND_NAMES[cell.action.kind],
            "pid": STAGES_PROCESS,
            "tid": cell.action.stage,
            "ts": 1e6 * cell.begin,
            "dur": 1e6 * (cell.end - cell.begin),
        }
        for cell in cells
    ]
    return [*named, *events]


def _name(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": STAGES_PROCESS, "tid": thread, "args": {"name": name}}
