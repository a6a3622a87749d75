"""The instance that the others wait for is named, with its share of the time, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from harness.cluster.cluster import Cluster
from harness.diagnostics.stragglers import Stragglers


def told(stragglers: Stragglers, *rows: list[float]) -> list[str]:
    """After sixteen updates of these seconds, turn by turn."""
    for k in range(16):
        stragglers.add(np.asarray([rows[k % len(rows)]], np.float32))
    return stragglers.notes()


def group(size: int) -> Stragglers:
    stragglers = Stragglers(Cluster(tuple(f"host{k}:2222" for k in range(size)), 0))
    stragglers.add(np.asarray([[900.0] + [1.0] * (size - 1)], np.float32))  # the first update of a call
    return stragglers


@pytest.mark.parametrize(
    ("usual", "slow", "said"),
    [
        ([1.0], 2.0, "waited for it 50 % of the time (2 s for the passes of an update, where the other took 1 s)"),
        ([1.0], 1.1, None),
        ([1.0], 1.12, "waited for it 11 % of the time"),
        ([1.0, 1.2, 1.1, 0.9, 1.0], 1.25, "waited for it 20 % of the time (1.25 s for the passes of an update, where the others"),
        ([1.0, 1.3, 1.3, 1.3], 1.31, None),  # nobody waits for one alone
    ],
)  # fmt: skip
def test_who_is_slow_is_named_once(usual, slow, said):
    stragglers = group(len(usual) + 1)
    seconds = [usual[0], slow, *usual[1:]]
    found = told(stragglers, seconds)
    if said is None:
        assert found == []
    else:
        assert len(found) == 1 and found[0].startswith("instance 1 (host1:2222) is slow: the other") and said in found[0]
        assert told(stragglers, seconds) == []  # as before
    assert told(stragglers, [5.0, *[1.0] * len(usual)])[0].startswith("instance 0 (host0:2222) is slow")
    assert told(stragglers, [1.08, *[1.0] * len(usual)]) == []  # a little less is not said at once
    assert told(stragglers, [1.0] * (len(usual) + 1)) == ["instance 0 (host0:2222) is no longer slow"]
    assert stragglers.notes() == []


def test_chance_is_nobody_s_slowness():
    """Each is the slowest in turn, or one was for a moment: the others wait, and none is at fault."""
    stragglers = group(3)
    assert told(stragglers, *[[2.0 if k == u % 3 else 1.0 for k in range(3)] for u in range(3)]) == []
    assert told(stragglers, [1.0, 9.0, 1.0], *[[1.0, 0.9, 1.0]] * 7) == []


def test_few_updates_tell_nothing():
    stragglers = group(2)
    stragglers.add(np.asarray([[1.0, 9.0]] * 15, np.float32))
    assert stragglers.notes() == []
    stragglers.add(np.asarray([[1.0, 9.0]], np.float32))
    assert len(stragglers.notes()) == 1
    brief = group(2)
    brief.add(np.asarray([[0.01, 0.09]] * 50, np.float32))
    assert brief.notes() == []


def test_a_process_alone_waits_for_nobody():
    stragglers = Stragglers(Cluster())
    stragglers.add(np.zeros([40, 0], np.float32))
    assert stragglers.notes() == []
