"""The folders that the instances of a run write to. Instance 0's folder is the run; the others, where they write at all,
have folders of their own beside it, which are called alike: <name>_worker<k>_XYZ, or under poprun
<name>_popdist_instance_<k>_XYZ; or after their --name-suffix, where each has another one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.checkpoints import run_record, write
from harness.processes.team import Team
from harness.run.cluster import TF_CONFIG
from harness.run.run import Run
from log import check_folder, check_writable, new_run_folder, record

Config = dict[str, Any]  # what an instance was asked for: its run's name, and its --name-suffix, --log-dir and --logs-path


def begin(run: Run, team: Team) -> tuple[Run, Path]:
    """Return the run as it is recorded, and this instance's folder for a new run, made if it is to write."""
    logging, configs, source = run.options.logging, team.configs, run.cluster.source
    if team.size == 1:
        return run, new_run_folder(run.name, logging.log_dir, logging.logs_path, logging.logs)
    if len({config["name_suffix"] for config in configs}) > 1:  # they are to be told apart
        run = replace(run, options=replace(run.options, logging=replace(logging, log_all_instances=True)))
    names = _names(configs, source) if all_write(run) else [run.name] * team.size
    first = new_run_folder(names[0], logging.log_dir, logging.logs_path, logging.logs) if team.first else Path()
    top = Path(team.broadcast_text(str(first.absolute())))
    everyone = [top, *(_beside(top, names, configs, k, source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if writes(run) and not team.first:
        new_run_folder(run.name, "", str(folder), keep=True)
    return replace(run, folders=_listed(everyone) if all_write(run) else ()), folder


def check(run: Run) -> None:
    """LogError or NotRegular if the call's new folder cannot be made, or written, as far as can be told without making one;
    the others' lie beside that of instance 0."""
    logging = run.options.logging
    if logging.logs and not run.cluster.instance and not run.options.device.compile_only:
        check_folder(logging.log_dir, logging.logs_path)
        if logging.logs_path is not None:
            write.check_writable(Path(logging.logs_path))


def resume(run: Run, team: Team, given: Path) -> tuple[Run, Path]:
    """Return the run and this instance's folder of a run that goes on; `given`: what it was told, instance 0's folder or its
    own."""
    recorded = run_record.arguments(given)
    listed = recorded.get("instance_folders") or []
    listed = [] if _is_copy(given.absolute(), listed) else listed
    if team.size == 1:
        return replace(run, folders=tuple(listed)), given
    top, listed = json.loads(team.broadcast_text(json.dumps([str(given.absolute()), listed]) if team.first else ""))
    everyone = [Path(top), *(sibling(Path(top), listed, k, run.cluster.source) for k in range(1, team.size))]
    folder = everyone[team.instance]
    if not team.first and given.absolute() != everyone[0] and recorded.get("instance") == team.instance:
        folder = given.absolute()
    if writes(run):
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder, goes_on=True)
    return replace(run, folders=tuple(listed) or (_listed(everyone) if all_write(run) else ())), folder


def writes(run: Run) -> bool:
    """Return whether this instance logs or saves."""
    return run.cluster.instance == 0 or all_write(run)


def all_write(run: Run) -> bool:
    """Return whether every instance logs or saves."""
    return run.options.logging.log_all_instances or run.options.checkpoint.ckpt_all_instances


def keep_options(run: Run, folder: Path, values: Config) -> None:
    """The options of an instance that saves without a log, so that it can go on from its own folder."""
    if run.options.logging.logs and run.options.checkpoint.ckpt_all_instances and not (folder / "log.txt").exists():
        record(folder, values, restored=False)


def sibling(top: Path, listed: Sequence[str], instance: int, source: str) -> Path:
    """An instance's folder: the one that the run has recorded, moved with instance 0's or not; a new one by its name."""
    for name in listed[instance : instance + 1]:
        for path in (top.parent / Path(name).name, *[Path(name)] * os.path.isabs(name)):
            if path.is_dir() and run_record.arguments(path).get("instance") == instance:
                return path
    below = top / f"instance-{instance}"  # where earlier versions kept it
    if below.is_dir() and not below.is_symlink():
        return below
    before, tag, after = top.name.rpartition(_tag(0, source))
    own = _tag(instance, source)
    return top.with_name(f"{before}{own}{after}" if tag else f"{top.name}_{own}")


def _is_copy(top: Path, listed: Sequence[str]) -> bool:
    """Return whether a folder was copied from instance 0's, which is still beside it as the run has recorded it: the others
    that are listed belong to that one."""
    for first in (top.parent / Path(name).name for name in listed[:1]):
        return first.is_dir() and not first.samefile(top) and run_record.arguments(first).get("instance") == 0
    return False


def _listed(everyone: Sequence[Path]) -> tuple[str, ...]:
    """Return the folders as a run records them: those beside the first one by their names."""
    return tuple(each.name if each.parent == everyone[0].parent else str(each) for each in everyone)


def _names(configs: Sequence[Config], source: str) -> list[str]:
    """Return the names of the instances' folders, less the random end."""
    apart = len({config["name_suffix"] for config in configs}) == len(configs)
    return [config["name"] if apart else f"{config['name']}_{_tag(k, source)}" for k, config in enumerate(configs)]


def _beside(top: Path, names: Sequence[str], configs: Sequence[Config], instance: int, source: str) -> Path:
    """An instance's new folder: the one given for itself, or one beside instance 0's."""
    own, first = configs[instance], configs[0]
    if own["logs_path"] not in (None, first["logs_path"]):
        return Path(own["logs_path"]).absolute()
    parent = top.parent if own["log_dir"] == first["log_dir"] else Path(own["log_dir"]).absolute()
    named = not first["logs_path"] and top.name.startswith(names[0])
    return parent / (names[instance] + top.name[len(names[0]) :] if named else f"{top.name}_{_tag(instance, source)}")


def _tag(instance: int, source: str) -> str:
    return f"worker{instance}" if source == TF_CONFIG else f"popdist_instance_{instance}"
