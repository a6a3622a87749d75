"""The simulation of large worker groups: time shares and the best checkpoint interval."""

from __future__ import annotations

import subprocess
import sys

import pytest
from instances import ROOT

from cnn_harness.harness.distributed.checkpoint_interval import lost_share
from experiments.simulate_groups import Group, simulated


@pytest.mark.parametrize("instances", [16, 1024])
def test_shares_add_up_and_auto_is_best(instances):
    group = Group()
    found = {minutes: simulated(group, instances, minutes) for minutes in (None, 10.0, 60.0)}
    for outcome in found.values():
        assert abs(sum(outcome.shares) - 1) < 1e-9 and min(outcome.shares) >= 0
        between = 3600 * group.mtbf_hours / instances
        expected = lost_share(outcome.interval, group.saving, group.restarting, between)
        assert abs(outcome.shares[-1] - expected) < 0.02
    assert found[None].shares[-1] == min(outcome.shares[-1] for outcome in found.values())
    quiet = simulated(Group(slow_probability=0, mtbf_hours=1e6, saving=0), instances, 10.0)
    waited = group.all_reduce(instances) / (group.all_reduce(instances) + group.arithmetic)
    assert abs(quiet.shares[1] - waited) < 0.01 and quiet.shares[2] == 0


def test_group_without_start_does_no_work():
    assert simulated(Group(mtbf_hours=0.01, restarting=1000), 1024, None).shares == (0, 0, 0, 1)


def test_wrong_call_is_one_line():
    command = [sys.executable, "-m", "experiments.simulate_groups", "--mtbf-hours", "0"]
    called = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert called.returncode == 2 and called.stderr.endswith("--mtbf-hours: 0 must be between 0.01 and 1e+07\n"), (
        called.stderr
    )
