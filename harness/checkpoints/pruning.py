"""Deletes old checkpoints when a newer one is written: those beyond --max-ckpts-to-keep, and safety checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.checkpoints import find, state_file, write
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError


def prune(
    folder: Path, newest: Checkpoint, count: int | None, is_scheduled: Callable[[int], bool], keep_name: str = ""
) -> None:  # fmt: skip
    """Delete, after `newest` is written, the run's safety checkpoints before it and all but the `count` newest
    permanent ones and that of the name `keep_name`. Checkpoints off the schedule, which a run that stopped has saved, go
    first: the run in one go has none of them."""
    earlier = [each for each in find.numbered(folder) if each.updates < newest.updates]
    old_safety = [old for old in earlier if old.updates and not is_scheduled(old.updates) and _is_for_safety(old)]
    permanent = [old for old in earlier if old not in old_safety and old.name != keep_name]
    permanent.sort(key=lambda old: (old.updates == 0 or is_scheduled(old.updates), old.updates))
    surplus = max(0, len(permanent) + 1 - count) if count else 0
    for old in old_safety + permanent[:surplus]:
        write.delete(Path(old.prefix))


def _is_for_safety(checkpoint: Checkpoint) -> bool:
    """Return whether the next checkpoint replaces this one; not a damaged one, which readers pass over."""
    try:
        return bool(state_file.read(checkpoint).get(state_file.SAFETY))
    except CheckpointError:
        return False
