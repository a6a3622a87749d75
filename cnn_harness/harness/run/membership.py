"""Find the instances (processes) of a run and the index of this process, from the environment.

poprun, TF_CONFIG or Slurm's srun define the instances. TF_CONFIG is
{"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}. A chief or master is instance 0 and the
workers follow, as in Kubeflow. If mpirun sets OMPI_COMM_WORLD_RANK, this rank overrides the index, so that all processes can
share one TF_CONFIG. If TF_CONFIG has no index, the rank of any other launcher is used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from cnn_harness.base.bounds import json_value
from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.harness.options.call import Call
from cnn_harness.harness.options.sections import CONFIGURATION, RECORDED, RunOptions, flag
from cnn_harness.harness.run import slurm
from cnn_harness.harness.run.cluster import ALONE, POPRUN, Cluster, check_addresses, number

TOTAL, LOCAL, OFFSET = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
IPUS, UNIFORM = "POPDIST_NUM_IPUS_PER_REPLICA", "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE"
PLACE, ADDRESSES = "POPDIST_LOCAL_INSTANCE_INDEX", "POPDIST_INSTANCE_ADDRESSES"
SHOWN = "POPDIST_ONLY_OUTPUT"  # poprun sets this variable in the instance of --only-output-from-instance, unless that is 0
TF_CONFIG = "TF_CONFIG"
_FORM = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
_LEADERS, _WORKER = ("chief", "master"), "worker"
# Each pair names a launcher's variables for rank and size. The first launcher has precedence: mpirun may run inside a Slurm
# step.
OPENMPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_RANKS = (OPENMPI, ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", ""), (slurm.RANK, slurm.TASKS[0]))
_LAUNCHERS = ("POPDIST_", "OMPI_", "PMI_", "PMIX_", "SLURM_", TF_CONFIG)  # prefixes of launchers' variables


def under_poprun(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process."""
    return bool(environ.get(TOTAL))


def without_others(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that no launcher sets."""
    return {name: value for name, value in environ.items() if not name.startswith(_LAUNCHERS)}


def is_later_instance(environ: Mapping[str, str], distributed: bool = True) -> bool:
    """Return whether this process is an instance other than 0.

    This function works before options are parsed. `distributed` is True if the command line contains --distributed. Without
    that option, the tasks of srun are independent runs.
    """
    with suppress(OptionError):
        if under_poprun(environ):
            return _by_poprun(environ).instance > 0
        return (distributed or bool(environ.get(TF_CONFIG))) and _distributed(environ).instance > 0
    return False


def answers_for_all(environ: Mapping[str, str]) -> bool:
    """Return whether this process prints the help text or error message for all instances: it is instance 0, or the instance
    of poprun's --only-output-from-instance."""
    return not is_later_instance(environ) or bool(environ.get(SHOWN))


def call_is_of_later_instance(call: Call) -> bool:
    """Return whether this process is an instance other than 0 of a call."""
    return is_later_instance(os.environ, "distributed" in call)


def find(options: RunOptions, environ: Mapping[str, str] = os.environ, training: bool = True) -> Cluster:
    """Return the instances that options and environment define. Raise OptionError if the two contradict each other.

    In a validation (`training` is False), every IPU holds the whole network, so --shards is not checked.
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
    """Return a hint to use --release if a configuration sets --shards and the configuration differs by release."""
    named = "release" in options.sources and options.sources.get("shards", "").startswith(CONFIGURATION)
    return ", or choose the configuration of another release with --release" if named else ""


def _check_syncs(options: RunOptions) -> None:
    """Raise OptionError if an option that needs poprun is given.

    Recorded options are allowed, because a single process may validate or resume a run of several instances.
    """
    for name in ("syncs_per_epoch", "epochs_per_sync"):
        value = getattr(options.training, name)
        if value and not options.sources.get(name, RECORDED).startswith(RECORDED):
            raise OptionError(f"{flag(name)} {value:g} needs several instances started by poprun; leave the option out")


def _by_poprun(environ: Mapping[str, str]) -> Cluster:
    """Return the instances that poprun started. Raise OptionError if poprun's variables contradict each other."""
    total, local, offset = (number(environ, name, POPRUN) for name in (TOTAL, LOCAL, OFFSET))
    ipus = number(environ, IPUS, POPRUN, "1")
    if local < 1 or total % local or offset % local or offset >= total:
        raise OptionError(
            f"{TOTAL} {total}, {LOCAL} {local} and {OFFSET} {offset} contradict each other: all instances must have the "
            f"same number of replicas, and the offset must be a multiple of this number. Start with {POPRUN}"
        )
    if total == local:
        return Cluster((), 0, local, ipus, POPRUN)
    listed = [part for part in environ.get(ADDRESSES, "").split(",") if part]
    if len(listed) != total // local:
        raise OptionError(f"{ADDRESSES} has {len(listed)} addresses for {total // local} instances; start with poprun")
    return Cluster(check_addresses(listed, ADDRESSES), offset // local, local, ipus, POPRUN)


def _distributed(environ: Mapping[str, str]) -> Cluster:
    """Return the instances of a call with --distributed.

    Slurm's variables are ignored under mpirun, because they describe mpirun's daemons.
    """
    if environ.get(TF_CONFIG):
        return _by_tf_config(environ)
    if environ.get(slurm.JOB) and not environ.get(OPENMPI[0]):
        return slurm.cluster(environ)
    raise OptionError(
        f"--distributed needs the addresses of all processes. Use srun or poprun, not mpirun, or set {TF_CONFIG}='{_FORM}'"
    )


def _tf_config(environ: Mapping[str, str]) -> tuple[dict[str, list], dict[str, Any]]:
    """Return the jobs and the task of TF_CONFIG. Raise OptionError if they are missing or not supported."""
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
    """Return all addresses in the order of the instances: chief or master first, then the workers."""
    return check_addresses([each for job in (*_LEADERS, _WORKER) for each in jobs.get(job, ())], TF_CONFIG)


def _by_tf_config(environ: Mapping[str, str]) -> Cluster:
    """Return the instances that TF_CONFIG lists, with the index of this process."""
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
    """Return the index as an integer from 0 to size - 1. Raise OptionError for any other value."""
    found = int(index) if re.fullmatch("[0-9]{1,6}", str(index)) else -1
    if isinstance(index, bool) or not 0 <= found < size:
        raise OptionError(f"{where} is {short(index)}, but must be a whole number from 0 to {size - 1}")
    return found


def ignored_others(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if a launcher started several processes, because without --distributed each trains alone."""
    step = [("srun", slurm.TASKS[0])] * slurm.in_step(environ)
    sizes = (("mpirun", OPENMPI[1]), *step, ("mpiexec", "PMI_SIZE"))
    launcher, text = next(((each, environ[name]) for each, name in sizes if environ.get(name)), ("", ""))
    if environ.get(TF_CONFIG):
        with suppress(OptionError):
            launcher, text = TF_CONFIG, str(len(_addresses(_tf_config(environ)[0])))
    if re.fullmatch("[0-9]{1,6}", text) and int(text) > 1:
        yield f"warning: each of the {text} processes of {launcher} trains alone; to train together, give --distributed"
