"""The data of IPUs and PODs: memory, tiles, clocks and links. Comments name these sources:

* [P]: the public sources of poplibs, for the multiply-adds of a tile
* [D]: docs.graphcore.ai, the datasheets of Bow-2000, Bow-POD64 and Bow-POD256
* [L]: the system descriptions in MLPerf Training 1.1 and 2.0, for clocks
* [C]: Jia et al. 2019, arXiv 1912.03413, for Mk1
* [T]: Graphcore's talk "Intelligent memory for intelligent computing", for the rates of memory and exchange
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.emulator.plan.ipu_ids import group_size

KIB = 1024
MACHINE = 4  # an IPU-Machine has four IPUs.
FIRST_SDK, LAST_SDK = 2.0, 2.5  # rates were published for these and the releases between them.
# These rates are in bytes per second.
HOST_LINK = 5.5e9  # the host sends 5.5 GB/s to one IPU, as measured in Graphcore's EfficientDet example.
GATEWAY_LINK = 25e9  # a machine sends 25 GB/s to other PODs, through two ports of 100 Gbit/s [D].
STREAMING = 20e9  # a machine's DRAM delivers 20 GB/s to its four IPUs. This value is an assumption without a source.


@dataclass(frozen=True, kw_only=True)
class Ipu:
    """The data of an IPU.

    * `tile_memory` is in bytes, `clock` in Hz.
    * `half_macs` and `single_macs` are the multiply-adds per cycle of a tile's matrix units, in FP16 and FP32.
    * `exchange` is the number of bytes that a tile receives per cycle.
    * `link` is the number of bytes per second to and from all other IPUs together.
    * `machine_link` is the number of bytes per second that a machine of four IPUs sends to the other machines of its POD.
    """

    name: str
    tiles: int
    tile_memory: int
    clock: float
    half_macs: int
    single_macs: int
    exchange: float
    link: float
    machine_link: float = 128e9  # 512 Gbit/s to each of two neighbours [D]
    sdk: float = FIRST_SDK  # the first SDK release with published rates; by default, rates are predicted for this release.

    @property
    def memory(self) -> int:
        """The bytes of memory in all tiles."""
        return self.tiles * self.tile_memory

    def computing_tiles(self, io_tiles: int) -> int:
        """Return the number of tiles that are not reserved for input and output, at least 1."""
        return max(1, self.tiles - io_tiles)

    @property
    def peak(self) -> float:
        """The peak FP16 operations per second. A multiply-add counts as two."""
        return 2 * self.tiles * self.half_macs * self.clock


MK1 = Ipu(  # [C], except `exchange`, which is the value of Mk2
    name="Mk1", tiles=1216, tile_memory=256 * KIB, clock=1.6e9, half_macs=32, single_macs=8, exchange=4.1, link=256e9
)
MK2 = Ipu(  # [P] [L] [T]
    name="Mk2", tiles=1472, tile_memory=624 * KIB, clock=1.33e9, half_macs=64, single_macs=16, exchange=4.1, link=320e9
)
BOW = replace(MK2, name="Bow", clock=1.85e9, sdk=LAST_SDK)  # [D] [L]


@dataclass(frozen=True, kw_only=True)
class System:
    """A system of IPUs.

    `pod` is the number of IPUs that IPU-Links connect; gateways connect several PODs. `watts` is the power of a machine,
    divided by its four IPUs: at most 1,500 W for Mk2, typically 1,250 W for Bow. None means unknown.
    """

    name: str
    ipu: Ipu
    ipus: int
    pod: int = 64
    watts: float | None = None


def _rows() -> dict[str, System]:
    rows = [System(name=f"POD{n}", ipu=MK2, ipus=n, watts=375) for n in (4, 16, 64, 128, 256)]
    rows += [System(name=f"BOW-POD{n}", ipu=BOW, ipus=n, watts=312.5) for n in (4, 16, 64, 128, 256)]
    rows += [System(name=f"MK1-{n}", ipu=MK1, ipus=n, pod=16) for n in (2, 4, 8, 16)]
    return {row.name: row for row in rows}


SYSTEMS: Mapping[str, System] = MappingProxyType(_rows())


_DIGITS = "0123456789"


def by_name(name: str) -> System:
    """Return the system with a name in upper or lower case. Raise OptionError with the most similar names if there is
    none."""
    spelled = name.upper().replace("_", "-").replace("IPU-POD", "POD").replace("BOWPOD", "BOW-POD")
    system = SYSTEMS.get(spelled.replace("MK2-", ""))
    if system is None:
        hint = did_you_mean(spelled, list(SYSTEMS))
        kind, ipus = spelled.rstrip(_DIGITS), spelled[len(spelled.rstrip(_DIGITS)) :][:9]
        if same := [each for each in SYSTEMS.values() if ipus and each.name.rstrip(_DIGITS) == kind]:
            smaller, larger = ([each.name for each in same if (each.ipus > int(ipus)) == above] for above in (False, True))
            hint = f"; did you mean {' or '.join((*smaller[-1:], *larger[:1]))}?"
        raise OptionError(f"--system {short(name)}: no such system{hint}", f"Available: {', '.join(SYSTEMS)}")
    return system


def smallest(ipus: int) -> System:
    """Return the smallest Mk2 system with at least `ipus` IPUs. Raise OptionError if no system is large enough."""
    fitting = [system for system in SYSTEMS.values() if system.ipu is MK2 and system.ipus >= group_size(ipus)]
    if not fitting:
        raise OptionError(f"the plan needs {ipus} IPUs, but the largest system has 256 (POD256); give fewer --replicas")
    return fitting[0]


def smallest_holding(system: System | None, ipus: int) -> System:
    """Return `system`, or if it is None the smallest system that holds the plan. Raise OptionError if the plan needs more
    IPUs than `system` has."""
    if system is None:
        return smallest(ipus)
    if ipus > system.ipus:
        larger = [s.name for s in SYSTEMS.values() if s.ipu is system.ipu and s.ipus >= ipus]
        raise OptionError(
            f"--system {system.name} has {system.ipus} IPUs, but the plan needs {ipus} (shards x replicas); "
            + (f"give --system {larger[0]}, or " if larger else "give ")
            + "fewer --replicas"
        )
    return system
