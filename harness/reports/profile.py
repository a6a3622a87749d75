"""The profile of one weight update: a Chrome trace, and a picture of the stages' cells.

`--profile [FILE]` and `--gc-profile [TYPE]` ask for it, and so does `gc-profile -d DIR -- command` by an environment
variable. The files are `profile.json` and `profile.svg`, in the run's folder, in DIR, or as FILE says. All but `--profile`
alone have three more beside them, as the IPU's tool had: `execution.json`, the same in numbers, `archive.a`, all of these
in one file of the tool `ar`, and `stdout.txt`, what the command printed.
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

from base.errors import OptionError
from base.storage import files
from base.storage.files import write_atomically
from emulator.plan import timings
from emulator.plan.machine import cores
from emulator.plan.options import DeviceOptions
from emulator.plan.plan import ExecutionPlan
from emulator.plan.timings import CellTiming
from harness.options.sections import AUTO
from harness.reports import timeline

FOLDER_VARIABLE = "GC_PROFILE_DIR"
NONE, DEVICE, IPU, TILE = "NO_PROFILE", "DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE"
STEM = "profile"
OWN_NAMES = (f"{STEM}.json", f"{STEM}.svg")  # without a name of the call's
EXECUTION, PRINTED, ARCHIVE = "execution.json", "stdout.txt", "archive.a"
STAGES_PROCESS = 10_000  # in the trace: a number that TensorFlow's devices do not reach


@dataclass(frozen=True)
class ProfileRequest:
    """The request for a recording: its kind, and the two files' path without its ending."""

    kind: str
    target: Path
    reports: bool  # whether execution.json, archive.a and stdout.txt are wanted beside them

    @property
    def operations(self) -> bool:
        """True if single operations are wanted, not only the stages' cells."""
        return self.kind != DEVICE


def requested(options: DeviceOptions, folder: Path, environ: Mapping[str, str]) -> ProfileRequest | None:
    """The profile that the options or the environment ask for. `folder`: of the run."""
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
    """OptionError if the named files could not be written; makes their folder. Asked before a run begins."""
    request = requested(options, Path(), environ)
    if request is None or options.profile in (None, AUTO):
        return
    try:
        request.target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--profile {options.profile}: no folder {request.target.parent}: {error.strerror}") from None
    from harness.reports import output

    for name in _names(request):
        kind = output.PICTURE if name.endswith(".svg") else output.JSON
        output.check(str(request.target.with_name(name)), kind, OWN_NAMES)


def _names(request: ProfileRequest) -> tuple[str, str]:
    """Return the names of the trace and of the picture."""
    return f"{request.target.name}.json", f"{request.target.name}.svg"


def write(
    request: ProfileRequest,
    plan: ExecutionPlan,
    title: str,
    cells: Sequence[CellTiming],
    operations: Sequence[Mapping[str, Any]] = (),
    most_alive: int | None = None,
) -> list[str]:
    """Write all files; return lines about them for the log. `operations`: events of a Chrome trace, in microseconds;
    `most_alive`: the most bytes of tensors that were alive at once."""
    trace, drawing = (request.target.with_name(name) for name in _names(request))
    measures = _measures(plan, cells, most_alive)
    texts = {
        trace: json.dumps({"traceEvents": [*_cell_events(cells, len(plan.stages)), *operations]}),
        drawing: timeline.picture(plan, cells, title, cores()),
    }
    failure = _write_all(request, title, texts, operations, measures)
    if failure:
        return [failure]
    lines = [
        f"Profile of one weight update ({measures['milliseconds']:.1f} ms, stages idle for "
        f"{100 * measures['idle_share']:.0f} %, up to {measures['busy_at_once']} of {measures['stages']} at work at once): "
        f"{drawing}",
        f"Its {'operations' if operations else 'cells'} for chrome://tracing or ui.perfetto.dev: {trace}",
    ]
    if most_alive is not None:
        lines.append(f"At most {most_alive / 1e6:.1f} MB of tensors were alive at once, besides the weights")
    if request.kind == TILE:
        lines.append("TILE_PROFILE: tiles are not emulated; it holds what IPU_PROFILE does")
    return lines


