"""The IPU systems as rows: memory, tiles, clocks and links of an IPU and of a POD, with sources.

Sources: [P] poplibs' public sources (multiply-adds of a tile); [D] docs.graphcore.ai, datasheets of Bow-2000, Bow-POD64
and Bow-POD256; [L] system descriptions of MLPerf Training 1.1 and 2.0 (clocks); [C] Jia et al. 2019, arXiv 1912.03413
(Mk1); [T] "Intelligent memory for intelligent computing", the vendor's talk (rates of memory and exchange).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from base.errors import OptionError
from base.fields import short
from base.plugins import did_you_mean
from emulator.plan.ipu_ids import group_size

KIB = 1024
# of one IPU-Machine of four IPUs, in bytes a second
HOST_LINK = 5.5e9  # to one IPU through its gateway, as measured by the vendor's EfficientDet example; PCIe on Mk1 is alike
GATEWAY_LINK = 25e9  # between PODs: two ports of 100 Gbit/s a machine [D]
STREAMING = 20e9  # to the machine's DRAM; no source has it: twice the rate that four host links need


@dataclass(frozen=True, kw_only=True)
class Ipu:
    """An IPU. `tile_memory`: bytes; `clock`: Hz; `half_macs`, `single_macs`: multiply-adds of a tile in a cycle with
    full matrix units; `exchange`: bytes a tile receives in a cycle; `link`: bytes a second to all other IPUs, both ways."""

    name: str
    tiles: int
    tile_memory: int
    clock: float
    half_macs: int
    single_macs: int
    exchange: float
    link: float
    later_software: bool = False  # published rates are of SDK 2.4 and later only

    @property
    def memory(self) -> int:
        """Bytes of all tiles."""
        return self.tiles * self.tile_memory

    def computing_tiles(self, io_tiles: int) -> int:
        """Tiles that are not reserved for input and output."""
        return max(1, self.tiles - io_tiles)

    @property
    def peak(self) -> float:
        """FP16 operations a second, an addition and a multiplication each."""
        return 2 * self.tiles * self.half_macs * self.clock


MK1 = Ipu(
    name="Mk1", tiles=1216, tile_memory=256 * KIB, clock=1.6e9, half_macs=32, single_macs=8, exchange=4.1, link=256e9
)  # [C]; the exchange as on Mk2
MK2 = Ipu(
    name="Mk2", tiles=1472, tile_memory=624 * KIB, clock=1.33e9, half_macs=64, single_macs=16, exchange=4.1, link=320e9
)  # [P] [L] [T]
BOW = Ipu(
    name="Bow",
    tiles=1472,
    tile_memory=624 * KIB,
    clock=1.85e9,
    half_macs=64,
    single_macs=16,
    exchange=4.1,
    link=320e9,
    later_software=True,
)  # [D] [L]


@dataclass(frozen=True, kw_only=True)
class System:
    """A number of IPUs. `pod`: IPUs that IPU-Links connect; more are connected by gateways. `watts`: of an IPU with its part
    of the machine (1,500 W at most for four Mk2, 1,250 W typically for four Bow); None without a source."""

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


def by_name(name: str) -> System:
    """The system of that name, whatever its capitals; OptionError with the nearest names."""
    spelled = name.upper().replace("_", "-").replace("IPU-POD", "POD").replace("BOWPOD", "BOW-POD")
    system = SYSTEMS.get(spelled.replace("MK2-", ""))
    if system is None:
        hint = did_you_mean(spelled, list(SYSTEMS))
        raise OptionError(f"--system {short(name)}: there is no such system{hint}", f"There are: {', '.join(SYSTEMS)}")
    return system


def smallest(ipus: int) -> System:
    """The smallest Mk2 system that has this number of IPUs; OptionError beyond the largest."""
    fitting = [system for system in SYSTEMS.values() if system.ipu is MK2 and system.ipus >= group_size(ipus)]
    if not fitting:
        raise OptionError(f"the plan stands for {ipus} IPUs, and the largest system, POD256, has 256; give fewer --replicas")
    return fitting[0]


def smallest_holding(system: System | None, ipus: int) -> System:
    """The system that was asked for, or the smallest; OptionError if the plan has more IPUs."""
    if system is None:
        return smallest(ipus)
    if ipus > system.ipus:
        larger = [s.name for s in SYSTEMS.values() if s.ipu is system.ipu and s.ipus >= ipus]
        raise OptionError(
            f"--system {system.name} has {system.ipus} IPUs and the plan stands for {ipus} (shards x replicas); "
            + (f"give --system {larger[0]}, or " if larger else "give ")
            + "fewer --replicas"
        )
    return system
