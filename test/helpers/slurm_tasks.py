"""The environment of a task of srun, as Slurm 22.05 made it, for tests."""

from __future__ import annotations

from harness.cluster import membership
from harness.cluster.cluster import Cluster
from harness.commands import cli

_RECORDED = """\
SLURMD_NODENAME=n2
SLURM_CLUSTER_NAME=trial
SLURM_CPUS_ON_NODE=2
SLURM_DISTRIBUTION=block
SLURM_GTIDS=2
SLURM_JOBID=1
SLURM_JOB_CPUS_PER_NODE=2(x2)
SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0=2(x2)
SLURM_JOB_GID=0
SLURM_JOB_ID=1
SLURM_JOB_NAME=env.sh
SLURM_JOB_NODELIST=n[1-2]
SLURM_JOB_NUM_NODES=2
SLURM_JOB_PARTITION=all
SLURM_JOB_UID=0
SLURM_JOB_USER=root
SLURM_LAUNCH_NODE_IPADDR=10.77.0.1
SLURM_LOCALID=0
SLURM_NNODES=2
SLURM_NODEID=1
SLURM_NODELIST=n[1-2]
SLURM_NODE_ALIASES=(null)
SLURM_NPROCS=3
SLURM_NTASKS=3
SLURM_NTASKS_PER_NODE=2
SLURM_PRIO_PROCESS=0
SLURM_PROCID=2
SLURM_SRUN_COMM_HOST=10.77.0.1
SLURM_SRUN_COMM_PORT=43827
SLURM_STEPID=0
SLURM_STEP_ID=0
SLURM_STEP_LAUNCHER_PORT=43827
SLURM_STEP_NODELIST=n[1-2]
SLURM_STEP_NUM_NODES=2
SLURM_STEP_NUM_TASKS=3
SLURM_STEP_RESV_PORTS=26001-26003
SLURM_STEP_TASKS_PER_NODE=2,1
SLURM_SUBMIT_HOST=vm
SLURM_TASKS_PER_NODE=2,1
SLURM_TASK_PID=10328
SLURM_TOPOLOGY_ADDR=n2
SLURM_TOPOLOGY_ADDR_PATTERN=node
SLURM_UMASK=0022
SLURM_WORKING_CLUSTER=trial:10.77.0.254:16817:9728:109
"""  # of the third of three tasks on two nodes; less a path and the words of the job's own script
TASK = dict(line.split("=", 1) for line in _RECORDED.splitlines())
OF_STEPS = [name for name in TASK if name.startswith("SLURM_STEP")]


def task(**changed: object) -> dict[str, str]:
    """A task's environment with other values, without those that are None. Names are Slurm's without SLURM_; NTASKS and
    TASKS_PER_NODE are the step's too."""
    environ = {**TASK, **{f"SLURM_{name}": value for name, value in changed.items()}}
    for name, of_step in (("NTASKS", "STEP_NUM_TASKS"), ("TASKS_PER_NODE", "STEP_TASKS_PER_NODE")):
        if name in changed:
            environ[f"SLURM_{of_step}"] = changed[name]
    return {name: str(value) for name, value in environ.items() if value is not None}


def found(environ: dict[str, str], words: str = "--distributed") -> Cluster:
    """Return the cluster of a call in an environment."""
    given = ["--dataset", "cifar-10", "--generated-data", *words.split()]
    return membership.find(cli.parse(given, "train", environ={}).options, environ)
