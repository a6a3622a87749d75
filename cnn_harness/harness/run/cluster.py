"""Describe where a run happens: its instances (processes), seed, folders, and the first lines of its log.

Check addresses and the numbers in environment variables.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short

if TYPE_CHECKING:
    from cnn_harness.harness.options.sections import RunOptions

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Cluster:
    """The instances (processes) of a run, and the index of this process among them.

    `addresses` contains the host:port of every instance, or nothing if there is only one. `instance` is the index of this
    process. `replicas` is the number of replicas in this process; only poprun sets `replicas` and `ipus_per_replica`.
    `source` is the launcher or environment variable that defines the instances; it is empty for a single process.
    """

    addresses: tuple[str, ...] = ()
    instance: int = 0
    replicas: int | None = None
    ipus_per_replica: int | None = None
    source: str = ""

    @property
    def size(self) -> int:
        """Number of instances."""
        return max(1, len(self.addresses))

    @property
    def by_poprun(self) -> bool:
        """True if poprun started the instances."""
        return self.source == POPRUN

    @property
    def neighbours(self) -> int:
        """Number of instances on this host, including this process."""
        hosts = [host_of(address) for address in self.addresses]
        return max(1, hosts.count(hosts[self.instance])) if hosts else 1

    def name_of(self, instance: int) -> str:
        """Return the name of an instance for messages."""
        return f"instance {instance} ({self.addresses[instance]})"


POPRUN, SLURM = "poprun", "Slurm"  # values of `Cluster.source`
ALONE = Cluster()


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Where a run happens: the part of a call that `Run` does not have.

    `notes` are the first lines of the log. `run_id` is random; a resumed run keeps it. `folder` is the directory of this
    process, and `folders` has the directory of each process that writes files. With `all_log`, every process has a log.
    """

    seed: int
    cluster: Cluster = ALONE
    notes: tuple[str, ...] = ()
    run_id: str = ""
    folder: Path = Path()
    folders: tuple[str, ...] = ()
    all_log: bool = False

    @classmethod
    def of(cls, options: RunOptions, cluster: Cluster = ALONE, notes: tuple[str, ...] = ()) -> Execution:
        """Return the execution of a call that creates no run directory, with a seed of its own."""
        return cls(seed=seed_of(options), cluster=cluster, notes=notes)


def seed_of(options: RunOptions) -> int:
    """Return the seed of --seed, or a random one."""
    return secrets.randbelow(2**31) if options.device.seed is None else options.device.seed


def host_of(address: str) -> str:
    """Return the host part of host:port."""
    return address.rsplit(":", 1)[0]


def check_addresses(addresses: Sequence[Any], where: str) -> tuple[str, ...]:
    """Return the addresses. Raise OptionError if an address is not host:port or occurs twice. The message names `where` the
    addresses come from."""
    for k, address in enumerate(addresses):
        matched = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if not matched or not address.isprintable() or not 0 < int(matched[2]) < 65536:
            raise OptionError(f"{where}: '{short(address)}' is not host:port with a port from 1 to 65535, as in host0:2222")
        if address in addresses[:k]:
            raise OptionError(f"{where} lists {short(address)} twice, but each process needs a different address")
    return tuple(addresses)


def number(environ: Mapping[str, str], name: str, launcher: str, default: str = "") -> int:
    """Return the whole number in an environment variable that `launcher` sets. Raise OptionError for any other text."""
    text = environ.get(name) or default
    if not re.fullmatch("[0-9]{1,10}", text):
        raise OptionError(f"{name} is '{short(text)}', but must be a whole number. Start with {launcher}, which sets {name}")
    return int(text)
