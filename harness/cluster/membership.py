"""Find the instances of a run and the index of this one, from the variables of poprun, TF_CONFIG or those of a Slurm step.

TF_CONFIG is {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}. A chief or master is
instance 0, before the workers, as in Kubeflow. OMPI_COMM_WORLD_RANK overrides the index, so that all processes of an mpirun
can share one TF_CONFIG. Without an index, the rank of another launcher is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from base.bounds import json_value
from base.errors import OptionError
from base.fields import short
from harness.cluster import slurm
from harness.cluster.cluster import ALONE, POPRUN, Cluster, check_addresses, number
from harness.options import sources
from harness.options.sections import CONFIGURATION, RECORDED, RunOptions, flag

TOTAL, LOCAL, OFFSET = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
IPUS, UNIFORM = "POPDIST_NUM_IPUS_PER_REPLICA", "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
PLACE, ADDRESSES = "POPDIST_LOCAL_INSTANCE_INDEX", "POPDIST_INSTANCE_ADDRESSES"
SHOWN = "POPDIST_ONLY_OUTPUT"  # set in the one instance whose output is shown, unless that is the first
TF_CONFIG = "TF_CONFIG"
_FORM = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
_LEADERS, _WORKER = ("chief", "master"), "worker"
# each launcher's variables for rank and size, in order of precedence, because mpirun may run inside a Slurm step
OPENMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_RANKS = (OPENMPI, ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", ""), (slurm.RANK, slurm.TASKS[0]))
_LAUNCHERS = ("POPDIST_", "OMPI_", "PMI_", "PMIX_", "SLURM_", TF_CONFIG)  # prefixes of launchers' variables


def under_poprun(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process."""
    return bool(environ.get(TOTAL))


