"""The table of systems: IPU-PODs, GPU servers and TPU slices. Files of users have rows with the same keys.

A row names its chip, whose facts are rows of `CHIPS`, and the number of chips. The letters in `source` are those of
`SOURCES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cnn_harness.base.errors import OptionError
from cnn_harness.base.fields import short
from cnn_harness.base.plugins import did_you_mean
from cnn_harness.emulator.cost_model.constants import FITTED, GPU, NAMES, Constants
from cnn_harness.emulator.plan.ipu_ids import group_size

SOURCES = {
    "P": "the public sources of poplibs, for the multiply-adds of a tile",
    "D": "docs.graphcore.ai, the datasheets of Bow-2000, Bow-POD64 and Bow-POD256",
    "L": "the system descriptions in MLPerf Training 1.1 and 2.0, for clocks",
    "C": "Jia et al. 2019, arXiv 1912.03413",
    "T": 'Graphcore\'s talk "Intelligent memory for intelligent computing", for the rates of memory and exchange',
    "N": "NVIDIA's data sheets of chips and servers",
    "J": "Google's documentation, and Jouppi et al., CACM 2020",
}
KIB, GB = 1024, 10**9
IPU = "IPU"
KINDS = (IPU, "GPU", "TPU", "CPU")
FIRST_SDK, LAST_SDK = 2.0, 2.5  # rates were published for these and the releases between them.
UNTILED_CLOCK = 1e9  # the cycles of a chip without tiles are nanoseconds.


@dataclass(frozen=True, kw_only=True)
class Device:
    """A chip. A chip without tiles counts as one tile, whose exchange is its memory.

    * `tile_memory` is in bytes, `clock` in Hz.
    * `half_macs` and `single_macs` are the multiply-adds per cycle of a tile's matrix units, in FP16 and FP32.
    * `vector_macs` are those of its vector units; None means the kernels of an IPU.
    * `bandwidth` is the bytes per cycle that a tile reads and writes, and `exchange` those that it receives from others.
    * `link` is the number of bytes per second to and from all other chips of a machine together.
    * `sdk` is the first SDK release with published rates, for which rates are predicted by default. None means no SDK.
    """

    name: str
    kind: str
    tiles: int
    threads: int
    tile_memory: float
    clock: float
    half_macs: float
    single_macs: float
    vector_macs: float | None
    bandwidth: float
    exchange: float
    link: float
    sdk: float | None

    @property
    def memory(self) -> int:
        """The bytes of memory in all tiles."""
        return int(self.tiles * self.tile_memory)

    @property
    def lanes(self) -> float:
        """The functions, such as sigmoids, that a tile computes at once."""
        return self.vector_macs or 1.0

    @property
    def converts_layout(self) -> bool:
        """True if matrix units compute FP32 products. They read images by pixel, but frameworks keep FP32 by channel."""
        return not self.tiled and self.single_macs > self.lanes

    @property
    def tiled(self) -> bool:
        """True for an IPU, whose memory is in its tiles."""
        return self.tiles > 1

    def computing_tiles(self, io_tiles: int) -> int:
        """Return the number of tiles that are not reserved for input and output, at least 1."""
        return max(1, self.tiles - io_tiles)

    @property
    def peak(self) -> float:
        """The peak FP16 operations per second. A multiply-add counts as two."""
        return 2 * self.tiles * self.half_macs * self.clock


@dataclass(frozen=True, kw_only=True)
class System:
    """A system of equal chips.

    * `machine` is the number of chips of a machine, and `pod` the number that links connect; gateways connect several PODs.
    * `machine_link` and `gateway_link` are the bytes per second from a machine to the others of its POD, and to other PODs.
      `host_link` is that from the host to one chip, and `dram` that of a machine's streaming memory.
    * `processes` is the number of host processes that prepare images.
    * `watts` is the power of a machine, divided by its chips, and `price` the price of the system per hour. None is unknown.
    """

    name: str
    device: Device
    devices: int
    machine: int
    pod: int
    machine_link: float
    gateway_link: float
    host_link: float
    dram: float
    processes: int
    watts: float | None
    price: float | None
    source: str
    constants: Constants


# The keys of a row, with their units. "" means a number without a unit, and None a word or text.
KEYS: Mapping[str, str | None] = MappingProxyType({
    "chip": None, "kind": None, "source": None, "devices": "", "machine": "", "pod": "", "tiles": "", "threads": "",
    "processes": "", "sdk": "", "price": "", "clock": "Hz", "memory": "B", "fp16_rate": "FLOP/s", "fp32_rate": "FLOP/s",
    "vector_rate": "FLOP/s", "bandwidth": "B/s", "exchange": "B/s", "link": "B/s", "machine_link": "B/s",
    "gateway_link": "B/s", "host_link": "B/s", "dram": "B/s", "watts": "W", **dict.fromkeys(NAMES, ""),
})  # fmt: skip
NEEDED = ("kind", "devices", "memory", "fp16_rate", "fp32_rate", "bandwidth")
Row = Mapping[str, Any]
# Machines of IPUs: the host sends 5.5 GB/s to one IPU, as measured in Graphcore's EfficientDet example. A machine sends
# 512 Gbit/s to each of two neighbours, and 25 GB/s to other PODs, through two ports of 100 Gbit/s [D]. Its DRAM delivers
# 20 GB/s to its four IPUs, which is an assumption without a source.
_IPU = {
    "kind": IPU, "threads": 6, "machine": 4, "host_link": 5.5e9, "machine_link": 128e9, "gateway_link": 25e9, "dram": 20e9,
    "pod": 64,
}  # fmt: skip
_MK2 = {
    **_IPU, "tiles": 1472, "clock": 1.33e9, "memory": 1472 * 624 * KIB, "fp16_rate": 2 * 64 * 1472 * 1.33e9,
    "fp32_rate": 2 * 16 * 1472 * 1.33e9, "bandwidth": 47.5e12, "exchange": 4.1 * 1472 * 1.33e9, "link": 320e9,
    "watts": 375, "sdk": FIRST_SDK, "source": "[P] [D] [L] [T]; watts: at most 1,500 W for a machine",
}  # fmt: skip
_FASTER = 1.85 / 1.33  # all rates of the tiles grow with the clock of Bow.
_GPU = {"kind": "GPU", "machine": 8, "gateway_link": 25e9, "host_link": 25e9}  # PCIe 4: 25 GB/s to a GPU
_A100 = {
    **_GPU, "memory": 80 * GB, "fp16_rate": 312e12, "fp32_rate": 156e12, "vector_rate": 19.5e12, "bandwidth": 2.04e12,
    "link": 600e9, "machine_link": 200e9, "watts": 6500 / 8, "source": "[N]; FP32 products are TF32; watts: a DGX",
}  # fmt: skip
CHIPS: Mapping[str, Row] = MappingProxyType({
    "Mk1": {
        **_IPU, "tiles": 1216, "clock": 1.6e9, "memory": 1216 * 256 * KIB, "fp16_rate": 2 * 32 * 1216 * 1.6e9,
        "fp32_rate": 2 * 8 * 1216 * 1.6e9, "bandwidth": 45e12, "exchange": 4.1 * 1216 * 1.6e9, "link": 256e9, "pod": 16,
        "sdk": FIRST_SDK, "source": "[C]; exchange per tile: that of Mk2",
    },
    "Mk2": _MK2,
    "Bow": {
        **_MK2, "clock": 1.85e9, **{key: _MK2[key] * _FASTER for key in ("fp16_rate", "fp32_rate", "bandwidth", "exchange")},
        "watts": 312.5, "sdk": LAST_SDK, "source": "[D] [L]; watts: typically 1,250 W for a machine",
    },
    "A100": _A100,
    "A100-40GB": {**_A100, "memory": 40 * GB, "bandwidth": 1.56e12},
    "V100": {
        **_GPU, "memory": 16 * GB, "fp16_rate": 125e12, "fp32_rate": 15.7e12, "vector_rate": 15.7e12, "bandwidth": 0.9e12,
        "link": 300e9, "machine_link": 50e9, "host_link": 12.5e9, "watts": 3500 / 8, "source": "[N]; watts: a DGX-1",
    },
    "H100": {
        **_GPU, "memory": 80 * GB, "fp16_rate": 989e12, "fp32_rate": 495e12, "vector_rate": 67e12, "bandwidth": 3.35e12,
        "link": 900e9, "machine_link": 400e9, "host_link": 50e9, "watts": 10200 / 8,
        "source": "[N]; FP32 products are TF32; watts: a DGX",
    },
    "TPU-v2": {
        "kind": "TPU", "machine": 4, "memory": 16 * GB, "fp16_rate": 45e12, "fp32_rate": 45e12 / 6, "bandwidth": 0.7e12,
        "link": 4 * 62.5e9 * 2, "machine_link": 62.5e9, "host_link": 12.5e9, "watts": 280,
        "source": "[J]; FP32 products: six of BF16 (assumed); links: 496 Gbit/s each",
    },
    "TPU-v3": {
        "kind": "TPU", "machine": 4, "memory": 32 * GB, "fp16_rate": 123e12, "fp32_rate": 123e12 / 6, "bandwidth": 0.9e12,
        "link": 4 * 82e9 * 2, "machine_link": 82e9, "host_link": 12.5e9, "watts": 450,
        "source": "[J]; FP32 products: six of BF16 (assumed); links: 656 Gbit/s each",
    },
})  # fmt: skip


def read(name: str, row: Row) -> System:
    """Return the system of a row. Raise OptionError for missing keys. Values are numbers in the units of `KEYS`."""
    values = {**CHIPS.get(row.get("chip", ""), {}), **row}
    missing = [key for key in NEEDED if key not in values]
    if missing:
        raise OptionError(f"{short(name)} has no {missing[0]}; give it, or a chip or a system that has it (chip or like)")
    tiles, clock = values.get("tiles", 1), values.get("clock", UNTILED_CLOCK)
    cycles, devices = tiles * clock, values["devices"]
    tiled = tiles > 1
    vector = values.get("vector_rate", None if tiled else values["fp32_rate"])
    machine = values.get("machine", devices)
    device = Device(
        name=values.get("chip", name), kind=values["kind"], tiles=tiles, threads=values.get("threads", 0),
        tile_memory=values["memory"] / tiles, clock=clock, half_macs=_rounded(values["fp16_rate"] / (2 * cycles)),
        single_macs=_rounded(values["fp32_rate"] / (2 * cycles)), vector_macs=vector and _rounded(vector / (2 * cycles)),
        bandwidth=_rounded(values["bandwidth"] / cycles),
        exchange=_rounded(values.get("exchange", values["bandwidth"]) / cycles),
        link=values.get("link", values["bandwidth"]), sdk=values.get("sdk", FIRST_SDK) if values["kind"] == IPU else None,
    )  # fmt: skip
    host_link = values.get("host_link", 12.5e9)
    usual = FITTED if tiled else GPU
    return System(
        name=name, device=device, devices=devices, machine=machine, pod=values.get("pod", devices),
        machine_link=values.get("machine_link", 12.5e9), gateway_link=values.get("gateway_link", 12.5e9),
        host_link=host_link, dram=values.get("dram", host_link * machine),
        processes=values.get("processes", max(1, devices // 2 if tiled else devices)), watts=values.get("watts"),
        price=values.get("price"), source=values.get("source", ""),
        constants=Constants(**{each: values.get(each, getattr(usual, each)) for each in NAMES}),
    )  # fmt: skip


def _rounded(number: float) -> float:
    """Return a number with eight digits, so that equal chips are equal whatever their clock."""
    return float(f"{number:.8g}")


def _rows() -> dict[str, Row]:
    sizes = (4, 16, 32, 64, 128, 256)
    rows: dict[str, Row] = {f"POD{n}": {"chip": "Mk2", "devices": n} for n in sizes}
    rows |= {f"BOW-POD{n}": {"chip": "Bow", "devices": n} for n in sizes}
    rows |= {f"MK1-{n}": {"chip": "Mk1", "devices": n} for n in (2, 4, 8, 16)}
    for chip, counts in (("A100", (1, 8, 16)), ("A100-40GB", (1, 8)), ("V100", (1, 8)), ("H100", (1, 8)),
                         ("TPU-v2", (4,)), ("TPU-v3", (4,))):  # fmt: skip
        rows |= {f"{chip.upper()}-{n}": {"chip": chip, "devices": n} for n in counts}
    return rows


ROWS: Mapping[str, Row] = MappingProxyType(_rows())
SYSTEMS: Mapping[str, System] = MappingProxyType({name: read(name, row) for name, row in ROWS.items()})
MK1, MK2, BOW = (SYSTEMS[name].device for name in ("MK1-16", "POD16", "BOW-POD16"))


_DIGITS = "0123456789"


def by_name(name: str, option: str = "--system ") -> System:
    """Return the system with a name in upper or lower case. Raise OptionError with the most similar names if there is
    none. The message begins with `option`."""
    spelled = name.upper().replace("_", "-").replace("IPU-POD", "POD").replace("BOWPOD", "BOW-POD")
    system = SYSTEMS.get(spelled.replace("MK2-", ""))
    if system is None:
        hint = did_you_mean(spelled, list(SYSTEMS))
        kind, count = spelled.rstrip(_DIGITS), spelled[len(spelled.rstrip(_DIGITS)) :][:9]
        if same := [each for each in SYSTEMS.values() if count and each.name.rstrip(_DIGITS) == kind]:
            smaller, larger = (
                [each.name for each in same if (each.devices > int(count)) == above] for above in (False, True)
            )
            hint = f"; did you mean {' or '.join((*smaller[-1:], *larger[:1]))}?"
        raise OptionError(f"{option}{short(name)}: no such system{hint}", f"Available: {', '.join(SYSTEMS)}")
    return system


def smallest(ipus: int) -> System:
    """Return the smallest Mk2 system with at least `ipus` IPUs. Raise OptionError if no system is large enough."""
    fitting = [system for system in SYSTEMS.values() if system.device == MK2 and system.devices >= group_size(ipus)]
    if not fitting:
        raise OptionError(f"the plan needs {ipus} IPUs, but the largest system has 256 (POD256); give fewer --replicas")
    return fitting[0]


def smallest_holding(system: System | None, ipus: int) -> System:
    """Return `system`, or if it is None the smallest system that holds the plan. Raise OptionError if the plan needs more
    IPUs than `system` has."""
    if system is None:
        return smallest(ipus)
    if ipus > system.devices:
        larger = [s.name for s in SYSTEMS.values() if s.device == system.device and s.devices >= ipus]
        raise OptionError(
            f"--system {system.name} has {system.devices} {system.device.kind}s, but the plan needs {ipus} "
            "(shards x replicas); " + (f"give --system {larger[0]}, or " if larger else "give ") + "fewer --replicas"
        )
    return system
