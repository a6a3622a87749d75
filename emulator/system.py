"""The emulated system's device ids: single IPUs first, then the groups of 2, 4, 8, ... neighbours that can be attached
to as one device, as the original's `gc-info -l` lists a machine's."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_SYSTEM = 16  # IPUs: a POD16


class DeviceError(Exception):
    """A device id that does not exist, or not with as many IPUs as needed."""


@dataclass(frozen=True)
class Device:
    """One id, and the IPUs that are attached with it."""

    id: int
    ipus: range

    def __str__(self) -> str:
        named = f"IPU {self.ipus[0]}" if len(self.ipus) == 1 else f"IPUs {self.ipus[0]} to {self.ipus[-1]}"
        return f"device {self.id} ({named})"


def group_size(ipus: int) -> int:
    """The smallest group that has `ipus` IPUs: a power of two."""
    return 1 << max(0, ipus - 1).bit_length()


def system_size(ipus: int) -> int:
    """IPUs of the emulated system on which something that needs `ipus` runs."""
    return max(SMALLEST_SYSTEM, group_size(ipus))


def devices(size: int) -> tuple[Device, ...]:
    """Every id of a system of `size` IPUs, a power of two."""
    found: list[Device] = []
    group = 1
    while group <= size:
        found += [Device(len(found) + i, range(first, first + group)) for i, first in enumerate(range(0, size, group))]
        group *= 2
    return tuple(found)


def select(wanted: str, ipus: int, purpose: str) -> Device:
    """The device to attach to for something that needs `ipus` IPUs: `wanted` is an id, or AUTO for the first that fits.

    `purpose` ("training") is for the error.
    """
    known = devices(system_size(ipus))
    fitting = [device for device in known if len(device.ipus) == group_size(ipus)]
    if wanted == "AUTO":
        return fitting[0]
    ids = f"{fitting[0].id} to {fitting[-1].id}" if len(fitting) > 1 else f"{fitting[0].id}"
    if int(wanted) >= len(known):
        raise DeviceError(
            f"--select-ipu {wanted}: there is no such device; an emulated system of {system_size(ipus)} IPUs has the ids 0 "
            f"to {len(known) - 1}, and {purpose} needs one of {ids}; gc-info -l lists them"
        )
    device = known[int(wanted)]
    if len(device.ipus) != group_size(ipus):
        raise DeviceError(
            f"--select-ipu {wanted}: {device} has {len(device.ipus)} IPU{'s' if len(device.ipus) > 1 else ''}, but "
            f"{purpose} attaches to {group_size(ipus)}: give AUTO or an id of {ids}; gc-info -l lists them"
        )
    return device
