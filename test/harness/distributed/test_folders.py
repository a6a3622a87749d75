"""Each instance of a run has its own folder. A resume finds the folders and never takes another run's."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cnn_harness.harness.distributed import folders
from cnn_harness.harness.options.sections import CheckpointOptions, LoggingOptions
from cnn_harness.harness.run.cluster import Cluster


@dataclass(frozen=True)
class Options:
    """The options that folders depend on."""

    logging: LoggingOptions
    checkpoint: CheckpointOptions


class Team:
    """Stand in for an instance of a team; `first` is what instance 0 broadcasts."""

    def __init__(self, instance: int, configs: list[dict], first: Any) -> None:
        self.instance, self.size, self.is_first = instance, len(configs), instance == 0
        self.configs, self._first = configs, first
        self.cluster = Cluster(("a:1", "b:1", "c:1")[: len(configs)], instance, source="TF_CONFIG")

    def broadcast_text(self, text: str) -> str:
        return text if self.is_first else str(self._first)

    def broadcast_json(self, value: Any) -> Any:
        return value if self.is_first else self._first


def record(folder: Path, instance: int, listed: list[str], run_id: str = "a") -> None:
    folder.mkdir(exist_ok=True)
    content = {"instance": instance, "instance_folders": listed, "run_id": run_id}
    (folder / "arguments.json").write_text(json.dumps(content))


def resumed(top: Path, listed: list[str], size: int = 2) -> list[str]:
    """Resume a run with `size` instances; return the folders that all of them record."""
    found = []
    for k in range(size):
        options = Options(LoggingOptions(log_all_instances=True), CheckpointOptions())
        used = folders.resume(options, Team(k, [{}] * size, [str(top), listed]), top, "a")
        assert used.own == top.parent / used.listed[k] and used.own.is_dir()
        found.append(used.listed)
    assert len(set(found)) == 1
    return list(found[0])


def test_resume_finds_folders_of_all_instances(tmp_path):
    """Also after a move and with a smaller team, but not for a renamed copy of instance 0's folder."""
    names = ["N_worker0_XYZ", "N_worker1_XYZ"]
    (tmp_path / "logs").mkdir()
    for k, name in enumerate(names):
        record(tmp_path / "logs" / name, k, names)
    (tmp_path / "logs").rename(tmp_path / "moved")
    top = tmp_path / "moved" / names[0]
    assert resumed(top, names) == names
    assert resumed(top, names, 3) == [*names, "N_worker2_XYZ"]
    branch = shutil.copytree(top, tmp_path / "moved/branch")
    assert resumed(branch, names) == ["branch", "branch_worker1"]
    record(tmp_path / "moved/branch_worker1", 1, [], "b")
    with pytest.raises(folders.FolderError, match="branch_worker1.* contains another run"):
        resumed(branch, names)
