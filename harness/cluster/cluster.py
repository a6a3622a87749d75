"""The instances of a run as a value, and the rules for what variables say of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from base.errors import OptionError
from base.fields import short

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/,\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Cluster:
    """The instances of a run. `addresses`: host:port of each, empty if there is but one. `replicas`, `ipus_per_replica`:
    of this instance, under poprun. `source`: whose word that is, empty if nobody's."""

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
    def by_poprun(self) -> bool:
        """True if poprun started the instances, which no option says then."""
        return self.source == POPRUN

    @property
    def neighbours(self) -> int:
        """Instances on this one's host, itself among them."""
        hosts = [host_of(address) for address in self.addresses]
        return max(1, hosts.count(hosts[self.instance])) if hosts else 1

    def name_of(self, instance: int) -> str:
        """An instance, for messages."""
        return f"instance {instance} ({self.addresses[instance]})"


POPRUN, SLURM = "poprun", "Slurm"  # sources
ALONE = Cluster()


def host_of(address: str) -> str:
    """Return the host of host:port."""
    return address.rsplit(":", 1)[0]


def check_addresses(addresses: Sequence[Any], where: str) -> tuple[str, ...]:
    """The addresses; OptionError for what is not host:port, or there twice."""
    for address in addresses:
        matched = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if not matched or not address.isprintable() or not 0 < int(matched[2]) < 65536:
            raise OptionError(f"{where}: '{short(address)}' is not host:port with a port from 1 to 65535, as in host0:2222")
    twice = next((address for address, count in Counter(addresses).items() if count > 1), None)
    if twice:
        raise OptionError(f"{where} has {short(twice)} twice: each process needs a port of its own")
    return tuple(addresses)


def number(environ: Mapping[str, str], name: str, launcher: str, default: int | None = None, digits: int = 6) -> int:
    """The whole number in a variable that the launcher sets; OptionError if there is none, or one of more digits."""
    text = environ.get(name) or ("" if default is None else str(default))
    if not re.fullmatch(rf"[0-9]{{1,{digits}}}", text):
        length = f" of at most {digits} digits" if len(text) > digits else ""
        raise OptionError(
            f"{name} is '{short(text)}', but must be a whole number{length}; start with {launcher}, which sets it"
        )
    return int(text)


def several(environ: Mapping[str, str], name: str) -> int:
    """The number of processes in a variable, whether it can be used or not: 0 where it is none, or no number."""
    text = environ.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,10}", text) else 0
