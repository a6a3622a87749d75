"""The instances that poprun started, from its variables."""

from __future__ import annotations

from collections.abc import Mapping

from base.errors import OptionError
from harness.cluster.cluster import POPRUN, Cluster, check_addresses, number

TOTAL, LOCAL, OFFSET = "POPDIST_NUM_TOTAL_REPLICAS", "POPDIST_NUM_LOCAL_REPLICAS", "POPDIST_REPLICA_INDEX_OFFSET"
IPUS, UNIFORM, PLACE = (
    "POPDIST_NUM_IPUS_PER_REPLICA",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
    "POPDIST_LOCAL_INSTANCE_INDEX",
)
ADDRESSES = "POPDIST_INSTANCE_ADDRESSES"
SHOWN = "POPDIST_ONLY_OUTPUT"  # set for the one instance whose output is shown, if that is another than the first


def started(environ: Mapping[str, str]) -> bool:
    """Return whether poprun started this process."""
    return bool(environ.get(TOTAL))


def cluster(environ: Mapping[str, str]) -> Cluster:
    """The instances, and this one's replicas; OptionError for variables that do not fit together."""
    total, local, offset = (number(environ, name, POPRUN) for name in (TOTAL, LOCAL, OFFSET))
    ipus = number(environ, IPUS, POPRUN, 1)
    if local < 1 or total % local or offset % local or offset >= total:
        raise OptionError(
            f"{TOTAL} {total}, {LOCAL} {local} and {OFFSET} {offset} do not fit together: every instance has as many "
            "replicas, and its offset is a multiple of them"
        )
    if total == local:
        return Cluster((), 0, local, ipus, POPRUN)
    listed = [part for part in environ.get(ADDRESSES, "").split(",") if part]
    if len(listed) != total // local:
        raise OptionError(
            f"{TOTAL} and {LOCAL} say {total // local} instances, but {ADDRESSES} has {len(listed)}; start with poprun, "
            f"which sets it, or give host:port of each, separated by commas"
        )
    return Cluster(check_addresses(listed, ADDRESSES), offset // local, local, ipus, POPRUN)
