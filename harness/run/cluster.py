"""The processes that train together, and this one's place among them: from TF_CONFIG, or from poprun's variables.

TF_CONFIG: {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}; OMPI_COMM_WORLD_RANK goes
before its index, so that one value serves all processes that mpirun starts.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from base.bounds import json_value
from base.errors import OptionError
from base.fields import brief
from harness.options.sections import CONFIGURATION, RunOptions, flag

TF_CONFIG, RANK, RANKS = "TF_CONFIG", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
TOTAL, LOCAL, OFFSET = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
IPUS, UNIFORM, PLACE = (
    "POPDIST_NUM_IPUS_PER_REPLICA",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
    "POPDIST_LOCAL_INSTANCE_INDEX",
)
ADDRESSES = "POPDIST_INSTANCE_ADDRESSES"
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")
_FORM = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'


@dataclass(frozen=True)
class Cluster:
    """The instances of a run. `addresses`: host:port of each, empty if there is but one. `replicas`, `ipus_per_replica`:
    of this instance, under poprun."""

    addresses: tuple[str, ...] = ()
    instance: int = 0
    replicas: int | None = None
    ipus_per_replica: int | None = None
    source: str = ""

    @property
    def size(self) -> int:
        """Instances."""
        return max(1, len(self.addresses))

    @property
    def neighbours(self) -> int:
        """Instances on this one's host, itself among them."""
        hosts = [host_of(address) for address in self.addresses]
        return max(1, hosts.count(hosts[self.instance])) if hosts else 1

    def named(self, instance: int) -> str:
        """An instance, for messages."""
        return f"instance {instance} ({self.addresses[instance]})"


ALONE = Cluster()


def host_of(address: str) -> str:
    """Return the host of host:port."""
    return address.rsplit(":", 1)[0]


