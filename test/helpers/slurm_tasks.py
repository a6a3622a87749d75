"""The environment of a task of srun, as set by Slurm 22.05, for tests."""

from __future__ import annotations

from cnn_harness.harness.run import cli, membership
from cnn_harness.harness.run.cluster import Cluster

_RECORDED = """\
SLURM_DISTRIBUTION=block
SLURM_JOB_ID=1
SLURM_JOB_NODELIST=n[1-2]
SLURM_LOCALID=0
SLURM_NODEID=1
SLURM_NTASKS=3
SLURM_PROCID=2
SLURM_STEP_ID=0
SLURM_STEP_NODELIST=n[1-2]
SLURM_STEP_NUM_TASKS=3
SLURM_STEP_RESV_PORTS=26001-26003
SLURM_STEP_TASKS_PER_NODE=2,1
SLURM_TASKS_PER_NODE=2,1
"""  # of the third of three tasks on two nodes; only variables that are read
TASK = dict(line.split("=", 1) for line in _RECORDED.splitlines())
OF_STEPS = [name for name in TASK if name.startswith("SLURM_STEP")]


def task(**changed: object) -> dict[str, str]:
    """Return a task's environment with changed values, without those that are None.

    Names are Slurm's without SLURM_; NTASKS and TASKS_PER_NODE also set the variables of the step.
    """
    environ = {**TASK, **{f"SLURM_{name}": value for name, value in changed.items()}}
    for name, of_step in (("NTASKS", "STEP_NUM_TASKS"), ("TASKS_PER_NODE", "STEP_TASKS_PER_NODE")):
        if name in changed:
            environ[f"SLURM_{of_step}"] = changed[name]
    return {name: str(value) for name, value in environ.items() if value is not None}


def found(environ: dict[str, str], words: str = "--distributed") -> Cluster:
    """Return the cluster of a call in an environment."""
    given = ["--dataset", "cifar-10", "--generated-data", *words.split()]
    return membership.find(cli.parse(given, "train", environ={}).options, environ)
