"""PopDist's functions for users' programs. They return the position of this process among poprun's processes (instances).

All values come from environment variables that poprun sets.
"""

from __future__ import annotations

import os

_TOTAL, _LOCAL, _IPUS = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_NUM_IPUS_PER_REPLICA"
_OFFSET, _PLACE = "POPDIST_REPLICA_INDEX_OFFSET", "POPDIST_LOCAL_INSTANCE_INDEX"


def init() -> None:
    """Raise RuntimeError if an environment variable of poprun is missing. The message names the variable."""
    for name in (_TOTAL, _LOCAL, _IPUS, _OFFSET):
        _number(name)


def isPopdistEnvSet() -> bool:
    """Return whether poprun started this process."""
    return bool(os.environ.get(_TOTAL))


def getNumTotalReplicas() -> int:
    """Return the number of replicas of all instances together."""
    return _number(_TOTAL)


def getNumLocalReplicas() -> int:
    """Return the number of replicas of this instance."""
    return _number(_LOCAL)


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs of each replica."""
    return _number(_IPUS)


def getReplicaIndexOffset() -> int:
    """Return the global index of this instance's first replica."""
    return _number(_OFFSET)


def getNumInstances() -> int:
    """Return the number of instances. All instances have the same number of replicas."""
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex() -> int:
    """Return the index of this instance, from 0."""
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getLocalInstanceIndex() -> int:
    """Return the index of this instance on its host, from 0."""
    return _number(_PLACE)


def getDeviceId(ipus_per_replica: int | None = None) -> int:
    """Return the id of the emulated device with the IPUs of this instance, as `gc-info` lists the ids.

    `ipus_per_replica` replaces the number of IPUs that poprun gives each replica.
    """
    ipus = ipus_per_replica or getNumIpusPerReplica()
    group = _power_of_two(getNumLocalReplicas() * ipus)
    system = max(16, group * _power_of_two(getNumInstances()))  # a POD16 or larger
    return 2 * (system - system // group) + getInstanceIndex()  # the ids of all smaller groups come first


def checkNumIpusPerReplica(expected: int) -> None:
    """Raise RuntimeError unless each replica has `expected` IPUs."""
    given = getNumIpusPerReplica()
    if given != expected:
        raise RuntimeError(f"poprun was started with --ipus-per-replica {given}, but this program needs {expected}")


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise RuntimeError(f"{name} is '{text}' but must be a number; start the program with poprun, which sets it")
    return int(text)
