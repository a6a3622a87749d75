"""The check that this machine's memory holds a run. Host memory, never that of the IPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from base.errors import OptionError
from base.host_limits import ADDRESSES, DATA, Limit
from emulator.plan import process_memory
from emulator.plan.process_memory import gigabytes
from harness.run.run import Run

_KINDS = {ADDRESSES: "address space", DATA: "writable memory"}
_LESS = (
    "give a smaller --micro-batch-size with a larger --gradient-accumulation-count, --fold 1, --enable-recomputation, or a "
    "smaller --image-size"
)


def check(run: Run, limits: Sequence[Limit]) -> list[str]:
    """Warn where a limit is below the prediction. OptionError where it is so far below that the system would kill the run,
    unless --no-memory-check is given."""
    needed, processes = run.memory, run.cluster.neighbours
    limit, hopeless = process_memory.find_exceeded_limit(needed, limits, processes)
    if limit is None:
        return []
    least = replace(needed, activations=0, pictures=0, records=0)
    hint = _LESS if run.trains else "give a smaller --micro-batch-size or --valid-batch-size, or a smaller --image-size"
    if process_memory.find_exceeded_limit(least, [limit], processes)[1]:
        hint = f"TensorFlow and the weights alone take {gigabytes(least.of_kind(limit.kind))} GB; use a smaller network"
    elif needed.records and process_memory.find_exceeded_limit(replace(needed, records=0), [limit], processes)[0] is None:
        hint = "give --no-dataset-cache"
    shared = f" in each of the {processes} processes here" if limit.shared and processes > 1 else ""
    message = (
        f"{'training' if run.trains else 'this'} needs about {gigabytes(needed.of_kind(limit.kind))} GB of "
        f"{_KINDS.get(limit.kind, 'host memory')}{shared}, and {limit.source} {gigabytes(limit.bytes)} GB: {hint}"
    )
    if hopeless and run.options.device.memory_check:
        raise OptionError(f"{message}; --no-memory-check tries it all the same")
    return [f"warning: {message}"]
