"""Only the instance that the others wait for is named, with its share of the time."""

from __future__ import annotations

import numpy as np
import pytest

from cnn_harness.harness.run.cluster import Cluster
from cnn_harness.harness.training.stragglers import Stragglers


def messages(stragglers: Stragglers, *rows: list[float]) -> list[str]:
    """Return the messages after sixteen updates for each row of seconds, in turn."""
    for k in range(16):
        stragglers.add(np.asarray([rows[k % len(rows)]], np.float32))
    return stragglers.notes()


def group(size: int) -> Stragglers:
    stragglers = Stragglers(Cluster(tuple(f"host{k}:2222" for k in range(size)), 0))
    stragglers.add(np.asarray([[900.0] + [1.0] * (size - 1)], np.float32))  # first update of a call
    return stragglers


@pytest.mark.parametrize(
    ("usual", "slow", "said"),
    [
        ([1.0], 2.0, "waited for it 50 % of the time (2 s for the passes of an update"),
        ([1.0], 1.1, None),
        ([1.0], 1.12, "waited for it 11 % of the time"),
        ([1.0, 1.2, 1.1, 0.9, 1.0], 1.25, "waited for it 20 % of the time (1.25 s for the passes of an update"),
        ([1.0, 1.3, 1.3, 1.3], 1.31, None),  # one instance alone keeps nobody waiting
    ],
)  # fmt: skip
def test_slow_instance_is_named_once(usual, slow, said):
    stragglers = group(len(usual) + 1)
    seconds = [usual[0], slow, *usual[1:]]
    found = messages(stragglers, seconds)
    if said is None:
        assert found == []
    else:
        assert len(found) == 1 and found[0].startswith("instance 1 (host1:2222) is slow: the other") and said in found[0]
        assert messages(stragglers, seconds) == []  # unchanged
    assert messages(stragglers, [5.0, *[1.0] * len(usual)])[0].startswith("instance 0 (host0:2222) is slow")
    assert messages(stragglers, [1.08, *[1.0] * len(usual)]) == []  # a slight recovery is not reported at once
    assert messages(stragglers, [1.0] * (len(usual) + 1)) == ["instance 0 (host0:2222) is no longer slow"]
    assert stragglers.notes() == []


def test_random_delays_name_nobody():
    """The slowest instance changes each time, or one was slow for a moment."""
    stragglers = group(3)
    assert messages(stragglers, *[[2.0 if k == u % 3 else 1.0 for k in range(3)] for u in range(3)]) == []
    assert messages(stragglers, [1.0, 9.0, 1.0], *[[1.0, 0.9, 1.0]] * 7) == []
