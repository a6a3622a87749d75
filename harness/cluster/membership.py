"""The search for the processes that train together, and for this one's place among them: in poprun's variables, in
TF_CONFIG, or in those of a step of Slurm."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from base.errors import OptionError
from harness.cluster import poprun_environment, ranks, slurm, tf_config
from harness.cluster.cluster import ALONE, Cluster, several
from harness.options import sources
from harness.options.sections import CONFIGURATION, RECORDED, RunOptions, flag

# beginnings of the variables by which launchers tell a process of others
_OF_LAUNCHERS = ("POPDIST_", "OMPI_", "PMI_", "PMIX_", "SLURM_", tf_config.TF_CONFIG)


def under_poprun(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process."""
    return poprun_environment.started(environ)


def without_others(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what launchers say of other processes."""
    return {name: value for name, value in environ.items() if not name.startswith(_OF_LAUNCHERS)}


def is_later_instance(environ: Mapping[str, str], distributed: bool = True) -> bool:
    """Return whether the environment says that this is not instance 0, before anything else is known. `distributed`: the
    call has --distributed; without it the tasks of srun are strangers to each other."""
    if under_poprun(environ):
        return environ.get(poprun_environment.OFFSET, "0") != "0"
    if environ.get(tf_config.TF_CONFIG):
        return tf_config.follows(environ)
    return distributed and slurm.in_step(environ) and environ.get(slurm.RANK, "0") != "0"


def answers_for_all(environ: Mapping[str, str]) -> bool:
    """Return whether this is the instance of those that poprun started whose answers are seen: the first, or the one whose
    output alone is shown."""
    return not is_later_instance(environ) or bool(environ.get(poprun_environment.SHOWN))


def call_is_of_later_instance(argv: list[str], script: str) -> bool:
    """Return `is_later_instance` for a call of a script."""
    return is_later_instance(os.environ, "distributed" in sources.given_arguments(argv, script))


def find(options: RunOptions, environ: Mapping[str, str] = os.environ, training: bool = True) -> Cluster:
    """The instances that the options and the environment speak of; OptionError for what does not fit together. Without
    `training` the shards do not matter: every IPU has the whole network then."""
    if under_poprun(environ):
        if options.training.distributed:
            raise OptionError(
                f"--distributed and poprun ({poprun_environment.TOTAL} is set) are two ways to start several processes; "
                "leave one out"
            )
        cluster = poprun_environment.cluster(environ)
        if training and cluster.ipus_per_replica != options.device.shards:
            raise OptionError(
                f"poprun gives each replica {cluster.ipus_per_replica} IPUs, but --shards is {options.device.shards}: they "
                f"must be equal; give poprun --ipus-per-replica {options.device.shards}{_other_release(options)}"
            )
        return cluster
    _check_syncs(options)
    if not options.training.distributed:
        return ALONE
    return _of_flag(environ)


def _of_flag(environ: Mapping[str, str]) -> Cluster:
    """The instances of --distributed."""
    if environ.get(tf_config.TF_CONFIG):
        return tf_config.cluster(environ)
    _check_mpi(environ)
    if slurm.in_job(environ):
        return slurm.cluster(environ)
    raise OptionError(
        f"--distributed needs the environment variable {tf_config.TF_CONFIG}, or to be started by Slurm's srun; "
        f"{tf_config.TF_CONFIG}='{tf_config.FORM}' is an example"
    )


def _check_mpi(environ: Mapping[str, str]) -> None:
    """OptionError for the processes of an mpirun, which says nothing of their addresses. Inside of a job it starts them
    through Slurm, whose variables are then those of its own helpers; srun sets MPI's too, to its own numbers."""
    rank = ranks.of_mpi(environ)
    if rank is None or (rank.name != ranks.OPENMPI[0] and _agrees(environ, rank)):
        return
    instead = "start with srun instead of mpirun, or give" if slurm.in_job(environ) else "start with poprun, or give"
    raise OptionError(
        f"--distributed: mpirun started this process ({rank.name} is set), and does not say where the others are; {instead} "
        f"all of them the environment variable {tf_config.TF_CONFIG}='{tf_config.FOR_ALL}'"
    )


def _agrees(environ: Mapping[str, str], rank: ranks.Rank) -> bool:
    tasks = slurm.tasks(environ)
    size = several(environ, rank.size_name) if rank.size_name else tasks
    return tasks > 0 and (rank.text, size) == (environ.get(slurm.RANK), tasks)


def ignored_others(environ: Mapping[str, str]) -> Iterator[str]:
    """A line on other processes that the environment names, for one that trains alone."""
    named = tf_config.workers(environ)
    if named > 1:
        yield (
            f"warning: {tf_config.TF_CONFIG} names {named} workers, and this process trains alone; give --distributed if "
            "they are to train together"
        )
        return
    rank = ranks.of_mpi(environ)
    by_slurm, by_mpi = slurm.tasks(environ), several(environ, rank.size_name if rank else ranks.OPENMPI[1])
    if by_slurm > 1 and (rank is None or _agrees(environ, rank)):
        yield (
            f"warning: srun started {by_slurm} tasks, and each of them trains alone; give --distributed if they are to "
            "train together"
        )
    elif by_mpi > 1:
        yield (
            f"warning: mpirun started {by_mpi} processes, and each of them trains alone; start them with poprun, or give "
            f"--distributed and {tf_config.TF_CONFIG}, if they are to train together"
        )


def _other_release(options: RunOptions) -> str:
    """Return where else the shards may come from, if a configuration says how many there are."""
    named = "release" in options.sources and options.sources.get("shards", "").startswith(CONFIGURATION)
    return ", or the release whose configuration is meant: --release" if named else ""


def _check_syncs(options: RunOptions) -> None:
    """Recorded values stay: what instances began may be validated, exported and trained further without poprun."""
    for name in ("syncs_per_epoch", "epochs_per_sync"):
        value = getattr(options.training, name)
        if value and not options.sources.get(name, RECORDED).startswith(RECORDED):
            raise OptionError(f"{flag(name)} {value:g} is for several instances under poprun; leave it out")
