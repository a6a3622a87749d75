"""Deletes old checkpoints when a newer one is written: those beyond --max-ckpts-to-keep, and safety checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.checkpoints import find, state_file, write
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.run.recorded_arguments import RUN_ID


def prune(
    folder: Path, newest: Checkpoint, count: int | None, is_scheduled: Callable[[int], bool], keep_name: str = ""
) -> None:  # fmt: skip
    """Delete, after `newest` is written, the run's safety checkpoints before it and all but the `count` newest
    permanent ones and that of the name `keep_name`. Checkpoints off the schedule, which a run that stopped has saved, go
    first: the run in one go has none of them. Checkpoints of another run stay, and are not counted."""
    states = {each: _readable_state(each) for each in find.numbered(folder) if each.updates <= newest.updates}
    own = states.pop(newest, {}).get(RUN_ID)
    earlier = [each for each, state in states.items() if not own or state.get(RUN_ID) in (None, own)]
    old_safety = [
        old for old in earlier if old.updates and not is_scheduled(old.updates) and states[old].get(state_file.SAFETY)
    ]
    permanent = [old for old in earlier if old not in old_safety and old.name != keep_name]
    permanent.sort(key=lambda old: (old.updates == 0 or is_scheduled(old.updates), old.updates))
    surplus = max(0, len(permanent) + 1 - count) if count else 0
    for old in old_safety + permanent[:surplus]:
        write.delete(Path(old.prefix))


def _readable_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the state of a checkpoint; empty for a damaged one, which readers pass over, and which is not deleted."""
    try:
        return state_file.read(checkpoint)
    except CheckpointError:
        return {}
