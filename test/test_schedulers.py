"""A real Slurm runs the job script of the docs. Needs Debian's packages slurmctld, slurmd and munge, and root's rights."""

from __future__ import annotations

import os
import re

import pytest
import slurm_daemons
from commands import assert_same_bits, timeless, variables
from slurm_daemons import Slurm, until

from cnn_harness.base import plugins

UPDATES = 400
NETWORK = f"--dataset fashion-mnist --model-size 8 --micro-batch-size 8 --iterations {UPDATES} --log-freq 40 --no-validation --seed 3"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
MISSING = slurm_daemons.MISSING


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}: apt install slurmctld slurmd munge")
@pytest.mark.skipif(os.geteuid() != 0, reason="Slurm's daemons start jobs as root only")
def test_requeued_job_is_exact(tmp_path):
    """The script of the docs without the network part, with both tasks on one node."""
    page = (plugins.ROOT / "docs" / "schedulers.md").read_text()
    script = re.search(r"^```\n(#!/bin/bash.*?)^```$", page, re.M | re.S)[1].replace("--config quickstart", NETWORK)
    (tmp_path / "job.sh").write_text(script)
    slurm_daemons.project(tmp_path)
    with slurm_daemons.running(tmp_path) as slurm:
        job, other = (submitted(slurm, name) for name in ("stopped", "unbroken"))
        for stop in (1, 2):
            leave(slurm, job, stop)
        assert completed(slurm, job).count("Stopped: SIGUSR1") == 2
        assert "2 instances by Slurm: localhost:" in completed(slurm, other)
        assert f"is complete ({UPDATES} updates)" in completed(slurm, submitted(slurm, "stopped"))
    stopped, unbroken = (tmp_path / "logs" / name for name in ("stopped", "unbroken"))
    assert_same_bits(variables(stopped, UPDATES), variables(unbroken, UPDATES))
    assert timeless(stopped / "training.csv") == timeless(unbroken / "training.csv")


def submitted(slurm: Slurm, name: str) -> str:
    """Submit a job that trains in a folder of this name; return its number."""
    return slurm.submit("--nodes=1", "--ntasks-per-node=2", "--cpus-per-task=1", f"--job-name={name}", "job.sh")


def leave(slurm: Slurm, job: str, stop: int) -> None:
    """Signal a job, as --signal=USR1@120 does, during training number `stop`; restart it at once."""

    def trains() -> bool:
        output = slurm.output(job)
        return output.count("Saving to") == stop and "step:" in output.rpartition("Saving to")[2]

    until(trains, 120, lambda: slurm.output(job))
    slurm.call("scancel", "--signal=USR1", job)
    until(lambda: slurm.state(job) == "PENDING", 60, lambda: slurm.output(job))
    slurm.call("scontrol", "update", f"jobid={job}", "StartTime=now")  # Slurm would wait for two minutes


def completed(slurm: Slurm, job: str) -> str:
    """Return the output of a job, which must succeed."""
    until(lambda: slurm.state(job) in ENDED, 180, lambda: slurm.output(job))
    assert slurm.state(job) == "COMPLETED", slurm.output(job)
    return slurm.output(job)