def under_poprun(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process."""
    return bool(environ.get(TOTAL))


def follows(environ: Mapping[str, str]) -> bool:
    """Return whether the environment says that this is not instance 0, before anything else is known."""
    if under_poprun(environ):
        return environ.get(OFFSET, "0") != "0"
    task = _part(environ, "task")
    return task is not None and str(environ.get(RANK) or task.get("index", 0)) != "0"


def tf_config_workers(environ: Mapping[str, str]) -> int:
    """The processes of TF_CONFIG that train, leaders and workers, whether it can be used or not."""
    addresses = [(_part(environ, "cluster") or {}).get(job) for job in ("chief", "master", "worker")]
    return sum(len(each) for each in addresses if isinstance(each, list))


def _part(environ: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """A dictionary of TF_CONFIG, before anything is refused: empty where it is left out, None where there is none at all."""
    try:
        part = json_value(environ.get(TF_CONFIG, "")).get(name, {})
    except (ValueError, AttributeError):
        return None
    return part if isinstance(part, dict) else None


def _other_release(options: RunOptions) -> str:
    """Return where else the shards may come from, if a configuration says how many there are."""
    named = options.main.release and options.sources.get("shards", "").startswith(CONFIGURATION)
    return ", or the release whose configuration is meant: --release" if named else ""


def find(options: RunOptions, environ: Mapping[str, str] = os.environ, training: bool = True) -> Cluster:
    """The instances that the options and the environment speak of; OptionError for what does not fit together. Without
    `training` the shards do not matter: every IPU has the whole network then."""
    if under_poprun(environ):
        if options.training.distributed:
            raise OptionError(
                f"--distributed and poprun ({TOTAL} is set) are two ways to start several processes; leave one out"
            )
        cluster = _of_poprun(environ)
        if training and cluster.ipus_per_replica != options.device.shards:
            raise OptionError(
                f"poprun gives each replica {cluster.ipus_per_replica} IPUs, but --shards is {options.device.shards}: they "
                f"must be equal; give poprun --ipus-per-replica {options.device.shards}{_other_release(options)}"
            )
        return cluster
    _check_syncs(options)
    if not options.training.distributed:
        return ALONE
    return _of_tf_config(environ)


def _check_syncs(options: RunOptions) -> None:
    for name in ("syncs_per_epoch", "epochs_per_sync"):
        value = getattr(options.training, name)
        if value:
            raise OptionError(f"{flag(name)} {value:g} is for several instances under poprun; leave it out")


def _of_tf_config(environ: Mapping[str, str]) -> Cluster:
    text = environ.get(TF_CONFIG, "")
    if not text:
        raise OptionError(f"--distributed needs the environment variable {TF_CONFIG}, as in\n{TF_CONFIG}='{_FORM}'")
    try:
        content = json_value(text)
    except ValueError as error:
        what = "is not JSON" if isinstance(error, json.JSONDecodeError) else "cannot be used"
        raise OptionError(f"{TF_CONFIG} {what} ({error}); it looks like\n{_FORM}") from None
    cluster = content.get("cluster") if isinstance(content, dict) else None
    workers = cluster.get("worker") if isinstance(cluster, dict) else None
    if not isinstance(workers, list) or not workers:
        raise OptionError(f"{TF_CONFIG} has no list cluster.worker of host:port; it looks like\n{_FORM}")
    others = sorted(set(cluster) - {"worker"})
    if others:
        raise OptionError(
            f"{TF_CONFIG} has the jobs {brief(', '.join(others))}: only cluster.worker is known, whose first one leads"
        )
    addresses = _addresses(workers, f"{TF_CONFIG}'s cluster.worker")
    return Cluster(addresses, _index(content.get("task"), environ, len(addresses)), source=TF_CONFIG)


def _index(task: Any, environ: Mapping[str, str], size: int) -> int:
    task = {} if task is None else task
    if not isinstance(task, dict) or task.get("type", "worker") != "worker":
        raise OptionError(
            f'{TF_CONFIG}\'s task must be {{"type": "worker", "index": ...}}, but is {brief(json.dumps(task))}'
        )
    rank = environ.get(RANK)
    index, where = (rank, RANK) if rank else (task.get("index"), f"{TF_CONFIG}'s task.index")
    if index is None:
        raise OptionError(f"neither {TF_CONFIG}'s task.index nor {RANK} says which worker this is; give one of them")
    number = int(index) if re.fullmatch(r"[0-9]{1,6}", str(index)) else -1
    if isinstance(index, bool) or not 0 <= number < size:
        raise OptionError(
            f"{where} is {brief(index)}, but must be a whole number from 0 to {size - 1}: there are {size} workers"
        )
    return number


def _addresses(given: list[Any], where: str) -> tuple[str, ...]:
    for address in given:
        matched = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if not matched or not 0 < int(matched[2]) < 65536:
            raise OptionError(f"{where}: '{brief(address)}' is not host:port with a port from 1 to 65535, as in host0:2222")
    twice = next((address for address, count in Counter(given).items() if count > 1), None)
    if twice:
        raise OptionError(f"{where} has {brief(twice)} twice: each process needs a port of its own")
    return tuple(given)


def _of_poprun(environ: Mapping[str, str]) -> Cluster:
    total, local, offset = (_number(environ, name) for name in (TOTAL, LOCAL, OFFSET))
    ipus = _number(environ, IPUS, 1)
    if local < 1 or total % local or offset % local or offset >= total:
        raise OptionError(
            f"{TOTAL} {total}, {LOCAL} {local} and {OFFSET} {offset} do not fit together: every instance has as many "
            "replicas, and its offset is a multiple of them"
        )
    if total == local:
        return Cluster((), 0, local, ipus, "poprun")
    listed = [part for part in environ.get(ADDRESSES, "").split(",") if part]
    if len(listed) != total // local:
        raise OptionError(
            f"{TOTAL} and {LOCAL} say {total // local} instances, but {ADDRESSES} has {len(listed)}; start with poprun, "
            f"which sets it, or give host:port of each, separated by commas"
        )
    return Cluster(_addresses(listed, ADDRESSES), offset // local, local, ipus, "poprun")


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name) or ("" if default is None else str(default))
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise OptionError(f"{name} is '{brief(text)}', but must be a whole number; start with poprun, which sets it")
    return int(text)