def without_others(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the launchers' variables."""
    return {name: value for name, value in environ.items() if not name.startswith(_LAUNCHERS)}


def is_later_instance(environ: Mapping[str, str], distributed: bool = True) -> bool:
    """Return whether this is an instance other than 0. Works before options are parsed. `distributed`: whether the call has
    --distributed; without it, the tasks of srun are independent."""
    with suppress(OptionError):
        if under_poprun(environ):
            return _by_poprun(environ).instance > 0
        return (distributed or bool(environ.get(TF_CONFIG))) and _distributed(environ).instance > 0
    return False


def answers_for_all(environ: Mapping[str, str]) -> bool:
    """Return whether poprun shows this instance's output: the first one, or --only-output-from-instance."""
    return not is_later_instance(environ) or bool(environ.get(SHOWN))


def call_is_of_later_instance(argv: list[str], script: str) -> bool:
    """Return `is_later_instance` for a call of a script."""
    return is_later_instance(os.environ, "distributed" in sources.given_arguments(argv, script))


def find(options: RunOptions, environ: Mapping[str, str] = os.environ, training: bool = True) -> Cluster:
    """Return the instances that options and environment define. OptionError if they contradict each other.

    `training`: check --shards. Otherwise every IPU holds the whole network, so shards do not matter.
    """
    if under_poprun(environ):
        if options.training.distributed:
            raise OptionError(f"--distributed cannot be combined with poprun ({TOTAL} is set); leave one out")
        cluster = _by_poprun(environ)
        if training and cluster.ipus_per_replica != options.device.shards:
            raise OptionError(
                f"poprun assigns {cluster.ipus_per_replica} IPUs to each replica, but --shards is {options.device.shards}. "
                f"Give poprun --ipus-per-replica {options.device.shards}{_other_release(options)}"
            )
        return cluster
    _check_syncs(options)
    return _distributed(environ) if options.training.distributed else ALONE


def _other_release(options: RunOptions) -> str:
    """Return a hint to --release if the shards come from a configuration that differs by release."""
    named = "release" in options.sources and options.sources.get("shards", "").startswith(CONFIGURATION)
    return ", or choose the configuration of another release with --release" if named else ""


def _check_syncs(options: RunOptions) -> None:
    """OptionError for options that need poprun. Recorded ones are allowed: one process may validate or resume the run."""
    for name in ("syncs_per_epoch", "epochs_per_sync"):
        value = getattr(options.training, name)
        if value and not options.sources.get(name, RECORDED).startswith(RECORDED):
            raise OptionError(f"{flag(name)} {value:g} needs several instances under poprun; leave it out")


def _by_poprun(environ: Mapping[str, str]) -> Cluster:
    """Return the instances of poprun; OptionError if its variables contradict each other."""
    total, local, offset = (number(environ, name, POPRUN) for name in (TOTAL, LOCAL, OFFSET))
    ipus = number(environ, IPUS, POPRUN, "1")
    if local < 1 or total % local or offset % local or offset >= total:
        raise OptionError(
            f"{TOTAL} {total}, {LOCAL} {local} and {OFFSET} {offset} contradict each other: all instances must have the "
            "same number of replicas, and the offset must be a multiple of it"
        )
    if total == local:
        return Cluster((), 0, local, ipus, POPRUN)
    listed = [part for part in environ.get(ADDRESSES, "").split(",") if part]
    if len(listed) != total // local:
        raise OptionError(f"{ADDRESSES} has {len(listed)} addresses for {total // local} instances; start with poprun")
    return Cluster(check_addresses(listed, ADDRESSES), offset // local, local, ipus, POPRUN)


def _distributed(environ: Mapping[str, str]) -> Cluster:
    """Return the instances of --distributed. Under mpirun, Slurm's variables belong to mpirun's daemons: ignore them."""
    if environ.get(TF_CONFIG):
        return _by_tf_config(environ)
    if environ.get(slurm.JOB) and not environ.get(OPENMPI[0]):
        return slurm.cluster(environ)
    raise OptionError(
        f"--distributed needs the environment variable {TF_CONFIG}, or srun. With mpirun, use poprun, which sets the "
        f"addresses. Example: {TF_CONFIG}='{_FORM}'"
    )


def _tf_config(environ: Mapping[str, str]) -> tuple[dict[str, list], dict[str, Any]]:
    """Return the jobs and the task of TF_CONFIG; OptionError if it cannot be used."""
    try:
        content = json_value(environ[TF_CONFIG])
        jobs, task = content["cluster"], content.get("task") or {}
        kinds = {*jobs, task.get("type", _WORKER)}
        if not isinstance(task, dict) or not any(jobs.values()) or not all(isinstance(each, list) for each in jobs.values()):
            raise ValueError("the list cluster.worker is missing, or task is no dictionary")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else "the list cluster.worker is missing"
        raise OptionError(f"{TF_CONFIG} is invalid ({reason}). It must be JSON such as", _FORM) from None
    unknown = sorted(kinds - {_WORKER, *(leader for leader in _LEADERS if leader in jobs)}, key=str)
    if unknown or sum(len(jobs.get(leader, ())) for leader in _LEADERS) > 1:
        raise OptionError(
            f"{TF_CONFIG} has the jobs {short(', '.join(map(str, unknown or jobs)))}, but only workers and one chief or "
            "master are supported. Remove parameter servers and evaluators"
        )
    return jobs, task


def _addresses(jobs: Mapping[str, list]) -> tuple[str, ...]:
    """Return all addresses, starting with that of the chief or master."""
    return check_addresses([each for job in (*_LEADERS, _WORKER) for each in jobs.get(job, ())], TF_CONFIG)


def _by_tf_config(environ: Mapping[str, str]) -> Cluster:
    """Return the instances of TF_CONFIG and the index of this one."""
    jobs, task = _tf_config(environ)
    addresses = _addresses(jobs)
    launchers = _RANKS[: len(_RANKS) if slurm.in_step(environ) else -1] if task.get("index") is None else (OPENMPI,)
    for name, size_name in launchers:
        if environ.get(name):
            if environ.get(size_name, str(len(addresses))) != str(len(addresses)):
                raise OptionError(
                    f"{size_name} is {short(environ[size_name])}, but {TF_CONFIG} lists {len(addresses)} workers. Start one "
                    "process for each worker"
                )
            return Cluster(addresses, _index(environ[name], name, len(addresses)), source=TF_CONFIG)
    kind = task.get("type", _WORKER)
    before = sum(len(jobs.get(leader, ())) for leader in _LEADERS) if kind == _WORKER else 0
    index = _index(task.get("index"), f"{TF_CONFIG}'s task.index", len(jobs.get(kind, ())))
    return Cluster(addresses, before + index, source=TF_CONFIG)


def _index(index: Any, where: str, size: int) -> int:
    """Return the index of one of `size` workers; OptionError for anything else."""
    found = int(index) if re.fullmatch("[0-9]{1,6}", str(index)) else -1
    if isinstance(index, bool) or not 0 <= found < size:
        raise OptionError(f"{where} is {short(index)}, but must be a whole number from 0 to {size - 1}")
    return found


def ignored_others(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if the environment names several processes, but this one trains alone."""
    step = [("srun", slurm.TASKS[0])] * slurm.in_step(environ)
    sizes = (("mpirun", OPENMPI[1]), *step, ("mpiexec", "PMI_SIZE"))
    launcher, text = next(((each, environ[name]) for each, name in sizes if environ.get(name)), ("", ""))
    if environ.get(TF_CONFIG):
        with suppress(OptionError):
            launcher, text = TF_CONFIG, str(len(_addresses(_tf_config(environ)[0])))
    if re.fullmatch("[0-9]{1,6}", text) and int(text) > 1:
        yield f"warning: each of the {text} processes of {launcher} trains alone; to train together, give --distributed"