def write_operations(request: ProfileRequest, title: str, operations: Sequence[Mapping[str, Any]]) -> str:
    """Write the trace of a program without stages; return a line about it."""
    trace = request.target.with_name(_names(request)[0])
    failure = _write_all(request, title, {trace: json.dumps({"traceEvents": list(operations)})}, operations, {})
    return failure or f"The operations of one micro-batch, for chrome://tracing or ui.perfetto.dev: {trace}"


def _measures(plan: ExecutionPlan, cells: Sequence[CellTiming], most_alive: int | None) -> dict[str, Any]:
    """Return the stages' measurements; times in milliseconds since the first cell began."""
    began = min(cell.begin for cell in cells)
    return {
        "schedule": plan.schedule,
        "stages": len(plan.stages),
        "milliseconds": 1000 * (max(cell.end for cell in cells) - began),
        "idle_share": timings.idle_fraction(cells, len(plan.stages)),
        "busy_at_once": timings.busy_at_once(cells),
        "most_alive_bytes": most_alive,
        "cells": [
            {
                "stage": cell.action.stage,
                "kind": timeline.WORDS[cell.action.kind],
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
    """Write the texts and, if they are wanted, execution.json and archive.a; return the reason of a failure."""
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
    except OSError as error:  # no reason to lose the run
        return f"The profile was not written: {error.strerror}: {error.filename}"
    return ""


def _totals(operations: Sequence[Mapping[str, Any]]) -> Mapping[str, Mapping[str, float]]:
    """Return how often each type of operation ran, and for how long."""
    totals: dict[str, dict[str, float]] = defaultdict(lambda: {"count": 0, "milliseconds": 0.0})
    for event in operations:
        if "op" in event.get("args", {}):
            sums = totals[event["args"]["op"]]
            sums["count"] += 1
            sums["milliseconds"] += event.get("dur", 0) / 1000
    return totals


def _archive(members: Mapping[str, str]) -> bytes:
    """Return a file of the tool `ar`, whose members have no owner and no date."""
    parts = [b"!<arch>\n"]
    for name, text in members.items():
        content = files.encoded(text)
        header = f"{name + '/':<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        parts += [header.encode(), content, b"\n" * (len(content) % 2)]  # each begins at an even byte
    return b"".join(parts)


class _Copied:
    """A stream whose text goes into a file too, as long as that can be written."""

    def __init__(self, stream: TextIO, copy: TextIO) -> None:
        self._stream, self._copy = stream, copy

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):  # the log has it too
            self._copy.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def copied_output(request: ProfileRequest | None) -> Iterator[None]:
    """Copy everything that is printed meanwhile to stdout.txt beside the profile, if that is wanted."""
    if request is None or not request.reports:
        yield
        return
    path = request.target.with_name(PRINTED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, "")  # a link, a pipe or a file with other names is replaced
        copy = io.TextIOWrapper(files.append(path), encoding="utf-8", errors="replace", line_buffering=True)
    except OSError as error:
        print(f"What is printed is not copied: {error.strerror}: {path}")
        yield
        return
    try:
        with contextlib.redirect_stdout(_Copied(sys.stdout, copy)):
            yield
    finally:
        with contextlib.suppress(OSError):
            copy.close()


def _cell_events(cells: Sequence[CellTiming], stages: int) -> list[dict[str, Any]]:
    """The cells as a process of the trace with a row for each stage."""
    named = [_name("process_name", 0, "stages"), *(_name("thread_name", j, f"stage {j}") for j in range(stages))]
    events = [
        {
            "ph": "X",
            "name": f"{timeline.WORDS[cell.action.kind]} {cell.action.micro_batch}",
            "cat": timeline.WORDS[cell.action.kind],
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
