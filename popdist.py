"""The place of a process among the instances that poprun started, for programs of users: the functions of PopDist that ask
for it. Everything is read from the variables of the environment that poprun sets; there are no devices to prepare.
"""

from __future__ import annotations

import os

_TOTAL, _LOCAL, _IPUS = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_NUM_IPUS_PER_REPLICA"
_OFFSET, _PLACE = "POPDIST_REPLICA_INDEX_OFFSET", "POPDIST_LOCAL_INSTANCE_INDEX"


def init() -> None:
    """Refuse an incomplete environment; RuntimeError names the variable."""
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
    """Return the number of this instance's first replica among all."""
    return _number(_OFFSET)


def getNumInstances() -> int:
    """Return the number of instances, which all have as many replicas."""
    return getNumTotalReplicas() // getNumLocalReplicas()


def getInstanceIndex() -> int:
    """Return the number of this instance among all, from 0."""
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getLocalInstanceIndex() -> int:
    """Return the number of this instance among those of its host, from 0."""
    return _number(_PLACE)


def checkNumIpusPerReplica(expected: int) -> None:
    """Refuse another number of IPUs of a replica than `expected`; RuntimeError."""
    if getNumIpusPerReplica() != expected:
        raise RuntimeError(f"poprun gives each replica {getNumIpusPerReplica()} IPUs, not {expected}: --ipus-per-replica")


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isascii() or not text.isdigit():
        raise RuntimeError(f"{name} is '{text}' but must be a number: start the program with poprun, which sets it")
    return int(text)
