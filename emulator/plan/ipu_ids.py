"""The emulated system's device ids: single IPUs first, then the groups of 2, 4, 8, ... neighbours that can be attached
to as one device, as the original's `gc-info -l` lists a machine's."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_SYSTEM = 16  # IPUs: a POD16


class DeviceError(Exception):
    """A device id that does not exist, or not with as many IPUs as needed."""


@dataclass(frozen=True)
class Device:
    """An id, and the IPUs that are attached with it."""

    id: int
    ipus: range

    @property
    def named(self) -> str:
        """The device's IPUs by number, as text."""
        return f"IPU {self.ipus[0]}" if len(self.ipus) == 1 else f"IPUs {self.ipus[0]} to {self.ipus[-1]}"

    def __str__(self) -> str:
        return f"device {self.id} ({self.named})"


def group_size(ipus: int) -> int:
    """The smallest group that has `ipus` IPUs: a power of two."""
    return 1 << max(0, ipus - 1).bit_length()


def system_size(ipus: int) -> int:
    """IPUs of the emulated system on which something that needs `ipus` runs."""
    return max(SMALLEST_SYSTEM, group_size(ipus))


def devices(size: int) -> tuple[Device, ...]:
    """Every id of a system of `size` IPUs, a power of two."""
    return tuple(_device(id, size) for id in range(2 * size - 1))


def _device(id: int, size: int) -> Device:
    """The device of an id below 2 * size - 1."""
    group, first = 1, 0  # the size of the groups, and the id of the first of them
    while id >= first + size // group:
        first += size // group
        group *= 2
    place = (id - first) * group
    return Device(id, range(place, place + group))


def select(choice: str, ipus: int, purpose: str) -> Device:
    """The device to attach to for something that needs `ipus` IPUs: `choice` is an id, or AUTO for the first that fits.

    `purpose` ("training") is for the error.
    """
    size, group = system_size(ipus), group_size(ipus)
    first = 2 * (size - size // group)  # of the groups of this size: after size + size/2 + ... smaller ones
    last = first + size // group - 1
    if choice == "AUTO":
        return _device(first, size)
    ids = f"{first} to {last}" if last > first else f"{first}"
    if len(choice) > 9 or int(choice) >= 2 * size - 1:
        raise DeviceError(
            f"--select-ipu {choice[:20]}: there is no such device; an emulated system of {size} IPUs has the ids 0 to "
            f"{2 * size - 2}, and {purpose} needs one of {ids}; gc-info -l lists them"
        )
    device = _device(int(choice), size)
    if len(device.ipus) != group:
        raise DeviceError(
            f"--select-ipu {choice}: {device} has {len(device.ipus)} IPU{'s' if len(device.ipus) > 1 else ''}, but "
            f"{purpose} attaches to {group}: give AUTO or an id of {ids}; gc-info -l lists them"
        )
    return device
