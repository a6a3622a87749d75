"""The checkpoints of a run that go when a newer one is written: --max-ckpts-to-keep, and those saved for safety."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.checkpoints import find, state_file, write
from harness.checkpoints.checkpoint import Checkpoint, CheckpointError
from harness.run.arguments import RUN_ID


def prune(
    folder: Path, newest: Checkpoint, count: int | None, on_grid: Callable[[int], bool], spared: str = ""
) -> None:  # fmt: skip
    """Delete, after `newest` is written, the run's safety checkpoints before it and all but the `count` newest others and
    the one of the name `spared`. Checkpoints of another run stay, and count for nothing."""
    states = {each: _readable_state(each) for each in find.numbered(folder) if each.updates <= newest.updates}
    own = states.pop(newest, {}).get(RUN_ID)
    earlier = [each for each, state in states.items() if not own or state.get(RUN_ID) in (None, own)]
    rolling = [old for old in earlier if old.updates and not on_grid(old.updates) and states[old].get(state_file.SAFETY)]
    others = [old for old in earlier if old not in rolling and old.name != spared]
    surplus = max(0, len(others) + 1 - count) if count else 0
    for old in rolling + others[:surplus]:
        write.delete(Path(old.prefix))


def _readable_state(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state of a checkpoint; empty for a damaged one, which readers pass over, and which stays."""
    try:
        return state_file.read(checkpoint)
    except CheckpointError:
        return {}
