"""The instances that TF_CONFIG names.

{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}; a chief, or master, is instance 0 before
the workers, as Kubeflow has it. OMPI_COMM_WORLD_RANK goes before the index, so that one value serves all processes that
mpirun starts; other launchers' numbers stand in where there is no index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from base.bounds import json_value
from base.errors import OptionError
from base.fields import short
from harness.cluster import ranks
from harness.cluster.cluster import Cluster, check_addresses

TF_CONFIG = "TF_CONFIG"
_WORKERS = '"cluster": {"worker": ["host0:2222", "host1:2222"]}'
FOR_ALL = f"{{{_WORKERS}}}"  # which serves all processes of a launcher that numbers them
FORM = f'{{{_WORKERS}, "task": {{"type": "worker", "index": 0}}}}'
_EXAMPLE = "and must be JSON with cluster.worker and task.index, as in"
_LEADERS, _WORKER = ("chief", "master"), "worker"
_USELESS = {  # jobs of other strategies: why there is nothing for them to do, and what to do about it
    "ps": "gradients are all-reduced among the workers, without parameter servers; leave out cluster.ps, and PS among a "
    "TFJob's replicas",
    "evaluator": "the instances validate together; leave the evaluator out, and Evaluator among a TFJob's replicas, or let "
    "it call validation.py without --distributed",
}


def workers(environ: Mapping[str, str]) -> int:
    """The processes of TF_CONFIG that train, leaders and workers, whether it can be used or not."""
    jobs = _part(environ, "cluster") or {}
    return sum(len(jobs[job]) for job in (*_LEADERS, _WORKER) if isinstance(jobs.get(job), list))


def follows(environ: Mapping[str, str]) -> bool:
    """Return whether TF_CONFIG says that this is not instance 0, before anything is refused."""
    task = _part(environ, "task")
    if task is None:
        return False
    rank = ranks.of_openmpi(environ) or ("index" not in task and ranks.of_launcher(environ))
    if rank:
        return rank.text != "0"
    jobs = _part(environ, "cluster") or {}
    led = any(jobs.get(leader) for leader in _LEADERS)
    return str(task.get("index", 0)) != "0" or (led and task.get("type") not in _LEADERS)


def _part(environ: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """A dictionary of TF_CONFIG, before anything is refused: empty where it is left out, None where there is none at all."""
    try:
        part = json_value(environ.get(TF_CONFIG, "")).get(name, {})
    except (ValueError, AttributeError):
        return None
    return part if isinstance(part, dict) else None


def cluster(environ: Mapping[str, str]) -> Cluster:
    """The instances, and this one's place; OptionError for a TF_CONFIG that cannot be used."""
    try:
        content = json_value(environ[TF_CONFIG])
    except ValueError as error:
        raise OptionError(f"{TF_CONFIG} cannot be used ({error}), {_EXAMPLE}", FORM) from None
    jobs = content.get("cluster") if isinstance(content, dict) else None
    jobs = jobs if isinstance(jobs, dict) else {}
    task = content.get("task") if isinstance(content, dict) else None
    _check_jobs(jobs, task)
    leader = next((job for job in _LEADERS if job in jobs), None)
    listed = [*(jobs[leader] if leader else ()), *jobs.get(_WORKER, ())]
    addresses = check_addresses(listed, f"{TF_CONFIG}'s cluster.{leader or _WORKER}" + (" and worker" if leader else ""))
    return Cluster(addresses, _instance(task, leader, environ, len(addresses)), source=TF_CONFIG)


def _check_jobs(jobs: Mapping[str, Any], task: Any) -> None:
    """OptionError for jobs that do not train, or that lead twice."""
    kind = task.get("type") if isinstance(task, dict) else None
    for job, reason in _USELESS.items():
        if job in jobs or kind == job:
            raise OptionError(
                f"{TF_CONFIG} has the {'jobs' if job in jobs else 'task'} {job}, which cannot be used: {reason}"
            )
    others = sorted(set(jobs) - {*_LEADERS, _WORKER})
    if others:
        raise OptionError(
            f"{TF_CONFIG} has the jobs {short(', '.join(others))}: only cluster.worker is known, whose first one leads, and "
            "cluster.chief with one leader before them"
        )
    if not any(jobs.values()) or not all(isinstance(each, list) for each in jobs.values()):
        raise OptionError(f"{TF_CONFIG} has no list cluster.worker of host:port, {_EXAMPLE}", FORM)
    leaders = [job for job in _LEADERS if job in jobs]
    if len(leaders) > 1 or any(len(jobs[job]) != 1 for job in leaders):
        count = sum(len(jobs[job]) for job in leaders)
        raise OptionError(
            f"{TF_CONFIG}'s cluster.{' and cluster.'.join(leaders)} has {count} leaders, but must have one: name the others "
            "in cluster.worker"
        )


def _instance(task: Any, leader: str | None, environ: Mapping[str, str], size: int) -> int:
    """This process' place, the leader's being 0 where there is one."""
    task, allowed = {} if task is None else task, (_WORKER, *[leader] * bool(leader))
    if not isinstance(task, dict) or task.get("type", _WORKER) not in allowed:
        kinds = " or ".join(f'"{kind}"' for kind in allowed)
        raise OptionError(
            f'{TF_CONFIG}\'s task must be {{"type": {kinds}, "index": ...}}, but is {short(json.dumps(task))}'
            + (": cluster has no such job" if not leader else "")
        )
    rank = ranks.of_openmpi(environ) or (task.get("index") is None and ranks.of_launcher(environ))
    if rank:
        _check_size(environ, rank, size)
        return _whole(rank.text, rank.name, size)
    index = task.get("index")
    if index is None:
        raise OptionError(
            f"neither {TF_CONFIG}'s task.index nor {ranks.OPENMPI[0]}, PMI_RANK or SLURM_PROCID says which worker this is; "
            "give one of them"
        )
    leading = leader is not None and task.get("type") == leader
    before = 0 if leading or not leader else 1
    return before + _whole(index, f"{TF_CONFIG}'s task.index", 1 if leading else size - before)


def _whole(index: Any, where: str, size: int) -> int:
    number = int(index) if re.fullmatch(r"[0-9]{1,6}", str(index)) else -1
    if isinstance(index, bool) or not 0 <= number < size:
        allowed = f"a whole number from 0 to {size - 1}: there are {size} workers" if size != 1 else "0: there is one"
        raise OptionError(f"{where} is {short(index)}, but must be {allowed}")
    return number


def _check_size(environ: Mapping[str, str], rank: ranks.Rank, size: int) -> None:
    """OptionError if the launcher started more or fewer processes than TF_CONFIG names."""
    text = environ.get(rank.size_name) if rank.size_name else None
    if text and text != str(size):
        raise OptionError(
            f"{rank.size_name} is {short(text)}, but {TF_CONFIG} names {size} workers: start as many processes as it names, "
            "or name as many as are started"
        )
